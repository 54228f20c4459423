//! The tuner: finds by trial which part of an answer's usual time the poll delay should be. The best part
//! depends on the processors and their distance. Called by `poll_delay.rs` for each block of rounds.
//!
//! It depends on the peer, too: two sides with a small part may be a fifth faster than two with a large one,
//! while one of each gains nothing. So both sides try the same part at the same time, by the block number
//! that they have in common, measure the same rounds, and come to the same result.

use std::cell::Cell;

/// Eighths of an answer's time. More is nowhere better: then the answer waits.
const CANDIDATES: [u64; 3] = [5, 3, 1];
/// Blocks of a cycle, which begins with a trial of each candidate, each followed by a block as chosen.
const CYCLE_BLOCKS: u64 = 32;
const TRIAL_BLOCKS: u64 = 2 * CANDIDATES.len() as u64;
/// A candidate is chosen once it has won so many cycles more than lost, each by a part in [`MIN_GAIN`].
const WINS_TO_SWITCH: u32 = 8;
const MIN_GAIN: u64 = 128;

#[derive(Debug)]
pub struct DelayTuner {
    /// Indices in [`CANDIDATES`]: the chosen one, and that of the current block.
    chosen: Cell<usize>,
    current: Cell<usize>,
    /// The number of the current block, and whether its cycle was measured from the start.
    block: Cell<u64>,
    is_cycle_complete: Cell<bool>,
    /// Times of the trial blocks of this cycle, and the shortest of the blocks between them.
    trial_times: [Cell<u64>; CANDIDATES.len()],
    baseline: Cell<u64>,
    scores: [Cell<u32>; CANDIDATES.len()],
}

impl DelayTuner {
    pub fn new() -> DelayTuner {
        DelayTuner {
            chosen: Cell::new(0),
            current: Cell::new(0),
            block: Cell::new(0),
            is_cycle_complete: Cell::new(false),
            trial_times: Default::default(),
            baseline: Cell::new(u64::MAX),
            scores: Default::default(),
        }
    }

    pub fn eighths(&self) -> u64 {
        CANDIDATES[self.current.get()]
    }

    /// Ends a block of rounds, which `took` so long, and begins number `block`, here and at the peer.
    pub fn begin_block(&self, took: u64, block: u64) {
        let before = self.block.replace(block);
        if block != before.wrapping_add(1) {
            self.is_cycle_complete.set(false);
        }
        match before % CYCLE_BLOCKS {
            phase if phase >= TRIAL_BLOCKS => {}
            phase if phase.is_multiple_of(2) => self.trial_times[phase as usize / 2].set(took),
            _ => self.baseline.set(self.baseline.get().min(took)),
        }
        let phase = block % CYCLE_BLOCKS;
        if phase == 0 {
            self.baseline.set(u64::MAX);
            self.is_cycle_complete.set(true);
        } else if phase == TRIAL_BLOCKS && self.is_cycle_complete.get() {
            self.evaluate();
        }
        self.current.set(if phase < TRIAL_BLOCKS && phase.is_multiple_of(2) {
            phase as usize / 2
        } else {
            self.chosen.get()
        });
    }

    pub fn pause(&self) {
        self.is_cycle_complete.set(false);
        self.current.set(self.chosen.get());
    }

    fn evaluate(&self) {
        let baseline = self.baseline.get();
        for (candidate, score) in self.scores.iter().enumerate() {
            let won = candidate != self.chosen.get()
                && self.trial_times[candidate].get() < baseline - baseline / MIN_GAIN;
            score.set(if won { score.get() + 1 } else { score.get().saturating_sub(1) });
            if score.get() == WINS_TO_SWITCH {
                self.chosen.set(candidate);
                self.scores.iter().for_each(|score| score.set(0));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) % below
    }

    /// `noise` is in percent. Returns both choices and the mean block of the last 1000.
    fn simulate(
        peers: &[DelayTuner; 2],
        blocks: std::ops::Range<u64>,
        noise: u64,
        time: impl Fn(u64, u64) -> u64,
    ) -> ([u64; 2], u64) {
        let (mut state, mut last, end) = (blocks.start, 0, blocks.end);
        for block in blocks {
            let both = time(peers[0].eighths(), peers[1].eighths());
            let late = if draw(&mut state, 50) == 0 { 10 } else { 1 };
            let took = (both + both * noise / 100 * draw(&mut state, 1000) / 1000) * late;
            peers.iter().for_each(|peer| peer.begin_block(took, block));
            last += if block + 1000 >= end { both } else { 0 };
        }
        ([0, 1].map(|n| CANDIDATES[peers[n].chosen.get()]), last / 1000)
    }

    fn both() -> [DelayTuner; 2] {
        [DelayTuner::new(), DelayTuner::new()]
    }

    #[test]
    fn best_candidate_is_found() {
        for best in CANDIDATES {
            let time = |a: u64, b: u64| 10_000 + 300 * (a.abs_diff(best) + b.abs_diff(best));
            let (found, last) = simulate(&both(), 0..20_000, 10, time);
            assert_eq!(found, [best; 2]);
            assert!(last < 10_000 * 102 / 100, "trials cost more than two percent: {last}");
        }
    }

    #[test]
    fn candidate_that_pays_only_on_both_sides_is_found() {
        for best in CANDIDATES {
            let time = |a: u64, b: u64| if (a, b) == (best, best) { 8000 } else { 10_000 };
            assert_eq!(simulate(&both(), 7..1000, 5, time).0, [best; 2]);
            let peers = both();
            peers[1].chosen.set(2);
            assert_eq!(simulate(&peers, 7..1000, 5, time).0, [best; 2]);
        }
    }

    #[test]
    fn first_candidate_is_kept_without_a_gain() {
        assert_eq!(simulate(&both(), 0..100_000, 10, |_, _| 10_000).0, [CANDIDATES[0]; 2]);
    }

    #[test]
    fn choice_survives_a_pause() {
        let peers = both();
        let time = |best: u64| move |a: u64, b: u64| 1000 + 100 * (a.abs_diff(best) + b.abs_diff(best));
        assert_eq!(simulate(&peers, 0..1000, 5, time(1)).0, [1; 2]);
        peers[0].pause();
        assert_eq!(peers[0].eighths(), 1);
        assert_eq!(simulate(&peers, 5000..7000, 5, time(5)).0, [5; 2]);
    }
}
