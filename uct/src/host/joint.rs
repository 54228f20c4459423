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
//! | SYNC(claim) | [`claim_last`] | [`begin`], after [`close`] | the fields were read |
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
    let next = |word: u64| (front(word) < back(word)).then_some(word + 1);
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
pub fn last_claimed(word: &AtomicU64) -> u32 {
    back(word.load(Ordering::Relaxed))
}

/// Whether a requester uses the slot.
pub fn is_used(word: &AtomicU64) -> bool {
    !word.load(Ordering::Relaxed).is_multiple_of(GENERATION)
}

/// Frees the slot of a copy whose parts are all taken and copied, or whose requester is dead.
pub fn close(word: &AtomicU64) {
    let used = word.load(Ordering::Relaxed);
    word.store(used & !(GENERATION - 1), Ordering::Relaxed);
}

/// Rounds of spinning for the peer's last part; then the processor is left to it.
const SPINS: u32 = 4096;

/// Carries out parts of a copy of `len` bytes, `part` in each, until none is left: `copy` gets the offset and
/// the length of each. Returns how many bytes from the front are the requester's, and its first error. After
/// an error the parts are taken all the same, so that the peer takes no more.
pub fn copy_front<E>(
    word: &AtomicU64,
    (len, part): (u32, u32),
    mut copy: impl FnMut(u32, u32) -> Result<(), E>,
) -> (u32, Result<(), E>) {
    let mut result = Ok(());
    while let Some(n) = claim_first(word) {
        result = result.and_then(|()| copy(n * part, part.min(len - n * part)));
    }
    (last_claimed(word).saturating_mul(part).min(len), result)
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
