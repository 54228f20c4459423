//! The two tuners against each other, with invented times.

use std::collections::VecDeque;

use super::*;

const LEN: usize = 65536;
/// Bytes of a packet.
const PACKET: usize = 16384;
/// Bytes after which packets behind reads have steady times.
const STEADY_AFTER: usize = 2 << 20;
/// Reads behind packets that take longer.
const COLD_READS: usize = 2;

/// Time of 64 KiB by the kernel, by the kernel after packets, by packets, and by packets after the kernel.
#[derive(Clone, Copy, Debug)]
struct Timing {
    kernel: u64,
    cold: u64,
    packets: u64,
    early: u64,
}

const CROSS_L3: Timing = Timing { kernel: 7800, cold: 19_000, packets: 15_500, early: 15_500 };
const SAME_L3: Timing = Timing { kernel: 7500, cold: 12_000, packets: 4200, early: 4200 };
/// The first packets after kernel reads are faster, or slower, than later ones.
const CROSS_L3_EARLY_FAST: Timing = Timing { early: 7000, ..CROSS_L3 };
const SAME_L3_EARLY_SLOW: Timing = Timing { early: 11_000, ..SAME_L3 };
const TIMINGS: [(Timing, CopyMethod); 4] = [
    (CROSS_L3, CopyMethod::Kernel),
    (SAME_L3, CopyMethod::Packets),
    (CROSS_L3_EARLY_FAST, CopyMethod::Kernel),
    (SAME_L3_EARLY_SLOW, CopyMethod::Packets),
];

struct Pair {
    sender: SenderTuner,
    receiver: ReceiverTuner,
    /// Messages in flight at a time.
    window: usize,
    queue: VecDeque<CopyMethod>,
    /// Methods of the messages sent so far.
    methods: Vec<CopyMethod>,
    time: u64,
    /// Reads since packets, and bytes of packets since reads.
    reads: usize,
    bytes: usize,
    rng: u64,
}

impl Default for Pair {
    fn default() -> Self {
        Pair::of(1)
    }
}

impl Pair {
    fn of(window: usize) -> Pair {
        let (sender, receiver) = (SenderTuner::default(), ReceiverTuner::default());
        let (queue, methods) = (VecDeque::new(), Vec::new());
        Pair { sender, receiver, window, queue, methods, time: 0, reads: 0, bytes: 0, rng: 7 }
    }

    fn draw(&mut self, n: u64) -> u64 {
        self.rng = self.rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.rng >> 33) % n
    }

    /// Sends `count` messages of `len` bytes.
    fn send(&mut self, timing: Timing, estimate: CopyMethod, len: usize, count: usize, noise: u64) {
        (0..count).for_each(|_| self.send_one(timing, estimate, len, noise));
    }

    /// Sends one message. One in `noise` takes four times as long.
    fn send_one(&mut self, timing: Timing, estimate: CopyMethod, len: usize, noise: u64) {
        let next = self.sender.next(len, estimate);
        self.queue.push_back(next);
        if self.queue.len() < self.window {
            return;
        }
        let offered = self.queue.pop_front() == Some(CopyMethod::Kernel);
        let method = if offered { self.receiver.choose(CopyPolicy::Auto, len) } else { CopyMethod::Packets };
        let scale = |time: u64, len: usize| time * len as u64 / LEN as u64;
        let outlier = |pair: &mut Pair| if noise > 0 && pair.draw(noise) == 0 { 4 } else { 1 };
        match method {
            CopyMethod::Kernel => {
                let time = scale(if self.reads < COLD_READS { timing.cold } else { timing.kernel }, len);
                (self.reads, self.bytes) = (self.reads + 1, 0);
                self.time += time;
                let outlier = outlier(self);
                self.receiver.record_read(len, time * outlier);
                self.sender.on_read(len);
            }
            CopyMethod::Packets => {
                for _ in 0..len / PACKET {
                    let early = self.bytes < STEADY_AFTER;
                    let time = scale(if early { timing.early } else { timing.packets }, PACKET);
                    (self.reads, self.bytes) = (0, self.bytes + PACKET);
                    self.time += time;
                    let outlier = outlier(self);
                    self.receiver.record_packet(PACKET, time * outlier);
                }
                if offered {
                    self.sender.on_declined(len);
                    self.time += 1000;
                }
            }
        }
        self.methods.push(method);
    }

    /// Number of messages until nearly all of the next ones use `method`.
    fn messages_until_settled(&mut self, timing: Timing, method: CopyMethod) -> usize {
        let seen = self.methods.len();
        self.send(timing, CopyMethod::Packets, LEN, 4000, 0);
        let rest = &self.methods[seen..];
        let all = |from: usize| rest[from..from + 60].iter().filter(|used| **used == method).count() == 60;
        (0..rest.len() - 60).find(|&n| all(n)).unwrap()
    }

    fn latest(&self, count: usize, method: CopyMethod) -> usize {
        self.methods[self.methods.len() - count..].iter().filter(|used| **used == method).count()
    }
}

