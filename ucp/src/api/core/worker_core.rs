//! State and progress of a worker. Never runs user code: returns it as [`Action`], run with nothing borrowed.

use crate::api::core::requests::EMPTY_STATUS;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use ucs::time::Clock as _;

use ucs::time::Nanos;
use uct::api::{DevKind, Ep as _, Iface as _, PollOne};

use crate::address::WorkerId;
use crate::api::am::queue::AmQueue;
use crate::api::core::armed::ArmedFor;
use crate::api::core::clock::WorkerClock;
use crate::api::core::cm::WorkerCm;
use crate::api::core::deferred::DeferredOps;
use crate::api::core::ended::EndedConversations;
use crate::api::core::ep_config::EpConfigs;
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::flushes::{self, Flush};
use crate::api::core::keepalive::KeepaliveTimer;
use crate::api::core::multi_recvs::MultiRecvs;
use crate::api::core::report::{Report, StatsDump};
use crate::api::core::requests::{Action, RequestId, RequestParams, Requests, Role};
use crate::api::core::sink::CompletionSink;
use crate::api::mem::remote_writes::{RemoteWrite, RemoteWrites};
use crate::api::stream::state::Streams;
use crate::cm::CmConfig;
use crate::token::UserToken;

use crate::lane::{
    Bound, FastPollSink, FlushEnd, IfaceIdx, PeerEps, PollSink, RegTable, RmaOnlyLane, WorkerIface, source,
};
use crate::rdm::io::{PeerError, PeerId};
use crate::rdm::{
    Cancel, Conversation, Engine, EngineEvent, Kind, OpError, has_unknown_peers, remove_unknown_peers,
};
use crate::wire::RawAddr;

/// Consecutive messages of one interface, less one, before the next is polled first (as
/// `UCX_POSIX_FIFO_MAX_POLL` of UCX).
const MAX_CONSECUTIVE: u32 = 15;
/// Progress calls between two readings of the clock while the engine has no deadline.
const CLOCK_EVERY: u32 = 256;
/// As [`CLOCK_EVERY`], of a worker with an RMA-only lane, which is polled then. Peers offer parts of long
/// copies there: a part waits about a microsecond, of copies that take 10 or more.
const RMA_ONLY_EVERY: u32 = 64;

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
    /// The whole poll.
    All,
    /// An interface, its events so far, and the number of following interfaces not yet polled.
    From { iface: usize, had: usize, left: usize },
    /// The events of a received message.
    Events,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectCheck {
    /// For the time of its answer: at most [`CHECK_WAIT`].
    Now,
    /// For a moment, since another lane could serve instead.
    Briefly,
    /// With the first message.
    Later,
}

/// How long making an endpoint that checks its peer waits for the peer's process. One that does not run by
/// then counts as reachable.
const CHECK_WAIT: Duration = Duration::from_millis(500);

/// State of a worker. Fields drop in order: buffers outlive engine and interfaces.
#[repr(C)]
pub(crate) struct WorkerCore {
    pub engine: Engine,
    pub peer_eps: PeerEps,
    pub ifaces: Vec<WorkerIface>,
    /// Whether only arrivals can cause work. Cleared by borrows except `Worker::core_keep_idle`.
    pub idle: bool,
    /// Whether a program of one thread sleeps on the armed descriptor.
    pub is_armed: bool,
    /// Whether there is work that only a whole poll goes on with, since the last one.
    pub needs_poll: bool,
    pub(crate) calls_to_clock: u32,
    /// Forks before this worker was made.
    forks: u32,
    /// Lane polled first: the last with a message, or after [`MAX_CONSECUTIVE`] messages the one behind it.
    first_iface: usize,
    consecutive_left: u32,
    pub reqs: Requests,
    pub flushes: Vec<Flush>,
    /// Number of the last flush.
    pub flush_count: u32,
    pub streams: Streams,
    now: Nanos,
    pub batch: usize,
    /// Identity of this worker in addresses.
    pub id: WorkerId,
    /// Kernel access to memory of processes on this host.
    pub rma_only: Option<RmaOnlyLane>,
    /// Dropped after the interfaces: memory stays registered while a device may access it.
    pub regs: RegTable,
    pub eps: Vec<Weak<EpState>>,
    pub deferred: DeferredOps,
    pub cm: WorkerCm,
    pub flushed: Vec<FlushEnd>,
    /// Dropped after engine and interfaces, which write to buffers of dropped requests.
    pub multi_recvs: MultiRecvs,
    pub keepalive: KeepaliveTimer,
    pub remote_writes: RemoteWrites,
    pub ended: EndedConversations,
    pub ep_configs: EpConfigs,
    pub armed_for: ArmedFor,
    stats_dump: Option<StatsDump>,
    clock: WorkerClock,
}

