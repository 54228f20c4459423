//! Measures a loop: a histogram of iteration times, and averages since the start and since the last report.
//!
//! Reading the cycle counter costs about 9 ns, counting the sample 4 ns. A ping-pong does both while its
//! message travels ([`Meter::tick`]); a stream of short iterations reads once for several
//! ([`Meter::tick_stream`]). Averages come from the monotonic clock over the whole run, not from the samples.

use std::time::{Duration, Instant};

use ucs::time::ticks;

/// Buckets of an octave, as a power of two: a sample is known to within 1/64.
const SUB_BUCKET_BITS: u32 = 6;
/// Longer samples (2^47 cycles, hours) count as the longest.
const OCTAVES: u32 = 47;
/// Exact buckets below `2 << SUB_BUCKET_BITS`, then `1 << SUB_BUCKET_BITS` for each octave.
const BUCKETS: usize = ((OCTAVES - SUB_BUCKET_BITS + 1) as usize) << SUB_BUCKET_BITS;
const MAX_GROUP: u32 = 64;
/// Two cache lines. More would displace lines of messages that just fit into the cache.
const BUFFERED: usize = 16;
/// Cycles that two readings should be apart.
const MIN_CYCLES: u64 = 1024;

struct Samples {
    counts: Box<[u64; BUCKETS]>,
    /// Every other sample of a batch: two additions in a row to one counter would wait for each other.
    odd_counts: Box<[u64; BUCKETS]>,
}

impl Samples {
    fn new() -> Samples {
        Samples { counts: Box::new([0; BUCKETS]), odd_counts: Box::new([0; BUCKETS]) }
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        self.odd_counts.fill(0);
    }

    // HOT
    #[inline(always)]
    fn record(&mut self, sample: u64, times: u32) {
        self.counts[bucket(sample)] += u64::from(times);
    }

    #[inline(never)]
    fn record_all(&mut self, samples: &[u64]) {
        let pairs = samples.chunks_exact(2);
        for sample in pairs.remainder() {
            self.record(*sample, 1);
        }
        for pair in pairs {
            self.counts[bucket(pair[0])] += 1;
            self.odd_counts[bucket(pair[1])] += 1;
        }
    }

    fn merge(&mut self) {
        let odd_counts = std::mem::replace(&mut *self.odd_counts, [0; BUCKETS]);
        self.counts.iter_mut().zip(odd_counts).for_each(|(count, other)| *count += other);
    }

    /// The sample that `rank` percent of all do not exceed; 0 without samples.
    fn percentile(&self, rank: f64) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let wanted = (all as f64 * rank / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.counts.iter().position(|n| {
            seen += n;
            seen >= wanted
        });
        found.map_or(0.0, bucket_middle)
    }
}

#[inline(always)]
fn bucket(sample: u64) -> usize {
    if sample < 2 << SUB_BUCKET_BITS {
        return sample as usize;
    }
    let sample = sample.min((1 << OCTAVES) - 1);
    let octave = sample.ilog2() - SUB_BUCKET_BITS;
    ((octave << SUB_BUCKET_BITS) as usize) + (sample >> octave) as usize
}

fn bucket_end(bucket: usize) -> u64 {
    let octave = (bucket >> SUB_BUCKET_BITS).saturating_sub(1);
    let low = ((bucket - (octave << SUB_BUCKET_BITS)) as u64) << octave;
    low + ((1u64 << octave) - 1)
}

fn bucket_middle(bucket: usize) -> f64 {
    let octave = (bucket >> SUB_BUCKET_BITS).saturating_sub(1);
    let low = ((bucket - (octave << SUB_BUCKET_BITS)) as u64) << octave;
    low as f64 + ((1u64 << octave) - 1) as f64 / 2.0
}

/// Number of samples between the previous bin and `upto`.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Bin {
    /// Upper bound, seconds.
    pub upto: f64,
    /// Number of samples.
    pub count: u64,
}

/// Counts and times iterations.
pub struct Meter {
    samples: Samples,
    iters: u64,
    started: Instant,
    started_cycles: u64,
    /// When [`Meter::stop`] was called.
    stopped: Option<Instant>,
    last: u64,
    /// Samples of [`Meter::tick`] not counted yet. Counting many at once lets the processor overlap them.
    buffer: [u64; BUFFERED],
    buffered: usize,
    reported: (u64, Instant),
    report_at: u64,
    /// Iterations between two readings, those left until the next one, and cycles of one at the last.
    group: u32,
    left: u32,
    each: u64,
}

