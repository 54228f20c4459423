//! Reasons of the selection of a put or get: each candidate with its cost and verdict, as data for tools to
//! print. Reads the tables that operations read, so that the two agree; a test compares them.

use std::fmt;

use arrayvec::ArrayVec;

use crate::rdm::Emulation;
use crate::rdm::features::{RdmaUnavailable, ReqHdr, direct_read, direct_write};
use crate::rdm::protocol::DeliveryComplete;
use crate::rdm::rma::RmaProtocol;
use crate::wire::Features;

use super::cost::{self, RemoteMem};
use super::rma::{
    DeviceRdma, RmaBackend, RmaOp, RmaTables, RmaWire, acknowledges, curve, kernel, one_packet,
};
use super::thresholds::Thresholds;

/// Access to the remote memory without the peer's engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum RemoteAccess {
    /// Nothing: the key is for packets.
    PacketsOnly,
    /// The peer's device.
    Device(RemoteMem),
    /// The kernel, by copies between the two processes.
    Kernel,
    /// This process, which has it mapped.
    Mapped,
}

/// All inputs of the selection except the length.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmaKey {
    /// Kind of operation.
    pub op: RmaOp,
    /// When a put completes.
    pub sync: DeliveryComplete,
    /// Access to the memory.
    pub access: RemoteAccess,
    /// Completion data for the target.
    pub cq_data: Option<u64>,
    /// The wire.
    pub wire: RmaWire,
    /// Thresholds set by the user.
    pub limits: Thresholds,
    /// Identity header of requests to the peer.
    pub hdr: ReqHdr,
    /// Features of the peer's handshake, if it has arrived.
    pub features: Option<Features>,
}

/// A method of a put or get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RmaChoice {
    /// Copy by this processor.
    Mapped,
    /// Copy by the kernel; listed if this worker may use it.
    Kernel,
    /// A protocol of the engine.
    Protocol(RmaProtocol),
}

impl RmaChoice {
    /// Name as printed by tools.
    pub const fn name(self) -> &'static str {
        match self {
            RmaChoice::Mapped => "mapped",
            RmaChoice::Kernel => "copied",
            RmaChoice::Protocol(protocol) => protocol.name(),
        }
    }
}

/// Result for one candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RmaVerdict {
    /// Chosen.
    Taken,
    /// The memory is not mapped here.
    NotMapped,
    /// The memory is mapped here; no other copy is needed.
    NotNeeded,
    /// The memory is this process's own, or its owner does not allow kernel copies.
    KernelDenied,
    /// The device cannot, or the peer's device does not know the memory.
    NoRdma,
    /// The peer's device announced no such RDMA.
    PeerNoRdma,
    /// The candidate cannot carry this completion data, or not with a write of this length.
    CqData,
    /// Longer than one packet.
    TooLong {
        /// Most payload bytes.
        max: usize,
    },
    /// One packet carries it.
    OnePacket,
    /// The wire does not read memory of peers.
    NoRdmaRead,
    /// The peer announced no RDMA read.
    PeerNoRdmaRead,
    /// Below the threshold for writes that are read.
    BelowRead {
        /// The threshold, bytes.
        min: usize,
    },
    /// The named setting selects another method for this size.
    Setting(&'static str),
    /// The peer has not announced acknowledgements of packets; the device's completion is certain.
    NoAck,
    /// Possible, but uses the target's processor more.
    UsesTargetCpu,
    /// Possible, but the chosen one is faster.
    Slower {
        /// Estimated time, ns.
        ns: u64,
        /// Estimated time of the chosen one, ns.
        best: u64,
    },
    /// Faster, but by less than the margin for use of the target's processor.
    TargetCpuNotWorthIt {
        /// Estimated time, ns.
        ns: u64,
        /// Estimated time of the chosen one, ns.
        best: u64,
    },
    /// Uses the peer's processor, which `UCX_EMULATION=n` forbids.
    EmulationOff,
}

