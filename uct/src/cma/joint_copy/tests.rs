//! Joint copies of two interfaces of this process. The test plays one of them through its view of a table.

use super::*;
use crate::api::{Am, Ep as _, EpTag, Iface as _, Iov, Refused, Sink};
use crate::cma::{Ep, Iface, Rkey};
use std::sync::atomic::{AtomicBool, AtomicU32 as Count, Ordering::SeqCst};
use std::thread;

const LEN: usize = 1 << 20;
const PART: usize = 256 << 10;

#[derive(Default, Debug)]
struct Ended(Vec<(u64, Result<(), Error>)>);

impl Sink for Ended {
    fn on_am(&mut self, _: Am<'_>) {}
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        self.0.push((token, result));
    }
    fn on_ep_error(&mut self, _: EpTag, _: Error) {}
}

/// A requester, an owner of memory and of a table, and both ends of a copy.
struct Pair {
    requester: Iface,
    owner: Iface,
    ep: Ep,
    rkey: Rkey,
    there: Vec<u8>,
    here: Vec<u8>,
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|at| (at / 1000) as u8 | 1).collect()
}

fn key_of(owner: &Iface, requester: &Iface, bytes: &mut [u8]) -> Rkey {
    // SAFETY: the tests keep the bytes longer than the key, and read them between operations only.
    let mem = unsafe { owner.md().register(bytes.as_mut_ptr(), bytes.len(), Access::ALL) }.unwrap();
    requester.md().unpack_rkey(&owner.md().pack_rkey(&mem).unwrap()).unwrap()
}

impl Pair {
    fn new() -> Pair {
        let (requester, owner) =
            (Iface::open(&Config::default()).unwrap(), Iface::open(&Config::default()).unwrap());
        let ep = requester.connect(&owner.device_addr(), &owner.iface_addr()).unwrap();
        let (mut there, mut here) = (pattern(), vec![0; LEN]);
        there.as_mut_ptr().expose_provenance();
        here.as_mut_ptr().expose_provenance();
        let rkey = key_of(&owner, &requester, &mut there);
        Pair { requester, owner, ep, rkey, there, here }
    }

    fn get(&mut self, comp: Comp) -> Outcome {
        let iov = [Iov::new(self.here.as_mut_ptr().cast_const(), LEN, None)];
        // SAFETY: `here` is not read before the operation has ended.
        unsafe { self.ep.get_zcopy(&iov, self.there.as_ptr().addr() as u64, &self.rkey, comp) }
    }

    fn table(&self) -> &Table {
        self.owner.inner().table.as_ref().expect("a table").table()
    }

    /// Whether these bytes have been copied, and all others not.
    fn is_copied(&self, from: usize, to: usize) -> bool {
        let here = std::hint::black_box(&self.here);
        let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        here[from..to] == self.there[from..to] && untouched(&here[..from]) && untouched(&here[to..])
    }

    /// Offers the owner a read of its bytes, changed by `change`, as a requester does.
    fn offer(&self, change: impl FnOnce(&Slot)) -> &Slot {
        let slot = &self.table().slots[3];
        joint::begin(&slot.word).expect("the slot is free");
        let (local, remote) = (self.here.as_ptr().cast_mut(), self.there.as_ptr().addr() as u64);
        let block = Block { direction: Direction::Read, local, remote, len: LEN };
        slot.fill(&self.requester.inner().addr(), &block, PART as u32);
        change(slot);
        joint::offer(&slot.word, (LEN / PART) as u32);
        self.table().offers.0.fetch_or(1 << 3, Relaxed);
        slot
    }

    fn poll_owner(&self) {
        assert_eq!(self.owner.poll(8, &mut Ended::default()), 0);
    }
}

