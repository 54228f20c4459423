//! State and progress of a worker. Never runs user code: returns it as [`Action`], run with nothing borrowed.

use crate::api::core::requests::NO_MESSAGE;
use std::rc::{Rc, Weak};
use std::time::Duration;
use ucs::time::Clock as _;

use ucs::coll::slots::SlotId;
use ucs::time::Nanos;
use uct::api::{DevKind, Ep as _, Iface as _, PollOne};

use crate::api::am::queue::AmQueue;
use crate::api::core::clock::Time;
use crate::api::core::ep_config::EpConfigs;
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::flushes::Flush;
use crate::api::core::keepalive::KeepaliveTimers;
use crate::api::core::multi_recvs::MultiRecvs;
use crate::api::core::process::process;
use crate::api::core::report::{Dump, Report};
use crate::api::core::requests::{Action, Ended, Requests, Role};
use crate::api::core::sink::CompletionSink;
use crate::api::mem::remote_writes::{RemoteWrite, RemoteWrites};
use crate::api::stream::state::Streams;
use crate::token::UserToken;

use crate::lane::{Beside, Bound, FlushEnd, Intake, LaneIdx, Paths, Regs, Short, WorkerIface, source};
use crate::rdm::io::{PeerError, PeerId};
use crate::rdm::{Engine, EngineEvent, Kind, RecvStatus};
use crate::wire::RawAddr;

/// Consecutive messages of one lane, less one, before the next is polled first (`UCX_POSIX_FIFO_MAX_POLL`).
const ROW: u32 = 15;
/// Progress calls between two readings of the clock while the engine has no deadline.
const CLOCK_EVERY: u32 = 256;

/// Result of a fast poll.
pub(crate) enum FastPoll {
    Nothing,
    /// Received a message without notification. Other lanes may have more.
    Taken,
    /// Work remains for [`WorkerCore::poll`].
    More(PollRest),
}

/// Work that a fast poll leaves.
pub(crate) enum PollRest {
    /// The whole poll.
    All,
    /// A lane, its events so far, and the number of following lanes not yet polled.
    From { lane: usize, had: usize, left: usize },
    /// The events of a received message.
    Events,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectCheck {
    /// At connection, since another lane could serve instead.
    Now,
    /// With the first message.
    Later,
}

/// State of a worker. Fields drop in order: buffers outlive engine and lanes.
#[repr(C)]
pub(crate) struct WorkerCore {
    pub engine: Engine,
    pub paths: Paths,
    pub lanes: Vec<WorkerIface>,
    /// Whether only arrivals can cause work. Cleared by borrows except [`super::Worker::core_keep_idle`].
    pub idle: bool,
    calls: u32,
    /// Lane polled first: the last with a message, or after [`ROW`] messages the one behind it.
    first: usize,
    row: u32,
    pub reqs: Requests,
    pub flushes: Vec<Flush>,
    pub streams: Streams,
    now: Nanos,
    pub batch: usize,
    /// Identifier of this process in addresses.
    pub process: u64,
    /// Kernel access to memory of processes on this host.
    pub beside: Option<Beside>,
    /// Dropped after the lanes: memory stays registered while a device may access it.
    pub regs: Regs,
    pub eps: Vec<Weak<EpState>>,
    pub flushed: Vec<FlushEnd>,
    /// Dropped after engine and lanes, which write to buffers of dropped requests.
    pub multis: MultiRecvs,
    pub keepalive: KeepaliveTimers,
    pub written: RemoteWrites,
    pub selection: EpConfigs,
    dump: Option<Dump>,
    time: Time,
}

impl Drop for WorkerCore {
    fn drop(&mut self) {
        if let Some(dump) = self.dump.take().filter(Dump::at_exit) {
            dump.write(&self.report());
        }
    }
}

impl WorkerCore {
    pub(crate) fn new(
        engine: Engine,
        (lanes, regs): (Vec<WorkerIface>, Regs),
        batch: usize,
        keepalive: Duration,
        (selection, dump, time): (EpConfigs, Option<Dump>, Time),
    ) -> Self {
        let now = time.now();
        WorkerCore {
            engine,
            paths: Paths::default(),
            lanes,
            process: process(),
            beside: None,
            regs,
            reqs: Requests::new(),
            eps: Vec::new(),
            flushes: Vec::new(),
            flushed: Vec::new(),
            streams: Streams::default(),
            multis: MultiRecvs::new(),
            batch,
            keepalive: KeepaliveTimers::new(keepalive, now),
            written: RemoteWrites::default(),
            selection,
            dump,
            time,
            now,
            idle: false,
            first: 0,
            row: ROW,
            calls: CLOCK_EVERY,
        }
    }