impl fmt::Display for RmaVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RmaVerdict::Taken => f.write_str("taken"),
            RmaVerdict::NotMapped => f.write_str("the memory is not mapped in this process"),
            RmaVerdict::NotNeeded => f.write_str("not needed: the memory is mapped in this process"),
            RmaVerdict::KernelDenied => {
                f.write_str("the key does not let the kernel at memory of another process")
            }
            RmaVerdict::NoRdma => f.write_str("no RDMA: the device cannot, or the key does not name it"),
            RmaVerdict::PeerNoRdma => f.write_str("the peer's device does no such RDMA"),
            RmaVerdict::CqData => f.write_str("does not carry these data for the target"),
            RmaVerdict::TooLong { max } => write!(f, "one packet carries at most {max} bytes"),
            RmaVerdict::OnePacket => f.write_str("not needed: one packet carries it"),
            RmaVerdict::NoRdmaRead => f.write_str("the wire has no RDMA read"),
            RmaVerdict::PeerNoRdmaRead => f.write_str("the peer does not do RDMA reads"),
            RmaVerdict::BelowRead { min } => write!(f, "only from {min} bytes on (UCX_MIN_READ_WRITE)"),
            RmaVerdict::Setting(key) => write!(f, "{key} wants another choice for this size"),
            RmaVerdict::NoAck => f.write_str("the peer has not said that it acknowledges packets"),
            RmaVerdict::UsesTargetCpu => f.write_str("possible, but asks more of the target"),
            RmaVerdict::Slower { ns, best } => write!(f, "slower: {ns} ns, {best} ns best"),
            RmaVerdict::TargetCpuNotWorthIt { ns, best } => {
                write!(f, "asks the peer's processor, and saves too little: {ns} ns, {best} ns taken")
            }
            RmaVerdict::EmulationOff => f.write_str("asks the peer's processor (UCX_EMULATION=n)"),
        }
    }
}

/// A candidate and its verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RmaCandidate {
    /// The method.
    pub choice: RmaChoice,
    /// Estimated time, ns; `None` if it cannot carry the operation.
    pub ns: Option<u64>,
    /// Chosen, or why not.
    pub verdict: RmaVerdict,
}

/// Candidates of an operation with their verdicts.
pub type RmaCandidates = ArrayVec<RmaCandidate, 6>;

impl RmaKey {
    /// Whether the device can carry the operation.
    fn device_can_carry(&self, len: usize) -> Result<RemoteMem, RmaVerdict> {
        let RemoteAccess::Device(remote_mem) = self.access else { return Err(RmaVerdict::NoRdma) };
        let can = match self.op {
            RmaOp::Put => direct_write(self.wire.rdma, self.features, len as u64, self.cq_data),
            RmaOp::Get => direct_read(self.wire.rdma, self.features),
        };
        can.map(|()| remote_mem).map_err(|why| match why {
            RdmaUnavailable::Local => RmaVerdict::NoRdma,
            RdmaUnavailable::Remote => RmaVerdict::PeerNoRdma,
            RdmaUnavailable::CqData => RmaVerdict::CqData,
        })
    }

    fn device_rdma(&self, len: usize) -> DeviceRdma {
        match (self.device_can_carry(len), self.op) {
            (Err(_), _) => DeviceRdma::No,
            (Ok(_), RmaOp::Put) if self.cq_data.is_some() || !acknowledges(self.features) => DeviceRdma::Only,
            (Ok(remote_mem), _) => DeviceRdma::Also(remote_mem),
        }
    }

    fn one_packet(&self) -> usize {
        one_packet(self.op, self.wire.mtu, self.wire.order, self.hdr, self.cq_data.is_some())
    }

    /// Whether the target can read the source.
    fn read_by_target(&self, len: usize) -> Result<(), RmaVerdict> {
        if self.wire.rdma.read == 0 {
            Err(RmaVerdict::NoRdmaRead)
        } else if direct_read(self.wire.rdma, self.features).is_err() {
            Err(RmaVerdict::PeerNoRdmaRead)
        } else if len <= self.one_packet() {
            Err(RmaVerdict::OnePacket)
        } else {
            Ok(())
        }
    }

    /// Whether a protocol can carry the operation.
    fn can_carry(&self, protocol: RmaProtocol, len: usize) -> Result<(), RmaVerdict> {
        let max = self.one_packet();
        match protocol {
            RmaProtocol::DirectWrite | RmaProtocol::DirectRead => self.device_can_carry(len).map(drop),
            RmaProtocol::EagerWrite | RmaProtocol::ShortRead if len > max => Err(RmaVerdict::TooLong { max }),
            RmaProtocol::LongCtsWrite | RmaProtocol::LongCtsRead if len <= max => Err(RmaVerdict::OnePacket),
            RmaProtocol::LongReadWrite => self.read_by_target(len),
            _ => Ok(()),
        }
    }

