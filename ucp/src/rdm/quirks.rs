//! Everything that a peer's age or its feature word changes in what we send it. Pure functions of the word;
//! `peer.rs` keeps their answers. Nothing else in the engine looks at feature bits.

use super::io::Rdma;
use crate::wire::Features;
use crate::wire::opt::RAW_ADDR_EMIT;

/// What this engine truly does on a wire with this RDMA. libfabric 2.6 and later take bits 1, 3, 4 and 6 for granted.
/// Without reads there is no runting either, for libfabric 1.16 to 1.18 take either bit for both (RDM v4 3.4); but the
/// sender hears of it by READ_NACK.
// [M3.10]
pub const fn ours(rdma: Rdma) -> Features {
    let all = Features::DELIVERY_COMPLETE
        .union(Features::CONNID)
        .union(Features::READ_NACK)
        .union(Features::CLASSES);
    match rdma.read {
        0 => all,
        _ => all.union(Features::RDMA_READ).union(Features::RUNT_READ),
    }
}

/// Which identity header a REQ packet carries (the two are never sent together).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReqHdr {
    /// Raw address: until the peer's HANDSHAKE arrived, or for ever when it asked for constant headers.
    RawAddr,
    /// Connid: the peer asked for it.
    Connid,
    /// Neither: a peer too old to know connid.
    Bare,
}

impl ReqHdr {
    /// Before the peer's HANDSHAKE.
    pub const FIRST: ReqHdr = ReqHdr::RawAddr;

    /// After a HANDSHAKE with these features (rule R5 of the wire facts).
    // [M3.4] [M3.5]
    pub const fn after(features: Features) -> ReqHdr {
        if features.contains(Features::CONST_HDR_LEN) {
            ReqHdr::RawAddr
        } else if features.contains(Features::CONNID) {
            ReqHdr::Connid
        } else {
            ReqHdr::Bare
        }
    }

    /// Bytes it adds to a REQ packet.
    #[inline]
    pub const fn wire_len(self) -> usize {
        match self {
            ReqHdr::RawAddr => 4 + RAW_ADDR_EMIT,
            ReqHdr::Connid => 4,
            ReqHdr::Bare => 0,
        }
    }
}

/// May an untagged message packet be sent to this peer's main queue pair? Peers in zero-copy receive mode want
/// headerless packets elsewhere, which no room here sends.
pub const fn takes_untagged(features: Features) -> bool {
    !features.contains(Features::USER_RECV_QP)
}

/// May messages of our own classes be sent to this peer?
#[inline]
pub const fn takes_classes(features: Features) -> bool {
    features.contains(Features::CLASSES)
}

/// Does this peer take, and name, further lanes of one worker?
pub const fn takes_rails(features: Features) -> bool {
    features.contains(Features::RAILS)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [M3.4] [M3.5]
    #[test]
    fn header_follows_the_peers_word() {
        assert_eq!(ReqHdr::after(Features::from_bits_retain(0x1a)), ReqHdr::Connid);
        assert_eq!(ReqHdr::after(Features::from_bits_retain(0x3)), ReqHdr::Bare);
        assert_eq!(ReqHdr::after(Features::from_bits_retain(0x1e)), ReqHdr::RawAddr);
        assert!(!takes_untagged(Features::from_bits_retain(0xda)));
        assert!(takes_untagged(Features::from_bits_retain(0x25a)));
    }

    // [M3.10]
    #[test]
    fn our_word_is_what_we_do() {
        assert_eq!(ours(Rdma::NONE).bits(), 0x4a | 1 << 63);
        assert_eq!(ours(Rdma { read: 1, ..Rdma::NONE }).bits(), 0x5b | 1 << 63);
    }
}
