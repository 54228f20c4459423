//! Rails: the lanes of a peer, as RDMA of long transfers uses them (RDM v4 chapter 11). Order, matching and
//! control packets stay on the first one.

use arrayvec::ArrayVec;
use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::supports_rails;
use crate::rdm::ids::{LaneId, PeerId, Source, TxToken, WireId};
use crate::rdm::io::{NotPosted, Posted, Rdma, Reg, RegAccess, RegError, Remote, Wire};
use crate::rdm::op::Piece;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::{Accepted, PeerFlags};
use crate::rdm::peers::workers::is_same_worker;
use crate::rdm::protocols::handshake;
use crate::rdm::rails::rail_plan::{MAX_RAILS, RailList, RailPlan};
use crate::rdm::rma::args::RailKeys;
use crate::rdm::send::Sends;
use crate::rdm::status::PeerError;
use crate::wire::{Features, Iovs, RawAddr, RmaIov};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum Direction {
    Read,
    Write,
}

pub(in crate::rdm) enum PiecePost {
    Posted(Posted),
    /// No piece is left, or every rail has enough in flight.
    Enough,
    Full,
    /// No rail is left; the last one's error.
    Lost(PeerError),
    Failed(PeerError),
}

/// Quality of a lane to a worker, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LaneRank {
    /// In use to the worker already, without a loss.
    Known,
    /// Not in use yet, and not known to have failed.
    Any,
    /// Our NIC there is lost, or the worker's.
    Lost,
}

/// Encodes the name of memory on a further lane: the lane's connid and QP number, and the device's key.
const fn named_key(connid: u32, qpn: u16, key: u32) -> u64 {
    (connid as u16 as u64) << 48 | (qpn as u64) << 32 | key as u64
}

impl Engine {
    /// Sets the further lanes of a peer and their order; announced once `to` is met, if it supports rails.
    pub fn set_peer_lanes<W: Wire>(&mut self, w: &mut W, to: PeerId, lanes: &[LaneId]) {
        if lanes.is_empty() || !self.peers.table.is_up(to) {
            return;
        }
        let others = std::mem::take(&mut self.peers.table[to].queue_mut().lanes);
        let others = others.into_iter().filter(|other| !lanes.contains(other));
        for lane in lanes.iter().copied().chain(others) {
            self.peers.attach(to, lane);
        }
        trigger_rails(&mut self.peers, w, to);
        self.fail_lost_lanes(w);
    }
}

/// Fails the lane of a rail that failed a piece; returns the error if that is the transfer's own peer.
#[cold]
fn lose_rail(peers: &mut Peers, rail_plan: &RailPlan, n: usize, fault: PeerError) -> Option<PeerError> {
    if fault.is_of_operation() {
        return None;
    }
    peers.counters.stats.rare.rails_lost += 1;
    let rail = rail_plan.rail(n).lane;
    if !fault.is_peer_failure() && !fault.is_local_lane() {
        return None;
    }
    if rail == rail_plan.main() {
        // If another lane exists, the first packet that comes back moves the peer to it.
        let survives = rail.first_of().is_some_and(|peer| peers.survives(peer, fault));
        return (fault.is_peer_failure() && !survives).then_some(fault);
    }
    peers.lost_lanes.push((rail, fault));
    None
}

/// Handles the end of a piece; a failed one goes to another rail. Returns an error of the peer itself.
// [M11.6]
pub(in crate::rdm) fn end_stripe(
    peers: &mut Peers,
    rail_plan: &mut RailPlan,
    part: u32,
    result: Result<(), PeerError>,
) -> Option<PeerError> {
    let rail = rail_plan.ended(part, result)?;
    lose_rail(peers, rail_plan, rail, result.err()?)
}

