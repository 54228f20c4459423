//! The poll delay: after a short message to a peer that answers each of them, the answer's cell is not polled
//! for a while.
//!
//! A poll of an empty cell leaves a copy of its cache line with the reader, which the writer must have
//! invalidated before its message can be seen: a round trip between the processors. Both sides avoid it
//! together. A receiver prefetches the line of its answer for writing [at once](PollDelay::on_received),
//! while the program works on the message. The reader, whose polls would take the line back, polls only when
//! the answer is nearly there, and then repeatedly.
//!
//! The delay is a part of the shortest time of an answer in sampled rounds, which are not delayed; the
//! [tuner](DelayTuner) finds the part. Without a ping-pong with one peer, message by message, nothing is
//! delayed.

use std::cell::Cell;
use std::time::Duration;
use ucs::sync::{load_fence, prefetch_write};

use super::tick_duration::TickDuration;
use super::tuner::DelayTuner;
use crate::host::fd_server::Name;

/// One round of so many is a sample: timed, and not delayed. A power of two.
const SAMPLE_EVERY: u64 = 64;
const SAMPLES: usize = 16;

/// No answer is expected: the next message is ours to send.
const NONE_EXPECTED: u64 = 0;
/// Several messages sent, or received, in a row: no ping-pong. Not the names of interfaces.
const SENT_REPEATEDLY: u64 = u64::MAX;
const RECEIVED_REPEATEDLY: u64 = u64::MAX - 1;

/// Polls in a row for an answer whose delay is over: some 100 ns.
const FINAL_POLLS: u32 = 32;

/// The ping-pong of an interface with a peer. Times are in [ticks](ucs::time::ticks).
#[derive(Debug)]
#[repr(C)]
pub struct PollDelay {
    /// When the message was sent whose answer is not polled for yet; 0: none.
    sent_at: Cell<u64>,
    /// How long an answer is not polled for; 0 while that is unknown or does not pay.
    delay: Cell<u64>,
    /// The name of the peer that is to answer, its complement in a sample, or one of the constants above.
    expected: Cell<u64>,
    tx_line: Cell<*mut u8>,
    is_ping_pong: Cell<bool>,
    sample_count: Cell<u32>,
    sample_start: Cell<u64>,
    samples: [Cell<u64>; SAMPLES],
    tuner: DelayTuner,
    limit: TickDuration,
}

impl PollDelay {
    /// No ping-pong yet. An answer that would be delayed for longer than `limit` is not delayed.
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

    /// Whether [`PollDelay::wait`] comes before the next poll.
    // HOT
    #[inline(always)]
    pub fn is_delaying(&self) -> bool {
        self.sent_at.get() != 0
    }

    /// Waits for the second half of the delay, then polls `is_there` up to [`FINAL_POLLS`] times. In the
    /// first half it returns false: polls do no harm yet, as the peer has not prefetched the line. The
    /// second is spent here: a return to the program would end it too late by half of its loop.
    #[inline(never)]
    pub fn wait(&self, now: impl Fn() -> u64, is_there: impl Fn() -> bool) -> bool {
        let (sent_at, delay) = (self.sent_at.get(), self.delay.get());
        // Huge, so over, if the thread has moved to a processor with another clock.
        if now().wrapping_sub(sent_at) < delay / 2 {
            return false;
        }
        while now().wrapping_sub(sent_at) < delay {}
        // Otherwise the processor speculates on the end of the delay and loads the line too early.
        load_fence();
        self.sent_at.set(0);
        for _ in 0..FINAL_POLLS {
            if is_there() {
                break;
            }
            load_fence();
        }
        true
    }

    /// Whether several messages were sent in a row, so that one more changes nothing.
    // HOT
    #[inline(always)]
    pub fn is_streaming(&self) -> bool {
        self.expected.get() == SENT_REPEATEDLY
    }

    /// Records a message sent to `to`, whose next one will be written at `tx_line`. `round` grows by one with
    /// each round, equal on both sides.
    // HOT
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

    /// Records a message from `from`. If it is the expected answer, the line of our next message is
    /// prefetched. The name comes from the peer and decides nothing but timing.
    // HOT
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

