//! Peer state: identity, features, message counters and flags, which every packet reads, and the queues,
//! which are allocated when something first has to wait.

use std::collections::VecDeque;

use hashbrown::HashMap;
use ucs::coll::growth;
use ucs::coll::slots::SlotId;

use crate::rdm::features::ReqHdr;
use crate::rdm::flow::retry::BackOff;
use crate::rdm::ids::WireId;
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::io::Rdma;
use crate::rdm::peers::counters::ShortCounters;
use crate::rdm::peers::state::{PeerFlags, PeerState};
use crate::rdm::rails::rail_plan::RailList;
use crate::rdm::recv::reorder::ReorderWindow;
use crate::rdm::status::PeerError;
use crate::rdm::types::PeerView;
use crate::wire::ctl::ErrorRef;
use crate::wire::{Features, RawAddr, UserRecvQp};

/// State of one peer. The size test below bounds it.
#[derive(Debug)]
pub struct Peer {
    /// How far its life and the exchange of HANDSHAKEs have got, and flags.
    pub state: PeerState,
    /// Wire of its packets now.
    pub wire: WireId,
    /// Wire on which it was met: our packets carry our connid there, also after a failover.
    pub home: WireId,
    /// `msg_id` of our next message to it.
    pub next_tx: u32,
    /// `msg_id` of its next message to us.
    pub next_rx: u32,
    /// Sends that are not complete.
    pub outstanding: u32,
    /// Unexpected messages of it: its slot is not reused while there are any.
    pub unexpected: u32,
    from: PackedSource,
    /// Address of the peer; the connid tells it from others with the same source.
    pub addr: RawAddr,
    /// Our connid on the home wire.
    pub own_connid: u32,
    /// Number of its worker, which its other peers have too.
    pub worker: u32,
    pub(in crate::rdm) short: ShortCounters,
    /// Feature word of the peer, valid once its HANDSHAKE has arrived.
    pub features: Features,
    /// Why it failed.
    pub fault: Option<PeerError>,
    /// Queues, allocated when something first has to wait.
    pub queue: Option<Box<PeerQueue>>,
}

/// A [`Source`] without padding.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct PackedSource {
    node: u64,
    port: u32,
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
    /// Further lanes of its worker, as peers of their own.
    pub rails: RailList<PeerId>,
    /// The peer that this one is a further lane of.
    pub further_lane_of: Option<PeerId>,
    /// Lanes that the peer announced as its own.
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
    /// Announcement that the lane of this peer and that of another are of one worker: ours.
    AnnounceLane(PeerId),
    /// Announcement that our packets use another lane from now on.
    LaneChanged,
    /// Announcement that the lane to this peer, of which it is a further lane, has failed.
    LaneFailed(PeerId),
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
    pub fn new(wire: WireId, addr: RawAddr, from: Source, (own_connid, worker): (u32, u32)) -> Peer {
        Peer {
            state: PeerState::NEW,
            wire,
            home: wire,
            next_tx: 0,
            next_rx: 0,
            outstanding: 0,
            unexpected: 0,
            from: PackedSource { node: from.node, port: from.port },
            addr,
            own_connid,
            worker,
            short: ShortCounters::default(),
            features: Features::empty(),
            fault: None,
            queue: None,
        }
    }

    pub fn from(&self) -> Source {
        Source { node: self.from.node, port: self.from.port }
    }

    /// Sets the source of the peer's packets.
    pub fn set_from(&mut self, Source { node, port }: Source) {
        self.from = PackedSource { node, port };
    }

    /// Returns the identity header of our REQ packets to this peer.
    #[inline]
    pub fn hdr(&self) -> ReqHdr {
        self.state.hdr()
    }

    /// Sets the identity header of our REQ packets to this peer.
    pub fn set_hdr(&mut self, hdr: ReqHdr) {
        self.state.set_hdr(hdr);
    }

    /// Returns the queues, allocated if missing.
    #[inline]
    pub fn queue_mut(&mut self) -> &mut PeerQueue {
        self.queue.get_or_insert_default()
    }

    /// True if this peer is a further lane of another, which can carry what it carries.
    pub fn is_further_lane(&self) -> bool {
        self.further_lane_of().is_some()
    }

    pub fn further_lane_of(&self) -> Option<PeerId> {
        self.queue.as_ref()?.further_lane_of
    }

    /// True if our HANDSHAKE and all control packets are sent and every send is complete.
    pub fn is_idle(&self) -> bool {
        let no_ctl = self.queue.as_ref().is_none_or(|queue| queue.ctl.is_empty());
        let is_sending = self.state.is_handshake_queued() || self.state.has(PeerFlags::BACKED_OFF);
        // Errors to a peer closed by force do not count.
        no_ctl && self.outstanding == 0 && (!is_sending || self.state.is_closed())
    }

    /// Returns the public view.
    pub fn view(&self, rdma: Rdma) -> PeerView {
        PeerView {
            wire: self.wire,
            addr: self.addr,
            from: self.from(),
            features: self.state.has(PeerFlags::MET).then_some(self.features),
            hdr: self.hdr(),
            rdma,
            outstanding: self.outstanding,
            fault: self.fault,
        }
    }
}

/// The slots of all peers, by index.
#[derive(Debug, Default)]
pub struct PeerTable {
    list: Vec<Peer>,
    free: Vec<PeerId>,
    workers: u32,
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
        match self.free.pop() {
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
        self.free.push(id);
    }

    /// Returns a peer that is not removed. // HOT
    #[inline]
    pub fn get(&self, id: PeerId) -> Option<&Peer> {
        self.list.get(id.0 as usize).filter(|peer| !peer.state.is_removed())
    }

    /// Returns a slot, perhaps of a removed peer. // HOT
    #[inline]
    pub fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.list.get_mut(id.0 as usize)
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
        assert!(size_of::<Peer>() <= 104, "{}", size_of::<Peer>());
    }
}
