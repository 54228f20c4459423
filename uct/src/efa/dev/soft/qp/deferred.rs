//! Deferred requests: delayed, waiting for a receiver, RDMA partly done, or pending at the link, which tells
//! their outcome later. Progressed by polls.

use super::super::fault_model::FaultDraw;
use super::super::link::{Link, Rdma, RecvQueue, RemoteQp, TryOutcome};
use super::QpCore;
use super::capture::CapturedAttempt;
use crate::api::Access;
use crate::efa::dev::{CqeOp, DevStatus, Sge};
use rustc_hash::FxHashMap;

const MAX_INLINE: usize = 80;
const PUMP_BATCH: usize = 32;
const RETRY_FOREVER: u8 = 7;

pub(in super::super) struct Wr {
    pub(super) wr_id: u64,
    pub(super) iid: u64,
    pub(super) qpn: u16,
    pub(super) qkey: u32,
    pub(super) imm: Option<u32>,
    pub(super) body: Body,
}

pub(in super::super) enum Body {
    Inline { len: u8, bytes: [u8; MAX_INLINE] },
    Send { sge: [Sge; 2] },
    Read { sge: Sge, raddr: u64, rkey: u32, total: u32 },
    Write { sge: Sge, raddr: u64, rkey: u32, total: u32 },
}

impl Body {
    pub(super) fn inline(from: &[u8]) -> Body {
        let mut bytes = [0; MAX_INLINE];
        bytes[..from.len()].copy_from_slice(from);
        Body::Inline { len: from.len() as u8, bytes }
    }
}

impl Wr {
    pub(super) fn op(&self) -> CqeOp {
        match self.body {
            Body::Inline { .. } | Body::Send { .. } => CqeOp::Send,
            Body::Read { .. } => CqeOp::Read,
            Body::Write { .. } => CqeOp::Write,
        }
    }

