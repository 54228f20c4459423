//! Connections from endpoint to endpoint over interfaces that connect to interfaces, for runtimes that set up their
//! connections in pairs: make an endpoint, exchange addresses, join both. Any transport can be inside.
//! Nothing is added to what is sent: the wires here know interfaces, so whom a message is for among several pairs
//! between the same two interfaces is the user's to say, in its header.

use super::forward::{forward_iface, forward_memory};
use crate::api::{
    AddrBuf, AmHandler, AtomicOp, Caps, Comp, ConnectError, Ep, EpTag, Error, Events, Iface, IfaceAttr,
    ImmHandler, Iov, Outcome, Pending, PendingQueued, RemoteIov, Sent, Sink, Word,
};
use std::cell::{Cell, OnceCell};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

/// Length of an endpoint address, bytes: its number, little endian.
const EP_ADDR_LEN: usize = size_of::<u32>();

/// An interface that connects endpoints to endpoints ([`Caps::CONNECT_TO_EP`]), and to interfaces as before.
pub struct Paired<I> {
    shared: Rc<Shared<I>>,
}

struct Shared<I> {
    inner: I,
    attr: IfaceAttr,
    next: Cell<u32>,
}

/// An endpoint of it. Until it is joined every operation but [`Ep::flush`] and [`Ep::fence`], which have nothing to
/// wait for, answers [`Error::NotConnected`].
pub struct PairedEp<I: Iface> {
    inner: OnceCell<I::Ep>,
    shared: Rc<Shared<I>>,
    number: u32,
    peer: Cell<Option<u32>>,
    /// The tag set before there was an endpoint to carry it.
    tag: Cell<EpTag>,
}

impl<I: Iface> Paired<I> {
    /// Adds endpoint-to-endpoint connections to `inner`.
    pub fn new(inner: I) -> Self {
        let mut attr = inner.attr().clone();
        attr.caps |= Caps::CONNECT_TO_EP;
        attr.ep_addr_len = EP_ADDR_LEN;
        Paired { shared: Rc::new(Shared { inner, attr, next: Cell::new(0) }) }
    }

    /// The interface inside.
    pub fn inner(&self) -> &I {
        &self.shared.inner
    }

    /// The same, which is always there.
    #[inline(always)]
    fn inside(&self) -> Result<&I, Error> {
        Ok(self.inner())
    }

    fn ep(&self, inner: OnceCell<I::Ep>) -> PairedEp<I> {
        let number = self.shared.next.get();
        self.shared.next.set(number.wrapping_add(1));
        PairedEp { inner, shared: self.shared.clone(), number, peer: Cell::new(None), tag: Cell::default() }
    }
}

impl<I: Iface> PairedEp<I> {
    /// Its number among the endpoints of its interface: what [`Ep::ep_addr`] carries.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The number of the endpoint it is joined to. `None`: not joined, or connected to an interface.
    pub fn peer(&self) -> Option<u32> {
        self.peer.get()
    }

    // HOT
    #[inline(always)]
    fn joined(&self) -> Result<&I::Ep, Error> {
        self.inner.get().ok_or(Error::NotConnected)
    }
}

impl<I: Iface> Iface for Paired<I> {
    type Md = I::Md;
    type Ep = PairedEp<I>;

    fn attr(&self) -> &IfaceAttr {
        &self.shared.attr
    }

    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Self::Ep, ConnectError> {
        self.inner().connect(device, iface).map(|ep| self.ep(OnceCell::from(ep)))
    }

    fn create_ep(&self) -> Result<Self::Ep, Error> {
        Ok(self.ep(OnceCell::new()))
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.inner().set_am_handler(id, handler);
    }

    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(EpTag, Error)>>) {
        self.inner().set_error_handler(handler);
    }

    fn set_imm_handler(&self, handler: Option<ImmHandler>) {
        self.inner().set_imm_handler(handler);
    }

    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner().poll(max, sink)
    }

    fn progress(&self, max: usize) -> usize {
        self.inner().progress(max)
    }

    forward_iface!(inner, inside);
}

