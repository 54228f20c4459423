//! The wire beneath the object model. A link attempts an operation once; it never retries, delays or
//! reorders.

#![allow(unsafe_code)]

pub mod inproc;
pub mod net;
pub mod shm;
pub mod udp;

use super::mr::{Backing, Memory, MrTable, Region};
use crate::api::{ConnectError, DeviceCounters, Error, OpenError};
use crate::efa::dev::{Channel, Cqe, DevStatus, Gid, Placement, QpKind};
use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::rc::Weak;
use std::sync::Arc;
use ucs::mem::guard;

/// Outcome of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryOutcome {
    /// Completed: the request ends with this status.
    Done(DevStatus),
    /// No receive was posted: counts as an RNR retry.
    NotReady,
    /// Blocked for a moment: try again, at no cost.
    Busy,
    /// Bytes of a long RDMA operation done; continue later.
    Partial(u32),
    /// On its way. The link keeps the outcome, which is never this one, under this token:
    /// [`Link::next_outcome`].
    Pending(u32),
}

// Posts return it in a register.
const _: () = assert!(size_of::<TryOutcome>() == 8);

/// Bytes of this process, readable during `'a`.
#[derive(Clone, Copy)]
pub struct SendBuf<'a> {
    ptr: *const u8,
    len: u32,
    life: PhantomData<&'a [u8]>,
}

impl<'a> SendBuf<'a> {
    pub(super) const EMPTY: SendBuf<'a> = SendBuf { ptr: std::ptr::null(), len: 0, life: PhantomData };

    #[inline]
    pub(super) fn of(bytes: &'a [u8]) -> SendBuf<'a> {
        SendBuf { ptr: bytes.as_ptr(), len: bytes.len() as u32, life: PhantomData }
    }

    /// A registered range. Unsafe: `ptr..ptr + len` is readable during `'a`.
    #[inline]
    pub(super) unsafe fn raw(ptr: *const u8, len: u32) -> SendBuf<'a> {
        SendBuf { ptr, len, life: PhantomData }
    }

    /// Copies the bytes to `to`, which may overlap. False: the program has unmapped them, see [`guard`].
    /// Unsafe: `to` is writable for `len()` bytes.
    // HOT
    #[inline]
    #[must_use]
    pub(super) unsafe fn copy_to(&self, to: *mut u8) -> bool {
        // SAFETY: the source is readable by construction, the target by this function's contract.
        self.len == 0 || unsafe { guard::copy(self.ptr, to, self.len as usize) }
    }
}

/// A message to send: up to two buffers, as the hardware gathers.
#[derive(Clone, Copy)]
pub struct Msg<'a> {
    pub(super) bufs: [SendBuf<'a>; 2],
    pub(super) imm: Option<u32>,
}

impl Msg<'_> {
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.bufs[0].len + self.bufs[1].len
    }

    /// Copies the message to `to`. False: the program has unmapped a part of it. Unsafe: `to` is writable for
    /// `len()` bytes.
    // HOT
    #[inline]
    #[must_use]
    pub(super) unsafe fn copy_to(&self, to: *mut u8) -> bool {
        // SAFETY: `to` has room for both buffers by this function's contract.
        if !unsafe { self.bufs[0].copy_to(to) } {
            return false;
        }
        if self.bufs[1].len == 0 {
            return true;
        }
        // SAFETY: the first buffer ends inside `to`.
        let next = unsafe { to.add(self.bufs[0].len as usize) };
        // SAFETY: the rest of `to` is as long as the second buffer.
        unsafe { self.bufs[1].copy_to(next) }
    }
}

/// Source of a request, shown in the receiver's completion and checked for RDMA.
#[derive(Clone, Copy)]
pub struct Sender {
    pub(super) iid: u64,
    pub(super) qpn: u16,
    pub(super) kind: QpKind,
}

