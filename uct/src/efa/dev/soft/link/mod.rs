//! What the object model needs of a wire: the receive side of a queue pair, and the way to a remote one.
//! Implemented by `inproc` and `shm`; called by the queue pair and the completion queue. A link never retries,
//! delays or reorders: it tries once and says how it went.

pub mod inproc;
pub mod shm;

use super::mr::{Backing, Memory, MrTable};
use crate::api::{ConnectError, Error, OpenError};
use crate::efa::dev::{Channel, Cqe, DevStatus, Gid, QpKind};
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};

/// How one try went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryOutcome {
    /// It ended, well or badly: the request completes with this.
    Done(DevStatus),
    /// The receiver has no receive posted: counts as a retry.
    NotReady,
    /// The way is blocked for a moment: try again, at no cost.
    Busy,
    /// So many bytes of a long RDMA operation are through; go on later.
    Partial(u32),
}

/// Bytes of this process that may be read while `'a` lasts.
#[derive(Clone, Copy)]
pub struct SendBuf<'a> {
    ptr: *const u8,
    len: u32,
    life: PhantomData<&'a [u8]>,
}

impl<'a> SendBuf<'a> {
    /// Nothing.
    pub(super) const EMPTY: SendBuf<'a> = SendBuf { ptr: std::ptr::null(), len: 0, life: PhantomData };

    /// These bytes.
    #[inline]
    pub(super) fn of(bytes: &'a [u8]) -> SendBuf<'a> {
        SendBuf { ptr: bytes.as_ptr(), len: bytes.len() as u32, life: PhantomData }
    }

    /// Registered memory.
    ///
    /// # Safety
    /// `ptr..ptr + len` is readable during `'a`.
    #[inline]
    pub(super) unsafe fn raw(ptr: *const u8, len: u32) -> SendBuf<'a> {
        SendBuf { ptr, len, life: PhantomData }
    }

    /// Copies the bytes to `to`, which may overlap them: a process may send to itself. // HOT
    ///
    /// # Safety
    /// `to` is writable for `len()` bytes.
    #[inline]
    pub(super) unsafe fn copy_to(&self, to: *mut u8) {
        if self.len > 0 {
            // SAFETY: the source is readable by construction, the target by this function's contract.
            unsafe { std::ptr::copy(self.ptr, to, self.len as usize) }
        }
    }
}

/// A message to send: at most two pieces, as the hardware gathers.
#[derive(Clone, Copy)]
pub struct Msg<'a> {
    pub(super) bufs: [SendBuf<'a>; 2],
    pub(super) imm: Option<u32>,
}

impl Msg<'_> {
    /// Bytes in all.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.bufs[0].len + self.bufs[1].len
    }

    /// Gathers the bytes at `to`. // HOT
    ///
    /// # Safety
    /// `to` is writable for `len()` bytes.
    #[inline]
    pub(super) unsafe fn copy_to(&self, to: *mut u8) {
        // SAFETY: `to` has room for all pieces by this function's contract.
        unsafe { self.bufs[0].copy_to(to) };
        if self.bufs[1].len > 0 {
            // SAFETY: the first piece ends inside the room.
            let next = unsafe { to.add(self.bufs[0].len as usize) };
            // SAFETY: the rest of the room is as long as the second piece.
            unsafe { self.bufs[1].copy_to(next) };
        }
    }
}

/// Who sends: shown in the receiver's completion, and checked for RDMA.
#[derive(Clone, Copy)]
pub struct Sender {
    /// Interface id of the sending device.
    pub(super) iid: u64,
    /// Sending queue pair.
    pub(super) qpn: u16,
    /// Its kind.
    pub(super) kind: QpKind,
}