#[test]
fn the_faster_method_wins_whatever_the_estimate() {
    for (timing, best) in TIMINGS {
        for estimate in [CopyMethod::Kernel, CopyMethod::Packets] {
            for (len, window) in
                [(2 * PACKET, 1), (LEN, 1), (LEN, 32), (LEN, 100), (1 << 20, 1), (1 << 20, 32)]
            {
                let mut pair = Pair::of(window);
                pair.send(timing, estimate, len, 10_000, 0);
                let what = format!("{timing:?}, {estimate:?} estimate, {len} bytes, {window} at a time");
                assert!(pair.latest(5000, best) >= 4800, "{what}: {}", pair.latest(5000, best));
                assert_eq!(pair.receiver.times(len).method, best, "{what}");
            }
        }
    }
}

#[test]
fn trials_cost_less_than_three_percent() {
    for (timing, best) in TIMINGS {
        let best = if best == CopyMethod::Kernel { timing.kernel } else { timing.packets };
        for window in [1, 32, 100] {
            let mut pair = Pair::of(window);
            pair.send(timing, CopyMethod::Packets, LEN, 4000, 0);
            pair.time = 0;
            pair.send(timing, CopyMethod::Packets, LEN, 20_000, 0);
            let best = best * 20_000;
            assert!(pair.time <= best + best / 33, "{timing:?}, {window}: {} and {best}", pair.time);
        }
    }
}

#[test]
fn a_change_is_noticed_within_milliseconds() {
    for window in [1, 32, 100] {
        let mut pair = Pair::of(window);
        assert!(pair.messages_until_settled(SAME_L3, CopyMethod::Packets) < 200);
        for _ in 0..10 {
            let (to_kernel, to_packets) = (
                pair.messages_until_settled(CROSS_L3, CopyMethod::Kernel),
                pair.messages_until_settled(SAME_L3, CopyMethod::Packets),
            );
            assert!(to_kernel <= 600 && to_packets <= 2700, "{window}: {to_kernel} and {to_packets}");
        }
    }
}

#[test]
fn outliers_do_not_change_the_method() {
    for (timing, best) in TIMINGS {
        let mut pair = Pair::default();
        pair.send(timing, best, LEN, 20_000, 40);
        assert!(pair.latest(15_000, best) >= 14_400, "{timing:?}: {}", pair.latest(15_000, best));
    }
}

#[test]
fn nearly_equal_methods_do_not_alternate() {
    for estimate in [CopyMethod::Kernel, CopyMethod::Packets] {
        let mut pair = Pair::default();
        let mut changes = 0;
        for n in 0..10_000 {
            let kernel = 9000 + n % 300;
            let timing = Timing { kernel, cold: 9300, packets: 9200 - n % 400, early: 9200 };
            let before = pair.sender.current(LEN);
            pair.send_one(timing, estimate, LEN, 0);
            changes += u32::from(pair.sender.current(LEN) != before);
        }
        assert!(changes <= 3, "{estimate:?}: {changes}");
    }
}

#[test]
fn slow_first_reads_are_forgotten() {
    let mut pair = Pair::default();
    pair.send(Timing { kernel: 90_000, cold: 90_000, ..CROSS_L3 }, CopyMethod::Packets, LEN, 60, 0);
    assert!(
        pair.messages_until_settled(CROSS_L3, CopyMethod::Kernel) < 2000,
        "before the times of reads were old"
    );
}

