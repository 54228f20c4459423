//! Features: what a peer's release and its feature word change in what we send it. Pure functions of the
//! word; no other file looks at feature bits.

use crate::rdm::io::Rdma;
use crate::wire::Features;
use crate::wire::opt::RAW_ADDR_EMIT;

/// Returns the features of this engine on a wire with this RDMA. libfabric 2.6 and later take bits 1, 3, 4
/// and 6 for granted. Without reads there is no runting, as libfabric 1.16 to 1.18 take either bit for both
/// (RDM v4 3.4).
// [M3.10]
pub const fn ours(rdma: Rdma) -> Features {
    let all = Features::DELIVERY_COMPLETE
        .union(Features::CONNID)
        .union(Features::READ_NACK)
        .union(Features::PEER_ERROR)
        .union(Features::CLASSES)
        .union(Features::CLOSE);
    let all = match rdma.read {
        0 => all,
        _ => all.union(Features::RDMA_READ).union(Features::RUNT_READ),
    };
    // A peer may send immediate data only if we announce it.
    if rdma.write > 0 && rdma.write_imm { all.union(Features::RDMA_WRITE) } else { all }
}

/// Reason why no device does a write or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RdmaUnavailable {
    /// Our device cannot.
    Local,
    /// The peer's HANDSHAKE does not offer it.
    Remote,
    /// The data for the target exceed 32 bits, the write needs several operations, or the two devices handle
    /// immediate data differently.
    CqData,
}

/// Checks that our device may read memory of a peer with these features; `None` before its HANDSHAKE.
// [M8.9]
pub const fn direct_read(rdma: Rdma, features: Option<Features>) -> Result<(), RdmaUnavailable> {
    match features {
        _ if rdma.read == 0 => Err(RdmaUnavailable::Local),
        Some(features) if !features.contains(Features::RDMA_READ) => Err(RdmaUnavailable::Remote),
        _ => Ok(()),
    }
}

/// Checks that our device may write `len` bytes to a peer with these features; `features` is `None` before
/// its HANDSHAKE. A write with `cq_data` must be one operation. Its immediate data consumes a receive of the
/// target, unless the peer has bit 8; both sides must handle this alike (libfabric 2.1 and later).
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

/// Identity header of a REQ packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReqHdr {
    /// Raw address: until the peer's HANDSHAKE, or always if the peer asked for constant headers.
    RawAddr,
    /// Connid: at the peer's request.
    Connid,
    /// None: the peer is too old for connids.
    Bare,
}

impl ReqHdr {
    /// Before the peer's HANDSHAKE.
    pub const FIRST: ReqHdr = ReqHdr::RawAddr;

    /// Returns the header after a HANDSHAKE with these features (rule R5 of the wire facts).
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

    /// Returns the bytes that it adds to a REQ packet.
    #[inline]
    pub const fn wire_len(self) -> usize {
        match self {
            ReqHdr::RawAddr => 4 + RAW_ADDR_EMIT,
            ReqHdr::Connid => 4,
            ReqHdr::Bare => 0,
        }
    }
}

/// True if the peer is in zero-copy receive mode (libfabric 1.22 to 2.5): it takes untagged messages without
/// a header only, on its user receive QP.
// [M5.10]
pub const fn wants_user_qp(features: Features) -> bool {
    features.contains(Features::USER_RECV_QP)
}

/// True if the peer supports PEER_ERROR.
// [M10.3]
pub const fn supports_peer_error(features: Features) -> bool {
    features.contains(Features::PEER_ERROR)
}

/// True if the peer supports our own message classes.
#[inline]
pub const fn supports_classes(features: Features) -> bool {
    features.contains(Features::CLASSES)
}

/// True if the peer ends conversations by a message.
// [M11.15]
pub const fn supports_close(features: Features) -> bool {
    features.contains(Features::CLOSE)
}

/// True if the peer supports further lanes of one worker.
pub const fn supports_rails(features: Features) -> bool {
    features.contains(Features::RAILS)
}

/// True if two workers with these features can fail over: each must identify the other's packets by connid.
pub const fn supports_failover(ours: Features, remote_id: Features) -> bool {
    supports_rails(remote_id) && ours.intersection(remote_id).contains(Features::CONNID)
}

#[cfg(test)]
mod tests {
    use super::*;

    // [M3.4] [M3.5]
    #[test]
    fn req_header_follows_peer_features() {
        assert_eq!(ReqHdr::after(Features::from_bits_retain(0x1a)), ReqHdr::Connid);
        assert_eq!(ReqHdr::after(Features::from_bits_retain(0x3)), ReqHdr::Bare);
        assert_eq!(ReqHdr::after(Features::from_bits_retain(0x1e)), ReqHdr::RawAddr);
        assert!(wants_user_qp(Features::from_bits_retain(0xda)));
        assert!(!wants_user_qp(Features::from_bits_retain(0x25a)));
    }

    // [M3.10]
    #[test]
    fn own_features_follow_rdma_capabilities() {
        assert_eq!(ours(Rdma::NONE).bits(), 0x24a | 5 << 61);
        assert_eq!(ours(Rdma { read: 1, ..Rdma::NONE }).bits(), 0x25b | 5 << 61);
        assert_eq!(ours(Rdma { read: 1, write: 1, write_imm: true }).bits(), 0x27b | 5 << 61);
        assert_eq!(ours(Rdma { read: 0, write: 1, write_imm: false }).bits(), 0x24a | 5 << 61);
    }

    // [M8.9]
    #[test]
    fn rdma_needs_peer_feature() {
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