/// Figures up to a moment. Times are seconds per iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Number of iterations.
    pub iters: u64,
    /// The percentile asked for.
    pub rank: f64,
    /// Median.
    pub p50: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// Average since the last report.
    pub recent: f64,
    /// Average since the start.
    pub overall: f64,
}

impl Meter {
    /// A meter that asks for a report about once a second.
    pub fn new() -> Meter {
        let (now, cycles) = (Instant::now(), ticks());
        Meter {
            samples: Samples::new(),
            iters: 0,
            started: now,
            started_cycles: cycles,
            stopped: None,
            last: cycles,
            buffer: [0; BUFFERED],
            buffered: 0,
            reported: (0, now),
            report_at: 0,
            group: 1,
            left: 1,
            each: 0,
        }
    }

    /// Starts from zero.
    pub fn start(&mut self) {
        self.samples.clear();
        self.iters = 0;
        self.started = Instant::now();
        self.stopped = None;
        self.reported = (0, self.started);
        self.started_cycles = ticks();
        self.last = self.started_cycles;
        self.buffered = 0;
        (self.group, self.left) = (1, 1);
        // The cycle length is not known yet: check soon, then each second.
        self.report_at = self.started_cycles + (1 << 26);
    }

    /// Ends the time that is measured: the next [`read`](Self::read) leaves out what comes after the first
    /// call.
    pub fn stop(&mut self) {
        self.stopped.get_or_insert_with(Instant::now);
    }

    /// Counts one iteration and its time.
    // HOT
    #[inline(always)]
    pub fn tick(&mut self) {
        let now = ticks();
        self.buffer[self.buffered % BUFFERED] = now.wrapping_sub(self.last);
        self.last = now;
        self.iters += 1;
        self.buffered += 1;
        if self.buffered == BUFFERED {
            self.buffered = 0;
            self.samples.record_all(&self.buffer);
        }
    }

    /// Counts one iteration of a stream. Up to 64 that take less than 1024 cycles together share one reading.
    /// Returns true after a reading, when a report may be due.
    // HOT
    #[inline(always)]
    #[must_use]
    pub fn tick_stream(&mut self) -> bool {
        self.iters += 1;
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.sample();
        true
    }

    #[inline(never)]
    fn sample(&mut self) {
        let now = ticks();
        let took = now.wrapping_sub(self.last);
        self.last = now;
        // The group size is a power of two.
        self.each = took >> self.group.trailing_zeros();
        self.samples.record(self.each, self.group);
        self.group = match took {
            _ if took < MIN_CYCLES => (self.group * 2).min(MAX_GROUP),
            _ if self.each >= MIN_CYCLES => 1,
            _ => self.group,
        };
        self.left = self.group;
    }

    /// Counts `n` iterations that were not timed.
    // HOT
    #[inline(always)]
    pub fn add_untimed(&mut self, n: u64) {
        self.iters += n;
        self.last = ticks();
    }

    /// Returns true about once a second, when [`read`](Self::read) should be called.
    // HOT
    #[inline(always)]
    pub fn is_report_due(&mut self) -> bool {
        self.last >= self.report_at && self.check_report_time()
    }

    /// Iterations so far.
    pub fn iters(&self) -> u64 {
        self.iters
    }

    #[cold]
    fn check_report_time(&mut self) -> bool {
        let left = Duration::from_secs(1).saturating_sub(self.reported.1.elapsed());
        let wait = left.max(Duration::from_millis(1)).as_secs_f64() / self.cycle();
        self.report_at = self.last + wait as u64;
        left.is_zero()
    }

    /// Seconds of one cycle, averaged since the start.
    fn cycle(&self) -> f64 {
        let counts = ticks().wrapping_sub(self.started_cycles).max(1);
        self.started.elapsed().as_secs_f64() / counts as f64
    }

    /// Distribution of the samples up to the last [`read`](Self::read): eight bins per octave, ascending,
    /// without empty ones. Times are multiplied by `scale`.
    pub fn histogram(&self, scale: f64) -> Vec<Bin> {
        const MERGED: usize = 1 << (SUB_BUCKET_BITS - 3);
        let cycle = self.cycle() * scale;
        let bins = self.samples.counts.chunks(MERGED).enumerate();
        let all = bins.map(|(n, counts)| Bin {
            upto: bucket_end((n + 1) * MERGED - 1) as f64 * cycle,
            count: counts.iter().sum(),
        });
        all.filter(|bin| bin.count > 0).collect()
    }

