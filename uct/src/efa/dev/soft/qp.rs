//! Queue pairs: checks of a post, the fate the model draws for it, tries, retries, and exactly one completion each.
//! Used through the trait by the `efa` transport; sends through the link. Never looks into a message.

mod datagram;
mod note;
mod post;
mod scatter;
mod wait;

use super::Core;
use super::cq::{CqCore, Entry};
use super::link::{From, Link, Peer, Pump, Rx, Verdict};
use super::model::Model;
use crate::efa::dev::{CqeOp, DevStatus, QpKind};
use rustc_hash::FxHashMap;
pub use scatter::MAX_RECV_PIECES;
use scatter::Scatter;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use wait::Waiting;

/// Whether requests are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// They are.
    Ready,
    /// They complete as flushed.
    Error,
}

/// The way to a peer, by name.
struct Way<L: Link> {
    iid: u64,
    qpn: u16,
    peer: L::Peer,
}

/// Ways found first: direct mapped by queue pair number and interface id.
const NEAR: usize = 64;

/// All ways this queue pair has used.
struct Ways<L: Link> {
    near: Box<[Option<Rc<Way<L>>>; NEAR]>,
    all: FxHashMap<(u64, u16), Rc<Way<L>>>,
}

impl<L: Link> Ways<L> {
    fn new() -> Self {
        Ways { near: Box::new([const { None }; NEAR]), all: FxHashMap::default() }
    }

    /// Fibonacci hashing: interface ids and numbers of one job differ in a few bits, anywhere.
    #[inline]
    fn place(iid: u64, qpn: u16) -> usize {
        let mixed = (iid ^ u64::from(qpn) << 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (u64::BITS - NEAR.ilog2())) as usize
    }
}

pub(super) struct QpCore<L: Link> {
    pub(super) dev: Rc<Core<L>>,
    kind: QpKind,
    pub(super) pd: u32,
    pub(super) rx: L::Rx,
    send_cq: Rc<CqCore<L>>,
    recv_cq: Rc<CqCore<L>>,
    state: Cell<State>,
    send_depth: u32,
    recv_depth: u32,
    /// Requests accepted whose completion was not polled yet.
    in_flight: Cell<u32>,
    rnr_retry: Cell<u8>,
    /// No model in force and no capture: the branch every post takes.
    quiet: bool,
    model: RefCell<Model>,
    ways: RefCell<Ways<L>>,
    waiting: RefCell<VecDeque<Waiting>>,
    next_due: Cell<u64>,
    /// Receives in pieces, from the first on.
    scatter: RefCell<Option<Scatter<L>>>,
}

/// A queue pair. Dropping it destroys it: what it had in completion queues never surfaces, as with verbs.
pub struct Qp<L: Link>(pub(super) Rc<QpCore<L>>);

pub(super) struct QpParts<L: Link> {
    pub(super) dev: Rc<Core<L>>,
    pub(super) pd: u32,
    pub(super) rx: L::Rx,
    pub(super) send_cq: Rc<CqCore<L>>,
    pub(super) recv_cq: Rc<CqCore<L>>,
    pub(super) send_depth: u32,
    pub(super) recv_depth: u32,
    pub(super) rnr_retry: u8,
    pub(super) kind: QpKind,
    pub(super) model: Model,
}

impl<L: Link> Qp<L> {
    pub(super) fn new(p: QpParts<L>) -> Self {
        let core = Rc::new(QpCore {
            quiet: p.model.is_quiet() && p.dev.tap.is_none(),
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
            ways: RefCell::new(Ways::new()),
            waiting: RefCell::default(),
            next_due: Cell::new(u64::MAX),
            scatter: RefCell::default(),
        });
        core.send_cq.attach_sender(&core);
        core.recv_cq.attach_receiver(&core);
        let weak = Rc::downgrade(&core);
        core.dev.link.adopt(weak);
        Qp(core)
    }

    /// Moves the queue pair to the error state: everything outstanding completes as flushed, and everything posted
    /// from now on too. Peers find it gone.
    pub fn fail(&self) {
        self.0.fail();
    }

    /// Changes the q-key that peers must show, as a queue pair gets it after it was created. Peers that met the old
    /// one look again when they send next.
    pub fn set_qkey(&self, qkey: u32) {
        self.0.rx.set_qkey(qkey);
    }

    /// Changes the number of retries at a receiver that is not ready: 0 to 6, or 7 for ever. Without the device's
    /// capability nothing changes, nor with datagrams, which are sent once.
    pub fn set_rnr_retry(&self, retries: u8) {
        if self.0.dev.attr.rnr_retry && self.0.kind == QpKind::Srd {
            self.0.rnr_retry.set(retries.min(7));
        }
    }

    /// Whether requests of its wait: held back, for a receiver, or long RDMA in parts. Polling moves them. // HOT
    #[inline]
    pub fn keeps(&self) -> bool {
        self.0.next_due.get() != u64::MAX
    }

    /// Requests accepted whose completion was not polled yet.
    pub fn in_flight(&self) -> u32 {
        self.0.in_flight.get()
    }
}

impl<L: Link> Drop for Qp<L> {
    fn drop(&mut self) {
        let qp = &*self.0;
        qp.rx.close(&mut |_| {});
        let waiting = qp.waiting.take().len() as u32;
        qp.send_cq.waiting.set(qp.send_cq.waiting.get() - waiting);
        qp.send_cq.detach(qp);
        qp.recv_cq.detach(qp);
        qp.dev.release_qpn(qp.rx.qpn());
    }
}

