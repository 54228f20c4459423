//! Taking turns: who has sent a short message or packet to the peer that answers each of them leaves the line that the answer
//! comes in alone for a while. Part of `rx.rs`, which asks before it looks at its next cell; told of what is sent by `ep.rs`.
//!
//! Each look at a cell in vain leaves the reader a copy of its line, and a writer must have that copy thrown away before its
//! message can be seen: a way to the reader's processor and back, in front of the way of the message. Who has just received
//! a message that it will answer asks for the line of the answer [at once](PollDelay::came), while the program works on it; and
//! the reader, which would take the line away again, does not look until the answer is nearly there. It takes both: one that
//! asks early and is robbed of the line gains nothing, nor does one that waits for a writer who asks late. Then the reader looks
//! again and again, without going back to the program between two looks: that is as long as half of the line's way.
//!
//! How long is learned from the shortest times that answers took when they were looked for all the time, as is done in one
//! turn of many; how much of that, [by trying](Trial). Whoever does not take turns with one peer, one message to and one fro,
//! looks at once, always.

use std::cell::{Cell, OnceCell};
use std::time::{Duration, Instant};
use ucs::sync::{prefetch_write, settle_loads};
use ucs::time::ticks;

use super::fd_server::Name;
use super::tuner::DelayTuner;

/// One turn of so many is timed, and not waited out. A power of two.
const SAMPLE_EVERY: u64 = 64;
/// Times of which the shortest counts.
const SAMPLES: usize = 16;

/// Nobody is to answer: the next message is ours to send.
const NONE_EXPECTED: u64 = 0;
/// Several were sent in a row, or several came: no turns are taken. Numbers that name no interface; if one were called so, it
/// would be answered as if it took none.
const SENT_REPEATEDLY: u64 = u64::MAX;
const RECEIVED_REPEATEDLY: u64 = u64::MAX - 1;

/// Looks in a row for an answer that is due: some 100 ns.
const FINAL_POLLS: u32 = 32;

/// The turns that an interface takes with a peer. Times are in [ticks].
#[derive(Debug)]
#[repr(C)]
pub struct PollDelay {
    /// When the message was sent whose answer is not looked for yet. 0: there is none.
    sent_at: Cell<u64>,
    /// How long an answer is not looked for; 0 as long as that is not known, or does not pay.
    delay: Cell<u64>,
    /// The name of who is to answer, its complement in a turn that is timed; or [`NONE_EXPECTED`], [`SENT_REPEATEDLY`], [`RECEIVED_REPEATEDLY`].
    expected: Cell<u64>,
    /// The line that our next message to it will be written to.
    tx_line: Cell<*mut u8>,
    /// Turns are taken, as far as is known.
    is_ping_pong: Cell<bool>,
    sample_count: Cell<u32>,
    sample_start: Cell<u64>,
    samples: [Cell<u64>; SAMPLES],
    tuner: DelayTuner,
    limit: TickDuration,
}

/// A time in ticks: how long an answer is not looked for at most.
#[derive(Debug)]
pub struct TickDuration {
    limit: Duration,
    /// A moment by both clocks, so that ticks can be told from nanoseconds later.
    reference: (Instant, u64),
    /// The limit in ticks, once it was needed.
    ticks: OnceCell<u64>,
}

impl TickDuration {
    /// So long.
    pub fn new(limit: Duration) -> TickDuration {
        TickDuration { limit, reference: (Instant::now(), ticks()), ticks: OnceCell::new() }
    }

    /// The same in ticks.
    pub fn ticks(&self) -> u64 {
        *self.ticks.get_or_init(|| {
            let (reference, then) = self.reference;
            let per_nano = ticks().wrapping_sub(then) as f64 / reference.elapsed().as_nanos().max(1) as f64;
            (self.limit.as_nanos() as f64 * per_nano) as u64
        })
    }
}

impl PollDelay {
    /// Nothing is waited for longer than `limit`: an answer that would be is looked for at once.
    pub fn new(limit: Duration) -> PollDelay {
        PollDelay {
            sent_at: Cell::new(0),
            delay: Cell::new(0),
            expected: Cell::new(NONE_EXPECTED),
            tx_line: Cell::new(std::ptr::null_mut()),
            is_ping_pong: Cell::new(false),
            sample_count: Cell::new(0),
            sample_start: Cell::new(0),
            samples: Default::default(),
            tuner: DelayTuner::new(),
            limit: TickDuration::new(limit),
        }
    }

    /// Whether the next message is an answer that was not looked for yet: [`PollDelay::wait`] before that is done. // HOT
    #[inline(always)]
    pub fn is_delaying(&self) -> bool {
        self.sent_at.get() != 0
    }