/// An RDMA operation, or what is left of one.
#[derive(Clone, Copy)]
pub struct Rdma {
    /// Local memory, checked against the local key by the caller.
    pub(super) local: *mut u8,
    /// Bytes.
    pub(super) len: u32,
    /// Remote address.
    pub(super) raddr: u64,
    /// Remote key.
    pub(super) rkey: u32,
    /// Bytes of the whole operation, of which this may be the rest.
    pub(super) total: u32,
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

/// What the receive side of a queue pair is opened with.
pub struct RecvQueueInit<W> {
    pub(super) kind: QpKind,
    pub(super) pd: u32,
    pub(super) depth: u32,
    pub(super) qkey: u32,
    pub(super) unsolicited: bool,
    pub(super) channel: Option<Rc<W>>,
}

/// The receive side of one local queue pair. Dropping it makes it unreachable.
pub trait RecvQueue {
    /// The number under which peers find it.
    fn qpn(&self) -> u16;
    /// Changes the q-key that senders must show. Those that met the old one look again.
    fn set_qkey(&self, qkey: u32);
    /// Adds a receive. The caller keeps their number within the depth.
    fn post(&self, posted: PostedRecv);
    /// Receives posted and not yet completed.
    fn outstanding(&self) -> u32;
    /// Moves completions of arrivals into `out`, and shows each with the receive it used up, if any, to `saw`, which may change it.
    fn poll(&self, out: &mut [Cqe], inspect: &mut impl FnMut(&mut Cqe, Option<&PostedRecv>)) -> usize;
    /// Whether `poll` would find something.
    fn ready(&self) -> bool;
    /// Whether a message was begun that is not there yet.
    fn has_unpublished(&self) -> bool;
    /// From now on (or no longer), the next arrival wakes the channel.
    fn arm(&self, armed: bool);
    /// Closes it to peers and gives back every posted receive that no message took.
    fn close(&self, each: &mut dyn FnMut(PostedRecv));
    /// Slow upkeep, called now and then when there is nothing to poll.
    fn upkeep(&self);
}

/// The way to one remote queue pair. Each call tries once.
pub trait RemoteQp {
    /// The remote queue pair's q-key.
    fn qkey(&self) -> u32;
    /// Delivers a message into a posted receive. // HOT
    fn send(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome;
    /// Reads remote memory.
    fn read(&self, from: Sender, op: &Rdma) -> TryOutcome;
    /// Writes remote memory; `imm` is delivered when the last byte is there.
    fn write(&self, from: Sender, op: &Rdma, imm: Option<u32>) -> TryOutcome;
}

/// The wake-up of a completion channel.
pub trait CompChannel {
    /// The descriptor that becomes readable.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Makes it readable.
    fn signal(&self);
    /// Makes it not readable.
    fn clear(&self);
    /// Makes it readable by itself after so many nanoseconds. `false`: this link cannot.
    fn timer(&self, ns: u64) -> bool;
}

/// Something that has work left to do as time goes on.
pub trait Progress {
    /// Carries out what is due; answers whether anything was.
    fn progress(&self) -> bool;
    /// Tick at which something is due next, or `u64::MAX`.
    fn next_due(&self) -> u64;
}

/// One device's connection to its wire.
pub trait Link: Clone + 'static {
    /// Receive side of a queue pair.
    type RecvQueue: RecvQueue;
    /// Way to a remote queue pair.
    type RemoteQp: RemoteQp;
    /// Completion channel.
    type CompChannel: CompChannel;

    /// The device's interface id.
    fn iid(&self) -> u64;
    /// Whether a device with that GID may be reached. The answer without a hint is yes.
    fn check_reachable(&self, _other: Gid) -> Result<(), ConnectError> {
        Ok(())
    }
    /// The device's memory regions.
    fn regions(&self) -> &MrTable;
    /// Whether the next registration goes through: a fault plan may say no.
    fn allows_registration(&self) -> bool {
        true
    }
    /// Memory that the wire reaches best, and its descriptor if it is a memory file.
    fn alloc(&self, len: usize) -> Result<(Memory, Option<i32>), Error>;
    /// A receive side, under a queue pair number for which `free` holds.
    fn open_recv_queue(
        &self,
        init: RecvQueueInit<Self::CompChannel>,
        free: &dyn Fn(u16) -> bool,
    ) -> Result<Self::RecvQueue, OpenError>;
    /// The way to a queue pair of this kind: others are as good as none.
    fn resolve(&self, iid: u64, qpn: u16, kind: QpKind) -> Result<Self::RemoteQp, TryOutcome>;
    /// A channel.
    fn create_channel(&self, channel: Channel) -> Result<Option<Self::CompChannel>, OpenError>;
    /// The device knows this peer from now on (or no longer): it may do RDMA here.
    fn set_peer_known(&self, iid: u64, known: bool) -> Result<(), Error>;
    /// False in a child after a fork: what peers see is its parent's, and stays as it is.
    fn is_owner_process(&self) -> bool {
        true
    }
    /// Called at every poll of a completion queue, before anything else. // HOT
    fn on_poll(&self);
    /// The clock that requests are held back by.
    fn ticks(&self) -> u64;
    /// Nanoseconds since some moment.
    fn clock(&self) -> u64;
    /// Ticks after which a try at a receiver that was not ready is worth while; `interval_ns` is what hardware waits.
    fn retry_ticks(&self, interval_ns: u64) -> u64;
    /// Shows the link something to pump, if it drives devices itself.
    fn register_progress(&self, progress: Weak<dyn Progress>);
    /// The device goes down for good: peers that ask are told so.
    fn go_down(&self);
    /// False once the device was killed: it does nothing any more.
    fn alive(&self) -> bool;
}
