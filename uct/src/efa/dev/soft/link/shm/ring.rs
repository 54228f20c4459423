//! Synchronisation of a receive ring, without its memory: who may write a descriptor and a payload slot, and
//! when they may be read and reused. Used by `remote_qp` (senders) and `recv_queue` (owner); modelled in
//! `loom`.
//!
//! A *claim* has an index that wraps at 32 bits; claim `i` has descriptor `i % ring`. The head word holds the
//! next index in the low half, the last claimer's pid in the high half, and [`CLOSED`] on top.
//!
//! | Label | Release side | Acquire side | Carries |
//! |---|---|---|---|
//! | SYNC(credit) | [`grant`] | [`granted`] | the receive WQE; the descriptor was read |
//! | SYNC(publish) | [`publish`] | [`is_published`] | the message |
//! | SYNC(taken) | [`set_taken`] | [`taken`] | the payload slot was copied from |
//! | SYNC(arm) | [`arm`], fence, [`claim_at`] | [`armed`], [`has_unpublished`] | claim or flag seen |
//! | SYNC(down) | [`close`] | a sender's load of the head, and its fence | whether the device is down |
//! | SYNC(mark) | a sender's mark, load of the head | [`close`], a look at the marks | see `mark` |

use ucs::sync::{AtomicU32, AtomicU64, Ordering};

/// Set in a head once its owner takes no more messages.
pub const CLOSED: u64 = 1 << 63;

/// Width of a process id: Linux has at most 4 million.
const PID_BITS: u32 = 22;

/// A process id marked with the claim's lap, which distinguishes it from earlier laps.
#[inline]
pub fn signature(pid: u32, index: u32, ring: u32) -> u32 {
    (index >> ring.trailing_zeros()) << PID_BITS | pid & ((1 << PID_BITS) - 1)
}

/// Process id of a signature, if it is one of claim `index`.
pub fn signed_pid(word: u32, index: u32, ring: u32) -> Option<u32> {
    let pid = word & ((1 << PID_BITS) - 1);
    (pid != 0 && word == signature(pid, index, ring)).then_some(pid)
}

/// Whether `index` is below `posted`, which may have been read long ago: the head may be any number of claims
/// past it. Both wrap; receives that are posted lie within the length of the ring.
// HOT
#[inline(always)]
pub fn is_below(index: u32, posted: u32, ring: u32) -> bool {
    posted.wrapping_sub(index).wrapping_sub(1) < ring
}

/// Whether `index`, read from the head, may be claimed by a `posted` that was read since. True as well if
/// other claims have come between, for which `posted` may be too far ahead: then [`claim_at`] fails.
// HOT
#[inline(always)]
pub fn may_claim(head: &AtomicU64, index: u32, posted: u32, ring: u32) -> bool {
    is_below(index, posted, ring) || head.load(Ordering::Relaxed) as u32 != index
}

/// Grants receives to claims below `posted`.
// HOT
#[inline(always)]
pub fn grant(credit: &AtomicU32, posted: u32) {
    // SYNC(credit)
    credit.store(posted, Ordering::Release);
}

// HOT
#[inline(always)]
pub fn granted(credit: &AtomicU32) -> u32 {
    // SYNC(credit)
    credit.load(Ordering::Acquire)
}

/// Claims the entry `word` names, if the head is still `word`; else returns the head. Validates the WQE read.
// HOT
#[inline(always)]
pub fn claim_at(head: &AtomicU64, word: u64, me: u32) -> Result<u32, u64> {
    let next = u64::from(me) << 32 | u64::from((word as u32).wrapping_add(1));
    // SYNC(arm): the claim precedes the load of the flag.
    head.compare_exchange(word, next, Ordering::SeqCst, Ordering::Relaxed)?;
    Ok(word as u32)
}

/// Records who made this claim and the one before, to tell a slow sender from a dead one.
// HOT
#[inline(always)]
pub fn sign_claim(claimer: &AtomicU32, before: &AtomicU32, me: u32, word: u64, ring: u32) {
    let index = word as u32;
    claimer.store(signature(me, index, ring), Ordering::Relaxed);
    before.store(signature((word >> 32) as u32, index, ring), Ordering::Relaxed);
}