    pub(crate) fn report(&self) -> Report {
        Report::of(&self.engine, &self.lanes, self.beside.as_ref())
    }

    #[inline(always)]
    pub(crate) fn split(&mut self) -> (&mut Engine, Bound<'_, CompletionSink<'_>>, &mut Requests) {
        let bound = Bound {
            lanes: &self.lanes,
            paths: &mut self.paths,
            regs: &mut self.regs,
            beside: self.beside.as_ref(),
            sink: None,
            receiving: LaneIdx(0),
        };
        (&mut self.engine, bound, &mut self.reqs)
    }

    /// Polls for one short message, lane by lane: the whole work of most progress calls. // HOT
    #[inline(always)]
    pub(crate) fn look(&mut self, ams: &AmQueue) -> FastPoll {
        self.calls -= 1;
        if self.calls == 0 {
            return FastPoll::More(PollRest::All);
        }
        if !self.idle {
            self.idle = self.is_still(ams);
            if !self.idle {
                return FastPoll::More(PollRest::All);
            }
        }
        let mut left = self.lanes.len();
        loop {
            if left == 0 {
                return FastPoll::Nothing;
            }
            left -= 1;
            let at = self.first;
            self.first = if at + 1 == self.lanes.len() { 0 } else { at + 1 };
            let lane = &self.lanes[at];
            let glance = match lane.iface.fast_iface() {
                Some(iface) => {
                    let sink = CompletionSink { reqs: &mut self.reqs, streams: &mut self.streams, ams };
                    iface.poll_one(Short { engine: &mut self.engine, sink, wire: lane.wire })
                }
                None => self.look_elsewhere(at, ams),
            };
            match glance {
                PollOne::Empty => {}
                PollOne::Received { more: false } => {
                    self.stay(at);
                    let news = self.engine.has_events() || !self.streams.is_fully_idle();
                    return if news { FastPoll::More(PollRest::Events) } else { FastPoll::Taken };
                }
                PollOne::Received { more: true } => {
                    return FastPoll::More(PollRest::From { lane: at, had: 1, left });
                }
                PollOne::NeedsPoll => return FastPoll::More(PollRest::From { lane: at, had: 0, left }),
            }
        }
    }

    // HOT
    #[inline(always)]
    fn stay(&mut self, at: usize) {
        match self.row {
            0 => self.row = ROW,
            row => (self.first, self.row) = (at, row - 1),
        }
    }

    /// Polls a lane of a transport without inlined fast path. // HOT
    #[inline(never)]
    fn look_elsewhere(&mut self, at: usize, ams: &AmQueue) -> PollOne {
        let lane = &self.lanes[at];
        let sink = CompletionSink { reqs: &mut self.reqs, streams: &mut self.streams, ams };
        lane.iface.poll_one(Short { engine: &mut self.engine, sink, wire: lane.wire })
    }

    /// Whether only arrivals can cause work.
    #[inline(always)]
    fn is_still(&self, ams: &AmQueue) -> bool {
        // A handler may have called progress while other active messages wait.
        self.engine.is_fully_idle()
            && self.flushes.is_empty()
            && self.streams.is_idle()
            && !ams.has_messages()
    }

    /// Does the work that a fast poll left. Returns the number of events, including the fast poll's.
    #[inline(never)]
    pub(crate) fn poll(&mut self, rest: PollRest, ams: &AmQueue) -> usize {
        let mut events = match rest {
            PollRest::All => return self.poll_all(ams),
            PollRest::Events => 1,
            PollRest::From { lane, had, left } => self.poll_from(lane, had, left, ams),
        };
        if events > 0 && self.streams.has_waiters() {
            self.progress_streams();
        }
        if !self.engine.is_idle() {
            events += self.resume(self.now);
        }
        events
    }

