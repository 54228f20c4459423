//! Search for the longest datagram that the path to a peer carries. The document leaves it to an agent that
//! pings each peer at full MTU and ends the job if nothing comes back. Here the first request to connect is
//! the ping: it is as long as the network interface allows, and its answer as long as itself. If it gets
//! through, the search is over. Else datagrams go in short segments, while probes of several lengths find
//! what the path carries.

/// Lengths that are tried: those of common networks, without the headers of IPv4 and UDP, and 32 bytes less.
const LENGTHS: [u32; 12] = [8972, 8940, 4064, 1472, 1440, 1392, 1360, 1252, 1220, 1024, 768, 548];
/// Times that a length is tried.
const TRIES: u32 = 6;

/// Search of one direction.
#[derive(Clone, Copy, Default, Debug)]
pub struct PathSearch {
    /// Longest datagram that both sides take; 0: there is no search.
    goal: u32,
    /// Longest one that has arrived.
    proven: u32,
    tries: u32,
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
        is_more
    }

    /// Lengths to try now, and the time until the next call; `None` if all were tried often enough.
    pub fn next(&mut self, interval: u64) -> Option<(impl Iterator<Item = u32> + use<>, u64)> {
        let (goal, proven) = (self.goal, self.proven);
        self.tries += 1;
        let lengths = [goal].into_iter().chain(LENGTHS.into_iter().filter(move |len| *len < goal));
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
        let (lengths, pause) = path.next(20).unwrap();
        assert_eq!(
            (lengths.collect::<Vec<_>>(), pause),
            (vec![1472, 1440, 1392, 1360, 1252, 1220, 1024, 768, 548], 20)
        );
        assert!(path.on_arrived(1252) && !path.on_arrived(548) && !path.is_to_begin());
        let (lengths, pause) = path.next(20).unwrap();
        assert_eq!((lengths.collect::<Vec<_>>(), pause), (vec![1472, 1440, 1392, 1360], 40));
        assert_eq!((2..TRIES).filter(|_| path.next(20).is_some()).count(), 4);
        assert!(path.next(20).is_none() && path.is_over());
        assert_eq!(path.proven(), 1252);
    }

    #[test]
    fn nothing_is_tried_after_the_longest_has_arrived() {
        let mut path = PathSearch::begin(1472);
        assert!(path.on_arrived(9000) && path.is_over() && !path.is_to_begin());
        assert_eq!(path.proven(), 1472, "a peer cannot raise it over what both sides take");
        assert!(path.next(20).is_none());
        assert!(PathSearch::default().is_over() && !PathSearch::default().is_to_begin());
    }
}
