//! Peer state: the first lane and message counters, which every packet reads, and the queues, which are
//! allocated when something first has to wait.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use hashbrown::HashMap;
use ucs::coll::growth;
use ucs::coll::slots::SlotId;

use crate::rdm::flow::retry::BackOff;
use crate::rdm::ids::WireId;
use crate::rdm::ids::{LaneId, PeerId, Source};
use crate::rdm::peers::counters::ShortCounters;
use crate::rdm::peers::lane::{FurtherLane, Lane, LaneTable};
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::rails::rail_plan::RailList;
use crate::rdm::recv::discard_queue::Discard;
use crate::rdm::recv::reorder::ReorderWindow;
use crate::rdm::status::PeerError;
use crate::wire::ctl::ErrorRef;
use crate::wire::{RawAddr, UserRecvQp};

/// State of one peer. The size test below bounds it.
#[derive(Debug)]
pub struct Peer {
    /// The first lane: its wire and source are those of the lane in use after a failover.
    lane: Lane,
    /// `msg_id` of our next message to it.
    pub next_tx: u32,
    /// `msg_id` of its next message to us.
    pub next_rx: u32,
    /// Sends that are not complete.
    pub outstanding: u32,
    /// Unexpected messages of it: its slot is not reused while there are any.
    pub unexpected: u32,
    /// Our connid on the home wire.
    pub own_connid: u32,
    /// Number of its worker, which its other peers have too.
    pub worker: u32,
    pub(in crate::rdm) short: ShortCounters,
    /// Queues, allocated when something first has to wait.
    pub queue: Option<Box<PeerQueue>>,
}

/// A failed lane to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedLane {
    /// Our wire.
    pub wire: WireId,
    /// Address of the lane.
    pub addr: RawAddr,
    /// Source of its packets.
    pub from: Source,
    /// Error that ended it.
    pub fault: PeerError,
}

/// Queues of a peer.
#[derive(Debug, Default)]
pub struct PeerQueue {
    /// Control packets, before everything else.
    pub ctl: VecDeque<Ctl>,
    /// Errors to send with PEER_ERROR once the HANDSHAKE says that the peer supports it.
    pub unsent_errors: Vec<(ErrorRef, u32)>,
    /// Sends that have no `msg_id` yet or are between packets, in order. Ids of cancelled ones are stale.
    pub sends: VecDeque<SlotId>,
    /// Long-CTS sends with a grant to use up, served round robin.
    pub grants: VecDeque<SlotId>,
    /// RMA reads with a read to post, served round robin.
    pub reads: VecDeque<SlotId>,
    /// Messages to be discarded, for which no receive was left.
    pub discards: VecDeque<Discard>,
    /// Further lanes. Those that have become peers of their own are stale.
    pub lanes: RailList<LaneId>,
    /// Lanes that the peer announced over the first one as its own.
    pub announced: RailList<RawAddr>,
    /// Failed lanes, oldest first.
    pub failed_lanes: RailList<FailedLane>,
    /// Operations that ended with a failed lane and may have taken effect.
    pub uncertain_ops: Vec<SlotId>,
    /// Messages of ours that it may be reading.
    pub exposed: u32,
    /// User receive QP, if the peer has one.
    pub user_qp: Option<UserRecvQp>,
    pub reorder: ReorderWindow,
    pub backoff: BackOff,
    /// One-sided operations of ours that have begun and are not over: fences wait for them.
    pub open_rma: u32,
    /// Messages of which some packets have arrived, by `msg_id`. The peer chooses it, so the hash has a key.
    pub partial_msgs: HashMap<u32, PartialMsg>,
    /// Ends of conversations with it.
    pub closes: Closes,
}

/// Ends of conversations with a peer. Each side ends each by one close, in the order of its messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Closes {
    /// Closes to be sent.
    pub due: u32,
    /// Closes of the peer that answer ours and have not come.
    pub awaited: u32,
    /// Closes that the peer has not acknowledged.
    pub unconfirmed: u32,
    /// The first message of the peer that was not taken into the conversation that ended last.
    pub taken: u32,
    /// Conversations begun, less one.
    pub conversation: u32,
    /// The order of messages was kept: another conversation may begin.
    pub orderly: bool,
}

