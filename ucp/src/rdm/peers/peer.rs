//! One peer: who it is, what it can, the two message counters, and the queues of what waits for it. The first
//! half is small and read for every packet; the second is made when something first has to wait.

use std::collections::VecDeque;

use bitflags::bitflags;
use hashbrown::HashMap;
use ucs::coll::growth;
use ucs::coll::slots::SlotId;

use crate::rdm::features::ReqHdr;
use crate::rdm::flow::retry::BackOff;
use crate::rdm::ids::WireId;
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::io::Rdma;
use crate::rdm::peers::counters::ShortCounters;
use crate::rdm::rails::rail_plan::RailList;
use crate::rdm::recv::reorder::ReorderWindow;
use crate::rdm::status::PeerError;
use crate::rdm::types::PeerView;
use crate::wire::ctl::ErrorRef;
use crate::wire::{Features, RawAddr, UserRecvQp};

bitflags! {
    /// State flags of a peer.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PeerFlags: u32 {
        /// A packet of it has arrived, and our HANDSHAKE is queued or sent and not known to be lost.
        const SEEN = 1 << 0;
        /// Our HANDSHAKE waits for room.
        const HANDSHAKE_QUEUED = 1 << 1;
        /// The peer's HANDSHAKE has arrived.
        const HANDSHAKE_RECEIVED = 1 << 2;
        /// The wire has accepted a packet to it.
        const POSTED = 1 << 3;
        /// Sends to it are queued: later ones queue behind them.
        const SENDS_QUEUED = 1 << 4;
        /// It is in the engine's list of peers with work.
        const SCHEDULED = 1 << 5;
        /// Its reorder window holds packets.
        const REORDERING = 1 << 6;
        /// It failed.
        const FAILED = 1 << 7;
        /// The slot is free.
        const REMOVED = 1 << 8;
        /// It failed, and nothing more of it can arrive.
        const DRAINED = 1 << 9;
        /// It was not ready to receive: packets to it came back, and nothing new goes out before them.
        const BACKED_OFF = 1 << 10;
        /// A new operation cannot be sent at once, or not in the usual way.
        const BLOCKED =
            Self::SENDS_QUEUED.bits() | Self::FAILED.bits() | Self::BACKED_OFF.bits() | Self::USER_QP_ONLY.bits();
        /// A piece of its stream is lost: what follows is not delivered.
        const STREAM_BROKEN = 1 << 11;
        /// It is in zero-copy receive mode: it takes messages without a header only.
        const USER_QP_ONLY = 1 << 12;
        /// The user has closed it by force: its packets are refused.
        const FORCE_CLOSED = 1 << 13;
        /// The wire has accepted a packet to it other than our HANDSHAKE.
        const REQUESTED = 1 << 15;
        /// Writes to it are complete here and not acknowledged.
        const UNACKED = 1 << 14;
        /// Something sent to it is not known to be delivered.
        const UNCONFIRMED = 1 << 16;
        /// It could not read our memory over the RMA-only lane.
        const READ_DENIED = 1 << 17;
        /// Our REQ packets to it carry our connid; see [`Peer::hdr`].
        const CONNID_HEADER = 1 << 18;
        /// Our REQ packets to it carry no identity header.
        const NO_HEADER = 1 << 19;
    }
}

/// One peer. See the size test before adding to it.
#[derive(Debug)]
pub struct Peer {
    /// State flags.
    pub flags: PeerFlags,
    /// The wire its packets take.
    pub wire: WireId,
    /// The wire it was met on: our packets carry our connid there, whichever way they go.
    pub home: WireId,
    /// `msg_id` of our next message to it.
    pub next_tx: u32,
    /// `msg_id` of its next message to us.
    pub next_rx: u32,
    /// Sends that are not complete.
    pub outstanding: u32,
    /// Unexpected messages of it: its slot is not reused while there are any.
    pub unexpected: u32,
    from: Packed,
    /// Address of the peer; the connid tells it from others with the same source.
    pub addr: RawAddr,
    /// Our own connid on its home wire, as our packets to it say.
    pub own_connid: u32,
    /// Short messages to it and from it.
    pub short: ShortCounters,
    /// Feature word of the peer, valid once its HANDSHAKE has arrived.
    pub features: Features,
    /// Why it failed.
    pub fault: Option<PeerError>,
    /// Queues, allocated when something first has to wait.
    pub queue: Option<Box<PeerQueue>>,
}

