//! Interleavings of small histories of the FIFO, checked exhaustively up to a bound on preemptions. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p uct --release --lib loom`. Never compiled otherwise.

use super::fifo;
use std::cell::Cell;
use ucs::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, thread};

struct Shared {
    head: AtomicU64,
    tail: AtomicU64,
    state: AtomicU32,
    words: [AtomicU64; 2],
    packets: [UnsafeCell<u64>; 2],
    intents: [AtomicU64; 2],
    wakes: AtomicU32,
}

// SAFETY: the packets are reached as the FIFO's rules say; that these suffice is what loom checks.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Shared {}

const CELLS: u64 = 2;

impl Shared {
    fn new() -> Self {
        Shared {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            state: AtomicU32::new(0),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            packets: [UnsafeCell::new(0), UnsafeCell::new(0)],
            intents: [AtomicU64::new(fifo::NO_TICKET), AtomicU64::new(fifo::NO_TICKET)],
            wakes: AtomicU32::new(0),
        }
    }

    /// Sends `value`; false when full.
    fn send(&self, writer: usize, seen_tail: &Cell<u64>, value: u64) -> bool {
        let Some(ticket) = fifo::claim(&self.head, &self.tail, seen_tail, CELLS, &self.intents[writer])
        else {
            return false;
        };
        let cell = (ticket % CELLS) as usize;
        // SAFETY: the ticket is ours and unpublished.
        self.packets[cell].with_mut(|p| unsafe { *p = value });
        fifo::publish(&self.words[cell], ticket, value as u32);
        if fifo::flags(&self.state) & fifo::ARMED != 0 && fifo::disarm(&self.state) {
            self.wakes.fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    fn receive(&self, ticket: u64) -> Option<u64> {
        let cell = (ticket % CELLS) as usize;
        let about = fifo::peek(&self.words[cell], ticket)?;
        // SAFETY: published, and not released yet.
        let value = self.packets[cell].with(|p| unsafe { *p });
        assert_eq!(value, u64::from(about));
        fifo::release(&self.tail, ticket + 1);
        Some(value)
    }
}

/// All interleavings with at most three preemptions: without the bound the first model takes minutes.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

#[test]
fn fifo_model_two_writers_one_reader() {
    model(|| {
        let fifo = Arc::new(Shared::new());
        let writers: Vec<_> = (0..2)
            .map(|w| {
                let fifo = fifo.clone();
                thread::spawn(move || {
                    let seen = Cell::new(0);
                    // Three messages for two cells: one of them meets a full FIFO or a second lap.
                    (1..=2 - w as u64).filter(|n| fifo.send(w, &seen, 10 * w as u64 + n)).count() as u64
                })
            })
            .collect();
        let mut got = Vec::new();
        for _ in 0..2 {
            got.extend(fifo.receive(got.len() as u64));
        }
        let sent: u64 = writers.into_iter().map(|w| w.join().unwrap()).sum();
        while let Some(value) = fifo.receive(got.len() as u64) {
            got.push(value);
        }
        assert_eq!(got.len() as u64, sent);
        for w in 0..2 {
            let of_one: Vec<_> = got.iter().filter(|v| **v / 10 == w).collect();
            assert!(of_one.is_sorted(), "order of a writer: {got:?}");
        }
    });
}

#[test]
fn fifo_model_no_wakeup_is_lost() {
    model(|| {
        let fifo = Arc::new(Shared::new());
        let writer = {
            let fifo = fifo.clone();
            thread::spawn(move || assert!(fifo.send(0, &Cell::new(0), 7)))
        };
        let sleeps = fifo::arm(&fifo.state, &fifo.head, 0);
        writer.join().unwrap();
        if sleeps {
            assert_eq!(fifo.wakes.load(Ordering::SeqCst), 1, "asleep, and nobody called");
        }
        assert_eq!(fifo.receive(0), Some(7));
    });
}

#[test]
fn fifo_model_a_holder_is_always_named() {
    model(|| {
        let fifo = Arc::new(Shared::new());
        let writers: Vec<_> = (0..2)
            .map(|w| {
                let fifo = fifo.clone();
                thread::spawn(move || {
                    let seen = Cell::new(0);
                    let claim = || fifo::claim(&fifo.head, &fifo.tail, &seen, CELLS, &fifo.intents[w]);
                    if let Some(ticket) = claim() {
                        fifo::publish(&fifo.words[ticket as usize], ticket, 1);
                        // On to the next, never to be published, or full.
                        claim();
                    }
                })
            })
            .collect();
        if fifo::stuck(&fifo.head, 0) && !fifo.intents.iter().any(|i| fifo::names(i, 0)) {
            assert!(fifo::peek(&fifo.words[0], 0).is_some(), "ticket 0 is held, and nobody says so");
        }
        writers.into_iter().for_each(|w| w.join().unwrap());
    });
}
