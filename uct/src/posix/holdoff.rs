//! Taking turns: who has sent a short message or packet to the peer that answers each of them leaves the line that the answer
//! comes in alone for a while. Part of `rx.rs`, which asks before it looks at its next cell; told of what is sent by `ep.rs`.
//!
//! Each look at a cell in vain leaves the reader a copy of its line, and a writer must have that copy thrown away before its
//! message can be seen: a way to the reader's processor and back, in front of the way of the message. Who has just received
//! a message that it will answer asks for the line of the answer [at once](HoldOff::came), while the program works on it; and
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

use super::porter::Name;
use super::trial::Trial;

/// One turn of so many is timed, and not waited out. A power of two.
const TIMED: u64 = 64;
/// Times of which the shortest counts.
const TIMES: usize = 16;

/// Nobody is to answer: the next message is ours to send.
const OUR_TURN: u64 = 0;
/// Several were sent in a row, or several came: no turns are taken. Numbers that name no interface; if one were called so, it
/// would be answered as if it took none.
const SENT: u64 = u64::MAX;
const CAME: u64 = u64::MAX - 1;

/// Looks in a row for an answer that is due: some 100 ns.
const LOOKS: u32 = 32;

/// The turns that an interface takes with a peer. Times are in [ticks].
#[derive(Debug)]
#[repr(C)]
pub struct HoldOff {
    /// When the message was sent whose answer is not looked for yet. 0: there is none.
    since: Cell<u64>,
    /// How long an answer is not looked for; 0 as long as that is not known, or does not pay.
    span: Cell<u64>,
    /// The name of who is to answer, its complement in a turn that is timed; or [`OUR_TURN`], [`SENT`], [`CAME`].
    awaited: Cell<u64>,
    /// The line that our next message to it will be written to.
    ours: Cell<*mut u8>,
    /// Turns are taken, as far as is known.
    is_on: Cell<bool>,
    timed: Cell<u32>,
    begun: Cell<u64>,
    times: [Cell<u64>; TIMES],
    trial: Trial,
    limit: Limit,
}

/// A time in ticks: how long an answer is not looked for at most.
#[derive(Debug)]
pub struct Limit {
    limit: Duration,
    /// A moment by both clocks, so that ticks can be told from nanoseconds later.
    made: (Instant, u64),
    /// The limit in ticks, once it was needed.
    ticks: OnceCell<u64>,
}

impl Limit {
    /// So long.
    pub fn new(limit: Duration) -> Limit {
        Limit { limit, made: (Instant::now(), ticks()), ticks: OnceCell::new() }
    }

    /// The same in ticks.
    pub fn ticks(&self) -> u64 {
        *self.ticks.get_or_init(|| {
            let (made, then) = self.made;
            let per_nano = ticks().wrapping_sub(then) as f64 / made.elapsed().as_nanos().max(1) as f64;
            (self.limit.as_nanos() as f64 * per_nano) as u64
        })
    }
}

impl HoldOff {
    /// Nothing is waited for longer than `limit`: an answer that would be is looked for at once.
    pub fn new(limit: Duration) -> HoldOff {
        HoldOff {
            since: Cell::new(0),
            span: Cell::new(0),
            awaited: Cell::new(OUR_TURN),
            ours: Cell::new(std::ptr::null_mut()),
            is_on: Cell::new(false),
            timed: Cell::new(0),
            begun: Cell::new(0),
            times: Default::default(),
            trial: Trial::new(),
            limit: Limit::new(limit),
        }
    }

    /// Whether the next message is an answer that was not looked for yet: [`HoldOff::wait`] before that is done. // HOT
    #[inline(always)]
    pub fn is_on_hold(&self) -> bool {
        self.since.get() != 0
    }

    /// Waits for an answer until it may be there, and then for some time until it `is_there`. False: it is too early for either,
    /// the program may do something else, and one look more does no harm: before the peer has our message, it does not ask for
    /// the line. Out of line: who is held has time. The second half of it is waited out here: by way of
    /// the program, it would end too late by half a turn of its loop, and so would each look.
    #[inline(never)]
    pub fn wait(&self, now: impl Fn() -> u64, is_there: impl Fn() -> bool) -> bool {
        let (since, span) = (self.since.get(), self.span.get());
        // If the processor was changed, and with it the clock, these are huge: over.
        if now().wrapping_sub(since) < span / 2 {
            return false;
        }
        while now().wrapping_sub(since) < span {}
        // Else the processor, which guesses that the time is over, looks before it is.
        settle_loads();
        self.since.set(0);
        for _ in 0..LOOKS {
            if is_there() {
                break;
            }
            settle_loads();
        }
        true
    }

