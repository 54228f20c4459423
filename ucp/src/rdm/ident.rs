//! Who sent a packet: (wire, source, connid) to peer. Queue pair numbers are reused, so a source has one peer now and
//! perhaps others before it, told apart by connid (RDM v4, wire facts 3.5). The last answer is tried first.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::ask::WireId;
use super::io::{PeerId, Source};

/// Sources and their peers.
#[derive(Debug)]
pub struct Ident {
    last: Option<(WireId, Source, PeerId)>,
    now: HashMap<(WireId, Source), PeerId, FxBuildHasher>,
    before: HashMap<(WireId, Source, u32), PeerId, FxBuildHasher>,
}

impl Ident {
    /// Nobody known.
    pub fn new() -> Ident {
        Ident { last: None, now: HashMap::default(), before: HashMap::default() }
    }

    /// The peer that has this source now. // HOT
    #[inline]
    pub fn current(&mut self, wire: WireId, from: Source) -> Option<PeerId> {
        match self.last {
            Some((w, f, peer)) if w == wire && f == from => Some(peer),
            _ => self.current_by_hash(wire, from),
        }
    }

    #[inline(never)]
    fn current_by_hash(&mut self, wire: WireId, from: Source) -> Option<PeerId> {
        let peer = *self.now.get(&(wire, from))?;
        self.last = Some((wire, from, peer));
        Some(peer)
    }

    /// The peer that has this source now, for a look at it only.
    pub fn known(&self, wire: WireId, from: Source) -> Option<PeerId> {
        self.now.get(&(wire, from)).copied()
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
        self.last = None;
        let old = self.now.insert((wire, from), peer)?;
        self.before.insert((wire, from, old_connid(old)), old);
        Some(old)
    }

    /// Forgets a peer.
    pub fn remove(&mut self, wire: WireId, from: Source, connid: u32, peer: PeerId) {
        self.last = None;
        if self.now.get(&(wire, from)) == Some(&peer) {
            self.now.remove(&(wire, from));
        }
        if self.before.get(&(wire, from, connid)) == Some(&peer) {
            self.before.remove(&(wire, from, connid));
        }
    }
}

impl Default for Ident {
    fn default() -> Self {
        Ident::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_goes_to_its_newest_peer_and_the_old_one_stays_known() {
        let (wire, from) = (WireId(0), Source { node: 7, port: 3 });
        let mut ident = Ident::new();
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
