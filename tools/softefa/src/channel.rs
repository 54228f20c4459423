//! Completion channels: one descriptor for many completion queues.

use crate::abi::{IbvCompChannel, IbvContext, IbvCq};
use crate::cq_obj::{CqObj, locked};
use crate::errno::{Errno, ret_int, ret_ptr, set_errno};
use rustc_hash::FxHashMap;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use uct::efa::dev::DevCq;

#[repr(C)]
pub struct ChannelObj {
    abi: IbvCompChannel,
    set: OwnedFd,
    /// Locked with or without a context's lock, and never while waiting for that.
    queues: Mutex<Queues>,
}

/// Completion queues of a channel by epoll token, which is never reused.
#[derive(Default)]
struct Queues {
    all: FxHashMap<u64, *mut CqObj>,
    next: u64,
}

impl ChannelObj {
    /// Makes a queue's descriptor wake this channel.
    pub fn add(&self, fd: BorrowedFd<'_>, cq: *mut CqObj) -> Result<(), Errno> {
        let mut queues = locked(&self.queues);
        let number = queues.next;
        epoll::add(&self.set, fd, EventData::new_u64(number), EventFlags::IN)
            .map_err(|e| e.raw_os_error())?;
        queues.next += 1;
        queues.all.insert(number, cq);
        Ok(())
    }

    pub fn remove(&self, fd: BorrowedFd<'_>, cq: &CqObj) {
        // Closing the descriptor, which comes next, removes it as well.
        let _ = epoll::delete(&self.set, fd);
        locked(&self.queues).all.retain(|_, other| !std::ptr::eq(*other, cq));
    }

    /// The queue of an event, kept until the event is acknowledged; `None` if it is gone.
    fn pin_cq(&self, number: u64) -> Option<*mut CqObj> {
        let queues = locked(&self.queues);
        let cq = *queues.all.get(&number)?;
        // SAFETY: a queue takes itself out of the channel before it goes.
        unsafe { CqObj::of(cq) }.events.add();
        Some(cq)
    }

    /// Waits for a queue's event; EAGAIN if the descriptor is non-blocking and there is none.
    fn wait(&self) -> Result<*mut CqObj, Errno> {
        let nonblock = rustix::fs::fcntl_getfl(&self.set).is_ok_and(|f| f.contains(OFlags::NONBLOCK));
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = nonblock.then_some(&now);
        loop {
            let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 1];
            let (got, _) = epoll::wait(&self.set, &mut events, limit).map_err(|e| e.raw_os_error())?;
            let Some(event) = got.first() else { return Err(libc::EAGAIN) };
            let Some(cq) = self.pin_cq(event.data.u64()) else { continue };
            // SAFETY: it stays until this event is acknowledged.
            let obj = unsafe { CqObj::of(cq) };
            if take_cq_event(obj) {
                return Ok(cq);
            }
            obj.events.acknowledge(1);
        }
    }
}

/// Takes a queue's event, unless another thread did.
fn take_cq_event(obj: &CqObj) -> bool {
    let state = obj.context().lock();
    let Some(cq_state) = state.cqs.get(obj.id) else { return false };
    let Some(fd) = cq_state.cq.event_fd() else { return false };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let readable =
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0);
    if readable {
        cq_state.cq.take_event();
    }
    readable
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(ctx: *mut IbvContext) -> *mut IbvCompChannel {
    let made = epoll::create(CreateFlags::CLOEXEC).map(|set| {
        let abi = IbvCompChannel { context: ctx, fd: set.as_raw_fd(), refcnt: 0 };
        Box::into_raw(Box::new(ChannelObj { abi, set, queues: Mutex::default() })).cast()
    });
    ret_ptr(made.map_err(|e| e.raw_os_error()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { &*channel.cast::<ChannelObj>() };
    if !locked(&obj.queues).all.is_empty() {
        return ret_int(Err(libc::EBUSY));
    }
    // SAFETY: made by Box::into_raw in `ibv_create_comp_channel`, given back once.
    drop(unsafe { Box::from_raw(channel.cast::<ChannelObj>()) });
    0
}

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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut IbvCq, n: c_uint) {
    // SAFETY: by this function's contract; a queue stays until its events are acknowledged.
    unsafe { CqObj::of(cq) }.events.acknowledge(n);
}
