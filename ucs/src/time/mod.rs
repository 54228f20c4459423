//! Time as an input: a clock is handed to whoever needs one, real in production and set by hand in tests.
//! Used by workers, devices and tools. Never read per packet on a hot path, but for [`ticks`].

mod clock;
mod ticks;

pub use clock::{Clock, Monotonic, Nanos, Virtual};
pub use ticks::ticks;
