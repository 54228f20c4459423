//! How a one-sided operation goes, and why not another way: a pure function of the operation, its length, the remote key,
//! the wire and the peer's header. Used by `api` to explain; the engine's rooms switch at the same limits, which a test
//! holds together.

use std::fmt;

use crate::rdm::io::Rdma;
use crate::rdm::quirks::ReqHdr;
use crate::rdm::rma::RmaRow;
use crate::wire::ctl::ReadRsp;
use crate::wire::{Opts, PktType, RmaIov, header_len};

use super::key::CqData;

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RmaOp {
    /// Write.
    Put,
    /// Read.
    Get,
}

/// Who knows the remote memory beside the peer's engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Known {
    /// Nobody: the key is for packets.
    Packets,
    /// The peer's device.
    Device,
    /// This process has it mapped.
    Mapped,
}

/// Everything the choice depends on, except the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RmaKey {
    /// What is to be done.
    pub op: RmaOp,
    /// Who knows the memory.
    pub known: Known,
    /// With data for the target?
    pub cq_data: CqData,
    /// What the wire's device can do.
    pub rdma: Rdma,
    /// Longest packet, bytes.
    pub mtu: usize,
    /// Identity header of requests to the peer.
    pub hdr: ReqHdr,
    /// Whether the wire keeps order: where it does not, writes by packets are acknowledged one by one.
    pub ordered: bool,
}

/// A way to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaWay {
    /// Copied by this processor.
    Mapped,
    /// By the engine.
    Row(RmaRow),
}

impl RmaWay {
    /// Name as printed by tools.
    pub const fn name(self) -> &'static str {
        match self {
            RmaWay::Mapped => "mapped",
            RmaWay::Row(row) => row.name(),
        }
    }
}

/// What became of one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaVerdict {
    /// Chosen.
    Taken,
    /// The memory is not mapped here.
    NotMapped,
    /// The device cannot, or the peer's does not know the memory.
    NoRdma,
    /// Data for the target travel by packet.
    CqData,
    /// One packet carries at most so many bytes.
    TooLong {
        /// Bytes.
        max: usize,
    },
    /// Possible, but one before it asks less of the target.
    Dearer,
}

impl fmt::Display for RmaVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RmaVerdict::Taken => f.write_str("taken"),
            RmaVerdict::NotMapped => f.write_str("the memory is not mapped in this process"),
            RmaVerdict::NoRdma => f.write_str("no RDMA: the device cannot, or the key does not name it"),
            RmaVerdict::CqData => f.write_str("data for the target travel by packet"),
            RmaVerdict::TooLong { max } => write!(f, "one packet carries at most {max} bytes"),
            RmaVerdict::Dearer => f.write_str("possible, but asks more of the target"),
        }
    }
}

/// Most bytes that go in one packet: of the request for a put, of the answer for a get.
pub fn one_packet(key: &RmaKey) -> usize {
    match key.op {
        RmaOp::Get => key.mtu.saturating_sub(ReadRsp::LEN + 1),
        RmaOp::Put => {
            let ty = if key.ordered { PktType::EAGER_RTW } else { PktType::DC_EAGER_RTW };
            let cq = if key.cq_data == CqData::Yes { 8 } else { 0 };
            let header = header_len(ty, 1, &Opts::default()) + key.hdr.wire_len() + cq;
            debug_assert!(header > RmaIov::LEN);
            key.mtu.saturating_sub(header)
        }
    }
}

/// All ways for an operation on one piece of `len` bytes, in the order they are tried; exactly one is taken.
pub fn explain_rma(key: &RmaKey, len: usize) -> [(RmaWay, RmaVerdict); 4] {
    let (direct, short, long, rdma) = match key.op {
        RmaOp::Put => (RmaRow::DirectWrite, RmaRow::EagerWrite, RmaRow::LongCtsWrite, key.rdma.write),
        RmaOp::Get => (RmaRow::DirectRead, RmaRow::ShortRead, RmaRow::LongCtsRead, key.rdma.read),
    };
    let with_data = key.cq_data == CqData::Yes;
    let max = one_packet(key);
    let can = [
        if key.known != Known::Mapped {
            Err(RmaVerdict::NotMapped)
        } else if with_data {
            Err(RmaVerdict::CqData)
        } else {
            Ok(())
        },
        if key.known != Known::Device || rdma == 0 {
            Err(RmaVerdict::NoRdma)
        } else if with_data {
            Err(RmaVerdict::CqData)
        } else {
            Ok(())
        },
        if len > max { Err(RmaVerdict::TooLong { max }) } else { Ok(()) },
        Ok(()),
    ];
    let taken = can.iter().position(Result::is_ok);
    let ways = [RmaWay::Mapped, RmaWay::Row(direct), RmaWay::Row(short), RmaWay::Row(long)];
    let mut out = [(RmaWay::Mapped, RmaVerdict::Dearer); 4];
    for (n, (way, can)) in ways.into_iter().zip(can).enumerate() {
        let verdict = match can {
            _ if taken == Some(n) => RmaVerdict::Taken,
            Ok(()) => RmaVerdict::Dearer,
            Err(why) => why,
        };
        out[n] = (way, verdict);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(key: &RmaKey, len: usize) -> RmaWay {
        let all = explain_rma(key, len);
        let mut taken = all.iter().filter(|(_, verdict)| *verdict == RmaVerdict::Taken);
        let way = taken.next().map(|(way, _)| *way);
        assert!(taken.next().is_none());
        way.unwrap()
    }

    /// Golden: the limits of wire facts 5.2 and 5.6 for packets of 8900 bytes.
    #[test]
    fn golden() {
        let rdma = Rdma { read: 1 << 30, write: 1 << 30, write_imm: true };
        let key = RmaKey {
            op: RmaOp::Put,
            known: Known::Packets,
            cq_data: CqData::No,
            rdma,
            mtu: 8900,
            hdr: ReqHdr::RawAddr,
            ordered: true,
        };
        assert_eq!(one_packet(&key), 8900 - 72);
        assert_eq!(one_packet(&RmaKey { hdr: ReqHdr::Connid, ..key }), 8900 - 36);
        assert_eq!(taken(&key, 8828), RmaWay::Row(RmaRow::EagerWrite));
        assert_eq!(taken(&key, 8829), RmaWay::Row(RmaRow::LongCtsWrite));
        let get = RmaKey { op: RmaOp::Get, ..key };
        assert_eq!(taken(&get, 8875), RmaWay::Row(RmaRow::ShortRead));
        assert_eq!(taken(&get, 8876), RmaWay::Row(RmaRow::LongCtsRead));
        let device = RmaKey { known: Known::Device, ..key };
        assert_eq!(taken(&device, 1), RmaWay::Row(RmaRow::DirectWrite));
        assert_eq!(taken(&RmaKey { rdma: Rdma::NONE, ..device }, 1), RmaWay::Row(RmaRow::EagerWrite));
        assert_eq!(taken(&RmaKey { cq_data: CqData::Yes, ..device }, 1), RmaWay::Row(RmaRow::EagerWrite));
        assert_eq!(taken(&RmaKey { known: Known::Mapped, ..get }, 1 << 40), RmaWay::Mapped);
        assert_eq!(explain_rma(&device, 9000)[2].1, RmaVerdict::TooLong { max: 8828 });
    }
}