/// Process of claim `index`, not published yet, from signatures or the head. `None`: not signed yet.
pub fn claimer(
    head: &AtomicU64,
    index: u32,
    ring: u32,
    claimer: &AtomicU32,
    before_next: &AtomicU32,
) -> Option<u32> {
    let word = head.load(Ordering::Acquire);
    let next = index.wrapping_add(1);
    let last = (word as u32 == next).then_some(((word & !CLOSED) >> 32) as u32);
    signed_pid(claimer.load(Ordering::Relaxed), index, ring)
        .or(last)
        .or_else(|| signed_pid(before_next.load(Ordering::Relaxed), next, ring))
}

// HOT
#[inline(always)]
pub fn publish(seq: &AtomicU32, index: u32) {
    // SYNC(publish)
    seq.store(index.wrapping_add(1), Ordering::Release);
}

// HOT
#[inline(always)]
pub fn is_published(seq: &AtomicU32, index: u32) -> bool {
    // SYNC(publish)
    seq.load(Ordering::Acquire) == index.wrapping_add(1)
}

/// Marks claim `index` as taken by the owner.
// HOT
#[inline(always)]
pub fn set_taken(taken: &AtomicU32, index: u32) {
    // SYNC(taken)
    taken.store(index.wrapping_add(1), Ordering::Release);
}

/// Claims taken by the owner.
// HOT
#[inline(always)]
pub fn taken(taken: &AtomicU32) -> u32 {
    // SYNC(taken)
    taken.load(Ordering::Acquire)
}

/// Whether claim `index` has one of `slots` recycled payload slots, with `taken` claims taken.
// HOT
#[inline(always)]
pub fn has_slot(index: u32, taken: u32, slots: u32) -> bool {
    index.wrapping_sub(taken) < slots
}

/// Set in the flag of an owner that is armed.
const ARMED: u32 = 1;

/// Sets or clears the flag that makes senders wake the owner, which has another value at each arming. A
/// SeqCst fence must follow before [`has_unpublished`], one for all rings of a completion queue.
pub fn arm(flag: &AtomicU32, armed: bool) {
    // SYNC(arm). Release: the signal of a sender that sees it comes after the owner has cleared earlier ones.
    if armed {
        let next = (flag.load(Ordering::Relaxed) | ARMED).wrapping_add(ARMED + 1);
        flag.swap(next, Ordering::AcqRel);
    } else {
        flag.fetch_and(!ARMED, Ordering::AcqRel);
    }
}

/// Whether there are claims that the owner, at `tail`, has not taken.
pub fn has_unpublished(head: &AtomicU64, tail: u32) -> bool {
    // SYNC(arm): sees every claim whose maker did not see the flag set before.
    head.load(Ordering::SeqCst) as u32 != tail
}

/// The flag if the owner sleeps or is about to; checked by senders after publishing.
// HOT
#[inline(always)]
pub fn armed(flag: &AtomicU32) -> Option<u32> {
    // SYNC(arm): the claim precedes this load; the owner sets the flag before it looks for claims.
    #[cfg(loom)]
    // Loom treats SeqCst accesses as AcqRel; only its fences are sequentially consistent.
    ucs::sync::fence(Ordering::SeqCst);
    let seen = flag.load(Ordering::SeqCst);
    (seen & ARMED != 0).then_some(seen)
}

/// Wakes the owner by `signal`, for a sender that saw its flag as `seen`. Only then is the flag cleared, so
/// that another sender wakes the owner if this one stops before that; and one that has armed again stays
/// armed. `signal` returns false if it could not wake the owner.
pub fn wake(flag: &AtomicU32, seen: u32, signal: impl FnOnce() -> bool) {
    if signal() {
        let _ = flag.compare_exchange(seen, seen & !ARMED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Closes the ring to claims; returns the head before.
pub fn close(head: &AtomicU64) -> u64 {
    // SYNC(down): a device goes down before it closes; a sender that sees a closed queue pair checks that.
    // SYNC(mark): who has claimed before has marked its copy.
    head.fetch_or(CLOSED, Ordering::AcqRel)
}
