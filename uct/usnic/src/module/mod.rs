//! The module: every endpoint of one device, and what they share.
//!
//! * `core`: pool, hotel, channels and lists. * `endpoint`: one peer. * `post`: the order of sends.
//! * `receive`: datagrams that arrive. * `acked`: acknowledgements and losses.
//! * `timers`: guests that leave the hotel. * `peers`: connections, from the request to the death.
//! * `path`: what the path to a peer carries. * `pieces`: segments that it no longer carries whole.
//! * `check`: the obligations.

mod acked;
mod check;
mod core;
mod endpoint;
mod path;
mod peers;
mod pieces;
mod post;
mod receive;
mod timers;

pub use core::Posted;

use self::core::Core;
use crate::channel::ChannelId;
use crate::config::Config;
use crate::fragment::{Fragment, LargeFrag};
use crate::header::{CHUNK_HEADER, FRAG_HEADER, Head, LONG_HELLO, MAX_FLOWS};
use crate::segment::SegId;
use crate::seq::Seq;
use crate::stats::Stats;
use endpoint::{Endpoint, State};
use std::collections::HashMap;

/// Longest datagram that any network takes.
const MAX_DATAGRAM: usize = 65_507;

/// A connection of this module. It names one peer until the peer is dead, and nobody afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct EpId(pub(crate) u32);

impl EpId {
    /// Number of the connection, as datagrams name it.
    pub fn as_u32(self) -> u32 {
        self.0
    }

    const INDEX_BITS: u32 = 20;

    fn new(index: u32, generation: u32) -> EpId {
        EpId((index + 1) | generation << Self::INDEX_BITS)
    }

    fn index(self) -> Option<usize> {
        ((self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize).checked_sub(1)
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The peer has never answered.
    Unreachable,
    /// The peer answered once, and does no longer.
    Unresponsive,
    /// The peer answers, and a datagram of this length was sent to it many times and never arrived.
    Undelivered {
        /// Bytes of the datagram.
        len: u32,
    },
    /// Another module has taken the peer's place, or the peer has ended the connection.
    Restarted,
    /// The peer has said goodbye.
    Left,
    /// The peer broke the rules.
    Violation,
    /// [`Module::disconnect`].
    Disconnected,
}

/// Why a send is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// The connection has ended.
    Gone,
    /// Longer than a segment: see [`Module::longest_small`].
    TooLong,
}

/// The layer above, which takes what arrives. It must not call the module from within.
pub trait Sink {
    /// A peer has asked for a connection, which now exists.
    fn on_accept(&mut self, ep: EpId, node: u64);
    /// A connection has ended. Targets of its incomplete fragments were aborted before.
    fn on_dead(&mut self, ep: EpId, node: u64, why: CloseReason);
    /// A whole fragment.
    fn on_frag(&mut self, ep: EpId, head: &Head, payload: &[u8]);
    /// The first chunk of a fragment of `total` bytes. Returns the target of its chunks; `None` to drop them.
    fn on_first_chunk(&mut self, ep: EpId, head: &Head, total: u32) -> Option<u64>;
    /// Bytes of a fragment, which belong `offset` bytes behind the start of the target.
    fn on_chunk(&mut self, target: u64, offset: u32, bytes: &[u8]);
    /// The search for what the path to a peer carries has ended: datagrams of `carried` bytes arrive, those
    /// of `wanted` bytes do not. Segments are as long.
    fn on_path(&mut self, _ep: EpId, _node: u64, _carried: u32, _wanted: u32) {}
    /// The last chunk has come; or, if not `whole`, no more will come.
    fn on_last_chunk(&mut self, ep: EpId, target: u64, head: &Head, whole: bool);
}

/// Bytes of large fragments: the document's convertor.
pub trait Source {
    /// Copies bytes of a fragment. Returns `false` if they are no longer there: the fragment is aborted.
    fn fetch(&mut self, token: u64, offset: u32, to: &mut [u8]) -> bool;
    /// The last byte was copied, or the fragment was aborted. *"If last chunk of fragment sent, perform
    /// callback"* (Fragment sending).
    fn on_copied(&mut self, token: u64);
}

/// A source without fragments.
pub struct NoSource;

impl Source for NoSource {
    fn fetch(&mut self, _token: u64, _offset: u32, _to: &mut [u8]) -> bool {
        false
    }