/// Posts the next piece to the idlest rail with room. `local` is all of our memory, `remote` its address
/// there.
pub(in crate::rdm) fn post_stripe<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    rail_plan: &mut RailPlan,
    id: SlotId,
    direction: Direction,
    (local, remote): (Piece, u64),
) -> PiecePost {
    let mut full = 0;
    loop {
        let Some(pick) = rail_plan.pick(full) else {
            return match (rail_plan.lost(), full) {
                (Some(why), _) => PiecePost::Lost(why),
                (None, 0) => PiecePost::Enough,
                (None, _) => PiecePost::Full,
            };
        };
        if !rail_plan.register_rail(peers, w, pick.rail, direction, local) {
            continue;
        }
        let rail = rail_plan.rail(pick.rail);
        let Some(reg) = &rail.reg else { continue };
        let here = local.part(pick.at as usize, pick.len as usize);
        let there = Remote { addr: remote.wrapping_add(pick.at), key: rail.key };
        let token = TxToken::part_of(id, pick.part());
        let posted = match direction {
            Direction::Read => w.read(rail.lane, here, reg, there, token),
            Direction::Write => w.write(rail.lane, here, reg, there, None, token),
        };
        match posted {
            Ok(how) => {
                rail_plan.posted(&pick);
                if how == Posted::Done {
                    rail_plan.ended(pick.part(), Ok(()));
                }
                peers.counters.stats.rare.pieces += 1;
                return PiecePost::Posted(how);
            }
            Err(NotPosted::Full) => full |= 1 << pick.rail,
            Err(NotPosted::Peer(fault)) => {
                rail_plan.lose(pick.rail, fault);
                if let Some(fault) = lose_rail(peers, rail_plan, pick.rail, fault) {
                    return PiecePost::Failed(fault);
                }
            }
        }
    }
}

/// Names the memory of a send on every wire that the receiver may read by; `iov` is on the peer's own.
// [M11.4]
pub(in crate::rdm) fn offer_rails<W: Wire>(
    sends: &mut Sends,
    peers: &mut Peers,
    w: &mut W,
    id: SlotId,
    iov: RmaIov,
) -> Iovs {
    let main_only = Iovs::one(iov);
    let Some(op) = sends.table.get(id) else { return main_only };
    let peer = &peers.table[op.peer];
    let wire = &peers.wires[peer.wire];
    let enough = iov.len / peers.cfg.rndv_chunk.max(1) >= 2;
    if wire.rail_wires.is_empty() || !enough || peers.cfg.rndv_rails < 2 || !supports_rails(peer.features) {
        return main_only;
    }
    if op.rails.is_none() {
        let Some(piece) = op.buf.piece() else { return main_only };
        let rail_wires = wire.rail_wires.clone();
        let rail_wires = rail_wires.into_iter().take(usize::from(peers.cfg.rndv_rails) - 1);
        let regs: RailList<_> = rail_wires
            .filter_map(|wire| Some((wire, w.register(wire, piece, RegAccess::REMOTE_READ).ok()?)))
            .collect();
        let Some(op) = sends.table.get_mut(id) else { return main_only };
        op.rails = Some(Box::new(regs));
        let to = op.peer;
        trigger_rails(peers, w, to);
    }
    let Some(regs) = sends.table.get(id).and_then(|op| op.rails.as_ref()) else { return main_only };
    let mut all = ArrayVec::<RmaIov, MAX_RAILS>::from_iter([iov]);
    let name = |(wire, reg): &(WireId, Reg)| {
        let me = &peers.wires[*wire].me;
        let key = u32::try_from(reg.key).ok()?;
        Some(RmaIov { addr: me.node(), len: 0, key: named_key(me.connid, me.qpn, key) })
    };
    all.extend(regs.iter().filter_map(name));
    Iovs::try_from(all.as_slice()).unwrap_or(main_only)
}

/// Requests the HANDSHAKE of each rail not yet asked. Without room, the next long transfer retries.
// [M11.3]
pub(in crate::rdm) fn trigger_rails<W: Wire>(peers: &mut Peers, w: &mut W, to: PeerId) {
    let peer = &peers.table[to];
    if !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) || !supports_rails(peer.features) {
        return;
    }
    let lanes: RailList<LaneId> = peer.lanes().iter().copied().collect();
    for id in lanes {
        let Some(lane) = peers.table.lanes.get(id).filter(|lane| lane.state.is_up()) else { continue };
        if lane.state.accepted() == Accepted::Nothing
            && let Err(NotPosted::Peer(fault)) = handshake::trigger(peers, w, id)
        {
            peers.lost_lanes.push((id, fault));
        }
    }
}