/// A [`Source`] without its gap.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Packed {
    node: u64,
    port: u32,
}

/// A way to a peer that was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedLane {
    /// Our wire.
    pub wire: WireId,
    /// The peer's lane.
    pub addr: RawAddr,
    /// Source of its packets there.
    pub from: Source,
    /// Why.
    pub fault: PeerError,
}

/// Queues of a peer.
#[derive(Debug, Default)]
pub struct PeerQueue {
    /// Control packets, before everything else.
    pub ctl: VecDeque<Ctl>,
    /// Errors to send with PEER_ERROR once the HANDSHAKE says that the peer supports it.
    pub unsent_errors: Vec<(ErrorRef, u32)>,
    /// Sends that have not got their `msg_id` or are between packets, in order. Ids of cancelled ones are
    /// stale.
    pub sends: VecDeque<SlotId>,
    /// Long-CTS sends with a grant to use up, served in turn.
    pub grants: VecDeque<SlotId>,
    /// Messages being read of which a read is to be posted, by turns.
    pub reads: VecDeque<SlotId>,
    /// Further lanes of its worker, as peers of their own.
    pub rails: RailList<PeerId>,
    /// The peer that this one is a further lane of.
    pub further_lane_of: Option<PeerId>,
    /// Lanes of which it has said that they are of the same worker.
    pub announced: RailList<RawAddr>,
    /// The ways it has left because a NIC was lost, oldest first.
    pub failed_lanes: RailList<FailedLane>,
    /// Operations of ours that ended when a way was lost, though it may have begun them.
    pub uncertain_ops: Vec<SlotId>,
    /// Messages of ours that it may be reading.
    pub exposed: u32,
    /// Where it takes messages without headers, if it does.
    pub user_qp: Option<UserRecvQp>,
    /// Packets before their turn.
    pub reorder: ReorderWindow,
    /// Packets of ours that came back.
    pub backoff: BackOff,
    /// One-sided operations of ours that have begun and are not over: fences wait for them.
    pub open_rma: u32,
    /// Messages in several packets of which some have arrived, by `msg_id`: chosen by it, so the hash has a
    /// key.
    pub partial_msgs: HashMap<u32, PartialMsg>,
}

/// Where further packets of a message belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartialMsg {
    /// To this receive.
    Rx(SlotId),
    /// To this unexpected message.
    Unexpected(SlotId),
}

/// A control packet that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ctl {
    /// The grant of this receive, write or read.
    Cts(SlotId),
    /// The first data, or all, of a read of our memory.
    ReadRsp(SlotId),
    /// The old values of an atomic.
    AtomRsp(SlotId),
    /// A READ_NACK.
    ReadNack {
        /// The sender's id.
        send_id: u32,
        /// Ours.
        recv_id: u32,
        /// It is for this message alone.
        not_now: bool,
    },
    /// This send, announced once more after a READ_NACK.
    Reannounce(SlotId),
    /// That the lane this peer is and that of another peer are of one worker: ours.
    AnnounceLane(PeerId),
    /// That our packets come another way from now on.
    LaneChanged,
    /// That the way to this peer, of which it is a further lane, is lost.
    LaneFailed(PeerId),
    /// An EOR.
    Eor {
        /// The sender's id.
        send_id: u32,
        /// Ours.
        recv_id: u32,
    },
    /// A PEER_ERROR.
    Error {
        /// The operation or message that has ended.
        what: ErrorRef,
        /// Why.
        code: u32,
    },
    /// A RECEIPT.
    Receipt {
        /// The sender's id.
        send_id: u32,
        /// The message's id.
        msg_id: u32,
    },
}

impl Peer {
    /// A peer nobody has heard of yet.
    pub fn new(wire: WireId, addr: RawAddr, from: Source, own_connid: u32) -> Peer {
        Peer {
            flags: PeerFlags::empty(),
            wire,
            home: wire,
            next_tx: 0,
            next_rx: 0,
            outstanding: 0,
            unexpected: 0,
            from: Packed { node: from.node, port: from.port },
            addr,
            own_connid,
            short: ShortCounters::default(),
            features: Features::empty(),
            fault: None,
            queue: None,
        }
    }