#[test]
fn size_classes_are_independent() {
    let mut pair = Pair::default();
    let long = Timing { kernel: 2500, cold: 3000, ..SAME_L3 };
    for _ in 0..2000 {
        pair.send_one(SAME_L3, CopyMethod::Packets, 2 * PACKET, 0);
        pair.send_one(long, CopyMethod::Packets, 1 << 20, 0);
    }
    assert_eq!(pair.sender.current(2 * PACKET), Some(CopyMethod::Packets));
    assert_eq!(pair.sender.current(1 << 20), Some(CopyMethod::Kernel));
}

#[test]
fn offers_in_flight_are_declined_once() {
    let mut sender = SenderTuner::default();
    let (packet_trial, gap) =
        (messages_in(PACKET_TRIAL_GAP.0, size_class(LEN)), messages_in(KERNEL_TRIAL_GAP.0, size_class(LEN)));
    let all = |sender: &mut SenderTuner, count: u16, by| {
        (0..count).all(|_| sender.next(LEN, CopyMethod::Kernel) == by)
    };
    assert!(all(&mut sender, packet_trial, CopyMethod::Kernel));
    (0..packet_trial).for_each(|_| sender.on_declined(LEN));
    assert!(all(&mut sender, gap, CopyMethod::Packets));
    assert!(all(&mut sender, 1, CopyMethod::Kernel), "one is tried");
    assert!(all(&mut sender, 1, CopyMethod::Packets), "and no other before its answer");
    sender.on_read(LEN);
    assert!(all(&mut sender, TRIAL_READS.into(), CopyMethod::Kernel), "and some more");
    assert!(all(&mut sender, 1, CopyMethod::Packets));
    let before = sender.clone();
    (0..TRIAL_READS).for_each(|_| sender.on_read(LEN));
    assert!(all(&mut sender, packet_trial, CopyMethod::Kernel));
    let long = messages_in(PACKET_TRIAL_BYTES, size_class(LEN));
    assert!(all(&mut sender, long, CopyMethod::Packets), "to see what these take");
    assert!(all(&mut sender, packet_trial, CopyMethod::Kernel));
    let mut sender = before;
    sender.on_read(LEN);
    sender.on_declined(LEN);
    (1..TRIAL_READS).for_each(|_| sender.on_read(LEN));
    assert!(all(&mut sender, 2 * gap, CopyMethod::Packets));
    assert!(all(&mut sender, 1, CopyMethod::Kernel));
}

#[test]
fn fixed_policies_are_followed() {
    use ucs::config::ConfigValue as _;
    let mut receiver = ReceiverTuner::default();
    for (policy, by) in [
        (CopyPolicy::Kernel, CopyMethod::Kernel),
        (CopyPolicy::Estimated, CopyMethod::Kernel),
        (CopyPolicy::Packets, CopyMethod::Packets),
    ] {
        assert_eq!(receiver.choose(policy, LEN), by);
        assert_eq!(CopyPolicy::parse(&policy.to_string().to_uppercase()), Some(policy));
    }
    let ways: Vec<CopyMethod> = (0..100).map(|_| receiver.choose(CopyPolicy::Alternate, LEN)).collect();
    assert!(ways.contains(&CopyMethod::Kernel) && ways.contains(&CopyMethod::Packets));
    assert_eq!(CopyPolicy::parse("sometimes"), None);
}

#[test]
fn reads_of_short_pieces_are_ignored() {
    let mut receiver = ReceiverTuner::default();
    receiver.record_read(size_class_min(0) - 1, 1_000_000);
    assert_eq!(receiver.times(size_class_min(0)).kernel, None);
    receiver.record_read(size_class_min(0), 1600);
    assert_eq!(receiver.times(size_class_min(0)).kernel, Some(100.0));
}

#[test]
fn every_length_has_a_class() {
    let of = |len: usize| size_class(len);
    assert_eq!([0, 1, 16384, 32767, 32768, 65536, 1 << 20].map(of), [0, 0, 0, 0, 1, 2, 6]);
    assert_eq!((of(1 << 21), of(usize::MAX)), (SIZE_CLASSES - 1, SIZE_CLASSES - 1));
    assert!(
        (0..SIZE_CLASSES).all(|n| size_class(size_class_min(n)) == n
            && size_class(size_class_min(n) - 1) == n.saturating_sub(1))
    );
}
