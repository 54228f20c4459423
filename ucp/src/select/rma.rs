//! How a one-sided operation goes, and why not another way: a pure function of the operation, its length, the remote key,
//! the wire and the peer's header. Used by `api` to explain; the engine's rooms switch at the same limits, which a test
//! holds together.

use std::fmt;

use crate::rdm::Emulation;
use crate::rdm::io::Rdma;
use crate::rdm::quirks::{NotDirect, ReqHdr, direct_read, direct_write};
use crate::rdm::rma::RmaRow;
use crate::wire::ctl::ReadRsp;
use crate::wire::{Features, Opts, PktType, RmaIov, header_len};

use arrayvec::ArrayVec;

use super::rules::Thresholds;

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
    /// The kernel, which copies between the two processes.
    Copied,
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
    /// Data for the target.
    pub cq_data: Option<u64>,
    /// What the wire's device can do.
    pub rdma: Rdma,
    /// Longest packet, bytes.
    pub mtu: usize,
    /// Identity header of requests to the peer.
    pub hdr: ReqHdr,
    /// What the peer's handshake has said, if it is here.
    pub features: Option<Features>,
    /// Size from which a put by packets is read by the target ([`Thresholds::min_read_write`]).
    pub min_read_write: usize,
    /// Whether the wire keeps order: where it does not, writes by packets are acknowledged one by one.
    pub ordered: bool,
    /// Whether the peer's processor may be asked.
    pub emulation: Emulation,
}

/// A way to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaWay {
    /// Copied by this processor.
    Mapped,
    /// Copied by the kernel: listed where there is that way to the peer.
    Copied,
    /// By the engine.
    Row(RmaRow),
}

impl RmaWay {
    /// Name as printed by tools.
    pub const fn name(self) -> &'static str {
        match self {
            RmaWay::Mapped => "mapped",
            RmaWay::Copied => "copied",
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
    /// The peer's handshake says that its device does no such RDMA.
    NoRdmaThere,
    /// Data for the target do not travel this way, or not as many, or not with a write as long.
    CqData,
    /// One packet carries at most so many bytes.
    TooLong {
        /// Bytes.
        max: usize,
    },
    /// The wire reads no memory of peers.
    NoReadHere,
    /// The peer's handshake says that it does not read ours.
    NoReadThere,
    /// Below the size from which writes are read.
    BelowRead {
        /// That size.
        min: usize,
    },
    /// Possible, but one before it asks less of the target.
    Dearer,
    /// Asks the peer's processor, which is refused.
    Refused,
}

impl fmt::Display for RmaVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RmaVerdict::Taken => f.write_str("taken"),
            RmaVerdict::NotMapped => f.write_str("the memory is not mapped in this process"),
            RmaVerdict::NoRdma => f.write_str("no RDMA: the device cannot, or the key does not name it"),
            RmaVerdict::NoRdmaThere => f.write_str("the peer's device does no such RDMA"),
            RmaVerdict::CqData => f.write_str("does not carry these data for the target"),
            RmaVerdict::TooLong { max } => write!(f, "one packet carries at most {max} bytes"),
            RmaVerdict::NoReadHere => f.write_str("the wire has no RDMA read"),
            RmaVerdict::NoReadThere => f.write_str("the peer does not do RDMA reads"),
            RmaVerdict::BelowRead { min } => write!(f, "only from {min} bytes on (UCX_MIN_READ_WRITE)"),
            RmaVerdict::Dearer => f.write_str("possible, but asks more of the target"),
            RmaVerdict::Refused => f.write_str("asks the peer's processor (UCX_EMULATION=n)"),
        }
    }
}

/// Most bytes that go in one packet: of the request for a put, of the answer for a get.
pub fn one_packet(key: &RmaKey) -> usize {
    match key.op {
        RmaOp::Get => key.mtu.saturating_sub(ReadRsp::LEN + 1),
        RmaOp::Put => {
            let ty = if key.ordered { PktType::EAGER_RTW } else { PktType::DC_EAGER_RTW };
            let cq = if key.cq_data.is_some() { 8 } else { 0 };
            let header = header_len(ty, 1, &Opts::default()) + key.hdr.wire_len() + cq;
            debug_assert!(header > RmaIov::LEN);
            key.mtu.saturating_sub(header)
        }
    }
}

/// The row that a put of `len` bytes by packets is asked for by. The engine goes by one packet if it fits, and by
/// long-CTS if the peer turns out not to read. // HOT
#[inline]
pub const fn put_row(limits: &Thresholds, len: usize) -> RmaRow {
    if len >= limits.min_read_write && len > 0 { RmaRow::LongReadWrite } else { RmaRow::EagerWrite }
}

