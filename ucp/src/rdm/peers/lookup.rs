//! Peer lookup: from (wire, source, connid) to peer. Queue pair numbers are reused, so a source has one peer
//! now and perhaps others before it, told apart by connid (RDM v4, wire facts 3.5). The last answer is tried
//! first.

use std::hash::BuildHasher;

use hashbrown::{HashMap, HashTable};
use rustc_hash::FxBuildHasher;

use crate::rdm::ids::WireId;
use crate::rdm::ids::{PeerId, Source};

/// Sources and their peers.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PeerLookup {
    last: Last,
    /// By wire.
    now: Vec<HashTable<Row>>,
    before: HashMap<(WireId, Source, u32), PeerId, FxBuildHasher>,
}

/// A source on a wire, and its peer; compared for every packet.
#[derive(Clone, Copy, Debug)]
struct Last {
    node: u64,
    /// Port, and above it the wire; [`NOBODY`]: there is none.
    at: u64,
    peer: PeerId,
}

/// No wire and port.
const NOBODY: u64 = u64::MAX;

impl Last {
    #[inline(always)]
    fn place(wire: WireId, from: Source) -> u64 {
        u64::from(wire.0) << 32 | u64::from(from.port)
    }
}

impl Default for Last {
    fn default() -> Last {
        Last { node: 0, at: NOBODY, peer: PeerId(0) }
    }
}

/// A source and its peer: laid out without a gap, since there is one for each peer.
#[derive(Clone, Copy, Debug)]
struct Row {
    node: u64,
    port: u32,
    peer: PeerId,
}

const _: () = assert!(size_of::<Row>() == 16);

impl Row {
    #[inline]
    fn source(&self) -> Source {
        Source { node: self.node, port: self.port }
    }
}

#[inline]
fn hash(from: Source) -> u64 {
    FxBuildHasher.hash_one(from)
}

impl PeerLookup {
    /// Nobody known.
    pub fn new() -> PeerLookup {
        PeerLookup::default()
    }

    fn find(&self, wire: WireId, from: Source) -> Option<PeerId> {
        let rows = self.now.get(usize::from(wire.0))?;
        rows.find(hash(from), |row| row.source() == from).map(|row| row.peer)
    }

    /// The peer that has this source now. // HOT
    #[inline]
    pub fn current(&mut self, wire: WireId, from: Source) -> Option<PeerId> {
        let Last { node, at, peer } = self.last;
        if node == from.node && at == Last::place(wire, from) {
            return Some(peer);
        }
        self.current_by_hash(wire, from)
    }

    #[inline(never)]
    fn current_by_hash(&mut self, wire: WireId, from: Source) -> Option<PeerId> {
        let peer = self.find(wire, from)?;
        self.last = Last { node: from.node, at: Last::place(wire, from), peer };
        Some(peer)
    }

    /// The peer that has this source now, for a look at it only.
    pub fn known(&self, wire: WireId, from: Source) -> Option<PeerId> {
        self.find(wire, from)
    }

    /// A peer that had this source before, by its connid.
    pub fn previous(&self, wire: WireId, from: Source, connid: u32) -> Option<PeerId> {
        self.before.get(&(wire, from, connid)).copied()
    }

    /// Gives the source to `peer`. Answers who had it; `old_connid` tells how to find that one from now on.
    pub fn insert(
        &mut self,
        wire: WireId,
        from: Source,
        peer: PeerId,
        old_connid: impl FnOnce(PeerId) -> u32,
    ) -> Option<PeerId> {
        self.last = Last::default();
        let at = usize::from(wire.0);
        if at >= self.now.len() {
            self.now.resize_with(at + 1, HashTable::new);
        }
        let rows = &mut self.now[at];
        let Some(row) = rows.find_mut(hash(from), |row| row.source() == from) else {
            let row = Row { node: from.node, port: from.port, peer };
            rows.insert_unique(hash(from), row, |row| hash(row.source()));
            return None;
        };
        let old = std::mem::replace(&mut row.peer, peer);
        self.before.insert((wire, from, old_connid(old)), old);
        Some(old)
    }

    /// Forgets a peer.
    pub fn remove(&mut self, wire: WireId, from: Source, connid: u32, peer: PeerId) {
        self.last = Last::default();
        if let Some(rows) = self.now.get_mut(usize::from(wire.0))
            && let Ok(row) = rows.find_entry(hash(from), |row| row.source() == from && row.peer == peer)
        {
            row.remove();
        }
        if self.before.get(&(wire, from, connid)) == Some(&peer) {
            self.before.remove(&(wire, from, connid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_goes_to_its_newest_peer_and_the_old_one_stays_known() {
        let (wire, from) = (WireId(0), Source { node: 7, port: 3 });
        let mut ident = PeerLookup::new();
        assert_eq!(ident.current(wire, from), None);
        assert_eq!(ident.insert(wire, from, PeerId(0), |_| 0), None);
        assert_eq!(ident.current(wire, from), Some(PeerId(0)));
        assert_eq!(ident.insert(wire, from, PeerId(1), |_| 100), Some(PeerId(0)));
        assert_eq!(ident.current(wire, from), Some(PeerId(1)));
        assert_eq!(ident.previous(wire, from, 100), Some(PeerId(0)));
        assert_eq!(ident.previous(wire, from, 101), None);
        assert_eq!(ident.current(WireId(1), from), None);
        ident.remove(wire, from, 101, PeerId(1));
        ident.remove(wire, from, 100, PeerId(0));
        assert_eq!((ident.current(wire, from), ident.previous(wire, from, 100)), (None, None));
    }
}
