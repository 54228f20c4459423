//! Measuring a loop: time of every iteration into a histogram, averages since the start and since the last report.
//! Driven by the test loops, read by the reports.
//!
//! A reading of the cycle counter costs 9 ns where we measured, and putting the sample in its place 4 ns more. In a
//! ping-pong the message is under way meanwhile: [`Meter::tick`] reads at each iteration, as `ucx_perftest` does. In a
//! stream it would be most of what is measured: [`Meter::tick_stream`] reads once for several iterations while they are that
//! short. Averages come from the monotonic clock over the whole run, not from the sum of the samples. A loop that
//! cannot bear the reading counts with [`Meter::add_untimed`] and has no percentiles.

use std::time::{Duration, Instant};

use ucs::time::ticks;

/// Buckets of an octave, as a power of two: a sample is known to within 1/64.
const SUB_BUCKET_BITS: u32 = 6;
/// Samples of 2^47 cycles (hours) and more are counted as that.
const OCTAVES: u32 = 47;
/// Buckets: exact ones below `2 << SUB_BUCKET_BITS`, then `1 << SUB_BUCKET_BITS` an octave.
const BUCKETS: usize = ((OCTAVES - SUB_BUCKET_BITS + 1) as usize) << SUB_BUCKET_BITS;
/// Most iterations of a stream between two readings of the counter.
const MAX_GROUP: u32 = 64;
/// Samples that are counted together: two cache lines of them. With more lines in use, messages take longer whose own just fit in.
const BUFFERED: usize = 16;
/// Cycles that a reading should lie apart from the one before.
const MIN_CYCLES: u64 = 1024;

/// Counts samples by size.
struct Samples {
    counts: Box<[u64; BUCKETS]>,
    /// Of every other one of many, while these are counted: adding to the number that was just written takes longer than all else.
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

    /// HOT
    #[inline(always)]
    fn record(&mut self, sample: u64, times: u32) {
        self.counts[bucket(sample)] += u64::from(times);
    }

    /// Many, each once.
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

    /// All counts in one place, where they are read.
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

/// The largest sample of a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let octave = (bucket >> SUB_BUCKET_BITS).saturating_sub(1);
    let low = ((bucket - (octave << SUB_BUCKET_BITS)) as u64) << octave;
    low + ((1u64 << octave) - 1)
}

/// The middle of a bucket.
fn bucket_middle(bucket: usize) -> f64 {
    let octave = (bucket >> SUB_BUCKET_BITS).saturating_sub(1);
    let low = ((bucket - (octave << SUB_BUCKET_BITS)) as u64) << octave;
    low as f64 + ((1u64 << octave) - 1) as f64 / 2.0
}

/// Samples between the bin before and `upto`.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Bin {
    /// No sample of the bin is longer, seconds.
    pub upto: f64,
    /// How many samples.
    pub count: u64,
}

/// Counts and times iterations.
pub struct Meter {
    samples: Samples,
    iters: u64,
    started: Instant,
    started_cycles: u64,
    last: u64,
    /// Samples of [`Meter::tick`] that are not counted yet: a reading of the counter waits for what was begun before it, and
    /// counting is a long chain, but those of many samples go side by side.
    buffer: [u64; BUFFERED],
    /// How many they are.
    buffered: usize,
    reported: (u64, Instant),
    report_at: u64,
    /// Iterations between two readings of the counter, those still to come, and what one took last time.
    group: u32,
    left: u32,
    each: u64,
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
    /// A meter whose [`is_report_due`](Self::due) becomes true about once a second.
    pub fn new() -> Meter {
        let (now, cycles) = (Instant::now(), ticks());
        Meter {
            samples: Samples::new(),
            iters: 0,
            started: now,
            started_cycles: cycles,
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

    /// Starts (again) from nothing.
    pub fn start(&mut self) {
        self.samples.clear();
        self.iters = 0;
        self.started = Instant::now();
        self.reported = (0, self.started);
        self.started_cycles = ticks();
        self.last = self.started_cycles;
        self.buffered = 0;
        (self.group, self.left) = (1, 1);
        // Not known yet how long a cycle is: look soon, then each second.
        self.report_at = self.started_cycles + (1 << 26);
    }

    /// One iteration is over. HOT
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

    /// One iteration of a stream is over. Up to 64 of them that take less than 1024 cycles together are one reading,
    /// and as many samples of their average. True: it may be time to look at [`is_report_due`](Self::due). HOT
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
        // A power of two.
        self.each = took >> self.group.trailing_zeros();
        self.samples.record(self.each, self.group);
        self.group = match took {
            _ if took < MIN_CYCLES => (self.group * 2).min(MAX_GROUP),
            _ if self.each >= MIN_CYCLES => 1,
            _ => self.group,
        };
        self.left = self.group;
    }

    /// `n` iterations are over that were not timed one by one. HOT
    #[inline(always)]
    pub fn add_untimed(&mut self, n: u64) {
        self.iters += n;
        self.last = ticks();
    }

    /// True when about a second has passed since the last report: time for [`read`](Self::read). HOT
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

    /// Seconds of one count of the cycle counter, over the time since the start.
    fn cycle(&self) -> f64 {
        let counts = ticks().wrapping_sub(self.started_cycles).max(1);
        self.started.elapsed().as_secs_f64() / counts as f64
    }

    /// How the samples up to the last [`read`](Self::read) are distributed: eight bins an octave, ascending, empty ones left out. Times are multiplied by
    /// `scale`.
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

    /// The figures now, with the percentile `rank`; the next "recent" average starts here.
    pub fn read(&mut self, rank: f64) -> Reading {
        let now = Instant::now();
        // A group that is not whole yet counts as the one before it did.
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
    fn a_bucket_is_narrow_and_holds_its_samples() {
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
    fn a_histogram_has_every_sample_once() {
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
    fn long_iterations_of_a_stream_are_sampled_one_by_one() {
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
