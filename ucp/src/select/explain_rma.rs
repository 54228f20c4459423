//! Why a put or get goes the way it goes: each way with its cost and verdict, as data for tools to print. Reads the tables
//! that operations read, so that the two agree; a test holds them together.

use std::fmt;

use arrayvec::ArrayVec;

use crate::rdm::Emulation;
use crate::rdm::features::{RdmaUnavailable, ReqHdr, direct_read, direct_write};
use crate::rdm::protocol::Sync;
use crate::rdm::rma::RmaProtocol;
use crate::wire::Features;

use super::cost::{self, Place};
use super::rma::{ByDevice, Mover, RmaOp, RmaTables, RmaWire, acknowledges, curve, kernel, one_packet};
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
    /// Copied by the kernel: listed where this worker may ask it to.
    Copied,
    /// By the engine.
    Protocol(RmaProtocol),
}

impl RmaWay {
    /// Name as printed by tools.
    pub const fn name(self) -> &'static str {
        match self {
            RmaWay::Mapped => "mapped",
            RmaWay::Copied => "copied",
            RmaWay::Protocol(row) => row.name(),
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
    /// The memory is mapped here, so that nobody else need copy it.
    NotNeeded,
    /// The memory is this process's, or its owner does not let the kernel read and write it for us.
    NotLetIn,
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
            RmaVerdict::NotNeeded => f.write_str("not needed: the memory is mapped in this process"),
            RmaVerdict::NotLetIn => {
                f.write_str("the key does not let the kernel at memory of another process")
            }
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
    /// What the cost model says it would take, ns; `None` if it cannot carry the operation.
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
            RdmaUnavailable::Local => RmaVerdict::NoRdma,
            RdmaUnavailable::Remote => RmaVerdict::NoRdmaThere,
            RdmaUnavailable::CqData => RmaVerdict::CqData,
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
    fn can(&self, row: RmaProtocol, len: usize) -> Result<(), RmaVerdict> {
        let max = self.one_packet();
        match row {
            RmaProtocol::DirectWrite | RmaProtocol::DirectRead => self.can_device(len).map(drop),
            RmaProtocol::EagerWrite | RmaProtocol::ShortRead if len > max => Err(RmaVerdict::TooLong { max }),
            RmaProtocol::LongCtsWrite | RmaProtocol::LongCtsRead if len <= max => Err(RmaVerdict::OnePacket),
            RmaProtocol::LongReadWrite => self.read_by_target(len),
            _ => Ok(()),
        }
    }

    /// The row that the engine ends up with when it is asked for what the tables say.
    fn row(&self, tables: &RmaTables, len: usize) -> RmaProtocol {
        let (short, long) = match self.op {
            RmaOp::Put => (RmaProtocol::EagerWrite, RmaProtocol::LongCtsWrite),
            RmaOp::Get => (RmaProtocol::ShortRead, RmaProtocol::LongCtsRead),
        };
        let fits = len <= self.one_packet();
        let by_packets = if fits { short } else { long };
        let row = match self.op {
            RmaOp::Put => tables.put(self.by_device(len), self.sync, len),
            RmaOp::Get => tables.get(self.by_device(len), len),
        };
        match row {
            // A target that is to be told something has to look anyway.
            RmaProtocol::DirectWrite if self.cq_data.is_some() && fits => by_packets,
            RmaProtocol::DirectWrite | RmaProtocol::DirectRead => row,
            RmaProtocol::LongReadWrite if self.can(row, len).is_ok() => row,
            _ => by_packets,
        }
    }

    /// The setting that says from which size on the peer's processor is left alone, and its value.
    fn device_setting(&self) -> (&'static str, Option<usize>) {
        match self.op {
            RmaOp::Put => ("UCX_MIN_RDMA_PUT", self.limits.min_rdma_put),
            RmaOp::Get => ("UCX_MIN_RDMA_GET", self.limits.min_rdma_get),
        }
    }

    /// Why a row that could carry the operation is not taken, though it may cost less.
    fn not_wanted(&self, row: RmaProtocol, taken: RmaProtocol, len: usize) -> Option<RmaVerdict> {
        let set = self.device_setting();
        match (row.is_emulated(), taken.is_emulated(), self.limits.min_read_write) {
            (true, false, _) | (false, true, _) if self.cq_data.is_some() => Some(RmaVerdict::Dearer),
            (true, false, _) if row == RmaProtocol::LongReadWrite => Some(RmaVerdict::Dearer),
            (true, false, _) if self.by_device(len) == ByDevice::Only => Some(RmaVerdict::NoAck),
            (true, false, _) | (false, true, _) if set.1.is_some() => Some(RmaVerdict::Setting(set.0)),
            (true, true, Some(min)) if row == RmaProtocol::LongReadWrite && len < min => {
                Some(RmaVerdict::BelowRead { min })
            }
            (true, true, _) if row == RmaProtocol::LongReadWrite && self.can_device(len).is_ok() => {
                Some(RmaVerdict::Dearer)
            }
            (true, true, Some(_)) => Some(RmaVerdict::Setting("UCX_MIN_READ_WRITE")),
            _ => None,
        }
    }
}

impl RmaKey {
    /// The way that is taken, if that is not refused.
    fn taken(&self, tables: &RmaTables, len: usize) -> RmaWay {
        match self.known {
            Known::Mapped if self.cq_data.is_none() => RmaWay::Mapped,
            Known::Copied
                if self.cq_data.is_none() && tables.mover(self.op, self.sync, len) == Mover::Kernel =>
            {
                RmaWay::Copied
            }
            _ => RmaWay::Protocol(self.row(tables, len)),
        }
    }