/// An RDMA operation, or the rest of one.
#[derive(Clone, Copy)]
pub struct Rdma {
    pub(super) local: *mut u8,
    pub(super) len: u32,
    pub(super) raddr: u64,
    pub(super) rkey: u32,
    /// Length of the whole operation.
    pub(super) total: u32,
    /// Key and domain of `local`, for a link that copies after the call.
    pub(super) lkey: u32,
    pub(super) pd: u32,
}

/// A posted receive, checked against its local key.
#[derive(Clone, Copy)]
pub struct PostedRecv {
    pub(super) wr_id: u64,
    pub(super) addr: *mut u8,
    pub(super) cap: u32,
    pub(super) lkey: u32,
    pub(super) backing: Backing,
}

/// Attributes of a new receive queue.
pub struct RecvQueueInit<W> {
    pub(super) kind: QpKind,
    pub(super) pd: u32,
    pub(super) depth: u32,
    pub(super) qkey: u32,
    pub(super) unsolicited: bool,
    pub(super) channel: Option<Arc<W>>,
}

/// Receive queue of one local queue pair. Dropping it makes it unreachable.
pub trait RecvQueue {
    /// Queue pair number.
    fn qpn(&self) -> u16;
    /// Changes the q-key. Senders that resolved the old one resolve again.
    fn set_qkey(&self, qkey: u32);
    /// Posts a receive; the caller keeps their number within the depth.
    fn post(&self, posted: PostedRecv);
    /// Receives posted and not yet completed.
    fn outstanding(&self) -> u32;
    /// Moves completions of arrivals into `out`; `inspect` sees, and may change, each with its receive.
    fn poll(&self, out: &mut [Cqe], inspect: &mut impl FnMut(&mut Cqe, Option<&PostedRecv>)) -> usize;
    /// Whether `poll` would find something.
    fn ready(&self) -> bool;
    /// Whether a sender has claimed a receive and not yet published its message.
    fn has_unpublished(&self) -> bool;
    /// Sets whether the next arrival signals the channel.
    fn arm(&self, armed: bool);
    /// Closes the queue to peers and passes every unused receive to `each`.
    fn close(&self, each: &mut dyn FnMut(PostedRecv));
    /// Closes a queue whose memory was overwritten: nothing of it is polled any more.
    fn give_up(&self, each: &mut dyn FnMut(PostedRecv)) {
        self.close(each);
    }
    /// Occasional maintenance, called when idle. An error names what another process has overwritten: the
    /// queue pair cannot go on.
    fn upkeep(&self) -> Result<(), &'static str>;
}

/// A remote queue pair. Each call attempts once.
pub trait RemoteQp {
    /// Whether the remote queue pair has this q-key. A link that only the far side can tell notes it for the
    /// attempt that follows.
    fn has_qkey(&self, qkey: u32) -> bool;
    /// Whether it is closed, or its process dead, as far as the link can tell.
    fn is_gone(&self) -> bool {
        false
    }
    /// Delivers a message into a posted receive.
    // HOT
    fn send(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome;
    /// Reads remote memory.
    fn read(&self, from: Sender, op: &Rdma) -> TryOutcome;
    /// Writes remote memory; delivers `imm` after the last byte.
    fn write(&self, from: Sender, op: &Rdma, imm: Option<u32>) -> TryOutcome;
    /// Waits until the remote device no longer works on requests of ours, which are given up.
    fn await_given_up(&self) {}
}

/// A completion channel: a descriptor that can be signalled.
pub trait CompChannel: Send + Sync {
    /// The descriptor.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Makes the descriptor readable.
    fn signal(&self);
    /// Makes the descriptor not readable.
    fn clear(&self);
    /// Makes the descriptor readable after `ns` nanoseconds; `false` if the link cannot.
    fn timer(&self, ns: u64) -> bool;
}

/// Deferred work that becomes due as time goes on.
pub trait Progress {
    /// Carries out what is due; returns whether anything was.
    fn progress(&self) -> bool;
    /// Tick at which work is due next, or `u64::MAX`.
    fn next_due(&self) -> u64;
}

/// Connection of one device to its wire. Interfaces of several threads share it.
pub trait Link: Clone + Send + Sync + 'static {
    /// Receive queue.
    type RecvQueue: RecvQueue;
    /// Remote queue pair.
    type RemoteQp: RemoteQp;
    /// Completion channel.
    type CompChannel: CompChannel;

