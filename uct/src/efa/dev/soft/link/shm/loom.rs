//! Loom models of a receive ring: all interleavings of small histories, up to a bound on
//! preemptions. Run with `RUSTFLAGS="--cfg loom" cargo test -p uct --lib loom`.
//!
//! Not modelled: the table of known GIDs, whose words are independent and versioned by a counter read first;
//! process death, which to the ring is a thread that stops.

#![allow(unsafe_code)]

use super::mr_entry::{MrEntry, Region};
use super::{mark, ring};
use crate::api::Access;
use ucs::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, fence, thread};

const RING: u32 = 2;
/// Recycled payload slots: fewer than ring entries, as in long rings.
const SLOTS: u32 = 1;

#[derive(Default)]
struct Desc {
    seq: AtomicU32,
    claimer: AtomicU32,
    before: AtomicU32,
    recv_wqe: AtomicU32,
}

struct Shared {
    head: AtomicU64,
    posted: AtomicU32,
    taken: AtomicU32,
    flag: AtomicU32,
    wakes: AtomicU32,
    descs: [Desc; RING as usize],
    /// Value of a descriptor, and whether the slot holds it as well.
    bodies: [UnsafeCell<(u32, bool)>; RING as usize],
    slot: UnsafeCell<u32>,
}

// SAFETY: bodies and slot are accessed by the ring's rules; loom checks that these suffice.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Self {
        Shared {
            head: AtomicU64::new(0),
            posted: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            flag: AtomicU32::new(0),
            wakes: AtomicU32::new(0),
            descs: Default::default(),
            bodies: [UnsafeCell::new((0, false)), UnsafeCell::new((0, false))],
            slot: UnsafeCell::new(0),
        }
    }

    fn desc(&self, index: u32) -> &Desc {
        &self.descs[(index % RING) as usize]
    }

    fn claim(&self, me: u32) -> Option<u64> {
        let mut word = self.head.load(Ordering::Acquire);
        loop {
            let index = word as u32;
            let posted = ring::granted(&self.posted);
            if word & ring::CLOSED != 0 || !ring::may_claim(&self.head, index, posted, RING) {
                return None;
            }
            let recv_wqe = self.desc(index).recv_wqe.load(Ordering::Relaxed);
            match ring::claim_at(&self.head, word, me) {
                Ok(index) => {
                    assert_eq!(recv_wqe, index, "the landing of another receive");
                    return Some(word);
                }
                Err(now) => word = now,
            }
        }
    }

    fn sign(&self, me: u32, word: u64) {
        let desc = self.desc(word as u32);
        ring::sign_claim(&desc.claimer, &desc.before, me, word, RING);
    }

    /// A sender that has published, and stops before its signal if it does not live on.
    fn wake(&self, lives: bool) {
        if let Some(seen) = ring::armed(&self.flag) {
            ring::wake(&self.flag, seen, || {
                if lives {
                    self.wakes.fetch_add(1, Ordering::SeqCst);
                }
                lives
            });
        }
    }

    fn send(&self, me: u32, value: u32) -> bool {
        self.send_as(me, value, true)
    }

    fn send_as(&self, me: u32, value: u32, lives: bool) -> bool {
        let Some(word) = self.claim(me) else { return false };
        self.sign(me, word);
        let index = word as u32;
        let in_slot = ring::has_slot(index, ring::taken(&self.taken), SLOTS);
        if in_slot {
            // SAFETY: the claim before in this slot is done with.
            self.slot.with_mut(|at| unsafe { at.write(value) });
        }
        // SAFETY: the claim is ours and unpublished.
        self.bodies[(index % RING) as usize].with_mut(|at| unsafe { at.write((value, in_slot)) });
        ring::publish(&self.desc(index).seq, index);
        self.wake(lives);
        true
    }

    fn post(&self, index: u32) {
        self.desc(index).recv_wqe.store(index, Ordering::Relaxed);
        ring::grant(&self.posted, index + 1);
    }

    fn receive(&self, tail: u32) -> Option<u32> {
        if !ring::is_published(&self.desc(tail).seq, tail) {
            return None;
        }
        // SAFETY: published, and its receive not posted again yet.
        let (value, in_slot) = self.bodies[(tail % RING) as usize].with(|at| unsafe { at.read() });
        if in_slot {
            // SAFETY: published, and not passed yet.
            assert_eq!(self.slot.with(|at| unsafe { at.read() }), value);
        }
        ring::set_taken(&self.taken, tail);
        Some(value)
    }

    fn claimer(&self, index: u32) -> Option<u32> {
        let (this, next) = (self.desc(index), self.desc(index + 1));
        ring::claimer(&self.head, index, RING, &this.claimer, &next.before)
    }
}

