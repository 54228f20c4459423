//! Runs a case, ours and theirs in turn, and computes its figure.
//!
//! The hypervisor moves virtual processors. While their core-to-core latency is high (no shared L3 cache), a
//! run takes several times longer. So runs are short and many, and the latency is measured before and after
//! each. The *typical* figure is the median of all runs. The *undisturbed* figure is the median of those with
//! low latency (same L3 cache) before and after, without runs over twice the lower quartile, whose processors
//! moved meanwhile.

use std::time::{Duration, Instant};

use perf::core_latency;
use perf::figure::{Figure, Sides};

use super::cases::{Better, Case, Metric};
use super::run::{Error, Ours, Theirs};

/// Core-to-core latency of processors with a shared L3 cache is at most this.
const LOW_LATENCY_NS: f64 = 150.0;
/// On machines without such processors: this times the least latency seen.
const LOW_LATENCY_FACTOR: f64 = 2.0;
/// Undisturbed runs of each side that are enough.
const ENOUGH_RUNS: usize = 20;
/// Longer runs, relative to the lower quartile, had high latency meanwhile.
const MAX_SLOWDOWN: f64 = 2.0;
/// With fewer runs there is no undisturbed figure.
const MIN_RUNS: usize = 3;
/// Number and distance of latency measurements before the first run.
const PROBES: (u32, Duration) = (100, Duration::from_millis(10));
const MAX_COUNTED_PAIRS: u32 = 3;

pub struct Limits {
    pub pairs: u32,
    pub time: Duration,
    pub scale: u64,
}

pub struct PairedRuns<'a> {
    ours: &'a Ours,
    theirs: &'a dyn Theirs,
    limits: Limits,
    min_latency: f64,
}

#[derive(Clone, Copy)]
struct Run {
    figure: f64,
    /// The greater of the latencies before and after, ns.
    core_latency: f64,
}

impl<'a> PairedRuns<'a> {
    /// Measures for a second how low the core-to-core latency gets.
    pub fn new(ours: &'a Ours, theirs: &'a dyn Theirs, limits: Limits) -> Result<Self, Error> {
        let mut pairs = PairedRuns { ours, theirs, limits, min_latency: f64::INFINITY };
        if pairs.limits.pairs > 1 {
            for _ in 0..PROBES.0 {
                pairs.core_latency()?;
                std::thread::sleep(PROBES.1);
            }
        }
        Ok(pairs)
    }

    fn core_latency(&mut self) -> Result<f64, Error> {
        let (a, b) = self.ours.cores;
        let now = core_latency::round_trip_ns((a, b)).map_err(|e| Error::Cores { a, b, source: e.into() })?;
        self.min_latency = self.min_latency.min(now);
        Ok(now)
    }

    /// Greatest core-to-core latency that counts as low, ns.
    pub fn low_latency_limit(&self) -> f64 {
        LOW_LATENCY_NS.max(self.min_latency * LOW_LATENCY_FACTOR)
    }

    fn is_enough(&self, runs: &[Run]) -> bool {
        runs.iter().filter(|run| run.core_latency <= self.low_latency_limit()).count() >= ENOUGH_RUNS
    }

