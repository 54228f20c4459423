//! Peer lookup: from (wire, source, connid) to the lane, whose number tells the peer of a first lane. Queue
//! pair numbers are reused, so a source has one lane now and perhaps others before it, told apart by connid
//! (RDM v4, wire facts 3.5). The last result is cached.

use std::hash::BuildHasher;

use hashbrown::{HashMap, HashTable};
use rustc_hash::FxBuildHasher;

use crate::rdm::ids::{LaneId, Source, WireId};

/// Sources and their lanes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct PeerLookup {
    cache: CachedLookup,
    /// By wire.
    current: Vec<HashTable<SourceEntry>>,
    previous: HashMap<(WireId, Source, u32), LaneId, FxBuildHasher>,
}

/// A source on a wire, and its lane; compared for every packet.
#[derive(Clone, Copy, Debug)]
struct CachedLookup {
    node: u64,
    /// Port, and above it the wire; [`NO_SOURCE`]: there is none.
    wire_port: u64,
    lane: LaneId,
}

/// No wire and port.
const NO_SOURCE: u64 = u64::MAX;

impl CachedLookup {
    #[inline(always)]
    fn wire_port(wire: WireId, from: Source) -> u64 {
        u64::from(wire.0) << 32 | u64::from(from.port)
    }
}

impl Default for CachedLookup {
    fn default() -> CachedLookup {
        CachedLookup { node: 0, wire_port: NO_SOURCE, lane: LaneId(0) }
    }
}

/// A source and its lane: laid out without a gap, since there is one for each peer.
#[derive(Clone, Copy, Debug)]
struct SourceEntry {
    node: u64,
    port: u32,
    lane: LaneId,
}

const _: () = assert!(size_of::<SourceEntry>() == 16);

impl SourceEntry {
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
    /// Creates an empty table.
    pub fn new() -> PeerLookup {
        PeerLookup::default()
    }

    fn find(&self, wire: WireId, from: Source) -> Option<LaneId> {
        let table = self.current.get(usize::from(wire.0))?;
        table.find(hash(from), |entry| entry.source() == from).map(|entry| entry.lane)
    }

    /// Returns the lane that has this source now.
    // HOT
    #[inline]
    pub fn current(&mut self, wire: WireId, from: Source) -> Option<LaneId> {
        let CachedLookup { node, wire_port, lane } = self.cache;
        if node == from.node && wire_port == CachedLookup::wire_port(wire, from) {
            return Some(lane);
        }
        self.current_by_hash(wire, from)
    }

    #[inline(never)]
    fn current_by_hash(&mut self, wire: WireId, from: Source) -> Option<LaneId> {
        let lane = self.find(wire, from)?;
        self.cache = CachedLookup { node: from.node, wire_port: CachedLookup::wire_port(wire, from), lane };
        Some(lane)
    }

    /// Returns the lane that has this source now, without updating the cache.
    pub fn known(&self, wire: WireId, from: Source) -> Option<LaneId> {
        self.find(wire, from)
    }

    /// Returns a lane that had this source before, by its connid.
    pub fn previous(&self, wire: WireId, from: Source, connid: u32) -> Option<LaneId> {
        self.previous.get(&(wire, from, connid)).copied()
    }

    /// Assigns the source to `lane`. Returns the lane that had it, which `old_connid` finds from now on.
    pub fn insert(
        &mut self,
        wire: WireId,
        from: Source,
        lane: LaneId,
        old_connid: impl FnOnce(LaneId) -> u32,
    ) -> Option<LaneId> {
        self.cache = CachedLookup::default();
        let at = usize::from(wire.0);
        if at >= self.current.len() {
            self.current.resize_with(at + 1, HashTable::new);
        }
        let table = &mut self.current[at];
        let Some(entry) = table.find_mut(hash(from), |entry| entry.source() == from) else {
            let entry = SourceEntry { node: from.node, port: from.port, lane };
            table.insert_unique(hash(from), entry, |entry| hash(entry.source()));
            return None;
        };
        let old = std::mem::replace(&mut entry.lane, lane);
        self.previous.insert((wire, from, old_connid(old)), old);
        Some(old)
    }

    /// Gives a lane another number.
    pub fn rename(&mut self, wire: WireId, from: Source, connid: u32, (old, new): (LaneId, LaneId)) {
        self.cache = CachedLookup::default();
        if let Some(table) = self.current.get_mut(usize::from(wire.0))
            && let Some(entry) =
                table.find_mut(hash(from), |entry| entry.source() == from && entry.lane == old)
        {
            entry.lane = new;
        }
        if let Some(lane) = self.previous.get_mut(&(wire, from, connid)).filter(|lane| **lane == old) {
            *lane = new;
        }
    }

    /// Removes a lane.
    pub fn remove(&mut self, wire: WireId, from: Source, connid: u32, lane: LaneId) {
        self.cache = CachedLookup::default();
        if let Some(table) = self.current.get_mut(usize::from(wire.0))
            && let Ok(entry) =
                table.find_entry(hash(from), |entry| entry.source() == from && entry.lane == lane)
        {
            entry.remove();
        }
        if self.previous.get(&(wire, from, connid)) == Some(&lane) {
            self.previous.remove(&(wire, from, connid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_maps_to_newest_lane_and_old_lane_is_found_by_connid() {
        let (wire, from) = (WireId(0), Source { node: 7, port: 3 });
        let mut lookup = PeerLookup::new();
        assert_eq!(lookup.current(wire, from), None);
        assert_eq!(lookup.insert(wire, from, LaneId(0), |_| 0), None);
        assert_eq!(lookup.current(wire, from), Some(LaneId(0)));
        assert_eq!(lookup.insert(wire, from, LaneId(1), |_| 100), Some(LaneId(0)));
        assert_eq!(lookup.current(wire, from), Some(LaneId(1)));
        assert_eq!(lookup.previous(wire, from, 100), Some(LaneId(0)));
        assert_eq!(lookup.previous(wire, from, 101), None);
        assert_eq!(lookup.current(WireId(1), from), None);
        lookup.rename(wire, from, 100, (LaneId(0), LaneId(2)));
        assert_eq!(
            (lookup.current(wire, from), lookup.previous(wire, from, 100)),
            (Some(LaneId(1)), Some(LaneId(2)))
        );
        lookup.rename(wire, from, 101, (LaneId(1), LaneId(3)));
        assert_eq!(lookup.current(wire, from), Some(LaneId(3)));
        lookup.remove(wire, from, 101, LaneId(3));
        lookup.remove(wire, from, 100, LaneId(2));
        assert_eq!((lookup.current(wire, from), lookup.previous(wire, from, 100)), (None, None));
    }
}
