//! The interface of `self`: a bounded queue of filled slots, pushed by endpoints, popped by the owner's poll.

use super::queue::{Arrived, Queue};
use super::slots::{Slots, TxSlot};
use super::{DEV, Ep, Md, TL};
use crate::api::{
    self, AddrBuf, Am, AmHandler, AmLimits, ArmStatus, Caps, Comp, ConnectError, DevKind, Error, Events,
    IfaceAttr, Imm, ImmHandler, Keep, Latency, Linear, OpenError, OrderKind, Outcome, PollOne, RecvCallback,
    ResourcePerf, RmaPerf, Sent, Sink, SrcAddr,
};
use crate::base::am::{AmTable, ErrorHandler, TableSink};
use crate::base::pending::{Arbiter, TxRoom};
use crate::base::reentry::ReentryGuard;
use crate::base::retry_sleep::RetrySleep;
use crate::base::thread_bound::ThreadBound;
use crate::base::{check, direct};
use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::{Rc, Weak};
use std::sync::{Mutex, MutexGuard, PoisonError};
use ucs::sys::fd::EventFd;

/// CPU time for a message, ns.
const OVERHEAD: f64 = 10.0;

/// Estimates for a present-day machine.
pub(crate) const PERF: ResourcePerf = ResourcePerf::new(10.0, OVERHEAD, 50e9);

ucs::config_table! {
    /// Transport `self`: messages between interfaces of one thread, memory of the process.
    pub struct Config, prefix "UCX_SELF_" {
        /// Messages that may be queued before a send finds no resource.
        pub fifo_size: usize = "256", key "FIFO_SIZE", unit "messages", range 1..=65536;
        /// Bytes that may be queued before a send finds no resource; a longer message may still be the only
        /// one. What is queued, and what it is packed from, is best still in the first cache when it is
        /// delivered. A worker of ucp, which has to queue what finds no room, takes 128k unless this is set.
        pub fifo_bytes: usize = "24k", key "FIFO_BYTES", unit "bytes", range 1..=1073741824;
        /// Longest message, id byte included.
        pub seg_size: usize = "8448", key "SEG_SIZE", unit "bytes", range 64..=1048576;
    }
}

/// Live interfaces of the process by id, and what reaches each.
static IFACES: Mutex<BTreeMap<u64, Reach>> = Mutex::new(BTreeMap::new());

fn ifaces() -> MutexGuard<'static, BTreeMap<u64, Reach>> {
    IFACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which interfaces reach an interface.
enum Reach {
    /// Those of its thread.
    Thread(ThreadBound<Weak<Inner>>),
    /// It alone.
    Itself,
}

/// An interface of `self`. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Iface {
    pub(super) inner: Handle,
}

/// Keeps an interface open: its own handles and endpoints. Others' endpoints keep its memory only.
pub(super) struct Handle(Rc<Inner>);

impl Handle {
    fn new(inner: Rc<Inner>) -> Self {
        inner.handles.set(inner.handles.get() + 1);
        Handle(inner)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Handle::new(self.0.clone())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.handles.set(self.handles.get() - 1);
        if self.handles.get() == 0 {
            // In a forked child another thread of the parent may hold the lock for ever.
            if self.pid == std::process::id() {
                drop(ifaces().remove(&self.id));
            }
            self.queue.close();
        }
    }
}

impl Deref for Handle {
    type Target = Inner;

    #[inline(always)]
    fn deref(&self) -> &Inner {
        &self.0
    }
}

pub(super) struct Inner {
    pub(super) id: u64,
    pid: u32,
    is_private: bool,
    pub(super) attr: IfaceAttr,
    md: Md,
    queue: Queue,
    slots: Slots,
    /// A message is being delivered; no other is meanwhile.
    in_handler: Cell<bool>,
    deliver_on_send: Cell<bool>,
    pub(super) handlers: AmTable,
    pub(super) pending: Arbiter,
    wake: Wake,
    retry_sleep: RetrySleep,
    handles: Cell<usize>,
}

#[derive(Default)]
struct Wake {
    event: OnceCell<EventFd>,
    armed: Cell<bool>,
}