    /// Several were sent in a row: one more makes no difference. // HOT
    #[inline(always)]
    pub fn is_off(&self) -> bool {
        self.awaited.get() == SENT
    }

    /// A message has been sent to `to`; the next one will be written to the line at `ours`. `turn` is one more with each turn, and
    /// the same at both ends. // HOT
    #[inline(always)]
    pub fn sent(&self, to: Name, ours: *mut u8, turn: u64, now: impl FnOnce() -> u64) {
        let awaited = self.awaited.get();
        if awaited != OUR_TURN {
            if awaited != SENT {
                self.sent_out_of_turn(to, awaited);
            }
            return;
        }
        self.is_on.set(true);
        if turn.is_multiple_of(TIMED) {
            return self.begin_timed(to, turn / TIMED, now());
        }
        self.awaited.set(to.0);
        if self.span.get() != 0 {
            self.ours.set(ours);
            self.since.set(now());
        }
    }

    /// A message of `from` has come. If it is the answer, ours to it will be written soon: its line may come meanwhile. What
    /// others write as the sender decides how long something takes here, and nothing else. // HOT
    #[inline(always)]
    pub fn came(&self, from: u64, now: impl FnOnce() -> u64) {
        let awaited = self.awaited.get();
        if awaited == from {
            self.awaited.set(OUR_TURN);
            self.make_ready();
        } else if awaited != CAME {
            self.came_otherwise(awaited, from, now());
        }
    }

    /// Whether turns are taken, as far as is known: if not, who takes in many messages at a time need not tell of them. // HOT
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Who waits for the next message has looked, and found it. // HOT
    #[inline(always)]
    pub fn over(&self) {
        self.since.set(0);
    }

    /// Messages have come behind the one that was [told](HoldOff::came). // HOT
    #[inline(always)]
    pub fn came_too(&self) {
        if self.awaited.get() == OUR_TURN {
            self.stop(CAME);
        }
    }

    #[cold]
    #[inline(never)]
    fn sent_out_of_turn(&self, to: Name, awaited: u64) {
        match awaited {
            // Perhaps turns are taken from now on.
            CAME => self.awaited.set(to.0),
            // The one before was not answered.
            _ => self.stop(SENT),
        }
    }

