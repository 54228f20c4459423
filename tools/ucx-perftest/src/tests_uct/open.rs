//! From names to an open interface: the one place that knows a transport's type.
//! The tests are generic over the interface, so each transport gets its own compiled loops.

use ucs::config::Source;
use uct::any::Iface as Any;
use uct::api::Iface;

use crate::fail::Failure;

/// Something to do with an interface, whatever its type.
pub trait Job {
    /// What comes of it.
    type Out;
    /// Does it.
    fn run<I: Iface>(self, iface: I) -> Result<Self::Out, Failure>;
}

/// Opens transport `tl` on device `dev` and does `job`.
pub fn with_iface<J: Job>(tl: &str, dev: &str, source: &Source, job: J) -> Result<J::Out, Failure> {
    match uct::any::open(tl, dev, source)? {
        Any::Loopback(iface, _) => job.run(iface),
        Any::Posix(iface, _) => job.run(iface),
        other => job.run(other),
    }
}