    /// Waits for an answer until it may be there, and then for some time until it `is_there`. False: it is too early for either,
    /// the program may do something else, and one look more does no harm: before the peer has our message, it does not ask for
    /// the line. Out of line: who is held has time. The second half of it is waited out here: by way of
    /// the program, it would end too late by half a turn of its loop, and so would each look.
    #[inline(never)]
    pub fn wait(&self, now: impl Fn() -> u64, is_there: impl Fn() -> bool) -> bool {
        let (sent_at, delay) = (self.sent_at.get(), self.delay.get());
        // If the processor was changed, and with it the clock, these are huge: over.
        if now().wrapping_sub(sent_at) < delay / 2 {
            return false;
        }
        while now().wrapping_sub(sent_at) < delay {}
        // Else the processor, which guesses that the time is over, looks before it is.
        settle_loads();
        self.sent_at.set(0);
        for _ in 0..FINAL_POLLS {
            if is_there() {
                break;
            }
            settle_loads();
        }
        true
    }

    /// Several were sent in a row: one more makes no difference. // HOT
    #[inline(always)]
    pub fn is_streaming(&self) -> bool {
        self.expected.get() == SENT_REPEATEDLY
    }

    /// A message has been sent to `to`; the next one will be written to the line at `tx_line`. `round` is one more with each turn, and
    /// the same at both ends. // HOT
    #[inline(always)]
    pub fn on_sent(&self, to: Name, tx_line: *mut u8, round: u64, now: impl FnOnce() -> u64) {
        let expected = self.expected.get();
        if expected != NONE_EXPECTED {
            if expected != SENT_REPEATEDLY {
                self.on_unexpected_send(to, expected);
            }
            return;
        }
        self.is_ping_pong.set(true);
        if round.is_multiple_of(SAMPLE_EVERY) {
            return self.begin_sample(to, round / SAMPLE_EVERY, now());
        }
        self.expected.set(to.0);
        if self.delay.get() != 0 {
            self.tx_line.set(tx_line);
            self.sent_at.set(now());
        }
    }

    /// A message of `from` has come. If it is the answer, ours to it will be written soon: its line may come meanwhile. What
    /// others write as the sender decides how long something takes here, and nothing else. // HOT
    #[inline(always)]
    pub fn on_received(&self, from: u64, now: impl FnOnce() -> u64) {
        let expected = self.expected.get();
        if expected == from {
            self.expected.set(NONE_EXPECTED);
            self.prefetch_tx_line();
        } else if expected != RECEIVED_REPEATEDLY {
            self.on_unexpected_receive(expected, from, now());
        }
    }

    /// Whether turns are taken, as far as is known: if not, who takes in many messages at a time need not tell of them. // HOT
    #[inline(always)]
    pub fn is_ping_pong(&self) -> bool {
        self.is_ping_pong.get()
    }

    /// Who waits for the next message has looked, and found it. // HOT
    #[inline(always)]
    pub fn end(&self) {
        self.sent_at.set(0);
    }

    /// Messages have come behind the one that was [told](PollDelay::came). // HOT
    #[inline(always)]
    pub fn on_more_received(&self) {
        if self.expected.get() == NONE_EXPECTED {
            self.reset(RECEIVED_REPEATEDLY);
        }
    }

    #[cold]
    #[inline(never)]
    fn on_unexpected_send(&self, to: Name, expected: u64) {
        match expected {
            // Perhaps turns are taken from now on.
            RECEIVED_REPEATEDLY => self.expected.set(to.0),
            // The one before was not answered.
            _ => self.reset(SENT_REPEATEDLY),
        }
    }

