//! Endpoint-to-endpoint connections over interface-to-interface transports: create endpoints, exchange
//! addresses, connect both.
//!
//! Each active message starts with the number of its endpoint, [`PREFIX`] bytes; unknown numbers are counted
//! and dropped, others shown by [`Paired::receiver`]. Other operations are unchanged.

#![allow(unsafe_code)]

use super::forward::{forward, forward_fact, forward_iface};
use crate::api::{
    AM_SHORT_MIN, AddrBuf, Am, AmHandler, Caps, Comp, ConnectError, DeviceCounters, Ep, EpTag, Error, Iface,
    IfaceAttr, Imm, ImmHandler, Iov, Op, Outcome, Pending, PendingQueued, PollOne, RecvCallback, Sent, Sink,
    SrcAddr, UserRecv,
};
use crate::base::am::{AmTable, TableSink};
use crate::base::check::{fits, total};
use crate::base::iov::checked_len;
use crate::delegate::{ep_connection, ep_rma};
use arrayvec::ArrayVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use ucs::coll::slots::{SlotId, Slots};
use ucs::sync::copy_once;

const EP_ADDR_LEN: usize = size_of::<u32>();

/// Bytes before each active message: the endpoint's number, little endian, or 0 for the interface. The
/// message with its id follows, so the wire's id is the number's first byte.
pub const PREFIX: usize = EP_ADDR_LEN;

const MAX_HDR: usize = 256;

/// An interface that connects endpoints to endpoints ([`Caps::CONNECT_TO_EP`]), and to interfaces as before.
pub struct Paired<I> {
    shared: Rc<Shared<I>>,
}

struct Shared<I> {
    inner: I,
    attr: IfaceAttr,
    /// Longest short message that is one of the interface inside; longer ones are packed.
    inline: usize,
    handlers: AmTable,
    eps: RefCell<Slots<EpTag>>,
    receiver: Cell<Option<EpTag>>,
    strays: Cell<u64>,
}

/// An endpoint. Before it is connected, all but [`Ep::flush`] and [`Ep::fence`] answer
/// [`Error::NotConnected`].
pub struct PairedEp<I: Iface> {
    inner: OnceCell<I::Ep>,
    shared: Rc<Shared<I>>,
    number: SlotId,
    peer: Cell<Option<u32>>,
}

impl<I: Iface> Paired<I> {
    /// Adds endpoint-to-endpoint connections to `inner`.
    pub fn new(inner: I) -> Self {
        let mut attr = inner.attr().clone();
        attr.caps |= Caps::CONNECT_TO_EP;
        attr.ep_addr_len = EP_ADDR_LEN;
        let am = &mut attr.am;
        am.max_bcopy = am.max_bcopy.saturating_sub(PREFIX);
        // Pieces are packed.
        let inline = am.max_short.saturating_sub(PREFIX).min(am.max_bcopy);
        am.max_short = inline.max(AM_SHORT_MIN.min(am.max_bcopy));
        am.max_zcopy = am.max_zcopy.saturating_sub(PREFIX);
        let room_for_prefix = am.max_hdr >= PREFIX;
        am.max_hdr = am.max_hdr.saturating_sub(PREFIX).min(MAX_HDR);
        if am.max_short < AM_SHORT_MIN || !attr.caps.contains(Caps::AM_BCOPY) {
            attr.caps.remove(Caps::AM_SHORT);
            am.max_short = 0;
        }
        if !room_for_prefix {
            attr.caps.remove(Caps::AM_ZCOPY);
            am.max_zcopy = 0;
        }
        let shared = Shared {
            inner,
            attr,
            handlers: AmTable::default(),
            eps: RefCell::default(),
            inline,
            receiver: Cell::new(None),
            strays: Cell::new(0),
        };
        Paired { shared: Rc::new(shared) }
    }

    /// Within a handler or sink: the tag of the receiving endpoint; `None` for the interface itself.
    pub fn receiver(&self) -> Option<EpTag> {
        self.shared.receiver.get()
    }

    /// Messages for endpoints that were not there, which were dropped.
    pub fn strays(&self) -> u64 {
        self.shared.strays.get()
    }

    /// The interface inside.
    pub fn inner(&self) -> &I {
        &self.shared.inner
    }

    #[inline(always)]
    fn inside(&self) -> Result<&I, Error> {
        Ok(self.inner())
    }

    fn ep(&self, inner: OnceCell<I::Ep>) -> Result<PairedEp<I>, Error> {
        let number = self.shared.eps.borrow_mut().insert(EpTag::default());
        let number = number.map_err(|_| Error::Exhausted("endpoint numbers"))?;
        Ok(PairedEp { inner, shared: self.shared.clone(), number, peer: Cell::new(None) })
    }
}