impl Drop for WorkerCore {
    fn drop(&mut self) {
        if let Some(dump) = self.stats_dump.take().filter(StatsDump::at_exit) {
            dump.write(&self.report());
        }
    }
}

impl WorkerCore {
    pub(crate) fn new(
        engine: Engine,
        (ifaces, regs): (Vec<WorkerIface>, RegTable),
        batch: usize,
        keepalive: Option<Duration>,
        (ep_configs, stats_dump, clock): (EpConfigs, Option<StatsDump>, WorkerClock),
    ) -> Self {
        let now = clock.now();
        WorkerCore {
            engine,
            peer_eps: PeerEps::default(),
            ifaces,
            id: WorkerId::default(),
            rma_only: None,
            regs,
            reqs: Requests::new(RequestParams::default()),
            flush_count: 0,
            eps: Vec::new(),
            deferred: DeferredOps::default(),
            cm: WorkerCm::new(CmConfig::default()),
            flushes: Vec::new(),
            flushed: Vec::new(),
            streams: Streams::default(),
            multi_recvs: MultiRecvs::new(),
            batch,
            keepalive: KeepaliveTimer::new(keepalive, now),
            remote_writes: RemoteWrites::default(),
            ended: EndedConversations::default(),
            ep_configs,
            stats_dump,
            clock,
            now,
            idle: false,
            is_armed: false,
            needs_poll: false,
            armed_for: ArmedFor::default(),
            first_iface: 0,
            consecutive_left: MAX_CONSECUTIVE,
            calls_to_clock: CLOCK_EVERY,
            forks: ucs::sys::fork::generation(),
        }
    }

    pub(crate) fn report(&self) -> Report {
        Report::of(&self.engine, &self.ifaces, self.rma_only.as_ref())
    }

    #[inline(always)]
    pub(crate) fn split(&mut self) -> (&mut Engine, Bound<'_, CompletionSink<'_>>, &mut Requests) {
        let bound = Bound {
            ifaces: &self.ifaces,
            peer_eps: &mut self.peer_eps,
            regs: &mut self.regs,
            rma_only: self.rma_only.as_ref(),
            sink: None,
            receiving: IfaceIdx(0),
        };
        (&mut self.engine, bound, &mut self.reqs)
    }

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
        let now = self.coarse_now();
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

    /// Time of the last clock reading; exact only while the engine has a deadline.
    #[inline]
    fn coarse_now(&mut self) -> Nanos {
        if self.calls_to_clock == 0 || self.engine.pending().needs_time() {
            self.now = self.clock.now();
            if self.calls_to_clock == 0 {
                self.calls_to_clock = if self.rma_only.is_some() { RMA_ONLY_EVERY } else { CLOCK_EVERY };
                refuse_forked_child(self.forks);
                self.cm.poll(self.now);
                self.engine.receives().trim();
                if has_unknown_peers(self.engine.peers()) {
                    remove_absent(self);
                }
            }
            if let Some(dump) = self.stats_dump.as_ref().filter(|dump| dump.is_signalled()) {
                dump.write(&self.report());
            }
            if self.keepalive.is_due(self.now) {
                self.request_handshakes(self.now);
                self.check_due_peers(self.now);
            }
        }
        self.now
    }

    /// Whether no completion or message needs notification.
    // HOT
    #[inline(always)]
    pub(crate) fn has_no_notifications(&self) -> bool {
        let engine = &self.engine;
        let quiet = !engine.pending().has_events()
            && !engine.has_unexpected(Kind::Am)
            && !engine.pending().is_over_limit();
        quiet && !self.reqs.has_ready() && self.flushes.is_empty() && !self.cm.has_events()
    }