    #[inline(always)]
    fn make_ready(&self) {
        if self.span.get() != 0 {
            prefetch_write(self.ours.get());
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_timed(&self, to: Name, block: u64, now: u64) {
        self.awaited.set(!to.0);
        let before = self.begun.replace(now);
        self.trial.block(now.wrapping_sub(before), block);
    }

    /// What came was not awaited, or only to see how long it took.
    #[cold]
    #[inline(never)]
    fn came_otherwise(&self, awaited: u64, from: u64, now: u64) {
        match awaited {
            OUR_TURN => self.stop(CAME),
            SENT => self.awaited.set(OUR_TURN),
            _ if awaited == !from => self.end_timed(now),
            _ => self.stop(OUR_TURN),
        }
    }

    fn end_timed(&self, now: u64) {
        self.awaited.set(OUR_TURN);
        self.make_ready();
        let timed = self.timed.get().wrapping_add(1);
        self.timed.set(timed);
        self.times[timed as usize % TIMES].set(now.wrapping_sub(self.begun.get()));
        if timed as usize >= TIMES {
            self.learn();
        }
    }

    /// A look takes the line's whole way, and an answer comes sooner if its line was ready: five eighths of the time that it
    /// took are over shortly before it is written. Where looking costs little, less is better.
    fn learn(&self) {
        let shortest = self.times.iter().map(Cell::get).min().unwrap_or(0);
        let span = shortest / 8 * self.trial.eighths();
        self.span.set(if span <= self.limit.ticks() { span } else { 0 });
    }

    /// Whether it is known how long to leave answers alone.
    #[cfg(test)]
    pub fn is_known(&self) -> bool {
        self.span.get() != 0
    }

    /// Turns are not taken any more.
    #[cold]
    fn stop(&self, awaited: u64) {
        self.awaited.set(awaited);
        self.since.set(0);
        self.span.set(0);
        self.is_on.set(false);
        self.timed.set(0);
        self.trial.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Name = Name(7);
    /// Turns after which an answer's time is known.
    const KNOWN: u32 = BLOCK * TIMES as u32;
    const BLOCK: u32 = TIMED as u32;

    /// A program that takes turns, and its clock.
    struct Talk {
        hold: HoldOff,
        now: Cell<u64>,
        turn: Cell<u64>,
    }

    impl Talk {
        fn new(limit: Duration) -> Talk {
            Talk { hold: HoldOff::new(limit), now: Cell::new(1), turn: Cell::new(0) }
        }

        fn send(&self, to: Name) {
            self.turn.set(self.turn.get() + 1);
            self.hold.sent(to, std::ptr::null_mut(), self.turn.get(), || self.now.get());
        }

        fn come(&self, from: Name) {
            self.hold.came(from.0, || self.now.get());
        }

        fn is_held(&self) -> bool {
            let later = || {
                self.pass(1);
                self.now.get()
            };
            self.hold.is_on_hold() && !self.hold.wait(later, || true)
        }

        fn pass(&self, ticks: u64) {
            self.now.set(self.now.get() + ticks);
        }

        /// One turn: the answer comes after so long, or when it is looked for, if that is later. Answers how long it was not.
        fn turn(&self, takes: u64) -> u64 {
            let sent = self.now.get();
            self.send(PEER);
            while self.is_held() {}
            let held = self.now.get() - sent;
            self.now.set(self.now.get().max(sent + takes));
            self.come(PEER);
            held
        }

        /// So many of them. Answers how long they were not looked for, together.
        fn turns(&self, many: u32, take: u64) -> u64 {
            (0..many).map(|_| self.turn(take)).sum()
        }
    }

    /// The limit is a time, the clock of these tests is none: one that is always over, and one that never is.
    const ANY: Duration = Duration::from_secs(1 << 40);

    #[test]
    fn most_of_the_shortest_time_is_waited_out() {
        let talk = Talk::new(ANY);
        let held: Vec<u64> = (0..KNOWN).map(|n| talk.turn(if n % 5 == 0 { 400 } else { 500 })).collect();
        assert!(held.iter().all(|held| *held == 0), "before that is known: {held:?}");
        let held: Vec<u64> = (0..BLOCK).map(|_| talk.turn(500)).collect();
        assert_eq!(held.iter().filter(|held| **held == 250).count(), BLOCK as usize - 1, "{held:?}");
        assert_eq!(held.iter().filter(|held| **held == 0).count(), 1, "one is timed: {held:?}");
    }

    #[test]
    fn an_answer_that_is_due_is_looked_for_often_but_not_for_ever() {
        for comes_at in [3, u32::MAX] {
            let talk = Talk::new(ANY);
            talk.turns(KNOWN, 800);
            talk.send(PEER);
            let looks = Cell::new(0);
            let look = || {
                looks.set(looks.get() + 1);
                looks.get() == comes_at
            };
            assert!(!talk.hold.wait(|| talk.now.get(), look), "it is too early");
            talk.pass(500);
            assert!(talk.hold.is_on_hold() && talk.hold.wait(|| talk.now.get(), look));
            assert_eq!((looks.get(), talk.hold.is_on_hold()), (comes_at.min(LOOKS), false));
        }
    }

    #[test]
    fn answers_that_come_sooner_are_noticed_at_the_next_that_is_timed() {
        let talk = Talk::new(ANY);
        talk.turns(KNOWN, 800);
        assert_eq!(talk.turn(100), 500, "late by so much");
        talk.turns(BLOCK, 100);
        assert_eq!(talk.turn(100), 60);
        // Slower ones are believed when nothing else has been seen for long.
        talk.turns(KNOWN, 800);
        assert_eq!(talk.turn(800), 500);
    }

    #[test]
    fn who_does_not_take_turns_looks_at_once() {
        let talk = Talk::new(ANY);
        talk.turns(KNOWN, 800);
        talk.send(PEER);
        assert!(talk.is_held());
        talk.send(PEER);
        assert!(!talk.is_held(), "two in a row");
        talk.come(PEER);
        assert_eq!(talk.turn(800), 0, "forgotten");

        talk.turns(KNOWN, 800);
        talk.come(PEER);
        assert_eq!(talk.turn(800), 0, "two have come in a row");

        talk.turns(KNOWN, 800);
        talk.send(PEER);
        talk.come(Name(8));
        assert_eq!(talk.turn(800), 0, "another one has answered");
    }

    #[test]
    fn what_takes_longer_than_the_limit_is_looked_for_at_once() {
        let talk = Talk::new(Duration::ZERO);
        assert_eq!(talk.turns(3 * KNOWN, 800), 0);
    }

    #[test]
    fn a_clock_that_goes_back_holds_nobody() {
        let talk = Talk::new(ANY);
        talk.pass(10_000);
        talk.turns(KNOWN, 800);
        talk.send(PEER);
        talk.now.set(5);
        assert!(!talk.is_held());
    }
}
