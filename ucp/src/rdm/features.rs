//! Everything that a peer's age or its feature word changes in what we send it. Pure functions of the word;
//! `peers::peer` keeps their answers. Nothing else in the engine looks at feature bits.

use crate::rdm::io::Rdma;
use crate::wire::Features;
use crate::wire::opt::RAW_ADDR_EMIT;

/// Features that this engine supports on a wire with this RDMA. libfabric 2.6 and later take bits 1, 3, 4 and
/// 6 for granted. Without reads there is no runting either, for libfabric 1.16 to 1.18 take either bit for
/// both (RDM v4 3.4); but the sender hears of it by READ_NACK.
// [M3.10]
pub const fn ours(rdma: Rdma) -> Features {
    let all = Features::DELIVERY_COMPLETE
        .union(Features::CONNID)
        .union(Features::READ_NACK)
        .union(Features::PEER_ERROR)
        .union(Features::CLASSES);
    let all = match rdma.read {
        0 => all,
        _ => all.union(Features::RDMA_READ).union(Features::RUNT_READ),
    };
    // A peer that writes may send a word along: it has to be told.
    if rdma.write > 0 && rdma.write_imm { all.union(Features::RDMA_WRITE) } else { all }
}

/// Why the device does not do a write or a read by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RdmaUnavailable {
    /// Our device cannot.
    Local,
    /// The peer's handshake says that its device does not take part.
    Remote,
    /// The data for the target do not fit a word, or the write more than one operation, or the two devices
    /// take words in different ways.
    CqData,
}

/// May our device read memory of a peer with these features (`None`: it has not said)?
// [M8.9]
pub const fn direct_read(rdma: Rdma, features: Option<Features>) -> Result<(), RdmaUnavailable> {
    match features {
        _ if rdma.read == 0 => Err(RdmaUnavailable::Local),
        Some(features) if !features.contains(Features::RDMA_READ) => Err(RdmaUnavailable::Remote),
        _ => Ok(()),
    }
}

/// May our device write `len` bytes, as one piece if with `cq_data`, to memory of a peer with these features
/// (`None`: it has not said)? A word for the target takes up one of its receives here; a peer with bit 8 does
/// that in another way, and such two do not mix (libfabric 2.1 and later).
// [M8.9]
pub const fn direct_write(
    rdma: Rdma,
    features: Option<Features>,
    len: u64,
    cq_data: Option<u64>,
) -> Result<(), RdmaUnavailable> {
    let solicited = match features {
        _ if rdma.write == 0 => return Err(RdmaUnavailable::Local),
        Some(features) if !features.contains(Features::RDMA_WRITE) => return Err(RdmaUnavailable::Remote),
        Some(features) => !features.contains(Features::UNSOLICITED_WRITE_RECV),
        None => true,
    };
    match cq_data {
        Some(word) if word > u32::MAX as u64 || len > rdma.write || !rdma.write_imm || !solicited => {
            Err(RdmaUnavailable::CqData)
        }
        _ => Ok(()),
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

/// Is this peer in zero-copy receive mode (libfabric 1.22 to 2.5)? It takes no packet with a message then,
/// only untagged messages without headers, on another queue pair.
// [M5.10]
pub const fn wants_user_qp(features: Features) -> bool {
    features.contains(Features::USER_RECV_QP)
}

/// May this peer be told what has failed here?
// [M10.3]
pub const fn supports_peer_error(features: Features) -> bool {
    features.contains(Features::PEER_ERROR)
}

/// May messages of our own classes be sent to this peer?
#[inline]
pub const fn supports_classes(features: Features) -> bool {
    features.contains(Features::CLASSES)
}

/// Does this peer take, and name, further lanes of one worker?
pub const fn supports_rails(features: Features) -> bool {
    features.contains(Features::RAILS)
}

/// Can two workers of which one announces `ours` and the other `remote_id` go on over other lanes than those
/// they met on? Each must know the other's packets there by their connid.
pub const fn supports_failover(ours: Features, remote_id: Features) -> bool {
    supports_rails(remote_id) && ours.intersection(remote_id).contains(Features::CONNID)
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
        assert!(wants_user_qp(Features::from_bits_retain(0xda)));
        assert!(!wants_user_qp(Features::from_bits_retain(0x25a)));
    }

    // [M3.10]
    #[test]
    fn our_word_is_what_we_do() {
        assert_eq!(ours(Rdma::NONE).bits(), 0x24a | 1 << 63);
        assert_eq!(ours(Rdma { read: 1, ..Rdma::NONE }).bits(), 0x25b | 1 << 63);
        assert_eq!(ours(Rdma { read: 1, write: 1, write_imm: true }).bits(), 0x27b | 1 << 63);
        assert_eq!(ours(Rdma { read: 0, write: 1, write_imm: false }).bits(), 0x24a | 1 << 63);
    }

    // [M8.9]
    #[test]
    fn devices_work_for_peers_that_say_so() {
        let rdma = Rdma { read: 100, write: 100, write_imm: true };
        let of = |bits| Some(Features::from_bits_retain(bits));
        assert_eq!(direct_read(Rdma::NONE, None), Err(RdmaUnavailable::Local));
        assert_eq!(direct_read(rdma, of(0x20)), Err(RdmaUnavailable::Remote));
        assert_eq!((direct_read(rdma, of(1)), direct_read(rdma, None)), (Ok(()), Ok(())));
        let write = |features, len, data| direct_write(rdma, features, len, data);
        assert_eq!(direct_write(Rdma::NONE, None, 1, None), Err(RdmaUnavailable::Local));
        assert_eq!(write(of(1), 5, None), Err(RdmaUnavailable::Remote));
        assert_eq!(write(of(0x20), 5000, None), Ok(()));
        assert_eq!(write(of(0x20), 100, Some(u32::MAX.into())), Ok(()));
        assert_eq!(write(None, 100, Some(7)), Ok(()));
        for (bits, len, data) in [(0x20, 101, 7), (0x20, 100, 1 << 32), (0x120, 100, 7)] {
            assert_eq!(write(of(bits), len, Some(data)), Err(RdmaUnavailable::CqData));
        }
        assert_eq!(write(of(0x120), 5000, None), Ok(()));
    }
}
