//! 128-bit atomics by CMPXCHG16B, found at run time. Never a lock: other processes would not know of it.

#![allow(unsafe_code)]

#[inline]
pub(super) fn present() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Stores `new` if the word holds `old`; gives what it held. `None` without the instruction.
/// # Safety
/// `at` must be aligned to 16 bytes, mapped for writing, and accessed by atomics only.
#[inline]
pub(super) unsafe fn compare_exchange(at: *mut u128, old: u128, new: u128) -> Option<u128> {
    if !present() {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let (mut low, mut high) = (old as u64, (old >> 64) as u64);
        // By hand: `core` calls a C library unless built for such CPUs. RBX is reserved, hence the exchange.
        // SAFETY: the instruction is there (checked); the caller vouches for the word; changed registers are
        // named, RBX restored.
        unsafe {
            std::arch::asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "mov rbx, rsi",
                in("rdi") at,
                inout("rsi") new as u64 => _,
                in("rcx") (new >> 64) as u64,
                inout("rax") low,
                inout("rdx") high,
                options(nostack),
            );
        }
        Some(u128::from(high) << 64 | u128::from(low))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (at, old, new);
        None
    }
}

/// Replaces the word by `new` of what it holds; gives what it held. `None` without the instruction.
/// # Safety
/// As for [`compare_exchange`].
#[inline]
pub(super) unsafe fn update(at: *mut u128, new: impl Fn(u128) -> u128) -> Option<u128> {
    // A guess that is wrong costs a round and changes nothing.
    let mut old = 0;
    loop {
        // SAFETY: the caller's promise is the same.
        let seen = unsafe { compare_exchange(at, old, new(old)) }?;
        if seen == old {
            return Some(old);
        }
        old = seen;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[repr(align(16))]
    struct Word(u128);

    #[test]
    fn threads_lose_no_update() {
        if !present() {
            return;
        }
        let mut word = Word(u128::MAX - 5);
        let at = (&raw mut word.0).expose_provenance();
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        let at = std::ptr::with_exposed_provenance_mut(at);
                        // SAFETY: aligned by its type, alive until the threads are joined, updated by atomics
                        // only.
                        assert!(unsafe { update(at, |old| old.wrapping_add(1 << 60)) }.is_some());
                    }
                });
            }
        });
        assert_eq!(word.0, (u128::MAX - 5).wrapping_add(20_000 << 60));
    }
}
