//! Queue pairs: checks of a post, drawn faults, attempts, retries, and exactly one completion per request.

mod capture;
mod datagram;
mod deferred;
mod post;
mod scatter;

use super::DeviceCore;
use super::cq::{CqCore, Entry};
use super::fault_model::FaultModel;
use super::link::{Link, Progress, RecvQueue, RemoteQp, Sender, TryOutcome};
use crate::efa::dev::{CqeOp, DevStatus, QpKind};
use deferred::DeferredWr;
use rustc_hash::FxHashMap;
pub use scatter::MAX_RECV_SGE;
use scatter::Scatter;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Ready,
    Error,
}

struct CachedPeer<L: Link> {
    iid: u64,
    qpn: u16,
    peer: L::RemoteQp,
}

/// Slots of the direct-mapped cache, by queue pair number and interface id.
const DIRECT_SLOTS: usize = 64;

/// Remote queue pairs that are kept before those of dead processes are looked for.
const SWEEP_FROM: usize = 64;

struct PeerCache<L: Link> {
    /// Number at which those of dead processes are looked for.
    sweep_at: usize,
    /// Count of released address handles when the cache was last swept.
    released: u64,
    direct: Box<[Option<Rc<CachedPeer<L>>>; DIRECT_SLOTS]>,
    all: FxHashMap<(u64, u16), Rc<CachedPeer<L>>>,
}

impl<L: Link> PeerCache<L> {
    fn new() -> Self {
        PeerCache {
            sweep_at: SWEEP_FROM,
            released: 0,
            direct: Box::new([const { None }; DIRECT_SLOTS]),
            all: FxHashMap::default(),
        }
    }

    /// Drops what `is_kept` does not want.
    fn retain(&mut self, is_kept: impl Fn(&CachedPeer<L>) -> bool) {
        self.all.retain(|_, cached| is_kept(cached));
        let all = &self.all;
        for slot in self.direct.iter_mut() {
            let is_known = |cached: &Rc<CachedPeer<L>>| all.contains_key(&(cached.iid, cached.qpn));
            *slot = slot.take().filter(is_known);
        }
        self.sweep_at = SWEEP_FROM.max(2 * self.all.len());
        self.all.shrink_to(self.sweep_at);
    }

    /// Fibonacci hashing: the ids of one job differ in a few bits, anywhere.
    #[inline]
    fn slot(iid: u64, qpn: u16) -> usize {
        let mixed = (iid ^ u64::from(qpn) << 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - DIRECT_SLOTS.ilog2())) as usize
    }
}

pub(super) struct QpCore<L: Link> {
    pub(super) dev: Arc<DeviceCore<L>>,
    kind: QpKind,
    pub(super) pd: u32,
    pub(super) rx: L::RecvQueue,
    send_cq: Rc<CqCore<L>>,
    recv_cq: Rc<CqCore<L>>,
    state: Cell<State>,
    send_depth: u32,
    recv_depth: u32,
    /// Accepted requests whose completion was not polled.
    in_flight: Cell<u32>,
    rnr_retry: Cell<u8>,
    /// Neither fault model nor capture.
    unmodified: bool,
    /// That, and not in the error state: decides the fast path of every post.
    fast: Cell<bool>,
    /// When the request being posted was attempted, for the capture.
    attempted_at: Cell<Option<u64>>,
    model: RefCell<FaultModel>,
    peers: RefCell<PeerCache<L>>,
    deferred: RefCell<VecDeque<DeferredWr>>,
    /// Requests whose outcome the link will tell, by its token.
    pending: RefCell<FxHashMap<u32, DeferredWr>>,
    next_due: Cell<u64>,
    scatter: RefCell<Option<Scatter<L>>>,
}

/// A queue pair. Dropping it destroys it and discards its completions.
pub struct Qp<L: Link>(pub(super) Rc<QpCore<L>>);

pub(super) struct QpParts<L: Link> {
    pub(super) dev: Arc<DeviceCore<L>>,
    pub(super) pd: u32,
    pub(super) rx: L::RecvQueue,
    pub(super) send_cq: Rc<CqCore<L>>,
    pub(super) recv_cq: Rc<CqCore<L>>,
    pub(super) send_depth: u32,
    pub(super) recv_depth: u32,
    pub(super) rnr_retry: u8,
    pub(super) kind: QpKind,
    pub(super) model: FaultModel,
}