impl Peers {
    /// Whether RDMA may use a lane.
    pub(in crate::rdm) fn is_rail(&self, id: LaneId, direction: Direction) -> bool {
        let Some(lane) = self.table.lane(id).filter(|lane| lane.state.is_met()) else { return false };
        let rdma = self.wires[lane.wire].rdma;
        match direction {
            Direction::Read => rdma.read > 0 && lane.features.contains(Features::RDMA_READ),
            Direction::Write => rdma.write > 0,
        }
    }

    /// Ranks the lane by `wire` to `addr` among alternatives.
    pub fn lane_rank(&self, wire: WireId, addr: &RawAddr, from: Source) -> LaneRank {
        let own = &self.wires[wire];
        if own.rail_wires.is_empty() {
            return LaneRank::Any;
        }
        let known = self.lookup.known(wire, from);
        let known = known.and_then(|id| Some((id, self.table.lane(id).filter(|lane| lane.addr == *addr)?)));
        let Some((id, lane)) = known else {
            return if own.down { LaneRank::Lost } else { LaneRank::Any };
        };
        if lane.state.is_failed() {
            // A peer that was force-closed or has exited keeps its lane: no NIC was lost.
            let keeps_lane = lane.state.is_closed() || !lane.fault.is_some_and(PeerError::is_lane_failure);
            return if keeps_lane { LaneRank::Any } else { LaneRank::Lost };
        }
        // A peer that has failed over, or can, is still found by its first lane.
        let peer = id.first_of();
        match lane.wire != wire || !own.down || peer.is_some_and(|peer| self.next_lane(peer).is_some()) {
            true if lane.state.accepted() != Accepted::Nothing && peer.is_some() => LaneRank::Known,
            true => LaneRank::Any,
            false => LaneRank::Lost,
        }
    }

    /// Plans a put or get over the peer's own wire with `key`, and its rails with `keys`, in their set order.
    pub(in crate::rdm) fn linked_rails(
        &self,
        to: PeerId,
        key: u64,
        keys: &RailKeys,
    ) -> Option<Box<RailPlan>> {
        let peer = self.table.get(to).filter(|peer| !peer.lanes().is_empty())?;
        let rails = peer.lanes().iter().zip(keys).filter(|(rail, _)| is_elsewhere(self, **rail, peer.wire));
        let rails = rails.filter_map(|(rail, key)| Some((*rail, (*key)?)));
        let all = [(to.into(), key)].into_iter().chain(rails).take(usize::from(self.cfg.rma_rails));
        Some(Box::new(RailPlan::new(all)))
    }

    /// Plans the read of memory that a request of `from` names: its present lane, and those named rails that
    /// we have met. The lane without a name holds `iovs` itself.
    // [M11.5]
    pub(in crate::rdm) fn named_rails(&self, from: PeerId, iovs: &Iovs) -> Option<(RailPlan, u64)> {
        let peer = &self.table[from];
        let rail_wires = &self.wires[peer.wire].rail_wires;
        if rail_wires.is_empty() || self.cfg.rndv_rails < 2 || !supports_rails(peer.features) {
            return None;
        }
        let (named, memory): (ArrayVec<RmaIov, MAX_RAILS>, ArrayVec<RmaIov, MAX_RAILS>) =
            iovs.as_slice().iter().copied().partition(|iov| iov.len == 0);
        let [memory] = memory.as_slice() else { return None };
        let here = self.table.current_addr(peer);
        let mut key_here = None;
        let mut rails = RailList::<(LaneId, u64)>::new();
        for iov in &named {
            let source = Source { node: iov.addr, port: u32::from((iov.key >> 32) as u16) };
            let is = |lane: &RawAddr| lane.connid as u16 == (iov.key >> 48) as u16;
            let key = iov.key & u64::from(u32::MAX);
            if is(&here) && (here.node(), u32::from(here.qpn)) == (source.node, source.port) {
                key_here = Some(key);
            } else if let Some(rail) = rail_wires.iter().find_map(|wire| self.lookup.known(*wire, source))
                && self.table.lane(rail).is_some_and(|lane| is(&lane.addr))
                && rail != from.into()
                && self.table.peer_of(rail).is_none_or(|of| is_same_worker(self, of, from))
                && self.is_rail(rail, Direction::Read)
            {
                let _ = rails.try_push((rail, key));
            }
        }
        if key_here.is_some() {
            let known = peer.lanes().iter().copied();
            let mut others = known.filter(|rail| rails.iter().all(|(named, _)| named != rail));
            let other = others
                .find(|rail| self.is_rail(*rail, Direction::Read) && is_elsewhere(self, *rail, peer.wire));
            let _ = other.map(|other| rails.try_push((other, memory.key)));
        } else if rails.is_empty() {
            return None;
        }
        let main = (from.into(), key_here.unwrap_or(memory.key));
        let rails = [main].into_iter().chain(rails).take(usize::from(self.cfg.rndv_rails));
        Some((RailPlan::new(rails), memory.addr))
    }

