//! Progress, waiting and queries. User code runs only while the worker's state is not borrowed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use arrayvec::ArrayVec;
use ucs::time::Nanos;
use uct::api::{DevKind, Iface as _, IfaceAttr};

use crate::address::{Address, Entry};
use crate::api::am::recv::handle_ams;
use crate::api::core::error::Error;
use crate::api::core::flushes::OnTimeout;
use crate::api::core::poll::FastPoll;
use crate::api::core::report::Report;
use crate::api::core::requests::{Notify, RequestId};
use crate::api::core::worker_core::WorkerCore;
use crate::api::request::handles::FlushRequest;
use crate::api::worker::dispatch::{progress_full, run_ready};
use crate::api::worker::handle::Worker;
use crate::api::worker::signal::WorkerSignal;
use crate::api::worker::sleep::{SleepPlan, WaitStatus, progress_or_wait};

use crate::lane::{RmaOnlyLane, connid};
use crate::rdm::trace::TraceEvent;
use crate::rdm::{Cancel, RdmStats, RecvStatus};

impl Worker {
    /// Receives arrivals, sends queued packets, completes operations. Callbacks are called and wakers woken
    /// here; also in [`cancel_now`](crate::cancel_now) and [`send_now_calling`](crate::send_now_calling), by
    /// `then` of a request that has ended, by [`EpConnector`](crate::EpConnector), and for
    /// [`CallAt::End`](crate::CallAt::End) where the operation ends. Callbacks may call `progress`. Returns
    /// the number of events. Ends after one short message: the next call polls other interfaces first.
    ///
    /// # Panics
    /// In a forked child, which needs a worker of its own.
    // HOT
    pub fn progress(&self) -> usize {
        let polled = self.core_keep_idle().poll_fast(&self.inner.am_handlers.queue);
        match polled {
            FastPoll::Nothing => 0,
            FastPoll::Received => {
                handle_ams(self);
                1
            }
            FastPoll::Completed => {
                handle_ams(self);
                1 + run_ready(self)
            }
            FastPoll::Ready => run_ready(self),
            FastPoll::NeedsPoll(work) => progress_full(self, work),
        }
    }

    /// Makes progress until `end` returns a value. Sleeps after many empty polls.
    pub(crate) fn run_until<T>(&self, mut end: impl FnMut(&mut WorkerCore) -> Option<T>) -> T {
        let mut idle = 0;
        loop {
            if let Some(value) = end(&mut self.core_keep_idle()) {
                return value;
            }
            progress_or_wait(self, &mut idle);
        }
    }

    /// Time until a back-off, close or check is due, of which [`Worker::event_fd`] tells, too.
    pub fn next_timer(&self) -> Option<Duration> {
        let core = self.core_keep_idle();
        core.next_deadline().map(|at| at.since(core.now()))
    }

    /// Returns a handle by which other threads wake this worker. Fails if the process has no descriptor left.
    pub fn signaller(&self) -> Result<WorkerSignal, ucs::Errno> {
        self.inner.signals.handle(self.inner.events.as_ref())
    }