    fn on_copied(&mut self, _token: u64) {}
}

/// Reliable delivery of fragments to peers over datagrams. It does no I/O and has no clock: the owner passes
/// in the time and the datagrams that arrive, and sends those that [`poll_send`](Self::poll_send) returns.
///
/// Each call takes the time in nanoseconds, which must not go back. Datagrams that wait are to be passed in
/// before [`on_time`](Self::on_time) is called: after a pause the acknowledgements are there, and the timers
/// need not expire.
pub struct Module {
    core: Core,
    endpoints: Vec<Option<Box<Endpoint>>>,
    generations: Vec<u16>,
    free: Vec<u32>,
    by_node: HashMap<u64, u32>,
    serial: u32,
    deferred: Option<receive::Deferred>,
}

impl Module {
    /// Creates a module without peers.
    ///
    /// # Panics
    /// Panics if the settings contradict each other: a window that is no power of two or below 64, channels
    /// whose MTU does not hold what they carry.
    pub fn new(config: Config, now: u64) -> Module {
        let (tiny, data) = (config.tiny as usize + FRAG_HEADER, config.data.mtu as usize);
        assert!(config.window.is_power_of_two() && config.window >= 64, "a window of {}", config.window);
        assert!(config.window <= 4096, "a selective acknowledgement covers 4096 segments");
        assert!(
            config.priority.mtu as usize >= tiny.max(LONG_HELLO),
            "tiny fragments do not fit their channel"
        );
        assert!(data > CHUNK_HEADER && data >= tiny, "the MTU of the data channel is {data}");
        assert!(config.credits > 0 && config.quantum > 0 && config.flows > 0, "nothing could be sent");
        assert!(
            usize::from(config.flows) <= MAX_FLOWS && data <= MAX_DATAGRAM,
            "{} flows of {data} bytes",
            config.flows
        );
        Module {
            core: Core::new(config, now),
            endpoints: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_node: HashMap::new(),
            serial: 0,
            deferred: None,
        }
    }

    /// Settings.
    pub fn config(&self) -> &Config {
        &self.core.config
    }

    /// Counters so far.
    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// Connections, and requests for one.
    pub fn peers(&self) -> usize {
        self.by_node.len()
    }

    fn index(&self, ep: EpId) -> Option<usize> {
        let index = ep.index()?;
        self.endpoints.get(index)?.as_ref().is_some_and(|endpoint| endpoint.id == ep).then_some(index)
    }

    fn endpoint(&self, ep: EpId) -> Option<&Endpoint> {
        self.endpoints[self.index(ep)?].as_deref()
    }

    /// Whether the connection exists and its peer has answered.
    pub fn is_open(&self, ep: EpId) -> bool {
        self.endpoint(ep).is_some_and(|endpoint| endpoint.state == State::Open)
    }

    /// Connection to a node, if there is one.
    pub fn find(&self, node: u64) -> Option<EpId> {
        let index = *self.by_node.get(&node)?;
        self.endpoints[index as usize].as_ref().map(|endpoint| endpoint.id)
    }

    /// Longest payload that [`send`](Self::send) takes.
    pub fn longest_small(&self, ep: EpId) -> usize {
        match self.endpoint(ep) {
            Some(endpoint) if endpoint.state == State::Open => endpoint.mtu as usize - FRAG_HEADER,
            // The peer's MTU is not known yet.
            _ => (peers::MIN_MTU as usize - FRAG_HEADER).min(self.core.config.tiny as usize),
        }
    }

    /// Bits of the layer above a peer, which are its [`Config::features`]; 0 before it has answered.
    #[inline]
    pub fn features(&self, ep: EpId) -> u8 {
        self.endpoint(ep).map_or(0, |endpoint| endpoint.features)
    }

    /// Sends a fragment that fits a segment, from up to two places. *"If the fragment being sent is small
    /// enough, has contiguous data, and very few command queue send WQEs have been consumed, `usnic_send()`
    /// does a fastpath send"*: then the datagram to send is returned. Else the bytes are copied and queued.
    pub fn send(
        &mut self,
        now: u64,
        ep: EpId,
        head: &Head,
        parts: [&[u8]; 2],
    ) -> Result<Option<Posted>, SendError> {
        self.send_small(now, ep, head, parts, false)
    }

    /// Sends a fragment as [`send`](Self::send) does, which a request of the peer asks for. While it is
    /// queued it counts in [`replies`](Self::replies).
    pub fn send_reply(
        &mut self,
        now: u64,
        ep: EpId,
        head: &Head,
        parts: [&[u8]; 2],
    ) -> Result<Option<Posted>, SendError> {
        self.send_small(now, ep, head, parts, true)
    }

    /// Replies to a peer that wait to be sent the first time: for an owner that gives the module no more of
    /// them while a peer acknowledges nothing.
    pub fn replies(&self, ep: EpId) -> u32 {
        self.endpoint(ep).map_or(0, |endpoint| endpoint.queue.replies)
    }

