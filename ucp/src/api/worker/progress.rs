//! Workers: progress, waiting, and what a worker knows about itself.
//! One thread owns a worker; whoever uses it calls [`Worker::progress`]. Never blocks outside the `wait` calls, never
//! runs user code while its own state is borrowed.

use crate::rdm::PeerView;
use crate::rdm::io::PeerId;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use arrayvec::ArrayVec;
use ucs::sys::fd::Epoll;
use ucs::time::Nanos;
use uct::api::{Caps, Events, Iface as _, IfaceAttr};

use crate::address::{Address, Entry};
use crate::api::core::error::Error;
use crate::api::core::flushes::Late;
use crate::api::core::report::Report;
use crate::api::core::requests::RequestId;
use crate::api::core::worker_core::{Core, Look, Rest};
use crate::api::request::handles::FlushRequest;
use crate::api::worker::handle::Worker;

use crate::lane::{Beside, connid};
use crate::rdm::trace::TraceEvent;
use crate::rdm::{RdmStats, RecvStatus};

/// What a wait found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// There is something to progress, or there may be.
    Ready,
    /// The time is over.
    TimedOut,
}

impl Worker {
    /// Takes in what has arrived, sends what waited, and tells ended operations: callbacks are called and wakers
    /// woken from here and from nowhere else. Answers how much happened; 0 means nothing did. A call that has taken one short message
    /// ends with it: what has come on other lanes is looked for first by the next. // HOT
    ///
    /// A callback may start operations and may call `progress`.
    pub fn progress(&self) -> usize {
        let look = self.core_as_it_is().look(&self.ams().queue);
        match look {
            Look::Nothing => 0,
            Look::Taken => {
                self.handle_ams();
                1
            }
            Look::More(rest) => self.progress_on(rest),
        }
    }

    /// The same, behind a look that left something to do.
    #[inline(never)]
    fn progress_on(&self, rest: Rest) -> usize {
        let mut core = self.core();
        let events = core.poll(rest, &self.ams().queue);
        let rests = core.has_nothing_to_tell();
        drop(core);
        // Those that were handed over came before whatever the engine has to tell.
        self.handle_ams();
        if rests { events } else { events + self.tell() }
    }

    /// Tells the ends of operations, and looks for active messages that have to be received. Answers how much there was.
    #[inline(never)]
    fn tell(&self) -> usize {
        let mut core = self.core();
        // An end is something that happened, also if nobody is called at it.
        let mut events = usize::from(core.engine.has_events());
        while let Some(act) = core.next_act() {
            drop(core);
            act.run();
            events += 1;
            core = self.core();
        }
        let flushes = !core.flushes.is_empty();
        drop(core);
        if flushes {
            events += self.end_flushes();
        }
        events + self.take_large_ams()
    }

    #[cold]
    fn end_flushes(&self) -> usize {
        let mut events = 0;
        loop {
            let Some(act) = self.core().next_flush_act() else { return events };
            events += 1;
            if let Some(act) = act {
                act.run();
            }
        }
    }

    /// Makes progress until `end` answers something. Sleeps when nothing happens for long.
    pub(crate) fn run_until<T>(&self, mut end: impl FnMut(&mut Core) -> Option<T>) -> T {
        let mut idle = 0;
        loop {
            if let Some(value) = end(&mut self.core_as_it_is()) {
                return value;
            }
            self.progress_or_rest(&mut idle);
        }
    }

    /// One progress call; after many empty ones in a row, a rest until something may have happened.
    fn progress_or_rest(&self, idle: &mut u32) {
        if self.progress() > 0 {
            *idle = 0;
            return;
        }
        *idle += 1;
        if *idle < self.inner.spin {
            std::hint::spin_loop();
        } else if self.wait(Some(Duration::from_millis(100))).is_err() {
            std::thread::yield_now();
        }
    }

