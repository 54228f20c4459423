//! Opens an interface by name. Tests are generic over it, so each transport has compiled loops of its own.

use ucs::config::Source;
use uct::api::Iface;
use uct::wrap::{Locked, ThreadMode};

use crate::fail::Failure;
use crate::spec::Level;

/// Code that runs with an interface of any type.
pub trait Job {
    type Out;
    fn run<I: Iface>(self, iface: I) -> Result<Self::Out, Failure>;
}

/// The transport and its device by our names: `srd`, as UCX calls it, is `efa`, and UCX names a device with
/// its port. Without a device asked for, the only one of the transport.
pub fn resolve<'a>(tl: &'a str, asked: Option<&str>, source: &Source) -> Result<(&'a str, String), Failure> {
    let tl = if tl == "srd" { "efa" } else { tl };
    let mut devices: Vec<String> =
        uct::any::resources(source)?.into_iter().filter(|r| r.tl == tl).map(|r| r.dev).collect();
    if let Some(dev) = asked {
        let without_port = dev.strip_suffix(":1").filter(|plain| devices.iter().any(|d| d == plain));
        return Ok((tl, without_port.unwrap_or(dev).to_owned()));
    }
    if devices.len() > 1 {
        return Err(Failure::Usage(format!(
            "-d: which device of '{tl}'? (there are: {})",
            devices.join(", ")
        )));
    }
    // Without a device, opening reports the transports there are.
    Ok((tl, devices.pop().unwrap_or_default()))
}

/// Runs `job` on an interface; for several threads a type-erased one, to compile these loops once.
pub fn with_iface<J: Job>(
    tl: &str,
    dev: &str,
    level: Level,
    source: &Source,
    job: J,
) -> Result<J::Out, Failure> {
    struct Run<J>(J);
    impl<J: Job> uct::any::Visit for Run<J> {
        type Out = Result<J::Out, Failure>;
        fn visit<I: Iface>(self, iface: I) -> Self::Out {
            self.0.run(iface)
        }
    }
    let iface = uct::any::open(tl, dev, source)?;
    match level {
        Level::Single => iface.visit(Run(job)),
        Level::Serialized => job.run(Locked::new(iface, ThreadMode::Serialized)),
        Level::Multi => job.run(Locked::new(iface, ThreadMode::Multi)),
    }
}
