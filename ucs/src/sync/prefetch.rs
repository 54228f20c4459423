//! Prefetch hints and a load fence, for queues between cores. No effect but on caches; any address will do.

#![allow(unsafe_code)]

/// Starts to fetch the line at `at`, to be read.
// HOT
#[inline(always)]
pub fn prefetch_read<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: part of x86-64; a prefetch never faults and has no effect but on the caches, whatever the
    // address.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}

/// Starts to fetch the line at `at` for this core alone, to be written.
// HOT
#[inline(always)]
pub fn prefetch_write<T>(at: *mut T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: as in `prefetch_read`; 64-bit processors without PREFETCHW take it for a no-op.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}

/// Lets no later load begin before earlier ones have ended.
///
/// Between two fruitless looks at a line: else the processor speculates dozens of loads and discards them
/// when the line arrives, a third of a message's time between neighbouring cores.
// HOT
#[inline(always)]
pub fn load_fence() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: part of x86-64 (SSE2); it orders instructions and does nothing else.
    unsafe {
        core::arch::asm!("lfence", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_will_do() {
        let mut word = 7u64;
        prefetch_read(std::ptr::null::<u64>());
        prefetch_write(std::ptr::without_provenance_mut::<u64>(usize::MAX));
        prefetch_write(&raw mut word);
        prefetch_read(&raw const word);
        load_fence();
        assert_eq!(word, 7);
    }
}
