//! Adapts polling to the machine and the program: all that `posix` measures and learns, behind [`Tuning`].
//! Called by `rx.rs` and, for the payload hint, `link.rs`. Correctness never depends on it.
//!
//! | File | Decision |
//! |---|---|
//! | `poll_delay.rs` | how long the reader does not poll for an expected answer |
//! | `tuner.rs` | which part of the answer's usual time that is |
//! | `payload_access.rs` | whether writers are told that handlers do not read payloads |
//! | `poll_interval.rs` | how many polls pass between two rounds of housekeeping |
//! | `tick_duration.rs` | durations in clock ticks |

mod payload_access;
mod poll_delay;
mod poll_interval;
mod tick_duration;
mod tuner;

pub use payload_access::are_unread as payloads_are_unread;

use crate::host::fd_server::Name;
use payload_access::PayloadAccess;
use poll_delay::PollDelay;
use poll_interval::PollInterval;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use ucs::time::ticks;

/// The adaptive state of one interface. In this order in memory: what messages read is first and last.
#[derive(Debug)]
#[repr(C)]
pub struct Tuning {
    poll_delay: PollDelay,
    poll_interval: PollInterval,
    payload_access: PayloadAccess,
}

impl Tuning {
    pub const INITIAL_POLLS: u32 = poll_interval::INITIAL_POLLS;

    /// Nothing learned yet. No answer is left unpolled for longer than `max_delay`.
    pub fn new(max_delay: Duration) -> Tuning {
        Tuning {
            poll_delay: PollDelay::new(max_delay),
            poll_interval: PollInterval::new(ticks()),
            payload_access: PayloadAccess::default(),
        }
    }

    /// Whether [`Tuning::wait_for_answer`] has to be called before the next cell is polled.
    // HOT
    #[inline(always)]
    pub fn is_delaying(&self) -> bool {
        self.poll_delay.is_delaying()
    }

    /// Waits until the expected answer may be there, then polls `is_there` a few times. False: too early.
    #[inline(always)]
    pub fn wait_for_answer(&self, is_there: impl Fn() -> bool) -> bool {
        self.poll_delay.wait(ticks, is_there)
    }

    /// Records a short message sent to `to`, whose next one will be written at `tx_line`. `round` returns a
    /// number that grows by one with each round of a ping-pong, equal on both sides.
    // HOT
    #[inline(always)]
    pub fn on_sent(&self, to: Name, tx_line: *mut u8, round: impl FnOnce() -> u64) {
        // First: a stream of short messages is 8 % faster without working out the round.
        if !self.poll_delay.is_streaming() {
            self.poll_delay.on_sent(to, tx_line, round(), ticks);
        }
    }

    // HOT
    #[inline(always)]
    pub fn on_received(&self, source: u64) {
        self.poll_delay.on_received(source, ticks);
    }

    /// Records a batch, the first message from `source()`. True: [`Tuning::on_more_received`] is next.
    // HOT
    #[inline(always)]
    pub fn on_batch(&self, source: impl FnOnce() -> u64) -> bool {
        let is_ping_pong = self.poll_delay.is_ping_pong();
        if is_ping_pong {
            self.poll_delay.end();
            self.poll_delay.on_received(source(), ticks);
        }
        is_ping_pong
    }

    // HOT
    #[inline(always)]
    pub fn on_more_received(&self) {
        self.poll_delay.on_more_received();
    }

    /// Records whether the handler of a message in a slot has read it; `hint` tells writers.
    // HOT
    #[inline(always)]
    pub fn record_payload(&self, was_read: bool, hint: &AtomicU32) {
        self.payload_access.record(was_read, hint);
    }

    /// Polls until the next housekeeping, called by each.
    pub fn next_interval(&self) -> u32 {
        self.poll_interval.next(ticks())
    }

    #[cfg(test)]
    pub fn is_delay_learned(&self) -> bool {
        self.poll_delay.is_delay_learned()
    }
}
