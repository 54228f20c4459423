//! Strangers: senders that have introduced themselves by a packet and have not answered. Whoever can forge a
//! source makes as many as it likes, and each costs memory, so that their number is bounded. Peers that are
//! known go on meanwhile.

use crate::rdm::ids::LaneId;
use crate::rdm::peers::peer::PeerTable;
use crate::rdm::peers::state::PeerFlags;

/// Senders that were unknown when their packet arrived. Some of them may have answered since.
#[derive(Debug, Default)]
pub struct Strangers {
    lanes: Vec<LaneId>,
    /// Senders that may be refused before the list is looked through again.
    refusals: usize,
}

/// Whether another stranger becomes a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    Granted,
    Refused,
    /// Refused after a look through the list: worth a line in the log.
    RefusedAnew,
}

impl Strangers {
    /// Decides about one more stranger, with at most `limit` of them. Takes constant time on average.
    pub fn admit(&mut self, table: &PeerTable, limit: usize) -> Admission {
        if self.lanes.len() < limit {
            return Admission::Granted;
        }
        if self.refusals > 0 {
            self.refusals -= 1;
            return Admission::Refused;
        }
        self.lanes.retain(|&lane| is_stranger(table, lane));
        if self.lanes.len() < limit {
            return Admission::Granted;
        }
        self.refusals = limit / 8;
        Admission::RefusedAnew
    }

    /// Notes a lane that a packet has made.
    pub fn note(&mut self, lane: LaneId) {
        self.lanes.push(lane);
    }
}

/// Whether nothing shows that somebody is at the other end.
fn is_stranger(table: &PeerTable, lane: LaneId) -> bool {
    match lane.first_of() {
        Some(peer) => table.get(peer).is_some_and(|peer| !peer.state.has(PeerFlags::MET)),
        None => table.lanes.get(lane).is_some_and(|lane| lane.peer.is_none()),
    }
}
