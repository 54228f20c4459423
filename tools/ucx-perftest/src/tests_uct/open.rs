//! From names to an open interface: the one place that knows which transports there are.
//! The tests are generic over the interface, so each transport gets its own compiled loops.

use ucs::config::{Source, Table};
use uct::api::{Iface, OpenError};

use crate::fail::Failure;

/// Something to do with an interface, whatever its type.
pub trait Job {
    /// What comes of it.
    type Out;
    /// Does it.
    fn run<I: Iface>(self, iface: I) -> Result<Self::Out, Failure>;
}

const KNOWN: &str = "self, posix, efa";

/// Opens transport `tl` on device `dev` and does `job`.
pub fn with_iface<J: Job>(tl: &str, dev: &str, source: &Source, job: J) -> Result<J::Out, Failure> {
    match tl {
        uct::loopback::TL | "loopback" => {
            only(tl, dev, uct::loopback::DEV)?;
            job.run(uct::loopback::Iface::open(&uct::loopback::Config::load(source)?)?)
        }
        uct::posix::TL => {
            only(tl, dev, uct::posix::DEV)?;
            job.run(uct::posix::Iface::open(&uct::posix::Config::load(source)?)?)
        }
        _ => Err(OpenError::UnknownTransport { name: tl.into(), known: KNOWN.into() }.into()),
    }
}

fn only(tl: &str, dev: &str, known: &str) -> Result<(), OpenError> {
    if dev == known {
        return Ok(());
    }
    Err(OpenError::UnknownDevice { transport: tl.into(), name: dev.into(), known: known.into() })
}