    /// Source of its packets.
    pub fn from(&self) -> Source {
        Source { node: self.from.node, port: self.from.port }
    }

    /// Sets the source of the peer's packets.
    pub fn set_from(&mut self, Source { node, port }: Source) {
        self.from = Packed { node, port };
    }

    /// Returns the identity header of our REQ packets to this peer.
    #[inline]
    pub fn hdr(&self) -> ReqHdr {
        match self.flags & (PeerFlags::CONNID_HEADER | PeerFlags::NO_HEADER) {
            PeerFlags::CONNID_HEADER => ReqHdr::Connid,
            PeerFlags::NO_HEADER => ReqHdr::Bare,
            _ => ReqHdr::FIRST,
        }
    }

    /// Sets the identity header of our REQ packets to this peer.
    pub fn set_hdr(&mut self, hdr: ReqHdr) {
        self.flags.set(PeerFlags::CONNID_HEADER, hdr == ReqHdr::Connid);
        self.flags.set(PeerFlags::NO_HEADER, hdr == ReqHdr::Bare);
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

    /// The peer that it is a further lane of.
    pub fn further_lane_of(&self) -> Option<PeerId> {
        self.queue.as_ref()?.further_lane_of
    }

    /// Our HANDSHAKE and control packets have all gone out, and every send is complete.
    pub fn is_idle(&self) -> bool {
        let quiet = self.queue.as_ref().is_none_or(|queue| queue.ctl.is_empty());
        // What one is told that was closed by force is nobody's affair any more.
        let busy = if self.flags.contains(PeerFlags::FORCE_CLOSED) {
            PeerFlags::empty()
        } else {
            PeerFlags::HANDSHAKE_QUEUED.union(PeerFlags::BACKED_OFF)
        };
        quiet && self.outstanding == 0 && !self.flags.intersects(busy)
    }

    /// Returns the public view.
    pub fn view(&self, rdma: Rdma) -> PeerView {
        PeerView {
            wire: self.wire,
            addr: self.addr,
            from: self.from(),
            features: self.flags.contains(PeerFlags::HANDSHAKE_RECEIVED).then_some(self.features),
            hdr: self.hdr(),
            rdma,
            outstanding: self.outstanding,
            fault: self.fault,
        }
    }
}

/// All peers, by dense number.
#[derive(Debug, Default)]
pub struct Peers {
    list: Vec<Peer>,
    free: Vec<PeerId>,
}

impl Peers {
    /// Number of peers.
    pub fn len(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// One more than the largest number of a peer.
    pub fn slots(&self) -> u32 {
        self.list.len() as u32
    }

    /// Adds one. Answers what was counted of the one whose slot it has now: nothing, if it is a new one.
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

    /// Lets the slot of a removed peer be used again.
    pub fn free(&mut self, id: PeerId) {
        self.free.push(id);
    }

    /// A peer, unless there is none of that name. // HOT
    #[inline]
    pub fn get(&self, id: PeerId) -> Option<&Peer> {
        self.list.get(id.0 as usize).filter(|peer| !peer.flags.contains(PeerFlags::REMOVED))
    }

    /// The slot of this number, if there is one: perhaps of a removed peer. // HOT
    #[inline]
    pub fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.list.get_mut(id.0 as usize)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        let all = self.list.iter().enumerate().map(|(n, peer)| (PeerId(n as u32), peer));
        all.filter(|(_, peer)| !peer.flags.contains(PeerFlags::REMOVED))
    }
}

/// For names the engine itself has looked up: they name a slot, if perhaps a removed peer.
impl std::ops::Index<PeerId> for Peers {
    type Output = Peer;
    #[inline]
    fn index(&self, id: PeerId) -> &Peer {
        &self.list[id.0 as usize]
    }
}

impl std::ops::IndexMut<PeerId> for Peers {
    #[inline]
    fn index_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.list[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 000 quiet peers must stay below 13 MB.
    #[test]
    fn a_quiet_peer_is_small() {
        assert!(size_of::<Peer>() <= 104, "{}", size_of::<Peer>());
    }
}