    /// Whether a thread of the library's may have queues of its own.
    const SERVES_THREADS: bool;

    /// Interface id of the device.
    fn iid(&self) -> u64;
    /// Whether a device with this GID may be reachable.
    fn check_reachable(&self, _other: Gid) -> Result<(), ConnectError> {
        Ok(())
    }
    /// Memory regions of the device.
    fn regions(&self) -> &MrTable;
    /// Whether the next registration succeeds: a fault plan may refuse it.
    fn allows_registration(&self) -> bool {
        true
    }
    /// Allocates memory that the wire reaches best; with its descriptor if it is a memory file.
    fn alloc(&self, len: usize, place: Placement) -> Result<(Memory, Option<i32>), Error>;
    /// Opens a receive queue under a queue pair number for which `free` holds.
    fn open_recv_queue(
        &self,
        init: RecvQueueInit<Self::CompChannel>,
        free: &dyn Fn(u16) -> bool,
    ) -> Result<Self::RecvQueue, OpenError>;
    /// Resolves a queue pair of this kind; one of another kind is not found.
    fn resolve(&self, iid: u64, qpn: u16, kind: QpKind) -> Result<Self::RemoteQp, TryOutcome>;
    /// Creates a completion channel.
    fn create_channel(&self, channel: Channel) -> Result<Option<Self::CompChannel>, OpenError>;
    /// Allows or forbids this peer RDMA here.
    fn set_peer_known(&self, iid: u64, known: bool) -> Result<(), Error>;
    /// False in a forked child, where segments remain the parent's.
    fn is_owner_process(&self) -> bool {
        true
    }
    /// Called first at every poll of a completion queue, which has been polled `polls` times.
    // HOT
    fn on_poll(&self, polls: &Cell<u64>);
    /// Clock by which requests are deferred that complete to a queue polled `polls` times.
    fn ticks(&self, polls: &Cell<u64>) -> u64;
    /// Counters of the link.
    fn counters(&self) -> Vec<DeviceCounters> {
        Vec::new()
    }
    /// Clock in nanoseconds, from an arbitrary start.
    fn clock(&self) -> u64;
    /// Ticks between attempts at a receiver that is not ready; `interval_ns` is what hardware waits.
    fn retry_ticks(&self, interval_ns: u64) -> u64;
    /// Registers deferred work with a link that drives devices itself.
    fn register_progress(&self, progress: Weak<dyn Progress>);
    /// Takes the device down for good, visibly for peers. False: it was.
    fn go_down(&self) -> bool;
    /// Whether the device is down.
    // HOT
    fn is_down(&self) -> bool;
    /// False once the device was killed.
    fn alive(&self) -> bool;
    /// Whether a peer has offered to share a copy.
    // HOT
    #[inline]
    fn has_offers(&self) -> bool {
        false
    }
    /// Carries out a part of a copy that a peer has offered to share.
    fn join_copy(&self) {}
    /// Takes an outcome that has come for an attempt of the local queue pair `qpn` that was pending.
    fn next_outcome(&self, _qpn: u16) -> Option<(u32, TryOutcome)> {
        None
    }
    /// Gives up what is pending for the local queue pair `qpn`: memory of its requests is not touched any
    /// more, and no outcome comes.
    fn give_up_pending(&self, _qpn: u16) {}
    /// Takes a queue pair that was created.
    fn on_qp_created(&self) {}
    /// Takes a queue pair that was destroyed, after what was pending for it was given up.
    fn on_qp_destroyed(&self) {}
    /// Waits until no thread of the link's, and no peer, copies from or to memory whose key was just removed.
    fn await_copies(&self, _key: u32, _region: &Region) {}
}
