//! A one-sided operation in progress, at the requester or the target. Owned by the engine's table of them.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::ids::WireId;
use crate::rdm::io::Reg;
use crate::rdm::op::pieces::{Gather, Scatter};
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::recv_buf::RecvBuf;
use crate::rdm::rails::rail_plan::RailPlan;
use crate::rdm::recv::held_bytes::HeldBytes;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::rma::mem::Spans;
use crate::rdm::status::OpError;
use crate::wire::{AtomicOp, Datatype, Iovs, MAX_IOV, RmaIov};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaState {
    /// In the peer's queue, no packet out: may be cancelled.
    Queued,
    /// The request is out; data follow as granted, or arrive.
    Moving,
    /// All data are sent; only the acknowledgement, the end or the result is missing.
    AllSent,
    /// The target reads the bytes of a write from the requester's memory. The state of both ends.
    BeingRead,
    /// The target cannot read them: the write restarts by long-CTS.
    Nacked,
}

/// Whether the target acknowledges a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// No: its end is known otherwise, or need not be.
    No,
    /// If the peer can: only a flush waits for it.
    IfAble,
    /// Yes: the caller waits for it.
    Wanted,
}

/// The kind of operation, and its memory.
#[derive(Debug)]
pub enum Job {
    /// We write these bytes to a peer.
    Put(Gather),
    /// We read a peer's bytes into this memory.
    Get(Scatter),
    Atomic(Atomic),
    /// A peer writes these bytes of ours.
    Store(Spans),
    /// A peer reads these bytes of ours.
    Load(Spans),
    /// Old values that a peer waits for, until there is room to send them.
    Response(HeldBytes),
}

#[derive(Debug)]
pub struct Atomic {
    pub op: AtomicOp,
    pub ty: Datatype,
    pub operands: Operands,
    pub result: Option<Scatter>,
}

/// The operands of an atomic, then its compare values.
#[derive(Debug)]
pub enum Operands {
    /// Few bytes, copied at the call.
    Inline { bytes: [u8; Operands::MAX_INLINE], len: u8 },
    /// The caller's memory.
    Referenced(Gather, Gather),
}

impl Operands {
    /// Most bytes that are copied rather than referenced.
    pub const MAX_INLINE: usize = 32;

    /// Copies or references the operands of a new operation.
    #[inline]
    pub fn new(operand: &Gather, compare: &Gather) -> Operands {
        let len = operand.len().saturating_add(compare.len());
        if len > Self::MAX_INLINE {
            return Operands::Referenced(*operand, *compare);
        }
        let mut bytes = [0; Self::MAX_INLINE];
        let at = operand.copy_to(0, &mut bytes);
        compare.copy_to(0, &mut bytes[at..]);
        Operands::Inline { bytes, len: len as u8 }
    }

    /// Total length, bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Operands::Inline { len, .. } => usize::from(*len),
            Operands::Referenced(operand, compare) => operand.len() + compare.len(),
        }
    }

    /// Copies all bytes to `to`, which is long enough; returns how many.
    // HOT
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        match self {
            Operands::Inline { bytes, len } => {
                let len = usize::from(*len);
                to[..len].copy_from_slice(&bytes[..len]);
                len
            }
            Operands::Referenced(operand, compare) => {
                let at = operand.copy_to(0, to);
                at + compare.copy_to(0, &mut to[at..])
            }
        }
    }
}

/// A one-sided operation. The fields that a [compact](RmaOp::compact) one uses come first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RmaOp {
    /// Returned with the completion; unused at a target.
    pub user: u64,
    pub len: u64,
    /// Destination of the old values of a compact atomic.
    pub result: Option<RecvBuf>,
    pub peer: PeerId,
    pub protocol: RmaProtocol,
    pub state: RmaState,
    pub ack: Ack,
    /// The caller has been notified of the end, or does not want to be.
    pub notified: bool,
    /// Has left the peer's queue and is counted there, for fences.
    pub fence_counted: bool,
    /// The peer no longer counts it.
    pub detached: bool,
    /// Ours, with its only packet out. The fields after this one are unused and as in a new operation.
    pub compact: bool,
    /// The slot is free, and the fields after this one are left from its last use.
    pub(super) stale: bool,
    pub in_data_queue: bool,
    /// RDMA operations in flight: the device uses the caller's memory until they end.
    pub in_flight: u32,
    pub job: Job,
    /// The target's memory, at the requester.
    pub remote: Iovs,
    pub sent: u64,
    pub received: ReceivedRanges,
    /// Bytes granted, to us or by us, and not yet sent or received.
    pub window: u64,
    pub remote_id: Option<u32>,
    pub cq_data: Option<u64>,
    pub wire: Option<WireId>,
    /// The read of its data, at the target.
    pub rma_read: Option<SlotId>,
    /// Registrations of the local pieces, by their number.
    pub regs: [Option<Reg>; MAX_IOV],
    /// Key on the peer's first lane, which packets carry, if `remote` holds the key of its failover lane.
    pub first_key: Option<u64>,
    /// Split over rails, if allowed; `sent` and `regs` are unused once it is cut.
    pub rail_plan: Option<Box<RailPlan>>,
    /// The result of a failed operation, kept until nothing is in flight.
    pub failed: Option<OpError>,
}

impl RmaOp {
    #[inline]
    pub fn new(peer: PeerId, job: Job, protocol: RmaProtocol, len: u64) -> RmaOp {
        RmaOp {
            peer,
            user: 0,
            job,
            protocol,
            state: RmaState::Queued,
            ack: Ack::No,
            notified: false,
            fence_counted: false,
            detached: false,
            compact: false,
            stale: false,
            result: None,
            in_data_queue: false,
            remote: Iovs::NONE,
            len,
            sent: 0,
            received: ReceivedRanges::new(),
            window: 0,
            remote_id: None,
            cq_data: None,
            wire: None,
            in_flight: 0,
            rma_read: None,
            regs: [const { None }; MAX_IOV],
            first_key: None,
            rail_plan: None,
            failed: None,
        }
    }

    /// Switches to packets, since no device can carry it.
    pub fn go_by_packets(&mut self) {
        self.protocol = self.protocol.by_packets();
        self.rail_plan = None;
        if let (Some(key), Some(iov)) = (self.first_key.take(), self.remote.as_slice().first()) {
            self.remote = Iovs::one(RmaIov { key, ..*iov });
        }
    }

    #[inline]
    pub fn is_ours(&self) -> bool {
        self.compact || matches!(self.job, Job::Put(_) | Job::Get(_) | Job::Atomic(_))
    }

    /// Whether a peer accesses this region of ours by it.
    pub fn uses(&self, region: SlotId) -> bool {
        matches!(&self.job, Job::Store(spans) | Job::Load(spans) if spans.uses(region))
    }

    /// Copies bytes to send, from `at` on.
    // HOT
    #[inline]
    pub fn copy_to(&self, at: u64, to: &mut [u8]) -> usize {
        match &self.job {
            Job::Put(local) => local.copy_to(at as usize, to),
            Job::Load(spans) => spans.copy_to(at, to),
            _ => 0,
        }
    }

    /// Stores received bytes at `at`.
    // HOT
    #[inline]
    pub fn put(&mut self, at: u64, from: &[u8]) {
        match &mut self.job {
            Job::Get(local) => local.put(at, from),
            Job::Store(spans) => spans.put(at, from),
            _ => {}
        }
    }
}
