//! A thread mode around any interface of one thread, to measure what the lock of `mt` costs.

#![allow(unsafe_code)]

use super::forward::{forward, forward_fact, forward_iface};
use crate::api::{
    AmHandler, Comp, ConnectError, DeviceCounters, Ep, EpTag, Error, Iface, IfaceAttr, ImmHandler, Pending,
    PendingQueued, Sink,
};
use crate::delegate::{ep_control, ep_rma, ep_sends};
use std::ops::Deref;
use std::rc::Rc;
use ucs::sync::{LockResult, RecursiveLock, ThreadMode, this_thread};

/// An interface with a thread mode.
pub struct Locked<I: Iface> {
    inner: I,
    lock: Rc<RecursiveLock>,
}

/// An endpoint of it.
pub struct LockedEp<E> {
    inner: E,
    lock: Rc<RecursiveLock>,
}

struct Guard<'a, T> {
    inner: &'a T,
    lock: &'a RecursiveLock,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.inner
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

/// Goes in.
// HOT
#[inline(always)]
fn lock<'a, T>(inner: &'a T, lock: &'a RecursiveLock) -> Result<Guard<'a, T>, Error> {
    match lock.lock(this_thread()) {
        LockResult::Locked => Ok(Guard { inner, lock }),
        // Not to be had: the lock is this value's own, and the value is one thread's.
        LockResult::Busy | LockResult::WrongThread => Err(Error::InvalidParam("another thread is inside")),
    }
}

impl<I: Iface> Locked<I> {
    /// All calls of `inner` go through a lock in this mode.
    pub fn new(inner: I, mode: ThreadMode) -> Self {
        Locked { inner, lock: Rc::new(RecursiveLock::new(mode, this_thread())) }
    }

    /// The mode.
    pub fn mode(&self) -> ThreadMode {
        self.lock.mode()
    }

    fn inner(&self) -> &I {
        &self.inner
    }

    #[inline(always)]
    fn inside(&self) -> Result<Guard<'_, I>, Error> {
        lock(&self.inner, &self.lock)
    }

    fn wrap(&self, inner: I::Ep) -> LockedEp<I::Ep> {
        LockedEp { inner, lock: self.lock.clone() }
    }
}

impl<E: Ep> LockedEp<E> {
    #[inline(always)]
    fn inside(&self) -> Result<Guard<'_, E>, Error> {
        lock(&self.inner, &self.lock)
    }
}

impl<I: Iface> Iface for Locked<I> {
    type Md = I::Md;
    type Ep = LockedEp<I::Ep>;

    fn attr(&self) -> &IfaceAttr {
        self.inner.attr()
    }

    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Self::Ep, ConnectError> {
        self.inside()?.connect(device, iface).map(|ep| self.wrap(ep))
    }

    fn create_ep(&self) -> Result<Self::Ep, Error> {
        self.inside()?.create_ep().map(|ep| self.wrap(ep))
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.inner.set_am_handler(id, handler);
    }

    fn deliver_within_send(&self, on: bool) -> bool {
        self.inner.deliver_within_send(on)
    }

    fn device_counters(&self) -> Vec<DeviceCounters> {
        self.inner.device_counters()
    }

    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(EpTag, Error)>>) {
        self.inner.set_error_handler(handler);
    }

    fn set_imm_handler(&self, handler: Option<ImmHandler>) {
        self.inner.set_imm_handler(handler);
    }

    // HOT
    #[inline(always)]
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inside().map_or(0, |inner| inner.poll(max, sink))
    }

    fn progress(&self, max: usize) -> usize {
        self.inside().map_or(0, |inner| inner.progress(max))
    }

    forward_iface!();
}

impl<E: Ep> Ep for LockedEp<E> {
    type Mem = E::Mem;
    type Rkey = E::Rkey;

    fn tag(&self) -> EpTag {
        self.inner.tag()
    }

    fn set_tag(&self, tag: EpTag) {
        self.inner.set_tag(tag);
    }

    fn max_bcopy(&self) -> usize {
        self.inner.max_bcopy()
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        self.inside()?.pending_add(op)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        self.inner.pending_purge(each);
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        self.inner.is_connected(device, iface)
    }

    fn peer_process(&self) -> Option<u64> {
        self.inner.peer_process()
    }

    fn published(&self) -> Option<u64> {
        self.inner.published()
    }

    ep_sends!(forward, Self::Mem, Comp);
    ep_rma!(forward, Self::Mem, Self::Rkey, Comp);
    ep_control!(forward, Comp);
}