/// Whether the device carries an operation by itself.
fn by_device(key: &RmaKey, len: usize) -> Result<(), RmaVerdict> {
    let can = match key.op {
        _ if key.known != Known::Device => Err(NotDirect::Here),
        RmaOp::Put => direct_write(key.rdma, key.features, len as u64, key.cq_data),
        RmaOp::Get => direct_read(key.rdma, key.features),
    };
    can.map_err(|why| match why {
        NotDirect::Here => RmaVerdict::NoRdma,
        NotDirect::There => RmaVerdict::NoRdmaThere,
        NotDirect::CqData => RmaVerdict::CqData,
    })
}

/// Whether a put of `len` bytes can be read by the target.
fn read_by_target(key: &RmaKey, len: usize) -> Result<(), RmaVerdict> {
    if key.rdma.read == 0 {
        Err(RmaVerdict::NoReadHere)
    } else if direct_read(key.rdma, key.features).is_err() {
        Err(RmaVerdict::NoReadThere)
    } else if len < key.min_read_write {
        Err(RmaVerdict::BelowRead { min: key.min_read_write })
    } else {
        Ok(())
    }
}

/// The ways an operation can go, each with its verdict.
pub type RmaWays = ArrayVec<(RmaWay, RmaVerdict), 6>;

/// All ways for an operation on one piece of `len` bytes, in the order they are tried; one is taken, unless emulation is refused
/// and nothing else carries it. A put with
/// data for the target goes by one packet rather than by the device: the target has to look anyway.
pub fn explain_rma(key: &RmaKey, len: usize) -> RmaWays {
    let (direct, short, long) = match key.op {
        RmaOp::Put => (RmaRow::DirectWrite, RmaRow::EagerWrite, RmaRow::LongCtsWrite),
        RmaOp::Get => (RmaRow::DirectRead, RmaRow::ShortRead, RmaRow::LongCtsRead),
    };
    let max = one_packet(key);
    let mapped = match key.known {
        Known::Mapped if key.cq_data.is_none() => Ok(()),
        Known::Mapped => Err(RmaVerdict::CqData),
        _ => Err(RmaVerdict::NotMapped),
    };
    let direct = (RmaWay::Row(direct), by_device(key, len));
    let short = (RmaWay::Row(short), if len > max { Err(RmaVerdict::TooLong { max }) } else { Ok(()) });
    let (second, third) = if key.cq_data.is_some() { (short, direct) } else { (direct, short) };
    let mut ways = ArrayVec::<_, 6>::from_iter([(RmaWay::Mapped, mapped)]);
    if key.known == Known::Copied {
        let can = if key.cq_data.is_some() { Err(RmaVerdict::CqData) } else { Ok(()) };
        ways.push((RmaWay::Copied, can));
    }
    ways.extend([second, third]);
    if key.op == RmaOp::Put {
        ways.push((RmaWay::Row(RmaRow::LongReadWrite), read_by_target(key, len)));
    }
    ways.push((RmaWay::Row(long), Ok(())));
    let asks = |way: &RmaWay| matches!(way, RmaWay::Row(row) if row.is_emulated());
    let refused = key.emulation == Emulation::Refused && len > 0;
    for (_, can) in ways.iter_mut().filter(|(way, can)| refused && can.is_ok() && asks(way)) {
        *can = Err(RmaVerdict::Refused);
    }
    let taken = ways.iter().position(|(_, can)| can.is_ok());
    let verdict = |(n, (way, can)): (usize, (RmaWay, Result<(), RmaVerdict>))| match can {
        _ if taken == Some(n) => (way, RmaVerdict::Taken),
        Ok(()) => (way, RmaVerdict::Dearer),
        Err(why) => (way, why),
    };
    ways.into_iter().enumerate().map(verdict).collect()
}

/// Why an atomic goes one way and not another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicVerdict {
    /// Chosen.
    Taken,
    /// The memory is not mapped here.
    NotMapped,
    /// The processor has no such operation on elements of this type that is atomic towards other processes.
    NotNative,
    /// No EFA device computes.
    NoDevice,
    /// Possible, but asks the target's processor.
    Dearer,
    /// Asks the peer's processor, which is refused.
    Refused,
}

impl fmt::Display for AtomicVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AtomicVerdict::Taken => "taken",
            AtomicVerdict::NotMapped => "the memory is not mapped in this process",
            AtomicVerdict::NotNative => "not an operation and type of this processor's atomics",
            AtomicVerdict::NoDevice => "no device of this transport computes",
            AtomicVerdict::Dearer => "possible, but asks more of the target",
            AtomicVerdict::Refused => "asks the peer's processor (UCX_EMULATION=n)",
        })
    }
}