    // HOT
    #[inline(always)]
    pub fn is_ping_pong(&self) -> bool {
        self.is_ping_pong.get()
    }

    /// Ends the delay: the next message has been found.
    // HOT
    #[inline(always)]
    pub fn end(&self) {
        self.sent_at.set(0);
    }

    /// Records further messages behind that of [`PollDelay::on_received`].
    // HOT
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
            RECEIVED_REPEATEDLY => self.expected.set(to.0),
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
        let count = self.sample_count.get().wrapping_add(1);
        self.sample_count.set(count);
        self.samples[count as usize % SAMPLES].set(now.wrapping_sub(self.sample_start.get()));
        if count as usize >= SAMPLES {
            self.update_delay();
        }
    }

    /// Sets the delay to the tuner's part of the shortest sample. Five eighths end shortly before the answer
    /// is written, as a poll takes the line's whole trip; where a poll costs little, less is better.
    fn update_delay(&self) {
        let shortest = self.samples.iter().map(Cell::get).min().unwrap_or(0);
        let delay = shortest / 8 * self.tuner.eighths();
        self.delay.set(if delay <= self.limit.ticks() { delay } else { 0 });
    }

    #[cfg(test)]
    pub fn is_delay_learned(&self) -> bool {
        self.delay.get() != 0
    }

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
    const LEARNED: u32 = BLOCK * SAMPLES as u32;
    const BLOCK: u32 = SAMPLE_EVERY as u32;

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

        /// One round, whose answer arrives after `takes` or at the first poll for it. Returns the delay.
        fn round(&self, takes: u64) -> u64 {
            let start = self.now.get();
            self.send(PEER);
            while self.is_delaying() {}
            let delay = self.now.get() - start;
            self.now.set(self.now.get().max(start + takes));
            self.receive(PEER);
            delay
        }

        fn rounds(&self, many: u32, take: u64) -> u64 {
            (0..many).map(|_| self.round(take)).sum()
        }
    }

    /// Above every delay: the clock of these tests has no unit.
    const ANY: Duration = Duration::from_secs(1 << 40);

    #[test]
    fn delay_is_most_of_the_shortest_round_trip() {
        let peers = Exchange::new(ANY);
        let delays: Vec<u64> =
            (0..LEARNED).map(|n| peers.round(if n % 5 == 0 { 400 } else { 500 })).collect();
        assert!(delays.iter().all(|delay| *delay == 0), "before it is learned: {delays:?}");
        let delays: Vec<u64> = (0..BLOCK).map(|_| peers.round(500)).collect();
        assert_eq!(delays.iter().filter(|delay| **delay == 250).count(), BLOCK as usize - 1, "{delays:?}");
        assert_eq!(delays.iter().filter(|delay| **delay == 0).count(), 1, "one is sampled: {delays:?}");
    }

    #[test]
    fn final_polls_are_repeated_and_bounded() {
        for arrives_at in [3, u32::MAX] {
            let peers = Exchange::new(ANY);
            peers.rounds(LEARNED, 800);
            peers.send(PEER);
            let polls = Cell::new(0);
            let poll = || {
                polls.set(polls.get() + 1);
                polls.get() == arrives_at
            };
            assert!(!peers.delay.wait(|| peers.now.get(), poll), "too early");
            peers.pass(500);
            assert!(peers.delay.is_delaying() && peers.delay.wait(|| peers.now.get(), poll));
            assert_eq!((polls.get(), peers.delay.is_delaying()), (arrives_at.min(FINAL_POLLS), false));
        }
    }

    #[test]
    fn delay_follows_faster_and_slower_answers() {
        let peers = Exchange::new(ANY);
        peers.rounds(LEARNED, 800);
        assert_eq!(peers.round(100), 500, "the old delay");
        peers.rounds(BLOCK, 100);
        assert_eq!(peers.round(100), 60);
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
        assert_eq!(peers.round(800), 0, "the delay is forgotten");

        peers.rounds(LEARNED, 800);
        peers.receive(PEER);
        assert_eq!(peers.round(800), 0, "two received in a row");

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