#[test]
fn a_poll_copies_the_last_part_of_a_copy_offered() {
    let pair = Pair::new();
    assert!(pair.owner.is_idle());
    let slot = pair.offer(|_| {});
    assert!(!pair.owner.is_idle(), "an offer is work");
    pair.poll_owner();
    assert!(pair.is_copied(LEN - PART, LEN));
    assert_eq!((joint::peer_state(&slot.word), joint::claim_first(&slot.word)), (PeerState::Done, Some(0)));
    (0..4).for_each(|_| pair.poll_owner());
    assert!(pair.is_copied(PART, LEN), "the first part is the requester's");
    assert_eq!((joint::last_claimed(&slot.word), joint::claim_first(&slot.word)), (1, None));
}

#[test]
fn an_offered_write_fills_the_owners_memory() {
    let pair = Pair::new();
    pair.offer(|slot| {
        slot.write.store(1, Relaxed);
        slot.ours.store(pair.here.as_ptr().addr() as u64, Relaxed);
        slot.theirs.store(pair.there.as_ptr().addr() as u64, Relaxed);
    });
    (0..4).for_each(|_| pair.poll_owner());
    assert!(pair.is_copied(0, LEN));
}

#[test]
fn forged_offers_copy_nothing() {
    let forged: [&dyn Fn(&Slot); 7] = [
        &|slot| slot.key.store(7, Relaxed),
        &|slot| slot.pid.store(1, Relaxed),
        &|slot| slot.key_addr.store(8, Relaxed),
        &|slot| slot.ours.store(4096, Relaxed),
        &|slot| slot.theirs.store(u64::MAX - 4096, Relaxed),
        &|slot| slot.part.store(u32::MAX, Relaxed),
        &|slot| slot.len.store(4096, Relaxed),
    ];
    for forge in forged {
        let pair = Pair::new();
        let slot = pair.offer(forge);
        pair.poll_owner();
        assert!(pair.is_copied(0, 0));
        assert_eq!(joint::peer_state(&slot.word), PeerState::Failed, "the requester is to copy the part");
    }
}

#[test]
fn the_slot_of_a_dead_requester_is_freed() {
    let pair = Pair::new();
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let slot = pair.offer(|slot| slot.pid.store(child.id(), Relaxed));
    (0..3).for_each(|_| pair.poll_owner());
    assert!(pair.is_copied(0, 0) && !joint::is_used(&slot.word) && pair.owner.is_idle());
    // One that had taken its offer back is found with the next offer.
    let slot = pair.offer(|slot| slot.pid.store(child.id(), Relaxed));
    pair.table().offers.0.store(1 << 5, Relaxed);
    pair.poll_owner();
    assert!(!joint::is_used(&slot.word));
}

#[test]
fn peers_that_are_not_let_in_have_no_table() {
    for config in [
        Config { joint: false, ..Config::default() },
        Config { allow_peers: false, ..Config::default() },
        Config { map: false, ..Config::default() },
    ] {
        let owner = Iface::open(&config).unwrap();
        assert!(owner.inner().table.is_none());
        let mut pair = Pair::new();
        pair.ep = pair.requester.connect(&owner.device_addr(), &owner.iface_addr()).unwrap();
        assert_eq!(pair.get(Comp::Token(1)), Ok(Sent::Done));
        assert!(pair.is_copied(0, LEN) && pair.ep.peer().copies.table.get().is_some_and(Option::is_none));
    }
}

/// Plays the owner: takes the last part of the copy that is offered, and ends it as `end` says.
fn play_owner(table: &Table, end: impl FnOnce(&Slot, u32)) {
    let slot = &table.slots[0];
    loop {
        let seen = joint::load(&slot.word);
        if joint::is_offered(seen)
            && let Some(n) = joint::claim_last(&slot.word, seen)
        {
            return end(slot, n);
        }
        std::hint::spin_loop();
    }
}

/// A view of a table for another thread.
struct View(NonNull<Table>);

// SAFETY: a table has atomics only; the tests keep it longer than their threads.
unsafe impl Sync for View {}

impl View {
    fn table(&self) -> &Table {
        // SAFETY: as above.
        unsafe { self.0.as_ref() }
    }
}