impl Iface {
    /// Opens an interface of the calling thread with a memory domain of its own.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        Self::open_on(&Md::open(), config)
    }

    /// Opens an interface of the calling thread on a memory domain that other interfaces may share.
    pub fn open_on(md: &Md, config: &Config) -> Result<Self, OpenError> {
        Self::open_with(md, config, false)
    }

    /// Opens an interface that sends messages to itself only, and to which no other sends any. It shares
    /// nothing that a lock around it and what is made from it does not cover.
    pub fn open_private_on(md: &Md, config: &Config) -> Result<Self, OpenError> {
        Self::open_with(md, config, true)
    }

    fn open_with(md: &Md, config: &Config, is_private: bool) -> Result<Self, OpenError> {
        let id = super::new_id();
        let slots =
            Slots::new(config.seg_size, config.fifo_size as u32).map_err(|e| OpenError::memory(TL, &e))?;
        let inner = Rc::new(Inner {
            id,
            pid: std::process::id(),
            is_private,
            attr: attr(config.seg_size - 1, config.fifo_size),
            md: md.clone(),
            queue: Queue::new(config.fifo_size, config.fifo_bytes),
            slots,
            in_handler: Cell::default(),
            deliver_on_send: Cell::default(),
            handlers: AmTable::default(),
            pending: Arbiter::default(),
            wake: Wake::default(),
            retry_sleep: RetrySleep::default(),
            handles: Cell::default(),
        });
        let reach = match is_private {
            true => Reach::Itself,
            false => Reach::Thread(ThreadBound::new(Rc::downgrade(&inner))),
        };
        ifaces().insert(id, reach);
        Ok(Iface { inner: Handle::new(inner) })
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
            - Caps::SEND_TO_USER_QP
            - Caps::USER_RECV,
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
        latency: Latency { fixed: PERF.latency, per_ep: 0.0 },
        overhead: OVERHEAD,
        bandwidth: PERF.bandwidth,
        reg_cost: (50.0, 0.0),
        rma: RmaPerf::all(Linear::new(10.0, 50e9), Linear::new(10.0, 50e9)),
    }
}

impl Handle {
    /// The interface of an address, if messages from here may go there.
    fn lookup(&self, iface: &[u8]) -> Result<Rc<Inner>, ConnectError> {
        let id = u64::from_le_bytes(iface.try_into().map_err(|_| ConnectError::Malformed)?);
        if id == self.id {
            return Ok(self.0.clone());
        }
        match ifaces().get(&id) {
            Some(Reach::Thread(iface)) if !self.is_private => {
                let iface = iface.here().ok_or(ConnectError::OtherThread)?;
                iface.upgrade().ok_or(ConnectError::Gone)
            }
            Some(_) => Err(ConnectError::OtherThread),
            None => Err(ConnectError::Gone),
        }
    }
}

impl Inner {
    pub(super) fn has_room(&self) -> bool {
        self.queue.has_room()
    }

    /// Takes a message in: `fill` gets a slot, writes `len` bytes, at least 1, and does nothing else.
    // HOT
    #[inline(always)]
    pub(super) fn push(&self, from: u64, len: usize, fill: impl FnOnce(&mut [u8])) -> Outcome<()> {
        if !self.queue.has_room() {
            return Err(self.refuse());
        }
        let mut slot = self.slots.take().ok_or(api::Refused::NoResource)?;
        fill(&mut slot.bytes()[..len]);
        self.enqueue(slot, len, from)
    }