    /// Polls `lane`, which had `had` events, and the `left` lanes after it, cyclically.
    fn poll_from(&mut self, lane: usize, had: usize, left: usize, ams: &AmQueue) -> usize {
        let mut events = had;
        if had < self.batch {
            events += self.poll_lane(lane, self.batch - had, self.now, ams);
        }
        let lanes = self.lanes.len();
        for at in (lane + 1..lanes).chain(0..lane).take(left) {
            if !self.lanes[at].iface.is_idle() {
                events += self.poll_lane(at, self.batch, self.now, ams);
            }
        }
        events
    }

    fn poll_all(&mut self, ams: &AmQueue) -> usize {
        let now = self.roughly_now();
        if self.engine.is_over_limit() && self.may_rest() {
            return 0;
        }
        let mut events = 0;
        for at in 0..self.lanes.len() {
            if !self.lanes[at].iface.is_idle() || self.engine.is_draining() {
                events += self.poll_lane(at, self.batch, now, ams);
            }
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
    fn may_rest(&mut self) -> bool {
        let streams = self.streams.is_idle() && !self.streams.has_waiters();
        self.flushes.is_empty() && streams && self.engine.may_stop_polling()
    }

    /// Polls one lane for up to `max` events. Out of line, so that an empty poll stays small. // HOT
    #[inline(never)]
    fn poll_lane(&mut self, at: usize, max: usize, now: Nanos, ams: &AmQueue) -> usize {
        let lane = &self.lanes[at];
        let bound = Bound {
            lanes: &self.lanes,
            paths: &mut self.paths,
            regs: &mut self.regs,
            beside: self.beside.as_ref(),
            sink: Some(CompletionSink { reqs: &mut self.reqs, streams: &mut self.streams, ams }),
            receiving: LaneIdx(at as u8),
        };
        let mut intake =
            Intake { engine: &mut self.engine, bound, wire: lane.wire, now, flushed: &mut self.flushed };
        let taken = lane.iface.poll(max, &mut intake);
        if taken == 0 && intake.engine.is_draining() {
            intake.engine.on_wire_drained(&mut intake.bound, lane.wire);
        }
        taken
    }

    /// Time of the last clock reading; exact only while the engine has a deadline.
    #[inline]
    fn roughly_now(&mut self) -> Nanos {
        if self.calls == 0 || self.engine.needs_time() {
            if self.calls == 0 {
                self.calls = CLOCK_EVERY;
            }
            self.now = self.time.now();
            if let Some(dump) = self.dump.as_ref().filter(|dump| dump.is_called()) {
                dump.write(&self.report());
            }
            if self.keepalive.is_due(self.now) {
                self.call_again(self.now);
                self.look_after_peers(self.now);
            }
        }
        self.now
    }

    /// Whether no completion or message needs notification. // HOT
    #[inline(always)]
    pub(crate) fn has_nothing_to_tell(&self) -> bool {
        let engine = &self.engine;
        let quiet = !engine.has_events() && !engine.has_unexpected(Kind::Am) && !engine.is_over_limit();
        quiet && self.streams.is_idle() && self.flushes.is_empty()
    }

    /// Whether progress has events to deliver without further arrivals.
    pub(crate) fn has_ends(&self) -> bool {
        let engine = &self.engine;
        engine.has_events() || engine.is_draining() || !self.streams.is_idle() || !self.flushed.is_empty()
    }

    pub(crate) fn now(&self) -> Nanos {
        self.time.now()
    }

    pub(crate) fn woke(&mut self) {
        self.calls = 1;
    }

    /// Completes operations until one has an action to run; `None` when all are complete. // HOT
    #[inline]
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        while let Some(out) = self.engine.take_event() {
            let act = match out {
                EngineEvent::RmaDone { user, result } => {
                    let len = match self.reqs.role(SlotId::from_raw(user as u32)) {
                        Some(Role::One(_, len)) => len,
                        _ => 0,
                    };
                    let status = RecvStatus { len, ..NO_MESSAGE };
                    self.end(user, result.map(|()| status).map_err(Error::from))
                }
                EngineEvent::SendDone { user, result } => {
                    self.end(user, result.map(|()| NO_MESSAGE).map_err(Error::from))
                }
                EngineEvent::RecvDone { user, result } => match UserToken::unpack(user) {
                    UserToken::Request(_) => self.end(user, result.map_err(Error::from)),
                    UserToken::Stream(peer) => {
                        self.on_stream_recv_done(peer, result);
                        None
                    }
                },
                EngineEvent::MultiRecvMessage { user, at, result } => self.part_ended(user, at, result),
                EngineEvent::MultiRecvDone { user, result } => self.multi_ended(user, result),
                EngineEvent::RemoteWrite { from, len, cq_data } => {
                    self.written.push(RemoteWrite { from, len, cq_data });
                    None
                }
                EngineEvent::PeerFailed { peer, fault } => self.peer_failed(peer, fault),
            };
            if act.is_some() {
                return act;
            }
        }
        if self.streams.is_idle() { None } else { self.next_stream_action() }
    }

    #[cold]
    fn next_stream_action(&mut self) -> Option<Action> {
        while let Some((id, ended)) = self.streams.next_ended() {
            if let Some(act) = self.reqs.settle(id, ended) {
                return Some(act);
            }
        }
        None
    }

    #[inline]
    fn end(&mut self, user: u64, ended: Ended) -> Option<Action> {
        self.reqs.settle(SlotId::from_raw(user as u32), ended)
    }

    /// Makes the endpoints of a failed peer refuse operations, and notifies them.
    #[cold]
    fn peer_failed(&mut self, peer: PeerId, fault: PeerError) -> Option<Action> {
        let error = Error::of_peer(peer, fault);
        self.eps.retain(|ep| ep.strong_count() > 0);
        let hit: Vec<Rc<EpState>> = self
            .eps
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|ep| ep.peer == peer && ep.fail(error))
            .collect();
        // Operations of a failed further lane fall back to another lane.
        if !self.engine.is_further_lane(peer) {
            self.paths.forget(peer);
        }
        if let Some(beside) = &self.beside {
            beside.forget(peer);
        }
        if self.streams.has_waiters() {
            self.progress_streams();
        }
        if hit.is_empty() {
            tracing::debug!(peer = peer.0, "peer without an endpoint failed: {fault}");
            return None;
        }
        Some(Action::Failed(hit, error))
    }

