//! The interface of `self`: a bounded queue of filled slots.
//! Endpoints push into it, the owner's poll pops. Never delivers from within a send, never grows.

use super::{DEV, Ep, Md, TL};
use crate::api::{
    self, AddrBuf, Am, AmHandler, AmLimits, Armed, Caps, Comp, ConnectError, DevKind, Error, Events,
    IfaceAttr, Imm, ImmHandler, Keep, Kept, Latency, Linear, OpenError, OrderKind, Outcome, RmaPerf, Sent,
    Sink, Source,
};
use crate::base::am::{AmTable, ErrorHandler, TableSink};
use crate::base::direct;
use crate::base::lent::Lent;
use crate::base::nap::Nap;
use crate::base::pending::{Arbiter, Room};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use ucs::coll::ring::Ring;
use ucs::mem::page::CACHE_LINE;
use ucs::mem::pool::FreeList;
use ucs::mem::{Fill, MapOpts, Mapping, MemError};
use ucs::sys::fd::EventFd;

ucs::config_table! {
    /// Transport `self`: messages within one thread.
    pub struct Config, prefix "UCX_SELF_" {
        /// Messages that may be queued before a send finds no resource.
        pub fifo_size: usize = "256", key "FIFO_SIZE", unit "messages", range 1..=65536;
        /// Longest message, id byte included.
        pub seg_size: usize = "8448", key "SEG_SIZE", unit "bytes", range 64..=1048576;
    }
}

thread_local! {
    /// Live interfaces of this thread by id: what an address can be connected to.
    static IFACES: RefCell<HashMap<u64, Weak<Inner>>> = RefCell::default();
}

/// An interface of `self`. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Iface {
    pub(super) inner: Rc<Inner>,
}

pub(super) struct Inner {
    pub(super) id: u64,
    pub(super) attr: IfaceAttr,
    md: Md,
    queue: RefCell<Ring<Arrived>>,
    slots: Slots,
    pub(super) handlers: AmTable,
    pub(super) pending: Arbiter,
    wake: Wake,
    nap: Nap,
}

enum Arrived {
    Message { slot: u32, len: u32, from: u64 },
    Imm(Imm),
}

/// Receive slots.
struct Slots {
    /// As many as the queue holds, and as many again that may be kept.
    memory: Arc<Mapping>,
    slot_len: usize,
    free: RefCell<FreeList>,
    kept: Cell<u32>,
    most_kept: u32,
    lent: Arc<Lent>,
}

#[derive(Default)]
struct Wake {
    event: OnceCell<EventFd>,
    armed: Cell<bool>,
}

impl Iface {
    /// Opens an interface of the calling thread.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let id = super::new_number();
        let slots = Slots::new(config.seg_size, config.fifo_size as u32)
            .map_err(|e| OpenError::Environment(format!("{TL}: {e}")))?;
        let inner = Rc::new(Inner {
            id,
            attr: attr(config.seg_size - 1, config.fifo_size),
            md: Md::new(),
            queue: RefCell::new(Ring::new(config.fifo_size)),
            slots,
            handlers: AmTable::default(),
            pending: Arbiter::default(),
            wake: Wake::default(),
            nap: Nap::default(),
        });
        IFACES.with_borrow_mut(|all| all.insert(id, Rc::downgrade(&inner)));
        Ok(Iface { inner })
    }

    /// Messages dropped for want of a handler.
    pub fn dropped(&self) -> u64 {
        self.inner.handlers.dropped()
    }
}

fn attr(max_am: usize, depth: usize) -> IfaceAttr {
    let rma = direct::limits();
    IfaceAttr {
        tl: TL,
        dev: DEV.into(),
        kind: DevKind::Loopback,
        caps: Caps::all()
            - Caps::CONNECT_TO_EP
            - Caps::EVENT_SEND
            - Caps::PEER_FAILURE
            - Caps::WORD_KEY
            - Caps::AM_BARE
            - Caps::RECV_BARE,
        am: AmLimits {
            max_short: max_am,
            max_bcopy: max_am,
            max_zcopy: max_am,
            max_hdr: max_am,
            max_iov: direct::MAX_IOV,
        },
        put: rma,
        get: rma,
        atomics: direct::atomics(),
        order: OrderKind::Ordered,
        am_id_bits: 8,
        device_addr_len: 0,
        iface_addr_len: 8,
        ep_addr_len: 0,
        tx_depth: Some(depth),
        latency: Latency { fixed: 10.0, per_ep: 0.0 },
        overhead: 10.0,
        bandwidth: 10e9,
        reg_cost: (50.0, 0.0),
        rma: RmaPerf::all(Linear::new(10.0, 10e9), Linear::new(10.0, 10e9)),
    }
}

