//! The cheapest clock there is: a counter of the processor, read where even the monotonic clock would take
//! too long. Used by loops that measure and by waits of some nanoseconds.

#![allow(unsafe_code)]

/// The counter now: the time stamp counter on x86-64, the virtual counter on AArch64, nanoseconds of the
/// monotonic clock elsewhere. Its unit is the machine's own: compare it with the monotonic clock over a
/// longer time. Two processors may disagree where the machine is old: who subtracts does so with
/// `wrapping_sub`, and lives with an answer that is far too large. // HOT
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
    fn go_on() {
        let begun = ticks();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(ticks().wrapping_sub(begun) > 1000);
    }
}
