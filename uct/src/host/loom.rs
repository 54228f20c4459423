//! Loom models of a joint copy: all interleavings of small histories, up to a bound on preemptions. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p uct --lib loom`.
//!
//! Not modelled: process death, after which the peer takes no part.

#![allow(unsafe_code)]

use super::joint;
use ucs::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell, thread};

fn model(bound: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(test);
}

const PARTS: u32 = 2;

/// One slot of joint copies: its field, and the parts of the copy, each with the copies made of it.
struct Copies {
    word: AtomicU64,
    field: AtomicU32,
    parts: [UnsafeCell<u32>; PARTS as usize],
}

// SAFETY: parts are accessed by the slot's rules; loom checks that these suffice.
unsafe impl Sync for Copies {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Copies {}

impl Copies {
    fn copy(&self, part: u32, number: u32) {
        // SAFETY: the part is claimed by this thread.
        self.parts[part as usize].with_mut(|at| unsafe { *at += number });
    }

    fn request(&self, number: u32) {
        joint::begin(&self.word).expect("one requester");
        self.field.store(number, Ordering::Relaxed);
        joint::offer(&self.word, PARTS);
        while let Some(part) = joint::claim_first(&self.word) {
            self.copy(part, number);
        }
        let state = loop {
            match joint::peer_state(&self.word) {
                joint::PeerState::Busy => thread::yield_now(),
                state => break state,
            }
        };
        if state == joint::PeerState::Failed {
            self.copy(joint::last_claimed(&self.word), number);
        }
        joint::close(&self.word);
    }

    /// Takes part in a copy. `fails`: leaves its part to the requester.
    fn join(&self, fails: bool) {
        let seen = joint::load(&self.word);
        if !joint::is_offered(seen) {
            return;
        }
        let number = self.field.load(Ordering::Relaxed);
        if let Some(part) = joint::claim_last(&self.word, seen) {
            if !fails {
                self.copy(part, number);
            }
            joint::end_part(&self.word, !fails);
        }
    }
}

fn joint_model(fails: bool) {
    model(3, move || {
        let parts = [UnsafeCell::new(0), UnsafeCell::new(0)];
        let copies = Arc::new(Copies { word: AtomicU64::new(0), field: AtomicU32::new(0), parts });
        let peer = {
            let copies = copies.clone();
            thread::spawn(move || (0..2).for_each(|_| copies.join(fails)))
        };
        copies.request(1);
        copies.request(10);
        // SAFETY: both copies are over: the peer has no part of them.
        copies.parts.iter().for_each(|part| assert_eq!(part.with(|at| unsafe { at.read() }), 11));
        peer.join().unwrap();
    });
}

/// Each part of two copies in one slot is copied once, and the requester sees what the peer copied.
#[test]
fn joint_model_each_part_is_copied_once() {
    joint_model(false);
}

/// The requester copies what the peer could not.
#[test]
fn joint_model_a_failed_part_is_the_requesters() {
    joint_model(true);
}
