//! Unknown peers: senders that introduced themselves by a packet and have not answered ours. Whoever forges
//! sources can create many, and each takes memory. Their number is bounded, and those known to be absent are
//! [removed](remove_unknown_peers) after a time. Known peers are not affected.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::time::Nanos;

use crate::rdm::Engine;
use crate::rdm::ids::{LaneId, PeerId, Source, WireId};
use crate::rdm::io::Wire;
use crate::rdm::peers::Peers;
use crate::rdm::peers::lane::Lane;
use crate::rdm::peers::peer::{Closes, PeerTable};
use crate::rdm::peers::state::{Accepted, Lifecycle, OwnHandshake, PeerFlags};
use crate::rdm::pending::Pending;
use crate::rdm::recv::Recvs;
use crate::rdm::rma::RmaOps;

/// Unknown peers looked at in one call.
const REAP_BATCH: usize = 64;

/// Removed unknown peers of each of two generations whose next message is remembered.
const MAX_REMOVED: usize = 1 << 16;

/// Senders that were unknown when their packet arrived. Some of them may have answered since.
#[derive(Debug, Default)]
pub struct UnknownPeers {
    /// The lanes, each with the time at which it was first looked at; [`Nanos::NEVER`]: not yet.
    lanes: Vec<(LaneId, Nanos)>,
    /// Senders that may be refused before the list is looked through again.
    refusals: usize,
    /// Where the next look begins.
    next: usize,
    removed: Removed,
}

/// The next message id of removed unknown peers that had sent messages, by wire, source and connid: a peer
/// that was alive after all continues with it. When `young` is full, it replaces `old`.
#[derive(Debug, Default)]
struct Removed {
    young: HashMap<(WireId, Source, u32), u32, FxBuildHasher>,
    old: HashMap<(WireId, Source, u32), u32, FxBuildHasher>,
}

impl Removed {
    fn note(&mut self, of: (WireId, Source, u32), next_rx: u32) {
        if next_rx == 0 {
            return;
        }
        if self.young.len() >= MAX_REMOVED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(of, next_rx);
    }

    fn take(&mut self, of: (WireId, Source, u32)) -> Option<u32> {
        let old = self.old.remove(&of);
        self.young.remove(&of).or(old)
    }
}

/// Whether another unknown peer becomes a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    Granted,
    Refused,
    /// Refused after a look through the list: worth a line in the log.
    RefusedAnew,
}

impl UnknownPeers {
    /// Decides about one more unknown peer, with at most `limit` of them. Takes constant time on average.
    pub fn admit(&mut self, table: &PeerTable, limit: usize) -> Admission {
        if self.lanes.len() < limit {
            return Admission::Granted;
        }
        if self.refusals > 0 {
            self.refusals -= 1;
            return Admission::Refused;
        }
        self.lanes.retain(|&(lane, _)| is_unknown(table, lane));
        if self.lanes.len() < limit {
            return Admission::Granted;
        }
        self.refusals = limit / 8;
        Admission::RefusedAnew
    }

    /// Notes a lane that a packet has made.
    pub fn note(&mut self, lane: LaneId) {
        self.lanes.push((lane, Nanos::NEVER));
    }

