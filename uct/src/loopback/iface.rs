//! The interface of `self`: a bounded queue of filled slots.
//! Endpoints push into it, the owner's poll pops. Never delivers from within a send, never grows.

use super::{DEV, Ep, Md, TL};
use crate::api::{
    self, AddrBuf, Am, AmHandler, AmLimits, Caps, Comp, ConnectError, DevKind, Error, Events, IfaceAttr,
    Keep, Kept, KeptPool, Latency, OpenError, OrderKind, Outcome, RmaLimits, Sent, Sink, Source,
};
use crate::base::am::{AmTable, ErrorHandler, TableSink};
use crate::base::direct;
use crate::base::pending::{Arbiter, Room};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use ucs::coll::ring::Ring;
use ucs::mem::pool::{BufId, Pool, PoolShape};
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

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

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
    slots: Rc<Slots>,
    pub(super) handlers: AmTable,
    pub(super) pending: Arbiter,
    wake: Wake,
}

struct Arrived {
    slot: BufId,
    len: u32,
    from: u64,
}

/// Receive slots; outlives the interface while messages are kept.
struct Slots {
    pool: RefCell<Pool>,
    kept: Cell<usize>,
    most_kept: usize,
}

#[derive(Default)]
struct Wake {
    event: OnceCell<EventFd>,
    armed: Cell<bool>,
}

impl Iface {
    /// Opens an interface of the calling thread.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        // Twice as many slots as the queue holds: half of them may be kept before a keep has to copy.
        let shape = PoolShape::new(config.seg_size, 2 * config.fifo_size as u32);
        let pool = Pool::new(shape).map_err(|e| OpenError::Environment(format!("{TL}: {e}")))?;
        let inner = Rc::new(Inner {
            id,
            attr: attr(config.seg_size - 1, config.fifo_size),
            md: Md::new(),
            queue: RefCell::new(Ring::new(config.fifo_size)),
            slots: Rc::new(Slots {
                pool: RefCell::new(pool),
                kept: Cell::new(0),
                most_kept: config.fifo_size,
            }),
            handlers: AmTable::default(),
            pending: Arbiter::default(),
            wake: Wake::default(),
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
    let rma = RmaLimits {
        max_short: usize::MAX,
        max_bcopy: usize::MAX,
        min_zcopy: 0,
        max_zcopy: usize::MAX,
        max_iov: direct::MAX_IOV,
    };
    IfaceAttr {
        tl: TL,
        dev: DEV.into(),
        kind: DevKind::Loopback,
        caps: Caps::all() - Caps::CONNECT_TO_EP - Caps::EVENT_SEND - Caps::PEER_FAILURE,
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
        let Some(slot) = self.slots.pool.borrow_mut().alloc() else { return Err(api::Refused::NoResource) };
        let mut filled = Filled { slots: &self.slots, slot: Some(slot) };
        // SAFETY: the slot was just taken and is in nobody else's hands until it is queued or dropped below.
        let len = fill(unsafe { self.slots.bytes_mut(slot) });
        assert!((1..=self.attr.am.max_bcopy + 1).contains(&len), "pack wrote more than it was given");
        // The closure may have sent too: ask again.
        let arrived = Arrived { slot, len: len as u32, from };
        if self.queue.borrow_mut().push(arrived).is_err() {
            return Err(api::Refused::NoResource);
        }
        filled.slot = None;
        if self.wake.armed.replace(false) {
            self.signal();
        }
        Ok(len)
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
            let delivery = Delivery { slots: &self.slots, slot: arrived.slot, kept: Cell::new(false) };
            let packet = self.slots.bytes(arrived.slot.raw(), arrived.len);
            sink.on_am(Am::new(packet, Source { node: arrived.from, port: 0 }, &delivery));
            events += 1;
        }
        if self.pending.waiting() > 0 && events < max {
            events += self.pending.dispatch(max - events, Room::PerEp);
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
    slot: Option<BufId>,
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.slots.pool.borrow_mut().free(slot);
        }
    }
}

/// A message in its handler: gives the slot back at the end, unless it was kept.
struct Delivery<'a> {
    slots: &'a Rc<Slots>,
    slot: BufId,
    kept: Cell<bool>,
}

impl Keep for Delivery<'_> {
    fn keep(&self, packet: &[u8]) -> Kept {
        let kept = self.slots.kept.get();
        if kept >= self.slots.most_kept {
            return Kept::copied(packet);
        }
        self.slots.kept.set(kept + 1);
        self.kept.set(true);
        Kept::pooled(self.slots.clone(), self.slot.raw(), packet.len() as u32)
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        if !self.kept.get() {
            self.slots.pool.borrow_mut().free(self.slot);
        }
    }
}

impl Slots {
    /// # Safety
    /// The slot must be taken, and no other reference to its bytes may exist.
    #[allow(clippy::mut_from_ref, reason = "the slots are disjoint, and each has one holder")]
    unsafe fn bytes_mut(&self, slot: BufId) -> &mut [u8] {
        let (at, len) = {
            let pool = self.pool.borrow();
            (pool.ptr(slot), pool.slot_len())
        };
        // SAFETY: a slot is valid and initialised for `slot_len` bytes while the pool lives; the caller is alone.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }
}

impl KeptPool for Slots {
    fn bytes(&self, slot: u32, len: u32) -> &[u8] {
        let at = self.pool.borrow().ptr(BufId::from_raw(slot));
        // SAFETY: `len` bytes of the slot were filled by a send; a slot that is queued, delivered or kept is not
        // written until it is freed.
        unsafe { std::slice::from_raw_parts(at, len as usize) }
    }

    fn release(&self, slot: u32) {
        self.kept.set(self.kept.get() - 1);
        self.pool.borrow_mut().free(BufId::from_raw(slot));
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

    fn set_error_handler(&self, handler: Option<ErrorHandler>) {
        self.inner.handlers.set_error(handler);
    }

    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner.poll(max, sink)
    }

    fn progress(&self, max: usize) -> usize {
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

    fn arm(&self, _events: Events) -> Result<bool, Error> {
        let wake = &self.inner.wake;
        wake.event()?.clear().map_err(|errno| Error::Sys { call: "read", errno })?;
        let idle = self.inner.queue.borrow().is_empty() && self.inner.pending.waiting() == 0;
        wake.armed.set(idle);
        Ok(idle)
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