    /// Protocol that the engine uses for what the tables say.
    fn protocol(&self, tables: &RmaTables, len: usize) -> RmaProtocol {
        let (short, long) = match self.op {
            RmaOp::Put => (RmaProtocol::EagerWrite, RmaProtocol::LongCtsWrite),
            RmaOp::Get => (RmaProtocol::ShortRead, RmaProtocol::LongCtsRead),
        };
        let fits = len <= self.one_packet();
        let by_packets = if fits { short } else { long };
        let protocol = match self.op {
            RmaOp::Put => tables.put(self.device_rdma(len), self.sync, len),
            RmaOp::Get => tables.get(self.device_rdma(len), len),
        };
        match protocol {
            // A target that gets completion data must handle a packet anyway.
            RmaProtocol::DirectWrite if self.cq_data.is_some() && fits => by_packets,
            RmaProtocol::DirectWrite | RmaProtocol::DirectRead => protocol,
            RmaProtocol::LongReadWrite if self.can_carry(protocol, len).is_ok() => protocol,
            _ => by_packets,
        }
    }

    /// Name and value of the setting from which size on the device is used.
    fn device_setting(&self) -> (&'static str, Option<usize>) {
        match self.op {
            RmaOp::Put => ("UCX_MIN_RDMA_PUT", self.limits.min_rdma_put),
            RmaOp::Get => ("UCX_MIN_RDMA_GET", self.limits.min_rdma_get),
        }
    }

    /// Why a possible protocol is not chosen, though it may be cheaper.
    fn why_not_chosen(&self, protocol: RmaProtocol, taken: RmaProtocol, len: usize) -> Option<RmaVerdict> {
        let setting = self.device_setting();
        match (protocol.is_emulated(), taken.is_emulated(), self.limits.min_read_write) {
            (true, false, _) | (false, true, _) if self.cq_data.is_some() => Some(RmaVerdict::UsesTargetCpu),
            (true, false, _) if protocol == RmaProtocol::LongReadWrite => Some(RmaVerdict::UsesTargetCpu),
            (true, false, _) if self.device_rdma(len) == DeviceRdma::Only => Some(RmaVerdict::NoAck),
            (true, false, _) | (false, true, _) if setting.1.is_some() => {
                Some(RmaVerdict::Setting(setting.0))
            }
            (true, true, Some(min)) if protocol == RmaProtocol::LongReadWrite && len < min => {
                Some(RmaVerdict::BelowRead { min })
            }
            (true, true, _)
                if protocol == RmaProtocol::LongReadWrite && self.device_can_carry(len).is_ok() =>
            {
                Some(RmaVerdict::UsesTargetCpu)
            }
            (true, true, Some(_)) => Some(RmaVerdict::Setting("UCX_MIN_READ_WRITE")),
            _ => None,
        }
    }
}

impl RmaKey {
    /// Method chosen, unless emulation is off.
    fn taken(&self, tables: &RmaTables, len: usize) -> RmaChoice {
        match self.access {
            RemoteAccess::Mapped if self.cq_data.is_none() => RmaChoice::Mapped,
            RemoteAccess::Kernel
                if self.cq_data.is_none()
                    && tables.backend(self.op, self.sync, len) == RmaBackend::Kernel =>
            {
                RmaChoice::Kernel
            }
            _ => RmaChoice::Protocol(self.protocol(tables, len)),
        }
    }

    /// Estimated time, ns, whether legal or not.
    fn ns(&self, choice: RmaChoice, len: usize) -> Option<u64> {
        let costs = self.wire.costs.sanitized();
        let allocated = RemoteMem::Allocated as usize;
        let ns = match (choice, self.op) {
            (RmaChoice::Mapped, RmaOp::Put) => Some(costs.put[allocated].at(len)),
            (RmaChoice::Mapped, RmaOp::Get) => Some(costs.get[allocated].at(len)),
            (RmaChoice::Kernel, op) => kernel(&self.wire, op).map(|line| line.at(len)),
            (RmaChoice::Protocol(protocol), _) => {
                let remote_mem = if let RemoteAccess::Device(remote_mem) = self.access {
                    remote_mem
                } else {
                    RemoteMem::Registered
                };
                cost::at(&curve(&self.wire, protocol, remote_mem, self.sync, self.one_packet()), len)
            }
        };
        ns.map(|ns| ns as u64)
    }

