//! Why a put or get goes the way it goes: each way with its cost and verdict, as data for tools to print. Reads the tables
//! that operations read, so that the two agree; a test holds them together.

use std::fmt;

use arrayvec::ArrayVec;

use crate::rdm::Emulation;
use crate::rdm::quirks::{NotDirect, ReqHdr, direct_read, direct_write};
use crate::rdm::rma::RmaRow;
use crate::rdm::room::Sync;
use crate::wire::Features;

use super::cost::{self, Place};
use super::rma::{ByDevice, RmaOp, RmaTables, RmaWire, acknowledges, curve, one_packet};
use super::rules::Thresholds;

/// Who knows the remote memory beside the peer's engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Known {
    /// Nobody: the key is for packets.
    Packets,
    /// The peer's device.
    Device(Place),
    /// The kernel, which copies between the two processes.
    Copied,
    /// This process has it mapped.
    Mapped,
}

/// Everything the choice depends on, except the length.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmaKey {
    /// What is to be done.
    pub op: RmaOp,
    /// When a put is to be complete.
    pub sync: Sync,
    /// Who knows the memory.
    pub known: Known,
    /// Data for the target.
    pub cq_data: Option<u64>,
    /// The wire.
    pub wire: RmaWire,
    /// What the user has said.
    pub limits: Thresholds,
    /// Identity header of requests to the peer.
    pub hdr: ReqHdr,
    /// What the peer's handshake has said, if it is here.
    pub features: Option<Features>,
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
    /// It fits one packet, so it goes in one if it goes by packets.
    OnePacket,
    /// The wire reads no memory of peers.
    NoReadHere,
    /// The peer's handshake says that it does not read ours.
    NoReadThere,
    /// Below the size from which writes are read.
    BelowRead {
        /// That size.
        min: usize,
    },
    /// A setting, named here, wants another way for this size.
    Setting(&'static str),
    /// The peer has not said that it acknowledges packets; the device's end of the operation is certain.
    NoAck,
    /// Possible, but the one taken asks less of the target.
    Dearer,
    /// Possible, but the one taken is faster.
    Slower {
        /// What it would take, ns.
        ns: u64,
        /// What the one taken takes, ns.
        best: u64,
    },
    /// Faster, but not by the quarter that the time of the target's processor is counted for.
    AsksPeer {
        /// What it would take, ns.
        ns: u64,
        /// What the one taken takes, ns.
        best: u64,
    },
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
            RmaVerdict::OnePacket => f.write_str("not needed: one packet carries it"),
            RmaVerdict::NoReadHere => f.write_str("the wire has no RDMA read"),
            RmaVerdict::NoReadThere => f.write_str("the peer does not do RDMA reads"),
            RmaVerdict::BelowRead { min } => write!(f, "only from {min} bytes on (UCX_MIN_READ_WRITE)"),
            RmaVerdict::Setting(key) => write!(f, "{key} wants another way for this size"),
            RmaVerdict::NoAck => f.write_str("the peer has not said that it acknowledges packets"),
            RmaVerdict::Dearer => f.write_str("possible, but asks more of the target"),
            RmaVerdict::Slower { ns, best } => write!(f, "slower: {ns} ns, {best} ns best"),
            RmaVerdict::AsksPeer { ns, best } => {
                write!(f, "asks the peer's processor, and saves too little: {ns} ns, {best} ns taken")
            }
            RmaVerdict::Refused => f.write_str("asks the peer's processor (UCX_EMULATION=n)"),
        }
    }
}

/// One way, and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RmaCandidate {
    /// The way.
    pub way: RmaWay,
    /// What the cost model says it would take, ns; `None` if it cannot carry the operation, or is nothing of the wire's.
    pub ns: Option<u64>,
    /// Taken, or why not.
    pub verdict: RmaVerdict,
}

/// The ways an operation can go, each with its verdict.
pub type RmaWays = ArrayVec<RmaCandidate, 6>;

impl RmaKey {
    /// Whether the device carries the operation by itself.
    fn can_device(&self, len: usize) -> Result<Place, RmaVerdict> {
        let Known::Device(place) = self.known else { return Err(RmaVerdict::NoRdma) };
        let can = match self.op {
            RmaOp::Put => direct_write(self.wire.rdma, self.features, len as u64, self.cq_data),
            RmaOp::Get => direct_read(self.wire.rdma, self.features),
        };
        can.map(|()| place).map_err(|why| match why {
            NotDirect::Here => RmaVerdict::NoRdma,
            NotDirect::There => RmaVerdict::NoRdmaThere,
            NotDirect::CqData => RmaVerdict::CqData,
        })
    }

    /// The same as the tables are asked.
    fn by_device(&self, len: usize) -> ByDevice {
        match (self.can_device(len), self.op) {
            (Err(_), _) => ByDevice::No,
            (Ok(_), RmaOp::Put) if self.cq_data.is_some() || !acknowledges(self.features) => ByDevice::Only,
            (Ok(place), _) => ByDevice::Also(place),
        }
    }

    fn one_packet(&self) -> usize {
        one_packet(self.op, self.wire.mtu, self.wire.order, self.hdr, self.cq_data.is_some())
    }

    /// Whether the target can read what it is sent.
    fn read_by_target(&self, len: usize) -> Result<(), RmaVerdict> {
        if self.wire.rdma.read == 0 {
            Err(RmaVerdict::NoReadHere)
        } else if direct_read(self.wire.rdma, self.features).is_err() {
            Err(RmaVerdict::NoReadThere)
        } else if len <= self.one_packet() {
            Err(RmaVerdict::OnePacket)
        } else {
            Ok(())
        }
    }