    #[inline]
    fn send_small(
        &mut self,
        now: u64,
        ep: EpId,
        head: &Head,
        parts: [&[u8]; 2],
        is_reply: bool,
    ) -> Result<Option<Posted>, SendError> {
        // So that the segment acknowledges what has been received.
        self.finish_deferred();
        let index = self.index(ep).ok_or(SendError::Gone)?;
        let len = parts[0].len() + parts[1].len();
        if len > self.longest_small(ep) {
            return Err(SendError::TooLong);
        }
        let core = &mut self.core;
        let endpoint = self.endpoints[index].as_deref_mut().ok_or(SendError::Gone)?;
        let is_tiny = len <= core.config.tiny as usize && core.channel(ChannelId::Priority).is_lightly_used();
        let seg = endpoint.new_frag(core, head, parts, is_tiny);
        endpoint.await_peer(core, now);
        if is_tiny && endpoint.may_send_at_once(core, now) {
            core.stats.sent_at_once += 1;
            return Ok(Some(endpoint.send_segment(core, now, seg, ChannelId::Priority, true)));
        }
        core.segments[seg].is_reply = is_reply;
        endpoint.queue.replies += u32::from(is_reply);
        if is_tiny {
            endpoint.queue.priority().push_back(seg);
            core.tiny_queued += 1;
        } else {
            endpoint.queue.data().push_back(Fragment::Small(seg));
        }
        endpoint.make_ready(core);
        Ok(None)
    }

    /// Sends a fragment of any length but 0 in chunks. Its bytes are fetched from the source, under `token`,
    /// when they are sent.
    pub fn send_large(
        &mut self,
        now: u64,
        ep: EpId,
        head: &Head,
        total: u32,
        token: u64,
    ) -> Result<(), SendError> {
        debug_assert!(total != 0);
        let index = self.index(ep).ok_or(SendError::Gone)?;
        let endpoint = self.endpoints[index].as_deref_mut().ok_or(SendError::Gone)?;
        let frag = LargeFrag { head: *head, id: None, total, offset: 0, token };
        endpoint.queue.data().push_back(Fragment::Large(frag));
        endpoint.await_peer(&mut self.core, now);
        endpoint.make_ready(&mut self.core);
        Ok(())
    }

    /// Sets whether the layer above waits for something from a peer: then its silence is its death, also if
    /// everything sent is acknowledged.
    pub fn set_expecting(&mut self, now: u64, ep: EpId, expecting: bool) {
        let Some(index) = self.index(ep) else { return };
        if let Some(endpoint) = self.endpoints[index].as_deref_mut() {
            endpoint.expecting = expecting;
            if expecting {
                endpoint.await_peer(&mut self.core, now);
            }
        }
    }

    /// Bytes of a datagram to send, until it is [completed](Self::completed).
    pub fn bytes(&self, posted: &Posted) -> &[u8] {
        let segment = &self.core.segments[SegId(posted.seg)];
        &segment.buf[..segment.len as usize]
    }

    /// Takes the completion of a send: the channel no longer needs the bytes.
    pub fn completed(&mut self, posted: &Posted) {
        self.core.completed(posted);
        let Some(index) = posted.ep.filter(|_| posted.credited).and_then(|ep| self.index(ep)) else { return };
        if let Some(endpoint) = self.endpoints[index].as_deref_mut() {
            endpoint.credits.give_back();
            endpoint.make_ready(&mut self.core);
        }
    }

    /// Whether a segment waits for its acknowledgement.
    pub fn holds(&self, ep: EpId, seq: u32) -> bool {
        self.endpoint(ep).is_some_and(|endpoint| endpoint.window.get(Seq(seq)).is_some())
    }

    /// Segments that may be on their way to a peer at once, as far as the network is known.
    pub fn congestion_window(&self, ep: EpId) -> Option<u32> {
        Some(self.endpoint(ep)?.congestion.window())
    }

    /// Whether all that was sent to a peer is acknowledged, and nothing waits.
    pub fn is_idle(&self, ep: EpId) -> bool {
        self.endpoint(ep).is_none_or(|endpoint| endpoint.window.is_empty() && endpoint.queue.is_empty())
    }

    /// Whether nothing for a peer waits to be sent for the first time.
    pub fn has_sent_all(&self, ep: EpId) -> bool {
        self.endpoint(ep).is_none_or(|endpoint| endpoint.queue.is_empty())
    }

    /// Segments in use, and segments made so far.
    pub fn segments(&self) -> (usize, usize) {
        (self.core.segments.in_use(), self.core.segments.made())
    }

    /// Time at which [`on_time`](Self::on_time) is to be called at the latest; `None`: not before something
    /// arrives or is sent. For an owner about to sleep.
    pub fn next_due(&self) -> Option<u64> {
        if self.has_deferred() {
            return Some(0);
        }
        self.core.hotel.next_due()
    }
}