    /// The descriptor that becomes readable after [`Worker::arm`] when any lane has something: for poll, epoll or an
    /// async runtime's reactor. `Unsupported` lanes make it fail.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.events.as_ref().map(AsFd::as_fd)
    }

    /// Arms [`Worker::event_fd`] for one wake-up. `false`: there is something to progress already (or a lane cannot
    /// wake anybody); progress and try again.
    pub fn arm(&self) -> bool {
        let core = self.core();
        if self.inner.events.is_none() || core.has_ends() || self.ams().queue.has_come() {
            return false;
        }
        // What waits for room on a lane that cannot tell when there is some needs polling.
        let waits = core.waits_for_room();
        core.lanes.iter().all(|lane| {
            let tells = lane.iface.attr().has(Caps::EVENT_SEND);
            let events = if tells { Events::RECV | Events::SEND } else { Events::RECV };
            (tells || !waits) && lane.iface.arm(events) == Ok(true)
        })
    }

    /// How long the worker can do without progress while nothing comes: until a back-off ends, a close is over, or peers are
    /// to be looked after. `None`: for ever. For programs that wait on [`Worker::event_fd`] themselves.
    pub fn next_timer(&self) -> Option<Duration> {
        let core = self.core();
        core.next_deadline().map(|at| at.since(core.now()))
    }

    /// Sleeps until there may be something to progress, or until `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<WaitStatus, ucs::Errno> {
        match &self.inner.events {
            Some(events) => self.wait_on(events, timeout),
            None => {
                self.core().engine.expect_arrivals();
                std::thread::yield_now();
                Ok(WaitStatus::Ready)
            }
        }
    }

    /// The same on a set of descriptors that has [`Worker::event_fd`], if there is one.
    pub(crate) fn wait_on(
        &self,
        events: &Epoll,
        timeout: Option<Duration>,
    ) -> Result<WaitStatus, ucs::Errno> {
        self.core().engine.expect_arrivals();
        if !self.arm() {
            std::thread::yield_now();
            return Ok(WaitStatus::Ready);
        }
        let timer = self.next_timer();
        let users = timeout.filter(|at| timer.is_none_or(|timer| *at <= timer));
        let timeout = users.or(timer);
        let mut tokens = Vec::new();
        let woken = events.wait(&mut tokens, timeout)?;
        self.core().woke();
        match woken {
            0 if users.is_some() => Ok(WaitStatus::TimedOut),
            _ => Ok(WaitStatus::Ready),
        }
    }

    /// Runs a future to its end, with progress between its polls. Other tasks may hold requests of this worker.
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
            self.progress_or_rest(&mut idle);
        }
    }

    /// The address by which peers make endpoints to this worker.
    pub fn address(&self) -> Address {
        let core = self.core();
        let entries = core.lanes.iter().map(|lane| Entry {
            tl: ArrayVec::try_from(lane.iface.attr().tl.as_bytes()).unwrap_or_default(),
            connid: connid(&lane.raw),
            device: lane.iface.device_addr(),
            iface: lane.iface.iface_addr(),
        });
        let beside = core.beside.iter().map(Beside::entry);
        Address { process: core.process, entries: entries.chain(beside).collect() }
    }

    /// The attributes of every lane, in the order in which they have their turns.
    pub fn lanes(&self) -> Vec<IfaceAttr> {
        self.core().lanes.iter().map(|lane| lane.iface.attr().clone()).collect()
    }

    /// Counters of the protocol engine, by packet type and protocol.
    pub fn stats(&self) -> RdmStats {
        self.core().engine.stats()
    }

    /// The next thing worth telling a person: peers found and lost, packets dropped and why.
    pub fn take_trace_event(&self) -> Option<TraceEvent> {
        self.core().engine.take_trace_event()
    }

    /// Asks of every peer whether it lives, as is done by the clock (`UCX_KEEPALIVE_INTERVAL`) for some at a time. The answers
    /// come by progress: operations with a dead peer end with an error. False: there was no room to ask all; after some
    /// progress, the next call goes on with the others.
    pub fn check_peers(&self) -> bool {
        self.core().check_peers()
    }

    /// Ends when everything sent so far, to anybody, has been handed over and acknowledged as its protocol asks.
    ///
    /// With [`Error::PeerGone`] or [`Error::Unreachable`] if a peer was lost of which that cannot be said: during the flush, or
    /// before it and after the last flush of this worker. Everything with the other peers has then ended as it should; of
    /// several lost ones the first is named. A peer that had got everything, or that was closed by [`CloseMode::Force`], is no
    /// loss. (UCX ends such a flush well.) On `posix` and `self` a message is handed over once it lies in the memory that
    /// both share.
    ///
    /// [`CloseMode::Force`]: super::CloseMode::Force
    pub fn flush(&self) -> FlushRequest {
        self.flush_until(Nanos::NEVER)
    }

    /// The same, but ends within the time given: [`Error::TimedOut`] says that not everything has arrived yet. It is still
    /// on its way.
    pub fn flush_within(&self, limit: Duration) -> FlushRequest {
        let now = self.core().now();
        self.flush_until(now + limit)
    }

    fn flush_until(&self, deadline: Nanos) -> FlushRequest {
        let started = self.core().start_flush(None, deadline, Late::GoOn);
        match started {
            Ok(id) => FlushRequest::running(self.clone(), id),
            Err(e) => FlushRequest::ended(Err(e)),
        }
    }

    /// The end of an operation started by a `*_raw` call, once it has come; the request is freed by this.
    // HOT
    #[inline(always)]
    pub fn test(&self, request: RequestId) -> Option<Result<RecvStatus, Error>> {
        self.core_as_it_is().reqs.take(request.0)
    }

    /// Whether a request of a `*_raw` call still runs, or has ended and not been freed.
    pub fn knows(&self, request: RequestId) -> bool {
        self.core().reqs.knows(request.0)
    }

    /// Asks for an operation to be given up. `true`: it will end with [`Error::Cancelled`].
    pub fn cancel(&self, request: RequestId) -> bool {
        self.core().cancel(request.0)
    }

    /// Nobody asks for this request any more; it is freed now or when it ends. Its callback is still called. The
    /// buffer must stay valid until the end all the same.
    pub fn free(&self, request: RequestId) {
        self.core().reqs.detach(request.0, None);
    }

    /// Makes progress until a request of a `*_raw` call has ended, and frees it. A request this worker does not know
    /// ends with [`Error::Cancelled`] at once.
    pub fn wait_for(&self, request: RequestId) -> Result<RecvStatus, Error> {
        self.run_until(|core| match core.reqs.knows(request.0) {
            true => core.reqs.take(request.0),
            false => Some(Err(Error::Cancelled)),
        })
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("address", &format_args!("{}", self.address())).finish_non_exhaustive()
    }
}

/// The waker of `block_on`: may be woken from any thread.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Worker {
    /// What this worker has counted so far, as text.
    pub fn report(&self) -> Report {
        self.core().report()
    }

    /// What is known of a peer, also of one that has introduced itself and has no endpoint here. `None` once it is forgotten.
    pub fn peer_view(&self, peer: PeerId) -> Option<PeerView> {
        self.core().engine.peer_info(peer)
    }
}
