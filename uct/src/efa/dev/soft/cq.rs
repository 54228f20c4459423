//! Completion queues. One too short for its queue pairs grows and counts overruns, unlike hardware.

use super::capture::Capture;
use super::link::{CompChannel, Link, PostedRecv, RecvQueue};
use super::qp::QpCore;
use crate::efa::dev::{Cqe, CqeOp, DevCq, DevStatus, Gid};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    pub(super) qpn: u16,
    pub(super) status: DevStatus,
    pub(super) op: CqeOp,
}

pub(super) struct CqCore<L: Link> {
    link: L,
    depth: usize,
    ring: RefCell<VecDeque<Entry>>,
    senders: RefCell<Vec<Rc<QpCore<L>>>>,
    receivers: RefCell<Vec<Rc<QpCore<L>>>>,
    /// The ring has filled the last poll: the next one asks the receivers first.
    ring_last: Cell<bool>,
    /// Deferred requests of the senders.
    pub(super) deferred: Cell<u32>,
    idle_polls: Cell<u32>,
    /// Empty polls until the queue counts as idle.
    busy_polls_left: Cell<u32>,
    overruns: Cell<u64>,
    polls: Cell<u64>,
    /// The device is down, and so are the queue pairs.
    failed: Cell<bool>,
    armed: Cell<bool>,
    pub(super) channel: Option<Arc<L::CompChannel>>,
    capture: Option<Arc<Capture>>,
}

/// A completion queue. Clones share it.
pub struct Cq<L: Link>(pub(super) Rc<CqCore<L>>);

impl<L: Link> Clone for Cq<L> {
    fn clone(&self) -> Self {
        Cq(self.0.clone())
    }
}

const UPKEEP_EVERY: u32 = 1024;
/// Empty polls after which the queue counts as idle and `is_idle` may hold: then a poll is no delay.
const BUSY_POLLS: u32 = 64;

impl<L: Link> CqCore<L> {
    pub(super) fn new(
        link: L,
        depth: usize,
        channel: Option<Arc<L::CompChannel>>,
        capture: Option<Arc<Capture>>,
    ) -> Self {
        CqCore {
            link,
            depth,
            ring: RefCell::new(VecDeque::with_capacity(depth)),
            senders: RefCell::default(),
            receivers: RefCell::default(),
            ring_last: Cell::new(false),
            deferred: Cell::new(0),
            idle_polls: Cell::new(0),
            busy_polls_left: Cell::new(0),
            overruns: Cell::new(0),
            polls: Cell::new(0),
            failed: Cell::new(false),
            armed: Cell::new(false),
            channel,
            capture,
        }
    }

    // HOT
    #[inline]
    pub(super) fn push(&self, entry: Entry) {
        let mut ring = self.ring.borrow_mut();
        if ring.len() == self.depth {
            self.overruns.set(self.overruns.get() + 1);
        }
        ring.push_back(entry);
        if self.armed.get() {
            self.signal_channel();
        }
    }

    #[cold]
    fn signal_channel(&self) {
        self.disarm();
        if let Some(channel) = &self.channel {
            channel.signal();
        }
    }

    fn disarm(&self) {
        self.armed.set(false);
        self.receivers.borrow().iter().for_each(|qp| qp.rx.arm(false));
    }

    pub(super) fn attach_sender(&self, qp: &Rc<QpCore<L>>) {
        self.senders.borrow_mut().push(qp.clone());
    }

    pub(super) fn attach_receiver(&self, qp: &Rc<QpCore<L>>) {
        qp.rx.arm(self.armed.get());
        self.receivers.borrow_mut().push(qp.clone());
    }

    pub(super) fn detach(&self, qp: &QpCore<L>) {
        let other = |q: &Rc<QpCore<L>>| !std::ptr::eq(&**q, qp);
        self.senders.borrow_mut().retain(other);
        self.receivers.borrow_mut().retain(other);
        self.ring.borrow_mut().retain(|e| e.qpn != qp.rx.qpn());
    }

