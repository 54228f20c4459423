//! State of a worker. `poll.rs` polls its interfaces, `timers.rs` does the periodic work, `events.rs`
//! completes operations. None of them runs user code: they return it as an [`Action`], run with nothing
//! borrowed.
//!
//! [`Action`]: crate::api::core::requests::Action

use std::rc::Weak;
use std::time::{Duration, Instant};
use ucs::time::{Clock as _, Nanos};
use uct::api::{DevKind, Ep as _, Iface as _};

use crate::address::WorkerId;
use crate::api::core::armed::ArmedFor;
use crate::api::core::clock::WorkerClock;
use crate::api::core::cm::WorkerCm;
use crate::api::core::deferred::DeferredOps;
use crate::api::core::ended::EndedConversations;
use crate::api::core::ep_config::EpConfigs;
use crate::api::core::ep_state::EpState;
use crate::api::core::flushes::Flush;
use crate::api::core::keepalive::KeepaliveTimer;
use crate::api::core::multi_recvs::MultiRecvs;
use crate::api::core::report::{Report, StatsDump};
use crate::api::core::requests::{RequestId, RequestParams, Requests, Role};
use crate::api::core::sink::CompletionSink;
use crate::api::mem::remote_writes::RemoteWrites;
use crate::api::stream::state::Streams;
use crate::cm::CmConfig;

use crate::lane::{Bound, FlushEnd, IfaceIdx, PeerEps, RegTable, RmaOnlyLane, WorkerIface, source};
use crate::rdm::io::PeerId;
use crate::rdm::{Cancel, Engine, Kind, Note};
use crate::wire::RawAddr;

/// Consecutive messages of one interface, less one, before the next is polled first (as
/// `UCX_POSIX_FIFO_MAX_POLL` of UCX).
pub(super) const MAX_CONSECUTIVE: u32 = 15;
/// Progress calls between two readings of the clock while the engine has no deadline.
pub(super) const CLOCK_EVERY: u32 = 256;

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
    pub(super) forks: u32,
    /// Lane polled first: the last with a message, or after [`MAX_CONSECUTIVE`] messages the one behind it.
    pub(super) first_iface: usize,
    pub(super) consecutive_left: u32,
    pub reqs: Requests,
    pub flushes: Vec<Flush>,
    /// Number of the last flush.
    pub flush_count: u32,
    pub streams: Streams,
    pub(super) now: Nanos,
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
    /// Notes for which the engine had no room.
    pub unsent_notes: Vec<(PeerId, Note)>,
    pub ended: EndedConversations,
    pub ep_configs: EpConfigs,
    pub armed_for: ArmedFor,
    pub(super) stats_dump: Option<StatsDump>,
    pub(super) clock: WorkerClock,
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
            unsent_notes: Vec::new(),
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
            || !self.unsent_notes.is_empty()
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
