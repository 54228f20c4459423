//! A thread mode around any interface: each call goes through the gate that `mt` has, whose cost is that of the mode. For who
//! measures it, and for tests; threads share [`mt::Iface`](crate::mt::Iface), since these types stay with one thread.

use super::forward::{forward_iface, forward_memory};
use crate::api::{
    AddrBuf, AmHandler, AtomicOp, Comp, ConnectError, Ep, EpTag, Error, Events, Iface, IfaceAttr, ImmHandler,
    Iov, Outcome, Pending, PendingQueued, RemoteIov, Sink, Word,
};
use crate::base::lock::{LockResult, RecursiveLock, ThreadMode, this_thread};
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

/// An interface with a thread mode.
pub struct Gated<I: Iface> {
    inner: I,
    gate: Rc<RecursiveLock>,
}

/// An endpoint of it.
pub struct GatedEp<E> {
    inner: E,
    gate: Rc<RecursiveLock>,
}

/// Being inside, until dropped.
struct Inside<'a, T> {
    inner: &'a T,
    gate: &'a RecursiveLock,
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.inner
    }
}

impl<T> Drop for Inside<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.gate.leave();
    }
}

/// Goes in. // HOT
#[inline(always)]
fn enter<'a, T>(inner: &'a T, gate: &'a RecursiveLock) -> Result<Inside<'a, T>, Error> {
    match gate.enter(this_thread()) {
        LockResult::Locked => Ok(Inside { inner, gate }),
        // Not to be had: the gate is this value's own, and the value is one thread's.
        LockResult::Busy | LockResult::Foreign => Err(Error::InvalidParam("another thread is inside")),
    }
}

impl<I: Iface> Gated<I> {
    /// All calls of `inner` go through a gate in this mode.
    pub fn new(inner: I, mode: ThreadMode) -> Self {
        Gated { inner, gate: Rc::new(RecursiveLock::new(mode, this_thread())) }
    }

    /// The mode.
    pub fn mode(&self) -> ThreadMode {
        self.gate.mode()
    }

    fn inner(&self) -> &I {
        &self.inner
    }

    #[inline(always)]
    fn inside(&self) -> Result<Inside<'_, I>, Error> {
        enter(&self.inner, &self.gate)
    }

    fn wrap(&self, inner: I::Ep) -> GatedEp<I::Ep> {
        GatedEp { inner, gate: self.gate.clone() }
    }
}

impl<E: Ep> GatedEp<E> {
    #[inline(always)]
    fn inside(&self) -> Result<Inside<'_, E>, Error> {
        enter(&self.inner, &self.gate)
    }
}

impl<I: Iface> Iface for Gated<I> {
    type Md = I::Md;
    type Ep = GatedEp<I::Ep>;

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

    forward_iface!(inner, inside);
}

impl<E: Ep> Ep for GatedEp<E> {
    type Mem = E::Mem;
    type Rkey = E::Rkey;

    fn tag(&self) -> EpTag {
        self.inner.tag()
    }

    fn set_tag(&self, tag: EpTag) {
        self.inner.set_tag(tag);
    }

    // HOT
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        self.inside()?.am_short(id, header, payload)
    }

    // HOT
    #[inline]
    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        self.inside()?.am_short_iov(id, iov)
    }

    // HOT
    #[inline]
    fn am_bcopy<F: FnOnce(&mut [u8]) -> usize>(&self, id: u8, pack: F) -> Outcome<usize> {
        self.inside()?.am_bcopy(id, pack)
    }

    // HOT
    #[inline]
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        self.inside()?.am_packet(max, pack)
    }

    fn max_bcopy(&self) -> usize {
        self.inner.max_bcopy()
    }

    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, E::Mem>], comp: Comp) -> Outcome {
        let inner = self.inside()?;
        // SAFETY: the caller's promise is the same.
        unsafe { inner.am_zcopy(id, header, iov, comp) }
    }

    forward_memory!(inside);

    fn flush(&self, comp: Comp) -> Outcome {
        self.inside()?.flush(comp)
    }

    fn fence(&self) -> Outcome {
        self.inside()?.fence()
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        self.inside()?.pending_add(op)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        self.inner.pending_purge(each);
    }

    fn ensure_connected(&self) -> Result<(), ConnectError> {
        self.inside()?.ensure_connected()
    }

    fn begin_connecting(&self) -> Result<bool, ConnectError> {
        self.inside()?.begin_connecting()
    }

    fn check(&self, comp: Comp) -> Outcome {
        self.inside()?.check(comp)
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        self.inner.is_connected(device, iface)
    }

    fn ep_addr(&self) -> Result<AddrBuf, Error> {
        self.inner.ep_addr()
    }

    fn connect_to_ep(&self, device: &[u8], iface: &[u8], ep: &[u8]) -> Result<(), ConnectError> {
        self.inside()?.connect_to_ep(device, iface, ep)
    }
}