    /// Queues what `pack` writes into `max` bytes.
    // HOT
    #[inline(always)]
    pub(super) fn push_packed(
        &self,
        from: u64,
        max: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Outcome<usize> {
        if !self.queue.has_room() {
            return Err(self.refuse());
        }
        let mut slot = self.slots.take().ok_or(api::Refused::NoResource)?;
        let reserved = self.queue.reserve();
        let len = pack(&mut slot.bytes()[..max]);
        drop(reserved);
        let len = check::packed(len, max)?;
        self.enqueue(slot, len, from)?;
        Ok(len)
    }

    #[inline(always)]
    fn enqueue(&self, slot: TxSlot<'_>, len: usize, from: u64) -> Outcome<()> {
        if self.can_deliver_inline() {
            let delivery = self.slots.deliver(slot.number());
            slot.into_queue();
            self.deliver(delivery.bytes(len), &delivery, from);
            return Ok(());
        }
        if !self.queue.push(Arrived::Message { slot: slot.number(), len: len as u32, from }) {
            return Err(self.refuse());
        }
        slot.into_queue();
        self.wake();
        Ok(())
    }

    /// Whether a message may go to its handler before the call that sends it returns. Not while the interface
    /// is armed: the descriptor tells of the message.
    // HOT
    #[inline(always)]
    pub(super) fn can_deliver_inline(&self) -> bool {
        self.deliver_on_send.get()
            && self.queue.is_vacant()
            && !self.in_handler.get()
            && !self.wake.armed.get()
    }

    /// Does that.
    // HOT
    #[inline(always)]
    pub(super) fn deliver(&self, packet: &[u8], keep: &dyn Keep, from: u64) {
        let _guard = ReentryGuard::begin(&self.in_handler);
        self.handlers.dispatch(Am::new(packet, SrcAddr { node: from, port: 0 }, keep));
    }

    pub(super) fn push_imm(&self, imm: Imm) -> Outcome<()> {
        if !self.queue.push(Arrived::Imm(imm)) {
            return Err(self.refuse());
        }
        self.wake();
        Ok(())
    }

    /// No room: for now, or because the interface is closed.
    #[cold]
    pub(super) fn refuse(&self) -> api::Refused {
        if self.is_closed() { Error::PeerDead.into() } else { api::Refused::NoResource }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    pub(super) fn source(&self) -> SrcAddr {
        SrcAddr { node: self.id, port: 0 }
    }

    /// Wakes a sleeper after a push.
    // HOT
    #[inline]
    fn wake(&self) {
        if self.wake.armed.get() {
            self.signal();
        }
    }

    #[cold]
    fn signal(&self) {
        self.wake.armed.set(false);
        if let Some(Err(e)) = self.wake.event.get().map(EventFd::signal) {
            tracing::warn!("{TL}: cannot signal the event descriptor: {e}");
        }
    }

    /// A look for one message: see [`api::Iface::poll_one`].
    // HOT
    #[inline(always)]
    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        let Some(oldest) = self.queue.front() else {
            return if self.pending.waiting() == 0 { PollOne::Empty } else { PollOne::NeedsPoll };
        };
        let Arrived::Message { slot, len, from } = oldest else { return PollOne::NeedsPoll };
        let Some(mut peek) = Peek::begin(self) else { return PollOne::Empty };
        let delivery = self.slots.deliver(slot);
        if !callback.on_packet(delivery.bytes(len as usize), SrcAddr { node: from, port: 0 }) {
            delivery.requeue();
            peek.taken = false;
            return PollOne::NeedsPoll;
        }
        drop(delivery);
        drop(peek);
        PollOne::Received { more: !self.is_idle() }
    }

    #[inline(always)]
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.pending.waiting() == 0
    }

    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        let Some(guard) = ReentryGuard::begin(&self.in_handler) else { return 0 };
        let mut events = 0;
        while events < max {
            let Some(arrived) = self.queue.pop() else { break };
            match arrived {
                Arrived::Message { slot, len, from } => {
                    let delivery = self.slots.deliver(slot);
                    let packet = delivery.bytes(len as usize);
                    sink.on_am(Am::new(packet, SrcAddr { node: from, port: 0 }, &delivery));
                }
                Arrived::Imm(imm) => sink.on_imm(imm),
            }
            events += 1;
        }
        drop(guard);
        if self.pending.waiting() > 0 && max > 0 {
            events += self.dispatch_pending((max - events).max(1));
        }
        events
    }

    #[cold]
    fn dispatch_pending(&self, max: usize) -> usize {
        let done = self.pending.dispatch(max, TxRoom::PerEp);
        if done > 0 {
            self.retry_sleep.reset();
        }
        done
    }
}

/// The oldest message is being offered; dropped as taken also after a panic.
struct Peek<'a> {
    queue: &'a Queue,
    taken: bool,
    _guard: ReentryGuard<'a>,
}

impl Peek<'_> {
    /// `None`: a message is being delivered already.
    // HOT
    #[inline(always)]
    fn begin(inner: &Inner) -> Option<Peek<'_>> {
        ReentryGuard::begin(&inner.in_handler).map(|guard| Peek {
            queue: &inner.queue,
            taken: true,
            _guard: guard,
        })
    }
}

impl Drop for Peek<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.taken {
            self.queue.pop();
        }
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
        self.inner.lookup(iface).map(drop)
    }

    fn connect(&self, _device: &[u8], iface: &[u8]) -> Result<Ep, ConnectError> {
        Ok(Ep::new(self.inner.clone(), self.inner.lookup(iface)?))
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.inner.handlers.set(id, handler);
    }

    fn deliver_within_send(&self, on: bool) -> bool {
        self.inner.deliver_on_send.set(on);
        on
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
    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    // HOT
    #[inline(always)]
    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        self.inner.poll_one(callback)
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

    fn arm(&self, events: Events) -> Result<bool, Error> {
        Ok(self.arm_for(events)? == ArmStatus::Armed)
    }

    /// Room is made by this thread's polls of other interfaces, so a sleeper on this one alone looks now and
    /// then.
    fn arm_for(&self, _events: Events) -> Result<ArmStatus, Error> {
        let (wake, waits) = (&self.inner.wake, self.inner.pending.waiting() > 0);
        wake.event()?.clear().map_err(|errno| Error::Sys { call: "read", errno })?;
        let idle = self.inner.queue.is_empty();
        wake.armed.set(idle);
        Ok(match (idle, waits) {
            (false, _) => ArmStatus::Busy,
            (true, true) => ArmStatus::ArmedFor(self.inner.retry_sleep.take()),
            (true, false) => {
                self.inner.retry_sleep.reset();
                ArmStatus::Armed
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
