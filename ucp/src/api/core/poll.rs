//! Polls of a worker's interfaces: the fast poll, after which most calls of progress return, and the full
//! one.

use ucs::time::Nanos;
use uct::api::{Iface as _, PollOne};

use crate::api::am::queue::AmQueue;
use crate::api::core::sink::CompletionSink;
use crate::api::core::worker_core::{MAX_CONSECUTIVE, WorkerCore};
use crate::lane::{Bound, FastPollSink, IfaceIdx, PollSink};

/// Result of a fast poll.
pub(crate) enum FastPoll {
    Nothing,
    /// Received a message without notification. Other interfaces may have more.
    Received,
    /// Received a message; a request is ready.
    Completed,
    /// Received nothing; a request is ready that has ended within another call.
    Ready,
    /// Work remains for [`WorkerCore::poll`].
    NeedsPoll(PollWork),
}

/// Work that a fast poll leaves.
pub(crate) enum PollWork {
    /// The full poll.
    All,
    /// Continues at `iface`, which had `had` events; `left` interfaces after it are not polled yet.
    From { iface: usize, had: usize, left: usize },
    /// The events of a received message.
    Events,
}

impl WorkerCore {
    /// Polls for one short message, interface by interface: the whole work of most progress calls.
    // HOT
    #[inline(always)]
    pub(crate) fn poll_fast(&mut self, am_queue: &AmQueue) -> FastPoll {
        self.calls_to_clock -= 1;
        if self.calls_to_clock == 0 {
            return FastPoll::NeedsPoll(PollWork::All);
        }
        if !self.idle {
            self.idle = self.is_idle(am_queue);
            if !self.idle {
                return poll_not_idle(self, am_queue);
            }
        }
        poll_ifaces(self, am_queue)
    }

    // HOT
    #[inline(always)]
    fn poll_first_again(&mut self, at: usize) {
        match self.consecutive_left {
            0 => self.consecutive_left = MAX_CONSECUTIVE,
            left => (self.first_iface, self.consecutive_left) = (at, left - 1),
        }
    }

    /// Polls an interface of a transport without inlined fast path.
    // HOT
    #[inline(never)]
    fn poll_one_outlined(&mut self, at: usize, am_queue: &AmQueue) -> PollOne {
        let iface = &self.ifaces[at];
        let sink = CompletionSink { reqs: &mut self.reqs, streams: &mut self.streams, am_queue };
        iface.iface.poll_one(FastPollSink { engine: &mut self.engine, sink, wire: iface.wire })
    }

    /// Whether only arrivals can cause work.
    #[inline(always)]
    pub(crate) fn is_idle(&self, am_queue: &AmQueue) -> bool {
        is_idle_but_for_ready(self, am_queue) && !self.reqs.has_ready()
    }

    /// Does the work that a fast poll left. Returns the number of events, including the fast poll's.
    #[inline(never)]
    pub(crate) fn poll(&mut self, work: PollWork, am_queue: &AmQueue) -> usize {
        // Devices progress in a poll, and access memory that another thread may withdraw.
        let (engine, mut wire, _) = self.split();
        let entered = engine.enter_memory(&mut wire);
        let events = self.poll_in_memory(work, am_queue);
        if entered {
            self.engine.leave_memory();
        }
        events
    }

    #[inline(always)]
    fn poll_in_memory(&mut self, work: PollWork, am_queue: &AmQueue) -> usize {
        let mut events = match work {
            PollWork::All => return self.poll_all(am_queue),
            PollWork::Events => 1,
            PollWork::From { iface, had, left } => self.poll_from(iface, had, left, am_queue),
        };
        if events > 0 && self.streams.has_waiters() {
            self.progress_streams();
        }
        if !self.engine.pending().is_idle() {
            events += self.resume(self.now);
        }
        events
    }

    /// Polls `iface`, which had `had` events, and the `left` interfaces after it, cyclically.
    fn poll_from(&mut self, iface: usize, had: usize, left: usize, am_queue: &AmQueue) -> usize {
        let mut events = had;
        if had < self.batch {
            events += self.poll_iface(iface, self.batch - had, self.now, am_queue);
        }
        let count = self.ifaces.len();
        for at in (iface + 1..count).chain(0..iface).take(left) {
            if !self.ifaces[at].iface.is_idle() {
                events += self.poll_iface(at, self.batch, self.now, am_queue);
            }
        }
        events
    }

