//! Faults of a request, drawn from a seed once per post if a plan is in force: delay, reordering, RNR,
//! failure.

use crate::efa::dev::DevStatus;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Faults of the network. Times are ticks: virtual nanoseconds in process, polls between processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultPlan {
    /// Probability that a request is delayed by up to `window` ticks.
    pub reorder: f64,
    /// Longest delay of a reordered request, ticks.
    pub window: u64,
    /// Least delay of every request, ticks.
    pub delay: u64,
    /// Most additional delay of a request, and of its acknowledgement, ticks.
    pub jitter: u64,
    /// Probability that the first attempt finds the receiver not ready.
    pub rnr: f64,
    /// Probability that a request fails instead of being carried out.
    pub fail: f64,
    /// Status of failed requests.
    pub fail_status: DevStatus,
    /// Requests posted and messages received after which the NIC goes down, if ever.
    pub down_after: Option<u64>,
}

impl FaultPlan {
    /// No faults.
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

    /// A network with latency, much reordering and some RNR. Nothing fails.
    pub const ROUGH: FaultPlan =
        FaultPlan { reorder: 0.2, window: 20_000, delay: 1_000, jitter: 4_000, rnr: 0.02, ..FaultPlan::NONE };

    /// Whether no request is affected.
    pub fn is_none(&self) -> bool {
        let probabilities = [self.reorder, self.rnr, self.fail];
        probabilities == [0.0; 3] && self.delay == 0 && self.jitter == 0 && self.down_after.is_none()
    }
}

/// Faults drawn for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultDraw {
    /// Ticks until the first attempt.
    pub delay: u64,
    /// Ticks from success to the completion.
    pub ack: u64,
    /// Whether the first attempt finds the receiver not ready.
    pub rnr: bool,
    /// Status to fail with.
    pub fail: Option<DevStatus>,
}

/// A fault plan and its random numbers.
pub struct FaultModel {
    plan: FaultPlan,
    rng: ChaCha8Rng,
}

impl FaultModel {
    /// Creates the model of one (`seed`, `stream`).
    pub fn new(plan: FaultPlan, seed: u64, stream: u64) -> FaultModel {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        FaultModel { plan, rng }
    }

    /// Whether [`FaultModel::draw`] need not be called.
    pub fn is_none(&self) -> bool {
        self.plan.is_none()
    }

    /// Draws the faults of the next request.
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

    /// Draws nothing for probability zero; a run is determined by plan and seed together.
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