    /// Whether progress has events to deliver without further arrivals.
    pub(crate) fn has_completions(&self) -> bool {
        let engine = &self.engine;
        engine.pending().has_events()
            || engine.pending().is_draining()
            || self.reqs.has_ready()
            || !self.flushed.is_empty()
            || self.cm.has_events()
            || self.needs_poll
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Makes the next progress look at the clock and the exchanges of addresses.
    pub(crate) fn on_wakeup(&mut self) {
        self.calls_to_clock = 1;
    }

    /// Completes operations until one has an action to run; `None` when all are complete.
    // HOT
    #[inline]
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        if let Some(action) = self.reqs.next_ready() {
            return Some(action);
        }
        while let Some(event) = self.engine.pending_mut().take_event() {
            let action = match event {
                EngineEvent::RmaDone { user, result } => {
                    if let Err(error) = result {
                        on_rma_failed(self, user, error);
                    }
                    self.reqs.complete_rma(user, result)
                }
                EngineEvent::SendDone { user, result } => {
                    self.reqs.complete_token(user, result.map(|()| EMPTY_STATUS))
                }
                EngineEvent::RecvDone { user, result } => match UserToken::unpack(user) {
                    UserToken::Request(_) => self.reqs.complete_token(user, result),
                    UserToken::Stream(id) => {
                        self.on_stream_recv_done(id, result);
                        None
                    }
                },
                EngineEvent::MultiRecvMessage { user, at, result } => {
                    self.on_multi_recv_message(user, at, result)
                }
                EngineEvent::MultiRecvDone { user, result } => self.on_multi_recv_done(user, result),
                EngineEvent::RemoteWrite { from, len, cq_data } => {
                    self.remote_writes.push(RemoteWrite { from, len, cq_data });
                    None
                }
                EngineEvent::ConnectionClosed { peer, connection } => {
                    self.on_connection_closed(peer, connection)
                }
                EngineEvent::PeerFailed { peer, fault } => self.peer_failed(peer, fault),
                EngineEvent::UnknownPeersRefused { limit } => {
                    tracing::warn!(
                        "{limit} senders have introduced themselves and not answered: packets of further unknown \
                         senders are dropped (UCX_UNKNOWN_PEERS_MAX)"
                    );
                    None
                }
            };
            if action.is_some() {
                return action;
            }
        }
        // Events may end receives of streams.
        self.reqs.next_ready()
    }