    /// Sleeps until there may be something to progress, another thread signals ([`Worker::signaller`]), or
    /// until `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<WaitStatus, ucs::Errno> {
        match &self.inner.events {
            Some(events) => {
                let Some(plan) = SleepPlan::begin(self, timeout) else {
                    std::thread::yield_now();
                    return Ok(WaitStatus::Ready);
                };
                let mut tokens = Vec::new();
                let woken = events.wait(&mut tokens, plan.time)?;
                Ok(plan.end(self, woken > 0))
            }
            None => {
                self.core().engine.receives().expect_arrivals();
                std::thread::yield_now();
                Ok(WaitStatus::Ready)
            }
        }
    }

    /// Runs a future to completion, with progress between its polls.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        let mut idle = 0;
        loop {
            if flag.0.swap(false, Ordering::Acquire)
                && let Poll::Ready(value) = future.as_mut().poll(&mut cx)
            {
                return value;
            }
            progress_or_wait(self, &mut idle);
        }
    }

    /// Address by which peers connect to this worker.
    pub fn address(&self) -> Address {
        let core = self.core();
        let mut address = address_of(&core, |_| true);
        address.entries.extend(core.rma_only.iter().map(RmaOnlyLane::entry));
        address
    }

    /// Address by which peers of other hosts connect to this worker: network interfaces only. Peers of this
    /// host connect by it, too, over the network. Without a network interface, nobody can.
    pub fn address_net(&self) -> Address {
        address_of(&self.core(), |attr| attr.kind == DevKind::Net)
    }

    /// Attributes of every interface, in polling order.
    pub fn ifaces(&self) -> Vec<IfaceAttr> {
        self.core().ifaces.iter().map(|iface| iface.iface.attr().clone()).collect()
    }

    /// Counters of the protocol engine, by packet type and protocol.
    pub fn stats(&self) -> RdmStats {
        self.core().engine.peers().stats()
    }

    /// Takes the next trace event: peers found and lost, packets dropped and why.
    pub fn take_trace_event(&self) -> Option<TraceEvent> {
        self.core().engine.peers_mut().take_trace_event()
    }

    /// Checks at once whether every peer lives (see `UCX_KEEPALIVE_INTERVAL`); progress ends operations with
    /// dead peers. Returns false if resources ran out: after progress, the next call continues.
    pub fn check_peers(&self) -> bool {
        self.core().check_peers()
    }

    /// Completes when everything sent to any peer was handed over and acknowledged as its protocol requires.
    /// On `posix` and `self` a message is handed over once it is in shared memory.
    ///
    /// Fails with the first [`Error::PeerGone`], [`Error::Unreachable`] or [`Error::Unresponsive`] of a peer
    /// lost with unfinished operations since the last flush of this worker, or [`Error::ConnectFailed`] of an
    /// endpoint that never got its peer; all other operations have completed. Endpoints closed by force do
    /// not count. (UCX reports success.)
    pub fn flush(&self) -> FlushRequest {
        flush_until(self, Nanos::NEVER)
    }

    /// Flushes within the time limit. [`Error::TimedOut`]: data is still in flight.
    pub fn flush_within(&self, limit: Duration) -> FlushRequest {
        let now = self.core().now();
        flush_until(self, now + limit)
    }

    /// Takes the result of a completed `*_raw` operation and frees its request.
    // HOT
    #[inline(always)]
    pub fn test(&self, request: RequestId) -> Option<Result<RecvStatus, Error>> {
        self.core_keep_idle().reqs.take(request)
    }

    /// Whether a `*_raw` request is running, or completed and not freed.
    pub fn knows(&self, request: RequestId) -> bool {
        self.core().reqs.knows(request)
    }

    /// Cancels an operation. Returns true if it will end with [`Error::Cancelled`].
    pub fn cancel(&self, request: RequestId) -> bool {
        self.core().cancel(request, Cancel::Unfinished)
    }

    /// Drops a request. The callback is still called; the buffer must stay valid until completion.
    // HOT
    #[inline]
    pub fn free(&self, request: RequestId) {
        if !self.core_keep_idle().reqs.free_ended(request) {
            free_other(self, request);
        }
    }

    /// Drops a request, and its callback, which is not called. The buffer must stay valid until completion.
    // HOT
    #[inline]
    pub fn abandon(&self, request: RequestId) {
        if !self.core_keep_idle().reqs.free_ended(request) {
            abandon_other(self, request);
        }
    }

    /// Makes progress until a `*_raw` request completes, and frees it. [`Error::Cancelled`]: unknown request.
    pub fn wait_for(&self, request: RequestId) -> Result<RecvStatus, Error> {
        self.run_until(|core| match core.reqs.knows(request) {
            true => core.reqs.take(request),
            false => Some(Err(Error::Cancelled)),
        })
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Changes nothing, and may be called where the worker is in use.
        let uid = self.inner.core.try_borrow().ok().map(|core| core.id.uid);
        f.debug_struct("Worker").field("uid", &uid).finish_non_exhaustive()
    }
}

#[inline(never)]
fn free_other(worker: &Worker, request: RequestId) {
    let leftovers = worker.core().reqs.detach(request, None);
    drop(leftovers);
}

#[inline(never)]
fn abandon_other(worker: &Worker, request: RequestId) {
    let mut core = worker.core();
    let leftovers = match core.reqs.raw_callback(request) {
        // The library's own, which finishes the data of the operation.
        Some(call) if worker.inner.data_ops.forget_done(call) => {
            (Notify::None, core.reqs.detach(request, None))
        }
        _ => core.reqs.abandon(request, None),
    };
    drop(core);
    drop(leftovers);
}

fn flush_until(worker: &Worker, deadline: Nanos) -> FlushRequest {
    let started = worker.core().start_flush(None, (deadline, OnTimeout::EndFlush), None);
    FlushRequest::new(worker, started.map(Some))
}

/// Address of a worker with the interfaces that `is_wanted` selects.
fn address_of(core: &WorkerCore, is_wanted: impl Fn(&IfaceAttr) -> bool) -> Address {
    let lanes = core.ifaces.iter().filter(|lane| is_wanted(lane.iface.attr()));
    let entries = lanes.map(|lane| Entry {
        tl: ArrayVec::try_from(lane.iface.attr().tl.as_bytes()).unwrap_or_default(),
        connid: connid(&lane.raw),
        device: lane.iface.device_addr(),
        iface: lane.iface.iface_addr(),
    });
    Address { id: core.id, entries: entries.collect() }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Worker {
    /// Printable counters of this worker.
    pub fn report(&self) -> Report {
        self.core().report()
    }
}
