//! The processor's time counter, for measuring loops and waits of some nanoseconds.

#![allow(unsafe_code)]

/// Time stamp counter (x86-64), virtual counter (AArch64), or monotonic nanoseconds; unit unknown. Old
/// machines disagree between processors: use `wrapping_sub` and expect huge values.
// HOT
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction; it reads a register and touches no memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: Linux lets programs read the register; nothing else is touched.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, nomem, preserves_flags))
        };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        use super::{Clock, Monotonic};
        Monotonic.now().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_advance() {
        let begun = ticks();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(ticks().wrapping_sub(begun) > 1000);
    }
}