fn model(bound: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(test);
}

/// Receives are posted around the ring; each message arrives once, in the receive its sender saw.
#[test]
fn ring_model_two_senders_one_owner() {
    model(3, || {
        let ring = Arc::new(Shared::new());
        ring.post(0);
        ring.post(1);
        let senders: Vec<_> = (1..=2u32)
            .map(|me| {
                let ring = ring.clone();
                thread::spawn(move || (me..=2).filter(|n| ring.send(me, 10 * me + n)).count())
            })
            .collect();
        let (mut got, mut posted) = (Vec::new(), 2);
        let mut take = |got: &mut Vec<u32>| {
            let value = ring.receive(got.len() as u32)?;
            got.push(value);
            ring.post(posted);
            posted += 1;
            Some(value)
        };
        for _ in 0..2 {
            take(&mut got);
        }
        let sent: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
        while take(&mut got).is_some() {}
        assert_eq!(got.len(), sent);
        got.sort_unstable();
        got.dedup();
        assert_eq!(got.len(), sent, "a message came twice");
    });
}

#[test]
fn ring_model_no_wakeup_is_lost() {
    model(4, || {
        let ring = Arc::new(Shared::new());
        ring.post(0);
        let sender = {
            let ring = ring.clone();
            thread::spawn(move || assert!(ring.send(1, 7)))
        };
        ring::arm(&ring.flag, true);
        // By the completion queue, for all its rings.
        fence(Ordering::SeqCst);
        let sleeps = !ring::has_unpublished(&ring.head, 0);
        sender.join().unwrap();
        if sleeps {
            assert_eq!(ring.wakes.load(Ordering::SeqCst), 1, "asleep, and nobody called");
        }
        assert_eq!(ring.receive(0), Some(7));
    });
}

#[test]
fn ring_model_a_sender_that_stops_leaves_the_wakeup_to_others() {
    model(3, || {
        let ring = Arc::new(Shared::new());
        ring.post(0);
        ring.post(1);
        let senders = [(1, true), (2, false)].map(|(me, lives)| {
            let ring = ring.clone();
            thread::spawn(move || assert!(ring.send_as(me, 7, lives)))
        });
        ring::arm(&ring.flag, true);
        fence(Ordering::SeqCst);
        let sleeps = !ring::has_unpublished(&ring.head, 0);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        if sleeps {
            assert_eq!(ring.wakes.load(Ordering::SeqCst), 1, "asleep, and nobody called");
        }
    });
}

/// A sender that wakes the owner late does not disarm it when it has armed again meanwhile.
#[test]
fn ring_model_a_late_sender_takes_no_later_wakeup() {
    model(3, || {
        let ring = Arc::new(Shared::new());
        ring.post(0);
        ring.post(1);
        let senders = [1, 2].map(|me| {
            let ring = ring.clone();
            thread::spawn(move || assert!(ring.send(me, 7)))
        });
        // A timer ends this sleep, if there is one.
        ring::arm(&ring.flag, true);
        fence(Ordering::SeqCst);
        let tail = u32::from(ring.receive(0).is_some());
        ring.wakes.store(0, Ordering::SeqCst);
        ring::arm(&ring.flag, true);
        fence(Ordering::SeqCst);
        let sleeps = !ring::has_unpublished(&ring.head, tail);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        if sleeps {
            assert!(ring.wakes.load(Ordering::SeqCst) > 0, "asleep, and nobody called");
        }
    });
}

