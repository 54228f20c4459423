//! The synchronisation of the receive FIFO, without its memory: who may write a cell, when it may be read,
//! when it may be written again. Called by `link.rs` (writers) and `rx.rs` (the reader); checked exhaustively
//! by `loom.rs`.
//!
//! A *ticket* numbers messages from 0 and never wraps in practice (64 bits). Ticket `t` lives in cell `t %
//! cells`.
//!
//! | Label | Release side | Acquire side | What it carries |
//! |---|---|---|---|
//! | SYNC(publish) | [`publish`] | [`peek`] | the packet: written before its word, read after it |
//! | SYNC(tail) | [`release`] | [`claim`] | the free cell: read before the tail moves, written after |
//! | SYNC(head) | [`claim`] | [`stuck`] | the writer's intent: stored before the head moves |
//! | SYNC(intent) | [`claim`] | [`names`] | the packet before: published before the intent changes |
//! | SYNC(arm) | [`arm`], [`claim`] | [`flags`], [`arm`] | SeqCst: one side sees the other |

use std::cell::Cell;
use ucs::sync::{AtomicU32, AtomicU64, Ordering};

pub const NO_TICKET: u64 = u64::MAX;

/// The reader sleeps or is about to: wake it.
pub const ARMED: u32 = 1;
#[cfg_attr(loom, expect(dead_code, reason = "no model closes"))]
pub const CLOSED: u32 = 2;
/// Closed, as the reader has found a word that no writer writes.
#[cfg_attr(loom, expect(dead_code, reason = "no model corrupts"))]
pub const CORRUPT: u32 = 4;
/// The flags of a state. Above them is the number of times that the reader has armed.
pub const FLAGS: u32 = 7;
const ARMING: u32 = FLAGS + 1;

/// The low half of a cell's word while it holds ticket `t`: never 0 at first use, different in each lap.
#[inline(always)]
const fn seq(ticket: u64) -> u32 {
    (ticket as u32).wrapping_add(1)
}

/// Takes the next ticket; `None` if all `cells` are taken. `cached_tail` is the writer's copy of the tail:
/// the shared one is read only when the copy says full. `intent` names this writer's ticket in case it dies:
/// at any time, the holder of an unpublished ticket has it as its intent.
pub fn claim(
    head: &AtomicU64,
    tail: &AtomicU64,
    cached_tail: &Cell<u64>,
    cells: u64,
    intent: &AtomicU64,
) -> Option<u64> {
    let mut at = head.load(Ordering::Relaxed);
    loop {
        if at.wrapping_sub(cached_tail.get()) >= cells {
            // SYNC(tail)
            cached_tail.set(tail.load(Ordering::Acquire));
            if at.wrapping_sub(cached_tail.get()) >= cells {
                // Full, unless other writers moved the head and the reader followed meanwhile.
                let now = head.load(Ordering::Relaxed);
                if now == at {
                    // The intent of a lost race must not outlive the attempt.
                    intent.store(NO_TICKET, Ordering::Release);
                    return None;
                }
                at = now;
                continue;
            }
        }
        match claim_at(head, at, intent) {
            Ok(()) => return Some(at),
            Err(now) => at = now,
        }
    }
}

/// Takes the ticket `at`, which the writer knows to be free, if it is the next one; otherwise returns the
/// head.
///
/// A loser's intent is not its own ticket: [`claim`] has to follow.
// HOT
#[inline(always)]
pub fn claim_at(head: &AtomicU64, at: u64, intent: &AtomicU64) -> Result<(), u64> {
    // SYNC(intent)
    intent.store(at, Ordering::Release);
    // SYNC(head), SYNC(arm). Wrapping: only a forged head is that high.
    let taken = head.compare_exchange_weak(at, at.wrapping_add(1), Ordering::SeqCst, Ordering::Relaxed);
    taken.map(drop)
}

/// Makes the packet of a claimed ticket readable; `meta` is the upper half of the word.
// HOT
#[inline(always)]
pub fn publish(word: &AtomicU64, ticket: u64, meta: u32) {
    // SYNC(publish)
    word.store(u64::from(meta) << 32 | u64::from(seq(ticket)), Ordering::Release);
}

/// The upper half of the word, if the cell holds the packet of `ticket`.
// HOT
#[inline(always)]
pub fn peek(word: &AtomicU64, ticket: u64) -> Option<u32> {
    // SYNC(publish)
    let word = word.load(Ordering::Acquire);
    if word as u32 == seq(ticket) { Some((word >> 32) as u32) } else { None }
}

/// Frees all cells below `ticket` for writers.
// HOT
#[inline(always)]
pub fn release(tail: &AtomicU64, ticket: u64) {
    // SYNC(tail)
    tail.store(ticket, Ordering::Release);
}

/// Whether `ticket` is claimed. The caller has just peeked that it is not published.
pub fn stuck(head: &AtomicU64, ticket: u64) -> bool {
    // SYNC(head)
    let ahead = head.load(Ordering::SeqCst).wrapping_sub(ticket);
    ahead != 0 && ahead < 1 << 63
}

/// Whether reader and writers can have moved head and tail to where they are: between them are the claimed
/// cells. The head is read before and after the tail, as both move.
#[cfg_attr(loom, expect(dead_code, reason = "no model corrupts"))]
pub fn is_possible(head: &AtomicU64, tail: &AtomicU64, cells: u64) -> bool {
    let before = head.load(Ordering::SeqCst);
    let tail = tail.load(Ordering::SeqCst);
    let after = head.load(Ordering::SeqCst);
    before.wrapping_sub(tail) as i64 <= cells as i64 && after.wrapping_sub(tail) as i64 >= 0
}

pub fn names(intent: &AtomicU64, ticket: u64) -> bool {
    // SYNC(intent)
    intent.load(Ordering::Acquire) == ticket
}

/// The reader's flags, checked by a writer after publishing.
// HOT
#[inline(always)]
pub fn flags(state: &AtomicU32) -> u32 {
    // SYNC(arm): follows the SeqCst exchange of `claim` in program order.
    model_fence();
    state.load(Ordering::SeqCst)
}

/// Wakes the reader by `signal`, for a writer that saw it armed in `flags`. Only then is it disarmed, so that
/// another writer wakes it if this one stops before that; and a reader that has armed again stays armed.
/// `signal` returns false if it could not wake the reader.
pub fn wake(state: &AtomicU32, flags: u32, signal: impl FnOnce() -> bool) {
    if signal() {
        let _ = state.compare_exchange(flags, flags & !ARMED, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Raises the flag that makes writers wake the reader. False if its next, `ticket`, is claimed: poll.
pub fn arm(state: &AtomicU32, head: &AtomicU64, ticket: u64) -> bool {
    // SYNC(arm): store, then load, both SeqCst; a writer exchanges the head, then loads. One sees the other.
    let armed = |before: u32| Some((before | ARMED).wrapping_add(ARMING));
    let _ = state.fetch_update(Ordering::SeqCst, Ordering::Relaxed, armed);
    model_fence();
    if head.load(Ordering::SeqCst) == ticket {
        return true;
    }
    state.fetch_and(!ARMED, Ordering::SeqCst);
    false
}

/// A fence for models: loom treats SeqCst accesses as AcqRel, only its fences are stronger.
#[inline(always)]
fn model_fence() {
    #[cfg(loom)]
    ucs::sync::fence(Ordering::SeqCst);
}
