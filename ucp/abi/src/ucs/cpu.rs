//! Processors and time.

use std::ffi::{c_int, c_long};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ::ucs::time::ticks;

use super::global::Global;

/// `UCS_NO`, `UCS_YES` and `UCS_TRY`.
const NO: c_int = 0;
const YES: c_int = 1;
const TRY: c_int = 2;

/// Whether programs read the processor's time counter themselves: not known before the first question.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_arch_x86_enable_rdtsc: Global<c_int> = Global::new(TRY);

/// Whether the counter has the same rate at all times and on all processors.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

/// The counter of AArch64 is, by definition.
#[cfg(not(target_arch = "x86_64"))]
fn is_invariant() -> bool {
    true
}

/// A time, and the counter at that time: the closest of some tries, as the thread may lose its processor
/// between the two.
fn sample() -> (Instant, u64) {
    let read = || {
        let (before, counter) = (Instant::now(), ticks());
        (before.elapsed(), (before, counter))
    };
    let closest = (0..16).map(|_| read()).min_by_key(|(gap, _)| *gap);
    closest.map_or_else(|| (Instant::now(), ticks()), |(_, pair)| pair)
}

/// Counts of the time counter a second: measured once, over 10 ms.
pub(super) fn ticks_per_second() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (begun, first) = sample();
        std::thread::sleep(Duration::from_millis(10));
        let (ended, last) = sample();
        last.wrapping_sub(first) as f64 / (ended - begun).as_secs_f64()
    })
}

/// Finds out whether programs may read the time counter.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_x86_init_tsc_freq() {
    let state = if is_invariant() { YES } else { NO };
    // SAFETY: the address is that of the data, which lives as long as the process.
    unsafe { ucs_arch_x86_enable_rdtsc.get().write_volatile(state) };
}

/// Units a second of the clock that programs read: the time counter, or microseconds.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_get_cpu_clocks_per_sec() -> f64 {
    if is_invariant() { ticks_per_second() } else { 1e6 }
}

/// Bytes of a page.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_get_page_size() -> usize {
    ::ucs::mem::page::page_size()
}

/// Processors of the machine, also those that do not run. Negative: unknown.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_sys_get_num_cpus() -> c_long {
    // SAFETY: the call takes no memory.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }
}

/// Stores the processors that the calling thread may use. Negative: `errno` says why not.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucs_sys_getaffinity(set: *mut libc::cpu_set_t) -> c_int {
    // SAFETY: the caller passes a set, or null, which the system refuses.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set) }
}

/// Sets the processors that the calling thread may use. Negative: `errno` says why not.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucs_sys_setaffinity(set: *const libc::cpu_set_t) -> c_int {
    // SAFETY: the caller passes a set, or null, which the system refuses.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_programs_has_its_rate() {
        ucs_x86_init_tsc_freq();
        // SAFETY: the data lives as long as the process.
        let state = unsafe { ucs_arch_x86_enable_rdtsc.get().read_volatile() };
        assert!([NO, YES].contains(&state));
        let rate = ucs_get_cpu_clocks_per_sec();
        let (begun, first) = sample();
        std::thread::sleep(Duration::from_millis(30));
        let (ended, last) = sample();
        let (counted, passed) = (last.wrapping_sub(first) as f64 / rate, (ended - begun).as_secs_f64());
        if state == YES {
            assert!((counted / passed - 1.0).abs() < 0.01, "{counted} s counted, {passed} s passed");
        }
    }
}