/// The ways of an atomic, in the order they are tried: in mapped memory, by the device, by packets.
pub const fn explain_atomic(mapped: bool, native: bool, emulation: Emulation) -> [AtomicVerdict; 3] {
    let here = match (mapped, native) {
        (true, true) => AtomicVerdict::Taken,
        (false, _) => AtomicVerdict::NotMapped,
        (true, false) => AtomicVerdict::NotNative,
    };
    let by_packets = match (here, emulation) {
        (_, Emulation::Refused) => AtomicVerdict::Refused,
        (AtomicVerdict::Taken, _) => AtomicVerdict::Dearer,
        _ => AtomicVerdict::Taken,
    };
    [here, AtomicVerdict::NoDevice, by_packets]
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
            cq_data: None,
            rdma,
            mtu: 8900,
            hdr: ReqHdr::RawAddr,
            features: Some(Features::from_bits_retain(0x21)),
            min_read_write: Thresholds::MIN_READ_WRITE,
            ordered: true,
            emulation: Emulation::Allowed,
        };
        assert_eq!(one_packet(&key), 8900 - 72);
        assert_eq!(one_packet(&RmaKey { hdr: ReqHdr::Connid, ..key }), 8900 - 36);
        assert_eq!(taken(&key, 8828), RmaWay::Row(RmaRow::EagerWrite));
        assert_eq!(taken(&key, 8829), RmaWay::Row(RmaRow::LongCtsWrite));
        assert_eq!(taken(&key, 65535), RmaWay::Row(RmaRow::LongCtsWrite));
        assert_eq!(taken(&key, 65536), RmaWay::Row(RmaRow::LongReadWrite));
        assert_eq!(taken(&RmaKey { cq_data: Some(1), ..key }, 1 << 20), RmaWay::Row(RmaRow::LongReadWrite));
        assert_eq!(explain_rma(&key, 65535)[3].1, RmaVerdict::BelowRead { min: 65536 });
        let deaf = RmaKey { features: Some(Features::empty()), ..key };
        assert_eq!(taken(&deaf, 65536), RmaWay::Row(RmaRow::LongCtsWrite));
        assert_eq!(explain_rma(&deaf, 65536)[3].1, RmaVerdict::NoReadThere);
        let none = RmaKey { rdma: Rdma::NONE, ..key };
        assert_eq!(explain_rma(&none, 65536)[3].1, RmaVerdict::NoReadHere);
        assert_eq!(explain_rma(&key, 65536)[4], (RmaWay::Row(RmaRow::LongCtsWrite), RmaVerdict::Dearer));
        let get = RmaKey { op: RmaOp::Get, ..key };
        assert_eq!(taken(&get, 8875), RmaWay::Row(RmaRow::ShortRead));
        assert_eq!(taken(&get, 8876), RmaWay::Row(RmaRow::LongCtsRead));
        let device = RmaKey { known: Known::Device, ..key };
        assert_eq!(taken(&device, 1), RmaWay::Row(RmaRow::DirectWrite));
        assert_eq!(taken(&RmaKey { rdma: Rdma::NONE, ..device }, 1), RmaWay::Row(RmaRow::EagerWrite));
        // A word travels with a write that is longer than a packet, 64 bits do not.
        let word = RmaKey { cq_data: Some(u32::MAX.into()), ..device };
        assert_eq!(taken(&word, 8820), RmaWay::Row(RmaRow::EagerWrite));
        assert_eq!(taken(&word, 8821), RmaWay::Row(RmaRow::DirectWrite));
        let long = RmaKey { cq_data: Some(1 << 32), ..device };
        assert_eq!(taken(&long, 8821), RmaWay::Row(RmaRow::LongCtsWrite));
        assert_eq!(explain_rma(&long, 8821)[2].1, RmaVerdict::CqData);
        let deaf = RmaKey { features: Some(Features::RDMA_READ), ..device };
        assert_eq!(taken(&deaf, 70_000), RmaWay::Row(RmaRow::LongReadWrite));
        assert_eq!(explain_rma(&deaf, 1)[1].1, RmaVerdict::NoRdmaThere);
        let deaf = RmaKey { features: Some(Features::RDMA_WRITE), op: RmaOp::Get, ..device };
        assert_eq!(taken(&deaf, 1), RmaWay::Row(RmaRow::ShortRead));
        assert_eq!(taken(&RmaKey { known: Known::Mapped, ..get }, 1 << 40), RmaWay::Mapped);
        let copied = RmaKey { known: Known::Copied, ..key };
        assert_eq!(taken(&copied, 1), RmaWay::Copied);
        assert_eq!(explain_rma(&copied, 1)[0], (RmaWay::Mapped, RmaVerdict::NotMapped));
        assert_eq!(taken(&RmaKey { cq_data: Some(1), ..copied }, 1), RmaWay::Row(RmaRow::EagerWrite));
        assert_eq!(explain_rma(&device, 9000)[2].1, RmaVerdict::TooLong { max: 8828 });
        let strict = RmaKey { emulation: Emulation::Refused, ..key };
        assert!(explain_rma(&strict, 1).iter().all(|(_, verdict)| *verdict != RmaVerdict::Taken));
        assert_eq!(explain_rma(&strict, 1)[2].1, RmaVerdict::Refused);
        assert_eq!(taken(&RmaKey { known: Known::Device, ..strict }, 1), RmaWay::Row(RmaRow::DirectWrite));
    }
}
