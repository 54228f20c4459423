//! The interface of `posix`: its own FIFO to read, and the peers it has attached. Polling an idle one costs
//! one load of shared memory and no system call.

use super::addr;
use super::link::{Link, PeerFailure};
use super::peer::Peer;
use super::rx::{Rx, RxStats};
use super::seg::{INLINE, Shape};
use super::{DEV, Ep, Md, TL};
use crate::api::{
    self, AddrBuf, AmHandler, AmLimits, ArmStatus, Caps, Comp, ConnectError, DevKind, Error, Events,
    IfaceAttr, Latency, Linear, OpenError, OrderKind, Outcome, PollOne, RecvCallback, ResourcePerf, RmaPerf,
    Sent, Sink,
};
use crate::base::am::{AmTable, ErrorHandler, TableSink};
use crate::base::direct;
use crate::base::ep_table::FailedPeers;
use crate::base::pending::{Arbiter, TxRoom};
use crate::base::retry_sleep::RetrySleep;
use crate::host::Watch;
use crate::host::fd_server::{FdServer, Fetched, MAX_NAMES, Name, QueryResult, SocketNamespace};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::cell::{Cell, RefCell};
use std::iter;
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// CPU time for a message, ns.
const OVERHEAD: f64 = 10.0;

/// Estimates for a present-day machine.
pub(crate) const PERF: ResourcePerf = ResourcePerf::new(60.0, OVERHEAD, 25e9);

ucs::config_table! {
    /// Transport `posix`: shared memory between processes of one host.
    pub struct Config, prefix "UCX_POSIX_" {
        /// Messages in the receive FIFO before senders find no resource.
        pub fifo_size: u32 = "64", key "FIFO_SIZE", unit "messages", range 2..=65536,
            check |v| v.is_power_of_two() => "a power of two";
        /// Buffers for messages of more than 176 bytes, one to four for each message of the FIFO: the nearest
        /// such number is used. Fewer take less memory and, for messages of 2 to 8 KiB, are slower.
        pub fifo_bufs: u32 = "256", key "FIFO_BUFS", unit "buffers", range 2..=65536,
            check |v| v.is_power_of_two() => "a power of two";
        /// Longest message, id byte included. The default fits 16 KiB and a protocol's header.
        pub seg_size: u32 = "16640", key "SEG_SIZE", unit "bytes", range 192..=8388608;
        /// Receive buffers beside those of the FIFO, for messages that handlers keep without a copy.
        pub spare_bufs: u32 = "64", key "SPARE_BUFS", unit "buffers", range 0..=65536;
        /// Peers that may be connected to an interface at a time. Each takes 64 bytes of it once it connects.
        pub max_writers: u32 = "65536", key "MAX_WRITERS", unit "peers", range 1..=65536;
        /// Longest time for which the answer to a short message is not polled for in a ping-pong, so that its
        /// cache line stays with its writer. In use is most of an answer's usual time; slower answers are not
        /// delayed, and a poll waits for half of it at most. 0: no delay.
        pub poll_delay: Duration = "1us", key "POLL_DELAY";
        /// How long a peer's process may take to pass its memory; a stopped one does not answer. Calls that
        /// need it (`ensure_connected`, unpacking a key, `max_bcopy` if the peer's SEG_SIZE is not the
        /// default) wait so long, and sends find no resource. Then the peer is unreachable until it answers.
        pub answer_timeout: Duration = "10s", key "ANSWER_TIMEOUT";
        /// Directory of the sockets over which processes pass each other their memory, for containers that
        /// share no network namespace; the same one in all processes of a job. Empty: names of the network
        /// namespace, no files.
        pub socket_dir: String = "", key "SOCKET_DIR";
    }
}

/// An interface of `posix`. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Iface {
    pub(super) inner: Rc<Inner>,
}

#[repr(C)]
pub(super) struct Inner {
    /// With `pending`, all that an empty poll reads.
    rx: Rx,
    pub(super) pending: Arbiter,
    peers: RefCell<HashMap<Name, Weak<Peer>, FxBuildHasher>>,
    /// Peers that have closed and whose name was connected again: they are notified of the death too.
    closed_peers: RefCell<Vec<Weak<Peer>>>,
    failed_peers: FailedPeers<Peer>,
    handlers: AmTable,
    pub(super) attr: IfaceAttr,
    md: Md,
    retry_sleep: RetrySleep,
    /// Ends of the last waits in vain, of [`FIRST_ANSWER_WAIT`] and of [`BRIEF_ANSWER_WAIT`].
    last_timeouts: [Cell<Option<Instant>>; 2],
    pub(super) answer_timeout: Duration,
}

