//! The cheapest clock there is, read once an iteration by the measuring loops: the time stamp counter on x86-64,
//! the monotonic clock elsewhere. Used by [`crate::meter`]. Says nothing of seconds: the meter compares it with
//! the monotonic clock over the whole run, so no calibration is needed.

/// The counter now. Its unit is the machine's own.
#[inline(always)]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction; it reads a register and touches no memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use ucs::time::{Clock, Monotonic};
        Monotonic.now().0
    }
}
