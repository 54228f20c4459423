//! Time as an input: a clock is passed in. Never read per packet on a hot path, but for [`ticks`].

mod clock;
mod ticks;

pub use clock::{Clock, Monotonic, Nanos, Virtual};
pub use ticks::ticks;
