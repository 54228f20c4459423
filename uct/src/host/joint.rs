//! Synchronisation of a copy that two processes carry out together, without its memory. The requester takes
//! parts from the front, the peer from the back, one at a time. `cma` and the software EFA device use it,
//! each with slots of its own; modelled in `loom`.
//!
//! The word of a slot holds the first part that nobody has taken, the end of these parts, the state, and in
//! the high half the slot's generation. A claim names the whole word, so it cannot be of an earlier copy.
//!
//! | Label | Release side | Acquire side | Carries |
//! |---|---|---|---|
//! | SYNC(offer) | [`offer`] | the peer's load of the word | the slot's fields |
//! | SYNC(claim) | [`claim_last`], [`give_up`] | [`begin`], after [`close`] | the fields were read |
//! | SYNC(part) | [`end_part`] | [`peer_state`] | the peer's part was copied |

use std::time::{Duration, Instant};
use ucs::sync::hint::spin_loop;
use ucs::sync::{AtomicU64, Ordering};

/// Most parts of a copy.
pub const MAX_PARTS: u32 = 0xff;

const PART_BITS: u32 = 8;
const BUSY: u64 = 1 << 16;
/// The next value of the state: [`end_part`] adds one [`BUSY`].
const FAILED: u64 = 2 * BUSY;
const OFFERED: u64 = 1 << 18;
const FILLING: u64 = 1 << 19;
const GENERATION: u64 = 1 << 32;

/// State of the peer's part of a copy whose parts are all taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// It copies the part that it took last.
    Busy,
    /// The part that it took last is to be copied by the requester.
    Failed,
    /// All its parts are copied.
    Done,
}

fn front(word: u64) -> u32 {
    word as u32 & MAX_PARTS
}

fn back(word: u64) -> u32 {
    word as u32 >> PART_BITS & MAX_PARTS
}

/// Takes a free slot, to fill in its fields. `None`: it is in use.
pub fn begin(word: &AtomicU64) -> Option<u64> {
    let free = word.load(Ordering::Relaxed);
    if !free.is_multiple_of(GENERATION) {
        return None;
    }
    let filling = free.wrapping_add(GENERATION) | FILLING;
    // SYNC(claim)
    word.compare_exchange(free, filling, Ordering::Acquire, Ordering::Relaxed).ok()
}

/// Offers the peer parts of the copy; the slot's fields are filled in.
pub fn offer(word: &AtomicU64, parts: u32) {
    let generation = word.load(Ordering::Relaxed) & !(GENERATION - 1);
    // SYNC(offer)
    word.store(generation | OFFERED | u64::from(parts.min(MAX_PARTS)) << PART_BITS, Ordering::Release);
}

/// Takes the first part, for the requester. `None`: all are taken.
pub fn claim_first(word: &AtomicU64) -> Option<u32> {
    let next = |word: u64| (front(word) < back(word)).then_some(word.wrapping_add(1));
    word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(front)
}

/// Whether the peer may take a part of the copy with this word.
pub fn is_offered(word: u64) -> bool {
    word & (OFFERED | BUSY | FAILED) == OFFERED && front(word) < back(word)
}

/// Returns the word, for [`is_offered`] and [`claim_last`].
pub fn load(word: &AtomicU64) -> u64 {
    // SYNC(offer)
    word.load(Ordering::Acquire)
}

/// Takes the last part, for the peer, which saw an offer in `seen` and has read the slot's fields since.
/// `None`: the word has changed.
pub fn claim_last(word: &AtomicU64, seen: u64) -> Option<u32> {
    let claimed = (seen - (1 << PART_BITS)) | BUSY;
    // SYNC(claim)
    word.compare_exchange(seen, claimed, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| back(claimed))
}

/// Ends the peer's part: copied, or left to the requester.
pub fn end_part(word: &AtomicU64, copied: bool) {
    // SYNC(part)
    match copied {
        true => word.fetch_and(!BUSY, Ordering::Release),
        false => word.fetch_add(FAILED - BUSY, Ordering::Release),
    };
}

/// Returns the peer's state. Once all parts are taken, the peer takes no more.
pub fn peer_state(word: &AtomicU64) -> PeerState {
    // SYNC(part)
    match word.load(Ordering::Acquire) {
        word if word & BUSY != 0 => PeerState::Busy,
        word if word & FAILED != 0 => PeerState::Failed,
        _ => PeerState::Done,
    }
}

/// The part that the peer took last. All parts before it are the requester's.
#[cfg(test)]
pub fn last_claimed(word: &AtomicU64) -> u32 {
    back(word.load(Ordering::Relaxed))
}

/// Whether a requester uses the slot.
#[cfg(test)]
pub fn is_used(word: &AtomicU64) -> bool {
    !word.load(Ordering::Relaxed).is_multiple_of(GENERATION)
}

/// Frees the slot of a copy whose parts are all taken and copied, for its requester.
pub fn close(word: &AtomicU64) {
    let used = word.load(Ordering::Relaxed);
    word.store(used & !(GENERATION - 1), Ordering::Relaxed);
}