impl Inner {
    fn lookup(iface: &[u8]) -> Result<Rc<Inner>, ConnectError> {
        let id = u64::from_le_bytes(iface.try_into().map_err(|_| ConnectError::Malformed)?);
        IFACES.with_borrow(|all| all.get(&id).and_then(Weak::upgrade)).ok_or(ConnectError::Gone)
    }

    /// Whether [`Inner::push`] would find a place now.
    pub(super) fn has_room(&self) -> bool {
        !self.queue.borrow().is_full()
    }

    /// Takes a message in: `fill` gets a slot and answers the packet's length, at least 1. // HOT
    #[inline]
    pub(super) fn push(&self, from: u64, fill: impl FnOnce(&mut [u8]) -> usize) -> Outcome<usize> {
        if self.queue.borrow().is_full() {
            return Err(api::Refused::NoResource);
        }
        let Some(slot) = self.slots.free.borrow_mut().take() else { return Err(api::Refused::NoResource) };
        let mut filled = Filled { slots: &self.slots, slot: Some(slot) };
        // SAFETY: the slot was just taken and is in nobody else's hands until it is queued or dropped below.
        let len = fill(unsafe { self.slots.bytes_mut(slot) });
        assert!((1..=self.attr.am.max_bcopy + 1).contains(&len), "pack wrote more than it was given");
        // The closure may have sent too: ask again.
        let arrived = Arrived::Message { slot, len: len as u32, from };
        if self.queue.borrow_mut().push(arrived).is_err() {
            return Err(api::Refused::NoResource);
        }
        filled.slot = None;
        self.wake();
        Ok(len)
    }

    /// Takes a word in that came along with a write.
    pub(super) fn push_imm(&self, imm: Imm) -> Outcome<()> {
        self.queue.borrow_mut().push(Arrived::Imm(imm)).map_err(|_| api::Refused::NoResource)?;
        self.wake();
        Ok(())
    }

    /// This interface as a sender.
    pub(super) fn source(&self) -> Source {
        Source { node: self.id, port: 0 }
    }

    /// Something is in the queue: whoever sleeps on it wakes. // HOT
    #[inline]
    fn wake(&self) {
        if self.wake.armed.replace(false) {
            self.signal();
        }
    }

    #[cold]
    fn signal(&self) {
        if let Some(Err(e)) = self.wake.event.get().map(EventFd::signal) {
            tracing::warn!("{TL}: cannot signal the event descriptor: {e}");
        }
    }

    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        let mut events = 0;
        while events < max {
            let Some(arrived) = self.queue.borrow_mut().pop() else { break };
            match arrived {
                Arrived::Message { slot, len, from } => {
                    let delivery = Delivery { slots: &self.slots, slot, kept: Cell::new(false) };
                    let packet = self.slots.bytes(slot, len as usize);
                    sink.on_am(Am::new(packet, Source { node: from, port: 0 }, &delivery));
                }
                Arrived::Imm(imm) => sink.on_imm(imm),
            }
            events += 1;
        }
        if self.pending.waiting() > 0 && events < max {
            let done = self.pending.dispatch(max - events, Room::PerEp);
            if done > 0 {
                self.nap.reset();
            }
            events += done;
        }
        events
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = IFACES.try_with(|all| all.borrow_mut().remove(&self.id));
    }
}

/// A slot being filled; given back if the closure panics or the message is refused.
struct Filled<'a> {
    slots: &'a Slots,
    slot: Option<u32>,
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.slots.free.borrow_mut().give(slot);
        }
    }
}

/// A message in its handler: gives the slot back at the end, unless it was kept.
struct Delivery<'a> {
    slots: &'a Slots,
    slot: u32,
    kept: Cell<bool>,
}

impl Keep for Delivery<'_> {
    fn keep(&self, packet: &[u8]) -> Kept {
        let slots = self.slots;
        if slots.kept.get() == slots.most_kept {
            slots.reclaim();
        }
        if slots.kept.get() == slots.most_kept || self.kept.replace(true) {
            return Kept::copied(packet);
        }
        slots.kept.set(slots.kept.get() + 1);
        // SAFETY: the packet lies in the slot, which is not written again before it is taken back by `reclaim`.
        unsafe { slots.lent.lend(self.slot, packet.as_ptr(), packet.len()) }
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        if !self.kept.get() {
            self.slots.free.borrow_mut().give(self.slot);
        }
    }
}

