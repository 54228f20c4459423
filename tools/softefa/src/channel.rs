//! Completion channels: one descriptor for many queues, and the events taken from it.
//! Called by name; queues add themselves. Blocks only where the program asked for it.

use crate::abi::{IbvCompChannel, IbvContext, IbvCq};
use crate::cq::CqObj;
use crate::state::{Errno, number, pointer, set_errno};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use uct::efa::dev::DevCq;

/// A channel as C holds it.
#[repr(C)]
pub struct ChannelObj {
    abi: IbvCompChannel,
    set: OwnedFd,
    queues: AtomicI32,
}

impl ChannelObj {
    /// A queue's descriptor wakes this channel from now on.
    pub fn add(&self, fd: BorrowedFd<'_>, cq: *mut c_void) -> Result<(), Errno> {
        epoll::add(&self.set, fd, EventData::new_u64(cq as u64), EventFlags::IN)
            .map_err(|e| e.raw_os_error())?;
        self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// It does no longer.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // Closing the descriptor, which comes next, takes it out as well.
        let _ = epoll::delete(&self.set, fd);
        self.queues.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits for a queue's event. `None` without waiting: there is none.
    fn wait(&self) -> Result<*mut CqObj, Errno> {
        let nonblock = rustix::fs::fcntl_getfl(&self.set).is_ok_and(|f| f.contains(OFlags::NONBLOCK));
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = nonblock.then_some(&now);
        loop {
            let mut room = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 1];
            let (got, _) = epoll::wait(&self.set, &mut room, limit).map_err(|e| e.raw_os_error())?;
            let Some(event) = got.first() else { return Err(libc::EAGAIN) };
            let cq = event.data.u64() as *mut CqObj;
            if claim(cq) {
                return Ok(cq);
            }
        }
    }
}

/// Takes a queue's event, unless another thread was faster.
fn claim(cq: *mut CqObj) -> bool {
    // SAFETY: the set holds only queues that are alive: a queue takes itself out before it goes, and the rules of
    // verbs forbid destroying one whose event is being waited for.
    let obj = unsafe { CqObj::of(cq) };
    let state = obj.context().lock();
    let Some(row) = state.cqs.get(obj.id) else { return false };
    let Some(fd) = row.cq.event_fd() else { return false };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let there = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0);
    if there {
        row.cq.take_event();
    }
    there
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(ctx: *mut IbvContext) -> *mut IbvCompChannel {
    let made = epoll::create(CreateFlags::CLOEXEC).map(|set| {
        let abi = IbvCompChannel { context: ctx, fd: set.as_raw_fd(), refcnt: 0 };
        Box::into_raw(Box::new(ChannelObj { abi, set, queues: AtomicI32::new(0) })).cast()
    });
    pointer(made.map_err(|e| e.raw_os_error()))
}

/// # Safety
/// `channel` is one of ours; after success nobody uses it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { &*channel.cast::<ChannelObj>() };
    if obj.queues.load(Ordering::Relaxed) > 0 {
        return number(Err(libc::EBUSY));
    }
    // SAFETY: made by Box::into_raw in `ibv_create_comp_channel`, given back once.
    drop(unsafe { Box::from_raw(channel.cast::<ChannelObj>()) });
    0
}

/// # Safety
/// `channel` is one of ours; `cq` and `cq_context` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { &*channel.cast::<ChannelObj>() };
    let found = match obj.wait() {
        Ok(found) => found,
        Err(e) => {
            set_errno(e);
            return -1;
        }
    };
    // SAFETY: `wait` answers with a queue that is alive.
    let ex = unsafe { CqObj::of(found) }.ex.get();
    // SAFETY: the field was written when the queue was made and is never written again.
    let given = unsafe { (*ex).base.cq_context };
    // SAFETY: writable by contract.
    unsafe { cq_context.write(given) };
    // SAFETY: writable by contract.
    unsafe { cq.write(found.cast()) };
    0
}

/// Nothing waits for events to be acknowledged here.
#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(_cq: *mut IbvCq, _n: c_uint) {}
