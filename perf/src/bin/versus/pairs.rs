//! The runs of a row, ours and theirs in turn, and what they come to. Called by `main`.
//!
//! On a virtual machine the two processors of a run may be near each other or far apart, a tenth of a second later
//! otherwise, and a figure says which of the two a run met before it says anything about a program. So runs are short and many, and
//! before and after each the distance is measured. What a side takes *typically* is the median of all its runs; what it takes
//! *undisturbed*, the median of those with the processors near at both times. Some of these had them far apart in the midst:
//! one that took more than twice as long as a quarter of them did is left out.

use std::time::{Duration, Instant};

use perf::distance;
use perf::figure::{Figure, Sides};

use super::rows::{Better, Metric, Row};
use super::run::{Error, Ours, Theirs};

/// Processors are near up to this distance, ns: such as have a cache in common are.
const NEAR: f64 = 150.0;
/// Where none come so near: up to so many times the least distance seen.
const NEAREST: f64 = 2.0;
/// Undisturbed runs of each side that are enough.
const ENOUGH: usize = 20;
/// Far processors make a run more than so many times longer.
const FAR: f64 = 2.0;
/// With fewer there is no figure of them.
const FEWEST: usize = 3;
/// How long processors are looked at before the first run, and how often.
const LOOK: (u32, Duration) = (100, Duration::from_millis(10));
/// Most pairs of what is counted, not timed.
const COUNTS: u32 = 3;

/// What decides how many runs there are.
pub struct Limits {
    /// Most pairs of runs.
    pub pairs: u32,
    /// No pair of a row begins later than that.
    pub time: Duration,
    /// Divides the number of operations in a run.
    pub scale: u64,
}

/// Takes figures.
pub struct Pairs<'a> {
    ours: &'a Ours,
    theirs: &'a dyn Theirs,
    limits: Limits,
    /// Least distance seen, ns.
    least: f64,
}

/// One run.
#[derive(Clone, Copy)]
struct Run {
    figure: f64,
    /// Distance before or after it, whichever is longer, ns.
    distance: f64,
}

impl<'a> Pairs<'a> {
    /// Looks how near the processors come.
    pub fn new(ours: &'a Ours, theirs: &'a dyn Theirs, limits: Limits) -> Result<Self, Error> {
        let mut pairs = Pairs { ours, theirs, limits, least: f64::INFINITY };
        if pairs.limits.pairs > 1 {
            for _ in 0..LOOK.0 {
                pairs.distance()?;
                std::thread::sleep(LOOK.1);
            }
        }
        Ok(pairs)
    }

    fn distance(&mut self) -> Result<f64, Error> {
        let (a, b) = self.ours.cores;
        let now = distance::between((a, b)).map_err(|e| Error::Cores { a, b, source: e.into() })?;
        self.least = self.least.min(now);
        Ok(now)
    }

    /// Distance up to which processors are near, ns.
    pub fn near(&self) -> f64 {
        NEAR.max(self.least * NEAREST)
    }

    fn is_enough(&self, runs: &[Run]) -> bool {
        runs.iter().filter(|run| run.distance <= self.near()).count() >= ENOUGH
    }

    /// All runs of a row.
    pub fn figure(&mut self, row: &'static Row) -> Result<Figure, Error> {
        let (most, timed) = match row.metric {
            // A length is a length.
            Metric::Address => (1, false),
            Metric::Instructions => (self.limits.pairs.min(COUNTS), false),
            _ => (self.limits.pairs, self.limits.pairs > 1),
        };
        let (begun, scale) = (Instant::now(), self.limits.scale);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut before = if timed { self.distance()? } else { 0.0 };
        for n in 0..most {
            if n > 0 && timed && begun.elapsed() > self.limits.time {
                break;
            }
            for (side, is_ours) in [(&mut ours, true), (&mut theirs, false)] {
                let figure = match is_ours {
                    true => self.theirs.ours(self.ours, row, scale)?,
                    false => self.theirs.run(row, scale)?,
                };
                let after = if timed { self.distance()? } else { 0.0 };
                side.push(Run { figure, distance: before.max(after) });
                before = after;
            }
            if timed && self.is_enough(&ours) && self.is_enough(&theirs) {
                break;
            }
        }
        let all = |runs: &[Run]| runs.iter().map(|run| run.figure).collect::<Vec<_>>();
        let typical = sides(all(&ours), all(&theirs));
        let undisturbed = if timed {
            let near = |runs: &[Run]| undisturbed(runs, self.near(), row.metric.better());
            let (ours, theirs) = (near(&ours), near(&theirs));
            (ours.len().min(theirs.len()) >= FEWEST).then(|| sides(ours, theirs))
        } else {
            // What is not timed nothing disturbs; of a single pair nobody knows.
            matches!(row.metric, Metric::Address | Metric::Instructions).then(|| typical.clone())
        };
        Ok(Figure {
            row: row.name.into(),
            unit: row.metric.unit().into(),
            against: self.theirs.name(),
            better: row.metric.better().word().into(),
            typical,
            undisturbed,
        })
    }
}

/// Figures of the runs that had the processors near, as far as one can tell.
fn undisturbed(runs: &[Run], near: f64, better: Better) -> Vec<f64> {
    let mut kept: Vec<f64> = runs.iter().filter(|run| run.distance <= near).map(|run| run.figure).collect();
    kept.sort_by(f64::total_cmp);
    if better == Better::Higher {
        kept.reverse();
    }
    // From the best to the worst.
    if let Some(&good) = kept.get(kept.len() / 4) {
        kept.retain(|&figure| match better {
            Better::Lower => figure <= good * FAR,
            Better::Higher => figure >= good / FAR,
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
        all.iter().map(|&(figure, distance)| Run { figure, distance }).collect()
    }

    #[test]
    fn a_run_with_the_processors_far_apart_does_not_count() {
        let all = runs(&[(4.0, 90.0), (1.0, 500.0), (6.0, 80.0), (5.0, 150.0), (9.0, 151.0)]);
        assert_eq!(undisturbed(&all, 150.0, Better::Lower), [4.0, 5.0, 6.0]);
        assert_eq!(undisturbed(&all, 150.0, Better::Higher), [6.0, 5.0, 4.0]);
        assert!(undisturbed(&all, 10.0, Better::Lower).is_empty());
    }

    #[test]
    fn nor_does_one_that_had_them_so_in_its_midst() {
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