impl Slots {
    fn new(seg_size: usize, depth: u32) -> Result<Self, MemError> {
        let slot_len = seg_size.next_multiple_of(CACHE_LINE);
        let count = 2 * depth;
        let memory = Arc::new(Mapping::new(
            slot_len * count as usize,
            MapOpts { fill: Fill::Lazy, ..MapOpts::default() },
        )?);
        Ok(Slots {
            lent: Lent::new(count, memory.clone()),
            memory,
            slot_len,
            free: RefCell::new(FreeList::new(count)),
            kept: Cell::new(0),
            most_kept: depth,
        })
    }

    /// First byte of a slot. // HOT
    #[inline(always)]
    fn at(&self, slot: u32) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(slot as usize * self.slot_len)
    }

    /// # Safety
    /// The slot must be taken, and no other reference to its bytes may exist.
    #[allow(clippy::mut_from_ref, reason = "the slots are disjoint, and each has one holder")]
    unsafe fn bytes_mut(&self, slot: u32) -> &mut [u8] {
        // SAFETY: every number of the free list is a slot of the mapping, which starts zeroed; the caller is alone.
        unsafe { std::slice::from_raw_parts_mut(self.at(slot), self.slot_len) }
    }

    /// The first bytes of a slot that is queued or being delivered. // HOT
    fn bytes(&self, slot: u32, len: usize) -> &[u8] {
        assert!(len <= self.slot_len);
        // SAFETY: as in `bytes_mut`; a slot that is queued, delivered or kept is not written until it is freed.
        unsafe { std::slice::from_raw_parts(self.at(slot), len) }
    }

    /// Takes back what keepers have dropped.
    #[cold]
    fn reclaim(&self) {
        let back = self.lent.reclaim(|slot| self.free.borrow_mut().give(slot));
        self.kept.set(self.kept.get() - back);
    }
}

impl api::Iface for Iface {
    type Md = Md;
    type Ep = Ep;

    fn attr(&self) -> &IfaceAttr {
        &self.inner.attr
    }

    fn md(&self) -> &Md {
        &self.inner.md
    }

    fn device_addr(&self) -> AddrBuf {
        AddrBuf::new()
    }

    fn iface_addr(&self) -> AddrBuf {
        self.inner.id.to_le_bytes().into_iter().collect()
    }

    fn reachable(&self, _device: &[u8], iface: &[u8]) -> Result<(), ConnectError> {
        Inner::lookup(iface).map(drop)
    }

    fn connect(&self, _device: &[u8], iface: &[u8]) -> Result<Ep, ConnectError> {
        Ok(Ep::new(self.inner.clone(), Inner::lookup(iface)?))
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.inner.handlers.set(id, handler);
    }

    fn set_imm_handler(&self, handler: Option<ImmHandler>) {
        self.inner.handlers.set_imm(handler);
    }

    fn set_error_handler(&self, handler: Option<ErrorHandler>) {
        self.inner.handlers.set_error(handler);
    }

    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner.poll(max, sink)
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        self.inner.queue.borrow().is_empty() && self.inner.pending.waiting() == 0
    }

    fn progress(&self, max: usize) -> usize {
        if self.inner.handlers.is_running() {
            return 0;
        }
        self.inner.poll(max, &mut TableSink(&self.inner.handlers))
    }

    fn flush(&self, _comp: Comp) -> Outcome {
        Ok(Sent::Done)
    }

    fn fence(&self) -> Outcome {
        Ok(Sent::Done)
    }

    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.inner.wake.event()?.as_fd())
    }

    fn arm(&self, events: Events) -> Result<bool, Error> {
        Ok(self.arm_for(events)? == Armed::Asleep)
    }

    /// Room is made by this thread, when it polls another interface: who sleeps on this one alone looks for it now and then.
    fn arm_for(&self, _events: Events) -> Result<Armed, Error> {
        let (wake, waits) = (&self.inner.wake, self.inner.pending.waiting() > 0);
        wake.event()?.clear().map_err(|errno| Error::Sys { call: "read", errno })?;
        let idle = self.inner.queue.borrow().is_empty();
        wake.armed.set(idle);
        Ok(match (idle, waits) {
            (false, _) => Armed::Busy,
            (true, true) => Armed::Nap(self.inner.nap.take()),
            (true, false) => {
                self.inner.nap.reset();
                Armed::Asleep
            }
        })
    }
}

impl Wake {
    fn event(&self) -> Result<&EventFd, Error> {
        if self.event.get().is_none() {
            let fd = EventFd::new().map_err(|errno| Error::Sys { call: "eventfd", errno })?;
            let _ = self.event.set(fd);
        }
        self.event.get().ok_or(Error::NoMemory)
    }
}