    /// Figures so far with the percentile `rank`; starts the next "recent" average.
    pub fn read(&mut self, rank: f64) -> Reading {
        let now = self.stopped.unwrap_or_else(Instant::now);
        // An incomplete group counts as its predecessor did.
        let begun = self.group - self.left;
        if begun > 0 {
            self.samples.record(self.each, begun);
            (self.group, self.left, self.last) = (1, 1, ticks());
        }
        let held = std::mem::take(&mut self.buffered);
        self.samples.record_all(&self.buffer[..held]);
        self.samples.merge();
        let cycle = self.cycle();
        let at = |rank: f64| self.samples.percentile(rank) * cycle;
        let each = |time: Duration, n: u64| if n == 0 { 0.0 } else { time.as_secs_f64() / n as f64 };
        let reading = Reading {
            iters: self.iters,
            rank: at(rank),
            p50: at(50.0),
            p99_9: at(99.9),
            recent: each(now - self.reported.1, self.iters - self.reported.0),
            overall: each(now - self.started, self.iters),
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
    /// The figures of one direction of a round trip.
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
    fn what_follows_the_end_is_not_measured() {
        let mut meter = Meter::new();
        meter.start();
        meter.tick();
        meter.stop();
        std::thread::sleep(Duration::from_millis(300));
        meter.stop();
        assert!(meter.read(50.0).overall < 0.3);
        meter.start();
        std::thread::sleep(Duration::from_millis(2));
        meter.tick();
        assert!(meter.read(50.0).overall >= 0.002);
    }

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
    fn bucket_is_narrow_and_holds_its_samples() {
        let mut before = 0;
        for sample in
            (0..4096).chain((12..47).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) + (1 << (e - 1))]))
        {
            let b = bucket(sample);
            assert!(b < BUCKETS && b >= before, "{sample}");
            before = b;
            let off = (bucket_middle(b) - sample as f64).abs();
            assert!(off <= sample as f64 / 64.0, "{sample}: {}", bucket_middle(b));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn histogram_counts_every_sample_once() {
        let mut meter = Meter::new();
        meter.start();
        for sample in (0..5000).map(|n| n * n) {
            meter.samples.record(sample, 1);
        }
        let bins = meter.histogram(1.0);
        assert_eq!(bins.iter().map(|b| b.count).sum::<u64>(), 5000);
        assert!(bins.windows(2).all(|w| w[0].upto < w[1].upto), "{bins:?}");
        assert!(bins.iter().all(|b| b.count > 0));
        for bucket in 0..BUCKETS - 1 {
            assert!(
                bucket_middle(bucket) <= bucket_end(bucket) as f64
                    && (bucket_end(bucket) as f64) < bucket_middle(bucket + 1),
                "{bucket}"
            );
        }
    }

    #[test]
    fn samples_together_count_as_one_by_one() {
        for many in [0, 1, 2, 7, 256] {
            let all: Vec<u64> = (0..many).map(|n| n * n % 1000).collect();
            let (mut together, mut each) = (Samples::new(), Samples::new());
            together.record_all(&all);
            together.merge();
            all.iter().for_each(|sample| each.record(*sample, 1));
            assert_eq!(together.counts, each.counts, "{many}");
        }
        let mut meter = Meter::new();
        meter.start();
        for round in 1..=3 {
            (0..300).for_each(|_| meter.tick());
            meter.read(50.0);
            assert_eq!(meter.histogram(1.0).iter().map(|bin| bin.count).sum::<u64>(), round * 300);
        }
    }

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let mut samples = Samples::new();
        assert_eq!(samples.percentile(50.0), 0.0);
        (1..=100).for_each(|n| samples.record(n, 1));
        assert_eq!([1.0, 50.0, 99.0, 100.0].map(|r| samples.percentile(r)), [1.0, 50.0, 99.0, 100.0]);
    }

    #[test]
    fn a_stream_is_sampled_in_groups_and_each_iteration_counts() {
        let mut meter = Meter::new();
        meter.start();
        let readings = (0..100_003).filter(|_| meter.tick_stream()).count();
        assert!((1_500..50_000).contains(&readings), "{readings}");
        assert_eq!(meter.read(50.0).iters, 100_003);
        let sampled: u64 = meter.samples.counts.iter().sum();
        assert_eq!(sampled, 100_003);
    }

    #[test]
    fn long_stream_iterations_are_sampled_one_by_one() {
        let mut meter = Meter::new();
        meter.start();
        for _ in 0..100 {
            std::thread::sleep(Duration::from_micros(50));
            assert!(meter.tick_stream());
        }
        assert!(meter.read(50.0).p50 >= 45e-6);
    }

    #[test]
    fn untimed_iterations_count_too() {
        let mut meter = Meter::new();
        meter.start();
        meter.add_untimed(1000);
        let r = meter.read(99.0);
        assert_eq!((r.iters, r.p50), (1000, 0.0));
        assert!(r.overall > 0.0);
    }
}