/// The number in front of a packet that has something behind it, read once.
// HOT
#[inline(always)]
fn number(packet: &[u8]) -> Option<u32> {
    let (prefix, _) = packet.split_at_checked(PREFIX).filter(|(_, rest)| !rest.is_empty())?;
    let mut number = [0; PREFIX];
    copy_once(prefix, &mut number);
    Some(u32::from_le_bytes(number))
}

impl<I> Shared<I> {
    /// Notes the receiving endpoint of a packet; counts it and answers false if there is none.
    // HOT
    #[inline]
    fn receives(&self, packet: &[u8]) -> bool {
        let receiver = match number(packet) {
            Some(0) => Some(None),
            Some(number) => self.eps.borrow().get(SlotId::from_raw(number)).map(|tag| Some(*tag)),
            None => None,
        };
        match receiver {
            Some(receiver) => self.receiver.set(receiver),
            None => self.strays.set(self.strays.get() + 1),
        }
        receiver.is_some()
    }
}

struct PrefixSink<'a, I, S> {
    shared: &'a Shared<I>,
    then: &'a mut S,
}

fn strip_prefix(packet: &[u8]) -> &[u8] {
    packet.get(PREFIX..).unwrap_or_default()
}

impl<I, S: Sink> Sink for PrefixSink<'_, I, S> {
    #[inline]
    fn on_am(&mut self, am: Am<'_>) {
        if self.shared.receives(am.packet())
            && let Some(am) = am.skip(PREFIX)
        {
            self.then.on_am(am);
            self.shared.receiver.set(None);
        }
    }

    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        self.then.on_comp(token, result);
    }

    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.then.on_ep_error(ep, error);
    }

    fn on_rnr(&mut self, ep: EpTag, packet: &[u8]) {
        self.then.on_rnr(ep, strip_prefix(packet));
    }

    fn on_user_rnr(&mut self, ep: EpTag, data: &[u8], imm: Option<u32>) {
        self.then.on_user_rnr(ep, data, imm);
    }

    fn on_lost(&mut self, ep: EpTag, error: Error, packet: &[u8]) {
        self.then.on_lost(ep, error, strip_prefix(packet));
    }

    fn on_user_recv(&mut self, token: u64, bare: UserRecv) {
        self.then.on_user_recv(token, bare);
    }

    fn on_imm(&mut self, imm: Imm) {
        self.then.on_imm(imm);
    }
}

impl<I: Iface> PairedEp<I> {
    /// Number of the endpoint, as in [`Ep::ep_addr`].
    pub fn number(&self) -> u32 {
        self.number.raw()
    }

    /// The number of the endpoint it is joined to. `None`: not joined, or connected to an interface.
    pub fn peer(&self) -> Option<u32> {
        self.peer.get()
    }

    #[inline(always)]
    fn prefix(&self, id: u8) -> [u8; PREFIX + 1] {
        let [a, b, c, d] = self.peer.get().unwrap_or(0).to_le_bytes();
        [a, b, c, d, id]
    }

    // HOT
    #[inline(always)]
    fn inside(&self) -> Result<&I::Ep, Error> {
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
        Ok(self.ep(OnceCell::from(self.inner().connect(device, iface)?))?)
    }

    fn create_ep(&self) -> Result<Self::Ep, Error> {
        self.ep(OnceCell::new())
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.shared.handlers.set(id, handler);
    }

    fn device_counters(&self) -> Vec<DeviceCounters> {
        self.inner().device_counters()
    }

    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(EpTag, Error)>>) {
        self.shared.handlers.set_error(handler);
    }

    fn set_imm_handler(&self, handler: Option<ImmHandler>) {
        self.shared.handlers.set_imm(handler);
    }

    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner().poll(max, &mut PrefixSink { shared: &self.shared, then: sink })
    }

    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        let shared = &*self.shared;
        self.inner().poll_one(|packet: &[u8], from: SrcAddr| {
            let taken = !shared.receives(packet) || callback.on_packet(strip_prefix(packet), from);
            shared.receiver.set(None);
            taken
        })
    }

    fn progress(&self, max: usize) -> usize {
        if self.shared.handlers.is_running() {
            return 0;
        }
        self.poll(max, &mut TableSink(&self.shared.handlers))
    }

    forward_iface!();
}

impl<I: Iface> Ep for PairedEp<I> {
    type Mem = <I::Ep as Ep>::Mem;
    type Rkey = <I::Ep as Ep>::Rkey;

    fn tag(&self) -> EpTag {
        self.shared.eps.borrow().get(self.number).copied().unwrap_or_default()
    }

    fn set_tag(&self, tag: EpTag) {
        if let Some(own) = self.shared.eps.borrow_mut().get_mut(self.number) {
            *own = tag;
        }
        if let Some(ep) = self.inner.get() {
            ep.set_tag(tag);
        }
    }

    fn ep_addr(&self) -> Result<AddrBuf, Error> {
        Ok(self.number().to_le_bytes().into_iter().collect())
    }