/// Destination of further packets of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartialMsg {
    Rx(SlotId),
    Unexpected(SlotId),
}

/// A control packet that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ctl {
    /// CTS of this receive, write or read.
    Cts(SlotId),
    /// First data of a response to a read.
    ReadRsp(SlotId),
    /// Response to an atomic.
    AtomRsp(SlotId),
    ReadNack {
        send_id: u32,
        recv_id: u32,
        /// The receiver declines this message only.
        not_now: bool,
    },
    /// A send announced again after a READ_NACK.
    Reannounce(SlotId),
    /// Announcement of our end of a further lane.
    AnnounceLane(LaneId),
    /// Announcement that our packets use another lane from now on.
    LaneChanged,
    Eor {
        send_id: u32,
        recv_id: u32,
    },
    Error {
        what: ErrorRef,
        code: u32,
    },
    Receipt {
        send_id: u32,
        msg_id: u32,
    },
}

impl Peer {
    /// Makes a peer of its first lane, with our connid there and the number of its worker.
    pub fn new(lane: Lane, (own_connid, worker): (u32, u32)) -> Peer {
        Peer {
            lane,
            next_tx: 0,
            next_rx: 0,
            outstanding: 0,
            unexpected: 0,
            own_connid,
            worker,
            short: ShortCounters::default(),
            queue: None,
        }
    }

    /// Returns the queues, allocated if missing.
    #[inline]
    pub fn queue_mut(&mut self) -> &mut PeerQueue {
        self.queue.get_or_insert_default()
    }

    /// Returns the further lanes, some of which may be stale.
    // HOT
    #[inline]
    pub fn lanes(&self) -> &[LaneId] {
        self.queue.as_ref().map_or(&[], |queue| &queue.lanes)
    }

    /// Whether it has left the pair of NICs on which it was met.
    #[inline]
    pub fn has_failed_over(&self) -> bool {
        self.wire != self.home
    }

    /// True if our HANDSHAKE and all control packets are sent and every send is complete.
    pub fn is_idle(&self) -> bool {
        let no_ctl = self.queue.as_ref().is_none_or(|queue| queue.ctl.is_empty());
        let is_sending = self.state.is_handshake_queued() || self.state.has(PeerFlags::BACKED_OFF);
        // Errors to a peer closed by force do not count.
        no_ctl && self.outstanding == 0 && (!is_sending || self.state.is_closed())
    }
}

/// A peer is asked for its first lane's state as if that were its own.
impl Deref for Peer {
    type Target = Lane;
    #[inline(always)]
    fn deref(&self) -> &Lane {
        &self.lane
    }
}

impl DerefMut for Peer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Lane {
        &mut self.lane
    }
}

/// The slots of all peers, by index.
#[derive(Debug, Default)]
pub struct PeerTable {
    list: Vec<Peer>,
    /// Free slots, the one that has been free for the longest time first: a number is used again late.
    free: VecDeque<PeerId>,
    workers: u32,
    /// The lanes that are not the first of a peer.
    pub lanes: LaneTable,
}