/// How long a send waits for the first answer of a peer's fd server. It mostly takes microseconds, and a few
/// time slices on a host with more running threads than processors. A program may make no call for long after
/// its first message, as it can with UCX. Only a process that is stopped takes longer.
const FIRST_ANSWER_WAIT: Duration = Duration::from_millis(250);
/// Wait for a first answer in calls that go on without it, and in sends for a time after a wait in vain.
const BRIEF_ANSWER_WAIT: Duration = Duration::from_millis(3);
/// After a wait in vain there is no other as long for so many times its length: peers that do not answer take
/// a small part of the time.
const PAUSE_FACTOR: u32 = 16;

impl Iface {
    /// Opens an interface with a memory domain of its own.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        Self::open_on(&Md::open(config)?, config)
    }

    /// Creates the segment and opens an interface on a memory domain that other interfaces may share.
    /// `SOCKET_DIR`, and `ANSWER_TIMEOUT` for keys, count as the domain was opened.
    pub fn open_on(md: &Md, config: &Config) -> Result<Self, OpenError> {
        let map_entries = Shape::map_entries_for(config.fifo_size, config.fifo_bufs);
        let shape = Shape {
            cells: config.fifo_size,
            map_entries,
            slots: map_entries + config.spare_bufs,
            slot_len: config.seg_size,
            writers: config.max_writers,
        };
        let remote_segments = md.remote_segments();
        let rx = Rx::create(shape, config.poll_delay, remote_segments.server())
            .map_err(|e| OpenError::memory(format_args!("transport '{TL}'"), &e))?;
        remote_segments.add_alarm(rx.alarm().clone());
        let inner = Inner {
            attr: attr(config),
            md: md.clone(),
            rx,
            peers: RefCell::default(),
            closed_peers: RefCell::default(),
            failed_peers: FailedPeers::default(),
            handlers: AmTable::default(),
            pending: Arbiter::default(),
            retry_sleep: RetrySleep::default(),
            last_timeouts: Default::default(),
            answer_timeout: config.answer_timeout,
        };
        Ok(Iface { inner: Rc::new(inner) })
    }

    /// Messages dropped because their id has no handler.
    pub fn dropped(&self) -> u64 {
        self.inner.handlers.dropped()
    }

    #[cfg(test)]
    pub(super) fn segment(&self) -> &super::seg::Segment {
        self.inner.rx.seg()
    }

    #[cfg(test)]
    pub(super) fn polls_until_check(&self) -> u32 {
        self.inner.rx.polls_until_check()
    }

    #[cfg(test)]
    pub(super) fn delays_polls(&self) -> bool {
        self.inner.rx.delays_polls()
    }

    #[cfg(test)]
    pub(super) fn peers_without_query(&self) -> usize {
        self.inner.peers.borrow().values().filter_map(Weak::upgrade).filter(|peer| peer.needs_query()).count()
    }

    /// Counters of the receive side.
    pub fn rx_stats(&self) -> RxStats {
        self.inner.rx.stats()
    }

    fn peer(&self, device: &[u8], iface: &[u8]) -> Result<Rc<Peer>, ConnectError> {
        let inner = &self.inner;
        let own = inner.rx.export();
        addr::check_device(device, own.server().namespace())?;
        let name = addr::unpack(iface)?;
        let mut peers = inner.peers.borrow_mut();
        let existing = peers.get(&name).and_then(Weak::upgrade);
        match existing {
            Some(peer) if !peer.is_closed() => return Ok(peer),
            Some(closed) => inner.keep_closed(&closed),
            None => {}
        }
        let peer = Rc::new(Peer::new(name));
        if inner.rx.is_corrupt() {
            // Answers could not arrive.
            peer.mark_failed(PeerFailure::Corrupt);
        } else if inner.rx.has_peer_failed() && peer.has_died(own.server()) {
            peer.mark_failed(PeerFailure::Dead);
        }
        if peers.len() == peers.capacity() {
            peers.retain(|_, peer| peer.strong_count() > 0);
        }
        peers.insert(name, Rc::downgrade(&peer));
        Ok(peer)
    }
}

