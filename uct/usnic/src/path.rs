//! Search for the longest datagram that the path to a peer carries. The document leaves it to an agent that
//! pings each peer at full MTU and ends the job if nothing comes back. Here the first request to connect is
//! the ping: it is as long as the network interface allows, and its answer as long as itself. If it gets
//! through, the search is over. Else datagrams go in short segments, while probes of several lengths find
//! what the path carries.
//!
//! A path may become a black hole for long datagrams later: a route changes. A segment that is lost several
//! times in a row makes one suspected, for datagrams of its length (black hole detection, RFC 8899). The path
//! is searched again then, and segments stay as long as they are until the search ends. Whatever arrives that
//! is as long, segment or probe, confirms the length. If short probes get through and none of those, segments
//! become as long as what got through.

/// Lengths that are tried: those of common networks, without the headers of IPv4 and UDP, and 32 bytes less.
const LENGTHS: [u32; 12] = [8972, 8940, 4064, 1472, 1440, 1392, 1360, 1252, 1220, 1024, 768, 548];
/// Times that a length is tried.
const TRIES: u32 = 6;
/// Sendings of a segment without an arrival after which a black hole is suspected.
const BLACK_HOLE_LOSSES: u32 = 4;
/// No black hole is suspected.
const NO_LENGTH: u32 = u32::MAX;

/// Search of one direction.
#[derive(Clone, Copy, Debug)]
pub struct PathSearch {
    /// Longest datagram that both sides take; 0: there is no search.
    goal: u32,
    /// Longest one that has arrived.
    proven: u32,
    tries: u32,
    /// Length of a segment that does not arrive, and since when.
    suspect: u32,
    since: u64,
    /// Whether no probe of the last search for a black hole was answered.
    is_unanswered: bool,
}

impl Default for PathSearch {
    fn default() -> PathSearch {
        PathSearch { goal: 0, proven: 0, tries: 0, suspect: NO_LENGTH, since: 0, is_unanswered: false }
    }
}

impl PathSearch {
    /// Begins a search up to this length.
    pub fn begin(goal: u32) -> PathSearch {
        PathSearch { goal, ..PathSearch::default() }
    }

    /// Longest datagram that has arrived, 0 if none is known.
    pub fn proven(&self) -> u32 {
        self.proven
    }

    /// Longest datagram that is looked for.
    pub fn goal(&self) -> u32 {
        self.goal
    }

