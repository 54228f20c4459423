//! Calibration: measured costs, by `UCX_CALIBRATE`, in place of the transports' own estimates.

mod cache;
mod measure;

use uct::api::{DevKind, IfaceAttr, OpenError, TlResource};

use crate::select::{Costs, Line};

use crate::api::context::config::Config;

pub use cache::{CacheError, Key};

/// Measured costs of processors and devices.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Calibration {
    /// Copy within the cache, ns per byte.
    pub copy: f64,
    /// Copy of uncached memory, ns per byte.
    pub copy_uncached: f64,
    /// Between processors: ns per word, and ns per fetched byte. `None` with a single or busy processor.
    pub core_to_core: Option<Line>,
    /// Transports that use a device or the kernel.
    pub devices: Vec<DeviceCosts>,
}

/// Implementation of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceType {
    /// Hardware, with a wire of its own.
    Hardware,
    /// Software on the host's processors.
    Software,
}

/// Measured costs of a transport on a device; `None` for missing or failing operations.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceCosts {
    /// Transport.
    pub tl: String,
    /// Device.
    pub dev: String,
    /// Implementation of the device.
    pub device_type: DeviceType,
    /// Processor time per message at either end, ns.
    pub overhead: Option<f64>,
    /// Registration and deregistration, ns.
    pub register: Option<Line>,
    /// Put to memory allocated by the device, and to registered memory, ns.
    pub put: [Option<Line>; 2],
    /// Get from memory allocated by the device, and from registered memory, ns.
    pub get: [Option<Line>; 2],
}

impl Calibration {
    /// Measures this machine and the devices in `found`. Takes some tens of ms, more on busy processors.
    pub fn measure<'a>(found: impl IntoIterator<Item = &'a TlResource>) -> Calibration {
        measure::all(found)
    }

    /// Loads the costs measured by an earlier process.
    pub fn load(config: &Config) -> Result<Calibration, CacheError> {
        cache::load(&cache::file(config)?, &Key::here())
    }

    /// Saves the costs for later processes. Returns the path.
    pub fn save(&self, config: &Config) -> Result<std::path::PathBuf, CacheError> {
        let file = cache::file(config)?;
        cache::save(&file, &Key::here(), self).map(|()| file)
    }

    /// Replaces the costs of an interface by measured ones.
    pub fn correct(&self, attr: &IfaceAttr, costs: Costs) -> Costs {
        let mut costs = Costs { copy: self.copy, copy_uncached: self.copy_uncached, ..costs };
        if let (DevKind::Shm, Some(core_to_core)) = (attr.kind, self.core_to_core) {
            (costs.latency, costs.wire) = (core_to_core.fixed, core_to_core.per_byte);
        }
        let of_tl = || self.devices.iter().filter(|d| d.tl == attr.tl);
        let Some(device) = of_tl().find(|d| d.dev == attr.dev).or_else(|| of_tl().next()) else {
            return costs;
        };
        if let (DeviceType::Software, Some(core_to_core)) = (device.device_type, self.core_to_core) {
            (costs.latency, costs.wire) = (core_to_core.fixed, core_to_core.per_byte);
        }
        costs.overhead = device.overhead.unwrap_or(costs.overhead);
        costs.register = device.register.unwrap_or(costs.register);
        for memory in 0..2 {
            costs.put[memory] = device.put[memory].unwrap_or(costs.put[memory]);
            costs.get[memory] = device.get[memory].unwrap_or(costs.get[memory]);
        }
        costs
    }

    fn covers<'a>(&self, found: impl IntoIterator<Item = &'a TlResource>) -> bool {
        found.into_iter().filter(|r| measure::is_wanted(r)).all(|r| self.devices.iter().any(|d| d.tl == r.tl))
    }
}

pub(crate) fn load_or_measure<'a>(
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
        Err(why) => tracing::warn!("costs are measured again, the kept ones cannot be used: {why}"),
    }
    let measured = Calibration::measure(found);
    if let Err(why) = measured.save(config) {
        tracing::warn!("cannot save measured costs: {why}");
    }
    Ok(Some(measured))
}

#[cfg(test)]
mod tests;
