//! A one-sided operation under way, at either end: what a requester waits for, and what a target has been asked and not
//! yet answered. Driven by the rooms; owned by the engine's table of one-sided operations.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::ids::WireId;
use crate::rdm::io::Reg;
use crate::rdm::op::buf::RecvBuf;
use crate::rdm::op::pieces::{Gather, Scatter};
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::rails::rail_plan::RailPlan;
use crate::rdm::recv::held_bytes::HeldBytes;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::rma::mem::Spans;
use crate::rdm::status::OpError;
use crate::wire::{AtomicOp, Datatype, Iovs, MAX_IOV, RmaIov};

/// Whether an id names a one-sided operation.
#[inline]
pub const fn is_rma_id(id: SlotId) -> bool {
    id.raw() >> 31 == 1
}

/// How far a one-sided operation has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaState {
    /// In the peer's queue, no packet out: may be cancelled.
    Queued,
    /// The request is out; data follow as granted, or come.
    Moving,
    /// All is out; only the acknowledgement, the end or the result is missing.
    AllOut,
    /// The target reads the bytes of a write out of the requester's memory. So at both ends.
    BeingRead,
    /// The target cannot read them: the write is to be started once more, by long-CTS.
    Nacked,
}

/// Whether the target is to acknowledge a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// No: something else tells its end, or nothing needs to.
    No,
    /// If it can: the caller does not wait for it, only a flush does.
    IfAble,
    /// Yes: the caller waits for it.
    Wanted,
}

/// What it is, and with what memory.
#[derive(Debug)]
pub enum Job {
    /// We write these bytes to a peer.
    Put(Gather),
    /// We read a peer's bytes to here.
    Get(Scatter),
    /// We ask a peer to compute.
    Atomic(Atomic),
    /// A peer writes these bytes of ours.
    Store(Spans),
    /// A peer reads these bytes of ours.
    Load(Spans),
    /// Old values that a peer waits for, until there is room to send them.
    Answer(HeldBytes),
}

/// What to compute, and with what.
#[derive(Debug)]
pub struct Atomic {
    /// The operation.
    pub op: AtomicOp,
    /// Type of the elements.
    pub ty: Datatype,
    /// Operands, and behind them compare values.
    pub operands: Operands,
    /// Where the old values go.
    pub result: Option<Scatter>,
}

/// The operands of an atomic, then its compare values.
#[derive(Debug)]
pub enum Operands {
    /// Few bytes: copied when it was asked for.
    Here {
        /// Both, one behind the other.
        bytes: [u8; Operands::FEW],
        /// Bytes of them.
        len: u8,
    },
    /// The caller's memory.
    There(Gather, Gather),
}

impl Operands {
    /// Bytes that are copied rather than lent.
    pub const FEW: usize = 32;

    /// Of an operation that is asked for.
    #[inline]
    pub fn take(operand: &Gather, compare: &Gather) -> Operands {
        let len = operand.len().saturating_add(compare.len());
        if len > Self::FEW {
            return Operands::There(*operand, *compare);
        }
        let mut bytes = [0; Self::FEW];
        let at = operand.copy_to(0, &mut bytes);
        compare.copy_to(0, &mut bytes[at..]);
        Operands::Here { bytes, len: len as u8 }
    }

    /// Bytes in all.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Operands::Here { len, .. } => usize::from(*len),
            Operands::There(operand, compare) => operand.len() + compare.len(),
        }
    }

    /// Copies them all; answers how many bytes they are. `to` is long enough. // HOT
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        match self {
            Operands::Here { bytes, len } => {
                let len = usize::from(*len);
                to[..len].copy_from_slice(&bytes[..len]);
                len
            }
            Operands::There(operand, compare) => {
                let at = operand.copy_to(0, to);
                at + compare.copy_to(0, &mut to[at..])
            }
        }
    }
}

/// One operation. What a [compact](RmaOp::compact) one uses comes first, in one line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RmaOp {
    /// Returned with the completion; a target's is not used.
    pub user: u64,
    /// Bytes in all.
    pub len: u64,
    /// Where the old values go that a compact atomic fetches.
    pub result: Option<RecvBuf>,
    /// The other end.
    pub peer: PeerId,
    /// By which protocol.
    pub protocol: RmaProtocol,
    /// How far it is.
    pub state: RmaState,
    /// Is the target to acknowledge it?
    pub ack: Ack,
    /// The caller has been told of the end, or does not want to be.
    pub notified: bool,
    /// Out of the peer's queue and counted there, for fences.
    pub fence_counted: bool,
    /// Its peer does not count it any more.
    pub detached: bool,
    /// Ours, and its only packet is out: it waits for what ends it, and uses nothing of what follows here, which is as in one
    /// that has not begun.
    pub compact: bool,
    /// Nobody uses it any more: what follows is of who did.
    pub(super) stale: bool,
    /// In the peer's queue of grants.
    pub in_data_queue: bool,
    /// RDMA operations on their way: the device uses the caller's memory until they end.
    pub in_flight: u32,
    /// What to do.
    pub job: Job,
    /// The target's memory, at the requester.
    pub remote: Iovs,
    /// Bytes that we have sent.
    pub sent: u64,
    /// Bytes that have come.
    pub received: ReceivedRanges,
    /// Bytes granted, to us or by us, and not yet on their way or here.
    pub window: u64,
    /// The other end's id, once known.
    pub remote_id: Option<u32>,
    /// Data for the target's completion.
    pub cq_data: Option<u64>,
    /// The wire that the device has begun it on.
    pub wire: Option<WireId>,
    /// What is read for it, at the target.
    pub rma_read: Option<SlotId>,
    /// Registrations of the local pieces, by their number.
    pub regs: [Option<Reg>; MAX_IOV],
    /// `remote` names one piece by the key of the lane that the peer has gone on over; this is the one of its first lane,
    /// which packets name.
    pub first_key: Option<u64>,
    /// How it is spread over rails, if it may be; `sent` and `regs` are not used once it is cut.
    pub rail_plan: Option<Box<RailPlan>>,
    /// How it will end, when nothing flies any more.
    pub failed: Option<OpError>,
}

impl RmaOp {
    /// One that has not begun.
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

    /// No device carries it, over however many lanes: it goes on by packets.
    pub fn go_by_packets(&mut self) {
        self.protocol = self.protocol.by_packets();
        self.rail_plan = None;
        if let (Some(key), Some(iov)) = (self.first_key.take(), self.remote.as_slice().first()) {
            self.remote = Iovs::one(RmaIov { key, ..*iov });
        }
    }

    /// Whether we asked for it, rather than the peer.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.compact || matches!(self.job, Job::Put(_) | Job::Get(_) | Job::Atomic(_))
    }

    /// Whether it uses this region of ours on behalf of a peer.
    pub fn uses(&self, region: SlotId) -> bool {
        matches!(&self.job, Job::Store(spans) | Job::Load(spans) if spans.uses(region))
    }

    /// Copies bytes that we send, from `at` on. // HOT
    #[inline]
    pub fn copy_to(&self, at: u64, to: &mut [u8]) -> usize {
        match &self.job {
            Job::Put(local) => local.copy_to(at as usize, to),
            Job::Load(spans) => spans.copy_to(at, to),
            _ => 0,
        }
    }

    /// Stores bytes that have come for `at`. // HOT
    #[inline]
    pub fn put(&mut self, at: u64, from: &[u8]) {
        match &mut self.job {
            Job::Get(local) => local.put(at, from),
            Job::Store(spans) => spans.put(at, from),
            _ => {}
        }
    }
}