    /// Whether there is nothing more to find.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.proven >= self.goal || self.tries > TRIES
    }

    /// Whether no probe was sent, and one should be.
    #[inline]
    pub fn is_to_begin(&self) -> bool {
        self.tries == 0 && self.proven < self.goal
    }

    /// Takes the news that a datagram of this length has arrived. Returns whether none so long had.
    pub fn on_arrived(&mut self, len: u32) -> bool {
        let len = len.min(self.goal);
        let is_more = len > self.proven;
        self.proven = self.proven.max(len);
        if len >= self.suspect {
            self.confirm();
        }
        is_more
    }

    /// Takes the news that a segment of length `len`, `lost` times in a row, has not arrived, where segments
    /// have up to `mtu` bytes and each path carries `least`. Returns whether a search begins.
    pub fn on_lost(&mut self, now: u64, len: u32, lost: u32, (mtu, least): (u32, u32)) -> bool {
        // One that goes in pieces tells of their length.
        let len = len.min(mtu);
        let begins = lost >= BLACK_HOLE_LOSSES
            && len > least
            && self.goal != 0
            && self.is_over()
            && !self.is_black_hole_suspected();
        if begins {
            let is_unanswered = self.is_unanswered;
            *self =
                PathSearch { goal: mtu, suspect: len, since: now, is_unanswered, ..PathSearch::default() };
        }
        begins
    }

    /// Whether datagrams of some length and more may no longer get through.
    #[inline]
    pub fn is_black_hole_suspected(&self) -> bool {
        self.suspect != NO_LENGTH
    }

    /// Whether a segment of this length, sent last at that time and acknowledged, confirms it. A longer one
    /// than segments are has come in pieces.
    #[inline]
    pub fn confirms(&self, len: u32, sent: u64) -> bool {
        len >= self.suspect && len <= self.goal && sent >= self.since
    }

    /// Ends the suspicion: the path carries what it did.
    pub fn confirm(&mut self) {
        (self.suspect, self.proven, self.is_unanswered) = (NO_LENGTH, self.goal, false);
    }

    /// Whether a search has found nothing that arrives; or there are no searches.
    pub fn was_unanswered(&self) -> bool {
        self.is_unanswered || self.goal == 0
    }

    /// Ends a search for a black hole. Returns what the path carries, if it is known and shorter.
    pub fn conclude(&mut self) -> Option<u32> {
        if self.proven == 0 {
            // Nothing gets through: that says nothing about lengths.
            self.confirm();
            self.is_unanswered = true;
            return None;
        }
        (self.suspect, self.is_unanswered) = (NO_LENGTH, false);
        Some(self.proven)
    }

    /// Lengths to try now, and the time until the next call; `None` if all were tried often enough. Where the
    /// path was longer, they are few until one of `least` bytes, which each path carries, has arrived.
    pub fn next(&mut self, interval: u64, least: u32) -> Option<(impl Iterator<Item = u32> + use<>, u64)> {
        let (goal, proven) = (self.goal, self.proven);
        self.tries += 1;
        let asks = self.is_black_hole_suspected() && proven == 0;
        let others = LENGTHS.into_iter().filter(move |len| *len < goal && !asks);
        let lengths = [goal].into_iter().chain(others).chain(asks.then_some(least));
        (!self.is_over()).then(|| (lengths.filter(move |len| *len > proven), interval << (self.tries - 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_above_what_is_known_are_tried_some_times() {
        let mut path = PathSearch::begin(1472);
        assert!(path.is_to_begin());
        let (lengths, pause) = path.next(20, 512).unwrap();
        assert_eq!(
            (lengths.collect::<Vec<_>>(), pause),
            (vec![1472, 1440, 1392, 1360, 1252, 1220, 1024, 768, 548], 20)
        );
        assert!(path.on_arrived(1252) && !path.on_arrived(548) && !path.is_to_begin());
        let (lengths, pause) = path.next(20, 512).unwrap();
        assert_eq!((lengths.collect::<Vec<_>>(), pause), (vec![1472, 1440, 1392, 1360], 40));
        assert_eq!((2..TRIES).filter(|_| path.next(20, 512).is_some()).count(), 4);
        assert!(path.next(20, 512).is_none() && path.is_over());
        assert_eq!(path.proven(), 1252);
    }

    #[test]
    fn nothing_is_tried_after_the_longest_has_arrived() {
        let mut path = PathSearch::begin(1472);
        assert!(path.on_arrived(9000) && path.is_over() && !path.is_to_begin());
        assert_eq!(path.proven(), 1472, "a peer cannot raise it over what both sides take");
        assert!(path.next(20, 512).is_none());
        assert!(PathSearch::default().is_over() && !PathSearch::default().is_to_begin());
    }

    fn lengths(path: &mut PathSearch) -> Vec<u32> {
        path.next(20, 512).map(|(lengths, _)| lengths.collect()).unwrap_or_default()
    }

    #[test]
    fn a_segment_that_is_lost_again_and_again_begins_a_search() {
        let mut path = PathSearch::begin(1472);
        assert!(!path.on_lost(7, 1400, 9, (1472, 512)), "the first search is not over");
        path.on_arrived(1472);
        assert!(
            !path.on_lost(7, 1400, BLACK_HOLE_LOSSES - 1, (1472, 512))
                && !path.on_lost(7, 512, 9, (1472, 512))
        );
        assert!(
            path.on_lost(7, 1400, BLACK_HOLE_LOSSES, (1472, 512)) && !path.on_lost(7, 1400, 9, (1472, 512))
        );
        assert_eq!(lengths(&mut path), [1472, 512], "whether anything gets through");
        assert!(path.on_arrived(512));
        assert_eq!(lengths(&mut path), [1472, 1440, 1392, 1360, 1252, 1220, 1024, 768, 548]);
        path.on_arrived(1252);
        assert!(!path.is_over() && path.is_black_hole_suspected());
        while path.next(20, 512).is_some() {}
        assert_eq!(path.conclude(), Some(1252));
        assert!(path.is_over() && !path.is_black_hole_suspected());
        // It may become shorter still.
        assert!(path.on_lost(9, 1252, BLACK_HOLE_LOSSES, (1252, 512)));
        assert_eq!((path.goal(), lengths(&mut path)), (1252, vec![1252, 512]));
    }

    #[test]
    fn an_acknowledged_segment_of_that_length_clears_the_suspicion() {
        let mut path = PathSearch::begin(1472);
        path.on_arrived(1472);
        let suspect =
            |path: &mut PathSearch| assert!(path.on_lost(100, 1400, BLACK_HOLE_LOSSES, (1472, 512)));
        suspect(&mut path);
        assert!(!path.confirms(1473, 200), "in pieces");
        assert!(!path.confirms(1399, 200) && !path.confirms(1472, 99) && path.confirms(1400, 100));
        path.confirm();
        assert!(path.is_over() && !path.is_black_hole_suspected() && path.proven() == 1472);
        suspect(&mut path);
        path.on_arrived(512);
        path.on_arrived(1440);
        assert!(path.is_over() && !path.is_black_hole_suspected(), "a probe that is longer than the segment");
        suspect(&mut path);
        while path.next(20, 512).is_some() {}
        assert!(!path.was_unanswered());
        assert_eq!((path.conclude(), path.proven(), path.was_unanswered()), (None, 1472, true));
        suspect(&mut path);
        assert!(path.was_unanswered(), "until something arrives");
        path.on_arrived(1472);
        assert!(!path.was_unanswered());
        assert!(!PathSearch::default().on_lost(1, 1400, 9, (1472, 512)), "a peer without probes");
        assert!(!PathSearch::default().confirms(u32::MAX - 1, u64::MAX));
    }
}