/// A claimer that stopped is never mistaken for another, and is known in the end.
#[test]
fn ring_model_the_claimer_is_named_or_unknown() {
    model(4, || {
        let ring = Arc::new(Shared::new());
        (0..RING).for_each(|index| ring.sign(3, 3 << 32 | u64::from(index)));
        ring.head.store(3 << 32 | u64::from(RING), Ordering::Relaxed);
        ring.post(RING);
        ring.post(RING + 1);
        let senders: Vec<_> = (1..=2u32)
            .map(|me| {
                let ring = ring.clone();
                thread::spawn(move || {
                    let word = ring.claim(me).expect("two receives");
                    // The first stops before it has signed, the second after.
                    if me == 2 {
                        ring.sign(me, word);
                    }
                    word as u32 == RING
                })
            })
            .collect();
        let named = ring::has_unpublished(&ring.head, RING).then(|| ring.claimer(RING)).flatten();
        let firsts: Vec<bool> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        let first = firsts.into_iter().position(|first| first).map(|at| at as u32 + 1);
        assert!(named.is_none() || named == first, "{named:?} is named, and it was {first:?}");
        assert_eq!(ring.claimer(RING), first);
    });
}

/// Closing tells the owner the final number of claims.
#[test]
fn ring_model_a_closed_ring_takes_no_claims() {
    model(4, || {
        let ring = Arc::new(Shared::new());
        ring.post(0);
        ring.post(1);
        let sender = {
            let ring = ring.clone();
            thread::spawn(move || (0..2).filter(|_| ring.send(1, 7)).count() as u32)
        };
        let claimed = ring::close(&ring.head) as u32;
        assert_eq!(sender.join().unwrap(), claimed);
        assert!((0..claimed).all(|index| ring.receive(index) == Some(7)));
    });
}

/// Memory of an owner that a requester copies to while its key is valid and the queue pair open.
struct Target {
    entry: MrEntry,
    head: AtomicU64,
    mark: AtomicU64,
    memory: UnsafeCell<u32>,
}

// SAFETY: the memory is accessed by the rules of marks; loom checks that these suffice.
unsafe impl Sync for Target {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Target {}

impl Target {
    fn new() -> Self {
        let entry = MrEntry::default();
        entry.set(1, &Region { addr: 0, len: 1, access: Access::REMOTE_WRITE, pd: 0, file: None });
        Target { entry, head: AtomicU64::new(0), mark: AtomicU64::new(0), memory: UnsafeCell::new(0) }
    }

    fn copy(&self, count: u64) {
        mark::begin(&self.mark, count);
        let is_open = self.head.load(Ordering::SeqCst) & ring::CLOSED == 0;
        if is_open && self.entry.get(1).is_some() {
            // SAFETY: key and queue pair were there after the mark.
            self.memory.with_mut(|at| unsafe { at.write(count as u32) });
        }
        mark::end(&self.mark);
    }

    fn await_copy(&self) {
        mark::before_look();
        let seen = mark::look(&self.mark);
        while seen != 0 && mark::look(&self.mark) == seen {
            thread::yield_now();
        }
        // SAFETY: no copy is under way, and none begins.
        self.memory.with_mut(|at| unsafe { at.write(0) });
    }
}

fn check_await_copy(end: fn(&Target)) {
    model(4, move || {
        let target = Arc::new(Target::new());
        let requester = {
            let target = target.clone();
            thread::spawn(move || (1..=2).for_each(|count| target.copy(count)))
        };
        end(&target);
        target.await_copy();
        requester.join().unwrap();
        // SAFETY: the other thread has ended.
        assert_eq!(target.memory.with(|at| unsafe { at.read() }), 0, "written after the wait");
    });
}

#[test]
fn ring_model_no_copy_is_under_way_after_the_removal_of_its_key() {
    check_await_copy(|target| assert!(target.entry.clear(1)));
}

#[test]
fn ring_model_no_copy_is_under_way_after_the_close_of_its_queue_pair() {
    check_await_copy(|target| _ = ring::close(&target.head));
}
