//! A process that overwrites one word of an interface's segment: traffic goes on, or the endpoints of both
//! sides fail with that cause within ten seconds.

use super::*;
use crate::api::EpTag;
use crate::posix::seg::Segment;
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

const LIMIT: Duration = Duration::from_secs(10);
const EXCHANGE: usize = 300;

struct Side {
    iface: Iface,
    ep: Ep,
    got: Rc<RefCell<Vec<Vec<u8>>>>,
    sent: Cell<u64>,
    error: Rc<Cell<Option<Error>>>,
    failed: Cell<Option<Error>>,
}

impl Side {
    fn pair() -> [Side; 2] {
        let [a, b] = [0, 1].map(|_| open(&Source::empty()));
        let ends = [(&a, &b), (&b, &a)].map(|(from, to)| {
            let ep = from.connect(&to.device_addr(), &to.iface_addr()).unwrap();
            assert_eq!(ep.ensure_connected(), Ok(()));
            ep
        });
        let [ab, ba] = ends;
        [(a, ab), (b, ba)].map(|(iface, ep)| {
            let error = Rc::new(Cell::new(None));
            let heard = error.clone();
            iface.set_error_handler(Some(Box::new(move |_: EpTag, error| heard.set(Some(error)))));
            let got = collect(&iface, 5);
            Side { iface, ep, got, sent: Cell::new(0), error, failed: Cell::new(None) }
        })
    }

    /// Sends one message, if there is room.
    fn send(&self) {
        match self.ep.am_short(5, self.sent.get(), &[]) {
            Ok(_) => self.sent.set(self.sent.get() + 1),
            Err(Refused::NoResource) => {}
            Err(Refused::Failed(error)) => self.failed.set(Some(error)),
        }
    }
}

/// Whether all messages arrive, in order; otherwise both sides know why they do not.
fn goes_on(sides: &[Side; 2], why: &str) -> bool {
    let start = Instant::now();
    let before = sides.each_ref().map(|side| side.got.borrow().len());
    loop {
        for side in sides {
            side.send();
            side.iface.progress(4);
        }
        let have_all = sides.iter().zip(before).all(|(side, n)| side.got.borrow().len() >= n + EXCHANGE);
        let in_order = |side: &Side| {
            let numbers = |got: &Vec<u8>| u64::from_le_bytes(got[..8].try_into().unwrap());
            side.got.borrow().iter().map(numbers).eq(0..side.got.borrow().len() as u64)
        };
        if have_all && sides.iter().all(in_order) {
            return true;
        }
        let told = |side: &Side| matches!(side.failed.get(), Some(Error::Corrupt | Error::PeerDead));
        if sides.iter().all(told) && sides.iter().any(|side| side.error.get() == Some(Error::Corrupt)) {
            return false;
        }
        let state =
            sides.each_ref().map(|s| (s.got.borrow().len(), s.sent.get(), s.failed.get(), s.error.get()));
        assert!(start.elapsed() < LIMIT, "{why}: nothing happens: {state:?}");
    }
}

type Scribble = fn(&Segment, u64);

/// Overwrites words of the first side's segment, with so many messages in it.
fn scribble(name: &str, word: Scribble, may_go_on: bool) {
    scribble_with(&[0, 3, 64], name, word, may_go_on);
}

fn scribble_with(all_unread: &[u64], name: &str, word: Scribble, may_go_on: bool) {
    for &unread in all_unread {
        let sides = Side::pair();
        assert!(goes_on(&sides, name), "{name}: before");
        while sides[0].iface.progress(9) > 0 {}
        // The tickets of a FIFO with one writer number its messages.
        let next = sides[1].sent.get();
        (0..unread).for_each(|_| sides[1].send());
        word(sides[0].iface.segment(), next);
        let went_on = goes_on(&sides, &format!("{name}, {unread} unread"));
        assert!(may_go_on || !went_on, "{name}, {unread} unread: went on");
        if !went_on {
            let ep = sides[0].iface.connect(&sides[1].iface.device_addr(), &sides[1].iface.iface_addr());
            assert_eq!(ep.unwrap().am_short(5, 0, &[]), Err(Refused::Failed(Error::Corrupt)), "{name}");
        }
    }
}

#[test]
fn head_and_tail() {
    scribble("head far ahead", |seg, _| _ = seg.head().fetch_add(1 << 40, Relaxed), false);
    scribble("head a little ahead", |seg, _| _ = seg.head().fetch_add(2, Relaxed), true);
    scribble("head back", |seg, _| seg.head().store(0, Relaxed), false);
    scribble("tail far ahead", |seg, _| _ = seg.tail().fetch_add(1 << 40, Relaxed), true);
    scribble("tail back", |seg, _| seg.tail().store(0, Relaxed), true);
    scribble("all bits", |seg, _| seg.head().store(u64::MAX, Relaxed), false);
}

#[test]
fn state_and_tables() {
    scribble("closed", |seg, _| seg.state().store(super::super::fifo::CLOSED, Relaxed), false);
    scribble("armed", |seg, _| seg.state().store(super::super::fifo::ARMED, Relaxed), true);
    scribble("no writers", |seg, _| seg.writers_used().store(0, Relaxed), true);
    scribble("many writers", |seg, _| seg.writers_used().store(u32::MAX, Relaxed), true);
    scribble("slot map", |seg, _| seg.slot_entry(7).store(5, Relaxed), true);
    scribble("owner", |seg, _| seg.writer(0).owner.store(77, Relaxed), true);
    scribble("intent", |seg, _| seg.writer(0).intent.store(1 << 40, Relaxed), true);
    scribble("hint", |seg, _| seg.payload_hint().store(u32::MAX, Relaxed), true);
}

#[test]
fn words_of_cells() {
    // With one message its writer looks like one that is slow to publish.
    let word: Scribble = |seg, next| seg.cell(next).word().store(0, Relaxed);
    scribble_with(&[0], "word of a free cell", word, true);
    scribble_with(&[1, 3, 64], "word of the next cell", word, false);
    scribble(
        "impossible length",
        |seg, next| {
            seg.cell(next).word().store(u64::MAX << 32 | (next + 1), Relaxed);
        },
        true,
    );
}