impl<L: Link> QpCore<L> {
    /// See [`Qp::fail`].
    #[cold]
    pub(super) fn fail(&self) {
        if self.state.replace(State::Error) == State::Error {
            return;
        }
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for w in waiting {
            self.send_cq.waiting.set(self.send_cq.waiting.get() - 1);
            self.complete(w.wr.wr_id, w.wr.op(), DevStatus::Flushed);
        }
        self.next_due.set(u64::MAX);
        self.rx.close(&mut |posted| self.failed_recv(posted.wr_id, DevStatus::Flushed));
    }

    /// Whether nothing but the rings is to be looked at when an arrival is polled. // HOT
    #[inline]
    pub(super) fn plain(&self) -> bool {
        self.quiet && self.kind == QpKind::Srd && !self.scatters()
    }

    /// The completion of one request was polled. // HOT
    #[inline]
    pub(super) fn sent_one(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }

    #[inline]
    fn from(&self) -> From {
        From { iid: self.dev.link.iid(), qpn: self.rx.qpn(), kind: self.kind }
    }

    #[inline]
    fn complete(&self, wr_id: u64, op: CqeOp, status: DevStatus) {
        let forgiven = status != DevStatus::Ok && self.kind == QpKind::Ud;
        let status = if forgiven { datagram::forgive(status) } else { status };
        self.send_cq.push(Entry { wr_id, qpn: self.rx.qpn(), status, op });
    }

    fn failed_recv(&self, wr_id: u64, status: DevStatus) {
        self.recv_cq.push(Entry { wr_id, qpn: self.rx.qpn(), status, op: CqeOp::Recv });
    }

    /// Completes a receive whose pieces are not its poster's to offer.
    fn refused_recv(&self, wr_id: u64) {
        let error = self.state.get() == State::Error;
        self.failed_recv(wr_id, if error { DevStatus::Flushed } else { DevStatus::InvalidLkey });
    }

    /// Tries something with the way to (`iid`, `qpn`), whose q-key must be `qkey`. // HOT
    #[inline]
    fn try_way(&self, iid: u64, qpn: u16, qkey: u32, f: impl Fn(&L::Peer) -> Verdict) -> Verdict {
        let place = Ways::<L>::place(iid, qpn);
        let verdict = self.try_near(place, iid, qpn, qkey, &f);
        if verdict.is_some_and(|v| v != Verdict::Done(DevStatus::BadDestQpn)) {
            return verdict.unwrap_or(Verdict::Busy);
        }
        self.try_anew(place, iid, qpn, qkey, &f)
    }

    /// Tries the way in a near place, if it is the one. // HOT
    #[inline]
    fn try_near(
        &self,
        place: usize,
        iid: u64,
        qpn: u16,
        qkey: u32,
        f: &impl Fn(&L::Peer) -> Verdict,
    ) -> Option<Verdict> {
        let ways = self.ways.borrow();
        let way = ways.near[place].as_ref().filter(|way| way.iid == iid && way.qpn == qpn)?;
        if way.peer.qkey() != qkey {
            return Some(Verdict::Done(DevStatus::BadDestQpn));
        }
        Some(f(&way.peer))
    }

    /// Tries a way that is not near, or leads to nobody: a queue pair of that number may have come since.
    #[cold]
    fn try_anew(
        &self,
        place: usize,
        iid: u64,
        qpn: u16,
        qkey: u32,
        f: &impl Fn(&L::Peer) -> Verdict,
    ) -> Verdict {
        loop {
            let fresh = match self.find_way(iid, qpn, place) {
                Ok(fresh) => fresh,
                Err(verdict) => return verdict,
            };
            match self.try_near(place, iid, qpn, qkey, f) {
                Some(Verdict::Done(DevStatus::BadDestQpn)) => {
                    self.forget_way(iid, qpn, place);
                    if fresh {
                        return Verdict::Done(DevStatus::BadDestQpn);
                    }
                }
                Some(verdict) => return verdict,
                None => return Verdict::Busy,
            }
        }
    }

    /// Puts the way to a peer in its near place; answers whether it was looked up just now.
    fn find_way(&self, iid: u64, qpn: u16, place: usize) -> Result<bool, Verdict> {
        let known = self.ways.borrow().all.get(&(iid, qpn)).cloned();
        let fresh = known.is_none();
        let way = match known {
            Some(way) => way,
            None => {
                let peer = self.dev.link.resolve(iid, qpn, self.kind)?;
                let way = Rc::new(Way { iid, qpn, peer });
                self.ways.borrow_mut().all.insert((iid, qpn), way.clone());
                way
            }
        };
        self.ways.borrow_mut().near[place] = Some(way);
        Ok(fresh)
    }

    fn forget_way(&self, iid: u64, qpn: u16, place: usize) {
        let mut ways = self.ways.borrow_mut();
        ways.near[place] = None;
        ways.all.remove(&(iid, qpn));
    }
}

impl<L: Link> Pump for QpCore<L> {
    fn pump(&self) -> bool {
        self.pump_some()
    }

    fn next_due(&self) -> u64 {
        if self.dev.link.alive() { self.next_due.get() } else { u64::MAX }
    }
}
