//! What may happen to a request on its way: held back and overtaken, delayed, refused once, failed. Drawn from a seed.
//! Asked by the queue pair once per post, and only when a plan is in force. Never touches memory, keys or queues.

use crate::efa::dev::DevStatus;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How badly the network behaves. Times are ticks of the link: virtual nanoseconds in process, polls between
/// processes. Nothing is ever lost: SRD is reliable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultPlan {
    /// Probability that a request is held back for up to `window` ticks.
    pub reorder: f64,
    /// Longest a request is held back, ticks.
    pub window: u64,
    /// Every request takes at least this long, ticks.
    pub delay: u64,
    /// And up to this much longer, ticks; its acknowledgement too.
    pub jitter: u64,
    /// Probability that the receiver is taken to be not ready at the first try.
    pub rnr: f64,
    /// Probability that a request fails instead of being carried out.
    pub fail: f64,
    /// With what status.
    pub fail_status: DevStatus,
    /// The whole NIC goes down after so many requests posted and messages received, if ever.
    pub down_after: Option<u64>,
}

impl FaultPlan {
    /// Nothing goes wrong; everything is carried out at the post.
    pub const NONE: FaultPlan = FaultPlan {
        reorder: 0.0,
        window: 1,
        delay: 0,
        jitter: 0,
        rnr: 0.0,
        fail: 0.0,
        fail_status: DevStatus::Unresponsive,
        down_after: None,
    };

    /// A network with some latency, much reordering and now and then a receiver that is not ready. Nothing fails.
    pub const ROUGH: FaultPlan =
        FaultPlan { reorder: 0.2, window: 20_000, delay: 1_000, jitter: 4_000, rnr: 0.02, ..FaultPlan::NONE };

    /// Whether every request goes through at once.
    pub fn is_none(&self) -> bool {
        let probabilities = [self.reorder, self.rnr, self.fail];
        probabilities == [0.0; 3] && self.delay == 0 && self.jitter == 0 && self.down_after.is_none()
    }
}

/// What was drawn for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultDraw {
    /// Ticks until it is carried out.
    pub delay: u64,
    /// Ticks from then to the completion.
    pub ack: u64,
    /// The first try finds the receiver not ready.
    pub rnr: bool,
    /// It fails with this.
    pub fail: Option<DevStatus>,
}

/// A plan and the dice.
pub struct FaultModel {
    plan: FaultPlan,
    rng: ChaCha8Rng,
}

impl FaultModel {
    /// Dice of their own for each (`seed`, `stream`).
    pub fn new(plan: FaultPlan, seed: u64, stream: u64) -> FaultModel {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        FaultModel { plan, rng }
    }

    /// Whether [`Model::draw`] need not be asked.
    pub fn is_none(&self) -> bool {
        self.plan.is_none()
    }

    /// The fate of the next request.
    pub fn draw(&mut self) -> FaultDraw {
        let p = self.plan;
        let mut delay = p.delay + self.up_to(p.jitter);
        if self.chance(p.reorder) {
            delay += 1 + self.up_to(p.window.saturating_sub(1));
        }
        FaultDraw {
            delay,
            ack: self.up_to(p.jitter),
            rnr: self.chance(p.rnr),
            fail: self.chance(p.fail).then_some(p.fail_status),
        }
    }

    /// Draws nothing for a probability of zero, so that switching one fault off leaves the others as they were only
    /// where they come first; a plan and a seed together name a run.
    fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && ((self.rng.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    fn up_to(&mut self, max: u64) -> u64 {
        if max == 0 { 0 } else { self.rng.next_u64() % (max + 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_draws() {
        let mut a = FaultModel::new(FaultPlan::ROUGH, 7, 1);
        let mut b = FaultModel::new(FaultPlan::ROUGH, 7, 1);
        let mut c = FaultModel::new(FaultPlan::ROUGH, 7, 2);
        let draws: Vec<FaultDraw> = (0..100).map(|_| a.draw()).collect();
        assert!(draws.iter().all(|f| *f == b.draw()));
        assert!(draws.iter().any(|f| *f != c.draw()));
    }

    #[test]
    fn probabilities_hold_roughly_and_bounds_exactly() {
        let plan = FaultPlan { reorder: 0.5, window: 10, rnr: 1.0, ..FaultPlan::NONE };
        let mut m = FaultModel::new(plan, 1, 1);
        let delayed = (0..10_000).filter(|_| {
            let f = m.draw();
            assert!(f.delay <= 10 && f.ack == 0 && f.rnr && f.fail.is_none());
            f.delay > 0
        });
        assert!((4_500..5_500).contains(&delayed.count()));
        assert!(FaultPlan::NONE.is_none() && !plan.is_none());
    }
}