    /// True if there may be unknown peers to remove.
    pub fn is_any(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Returns the id of the next message of a sender that was removed as an unknown peer; 0 of all others.
    pub fn next_rx(&mut self, wire: WireId, from: Source, connid: u32) -> u32 {
        if self.removed.young.is_empty() && self.removed.old.is_empty() {
            return 0;
        }
        self.removed.take((wire, from, connid)).unwrap_or(0)
    }

    /// Takes the next unknown peer that has been one for `timeout`, of up to `looks` unknown peers.
    fn next_due(
        &mut self,
        table: &PeerTable,
        (now, timeout): (Nanos, std::time::Duration),
        looks: &mut usize,
    ) -> Option<(usize, LaneId)> {
        while *looks > 0 && !self.lanes.is_empty() {
            *looks -= 1;
            self.next %= self.lanes.len();
            let at = self.next;
            let (lane, since) = &mut self.lanes[at];
            if !is_unknown(table, *lane) {
                self.lanes.swap_remove(at);
                continue;
            }
            self.next += 1;
            if *since == Nanos::NEVER {
                *since = now;
            } else if now >= *since + timeout {
                return Some((at, *lane));
            }
        }
        None
    }
}

/// Notes that the program has connected to this peer, so that its number stays.
pub fn mark_connected(peers: &mut Peers, id: PeerId) {
    if let Some(peer) = peers.table.get_mut(id).filter(|peer| !peer.state.is_removed()) {
        peer.state.insert(PeerFlags::CONNECTED);
    }
}

/// True if senders that have not answered may be [removed](remove_unknown_peers).
pub fn has_unknown_peers(peers: &Peers) -> bool {
    peers.unknown_peers.is_any()
}

/// Removes unknown peers that the wire has reported absent for the configured time and that have no operation
/// in progress; `keep` names peers that the caller needs. Each call examines a bounded number. Returns the
/// removed lanes: their endpoints can be closed, their ids will be reused.
///
/// A sender that may be there stays: it may compute for an hour before it answers. So does one of which an
/// unexpected message waits.
#[cold]
pub fn remove_unknown_peers<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    now: Nanos,
    keep: impl Fn(PeerId) -> bool,
) -> Vec<LaneId> {
    let mut reaped = Vec::new();
    // Events that wait name peers by their numbers.
    if e.pending.has_events() || !e.peers.lost_lanes.is_empty() {
        return reaped;
    }
    let (mut looks, timeout) = (REAP_BATCH, e.peers.cfg.unknown_peers_timeout);
    while let Some((at, lane)) = e.peers.unknown_peers.next_due(&e.peers.table, (now, timeout), &mut looks) {
        let removed = match lane.first_of() {
            Some(peer) => {
                let may_go = !keep(peer) && is_removable(&e.peers, &e.ops.recvs, &e.ops.rma_ops, peer);
                if may_go {
                    let gone = &e.peers.table[peer];
                    let of = (gone.wire, gone.from(), gone.addr.connid);
                    e.peers.unknown_peers.removed.note(of, gone.next_rx);
                    e.remove_peer(w, peer);
                }
                may_go
            }
            None => remove_absent_lane(&mut e.peers, &e.pending, lane),
        };
        if removed {
            e.peers.unknown_peers.lanes.swap_remove(at);
            e.peers.unknown_peers.next = at;
            e.peers.counters.stats.rare.unknown_peers_removed += 1;
            reaped.push(lane);
        }
    }
    reaped
}

/// Whether an unknown peer is absent, and nothing goes on with it.
fn is_removable(peers: &Peers, recvs: &Recvs, rma_ops: &RmaOps, id: PeerId) -> bool {
    let Some(peer) = peers.table.get(id) else { return false };
    let in_use = PeerFlags::CONNECTED
        | PeerFlags::AWAITED
        | PeerFlags::SENDS_QUEUED
        | PeerFlags::SCHEDULED
        | PeerFlags::BACKED_OFF
        | PeerFlags::OVER_LIMIT
        | PeerFlags::CLOSE_DUE
        | PeerFlags::CLOSE_UNCONFIRMED
        | PeerFlags::AWAITS_CLOSE;
    let counts = [peer.unexpected, peer.outstanding, peer.next_tx];
    let queue_in_use = peer.queue.as_ref().is_some_and(|queue| {
        !queue.lanes.is_empty() || !queue.failed_lanes.is_empty() || queue.closes != Closes::default()
    });
    let is_idle = !peer.state.has_any(in_use) && counts == [0; 3] && !queue_in_use;
    is_absent(peer) && is_idle && !recvs.is_awaited(peers, rma_ops, id)
}

fn remove_absent_lane(peers: &mut Peers, pending: &Pending, id: LaneId) -> bool {
    let Some(lane) = peers.table.lanes.get(id).filter(|lane| is_absent(lane)) else { return false };
    let listed = pending.scheduled.contains(&id) || pending.backed_off.contains(&id);
    if lane.peer.is_some() || listed || !lane.announced.is_empty() {
        return false;
    }
    let (wire, from, connid) = (lane.wire, lane.from(), lane.addr.connid);
    peers.lookup.remove(wire, from, connid, id);
    peers.table.lanes.remove(id);
    true
}

/// Whether the wire has found that nobody is at the other end: the lane has failed, or our HANDSHAKE, the
/// only packet that was sent on it, was not delivered.
fn is_absent(lane: &Lane) -> bool {
    match lane.state.life() {
        Lifecycle::Drained => true,
        Lifecycle::Up => {
            lane.state.own_handshake() == OwnHandshake::NotDue && lane.state.accepted() == Accepted::Handshake
        }
        _ => false,
    }
}

/// Whether nothing shows that somebody is at the other end.
fn is_unknown(table: &PeerTable, lane: LaneId) -> bool {
    match lane.first_of() {
        Some(peer) => table.get(peer).is_some_and(|peer| !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED)),
        None => table.lanes.get(lane).is_some_and(|lane| lane.peer.is_none()),
    }
}
