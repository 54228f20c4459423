//! What this machine was measured to cost, in place of what transports say of themselves. Asked for by `UCX_CALIBRATE`; made or
//! read when a context is, used when tables of protocols are. Never consulted by an operation.

mod cache;
mod measure;

use uct::api::{DevKind, IfaceAttr, OpenError, TlResource};

use crate::select::{Costs, Line};

use crate::api::context::config::Config;

pub use cache::{CacheError, Key};

/// Measured costs: of the processors, and of devices.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Calibration {
    /// A copy within the cache, ns per byte.
    pub copy: f64,
    /// A copy of what no cache holds, ns per byte.
    pub copy_far: f64,
    /// From one processor to another: a word, ns, and fetching what the other has written, ns per byte. `None`: this process
    /// has one processor only, or they were too busy.
    pub across: Option<Line>,
    /// Of each transport that works through a device or the kernel.
    pub devices: Vec<DeviceCosts>,
}

/// Whether a device is made of this host's processors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceType {
    /// Hardware, with a wire of its own.
    Hardware,
    /// Software: what it carries, processors carry.
    Software,
}

/// Measured costs of a transport on a device; `None` where it has no such operation, or it did not work.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceCosts {
    /// Transport.
    pub tl: String,
    /// Device.
    pub dev: String,
    /// What it is made of.
    pub device_type: DeviceType,
    /// Work of a processor for a message, at either end, ns.
    pub overhead: Option<f64>,
    /// Registration, and its end.
    pub register: Option<Line>,
    /// Put to memory of its own, and to other memory.
    pub put: [Option<Line>; 2],
    /// Get from memory of its own, and from other memory.
    pub get: [Option<Line>; 2],
}

impl Calibration {
    /// Measures, with what is there on this machine and `found` names. Takes some tens of ms; more where processors are busy.
    pub fn measure<'a>(found: impl IntoIterator<Item = &'a TlResource>) -> Calibration {
        measure::all(found)
    }

    /// Reads what an earlier process has measured.
    pub fn load(config: &Config) -> Result<Calibration, CacheError> {
        cache::load(&cache::file(config)?, &Key::here())
    }

    /// Keeps it for later processes; answers where.
    pub fn save(&self, config: &Config) -> Result<std::path::PathBuf, CacheError> {
        let file = cache::file(config)?;
        cache::save(&file, &Key::here(), self).map(|()| file)
    }

    /// An interface's costs with what was measured in their place.
    pub fn correct(&self, attr: &IfaceAttr, costs: Costs) -> Costs {
        let mut costs = Costs { copy: self.copy, copy_far: self.copy_far, ..costs };
        if let (DevKind::Shm, Some(across)) = (attr.kind, self.across) {
            (costs.latency, costs.wire) = (across.fixed, across.per_byte);
        }
        let of_tl = || self.devices.iter().filter(|d| d.tl == attr.tl);
        // NICs of one kind cost the same.
        let Some(device) = of_tl().find(|d| d.dev == attr.dev).or_else(|| of_tl().next()) else {
            return costs;
        };
        if let (DeviceType::Software, Some(across)) = (device.device_type, self.across) {
            (costs.latency, costs.wire) = (across.fixed, across.per_byte);
        }
        costs.overhead = device.overhead.unwrap_or(costs.overhead);
        costs.register = device.register.unwrap_or(costs.register);
        for place in 0..2 {
            costs.put[place] = device.put[place].unwrap_or(costs.put[place]);
            costs.get[place] = device.get[place].unwrap_or(costs.get[place]);
        }
        costs
    }

    /// Whether it has what these resources need.
    fn covers<'a>(&self, found: impl IntoIterator<Item = &'a TlResource>) -> bool {
        found.into_iter().filter(|r| measure::is_wanted(r)).all(|r| self.devices.iter().any(|d| d.tl == r.tl))
    }
}

/// What a context uses: from the cache if it is good, else measured, and kept.
pub(crate) fn of<'a>(
    config: &Config,
    found: impl Iterator<Item = &'a TlResource> + Clone,
) -> Result<Option<Calibration>, OpenError> {
    if !config.calibrate {
        return Ok(None);
    }
    match Calibration::load(config) {
        Ok(kept) if kept.covers(found.clone()) => return Ok(Some(kept)),
        Ok(_) | Err(CacheError::None(_)) => {}
        Err(CacheError::NoPlace) => return Err(OpenError::Config(CacheError::NoPlace.to_string())),
        Err(why) => tracing::warn!("measured costs are measured again: {why}"),
    }
    let measured = Calibration::measure(found);
    if let Err(why) = measured.save(config) {
        tracing::warn!("measured costs are not kept: {why}");
    }
    Ok(Some(measured))
}

#[cfg(test)]
mod tests;