impl PeerTable {
    pub fn len(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// One more than the largest number of a peer.
    pub fn slots(&self) -> u32 {
        self.list.len() as u32
    }

    /// Returns the number of a worker of which no peer is known.
    pub fn new_worker(&mut self) -> u32 {
        self.workers = self.workers.wrapping_add(1);
        self.workers
    }

    /// Adds a peer. Returns the short counters of the removed peer whose slot it takes.
    pub fn add(&mut self, peer: Peer) -> (PeerId, ShortCounters) {
        match self.free.pop_front() {
            Some(id) => {
                let before = std::mem::replace(&mut self.list[id.0 as usize], peer);
                (id, before.short)
            }
            None => {
                growth::push(&mut self.list, peer);
                (PeerId(self.list.len() as u32 - 1), ShortCounters::default())
            }
        }
    }

    /// Returns the short counters of a peer, also of a removed one.
    pub fn short(&self, id: PeerId) -> ShortCounters {
        self.list.get(id.0 as usize).map_or_else(ShortCounters::default, |peer| peer.short)
    }

    /// Iterates over the short counters of all peers, also of removed ones.
    pub fn all_short_counters(&self) -> impl Iterator<Item = ShortCounters> {
        self.list.iter().map(|peer| peer.short)
    }

    /// Makes the slot of a removed peer available.
    pub fn free(&mut self, id: PeerId) {
        self.free.push_back(id);
    }

    /// Returns a peer that is not removed.
    // HOT
    #[inline]
    pub fn get(&self, id: PeerId) -> Option<&Peer> {
        self.list.get(id.0 as usize).filter(|peer| !peer.state.is_removed())
    }

    /// Returns the peer whose first lane this is, perhaps a removed one.
    // HOT
    #[inline]
    pub fn by_first_lane(&mut self, lane: LaneId) -> Option<(PeerId, &mut Peer)> {
        // The number of a further lane exceeds the slots.
        self.list.get_mut(lane.0 as usize).map(|peer| (PeerId(lane.0), peer))
    }

    /// Returns a slot, perhaps of a removed peer.
    // HOT
    #[inline]
    pub fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.list.get_mut(id.0 as usize)
    }

    /// Returns the state of a lane, unless it was removed.
    pub fn lane(&self, id: LaneId) -> Option<&Lane> {
        match id.first_of() {
            Some(peer) => self.get(peer).map(|peer| &**peer),
            None => self.lanes.get(id).map(|lane| &**lane),
        }
    }

    /// Returns the state of a lane, perhaps of a removed peer.
    #[inline]
    pub fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        match id.first_of() {
            Some(peer) => self.get_mut(peer).map(|peer| &mut **peer),
            None => self.lanes.get_mut(id).map(|lane| &mut **lane),
        }
    }

    /// Whether this is the connid of the other end of a lane.
    // HOT
    #[inline]
    pub fn has_connid(&self, id: LaneId, connid: u32) -> bool {
        let lane = match id.first_of() {
            Some(peer) => self.list.get(peer.0 as usize).map(|peer| &**peer),
            None => self.lanes.get(id).map(|lane| &**lane),
        };
        lane.is_some_and(|lane| lane.addr.connid == connid)
    }

    /// Returns the peer of a lane, if it is one's.
    pub fn peer_of(&self, id: LaneId) -> Option<PeerId> {
        id.first_of().or_else(|| self.lanes.get(id)?.peer)
    }

    /// Returns a lane, if it is a further one of this peer.
    pub fn own_lane(&self, peer: PeerId, lane: LaneId) -> Option<&FurtherLane> {
        self.lanes.get(lane).filter(|lane| lane.peer == Some(peer))
    }

    /// Whether a peer has neither failed nor been removed.
    pub fn is_up(&self, id: PeerId) -> bool {
        self.get(id).is_some_and(|peer| peer.state.is_up())
    }

    /// Returns the address of its worker that a peer uses now.
    pub fn current_addr(&self, peer: &Peer) -> RawAddr {
        let lanes = peer.lanes().iter().filter_map(|&lane| self.lanes.get(lane));
        let mut in_use = lanes.filter(|lane| peer.has_failed_over() && lane.wire == peer.wire);
        in_use.next().map_or(peer.addr, |lane| lane.addr)
    }

    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        let all = self.list.iter().enumerate().map(|(n, peer)| (PeerId(n as u32), peer));
        all.filter(|(_, peer)| !peer.state.is_removed())
    }
}

/// Indexes slots that the engine has looked up, perhaps of removed peers.
impl std::ops::Index<PeerId> for PeerTable {
    type Output = Peer;
    #[inline]
    fn index(&self, id: PeerId) -> &Peer {
        &self.list[id.0 as usize]
    }
}

impl std::ops::IndexMut<PeerId> for PeerTable {
    #[inline]
    fn index_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.list[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_peer_is_small() {
        assert!(size_of::<Peer>() <= 96, "{}", size_of::<Peer>());
    }
}