impl Md {
    /// Opens a domain of `posix`. Peers are processes with the same `SOCKET_DIR`.
    pub fn open(config: &Config) -> Result<Md, OpenError> {
        let server = FdServer::get(SocketNamespace::new(&config.socket_dir)?)?;
        Ok(Md::new(TL, server, Watch::Owners, config.answer_timeout))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.md.remote_segments().remove_alarm(self.rx.alarm());
    }
}

fn attr(config: &Config) -> IfaceAttr {
    let max_am = config.seg_size as usize - 1;
    let rma = direct::limits();
    IfaceAttr {
        tl: TL,
        dev: DEV.into(),
        kind: DevKind::Shm,
        caps: Caps::all()
            - Caps::PUT_IMM
            - Caps::CONNECT_TO_EP
            - Caps::EVENT_SEND
            - Caps::SEND_TO_USER_QP
            - Caps::USER_RECV,
        am: AmLimits {
            max_short: INLINE - 1,
            max_bcopy: max_am,
            max_zcopy: max_am,
            max_hdr: max_am,
            max_iov: direct::MAX_IOV,
        },
        put: rma,
        get: rma,
        atomics: direct::atomics(),
        order: OrderKind::Ordered,
        am_id_bits: 8,
        device_addr_len: 8,
        iface_addr_len: 8,
        ep_addr_len: 0,
        tx_depth: Some(config.fifo_size as usize),
        latency: Latency { fixed: PERF.latency, per_ep: 0.0 },
        overhead: OVERHEAD,
        bandwidth: PERF.bandwidth,
        reg_cost: (1000.0, 0.1),
        rma: RmaPerf::all(Linear::new(20.0, 18e9), Linear::new(20.0, 18e9)),
    }
}