    /// [`ConnectError::Malformed`]: a bad address. [`Error::InvalidParam`]: connected already. A refused
    /// endpoint stays usable. Whether the remote endpoint exists is not checked here.
    fn connect_to_ep(&self, device: &[u8], iface: &[u8], ep: &[u8]) -> Result<(), ConnectError> {
        let peer = ep.try_into().map(u32::from_le_bytes).map_err(|_| ConnectError::Malformed)?;
        if SlotId::from_raw(peer) == SlotId::NONE {
            return Err(ConnectError::Malformed);
        }
        if self.inner.get().is_some() {
            return Err(Error::InvalidParam("endpoint is connected already").into());
        }
        let joined = self.shared.inner.connect(device, iface)?;
        joined.set_tag(self.tag());
        self.peer.set(Some(peer));
        // Nothing ran between the look and here that could have joined it.
        let _ = self.inner.set(joined);
        Ok(())
    }

    fn max_bcopy(&self) -> usize {
        self.inner.get().map_or(self.shared.attr.am.max_bcopy, |ep| ep.max_bcopy().saturating_sub(PREFIX))
    }

    // HOT
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        let ep = self.inside()?;
        let attr = &self.shared.attr;
        if !attr.has(Caps::AM_SHORT) {
            return Err(Error::Unsupported(Op::AmShort).into());
        }
        if size_of::<u64>() + payload.len() > self.shared.inline {
            return self.am_short_iov(id, &[&header.to_le_bytes(), payload]);
        }
        let [first, prefix @ ..] = self.prefix(id);
        ep.am_short_iov(first, &[&prefix, &header.to_le_bytes(), payload])
    }

    /// Packed, as a list of any length cannot be made longer.
    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        let ep = self.inside()?;
        let attr = &self.shared.attr;
        if !attr.has(Caps::AM_SHORT) {
            return Err(Error::Unsupported(Op::AmShortIov).into());
        }
        let len = total(iov);
        fits(len, attr.am.max_short)?;
        let (prefix, all) = (self.prefix(id), PREFIX + 1 + len);
        let pack = |slot: &mut [u8]| {
            let (head, mut rest) = slot[..all].split_at_mut(PREFIX + 1);
            head.copy_from_slice(&prefix);
            for piece in iov {
                let (here, behind) = rest.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                rest = behind;
            }
            all
        };
        ep.am_packet(all, pack)?;
        Ok(Sent::Done)
    }

    // HOT
    #[inline]
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        let ep = self.inside()?;
        let [prefix @ .., _] = self.prefix(0);
        // So that errors are in the caller's terms.
        fits(max, 1 + self.max_bcopy())?;
        let sent = ep.am_packet(PREFIX + max, |slot| {
            slot[..PREFIX].copy_from_slice(&prefix);
            match pack(&mut slot[PREFIX..]) {
                // A packet without an id is refused, as it would be without a prefix.
                0 => 0,
                len => len.saturating_add(PREFIX),
            }
        })?;
        Ok(sent - PREFIX)
    }

    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, Self::Mem>], comp: Comp) -> Outcome {
        let ep = self.inside()?;
        let attr = &self.shared.attr;
        if !attr.has(Caps::AM_ZCOPY) {
            return Err(Error::Unsupported(Op::AmZcopy).into());
        }
        fits(header.len(), attr.am.max_hdr)?;
        checked_len(iov, attr.am.max_iov, attr.am.max_zcopy.saturating_sub(header.len()))?;
        let [first, prefix @ ..] = self.prefix(id);
        let mut all = ArrayVec::<u8, { PREFIX + MAX_HDR }>::from_iter(prefix);
        all.extend(header.iter().copied());
        // SAFETY: the caller's promise is the same.
        unsafe { ep.am_zcopy(first, &all, iov, comp) }
    }

    ep_rma!(forward, Self::Mem, Self::Rkey, Comp);
    ep_connection!(forward, Comp);

    fn flush(&self, comp: Comp) -> Outcome {
        self.inner.get().map_or(Ok(Sent::Done), |ep| ep.flush(comp))
    }

    fn fence(&self) -> Outcome {
        self.inner.get().map_or(Ok(Sent::Done), Ep::fence)
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        self.inside()?.pending_add(op)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        if let Some(ep) = self.inner.get() {
            ep.pending_purge(each);
        }
    }

    /// Which endpoint of that interface it is joined to, [`PairedEp::peer`] says.
    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        self.inner.get().is_some_and(|ep| ep.is_connected(device, iface))
    }

    fn peer_process(&self) -> Option<u64> {
        self.inner.get()?.peer_process()
    }

    fn published(&self) -> Option<u64> {
        self.inner.get()?.published()
    }
}

impl<I: Iface> Drop for PairedEp<I> {
    fn drop(&mut self) {
        self.shared.eps.borrow_mut().remove(self.number);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