impl<I: Iface> Ep for PairedEp<I> {
    type Mem = <I::Ep as Ep>::Mem;
    type Rkey = <I::Ep as Ep>::Rkey;

    fn tag(&self) -> EpTag {
        self.inner.get().map_or(self.tag.get(), Ep::tag)
    }

    fn set_tag(&self, tag: EpTag) {
        match self.inner.get() {
            Some(ep) => ep.set_tag(tag),
            None => self.tag.set(tag),
        }
    }

    fn ep_addr(&self) -> Result<AddrBuf, Error> {
        Ok(self.number.to_le_bytes().into_iter().collect())
    }

    /// [`ConnectError::Malformed`]: one of the addresses is none. [`Error::InvalidParam`]: it is connected already.
    /// Refused, it is as it was, and may be joined to another.
    fn connect_to_ep(&self, device: &[u8], iface: &[u8], ep: &[u8]) -> Result<(), ConnectError> {
        let peer = ep.try_into().map(u32::from_le_bytes).map_err(|_| ConnectError::Malformed)?;
        if self.inner.get().is_some() {
            return Err(Error::InvalidParam("endpoint is connected already").into());
        }
        let joined = self.shared.inner.connect(device, iface)?;
        joined.set_tag(self.tag.get());
        self.peer.set(Some(peer));
        // Nothing ran between the look and here that could have joined it.
        let _ = self.inner.set(joined);
        Ok(())
    }

    fn max_bcopy(&self) -> usize {
        self.inner.get().map_or(self.shared.attr.am.max_bcopy, Ep::max_bcopy)
    }

    // HOT
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        self.joined()?.am_short(id, header, payload)
    }

    // HOT
    #[inline]
    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        self.joined()?.am_short_iov(id, iov)
    }

    // HOT
    #[inline]
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        self.joined()?.am_packet(max, pack)
    }

    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, Self::Mem>], comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.joined()?.am_zcopy(id, header, iov, comp) }
    }

    forward_memory!(joined);

    fn flush(&self, comp: Comp) -> Outcome {
        self.inner.get().map_or(Ok(Sent::Done), |ep| ep.flush(comp))
    }

    fn fence(&self) -> Outcome {
        self.inner.get().map_or(Ok(Sent::Done), Ep::fence)
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        self.joined()?.pending_add(op)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        if let Some(ep) = self.inner.get() {
            ep.pending_purge(each);
        }
    }

    fn ensure_connected(&self) -> Result<(), ConnectError> {
        self.joined()?.ensure_connected()
    }

    fn begin_connecting(&self) -> Result<bool, ConnectError> {
        self.joined()?.begin_connecting()
    }

    fn check(&self, comp: Comp) -> Outcome {
        self.joined()?.check(comp)
    }

    /// Which endpoint of that interface it is joined to, [`PairedEp::peer`] says.
    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        self.inner.get().is_some_and(|ep| ep.is_connected(device, iface))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::loopback;

    #[test]
    fn pairs_know_each_other_and_may_be_many() {
        let open = || Paired::new(loopback::Iface::open(&Default::default()).unwrap());
        let (a, b) = (open(), open());
        let join = |ep: &PairedEp<_>, to: &Paired<_>, peer: &PairedEp<_>| {
            ep.connect_to_ep(&to.device_addr(), &to.iface_addr(), &peer.ep_addr().unwrap())
        };
        for _ in 0..3 {
            let (ab, ba) = (a.create_ep().unwrap(), b.create_ep().unwrap());
            assert_eq!(ab.peer(), None);
            join(&ab, &b, &ba).unwrap();
            join(&ba, &a, &ab).unwrap();
            assert_eq!((ab.peer(), ba.peer()), (Some(ba.number()), Some(ab.number())));
        }
        let single = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
        assert_eq!((single.number(), single.peer()), (3, None));
    }
}