impl Inner {
    #[inline(always)]
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        let mut some_failed = false;
        let mut events = self.rx.poll(max, sink, |_| some_failed = true);
        if some_failed {
            events += self.report_failed_peers(max.saturating_sub(events), sink);
        }
        if self.pending.waiting() > 0 {
            return events + self.dispatch_pending(max, events);
        }
        events
    }

    /// Retries pending operations, at least one, however many messages have arrived. Not in a handler.
    #[cold]
    fn dispatch_pending(&self, max: usize, events: usize) -> usize {
        if max == 0 || self.rx.is_in_handler() {
            return 0;
        }
        let done = self.pending.dispatch(max.saturating_sub(events).max(1), TxRoom::PerEp);
        if done > 0 {
            self.retry_sleep.reset();
        }
        done
    }

    // HOT
    #[inline(always)]
    pub(super) fn on_sent(&self, to: Name, link: &Link) {
        let (ticket, tx_line) = link.next_tx();
        self.rx.on_sent(to, ticket, tx_line);
    }

    /// Attaches a peer's segment, waiting for at most `wait`. `None`: no answer; an error once it is overdue.
    pub(super) fn attach<'a>(
        &self,
        peer: &'a Peer,
        wait: Duration,
    ) -> Result<Option<&'a Link>, ConnectError> {
        let link = peer.attach(self.rx.export(), || {
            match self.fetch(peer, || self.peers_of_same_process(peer), wait) {
                // Segments fetched for other peers may hold the descriptors needed.
                Err(ConnectError::Op(Error::NoDescriptor)) if self.drop_fetched() => {
                    self.fetch(peer, Vec::new, wait)
                }
                fetched => fetched,
            }
        });
        if peer.has_failed() {
            self.rx.set_peer_failed();
        }
        link
    }

    /// Attaches a peer's segment for a send, which waits for the first answer.
    pub(super) fn attach_to_send<'a>(&self, peer: &'a Peer) -> Result<Option<&'a Link>, ConnectError> {
        self.attach_within(peer, FIRST_ANSWER_WAIT)
    }

    /// Attaches a peer's segment for a call that goes on without it.
    pub(super) fn attach_briefly<'a>(&self, peer: &'a Peer) -> Result<Option<&'a Link>, ConnectError> {
        self.attach_within(peer, BRIEF_ANSWER_WAIT)
    }

    /// Attaches a peer's segment. Waits for at most `most`, and less after waits in vain.
    fn attach_within<'a>(&self, peer: &'a Peer, most: Duration) -> Result<Option<&'a Link>, ConnectError> {
        let now = Instant::now();
        let may_wait = |wait: Duration, last: &Cell<Option<Instant>>| {
            wait <= most && last.get().is_none_or(|then| now - then >= wait * PAUSE_FACTOR)
        };
        let mut waits = [FIRST_ANSWER_WAIT, BRIEF_ANSWER_WAIT].into_iter().zip(&self.last_timeouts);
        let Some((wait, last)) = waits.find(|(wait, last)| !peer.has_query() && may_wait(*wait, last)) else {
            return self.attach(peer, Duration::ZERO);
        };
        let link = self.attach(peer, wait)?;
        if link.is_none() {
            last.set(Some(Instant::now()));
        }
        Ok(link)
    }

    /// Other peers of the same process to be queried, as many as fit beside `peer`.
    fn peers_of_same_process(&self, peer: &Peer) -> Vec<Name> {
        let owner = peer.name().owner();
        let peers = self.peers.borrow();
        let there = peers.iter().filter(|(name, _)| name.owner() == owner && **name != peer.name());
        let peers_without_query =
            there.filter_map(|(_, peer)| peer.upgrade()).filter(|peer| peer.needs_query());
        peers_without_query.take(MAX_NAMES - 1).map(|peer| peer.name()).collect()
    }

    /// Fetches a peer's segment from its fd server, with the process's other peers: waking it is slow.
    fn fetch(
        &self,
        peer: &Peer,
        others: impl FnOnce() -> Vec<Name>,
        wait: Duration,
    ) -> Result<Option<Fetched>, ConnectError> {
        let server = self.rx.export().server();
        let query = match peer.take_query() {
            Some(query) => query,
            None => server.query(iter::once(peer.name()).chain(others()), self.answer_timeout)?,
        };
        let answers = match server.wait(query, wait)? {
            QueryResult::Answered(answers) => answers,
            QueryResult::Pending(query) => {
                let overdue = query.is_overdue();
                peer.set_query(query);
                return if overdue { Err(ConnectError::NoAnswer) } else { Ok(None) };
            }
        };
        let mut ours = Err(ConnectError::Malformed);
        for (name, received) in answers {
            if name == peer.name() {
                ours = received;
            } else if let (Ok(received), Some(other)) = (received, self.find_peer(name)) {
                other.set_fetched(received, self.rx.alarm());
            }
        }
        if let Ok(fetched) = &ours {
            fetched.watch.subscribe(self.rx.alarm());
        }
        ours.map(Some)
    }

    fn find_peer(&self, name: Name) -> Option<Rc<Peer>> {
        self.peers.borrow().get(&name).and_then(Weak::upgrade)
    }

    fn drop_fetched(&self) -> bool {
        self.peers.borrow().values().filter_map(Weak::upgrade).filter(|peer| peer.drop_fetched()).count() > 0
    }

    pub(super) fn is_alive(&self, peer: &Peer) -> bool {
        peer.is_alive(self.rx.export().server())
    }

    pub(super) fn namespace(&self) -> &SocketNamespace {
        self.rx.export().server().namespace()
    }

    pub(super) fn set_peer_failed(&self) {
        self.rx.set_peer_failed();
    }

    /// A send has found the peer's segment corrupt: its endpoints fail with the next poll.
    #[cold]
    pub(super) fn on_peer_corrupt(&self, peer: &Peer) {
        self.rx.set_peer_failed();
        if peer.is_found_corrupt() {
            self.rx.resume_reporting();
        }
    }

    /// Whether a peer is known to receive nothing any more; after its death, once all it sent is read.
    pub(super) fn is_unreachable(&self, peer: &Peer) -> bool {
        let server = self.rx.export().server();
        peer.is_send_failing()
            || self.rx.has_unreported_failure() && peer.has_died(server) && self.is_drained(peer)
    }

    /// Whether all is read that a dead peer can have sent, whatever others send.
    fn is_drained(&self, peer: &Peer) -> bool {
        self.rx.has_read(peer.drain_limit(|| self.rx.claimed_end()))
    }

    /// Whether a peer can still receive, or messages of it may be unread.
    pub(super) fn is_alive_or_undrained(&self, peer: &Peer) -> bool {
        !peer.has_failed() && (self.is_alive(peer) || !self.is_drained(peer))
    }

    #[cold]
    fn keep_closed(&self, closed: &Rc<Peer>) {
        let mut closed_peers = self.closed_peers.borrow_mut();
        if closed_peers.len() == closed_peers.capacity() {
            closed_peers.retain(|peer| peer.strong_count() > 0);
        }
        closed_peers.push(Rc::downgrade(closed));
    }

    /// Fails the endpoints of dead peers and notifies up to `max` of them. Returns how many.
    #[cold]
    fn report_failed_peers<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.collect_failed_peers();
        let reported = self.failed_peers.notify(max, |peer| &peer.eps, |peer| peer.cause(), sink);
        if !self.failed_peers.is_empty() {
            self.rx.resume_reporting();
        }
        reported
    }

    fn collect_failed_peers(&self) {
        let mut peers: Vec<Rc<Peer>> = self.peers.borrow().values().filter_map(Weak::upgrade).collect();
        peers.extend(self.closed_peers.borrow().iter().filter_map(Weak::upgrade));
        let (server, remote_segments) = (self.rx.export().server(), self.md.remote_segments());
        // Holds the deaths until all their peers are found. Later ones raise the alarm again.
        let dead = remote_segments.take_dead(self.rx.alarm());
        let lost: Vec<Rc<Peer>> = peers.iter().filter(|peer| peer.is_unreported(server)).cloned().collect();
        let is_corrupt = |peer: &Peer| match self.rx.is_corrupt() {
            true => !peer.is_reported() && !peer.has_died(server),
            false => peer.is_found_corrupt(),
        };
        let corrupt: Vec<Rc<Peer>> = peers.into_iter().filter(|peer| is_corrupt(peer)).collect();
        let owners = lost.iter().map(|peer| peer.name().owner());
        owners.chain(dead.iter().map(|(owner, _)| *owner)).for_each(|owner| remote_segments.forget(owner));
        if !dead.is_empty() || !lost.is_empty() || !corrupt.is_empty() {
            self.rx.set_peer_failed();
        }
        lost.iter().for_each(|peer| peer.mark_failed(PeerFailure::Dead));
        corrupt.iter().for_each(|peer| peer.mark_failed(PeerFailure::Corrupt));
        self.failed_peers.add(lost.into_iter().chain(corrupt), |peer| &peer.eps);
    }
}

