//! Which share of an answer's usual time is waited out before it is looked for, found by trying: what is best depends on the
//! processors and on how far they are from each other, which changes. Part of `holdoff.rs`, which tells of each block of turns.
//!
//! It depends on the peer, too: two that both wait little may be a fifth faster than two that both wait long, and if one of them does the
//! one and one the other, neither gains. So both try the same share at the same time, by the number of the block, which they have in
//! common. Both see the same turns, and so come to the same end, each for itself.

use std::cell::Cell;

/// Eighths of an answer's time. More of it is nowhere better: then the answer has to wait.
const SHARES: [u64; 3] = [5, 3, 1];
/// Blocks of a cycle. In the first ones each share is tried, and behind each comes a block with the one in use.
const CYCLE: u64 = 32;
const TRIED: u64 = 2 * SHARES.len() as u64;
/// A share that was faster, by this part at least, in so many cycles more than it was not is the one in use from then on.
const WON: u32 = 8;
const MARGIN: u64 = 128;

/// The share in use, and what was tried in this cycle.
#[derive(Debug)]
pub struct Trial {
    /// The share in use, and that of the block under way: numbers in [`SHARES`].
    home: Cell<usize>,
    now: Cell<usize>,
    /// The number of the block under way, and whether all of its cycle before it has been seen.
    number: Cell<u64>,
    is_whole: Cell<bool>,
    /// How long the blocks of this cycle took in which shares were tried, and the shortest of those between them.
    tried: [Cell<u64>; SHARES.len()],
    between: Cell<u64>,
    scores: [Cell<u32>; SHARES.len()],
}

impl Trial {
    /// The largest share is in use.
    pub fn new() -> Trial {
        Trial {
            home: Cell::new(0),
            now: Cell::new(0),
            number: Cell::new(0),
            is_whole: Cell::new(false),
            tried: Default::default(),
            between: Cell::new(u64::MAX),
            scores: Default::default(),
        }
    }

    /// Eighths of an answer's time that are waited out in the block under way.
    pub fn eighths(&self) -> u64 {
        SHARES[self.now.get()]
    }

    /// A block of turns has taken so long, and the one with this number begins, here and at the peer.
    pub fn block(&self, took: u64, number: u64) {
        let before = self.number.replace(number);
        if number != before.wrapping_add(1) {
            self.is_whole.set(false);
        }
        match before % CYCLE {
            was if was >= TRIED => {}
            was if was.is_multiple_of(2) => self.tried[was as usize / 2].set(took),
            _ => self.between.set(self.between.get().min(took)),
        }
        let at = number % CYCLE;
        if at == 0 {
            self.between.set(u64::MAX);
            self.is_whole.set(true);
        } else if at == TRIED && self.is_whole.get() {
            self.judge();
        }
        self.now.set(if at < TRIED && at.is_multiple_of(2) { at as usize / 2 } else { self.home.get() });
    }

    /// Turns are not taken any more: what was found out stays.
    pub fn stop(&self) {
        self.is_whole.set(false);
        self.now.set(self.home.get());
    }

    fn judge(&self) {
        let between = self.between.get();
        for (share, score) in self.scores.iter().enumerate() {
            let won = share != self.home.get() && self.tried[share].get() < between - between / MARGIN;
            score.set(if won { score.get() + 1 } else { score.get().saturating_sub(1) });
            if score.get() == WON {
                self.home.set(share);
                self.scores.iter().for_each(|score| score.set(0));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number below `below`, by a generator of the test's own.
    fn draw(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) % below
    }

    /// Two peers, and how long a block takes by the eighths that both wait, with so many parts in a hundred of noise. One block of
    /// fifty takes ten times as long. Answers what they have come to, and the mean of the last 1000 blocks without noise.
    fn play(
        peers: &[Trial; 2],
        numbers: std::ops::Range<u64>,
        noise: u64,
        time: impl Fn(u64, u64) -> u64,
    ) -> ([u64; 2], u64) {
        let (mut state, mut last, end) = (numbers.start, 0, numbers.end);
        for number in numbers {
            let both = time(peers[0].eighths(), peers[1].eighths());
            let late = if draw(&mut state, 50) == 0 { 10 } else { 1 };
            let took = (both + both * noise / 100 * draw(&mut state, 1000) / 1000) * late;
            peers.iter().for_each(|peer| peer.block(took, number));
            last += if number + 1000 >= end { both } else { 0 };
        }
        ([0, 1].map(|n| SHARES[peers[n].home.get()]), last / 1000)
    }

    fn both() -> [Trial; 2] {
        [Trial::new(), Trial::new()]
    }

    #[test]
    fn the_best_share_is_found() {
        for best in SHARES {
            let time = |a: u64, b: u64| 10_000 + 300 * (a.abs_diff(best) + b.abs_diff(best));
            let (found, last) = play(&both(), 0..20_000, 10, time);
            assert_eq!(found, [best; 2]);
            assert!(last < 10_000 * 102 / 100, "trials cost more than two parts in a hundred: {last}");
        }
    }

    #[test]
    fn so_is_one_that_pays_only_if_both_have_it() {
        for best in SHARES {
            let time = |a: u64, b: u64| if (a, b) == (best, best) { 8000 } else { 10_000 };
            assert_eq!(play(&both(), 7..1000, 5, time).0, [best; 2]);
            // Also of one who has found something else with another peer.
            let peers = both();
            peers[1].home.set(2);
            assert_eq!(play(&peers, 7..1000, 5, time).0, [best; 2]);
        }
    }

    #[test]
    fn what_makes_no_difference_is_left_as_it_is() {
        assert_eq!(play(&both(), 0..100_000, 10, |_, _| 10_000).0, [SHARES[0]; 2]);
    }

    #[test]
    fn who_stops_goes_on_with_what_was_found() {
        let peers = both();
        let time = |best: u64| move |a: u64, b: u64| 1000 + 100 * (a.abs_diff(best) + b.abs_diff(best));
        assert_eq!(play(&peers, 0..1000, 5, time(1)).0, [1; 2]);
        peers[0].stop();
        assert_eq!(peers[0].eighths(), 1);
        // The processors have moved.
        assert_eq!(play(&peers, 5000..7000, 5, time(5)).0, [5; 2]);
    }
}