    /// Verdict on a copy by this processor or by the kernel.
    fn explain_copy(&self, choice: RmaChoice, taken: RmaChoice, len: usize) -> RmaCandidate {
        let can = match (choice, self.access) {
            (RmaChoice::Mapped, RemoteAccess::Mapped) | (RmaChoice::Kernel, RemoteAccess::Kernel) => Ok(()),
            (RmaChoice::Mapped, _) => Err(RmaVerdict::NotMapped),
            (_, RemoteAccess::Mapped) => Err(RmaVerdict::NotNeeded),
            _ => Err(RmaVerdict::KernelDenied),
        };
        let ns = can.ok().and_then(|()| self.ns(choice, len));
        let verdict = match can {
            Err(why) => why,
            Ok(()) if taken == choice => RmaVerdict::Taken,
            Ok(()) if self.cq_data.is_some() => RmaVerdict::CqData,
            Ok(()) => self.setting().unwrap_or_else(|| {
                let best = self.ns(taken, len).unwrap_or(0);
                RmaVerdict::Slower { ns: ns.unwrap_or(best).max(best), best }
            }),
        };
        RmaCandidate { choice, ns, verdict }
    }

    fn setting(&self) -> Option<RmaVerdict> {
        let (key, value) = self.device_setting();
        value.map(|_| RmaVerdict::Setting(key))
    }

    /// Why a possible protocol is not chosen over the kernel.
    fn why_not_over_kernel(&self, ns: Option<u64>, len: usize) -> RmaVerdict {
        let best = self.ns(RmaChoice::Kernel, len).unwrap_or(0);
        self.setting().unwrap_or(match ns.unwrap_or(best) {
            ns if ns < best => RmaVerdict::TargetCpuNotWorthIt { ns, best },
            ns => RmaVerdict::Slower { ns, best },
        })
    }
}

/// Explains all methods for one contiguous operation of `len` bytes; one is chosen, unless emulation is off
/// and nothing else can carry it. `tables` belong to the key's wire and limits.
pub fn explain_rma(key: &RmaKey, tables: &RmaTables, len: usize) -> RmaCandidates {
    let protocol = key.protocol(tables, len);
    let taken = key.taken(tables, len);
    let refused = key.wire.emulation == Emulation::Refused && len > 0;
    let best = key.ns(RmaChoice::Protocol(protocol), len).unwrap_or(0);
    let of_protocol = |protocol: RmaProtocol| {
        let choice = RmaChoice::Protocol(protocol);
        let can = key.can_carry(protocol, len);
        let cost = can.ok().and_then(|()| key.ns(choice, len));
        let verdict = match can {
            Err(why) => why,
            Ok(()) if refused && protocol.is_emulated() => RmaVerdict::EmulationOff,
            Ok(()) if taken == choice => RmaVerdict::Taken,
            Ok(()) if taken == RmaChoice::Kernel => key.why_not_over_kernel(cost, len),
            Ok(()) if taken == RmaChoice::Mapped => RmaVerdict::UsesTargetCpu,
            Ok(()) => key.why_not_chosen(protocol, key.protocol(tables, len), len).unwrap_or({
                let ns = cost.unwrap_or(best);
                match ns < best && protocol.is_emulated() && !key.protocol(tables, len).is_emulated() {
                    true => RmaVerdict::TargetCpuNotWorthIt { ns, best },
                    // The table assumes the longest header, so near the border a cheaper one is possible.
                    false => RmaVerdict::Slower { ns: ns.max(best), best },
                }
            }),
        };
        RmaCandidate { choice, ns: cost, verdict }
    };
    let mut candidates = RmaCandidates::new();
    candidates.push(key.explain_copy(RmaChoice::Mapped, taken, len));
    if key.access == RemoteAccess::Kernel || key.wire.kernel.is_some() {
        candidates.push(key.explain_copy(RmaChoice::Kernel, taken, len));
    }
    let protocols: &[RmaProtocol] = match key.op {
        RmaOp::Put => &[
            RmaProtocol::DirectWrite,
            RmaProtocol::EagerWrite,
            RmaProtocol::LongReadWrite,
            RmaProtocol::LongCtsWrite,
        ],
        RmaOp::Get => &[RmaProtocol::DirectRead, RmaProtocol::ShortRead, RmaProtocol::LongCtsRead],
    };
    candidates.extend(protocols.iter().map(|protocol| of_protocol(*protocol)));
    candidates
}