    pub fn figure(&mut self, case: &'static Case) -> Result<Figure, Error> {
        let (most, timed) = match case.metric {
            // A length does not vary.
            Metric::Address => (1, false),
            Metric::Instructions => (self.limits.pairs.min(MAX_COUNTED_PAIRS), false),
            _ => (self.limits.pairs, self.limits.pairs > 1),
        };
        let (begun, scale) = (Instant::now(), self.limits.scale);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut before = if timed { self.core_latency()? } else { 0.0 };
        for n in 0..most {
            if n > 0 && timed && begun.elapsed() > self.limits.time {
                break;
            }
            for (side, is_ours) in [(&mut ours, true), (&mut theirs, false)] {
                let figure = match is_ours {
                    true => self.theirs.ours(self.ours, case, scale)?,
                    false => self.theirs.run(case, scale)?,
                };
                let after = if timed { self.core_latency()? } else { 0.0 };
                side.push(Run { figure, core_latency: before.max(after) });
                before = after;
            }
            if timed && self.is_enough(&ours) && self.is_enough(&theirs) {
                break;
            }
        }
        let all = |runs: &[Run]| runs.iter().map(|run| run.figure).collect::<Vec<_>>();
        let typical = sides(all(&ours), all(&theirs));
        let undisturbed = if timed {
            let undisturbed_of =
                |runs: &[Run]| undisturbed(runs, self.low_latency_limit(), case.metric.better());
            let (ours, theirs) = (undisturbed_of(&ours), undisturbed_of(&theirs));
            (ours.len().min(theirs.len()) >= MIN_RUNS).then(|| sides(ours, theirs))
        } else {
            // What is not timed is never disturbed.
            matches!(case.metric, Metric::Address | Metric::Instructions).then(|| typical.clone())
        };
        Ok(Figure {
            name: case.name.into(),
            unit: case.metric.unit().into(),
            against: self.theirs.name(),
            better: case.metric.better().word().into(),
            typical,
            undisturbed,
        })
    }
}

/// Figures of the runs with low core-to-core latency throughout, best first.
fn undisturbed(runs: &[Run], limit: f64, better: Better) -> Vec<f64> {
    let mut kept: Vec<f64> =
        runs.iter().filter(|run| run.core_latency <= limit).map(|run| run.figure).collect();
    kept.sort_by(f64::total_cmp);
    if better == Better::Higher {
        kept.reverse();
    }
    if let Some(&good) = kept.get(kept.len() / 4) {
        kept.retain(|&figure| match better {
            Better::Lower => figure <= good * MAX_SLOWDOWN,
            Better::Higher => figure >= good / MAX_SLOWDOWN,
        });
    }
    kept
}

fn sides(mut ours: Vec<f64>, mut theirs: Vec<f64>) -> Sides {
    let (a, b) = (median(&mut ours), median(&mut theirs));
    Sides { ours: a, theirs: b, ratio: a / b, runs: [ours.len(), theirs.len()] }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let mid = values.len() / 2;
    if values.len() % 2 == 1 { values[mid] } else { (values[mid - 1] + values[mid]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(all: &[(f64, f64)]) -> Vec<Run> {
        all.iter().map(|&(figure, core_latency)| Run { figure, core_latency }).collect()
    }

    #[test]
    fn run_with_high_core_latency_is_not_undisturbed() {
        let all = runs(&[(4.0, 90.0), (1.0, 500.0), (6.0, 80.0), (5.0, 150.0), (9.0, 151.0)]);
        assert_eq!(undisturbed(&all, 150.0, Better::Lower), [4.0, 5.0, 6.0]);
        assert_eq!(undisturbed(&all, 150.0, Better::Higher), [6.0, 5.0, 4.0]);
        assert!(undisturbed(&all, 10.0, Better::Lower).is_empty());
    }

    #[test]
    fn run_with_high_core_latency_meanwhile_is_not_undisturbed() {
        let all = runs(&[2.0, 2.5, 7.0, 2.2, 4.3, 8.0, 2.1, 4.1].map(|figure| (figure, 90.0)));
        assert_eq!(undisturbed(&all, 150.0, Better::Lower), [2.0, 2.1, 2.2, 2.5, 4.1, 4.3]);
        let all = runs(&[50.0, 48.0, 10.0, 45.0, 20.0].map(|figure| (figure, 90.0)));
        assert_eq!(undisturbed(&all, 150.0, Better::Higher), [50.0, 48.0, 45.0]);
    }

    #[test]
    fn figures_are_medians_and_their_ratio() {
        let both = sides(vec![4.0, 1.0, 6.0, 2.0], vec![2.0, 9.0, 2.0]);
        assert_eq!((both.ours, both.theirs, both.ratio, both.runs), (3.0, 2.0, 1.5, [4, 3]));
    }
}