/// Whether the copy with this word is to be given up when its requester is dead: its fields are filled in,
/// and the peer copies nothing for it.
pub fn has_requester(word: u64) -> bool {
    word & OFFERED != 0 && word & BUSY == 0
}

/// Frees the slot of a dead requester, for the peer, which has read the requester's name since it saw `seen`.
/// `false`: the word has changed, and the slot may be another's.
pub fn give_up(word: &AtomicU64, seen: u64) -> bool {
    // SYNC(claim)
    word.compare_exchange(seen, seen & !(GENERATION - 1), Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Rounds of spinning for the peer's last part; then the processor is left to it.
const SPINS: u32 = 4096;

/// Carries out parts of a copy of `len` bytes, `part` in each, until none is left: `copy` gets the offset and
/// the length of each. Returns how many bytes from the front are the requester's, and its first error. After
/// an error the parts are taken all the same, so that the peer takes no more.
///
/// The word is in the peer's memory. If it does not say what this side has left there, all parts are the
/// requester's.
pub fn copy_front<E>(
    word: &AtomicU64,
    (len, part): (u32, u32),
    mut copy: impl FnMut(u32, u32) -> Result<(), E>,
) -> (u32, Result<(), E>) {
    let parts = len.div_ceil(part);
    debug_assert!(parts <= MAX_PARTS);
    let mut result = Ok(());
    let mut carry_out = |n: u32| {
        if result.is_ok() {
            result = copy(n * part, part.min(len - n * part));
        }
    };
    let mut taken = 0;
    while taken < parts && claim_first(word) == Some(taken) {
        carry_out(taken);
        taken += 1;
    }
    let seen = word.load(Ordering::Relaxed);
    if seen & OFFERED == 0 || (front(seen), back(seen)) != (taken, taken) {
        (taken..parts).for_each(carry_out);
        return (len, result);
    }
    (taken.saturating_mul(part).min(len), result)
}

/// Waits up to `longest` for the peer's last part, spinning first, then yielding.
pub fn await_peer(word: &AtomicU64, longest: Duration, is_dead: impl Fn() -> bool) -> PeerState {
    let mut state = peer_state(word);
    for _ in 0..SPINS {
        if state != PeerState::Busy {
            return state;
        }
        spin_loop();
        state = peer_state(word);
    }
    let begun = Instant::now();
    while state == PeerState::Busy {
        if is_dead() {
            return PeerState::Failed;
        }
        if begun.elapsed() > longest {
            break;
        }
        std::thread::yield_now();
        state = peer_state(word);
    }
    state
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PART: u32 = 4096;
    const LEN: u32 = 3 * PART + 100;

    fn offered() -> AtomicU64 {
        let word = AtomicU64::new(0);
        begin(&word).expect("the slot is free");
        offer(&word, LEN.div_ceil(PART));
        word
    }

    /// Carries out the requester's parts; `before` is called at each. Returns how many bytes are its, and
    /// what it copied.
    fn copy(word: &AtomicU64, mut before: impl FnMut(u32)) -> (u32, Vec<(u32, u32)>) {
        let mut copied = Vec::new();
        let (from, result) = copy_front(word, (LEN, PART), |at, len| {
            before(at / PART);
            copied.push((at, len));
            Ok::<(), ()>(())
        });
        result.unwrap();
        (from, copied)
    }

    fn whole() -> Vec<(u32, u32)> {
        vec![(0, PART), (PART, PART), (2 * PART, PART), (3 * PART, 100)]
    }

    #[test]
    fn parts_that_the_peer_takes_are_not_the_requesters() {
        let word = offered();
        assert_eq!(claim_last(&word, load(&word)), Some(3));
        end_part(&word, true);
        assert_eq!(copy(&word, |_| {}), (3 * PART, whole()[..3].to_vec()));
        assert_eq!(peer_state(&word), PeerState::Done);
    }

    #[test]
    fn a_word_that_a_peer_has_overwritten_leaves_all_parts_to_the_requester() {
        let end = |back: u64| OFFERED | back << PART_BITS;
        // More parts than the copy has, the first part again and again, no copy, and parts that are not next.
        for forged in [end(0xff), end(4), u64::MAX, 0, 1 | end(4), 3 | end(4)] {
            let word = offered();
            word.store(forged, Ordering::Relaxed);
            let from_start = |n| {
                if n == 0 {
                    word.store(forged, Ordering::Relaxed)
                }
            };
            assert_eq!(copy(&word, from_start), (LEN, whole()), "{forged:#x} from the start");
            let word = offered();
            let ever = |_| word.store(forged, Ordering::Relaxed);
            assert_eq!(copy(&word, ever), (LEN, whole()), "{forged:#x} ever again");
        }
    }

    #[test]
    fn the_slot_of_a_living_requester_is_not_given_up_for_a_dead_one() {
        let word = offered();
        let seen = load(&word);
        assert!(has_requester(seen));
        close(&word);
        begin(&word).expect("the slot is free");
        assert!(!has_requester(load(&word)), "the fields may name the one before");
        offer(&word, LEN.div_ceil(PART));
        assert!(!give_up(&word, seen) && is_used(&word));
        assert!(give_up(&word, load(&word)) && !is_used(&word));
    }
}