    /// Takes completions of sends and of failed receives.
    // HOT
    #[inline]
    fn take_entries(&self, out: &mut [Cqe]) -> usize {
        let mut ring = self.ring.borrow_mut();
        if ring.is_empty() {
            return 0;
        }
        let senders = self.senders.borrow();
        let src_gid = Gid::link_local(self.link.iid());
        let mut n = 0;
        while n < out.len() {
            let Some(e) = ring.pop_front() else { break };
            if !matches!(e.op, CqeOp::Recv | CqeOp::RecvWriteImm) {
                match senders.iter().find(|qp| qp.rx.qpn() == e.qpn) {
                    Some(qp) => qp.release_send_slot(),
                    None => continue,
                }
            }
            out[n] = Cqe {
                wr_id: e.wr_id,
                status: e.status,
                op: e.op,
                qpn: e.qpn,
                src_qpn: 0,
                len: 0,
                src_gid,
                imm: None,
            };
            n += 1;
        }
        n
    }

    /// Takes completions from the ring and the receivers. The source that fills `out` is the last one to be
    /// asked by the next poll: none waits while others fill every poll.
    // HOT
    #[inline]
    fn take(&self, out: &mut [Cqe]) -> usize {
        let mut n = if self.ring_last.get() { 0 } else { self.take_entries(out) };
        for qp in self.receivers.borrow().iter() {
            if n == out.len() {
                break;
            }
            n += if qp.polls_directly() {
                qp.rx.poll(&mut out[n..], &mut |_, _| {})
            } else {
                qp.rx.poll(&mut out[n..], &mut |cqe, posted| self.process_arrival(qp, cqe, posted))
            };
        }
        if n == out.len() || self.ring_last.get() {
            n += self.take_turns(out, n);
        }
        n
    }

    /// Takes entries of the ring behind the first `n`, if it is last; puts the source that filled `out` last.
    #[cold]
    fn take_turns(&self, out: &mut [Cqe], n: usize) -> usize {
        if n < out.len() {
            let more = self.take_entries(&mut out[n..]);
            self.ring_last.set(n + more == out.len());
            return more;
        }
        let mut receivers = self.receivers.borrow_mut();
        let of_receiver = out.last().filter(|last| matches!(last.op, CqeOp::Recv | CqeOp::RecvWriteImm));
        let at = of_receiver.and_then(|last| receivers.iter().position(|qp| qp.rx.qpn() == last.qpn));
        self.ring_last.set(at.is_none());
        receivers.rotate_left(at.map_or(0, |at| at + 1));
        0
    }

    #[cold]
    fn upkeep(&self) {
        self.idle_polls.set(0);
        if let Some(capture) = &self.capture {
            capture.flush();
        }
        for qp in self.receivers.borrow().iter() {
            if let Err(what) = qp.rx.upkeep() {
                qp.fail_corrupt(what);
            }
        }
    }

    #[cold]
    fn progress_deferred(&self) {
        for qp in self.senders.borrow().iter() {
            qp.progress_deferred();
        }
    }

    /// Processes an arrival before its user sees it: capture, GRH, scatter.
    #[cold]
    fn process_arrival(&self, qp: &QpCore<L>, cqe: &mut Cqe, posted: Option<&PostedRecv>) {
        if let Some(capture) = &self.capture {
            qp.capture_arrival(capture, cqe, posted);
        }
        qp.dev.count_op();
        if let Some(posted) = posted {
            qp.add_grh(cqe, posted);
            qp.scatter_arrival(cqe, posted);
        }
    }

    /// Clock by which requests are deferred that complete here.
    #[inline]
    pub(super) fn ticks(&self) -> u64 {
        self.link.ticks(&self.polls)
    }

    /// Fails the queue pairs of a device that is down, which another thread may have found.
    #[cold]
    fn fail(&self) {
        if !self.failed.replace(true) {
            self.senders.borrow().iter().for_each(|qp| qp.fail());
            self.receivers.borrow().iter().for_each(|qp| qp.fail());
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.ring.borrow().is_empty() && !self.receivers.borrow().iter().any(|qp| qp.rx.ready())
    }
}

impl<L: Link> Cq<L> {
    /// Entries that came while the queue was full. A correctly sized queue has none.
    pub fn overruns(&self) -> u64 {
        self.0.overruns.get()
    }