/// Starts a copy whose last part a thread takes, and ends as `end` says.
fn get_with(pair: &mut Pair, comp: Comp, end: impl FnOnce(&Slot, u32) + Send) -> Outcome {
    let (view, taken) = (View(NonNull::from(pair.table())), AtomicBool::new(false));
    thread::scope(|scope| {
        let player = scope.spawn(|| {
            play_owner(view.table(), |slot, n| {
                taken.store(true, SeqCst);
                end(slot, n);
            });
        });
        // The thread may be too late for a copy, which is then whole and begins anew. A copy in progress has
        // a part that the thread took, even if it has not said so yet.
        let sent = loop {
            pair.here.fill(0);
            let sent = pair.get(comp.clone());
            if sent != Ok(Sent::Done) || taken.load(SeqCst) {
                break sent;
            }
        };
        player.join().unwrap();
        sent
    })
}

#[test]
fn a_part_that_the_owner_leaves_is_the_requesters_and_later_copies_are_not_offered() {
    let mut pair = Pair::new();
    let sent = get_with(&mut pair, Comp::Token(1), |slot, _| joint::end_part(&slot.word, false));
    // The thread may have been slow to leave its part.
    let mut ended = Ended::default();
    pair.requester.poll(8, &mut ended);
    let in_call = usize::from(sent == Ok(Sent::Done));
    assert!(sent.is_ok() && ended.0[..] == [(1, Ok(()))][in_call..], "{sent:?} {ended:?}");
    assert!(pair.is_copied(0, LEN) && pair.ep.peer().copies.is_refused.get());
    let word = pair.table().slots[0].word.load(Relaxed);
    assert_eq!(pair.get(Comp::Token(2)), Ok(Sent::Done));
    assert_eq!(pair.table().slots[0].word.load(Relaxed), word, "no slot was used");
}

#[test]
fn a_copy_waits_for_a_part_that_takes_long_and_later_operations_wait_behind_it() {
    let mut pair = Pair::new();
    assert_eq!(get_with(&mut pair, Comp::Token(5), |_, _| {}), Ok(Sent::InProgress));
    let at = pair.there.as_ptr().addr() as u64;
    assert_eq!(pair.ep.put_short(&[1], at, &pair.rkey), Err(Refused::NoResource));
    assert_eq!(pair.get(Comp::None), Err(Refused::NoResource));
    assert_eq!(
        (pair.ep.flush(Comp::None), pair.ep.fence()),
        (Err(Refused::NoResource), Err(Refused::NoResource))
    );
    assert_eq!(pair.requester.flush(Comp::None), Err(Refused::NoResource));
    let mut ended = Ended::default();
    assert!(pair.requester.poll(8, &mut ended) == 0 && !pair.requester.is_idle());
    let slot = &pair.table().slots[0];
    let last = joint::last_claimed(&slot.word) as usize * PART;
    assert!(pair.is_copied(0, last), "the rest is the owner's");
    // The owner copies its part after all.
    let offer = slot.read();
    offer.copy_part(pair.ep.peer(), (last / PART) as u32).unwrap();
    joint::end_part(&slot.word, true);
    assert_eq!((pair.requester.poll(8, &mut ended), ended.0), (1, vec![(5, Ok(()))]));
    assert!(
        pair.is_copied(0, LEN) && pair.requester.is_idle() && !joint::is_used(&pair.table().slots[0].word)
    );
    assert_eq!(pair.ep.flush(Comp::None), Ok(Sent::Done));
}