    fn poll_all(&mut self, am_queue: &AmQueue) -> usize {
        self.needs_poll = false;
        let now = self.run_timers();
        if self.engine.pending().is_over_limit() && self.may_stop_polling() {
            return 0;
        }
        let mut events = 0;
        for at in 0..self.ifaces.len() {
            if !self.ifaces[at].iface.is_idle() || self.engine.pending().is_draining() {
                events += self.poll_iface(at, self.batch, now, am_queue);
            }
        }
        if let Some(rma_only) = self.rma_only.as_ref().filter(|rma_only| !rma_only.is_idle()) {
            rma_only.poll();
        }
        events += self.resume(now);
        if !self.flushes.is_empty() {
            self.poll_flushes();
        }
        if self.streams.has_waiters() {
            self.progress_streams();
        }
        events
    }

    #[inline(never)]
    fn resume(&mut self, now: Nanos) -> usize {
        let (engine, mut wire, _) = self.split();
        engine.resume(&mut wire, now)
    }

    #[cold]
    fn may_stop_polling(&mut self) -> bool {
        let streams = !self.reqs.has_ready() && !self.streams.has_waiters();
        self.flushes.is_empty() && streams && self.engine.may_stop_polling()
    }

    /// Polls one interface for up to `max` events. Out of line, so that an empty poll stays small.
    // HOT
    #[inline(never)]
    fn poll_iface(&mut self, at: usize, max: usize, now: Nanos, am_queue: &AmQueue) -> usize {
        let iface = &self.ifaces[at];
        let bound = Bound {
            ifaces: &self.ifaces,
            peer_eps: &mut self.peer_eps,
            regs: &mut self.regs,
            rma_only: self.rma_only.as_ref(),
            sink: Some(CompletionSink { reqs: &mut self.reqs, streams: &mut self.streams, am_queue }),
            receiving: IfaceIdx(at as u8),
        };
        let mut sink =
            PollSink { engine: &mut self.engine, bound, wire: iface.wire, now, flushed: &mut self.flushed };
        let taken = iface.iface.poll(max, &mut sink);
        if taken == 0 && sink.engine.pending().is_draining() {
            sink.engine.on_wire_drained(&mut sink.bound, iface.wire);
        }
        taken
    }
}

/// Polls for one short message, if all other work is that of requests that are ready.
// HOT
#[inline(never)]
fn poll_not_idle(core: &mut WorkerCore, am_queue: &AmQueue) -> FastPoll {
    if !is_idle_but_for_ready(core, am_queue) {
        return FastPoll::NeedsPoll(PollWork::All);
    }
    match poll_ifaces(core, am_queue) {
        FastPoll::Nothing => FastPoll::Ready,
        polled => polled,
    }
}

/// Polls for one short message, interface by interface.
// HOT
#[inline(always)]
fn poll_ifaces(core: &mut WorkerCore, am_queue: &AmQueue) -> FastPoll {
    let mut left = core.ifaces.len();
    loop {
        if left == 0 {
            return FastPoll::Nothing;
        }
        left -= 1;
        let at = core.first_iface;
        core.first_iface = if at + 1 == core.ifaces.len() { 0 } else { at + 1 };
        let worker_iface = &core.ifaces[at];
        let polled = match worker_iface.iface.fast_iface() {
            Some(iface) => {
                let sink = CompletionSink { reqs: &mut core.reqs, streams: &mut core.streams, am_queue };
                iface.poll_one(FastPollSink { engine: &mut core.engine, sink, wire: worker_iface.wire })
            }
            None if worker_iface.iface.is_idle_loopback() => PollOne::Empty,
            None => core.poll_one_outlined(at, am_queue),
        };
        match polled {
            PollOne::Empty => {}
            PollOne::Received { more: false } => {
                core.poll_first_again(at);
                let has_events = core.engine.pending().has_events() || core.streams.has_waiters();
                return if has_events {
                    FastPoll::NeedsPoll(PollWork::Events)
                } else if core.reqs.has_ready() {
                    // A callback may panic, or call progress, before the last one has run.
                    core.idle = false;
                    FastPoll::Completed
                } else {
                    FastPoll::Received
                };
            }
            PollOne::Received { more: true } => {
                return FastPoll::NeedsPoll(PollWork::From { iface: at, had: 1, left });
            }
            PollOne::NeedsPoll => return FastPoll::NeedsPoll(PollWork::From { iface: at, had: 0, left }),
        }
    }
}

/// Whether only arrivals, and requests that are ready, can cause work.
// HOT
#[inline(always)]
fn is_idle_but_for_ready(core: &WorkerCore, am_queue: &AmQueue) -> bool {
    // A handler may have called progress while other active messages wait.
    core.engine.is_fully_idle() && core.flushes.is_empty() && !am_queue.has_messages()
}
