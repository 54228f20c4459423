//! Clock trait, the monotonic clock, and one for tests. Comparable between processes of one boot.

use std::cell::Cell;
use std::fmt;
use std::ops::{Add, Sub};
use std::rc::Rc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment, in nanoseconds since an origin fixed for the life of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later than any moment that comes: a deadline never reached.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// Time since `earlier`; zero if that is later.
    #[inline]
    pub const fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Nanos {
    type Output = Nanos;
    /// Saturates at [`Nanos::NEVER`].
    #[inline]
    fn add(self, d: Duration) -> Nanos {
        Nanos(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Nanos {
    type Output = Duration;
    /// Saturates at zero.
    #[inline]
    fn sub(self, earlier: Nanos) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Something that knows the time.
pub trait Clock {
    /// The current moment; never less than an earlier answer.
    fn now(&self) -> Nanos;
}

/// The system's monotonic clock (about 20 ns a reading: no system call on Linux).
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    #[inline]
    fn now(&self) -> Nanos {
        let t = clock_gettime(ClockId::Monotonic);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
}

/// A clock set by hand. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct Virtual(Rc<Cell<Nanos>>);

impl Virtual {
    /// Starts at `at`.
    pub fn new(at: Nanos) -> Virtual {
        Virtual(Rc::new(Cell::new(at)))
    }

    /// Moves on by `by`.
    pub fn advance(&self, by: Duration) {
        self.0.set(self.0.get() + by);
    }

    /// Moves on to `at`; going back is an error in the test and panics.
    pub fn set(&self, at: Nanos) {
        assert!(at >= self.0.get(), "clock set back from {} to {at}", self.0.get());
        self.0.set(at);
    }
}

impl Clock for Virtual {
    #[inline]
    fn now(&self) -> Nanos {
        self.0.get()
    }
}

impl<C: Clock + ?Sized> Clock for &C {
    #[inline]
    fn now(&self) -> Nanos {
        (**self).now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_does_not_go_back() {
        let mut last = Monotonic.now();
        for _ in 0..1000 {
            let now = Monotonic.now();
            assert!(now >= last);
            last = now;
        }
        assert!(last.0 > 0);
    }

    #[test]
    fn virtual_clock_is_set_by_hand() {
        let clock = Virtual::new(Nanos(5));
        let same = clock.clone();
        clock.advance(Duration::from_micros(1));
        assert_eq!(same.now(), Nanos(1005));
        same.set(Nanos(2000));
        assert_eq!(clock.now() - Nanos(1005), Duration::from_nanos(995));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Nanos(1) - Nanos(2), Duration::ZERO);
        assert_eq!(Nanos(1) + Duration::MAX, Nanos::NEVER);
        assert_eq!(Nanos(1_500_000_000).to_string(), "1.500000000s");
    }
}