    /// Adds a peer to engine and lanes. Returns the existing peer if there is one.
    pub(crate) fn add_peer(
        &mut self,
        route: &crate::lane::Route<'_>,
        check: ConnectCheck,
    ) -> Result<PeerId, uct::api::ConnectError> {
        let lane = &self.lanes[usize::from(route.lane.0)];
        let ep = lane.iface.connect(&route.entry.device, &route.entry.iface)?;
        if check == ConnectCheck::Now {
            // A peer in handshake is reachable.
            ep.begin_connecting()?;
        }
        let addr = RawAddr::from_bytes(&route.raw);
        let peer = self.engine.add_peer(lane.wire, addr, source(&route.raw));
        if self.paths.get(peer).is_none() {
            self.paths.set(peer, route.lane, ep);
        }
        Ok(peer)
    }

    pub(crate) fn is_self(&self, peer: PeerId) -> bool {
        let Some(path) = self.paths.get(peer) else { return false };
        let iface = &self.lanes[usize::from(path.lane.0)].iface;
        iface.attr().kind == DevKind::Loopback
            && path.ep.is_connected(&iface.device_addr(), &iface.iface_addr())
    }

    /// Whether an operation may be waiting for lane resources.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.engine.waits_for_room() || self.flushes.iter().any(Flush::waits_for_lane)
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let closes = self.flushes.iter().map(Flush::deadline).filter(|at| *at != Nanos::NEVER);
        let alive = self.keepalive.due().filter(|_| self.paths.slots() > 0);
        let call = self.engine.awaited_handshakes().next().map(|_| self.keepalive.call());
        closes.chain(self.engine.next_deadline()).chain(alive).chain(call).min()
    }

    /// Cancels an operation. Returns true if it completes with [`Error::Cancelled`].
    pub(crate) fn cancel(&mut self, id: SlotId) -> bool {
        match self.reqs.role(id) {
            Some(Role::Send(op)) => {
                let (engine, mut wire, _) = self.split();
                engine.cancel_send(&mut wire, op)
            }
            Some(Role::Recv(op)) => self.cancel_recv(op),
            Some(Role::One(op, _)) => self.engine.cancel_rma(op),
            Some(Role::Stream(peer)) => self.cancel_stream_recv(peer, id),
            Some(Role::Flush) => self.cancel_flush(id),
            Some(Role::Announced) | None => false,
        }
    }
}