impl<L: Link> Qp<L> {
    pub(super) fn new(p: QpParts<L>) -> Self {
        let unmodified = p.model.is_none() && p.dev.capture.is_none();
        let core = Rc::new(QpCore {
            unmodified,
            fast: Cell::new(unmodified),
            attempted_at: Cell::new(None),
            dev: p.dev,
            kind: p.kind,
            pd: p.pd,
            rx: p.rx,
            send_cq: p.send_cq,
            recv_cq: p.recv_cq,
            state: Cell::new(State::Ready),
            send_depth: p.send_depth,
            recv_depth: p.recv_depth,
            in_flight: Cell::new(0),
            rnr_retry: Cell::new(p.rnr_retry),
            model: RefCell::new(p.model),
            peers: RefCell::new(PeerCache::new()),
            deferred: RefCell::default(),
            pending: RefCell::default(),
            next_due: Cell::new(u64::MAX),
            scatter: RefCell::default(),
        });
        core.dev.link.on_qp_created();
        core.send_cq.attach_sender(&core);
        core.recv_cq.attach_receiver(&core);
        let weak = Rc::downgrade(&core);
        core.dev.link.register_progress(weak);
        Qp(core)
    }

    /// Moves the queue pair to the error state: requests now and later are flushed; peers find it gone.
    pub fn fail(&self) {
        self.0.fail();
    }

    /// Changes the q-key. Peers that resolved the old one resolve again at their next send.
    pub fn set_qkey(&self, qkey: u32) {
        self.0.rx.set_qkey(qkey);
    }

    /// Changes the RNR retry count: 0 to 6, or 7 for ever. No effect without the capability, or on UD.
    pub fn set_rnr_retry(&self, retries: u8) {
        if self.0.dev.attr.rnr_retry && self.0.kind == QpKind::Srd {
            self.0.rnr_retry.set(retries.min(7));
        }
    }

    /// Whether it has deferred requests, which polling progresses.
    // HOT
    #[inline]
    pub fn has_deferred(&self) -> bool {
        self.0.next_due.get() != u64::MAX
    }

    /// Accepted requests whose completion was not polled.
    pub fn in_flight(&self) -> u32 {
        self.0.in_flight.get()
    }
}

impl<L: Link> Drop for Qp<L> {
    fn drop(&mut self) {
        let qp = &*self.0;
        qp.rx.close(&mut |_| {});
        let deferred = (qp.deferred.take().len() + qp.give_up_pending().len()) as u32;
        qp.send_cq.deferred.set(qp.send_cq.deferred.get() - deferred);
        qp.send_cq.detach(qp);
        qp.recv_cq.detach(qp);
        // In a forked child the numbers are the parent's.
        if qp.dev.link.is_owner_process() {
            qp.dev.release_qpn(qp.rx.qpn());
            qp.dev.link.on_qp_destroyed();
        }
    }
}

impl<L: Link> QpCore<L> {
    #[cold]
    pub(super) fn fail(&self) {
        self.fail_with(DevStatus::Flushed);
    }

    /// Fails a queue pair of whose shared memory another process has overwritten a part.
    #[cold]
    pub(super) fn fail_corrupt(&self, what: &str) {
        if self.state.get() != State::Error {
            tracing::error!(
                "queue pair {} fails: its shared memory is corrupt ({what}): a process of this user has overwritten it",
                self.rx.qpn()
            );
            self.fail_with(DevStatus::QpInternal);
            self.rx.give_up(&mut |posted| self.complete_failed_recv(posted.wr_id, DevStatus::QpInternal));
        }
    }

    fn fail_with(&self, status: DevStatus) {
        if self.state.replace(State::Error) == State::Error {
            return;
        }
        self.fast.set(false);
        let deferred = std::mem::take(&mut *self.deferred.borrow_mut());
        let pending = self.give_up_pending();
        if !deferred.is_empty() {
            self.peers.borrow().all.values().for_each(|peer| peer.peer.await_given_up());
        }
        for w in deferred.into_iter().chain(pending.into_values()) {
            self.send_cq.deferred.set(self.send_cq.deferred.get() - 1);
            self.complete(w.wr.wr_id, w.wr.op(), status);
        }
        self.next_due.set(u64::MAX);
        self.rx.close(&mut |posted| self.complete_failed_recv(posted.wr_id, status));
    }

    /// Whether arrivals need no processing at poll.
    // HOT
    #[inline]
    pub(super) fn polls_directly(&self) -> bool {
        self.unmodified && self.kind == QpKind::Srd && !self.scatters()
    }

    /// Frees a send queue entry after its completion was polled.
    // HOT
    #[inline]
    pub(super) fn release_send_slot(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }

    #[inline]
    fn sender(&self) -> Sender {
        Sender { iid: self.dev.link.iid(), qpn: self.rx.qpn(), kind: self.kind }
    }

    #[inline]
    fn complete(&self, wr_id: u64, op: CqeOp, status: DevStatus) {
        let ud = status != DevStatus::Ok && self.kind == QpKind::Ud;
        let status = if ud { datagram::ud_status(status) } else { status };
        self.send_cq.push(Entry { wr_id, qpn: self.rx.qpn(), status, op });
    }

    fn complete_failed_recv(&self, wr_id: u64, status: DevStatus) {
        self.recv_cq.push(Entry { wr_id, qpn: self.rx.qpn(), status, op: CqeOp::Recv });
    }

