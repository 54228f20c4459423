//! Which share of an answer's usual time is waited out before it is looked for, found by trying: what is best depends on the
//! processors and on how far they are from each other, which changes. Part of `holdoff.rs`, which tells of each block of turns.
//!
//! Now and then a share that is not in use is tried in turn with the one that is, block by block, in an order that is drawn. The
//! peer does the same, so a block that took longer says little; many that did are believed.

use std::cell::Cell;

/// Eighths of an answer's time. More of it is nowhere better: then the answer has to wait.
const SHARES: [u64; 3] = [5, 3, 1];
/// Blocks before the first trial, and between two as long as the share changes. It doubles while it does not.
const REST: u32 = 64;
/// Most blocks between two trials.
const LONGEST: u32 = 4096;
/// So many pairs more won than lost make the share that is tried the one in use; so many more lost end the trial.
const WON: i32 = 8;
const LOST: i32 = -4;
/// A pair is won by this part at least.
const MARGIN: u64 = 64;

/// Blocks of a trial.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// None; the next is so many blocks away.
    Rest(u32),
    /// The first of a pair is under way.
    First,
    /// The second is, and the first took so long.
    Second(u64),
}

/// The share in use, and the trial of another.
#[derive(Debug)]
pub struct Trial {
    stage: Cell<Stage>,
    /// The share in use, and the one that is tried, or will be: numbers in [`SHARES`].
    home: Cell<usize>,
    away: Cell<usize>,
    /// The block under way is of the latter.
    is_away: Cell<bool>,
    score: Cell<i32>,
    rest: Cell<u32>,
    dice: Cell<u32>,
}

impl Trial {
    /// The largest share is in use. What is drawn depends on `seed`, which two peers should not have in common.
    pub fn new(seed: u32) -> Trial {
        Trial {
            stage: Cell::new(Stage::Rest(REST)),
            home: Cell::new(0),
            away: Cell::new(1),
            is_away: Cell::new(false),
            score: Cell::new(0),
            rest: Cell::new(REST),
            dice: Cell::new(seed | 1),
        }
    }

    /// Eighths of an answer's time that are waited out in the block under way.
    pub fn eighths(&self) -> u64 {
        SHARES[if self.is_away.get() { self.away.get() } else { self.home.get() }]
    }

    /// A block of turns has taken so long, and the next one begins.
    pub fn block(&self, took: u64) {
        match self.stage.get() {
            Stage::Rest(0) => self.begin_pair(),
            Stage::Rest(left) => self.stage.set(Stage::Rest(left - 1)),
            Stage::First => {
                self.is_away.set(!self.is_away.get());
                self.stage.set(Stage::Second(took));
            }
            Stage::Second(first) => {
                let (home, away) = if self.is_away.get() { (first, took) } else { (took, first) };
                let won = away < home - home / MARGIN;
                self.score.set(self.score.get() + if won { 1 } else { -1 });
                match self.score.get() {
                    WON => self.end(true),
                    LOST => self.end(false),
                    _ => self.begin_pair(),
                }
            }
        }
    }

    /// Turns are not taken any more: a trial under way is forgotten, what was found out is not.
    pub fn stop(&self) {
        self.score.set(0);
        self.is_away.set(false);
        self.stage.set(Stage::Rest(REST));
    }

    fn begin_pair(&self) {
        // xorshift32
        let mut dice = self.dice.get();
        dice ^= dice << 13;
        dice ^= dice >> 17;
        dice ^= dice << 5;
        self.dice.set(dice);
        self.is_away.set(dice & 1 == 0);
        self.stage.set(Stage::First);
    }

    fn end(&self, won: bool) {
        let (home, away) = (self.home.get(), self.away.get());
        if won {
            self.home.set(away);
        }
        // The one that was neither.
        self.away.set((0..SHARES.len()).find(|n| *n != home && *n != away).unwrap_or(home));
        self.rest.set(if won { REST } else { (self.rest.get() * 2).min(LONGEST) });
        self.score.set(0);
        self.is_away.set(false);
        self.stage.set(Stage::Rest(self.rest.get()));
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

    /// Two peers, of which each waits as its trial says; how long a block takes by the eighths of both, and a tenth of noise. One
    /// block of fifty takes ten times as long. Answers what they have come to after so many blocks, and the time of the last 1000.
    fn play(blocks: u32, time: impl Fn(u64) -> u64) -> ([u64; 2], u64) {
        let (peers, mut state, mut last) = ([Trial::new(7), Trial::new(1234)], 1, 0);
        for n in 0..blocks {
            let both: u64 = peers.iter().map(|peer| time(peer.eighths())).sum();
            let noise = both / 10 * draw(&mut state, 1000) / 1000;
            let took = (both + noise) * if draw(&mut state, 50) == 0 { 10 } else { 1 };
            peers.iter().for_each(|peer| peer.block(took));
            last += if n + 1000 >= blocks { both } else { 0 };
        }
        (peers.map(|peer| SHARES[peer.home.get()]), last)
    }

    #[test]
    fn the_best_share_is_found() {
        for best in SHARES {
            let time = |eighths: u64| 5000 + 200 * eighths.abs_diff(best);
            let (found, last) = play(40_000, time);
            assert_eq!(found, [best; 2]);
            assert!(last < 1000 * 2 * 5000 * 101 / 100, "trials cost more than a hundredth: {last}");
        }
    }

    #[test]
    fn what_makes_no_difference_is_seldom_tried() {
        let away = (0..20).map(|seed| {
            let (trial, mut state, mut away) = (Trial::new(seed), u64::from(seed), 0);
            for _ in 0..20_000 {
                away += u32::from(trial.is_away.get());
                trial.block(10_000 + draw(&mut state, 100));
            }
            away
        });
        let most = away.max();
        assert!(most.is_some_and(|away| away < 200), "{most:?} of 20000 blocks");
    }

    #[test]
    fn who_stops_goes_on_with_what_was_found() {
        let trial = Trial::new(3);
        let turns = |blocks: u32, best: u64| {
            (0..blocks).for_each(|_| trial.block(1000 + 100 * trial.eighths().abs_diff(best)));
        };
        turns(3000, 1);
        assert_eq!(trial.eighths(), 1);
        turns(1, 1);
        trial.stop();
        assert_eq!(trial.eighths(), 1);
        // The processors have moved.
        turns(30_000, 5);
        assert_eq!(trial.eighths(), 5);
    }
}