    /// Arms the channel as verbs do: signals at once if there are entries. An event that is not read yet
    /// stays.
    pub fn notify(&self) {
        if !self.arm_channel() {
            self.signal();
        }
    }

    /// Arms the channel; see [`DevCq::arm`].
    fn arm_channel(&self) -> bool {
        let cq = &*self.0;
        let Some(channel) = &cq.channel else { return false };
        cq.upkeep();
        cq.armed.set(true);
        cq.receivers.borrow().iter().for_each(|qp| qp.rx.arm(true));
        // SYNC(arm): the flags are set before the check for claims; a sender claims before it checks the
        // flags. A claim not yet published may come without a signal, which the timer covers.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let has_work = !cq.is_empty() || (cq.link.is_down() && !cq.failed.get());
        let must_retry =
            cq.deferred.get() != 0 || cq.receivers.borrow().iter().any(|qp| qp.rx.has_unpublished());
        let sleep = !has_work && (!must_retry || channel.timer(RETRY_WAKE_NS));
        if !sleep {
            cq.disarm();
        }
        sleep
    }

    /// Signals the channel for an entry that its user has not seen.
    pub fn signal(&self) {
        self.0.signal_channel();
    }

    /// Consumes the event: the descriptor is not readable until armed again.
    pub fn take_event(&self) {
        self.0.disarm();
        if let Some(channel) = &self.0.channel {
            channel.clear();
        }
    }

    /// Progresses deferred requests as `polls` polls would, taking no entries; returns whether some remain.
    pub fn progress_for(&self, polls: u32) -> bool {
        let cq = &*self.0;
        if cq.deferred.get() == 0 || !cq.link.alive() {
            return false;
        }
        (0..polls).for_each(|_| cq.link.on_poll(&cq.polls));
        cq.progress_deferred();
        cq.deferred.get() != 0
    }

    /// Actual depth, a power of two.
    pub fn depth(&self) -> u32 {
        self.0.depth as u32
    }
}

impl<L: Link> DevCq for Cq<L> {
    // HOT
    #[inline]
    fn poll(&self, out: &mut [Cqe]) -> usize {
        let cq = &*self.0;
        cq.link.on_poll(&cq.polls);
        if !cq.link.alive() {
            return 0;
        }
        if cq.link.is_down() {
            cq.fail();
        }
        if cq.deferred.get() != 0 {
            cq.progress_deferred();
        }
        let n = cq.take(out);
        if n == 0 {
            let idle_polls = cq.idle_polls.get() + 1;
            cq.idle_polls.set(idle_polls);
            cq.busy_polls_left.set(cq.busy_polls_left.get().saturating_sub(1));
            if idle_polls >= UPKEEP_EVERY {
                cq.upkeep();
            }
            if cq.link.has_offers() {
                cq.link.join_copy();
            }
        } else {
            cq.busy_polls_left.set(BUSY_POLLS);
        }
        n
    }

    // HOT
    #[inline]
    fn is_idle(&self) -> bool {
        let cq = &*self.0;
        let idle_polls = cq.idle_polls.get() + 1;
        if cq.busy_polls_left.get() != 0
            || cq.deferred.get() != 0
            || idle_polls >= UPKEEP_EVERY
            || cq.link.is_down()
            || cq.link.has_offers()
            || !cq.is_empty()
        {
            return false;
        }
        cq.link.on_poll(&cq.polls);
        cq.idle_polls.set(idle_polls);
        cq.link.alive()
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.channel.as_ref().map(|channel| channel.fd())
    }

    /// While requests are deferred, a timer makes the descriptor readable now and then, for retries.
    fn arm(&self) -> bool {
        if let Some(channel) = &self.0.channel {
            channel.clear();
        }
        self.arm_channel()
    }
}

/// Longest sleep with deferred requests, ns.
const RETRY_WAKE_NS: u64 = 50_000;