    /// Whether a row can carry the operation at all.
    fn can(&self, row: RmaRow, len: usize) -> Result<(), RmaVerdict> {
        let max = self.one_packet();
        match row {
            RmaRow::DirectWrite | RmaRow::DirectRead => self.can_device(len).map(drop),
            RmaRow::EagerWrite | RmaRow::ShortRead if len > max => Err(RmaVerdict::TooLong { max }),
            RmaRow::LongCtsWrite | RmaRow::LongCtsRead if len <= max => Err(RmaVerdict::OnePacket),
            RmaRow::LongReadWrite => self.read_by_target(len),
            _ => Ok(()),
        }
    }

    /// The row that the engine ends up with when it is asked for what the tables say.
    fn row(&self, tables: &RmaTables, len: usize) -> RmaRow {
        let (short, long) = match self.op {
            RmaOp::Put => (RmaRow::EagerWrite, RmaRow::LongCtsWrite),
            RmaOp::Get => (RmaRow::ShortRead, RmaRow::LongCtsRead),
        };
        let fits = len <= self.one_packet();
        let by_packets = if fits { short } else { long };
        let row = match self.op {
            RmaOp::Put => tables.put(self.by_device(len), self.sync, len),
            RmaOp::Get => tables.get(self.by_device(len), len),
        };
        match row {
            // A target that is to be told something has to look anyway.
            RmaRow::DirectWrite if self.cq_data.is_some() && fits => by_packets,
            RmaRow::DirectWrite | RmaRow::DirectRead => row,
            RmaRow::LongReadWrite if self.can(row, len).is_ok() => row,
            _ => by_packets,
        }
    }

    /// Why a row that could carry the operation is not taken, though it may cost less.
    fn not_wanted(&self, row: RmaRow, taken: RmaRow, len: usize) -> Option<RmaVerdict> {
        let set = match self.op {
            RmaOp::Put => ("UCX_MIN_RDMA_PUT", self.limits.min_rdma_put),
            RmaOp::Get => ("UCX_MIN_RDMA_GET", self.limits.min_rdma_get),
        };
        match (row.is_emulated(), taken.is_emulated(), self.limits.min_read_write) {
            (true, false, _) | (false, true, _) if self.cq_data.is_some() => Some(RmaVerdict::Dearer),
            (true, false, _) if row == RmaRow::LongReadWrite => Some(RmaVerdict::Dearer),
            (true, false, _) if self.by_device(len) == ByDevice::Only => Some(RmaVerdict::NoAck),
            (true, false, _) | (false, true, _) if set.1.is_some() => Some(RmaVerdict::Setting(set.0)),
            (true, true, Some(min)) if row == RmaRow::LongReadWrite && len < min => {
                Some(RmaVerdict::BelowRead { min })
            }
            (true, true, _) if row == RmaRow::LongReadWrite && self.can_device(len).is_ok() => {
                Some(RmaVerdict::Dearer)
            }
            (true, true, Some(_)) => Some(RmaVerdict::Setting("UCX_MIN_READ_WRITE")),
            _ => None,
        }
    }
}

/// All ways for an operation on one piece of `len` bytes; one is taken, unless emulation is refused and nothing else carries
/// it. `tables` are those of the key's wire and limits.
pub fn explain_rma(key: &RmaKey, tables: &RmaTables, len: usize) -> RmaWays {
    let row = key.row(tables, len);
    let told = key.cq_data.is_some();
    let taken = match key.known {
        Known::Mapped if !told => RmaWay::Mapped,
        Known::Copied if !told => RmaWay::Copied,
        _ => RmaWay::Row(row),
    };
    let refused = key.wire.emulation == Emulation::Refused && len > 0;
    let ns = |row| {
        let place = if let Known::Device(place) = key.known { place } else { Place::Other };
        let one = key.one_packet();
        cost::at(&curve(&key.wire, row, place, key.sync, one), len).map(|ns| ns as u64)
    };
    let best = ns(row).unwrap_or(0);
    let of_row = |row: RmaRow| {
        let can = key.can(row, len);
        let cost = can.ok().and_then(|()| ns(row));
        let verdict = match can {
            Err(why) => why,
            Ok(()) if refused && row.is_emulated() => RmaVerdict::Refused,
            Ok(()) if taken == RmaWay::Row(row) => RmaVerdict::Taken,
            Ok(()) if !matches!(taken, RmaWay::Row(_)) => RmaVerdict::Dearer,
            Ok(()) => key.not_wanted(row, key.row(tables, len), len).unwrap_or({
                let ns = cost.unwrap_or(best);
                match ns < best && row.is_emulated() && !key.row(tables, len).is_emulated() {
                    true => RmaVerdict::AsksPeer { ns, best },
                    // The table was made for the longest header, so that a little beside the border is possible.
                    false => RmaVerdict::Slower { ns: ns.max(best), best },
                }
            }),
        };
        RmaCandidate { way: RmaWay::Row(row), ns: cost, verdict }
    };
    let in_call = |way: RmaWay, is: bool| {
        let verdict = match is {
            false => RmaVerdict::NotMapped,
            true if told => RmaVerdict::CqData,
            true => RmaVerdict::Taken,
        };
        RmaCandidate { way, ns: None, verdict }
    };
    let mut ways = RmaWays::new();
    ways.push(in_call(RmaWay::Mapped, key.known == Known::Mapped));
    if key.known == Known::Copied {
        ways.push(in_call(RmaWay::Copied, true));
    }
    let rows: &[RmaRow] = match key.op {
        RmaOp::Put => &[RmaRow::DirectWrite, RmaRow::EagerWrite, RmaRow::LongReadWrite, RmaRow::LongCtsWrite],
        RmaOp::Get => &[RmaRow::DirectRead, RmaRow::ShortRead, RmaRow::LongCtsRead],
    };
    ways.extend(rows.iter().map(|row| of_row(*row)));
    ways
}
