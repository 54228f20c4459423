//! Measuring a loop: time of every iteration into a histogram, averages since the start and since the last report.
//! Driven by the test loops, read by the reports.
//!
//! Each iteration costs one reading of the cycle counter and one histogram update. That is the method of
//! `ucx_perftest` too, so figures compare; averages come from the monotonic clock over the whole run, not from the
//! sum of the samples. A loop that cannot bear the reading counts with [`Meter::skip`] and has no percentiles.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::cycles;

/// Three significant digits up to 2^46 cycles (hours): any iteration there is.
const LONGEST: u64 = 1 << 46;

/// Counts and times iterations.
pub struct Meter {
    samples: Histogram<u64>,
    iters: u64,
    begun: Instant,
    begun_cycles: u64,
    last: u64,
    reported: (u64, Instant),
    report_at: u64,
}

/// What was measured up to a moment. Times are seconds for one iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Iterations so far.
    pub iters: u64,
    /// The percentile asked for.
    pub rank: f64,
    /// Median.
    pub p50: f64,
    /// 99.9 of 100 iterations took no longer.
    pub p99_9: f64,
    /// Average since the last report.
    pub recent: f64,
    /// Average since the start.
    pub overall: f64,
}

impl Meter {
    /// A meter whose [`due`](Self::due) becomes true about once a second.
    pub fn new() -> Meter {
        let mut samples = Histogram::new_with_bounds(1, LONGEST, 2).expect("bounds are in order");
        samples.auto(false);
        let (now, cycles) = (Instant::now(), cycles::now());
        Meter {
            samples,
            iters: 0,
            begun: now,
            begun_cycles: cycles,
            last: cycles,
            reported: (0, now),
            report_at: 0,
        }
    }

    /// Starts (again) from nothing.
    pub fn start(&mut self) {
        self.samples.reset();
        self.iters = 0;
        self.begun = Instant::now();
        self.reported = (0, self.begun);
        self.begun_cycles = cycles::now();
        self.last = self.begun_cycles;
        // Not known yet how long a cycle is: look soon, then each second.
        self.report_at = self.begun_cycles + (1 << 26);
    }

    /// One iteration is over. HOT
    #[inline(always)]
    pub fn tick(&mut self) {
        let now = cycles::now();
        self.samples.saturating_record(now.wrapping_sub(self.last));
        self.last = now;
        self.iters += 1;
    }

    /// `n` iterations are over that were not timed one by one. HOT
    #[inline(always)]
    pub fn skip(&mut self, n: u64) {
        self.iters += n;
        self.last = cycles::now();
    }

    /// True when about a second has passed since the last report: time for [`read`](Self::read). HOT
    #[inline(always)]
    pub fn due(&mut self) -> bool {
        self.last >= self.report_at && self.look()
    }

    /// Iterations so far.
    pub fn iters(&self) -> u64 {
        self.iters
    }

    #[cold]
    fn look(&mut self) -> bool {
        let left = Duration::from_secs(1).saturating_sub(self.reported.1.elapsed());
        let wait = left.max(Duration::from_millis(1)).as_secs_f64() / self.cycle();
        self.report_at = self.last + wait as u64;
        left.is_zero()
    }

    /// Seconds of one count of the cycle counter, over the time since the start.
    fn cycle(&self) -> f64 {
        let counts = cycles::now().wrapping_sub(self.begun_cycles).max(1);
        self.begun.elapsed().as_secs_f64() / counts as f64
    }

    /// The figures now, with the percentile `rank`; the next "recent" average starts here.
    pub fn read(&mut self, rank: f64) -> Reading {
        let now = Instant::now();
        let cycle = self.cycle();
        let at = |rank: f64| {
            if self.samples.is_empty() { 0.0 } else { self.samples.value_at_percentile(rank) as f64 * cycle }
        };
        let each = |time: Duration, n: u64| if n == 0 { 0.0 } else { time.as_secs_f64() / n as f64 };
        let reading = Reading {
            iters: self.iters,
            rank: at(rank),
            p50: at(50.0),
            p99_9: at(99.9),
            recent: each(now - self.reported.1, self.iters - self.reported.0),
            overall: each(now - self.begun, self.iters),
        };
        self.reported = (self.iters, now);
        reading
    }
}

impl Default for Meter {
    fn default() -> Self {
        Meter::new()
    }
}

impl Reading {
    /// The figures of a half: what one way of a round trip took.
    #[must_use]
    pub fn halved(self) -> Reading {
        Reading {
            iters: self.iters,
            rank: self.rank / 2.0,
            p50: self.p50 / 2.0,
            p99_9: self.p99_9 / 2.0,
            recent: self.recent / 2.0,
            overall: self.overall / 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_averages_agree() {
        let mut meter = Meter::new();
        meter.start();
        for _ in 0..100 {
            std::thread::sleep(Duration::from_micros(50));
            meter.tick();
        }
        let r = meter.read(50.0);
        assert_eq!((r.iters, meter.iters()), (100, 100));
        assert!(r.overall >= 50e-6 && r.recent >= 50e-6, "{r:?}");
        assert!(r.p50 >= 45e-6 && r.p50 <= r.p99_9 && r.rank == r.p50, "{r:?}");
        assert_eq!(r.halved().overall, r.overall / 2.0);
        meter.start();
        assert_eq!(meter.read(50.0).iters, 0);
    }

    #[test]
    fn untimed_iterations_count_too() {
        let mut meter = Meter::new();
        meter.start();
        meter.skip(1000);
        let r = meter.read(99.0);
        assert_eq!((r.iters, r.p50), (1000, 0.0));
        assert!(r.overall > 0.0);
    }
}