    #[inline(always)]
    fn prefetch_tx_line(&self) {
        if self.delay.get() != 0 {
            prefetch_write(self.tx_line.get());
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_sample(&self, to: Name, block: u64, now: u64) {
        self.expected.set(!to.0);
        let before = self.sample_start.replace(now);
        self.tuner.begin_block(now.wrapping_sub(before), block);
    }

    /// What came was not awaited, or only to see how long it took.
    #[cold]
    #[inline(never)]
    fn on_unexpected_receive(&self, expected: u64, from: u64, now: u64) {
        match expected {
            NONE_EXPECTED => self.reset(RECEIVED_REPEATEDLY),
            SENT_REPEATEDLY => self.expected.set(NONE_EXPECTED),
            _ if expected == !from => self.end_sample(now),
            _ => self.reset(NONE_EXPECTED),
        }
    }

    fn end_sample(&self, now: u64) {
        self.expected.set(NONE_EXPECTED);
        self.prefetch_tx_line();
        let sample_count = self.sample_count.get().wrapping_add(1);
        self.sample_count.set(sample_count);
        self.samples[sample_count as usize % SAMPLES].set(now.wrapping_sub(self.sample_start.get()));
        if sample_count as usize >= SAMPLES {
            self.update_delay();
        }
    }

    /// A look takes the line's whole way, and an answer comes sooner if its line was ready: five eighths of the time that it
    /// took are over shortly before it is written. Where looking costs little, less is better.
    fn update_delay(&self) {
        let shortest = self.samples.iter().map(Cell::get).min().unwrap_or(0);
        let delay = shortest / 8 * self.tuner.eighths();
        self.delay.set(if delay <= self.limit.ticks() { delay } else { 0 });
    }

    /// Whether it is known how long to leave answers alone.
    #[cfg(test)]
    pub fn is_delay_learned(&self) -> bool {
        self.delay.get() != 0
    }

    /// Turns are not taken any more.
    #[cold]
    fn reset(&self, expected: u64) {
        self.expected.set(expected);
        self.sent_at.set(0);
        self.delay.set(0);
        self.is_ping_pong.set(false);
        self.sample_count.set(0);
        self.tuner.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Name = Name(7);
    /// Turns after which an answer's time is known.
    const LEARNED: u32 = BLOCK * SAMPLES as u32;
    const BLOCK: u32 = SAMPLE_EVERY as u32;

    /// A program that takes turns, and its clock.
    struct Exchange {
        delay: PollDelay,
        now: Cell<u64>,
        round: Cell<u64>,
    }

    impl Exchange {
        fn new(limit: Duration) -> Exchange {
            Exchange { delay: PollDelay::new(limit), now: Cell::new(1), round: Cell::new(0) }
        }

        fn send(&self, to: Name) {
            self.round.set(self.round.get() + 1);
            self.delay.on_sent(to, std::ptr::null_mut(), self.round.get(), || self.now.get());
        }

        fn receive(&self, from: Name) {
            self.delay.on_received(from.0, || self.now.get());
        }

        fn is_delaying(&self) -> bool {
            let later = || {
                self.pass(1);
                self.now.get()
            };
            self.delay.is_delaying() && !self.delay.wait(later, || true)
        }

        fn pass(&self, ticks: u64) {
            self.now.set(self.now.get() + ticks);
        }

        /// One turn: the answer comes after so long, or when it is looked for, if that is later. Answers how long it was not.
        fn round(&self, takes: u64) -> u64 {
            let start = self.now.get();
            self.send(PEER);
            while self.is_delaying() {}
            let delays = self.now.get() - start;
            self.now.set(self.now.get().max(start + takes));
            self.receive(PEER);
            delays
        }

        /// So many of them. Answers how long they were not looked for, together.
        fn rounds(&self, many: u32, take: u64) -> u64 {
            (0..many).map(|_| self.round(take)).sum()
        }
    }

    /// The limit is a time, the clock of these tests is none: one that is always over, and one that never is.
    const ANY: Duration = Duration::from_secs(1 << 40);

    #[test]
    fn delay_is_most_of_the_shortest_round_trip() {
        let peers = Exchange::new(ANY);
        let delays: Vec<u64> =
            (0..LEARNED).map(|n| peers.round(if n % 5 == 0 { 400 } else { 500 })).collect();
        assert!(delays.iter().all(|delays| *delays == 0), "before that is known: {delays:?}");
        let delays: Vec<u64> = (0..BLOCK).map(|_| peers.round(500)).collect();
        assert_eq!(delays.iter().filter(|delays| **delays == 250).count(), BLOCK as usize - 1, "{delays:?}");
        assert_eq!(delays.iter().filter(|delays| **delays == 0).count(), 1, "one is timed: {delays:?}");
    }

    #[test]
    fn final_polls_are_repeated_and_bounded() {
        for comes_at in [3, u32::MAX] {
            let peers = Exchange::new(ANY);
            peers.rounds(LEARNED, 800);
            peers.send(PEER);
            let looks = Cell::new(0);
            let look = || {
                looks.set(looks.get() + 1);
                looks.get() == comes_at
            };
            assert!(!peers.delay.wait(|| peers.now.get(), look), "it is too early");
            peers.pass(500);
            assert!(peers.delay.is_delaying() && peers.delay.wait(|| peers.now.get(), look));
            assert_eq!((looks.get(), peers.delay.is_delaying()), (comes_at.min(FINAL_POLLS), false));
        }
    }

    #[test]
    fn delay_follows_faster_and_slower_answers() {
        let peers = Exchange::new(ANY);
        peers.rounds(LEARNED, 800);
        assert_eq!(peers.round(100), 500, "late by so much");
        peers.rounds(BLOCK, 100);
        assert_eq!(peers.round(100), 60);
        // Slower ones are believed when nothing else has been seen for long.
        peers.rounds(LEARNED, 800);
        assert_eq!(peers.round(800), 500);
    }

    #[test]
    fn no_delay_without_ping_pong() {
        let peers = Exchange::new(ANY);
        peers.rounds(LEARNED, 800);
        peers.send(PEER);
        assert!(peers.is_delaying());
        peers.send(PEER);
        assert!(!peers.is_delaying(), "two in a row");
        peers.receive(PEER);
        assert_eq!(peers.round(800), 0, "forgotten");

        peers.rounds(LEARNED, 800);
        peers.receive(PEER);
        assert_eq!(peers.round(800), 0, "two have come in a row");

        peers.rounds(LEARNED, 800);
        peers.send(PEER);
        peers.receive(Name(8));
        assert_eq!(peers.round(800), 0, "another one has answered");
    }

    #[test]
    fn no_delay_above_the_limit() {
        let peers = Exchange::new(Duration::ZERO);
        assert_eq!(peers.rounds(3 * LEARNED, 800), 0);
    }

    #[test]
    fn clock_going_back_ends_the_delay() {
        let peers = Exchange::new(ANY);
        peers.pass(10_000);
        peers.rounds(LEARNED, 800);
        peers.send(PEER);
        peers.now.set(5);
        assert!(!peers.is_delaying());
    }
}