    /// What a way takes, ns, whether it is legal or not.
    fn ns(&self, way: RmaWay, len: usize) -> Option<u64> {
        let costs = self.wire.costs.sane();
        let own = Place::Own as usize;
        let ns = match (way, self.op) {
            (RmaWay::Mapped, RmaOp::Put) => Some(costs.put[own].at(len)),
            (RmaWay::Mapped, RmaOp::Get) => Some(costs.get[own].at(len)),
            (RmaWay::Copied, op) => kernel(&self.wire, op).map(|line| line.at(len)),
            (RmaWay::Protocol(row), _) => {
                let place = if let Known::Device(place) = self.known { place } else { Place::Other };
                cost::at(&curve(&self.wire, row, place, self.sync, self.one_packet()), len)
            }
        };
        ns.map(|ns| ns as u64)
    }

    /// What became of a copy by this processor or by the kernel.
    fn in_call(&self, way: RmaWay, taken: RmaWay, len: usize) -> RmaCandidate {
        let can = match (way, self.known) {
            (RmaWay::Mapped, Known::Mapped) | (RmaWay::Copied, Known::Copied) => Ok(()),
            (RmaWay::Mapped, _) => Err(RmaVerdict::NotMapped),
            (_, Known::Mapped) => Err(RmaVerdict::NotNeeded),
            _ => Err(RmaVerdict::NotLetIn),
        };
        let ns = can.ok().and_then(|()| self.ns(way, len));
        let verdict = match can {
            Err(why) => why,
            Ok(()) if taken == way => RmaVerdict::Taken,
            Ok(()) if self.cq_data.is_some() => RmaVerdict::CqData,
            Ok(()) => self.setting().unwrap_or_else(|| {
                let best = self.ns(taken, len).unwrap_or(0);
                RmaVerdict::Slower { ns: ns.unwrap_or(best).max(best), best }
            }),
        };
        RmaCandidate { way, ns, verdict }
    }

    /// What the user has said of who copies.
    fn setting(&self) -> Option<RmaVerdict> {
        let (key, set) = self.device_setting();
        set.map(|_| RmaVerdict::Setting(key))
    }

    /// Why a row that could carry the operation is not taken where the kernel copies.
    fn not_by_kernel(&self, ns: Option<u64>, len: usize) -> RmaVerdict {
        let best = self.ns(RmaWay::Copied, len).unwrap_or(0);
        self.setting().unwrap_or(match ns.unwrap_or(best) {
            ns if ns < best => RmaVerdict::AsksPeer { ns, best },
            ns => RmaVerdict::Slower { ns, best },
        })
    }
}

/// All ways for an operation on one piece of `len` bytes; one is taken, unless emulation is refused and nothing else carries
/// it. `tables` are those of the key's wire and limits.
pub fn explain_rma(key: &RmaKey, tables: &RmaTables, len: usize) -> RmaWays {
    let row = key.row(tables, len);
    let taken = key.taken(tables, len);
    let refused = key.wire.emulation == Emulation::Refused && len > 0;
    let best = key.ns(RmaWay::Protocol(row), len).unwrap_or(0);
    let of_row = |row: RmaProtocol| {
        let way = RmaWay::Protocol(row);
        let can = key.can(row, len);
        let cost = can.ok().and_then(|()| key.ns(way, len));
        let verdict = match can {
            Err(why) => why,
            Ok(()) if refused && row.is_emulated() => RmaVerdict::Refused,
            Ok(()) if taken == way => RmaVerdict::Taken,
            Ok(()) if taken == RmaWay::Copied => key.not_by_kernel(cost, len),
            Ok(()) if taken == RmaWay::Mapped => RmaVerdict::Dearer,
            Ok(()) => key.not_wanted(row, key.row(tables, len), len).unwrap_or({
                let ns = cost.unwrap_or(best);
                match ns < best && row.is_emulated() && !key.row(tables, len).is_emulated() {
                    true => RmaVerdict::AsksPeer { ns, best },
                    // The table was made for the longest header, so that a little beside the border is possible.
                    false => RmaVerdict::Slower { ns: ns.max(best), best },
                }
            }),
        };
        RmaCandidate { way, ns: cost, verdict }
    };
    let mut ways = RmaWays::new();
    ways.push(key.in_call(RmaWay::Mapped, taken, len));
    if key.known == Known::Copied || key.wire.kernel.is_some() {
        ways.push(key.in_call(RmaWay::Copied, taken, len));
    }
    let rows: &[RmaProtocol] = match key.op {
        RmaOp::Put => &[
            RmaProtocol::DirectWrite,
            RmaProtocol::EagerWrite,
            RmaProtocol::LongReadWrite,
            RmaProtocol::LongCtsWrite,
        ],
        RmaOp::Get => &[RmaProtocol::DirectRead, RmaProtocol::ShortRead, RmaProtocol::LongCtsRead],
    };
    ways.extend(rows.iter().map(|row| of_row(*row)));
    ways
}
