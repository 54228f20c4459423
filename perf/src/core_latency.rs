//! Core-to-core latency: the time of one cache line from a core to another and back. Low between cores with
//! the same L3 cache, high otherwise. Measured by `versus` around every run, as a hypervisor moves virtual
//! processors.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Instant;

use rustix::io::Errno;

use crate::second_process::pin_to;

const ROUND_TRIPS: u32 = 250;
/// The least reading counts: an interrupt lengthens one.
const READINGS: u32 = 5;

/// A cache line of its own.
#[repr(align(128))]
struct CacheLine(AtomicU32);

impl CacheLine {
    fn wait_for(&self, turn: u32) {
        while self.0.load(Acquire) != turn {
            std::hint::spin_loop();
        }
    }

    fn respond(&self) {
        for turn in 0..ROUND_TRIPS * READINGS {
            self.wait_for(2 * turn + 1);
            self.0.store(2 * turn + 2, Release);
        }
    }

    fn measure(&self) -> f64 {
        let reading = |n: u32| {
            let start = Instant::now();
            for turn in n * ROUND_TRIPS..(n + 1) * ROUND_TRIPS {
                self.0.store(2 * turn + 1, Release);
                self.wait_for(2 * turn + 2);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS)
        };
        (0..READINGS).map(reading).fold(f64::INFINITY, f64::min)
    }
}

/// Nanoseconds from one core to the other and back. Takes less than a millisecond.
pub fn round_trip_ns(cores: (u32, u32)) -> Result<f64, Errno> {
    let line = CacheLine(AtomicU32::new(0));
    std::thread::scope(|scope| {
        // Both threads finish even if pinning fails, so that neither waits for ever.
        let other = scope.spawn(|| {
            let pinned = pin_to(cores.1 as usize);
            line.respond();
            pinned
        });
        let this = scope.spawn(|| {
            let pinned = pin_to(cores.0 as usize);
            let took = line.measure();
            pinned.map(|()| took)
        });
        let pinned = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let took = this.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        pinned.and(took)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_plausible_and_missing_core_is_an_error() {
        let set = rustix::thread::sched_getaffinity(None).unwrap();
        let mine: Vec<u32> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|&n| set.is_set(n)).map(|n| n as u32).collect();
        if let [a, b, ..] = mine[..] {
            let ns = round_trip_ns((a, b)).unwrap();
            assert!((1.0..1e8).contains(&ns), "{ns} ns");
            assert_eq!(round_trip_ns((a, rustix::thread::CpuSet::MAX_CPU as u32 - 1)), Err(Errno::INVAL));
        }
    }
}
