//! Atomic instructions on a word of mapped memory: those of `self` and `posix`, and of programs that execute
//! them on what a key maps ([`Ep::may_access`](crate::api::Ep::may_access)).

#![allow(unsafe_code)]

use super::atomic128;
use crate::api::{AtomicOp, Word};
// Words in memory that other processes map: always the machine's atomics, in models too.
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The word at `$at` as an atomic. Its users are unsafe functions that say what `$at` is.
macro_rules! on_word {
    ($Atomic:ident, $at:expr, |$word:ident| $body:expr) => {{
        // SAFETY: the caller vouches for the word.
        let $word = unsafe { $Atomic::from_ptr($at.cast()) };
        $body
    }};
}

macro_rules! apply {
    ($word:ident, $op:expr, $value:expr) => {
        match $op {
            AtomicOp::Add => $word.fetch_add($value, Ordering::AcqRel),
            AtomicOp::And => $word.fetch_and($value, Ordering::AcqRel),
            AtomicOp::Or => $word.fetch_or($value, Ordering::AcqRel),
            AtomicOp::Xor => $word.fetch_xor($value, Ordering::AcqRel),
            AtomicOp::Swap => $word.swap($value, Ordering::AcqRel),
        }
    };
}

/// Applies `op` with `value` to the word at `at`; returns the old value. `None`: this processor has no such
/// instruction, which is possible for words of 16 bytes only.
/// # Safety
/// `at` is aligned and mapped for writing, and accessed by atomics only.
// HOT
#[inline(always)]
pub unsafe fn fetch<W: Word>(at: *mut W, op: AtomicOp, value: W) -> Option<W> {
    let narrow = value.to_u64();
    Some(W::from_u64(match W::BYTES {
        1 => on_word!(AtomicU8, at, |word| u64::from(apply!(word, op, narrow as u8))),
        2 => on_word!(AtomicU16, at, |word| u64::from(apply!(word, op, narrow as u16))),
        4 => on_word!(AtomicU32, at, |word| u64::from(apply!(word, op, narrow as u32))),
        8 => on_word!(AtomicU64, at, |word| apply!(word, op, narrow)),
        // SAFETY: the caller's promise is the same.
        _ => return unsafe { fetch_128(at, op, value) },
    }))
}

/// # Safety
/// As for [`fetch`].
unsafe fn fetch_128<W: Word>(at: *mut W, op: AtomicOp, value: W) -> Option<W> {
    let value = value.to_u128();
    let new = |old: u128| match op {
        AtomicOp::Add => old.wrapping_add(value),
        AtomicOp::And => old & value,
        AtomicOp::Or => old | value,
        AtomicOp::Xor => old ^ value,
        AtomicOp::Swap => value,
    };
    // SAFETY: the caller's promise is the same.
    unsafe { atomic128::update(at.cast(), new) }.map(W::from_u128)
}

/// Stores `swap` in the word at `at` if it holds `compare`; returns what it held. `None`: as for
/// [`fetch`].
/// # Safety
/// As for [`fetch`].
// HOT
#[inline(always)]
pub unsafe fn cswap<W: Word>(at: *mut W, compare: W, swap: W) -> Option<W> {
    let (old, new) = (compare.to_u64(), swap.to_u64());
    let (won, lost) = (Ordering::AcqRel, Ordering::Acquire);
    let seen = match W::BYTES {
        1 => on_word!(AtomicU8, at, |word| {
            u64::from(word.compare_exchange(old as u8, new as u8, won, lost).unwrap_or_else(|seen| seen))
        }),
        2 => on_word!(AtomicU16, at, |word| {
            u64::from(word.compare_exchange(old as u16, new as u16, won, lost).unwrap_or_else(|seen| seen))
        }),
        4 => on_word!(AtomicU32, at, |word| {
            u64::from(word.compare_exchange(old as u32, new as u32, won, lost).unwrap_or_else(|seen| seen))
        }),
        8 => on_word!(AtomicU64, at, |word| {
            word.compare_exchange(old, new, won, lost).unwrap_or_else(|seen| seen)
        }),
        _ => {
            // SAFETY: the caller's promise is the same.
            let seen = unsafe { atomic128::compare_exchange(at.cast(), compare.to_u128(), swap.to_u128()) };
            return seen.map(W::from_u128);
        }
    };
    Some(W::from_u64(seen))
}