#[test]
fn an_endpoint_that_is_dropped_waits_for_the_part_of_its_owner() {
    let mut pair = Pair::new();
    assert_eq!(get_with(&mut pair, Comp::Token(5), |_, _| {}), Ok(Sent::InProgress));
    let (view, dropped) = (View(NonNull::from(pair.table())), AtomicBool::new(false));
    let Pair { requester, owner, ep, rkey: _, there, here } = pair;
    let start = std::time::Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            let is_early = dropped.load(SeqCst);
            joint::end_part(&view.table().slots[0].word, true);
            assert!(!is_early || start.elapsed() >= LAST_WAIT);
        });
        drop(ep);
        dropped.store(true, SeqCst);
    });
    // A machine that pauses lets the wait end first.
    let (mut ended, is_late) = (Ended::default(), start.elapsed() >= LAST_WAIT);
    assert_eq!(requester.poll(8, &mut ended), 1);
    let cancelled = [(5, Err(Error::Cancelled))];
    assert!(ended.0 == [(5, Ok(()))] || is_late && ended.0 == cancelled, "{ended:?}");
    drop((owner, there, here));
}

/// An owner that is stopped within its part, for longer than the requester waits, and then goes on.
#[test]
fn a_slot_given_up_is_free_when_its_owner_has_gone_on() {
    let mut pair = Pair::new();
    assert_eq!(get_with(&mut pair, Comp::Token(5), |_, _| {}), Ok(Sent::InProgress));
    let (device, iface) = (pair.owner.device_addr(), pair.owner.iface_addr());
    let again = pair.requester.connect(&device, &iface).unwrap();
    drop(std::mem::replace(&mut pair.ep, again));
    let mut ended = Ended::default();
    assert_eq!((pair.requester.poll(8, &mut ended), ended.0), (1, vec![(5, Err(Error::Cancelled))]));
    assert!(joint::is_used(&pair.table().slots[0].word));
    joint::end_part(&pair.table().slots[0].word, true);
    assert_eq!(pair.get(Comp::Token(6)), Ok(Sent::Done));
    assert!(!joint::is_used(&pair.table().slots[0].word), "no later copy finds it free");
}

/// An owner in another thread, which polls.
#[test]
fn an_owner_that_polls_copies_a_part() {
    static PARTS_JOINED: Count = Count::new(0);
    let (requester, stop) = (Iface::open(&Config::default()).unwrap(), AtomicBool::new(false));
    let (tell, told) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let owner = Iface::open(&Config::default()).unwrap();
            let mut there = pattern();
            there.as_mut_ptr().expose_provenance();
            // SAFETY: kept until the requester has stopped.
            let mem = unsafe { owner.md().register(there.as_mut_ptr(), LEN, Access::ALL) }.unwrap();
            let key = owner.md().pack_rkey(&mem).unwrap();
            tell.send((owner.device_addr(), owner.iface_addr(), key, there.as_ptr().addr())).unwrap();
            while !stop.load(SeqCst) {
                if !owner.is_idle() {
                    PARTS_JOINED.fetch_add(1, SeqCst);
                }
                owner.poll(8, &mut Ended::default());
            }
        });
        let (device, iface, key, at) = told.recv().unwrap();
        let (ep, rkey) =
            (requester.connect(&device, &iface).unwrap(), requester.md().unpack_rkey(&key).unwrap());
        let mut ended = Ended::default();
        for n in 0..10_000 {
            // Lengths that are no multiple of a part, too.
            let len = LEN - n % 3 * 70_001;
            let mut here = vec![0u8; len];
            here.as_mut_ptr().expose_provenance();
            let iov = [Iov::new(here.as_mut_ptr().cast_const(), len, None)];
            // SAFETY: `here` is not read before the operation has ended.
            let sent = unsafe { ep.get_zcopy(&iov, at as u64, &rkey, Comp::Token(n as u64)) }.unwrap();
            while sent == Sent::InProgress && ended.0.pop().is_none() {
                requester.poll(8, &mut ended);
            }
            assert!(std::hint::black_box(&here)[..] == pattern()[..len], "{n}");
            if PARTS_JOINED.load(SeqCst) > 20 && n > 20 {
                break;
            }
        }
        stop.store(true, SeqCst);
        assert!(PARTS_JOINED.load(SeqCst) > 0);
    });
}