impl api::Iface for Iface {
    type Md = Md;
    type Ep = Ep;

    fn attr(&self) -> &IfaceAttr {
        &self.inner.attr
    }

    fn md(&self) -> &Md {
        &self.inner.md
    }

    fn device_addr(&self) -> AddrBuf {
        addr::pack_device(self.inner.rx.export().server().namespace())
    }

    fn iface_addr(&self) -> AddrBuf {
        addr::pack(self.inner.rx.export().name())
    }

    fn reachable(&self, device: &[u8], iface: &[u8]) -> Result<(), ConnectError> {
        addr::check_device(device, self.inner.rx.export().server().namespace())?;
        addr::unpack(iface).map(drop)
    }

    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Ep, ConnectError> {
        Ok(Ep::new(self.inner.clone(), self.peer(device, iface)?))
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.inner.handlers.set(id, handler);
    }

    fn set_error_handler(&self, handler: Option<ErrorHandler>) {
        self.inner.handlers.set_error(handler);
    }

    // HOT
    #[inline(always)]
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner.poll(max, sink)
    }

    // HOT
    #[inline(always)]
    fn is_idle(&self) -> bool {
        self.inner.pending.waiting() == 0 && self.inner.rx.is_idle()
    }

    // HOT
    #[inline(always)]
    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        match self.inner.pending.waiting() {
            0 => self.inner.rx.poll_one(callback),
            _ => PollOne::NeedsPoll,
        }
    }

    #[inline]
    fn progress(&self, max: usize) -> usize {
        self.inner.poll(max, &mut TableSink(&self.inner.handlers))
    }

    fn flush(&self, _comp: Comp) -> Outcome {
        direct::fence();
        Ok(Sent::Done)
    }

    fn fence(&self) -> Outcome {
        direct::fence();
        Ok(Sent::Done)
    }

    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.inner.rx.event_fd()
    }

    fn arm(&self, _events: Events) -> Result<bool, Error> {
        // Peers do not signal free room, so a caller with pending operations polls.
        if self.inner.pending.waiting() > 0 {
            return Ok(false);
        }
        self.inner.retry_sleep.reset();
        self.inner.rx.arm()
    }

    /// With pending operations the caller sleeps for a while: 50 us at first, 1 ms at most. To signal free
    /// room the reader would need a fence after each release.
    fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        let armed = match self.inner.pending.waiting() {
            0 => self.arm(events)?,
            _ => self.inner.rx.arm()?,
        };
        Ok(match (armed, self.inner.pending.waiting()) {
            (false, _) => ArmStatus::Busy,
            (true, 0) => ArmStatus::Armed,
            (true, _) => ArmStatus::ArmedFor(self.inner.retry_sleep.take()),
        })
    }
}