    /// Makes the endpoints of a failed peer refuse operations, and notifies them.
    #[cold]
    fn peer_failed(&mut self, peer: PeerId, fault: PeerError) -> Option<Action> {
        let error = Error::of_peer(peer, fault);
        let conversation = Conversation::with(self.engine.peers(), peer);
        self.eps.retain(|ep| ep.strong_count() > 0);
        let failed: Vec<Rc<EpState>> = self
            .eps
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|ep| {
                ep.peer() == peer && !(conversation.is_open && ep.conversation() == conversation.number)
            })
            .filter(|ep| ep.fail(error))
            .collect();
        // A peer closed by force is told, and another conversation with it may have begun.
        if conversation.is_open || conversation.may_follow {
            self.ended.note(peer);
            // Announcements of the next conversation are handled later.
            self.engine.receives().end_announced(peer, OpError::Peer(peer, fault));
        } else if !conversation.is_notifiable {
            self.peer_eps.forget(peer);
        }
        if let Some(rma_only) = &self.rma_only {
            rma_only.remove_peer(peer);
        }
        if self.streams.has_waiters() {
            self.progress_streams();
        }
        if failed.is_empty() {
            tracing::debug!(peer = peer.0, "peer without an endpoint failed: {fault}");
            return None;
        }
        Some(Action::Failed(failed, error))
    }

    /// Adds a peer to engine and interfaces. Returns the existing peer if there is one.
    pub(crate) fn add_peer(
        &mut self,
        route: &crate::lane::Route<'_>,
        check: ConnectCheck,
    ) -> Result<PeerId, uct::api::ConnectError> {
        let iface = &self.ifaces[usize::from(route.lane.0)];
        let ep = iface.iface.connect(&route.entry.device, &route.entry.iface)?;
        if check != ConnectCheck::Later {
            let start = Instant::now();
            while !ep.begin_connecting()? && check == ConnectCheck::Now && start.elapsed() < CHECK_WAIT {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let addr = RawAddr::from_bytes(&route.raw);
        let (wire, from) = (iface.wire, source(&route.raw));
        let (engine, mut bound, _) = self.split();
        let peer = engine.add_peer(&mut bound, wire, addr, from);
        if self.peer_eps.get(peer).is_none() {
            self.peer_eps.set(peer, route.lane, ep);
        }
        Ok(peer)
    }

    pub(crate) fn is_self(&self, peer: PeerId) -> bool {
        let Some(path) = self.peer_eps.get(peer) else { return false };
        let iface = &self.ifaces[usize::from(path.lane.0)].iface;
        iface.attr().kind == DevKind::Loopback
            && path.ep.is_connected(&iface.device_addr(), &iface.iface_addr())
    }

    /// Whether an operation may be waiting for lane resources.
    pub(crate) fn waits_for_resources(&self) -> bool {
        self.engine.pending().waits_for_room() || self.flushes.iter().any(Flush::waits_for_lane)
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let closes = self.flushes.iter().map(Flush::deadline).filter(|at| *at != Nanos::NEVER);
        let check = self.keepalive.next_check().filter(|_| self.peer_eps.slots() > 0);
        let request = self.engine.awaited_handshakes().next().map(|_| self.keepalive.next_request());
        closes
            .chain(self.engine.pending().next_deadline(self.engine.peers()))
            .chain(check)
            .chain(request)
            .chain(self.cm.next_deadline())
            .min()
    }

    /// Cancels an operation; a send only if it is one of `which`. Returns true if the operation completes
    /// with [`Error::Cancelled`], or with an error that a part of it has had before.
    pub(crate) fn cancel(&mut self, id: RequestId, which: Cancel) -> bool {
        match self.reqs.role(id) {
            Some(Role::Send(op)) => {
                let (engine, mut wire, _) = self.split();
                engine.cancel_send(&mut wire, op, which)
            }
            Some(Role::Recv(op)) => self.cancel_recv(op),
            Some(Role::Rma(op)) => self.engine.cancel_rma(op),
            Some(Role::Stream) => self.cancel_stream_recv(id),
            Some(Role::Flush) => self.cancel_flush(id),
            Some(Role::Deferred) => self.deferred.cancel(id, &mut self.reqs),
            Some(Role::Forwarded) => self.reqs.forwarded(id).is_some_and(|id| self.cancel(id, which)),
            Some(Role::Group) => {
                let parts = self.reqs.parts_of(id);
                parts.into_iter().fold(false, |is_one, part| self.cancel(part, which) | is_one)
            }
            Some(Role::Announced | Role::Unstarted) | None => false,
        }
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

/// Panics in a child that has inherited a worker, whose memory and devices are its parent's. `forks` is their
/// number before the worker was made.
fn refuse_forked_child(forks: u32) {
    if ucs::sys::fork::generation() != forks {
        let me = std::process::id();
        panic!("process {me} uses the worker of the process that forked it: open one of its own");
    }
}

/// Has the flushes that cover a failed operation on memory report it, or the next one, if nobody waits for
/// it. Called before flushes of the same call of progress are reported.
#[cold]
fn on_rma_failed(core: &mut WorkerCore, token: u64, error: OpError) {
    let (OpError::Access(peer) | OpError::Aborted(peer, _) | OpError::Peer(peer, _)) = error else { return };
    let is_unreported = error.is_refusal() && core.reqs.is_detached(token);
    if is_unreported && !flushes::report_refusal(&mut core.flushes, peer, error) {
        core.engine.peers_mut().refused_ops.note(peer, error);
    }
}

/// Removes senders that have introduced themselves and are not there.
#[cold]
fn remove_absent(core: &mut WorkerCore) {
    let mut wire: Bound<'_, CompletionSink<'_>> = Bound {
        ifaces: &core.ifaces,
        peer_eps: &mut core.peer_eps,
        regs: &mut core.regs,
        rma_only: core.rma_only.as_ref(),
        sink: None,
        receiving: IfaceIdx(0),
    };
    let streams = &core.streams;
    let reaped = remove_unknown_peers(&mut core.engine, &mut wire, core.now, |peer| streams.has(peer));
    for lane in reaped {
        core.peer_eps.forget_lane(lane);
        if let Some((peer, rma_only)) = lane.first_of().zip(core.rma_only.as_ref()) {
            rma_only.remove_peer(peer);
        }
    }
}