    /// Whether it consumes a receive: sends, and writes with immediate.
    fn consumes_recv(&self) -> bool {
        self.op() == CqeOp::Send || self.imm.is_some()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DeferReason {
    /// Delayed; then these faults apply.
    Delayed(FaultDraw),
    /// The receiver was not ready; retries end at this time, if ever.
    Rnr { until: Option<u64> },
    /// Blocked for a moment, or RDMA partly done.
    Retry,
    /// Done; its acknowledgement is delayed.
    AwaitingAck(DevStatus),
}

pub(super) struct DeferredWr {
    pub(super) wr: Wr,
    /// The attempt whose outcome is awaited, for the capture.
    attempt: Option<Box<CapturedAttempt>>,
    due: u64,
    ack: u64,
    phase: DeferReason,
}

impl<L: Link> QpCore<L> {
    pub(super) fn attempt(&self, wr: &Wr) -> TryOutcome {
        if let Some(capture) = &self.dev.capture {
            // A success shows this time, which precedes the receiver's.
            self.attempted_at.set(Some(capture.now()));
        }
        let to = (wr.iid, wr.qpn, wr.qkey);
        let rdma = |sge: &Sge, raddr, rkey, total| {
            let (local, len, lkey, pd) = (sge.addr, sge.len, sge.lkey, self.pd);
            Rdma { local, len, raddr, rkey, total, lkey, pd }
        };
        match &wr.body {
            Body::Inline { len, bytes } => self.try_inline(to, &bytes[..usize::from(*len)], wr.imm),
            Body::Send { sge } => self.try_send(wr.iid, wr.qpn, wr.qkey, sge, wr.imm),
            Body::Read { sge, raddr, rkey, total } => {
                if !self.lkey_allows(sge, Access::LOCAL_WRITE) {
                    return TryOutcome::Done(DevStatus::InvalidLkey);
                }
                let op = rdma(sge, *raddr, *rkey, *total);
                self.with_peer(wr.iid, wr.qpn, wr.qkey, |peer| peer.read(self.sender(), &op))
            }
            Body::Write { sge, raddr, rkey, total } => {
                if !self.lkey_allows(sge, Access::LOCAL_READ) {
                    return TryOutcome::Done(DevStatus::InvalidLkey);
                }
                let op = rdma(sge, *raddr, *rkey, *total);
                self.with_peer(wr.iid, wr.qpn, wr.qkey, |peer| peer.write(self.sender(), &op, wr.imm))
            }
        }
    }

    /// Acts on the first attempt: completes the request or defers it.
    pub(super) fn complete_or_defer(&self, wr: Wr, outcome: TryOutcome) {
        let w = DeferredWr { wr, attempt: None, due: 0, ack: 0, phase: DeferReason::Retry };
        if let Some(w) = self.apply_outcome(w, outcome) {
            self.defer(w);
        }
    }

    pub(super) fn start_with_faults(&self, wr: Wr, draw: FaultDraw) {
        let due = self.send_cq.ticks() + draw.delay;
        let w = DeferredWr { wr, attempt: None, due, ack: draw.ack, phase: DeferReason::Delayed(draw) };
        let w = if draw.delay == 0 { self.run_due(w) } else { Some(w) };
        if let Some(w) = w {
            self.defer(w);
        }
    }

    fn defer(&self, w: DeferredWr) {
        self.next_due.set(self.next_due.get().min(w.due));
        self.send_cq.deferred.set(self.send_cq.deferred.get() + 1);
        self.dev.counters.deferred.add();
        self.deferred.borrow_mut().push_back(w);
    }

    /// Acts on an attempt; returns the request if it stays deferred.
    fn apply_outcome(&self, mut w: DeferredWr, outcome: TryOutcome) -> Option<DeferredWr> {
        if let (Some(capture), TryOutcome::Done(status)) = (&self.dev.capture, outcome)
            && !matches!(w.phase, DeferReason::AwaitingAck(_))
        {
            self.capture_request(capture, &w.wr, status, w.attempt.take());
        }
        match outcome {
            TryOutcome::Done(status) if w.ack > 0 => {
                w.due = self.send_cq.ticks() + w.ack;
                w.phase = DeferReason::AwaitingAck(status);
                Some(w)
            }
            TryOutcome::Done(status) => {
                if status != DevStatus::Ok {
                    self.dev.counters.failed.add();
                }
                self.complete(w.wr.wr_id, w.wr.op(), status);
                None
            }
            TryOutcome::NotReady => self.not_ready(w),
            TryOutcome::Pending(token) => {
                self.keep_pending(token, w);
                None
            }
            TryOutcome::Busy => {
                w.phase = DeferReason::Retry;
                w.due = self.send_cq.ticks() + 1;
                Some(w)
            }
            TryOutcome::Partial(n) => {
                let (Body::Read { sge, raddr, .. } | Body::Write { sge, raddr, .. }) = &mut w.wr.body else {
                    return Some(w);
                };
                let n = n.min(sge.len);
                sge.addr = sge.addr.wrapping_add(n as usize);
                sge.len -= n;
                *raddr = raddr.wrapping_add(u64::from(n));
                w.phase = DeferReason::Retry;
                w.due = self.send_cq.ticks();
                Some(w)
            }
        }
    }

    /// Keeps a request whose outcome the link will tell.
    fn keep_pending(&self, token: u32, mut w: DeferredWr) {
        w.attempt = self.dev.capture.is_some().then(|| self.capture_attempt(&w.wr));
        let look = self.send_cq.ticks() + self.dev.retry_ticks;
        self.next_due.set(self.next_due.get().min(look));
        self.send_cq.deferred.set(self.send_cq.deferred.get() + 1);
        self.pending.borrow_mut().insert(token, w);
    }

    /// Gives up what is pending. The link does not touch its memory any more.
    pub(super) fn give_up_pending(&self) -> FxHashMap<u32, DeferredWr> {
        let pending = std::mem::take(&mut *self.pending.borrow_mut());
        if !pending.is_empty() {
            self.dev.link.give_up_pending(self.rx.qpn());
        }
        pending
    }

    /// Acts on outcomes that the link tells; returns whether there were any.
    fn take_outcomes(&self) -> bool {
        let mut any = false;
        while let Some((token, outcome)) = self.dev.link.next_outcome(self.rx.qpn()) {
            let Some(w) = self.pending.borrow_mut().remove(&token) else { continue };
            any = true;
            self.send_cq.deferred.set(self.send_cq.deferred.get() - 1);
            if let Some(w) = self.apply_outcome(w, outcome) {
                self.defer(w);
            }
        }
        any
    }

    /// Handles RNR. Retries are bounded by time, `rnr_retry` intervals, not by number.
    fn not_ready(&self, mut w: DeferredWr) -> Option<DeferredWr> {
        let until = match w.phase {
            DeferReason::Rnr { until } => until,
            _ => {
                self.dev.counters.rnr.add();
                match self.rnr_retry.get() {
                    0 => return self.apply_outcome(w, TryOutcome::Done(DevStatus::Rnr)),
                    RETRY_FOREVER.. => None,
                    n => Some(self.dev.link.clock() + u64::from(n) * self.dev.rnr_interval_ns),
                }
            }
        };
        if until.is_some_and(|t| self.dev.link.clock() >= t) {
            return self.apply_outcome(w, TryOutcome::Done(DevStatus::Rnr));
        }
        w.phase = DeferReason::Rnr { until };
        w.due = self.send_cq.ticks() + self.dev.retry_ticks;
        Some(w)
    }

    fn run_due(&self, mut w: DeferredWr) -> Option<DeferredWr> {
        match w.phase {
            DeferReason::AwaitingAck(status) => {
                w.ack = 0;
                self.apply_outcome(w, TryOutcome::Done(status))
            }
            DeferReason::Delayed(FaultDraw { fail: Some(status), .. }) => {
                self.apply_outcome(w, TryOutcome::Done(status))
            }
            DeferReason::Delayed(FaultDraw { rnr: true, .. }) if w.wr.consumes_recv() => self.not_ready(w),
            _ => {
                let outcome = self.attempt(&w.wr);
                self.apply_outcome(w, outcome)
            }
        }
    }

    /// Attempts a batch of due requests, round robin; returns whether any was due.
    pub(in super::super) fn progress_deferred(&self) -> bool {
        let now = self.send_cq.ticks();
        if self.next_due.get() > now || !self.dev.link.alive() {
            return false;
        }
        let mut any = !self.pending.borrow().is_empty() && self.take_outcomes();
        let len = self.deferred.borrow().len();
        let (mut tried, mut next) = (0, u64::MAX);
        for _ in 0..len {
            if tried == PUMP_BATCH {
                next = now;
                break;
            }
            let Some(w) = self.deferred.borrow_mut().pop_front() else { break };
            let w = if w.due <= now {
                tried += 1;
                any = true;
                self.run_due(w)
            } else {
                Some(w)
            };
            match w {
                Some(w) => {
                    next = next.min(w.due);
                    self.deferred.borrow_mut().push_back(w);
                }
                None => self.send_cq.deferred.set(self.send_cq.deferred.get() - 1),
            }
        }
        if !self.pending.borrow().is_empty() {
            next = next.min(now + self.dev.retry_ticks);
        }
        self.next_due.set(next);
        any
    }
}
