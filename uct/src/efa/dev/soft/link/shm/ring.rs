//! The synchronisation of a receive ring, without its memory: who may write a descriptor and a payload slot, when they may be
//! read, when written again. Called by `peer.rs` (senders) and `rx.rs` (the owner); checked exhaustively by `loom.rs`.
//! Knows nothing of segments, messages or completion queues.
//!
//! A *claim* has an index that counts up and wraps at 32 bits; claim `i` has descriptor `i % ring`. A head's word holds the
//! next index in the low half, the last claimer's process id in the high, and [`CLOSED`] on top.
//!
//! | Label | Release side | Acquire side | What it carries |
//! |---|---|---|---|
//! | SYNC(credit) | [`grant`] | [`granted`] | the landing of a receive: written before the credit; and that the descriptor was read |
//! | SYNC(publish) | [`publish`] | [`is_published`] | the message: written before the sequence, read after it |
//! | SYNC(taken) | [`pass`] | [`taken`] | the payload slot: copied from before, written after |
//! | SYNC(arm) | [`arm`] and [`claim_at`], the owner's fence between | [`is_armed`] and [`stalled`] | either the owner sees the claim or the sender sees the flag |
//! | SYNC(down) | [`close`] | a sender's look at the head, and its fence | whether the device is down: said before it closes |

use ucs::sync::{AtomicU32, AtomicU64, Ordering};

/// Set in a head when its owner takes no more messages.
pub const CLOSED: u64 = 1 << 63;

/// Bits of a process id: Linux has at most 4 million.
const PID_BITS: u32 = 22;

/// A process id marked with a claim's lap around the ring, so that what an earlier lap left is not taken for it.
#[inline]
pub fn signature(pid: u32, index: u32, ring: u32) -> u32 {
    (index >> ring.trailing_zeros()) << PID_BITS | pid & ((1 << PID_BITS) - 1)
}

/// The process id in a signature, if it is one of claim `index`.
pub fn signed_pid(word: u32, index: u32, ring: u32) -> Option<u32> {
    let pid = word & ((1 << PID_BITS) - 1);
    (pid != 0 && word == signature(pid, index, ring)).then_some(pid)
}

/// Whether claim `index` is below `posted`. Wrapping: both count up for ever and are never further apart than the ring is
/// long. // HOT
#[inline(always)]
pub fn is_below(index: u32, posted: u32) -> bool {
    (index.wrapping_sub(posted) as i32) < 0
}

/// Claims below `posted` have a receive. // HOT
#[inline(always)]
pub fn grant(credit: &AtomicU32, posted: u32) {
    // SYNC(credit)
    credit.store(posted, Ordering::Release);
}

/// Receives granted so far. // HOT
#[inline(always)]
pub fn granted(credit: &AtomicU32) -> u32 {
    // SYNC(credit)
    credit.load(Ordering::Acquire)
}

/// Process `me` takes the place that `word` names, if the head still says that word; else what it says now. What was read
/// of a granted landing before this counts only if it succeeds: then nobody has touched it since. // HOT
#[inline(always)]
pub fn claim_at(head: &AtomicU64, word: u64, me: u32) -> Result<u32, u64> {
    let next = u64::from(me) << 32 | u64::from((word as u32).wrapping_add(1));
    // SYNC(arm): before our look at the flag.
    head.compare_exchange(word, next, Ordering::SeqCst, Ordering::Relaxed)?;
    Ok(word as u32)
}

/// Process `me` says of which claim a descriptor is, and whose the one before was, so that the owner can tell a slow sender
/// from a dead one. // HOT
#[inline(always)]
pub fn sign_claim(claimer: &AtomicU32, before: &AtomicU32, me: u32, word: u64, ring: u32) {
    let index = word as u32;
    claimer.store(signature(me, index, ring), Ordering::Relaxed);
    before.store(signature((word >> 32) as u32, index, ring), Ordering::Relaxed);
}

/// The process that made claim `index`, which is claimed and not published: by its own word, that of the next claim, or the
/// head if there is none. `None`: it has not said so yet.
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

/// Makes the descriptor of claim `index` the owner's. // HOT
#[inline(always)]
pub fn publish(seq: &AtomicU32, index: u32) {
    // SYNC(publish)
    seq.store(index.wrapping_add(1), Ordering::Release);
}

/// Whether claim `index` is published. // HOT
#[inline(always)]
pub fn is_published(seq: &AtomicU32, index: u32) -> bool {
    // SYNC(publish)
    seq.load(Ordering::Acquire) == index.wrapping_add(1)
}

/// The owner is done with claim `index`. // HOT
#[inline(always)]
pub fn set_taken(taken: &AtomicU32, index: u32) {
    // SYNC(taken)
    taken.store(index.wrapping_add(1), Ordering::Release);
}

/// Claims the owner is done with. // HOT
#[inline(always)]
pub fn taken(taken: &AtomicU32) -> u32 {
    // SYNC(taken)
    taken.load(Ordering::Acquire)
}

/// Whether claim `index`, with `taken` done with, has one of `slots` payload slots that are used in turn. // HOT
#[inline(always)]
pub fn has_slot(index: u32, taken: u32, slots: u32) -> bool {
    index.wrapping_sub(taken) < slots
}

/// Raises the flag that makes senders wake the owner, or takes it down. A sequentially consistent fence must follow before
/// [`stalled`]: one for all rings of a completion queue.
pub fn arm(flag: &AtomicU32, armed: bool) {
    // SYNC(arm)
    flag.store(armed.into(), Ordering::Relaxed);
}

/// Whether claims have been made that the owner, whose next is `tail`, has not taken.
pub fn has_unpublished(head: &AtomicU64, tail: u32) -> bool {
    // SYNC(arm): sees every claim whose maker did not see the flag that was raised before.
    head.load(Ordering::SeqCst) as u32 != tail
}

/// Whether the owner sleeps, or is about to. Asked by a sender after publishing. // HOT
#[inline(always)]
pub fn is_armed(flag: &AtomicU32) -> bool {
    // SYNC(arm): our claim before our look at the flag; the owner raises it before it looks for claims.
    #[cfg(loom)]
    // Loom takes SeqCst accesses for AcqRel ones; only its fences are sequentially consistent.
    ucs::sync::fence(Ordering::SeqCst);
    flag.load(Ordering::SeqCst) != 0
}

/// Takes the duty to wake the owner: true for one of the senders that saw the flag.
pub fn disarm(flag: &AtomicU32) -> bool {
    flag.swap(0, Ordering::AcqRel) != 0
}

/// No claim succeeds from now on; the head as it was.
pub fn close(head: &AtomicU64) -> u64 {
    // SYNC(down): a device that went down says so before; whoever sees a closed queue pair looks at that.
    head.fetch_or(CLOSED, Ordering::Release)
}
