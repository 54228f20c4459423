//! Loom models of the FIFO: small histories, all interleavings up to a bound on preemptions. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p uct --release --lib loom`.

#![allow(unsafe_code)]

use super::writer_table::{self, Writer};
use super::{fifo, slot_map};
use crate::base::recv_desc::ReturnStack;
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

// SAFETY: the packets are reached by the rules of the FIFO, which loom checks.
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

    fn send(&self, writer: usize, cached_tail: &Cell<u64>, value: u64) -> bool {
        let Some(ticket) = fifo::claim(&self.head, &self.tail, cached_tail, CELLS, &self.intents[writer])
        else {
            return false;
        };
        let cell = (ticket % CELLS) as usize;
        // SAFETY: the ticket is ours and unpublished.
        self.packets[cell].with_mut(|p| unsafe { *p = value });
        fifo::publish(&self.words[cell], ticket, value as u32);
        self.wake(true);
        true
    }

    /// A writer that has published, and stops before its signal if it does not live on.
    fn wake(&self, lives: bool) {
        let flags = fifo::flags(&self.state);
        if flags & fifo::ARMED != 0 {
            fifo::wake(&self.state, flags, || {
                if lives {
                    self.wakes.fetch_add(1, Ordering::SeqCst);
                }
                lives
            });
        }
    }

    /// Sends as a writer that stops before its signal.
    fn send_and_stop(&self, writer: usize) {
        let ticket =
            fifo::claim(&self.head, &self.tail, &Cell::new(0), CELLS, &self.intents[writer]).unwrap();
        fifo::publish(&self.words[ticket as usize], ticket, 1);
        self.wake(false);
    }

    fn receive(&self, ticket: u64) -> Option<u64> {
        let cell = (ticket % CELLS) as usize;
        let meta = fifo::peek(&self.words[cell], ticket)?;
        // SAFETY: published, and not released yet.
        let value = self.packets[cell].with(|p| unsafe { *p });
        assert_eq!(value, u64::from(meta));
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
                    let cached_tail = Cell::new(0);
                    // Three messages for two cells: one of them meets a full FIFO or a second lap.
                    (1..=2 - w as u64).filter(|n| fifo.send(w, &cached_tail, 10 * w as u64 + n)).count()
                        as u64
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
fn fifo_model_a_writer_that_stops_leaves_the_wakeup_to_others() {
    model(|| {
        let fifo = Arc::new(Shared::new());
        let writers = [true, false].map(|lives| {
            let fifo = fifo.clone();
            thread::spawn(move || match lives {
                true => assert!(fifo.send(0, &Cell::new(0), 7)),
                false => fifo.send_and_stop(1),
            })
        });
        let sleeps = fifo::arm(&fifo.state, &fifo.head, 0);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        if sleeps {
            assert_eq!(fifo.wakes.load(Ordering::SeqCst), 1, "asleep, and nobody called");
        }
    });
}

/// A writer that wakes the reader late does not disarm it when it has armed again meanwhile.
#[test]
fn fifo_model_a_late_writer_takes_no_later_wakeup() {
    model(|| {
        let fifo = Arc::new(Shared::new());
        let writers = [0, 1].map(|w| {
            let fifo = fifo.clone();
            thread::spawn(move || assert!(fifo.send(w, &Cell::new(0), 7)))
        });
        // A timer ends this sleep, if there is one.
        fifo::arm(&fifo.state, &fifo.head, 0);
        let next = u64::from(fifo.receive(0).is_some());
        fifo.wakes.store(0, Ordering::SeqCst);
        let sleeps = fifo::arm(&fifo.state, &fifo.head, next);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        if sleeps {
            assert!(fifo.wakes.load(Ordering::SeqCst) > 0, "asleep, and nobody called");
        }
    });
}

#[test]
fn fifo_model_holder_of_a_ticket_is_always_named() {
    model(|| {
        let fifo = Arc::new(Shared::new());
        let writers: Vec<_> = (0..2)
            .map(|w| {
                let fifo = fifo.clone();
                thread::spawn(move || {
                    let cached_tail = Cell::new(0);
                    let claim = || fifo::claim(&fifo.head, &fifo.tail, &cached_tail, CELLS, &fifo.intents[w]);
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

/// A FIFO with one writer entry, left behind by a process that may be dead.
struct OrphanedEntry {
    head: AtomicU64,
    tail: AtomicU64,
    words: [AtomicU64; 4],
    entry: Writer,
    dead: [AtomicU32; 4],
    owned: UnsafeCell<u64>,
}

// SAFETY: only the owner of the entry reaches the cell, which loom checks.
unsafe impl Sync for OrphanedEntry {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for OrphanedEntry {}

impl OrphanedEntry {
    fn new(owner_died: bool) -> Self {
        OrphanedEntry {
            head: AtomicU64::new(owner_died.into()),
            tail: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            entry: Writer {
                owner: AtomicU64::new(1),
                intent: AtomicU64::new(if owner_died { 0 } else { fifo::NO_TICKET }),
            },
            dead: std::array::from_fn(|owner| AtomicU32::new((owner_died && owner == 1).into())),
            owned: UnsafeCell::new(0),
        }
    }

    fn is_alive(&self, owner: u64) -> bool {
        self.dead[owner as usize].load(Ordering::Acquire) == 0
    }

    fn take(&self, owner: u64) -> bool {
        let (used, entries) = (AtomicU32::new(1), |_| [&self.entry].into_iter());
        let is_alive = |owner| self.is_alive(owner);
        let taken = writer_table::claim_or_grow(&used, 1, entries, owner, is_alive) == Some(0);
        if taken {
            self.touch(owner);
        }
        taken
    }

    fn touch(&self, owner: u64) {
        // SAFETY: the entry is ours.
        self.owned.with_mut(|at| unsafe { *at = owner });
    }

    fn claim(&self) -> Option<u64> {
        fifo::claim(&self.head, &self.tail, &Cell::new(0), 4, &self.entry.intent)
    }

    fn send(&self) {
        if let Some(ticket) = self.claim() {
            fifo::publish(&self.words[ticket as usize], ticket, 1);
        }
    }

    /// The state of a ticket that the reader has just found unpublished.
    fn classify(&self, ticket: u64) -> TicketState {
        if !fifo::stuck(&self.head, ticket) {
            return TicketState::Unclaimed;
        }
        if self.entry.may_hold(ticket, |owner| self.is_alive(owner)) {
            return TicketState::Held;
        }
        match fifo::peek(&self.words[ticket as usize], ticket) {
            Some(_) => TicketState::Published,
            None => TicketState::Abandoned,
        }
    }
}

#[derive(PartialEq, Debug)]
enum TicketState {
    Unclaimed,
    Held,
    Published,
    Abandoned,
}

#[test]
fn writer_table_model_one_owner_at_a_time() {
    for owner_dies in [false, true] {
        model(move || {
            let fifo = Arc::new(OrphanedEntry::new(false));
            let others: Vec<_> = [2, 3]
                .map(|owner| {
                    let fifo = fifo.clone();
                    thread::spawn(move || {
                        let taken = fifo.take(owner);
                        if taken && owner == 2 {
                            fifo.touch(owner);
                            fifo.entry.release();
                        }
                        taken
                    })
                })
                .into();
            fifo.touch(1);
            if owner_dies {
                fifo.dead[1].store(1, Ordering::Release);
            } else {
                fifo.entry.release();
            }
            let taken: Vec<bool> = others.into_iter().map(|other| other.join().unwrap()).collect();
            assert!(taken[1] || fifo.take(3), "it is to be had in the end");
        });
    }
}

#[test]
fn writer_table_model_only_dead_writers_are_skipped() {
    model(|| {
        let fifo = Arc::new(OrphanedEntry::new(true));
        let successors: Vec<_> = [2, 3]
            .map(|owner| {
                let fifo = fifo.clone();
                thread::spawn(move || {
                    if fifo.take(owner) {
                        fifo.send();
                        if owner == 2 {
                            fifo.entry.release();
                        }
                    }
                })
            })
            .into();
        let first = fifo.classify(0);
        assert!(matches!(first, TicketState::Held | TicketState::Abandoned), "{first:?}");
        for ticket in [1, 2] {
            assert_ne!(fifo.classify(ticket), TicketState::Abandoned, "{ticket}");
        }
        successors.into_iter().for_each(|successor| successor.join().unwrap());
        assert_eq!(fifo.classify(0), TicketState::Abandoned, "what the dead has claimed");
    });
}

/// A FIFO whose packets lie in slots, one more than there are cells.
struct Slotted {
    head: AtomicU64,
    tail: AtomicU64,
    words: [AtomicU64; 2],
    intents: [AtomicU64; 2],
    slot_entries: [AtomicU32; 2],
    slots: [UnsafeCell<u64>; 3],
    returns: ReturnStack,
}

// SAFETY: the slots are reached by the rules of the FIFO, which loom checks.
unsafe impl Sync for Slotted {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Slotted {}

#[test]
fn slot_map_model_kept_slots_are_stable_and_bound_slots_are_free() {
    model(|| {
        let fifo = Arc::new(Slotted {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            intents: std::array::from_fn(|_| AtomicU64::new(fifo::NO_TICKET)),
            slot_entries: [AtomicU32::new(0), AtomicU32::new(1)],
            slots: std::array::from_fn(|_| UnsafeCell::new(0)),
            returns: ReturnStack::new(3),
        });
        let writer = {
            let fifo = fifo.clone();
            thread::spawn(move || {
                let cached_tail = Cell::new(0);
                let mut sent = 0;
                for _ in 0..4 {
                    let claimed = fifo::claim(&fifo.head, &fifo.tail, &cached_tail, CELLS, &fifo.intents[0]);
                    let Some(ticket) = claimed else { continue };
                    let cell = (ticket % CELLS) as usize;
                    let slot = slot_map::slot_at(&fifo.slot_entries[cell]) as usize;
                    // SAFETY: the slot is bound to the cell, whose ticket is ours and unpublished.
                    fifo.slots[slot].with_mut(|at| unsafe { *at = 10 + ticket });
                    fifo::publish(&fifo.words[cell], ticket, 1);
                    sent += 1;
                }
                sent
            })
        };
        let private = [Cell::new(0), Cell::new(1)];
        let (spare, keeper) = (Cell::new(Some(2)), Cell::new(None));
        let receive = |ticket: u64| {
            let cell = (ticket % CELLS) as usize;
            fifo::peek(&fifo.words[cell], ticket)?;
            let slot = private[cell].get();
            // SAFETY: published, and not released yet.
            assert_eq!(fifo.slots[slot as usize].with(|at| unsafe { *at }), 10 + ticket);
            fifo.returns.take_all(|slot| spare.set(Some(slot)));
            // The packet is kept while a slot is spare; another thread reads it and gives it back.
            if let Some(free) = spare.take() {
                let kept = slot_map::replace(&fifo.slot_entries[cell], &private[cell], free);
                assert_eq!(kept, slot);
                if keeper.take().is_none() {
                    let fifo = fifo.clone();
                    keeper.set(Some(thread::spawn(move || {
                        // SAFETY: nobody writes to a slot that is bound to no cell.
                        assert_eq!(fifo.slots[kept as usize].with(|at| unsafe { *at }), 10 + ticket);
                        fifo.returns.push(kept);
                    })));
                } else {
                    fifo.returns.push(kept);
                }
            }
            fifo::release(&fifo.tail, ticket + 1);
            Some(())
        };
        let mut got = 0;
        for _ in 0..2 {
            got += u64::from(receive(got).is_some());
        }
        let sent: u64 = writer.join().unwrap();
        while receive(got).is_some() {
            got += 1;
        }
        assert_eq!(got, sent);
        if let Some(keeper) = keeper.take() {
            keeper.join().unwrap();
        }
    });
}