    /// Returns how many rails of a peer are usable now, its own wire included.
    pub fn rails(&self, to: PeerId) -> usize {
        let rails = self.further_lanes(to);
        1 + rails.iter().filter(|rail| self.is_rail(**rail, Direction::Read)).count()
    }
}

impl RailPlan {
    /// Cuts a transfer into pieces of at least `least` bytes for its rails. False: it goes over one lane.
    pub(in crate::rdm) fn cut_pieces(
        &mut self,
        peers: &Peers,
        (from, end): (u64, u64),
        direction: Direction,
        least: u64,
    ) -> bool {
        let most = self.longest_piece(peers, direction);
        self.cut(from, end, least, most, |rail| peers.is_rail(rail, direction))
    }

    /// Cuts a read that one rail has failed for the remaining rails. False if there is none.
    pub(in crate::rdm) fn cut_pieces_again(&mut self, peers: &Peers, (from, end): (u64, u64)) -> bool {
        let most = self.longest_piece(peers, Direction::Read);
        self.cut_again(from, end, most, |rail| peers.is_rail(rail, Direction::Read))
    }

    pub(in crate::rdm) fn longest_piece(&self, peers: &Peers, direction: Direction) -> u64 {
        let rdma = peers.table.lane(self.main()).map_or(Rdma::NONE, |lane| peers.wires[lane.wire].rdma);
        match direction {
            Direction::Read => rdma.read.min(peers.cfg.read_segment.max(1)),
            Direction::Write => rdma.write,
        }
    }

    pub(in crate::rdm) fn register_rail<W: Wire>(
        &mut self,
        peers: &Peers,
        w: &mut W,
        n: usize,
        direction: Direction,
        local: Piece,
    ) -> bool {
        let (first, len) = self.range();
        let rail = self.rail_mut(n);
        if rail.reg.is_none() {
            let wire = peers.table.lane(rail.lane).map(|lane| lane.wire);
            let for_what =
                if direction == Direction::Read { RegAccess::LOCAL_WRITE } else { RegAccess::empty() };
            let wire = wire.ok_or(RegError::Refused);
            match wire.and_then(|wire| w.register(wire, local.part(first as usize, len as usize), for_what)) {
                Ok(reg) => rail.reg = Some(reg),
                Err(_) => self.lose(n, PeerError::NO_RDMA),
            }
        }
        self.rail(n).reg.is_some()
    }

    /// Registers our memory on the wire of every rail. Returns how many rails remain.
    pub(in crate::rdm) fn register_stripes<W: Wire>(
        &mut self,
        peers: &Peers,
        w: &mut W,
        direction: Direction,
        local: Piece,
    ) -> usize {
        let mut registered = 0;
        for n in 0..self.rails() {
            registered += usize::from(self.register_rail(peers, w, n, direction, local));
        }
        registered
    }
}

/// Returns the key of a peer's memory on its present lane, if known.
pub(in crate::rdm) fn key_on_current_lane(
    peers: &Peers,
    peer: &Peer,
    key: u64,
    keys: &RailKeys,
) -> Option<u64> {
    if !peer.has_failed_over() {
        return Some(key);
    }
    let on_wire = |lane: &LaneId| peers.table.lanes.get(*lane).is_some_and(|lane| lane.wire == peer.wire);
    keys[peer.lanes().iter().position(on_wire)?]
}

fn is_elsewhere(peers: &Peers, lane: LaneId, wire: WireId) -> bool {
    peers.table.lanes.get(lane).is_some_and(|lane| lane.wire != wire)
}