    /// Completes a receive whose SGEs are not covered by their keys.
    fn reject_recv(&self, wr_id: u64) {
        let error = self.state.get() == State::Error;
        self.complete_failed_recv(wr_id, if error { DevStatus::Flushed } else { DevStatus::InvalidLkey });
    }

    /// Calls `f` with the remote queue pair (`iid`, `qpn`), whose q-key must be `qkey`.
    // HOT
    #[inline]
    fn with_peer(&self, iid: u64, qpn: u16, qkey: u32, f: impl Fn(&L::RemoteQp) -> TryOutcome) -> TryOutcome {
        let slot = PeerCache::<L>::slot(iid, qpn);
        let outcome = self.try_cached(slot, iid, qpn, qkey, &f);
        if outcome.is_some_and(|v| v != TryOutcome::Done(DevStatus::BadDestQpn)) {
            return outcome.unwrap_or(TryOutcome::Busy);
        }
        self.try_resolved(slot, iid, qpn, qkey, &f)
    }

    /// Calls `f` if the direct-mapped slot holds the remote queue pair.
    // HOT
    #[inline]
    fn try_cached(
        &self,
        slot: usize,
        iid: u64,
        qpn: u16,
        qkey: u32,
        f: &impl Fn(&L::RemoteQp) -> TryOutcome,
    ) -> Option<TryOutcome> {
        let peers = self.peers.borrow();
        let cached = peers.direct[slot].as_ref().filter(|cached| cached.iid == iid && cached.qpn == qpn)?;
        if !cached.peer.has_qkey(qkey) {
            return Some(TryOutcome::Done(DevStatus::BadDestQpn));
        }
        Some(f(&cached.peer))
    }

    /// Resolves a remote queue pair that is not cached, or is gone: its number may have been reused.
    #[cold]
    fn try_resolved(
        &self,
        slot: usize,
        iid: u64,
        qpn: u16,
        qkey: u32,
        f: &impl Fn(&L::RemoteQp) -> TryOutcome,
    ) -> TryOutcome {
        loop {
            let fresh = match self.cache_peer(iid, qpn, slot) {
                Ok(fresh) => fresh,
                Err(outcome) => return outcome,
            };
            match self.try_cached(slot, iid, qpn, qkey, f) {
                Some(TryOutcome::Done(DevStatus::BadDestQpn)) => {
                    self.evict_peer(iid, qpn);
                    if fresh {
                        return TryOutcome::Done(DevStatus::BadDestQpn);
                    }
                }
                Some(outcome) => return outcome,
                None => return TryOutcome::Busy,
            }
        }
    }

    /// Caches a remote queue pair in its slot; returns whether it was resolved just now.
    fn cache_peer(&self, iid: u64, qpn: u16, slot: usize) -> Result<bool, TryOutcome> {
        let known = self.peers.borrow().all.get(&(iid, qpn)).cloned();
        let fresh = known.is_none();
        let cached = match known {
            Some(cached) => cached,
            None => {
                self.sweep_peers();
                let peer = self.dev.link.resolve(iid, qpn, self.kind)?;
                let cached = Rc::new(CachedPeer { iid, qpn, peer });
                self.peers.borrow_mut().all.insert((iid, qpn), cached.clone());
                cached
            }
        };
        self.peers.borrow_mut().direct[slot] = Some(cached);
        Ok(fresh)
    }

    /// Gives back the descriptors and mappings of remote queue pairs without an address handle. When many are
    /// kept, also those of queue pairs that are closed or whose process is dead.
    #[cold]
    fn sweep_peers(&self) {
        // In a forked child another thread of the parent may hold the lock for ever.
        if !self.dev.link.is_owner_process() {
            return;
        }
        let (ahs, mut peers) = (&self.dev.ahs, self.peers.borrow_mut());
        let (released, looks_for_dead) = (ahs.released(), peers.all.len() >= peers.sweep_at);
        if std::mem::replace(&mut peers.released, released) == released && !looks_for_dead {
            return;
        }
        let registry = ahs.lock();
        peers.retain(|cached| {
            ahs.has(&registry, self.pd, cached.iid) && !(looks_for_dead && cached.peer.is_gone())
        });
    }

    pub(super) fn evict_peer(&self, iid: u64, qpn: u16) {
        let mut peers = self.peers.borrow_mut();
        if let Some(evicted) = peers.all.remove(&(iid, qpn)) {
            let slot = &mut peers.direct[PeerCache::<L>::slot(iid, qpn)];
            if slot.as_ref().is_some_and(|cached| Rc::ptr_eq(cached, &evicted)) {
                *slot = None;
            }
        }
    }
}

impl<L: Link> Progress for QpCore<L> {
    fn progress(&self) -> bool {
        self.progress_deferred()
    }

    fn next_due(&self) -> u64 {
        if self.dev.link.alive() { self.next_due.get() } else { u64::MAX }
    }
}
