//! Lists software devices, and opens one by name with its configured profile and faults.

use super::capture::{Capture, wall_clock};
use super::link::net::Net;
use super::link::shm::{Shm, permissions};
use super::link::udp::Udp;
use super::secret::{self, JOB};
use super::{Device, FaultPlan, Generation, Iid, Profile, SoftConfig};
use crate::api::OpenError;
use crate::efa::dev::Gid;
use crate::efa::dev::reachability::{self, HostId};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};
use ucs::config::{Auto, Source, Table};

/// A device that [`open`] can open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftDevice {
    /// Name: `softefa0` and so on.
    pub name: String,
    /// One line of description.
    pub about: String,
}

fn load(source: &Source) -> Result<SoftConfig, OpenError> {
    SoftConfig::load(source).map_err(|e| OpenError::Config(e.to_string()))
}

/// Lists the configured devices.
pub fn list(source: &Source) -> Result<Vec<SoftDevice>, OpenError> {
    let config = load(source)?;
    let reach = match config.udp() {
        Some(_) => "shared memory on this host, UDP to others",
        None => "shared memory between processes of this host",
    };
    let about = format!("software EFA ({}), {reach}", config.generation);
    Ok((0..config.devices)
        .map(|n| SoftDevice { name: format!("softefa{n}"), about: about.clone() })
        .collect())
}

/// A device as it is configured, before its link is opened.
struct Configured {
    config: SoftConfig,
    nth: usize,
    profile: Profile,
    seed: u64,
    /// Interface id, for a link that does not choose it.
    iid: u64,
}

impl Configured {
    fn load(source: &Source, name: &str) -> Result<Configured, OpenError> {
        let mut config = load(source)?;
        let all = list(source)?;
        let Some(nth) = all.iter().position(|d| d.name == name) else {
            let known: Vec<&str> = all.iter().map(|d| &*d.name).collect();
            let (transport, known) = ("efa".into(), known.join(", "));
            return Err(OpenError::UnknownDevice { transport, name: name.into(), known });
        };
        let first = config.gid.given().unwrap_or_else(process_iid);
        let iid = match first.0.wrapping_add(nth as u64) {
            0 => 1,
            iid => iid,
        };
        if config.guard_memory == Auto::Value(true) {
            guard_memory()?;
        }
        let seed = match config.seed {
            0 => random(iid),
            seed => seed,
        };
        if let Some(why) = why_no_rdma(&config) {
            warn_once(&format!("{name} is of generation efa0, which has no RDMA: {why}"));
            config.generation = Generation::Efa0;
        }
        if let Some(o) = permissions::own_process() {
            warn_once(&format!("other processes cannot send to {name}: {} ({})", o.what, o.remedy));
        }
        let mut profile = config.profile();
        profile.attr.name = name.into();
        Ok(Configured { config, nth, profile, seed, iid })
    }

    fn shm(&self, iid: u64, udp: Option<&Udp>) -> Result<Shm, OpenError> {
        // A random start makes it unlikely that a number is reused soon after its process died.
        let first_qpn = (self.seed >> 16) as u16;
        let job = match udp {
            Some(udp) => udp.job().to_owned(),
            None if self.config.secret_file.is_empty() => String::new(),
            None => secret::load(&self.config.secret_file)?.tag(JOB),
        };
        Shm::open((iid, &job), &self.profile, first_qpn)
    }

    fn udp(&self) -> Result<Option<Udp>, OpenError> {
        let Some(udp) = self.config.udp() else { return Ok(None) };
        if self.config.gid.given().is_some() {
            return Err(OpenError::Config(
                "a device that is reached over UDP has its address as GID: set SOFTEFA_UDP_ADDRESS and \
                 SOFTEFA_UDP_PORTS instead of SOFTEFA_GID"
                    .into(),
            ));
        }
        let timing = (self.profile.rnr_interval_ns, self.seed);
        Udp::open(self.nth, &udp, self.profile.attr.mtu, timing).map(Some)
    }

    /// Capture and faults of a device with this interface id.
    fn extras(&self, iid: u64) -> Result<(Option<Capture>, FaultPlan), OpenError> {
        let capture = match &*self.config.pcap {
            "" => None,
            name => Some(Capture::open(name, Gid::link_local(iid), wall_clock)?),
        };
        Ok((capture, self.config.faults(self.nth)))
    }
}

/// Opens a device by name: shared memory to processes of this host and user and, where it is configured, UDP
/// to others.
///
/// Each call is a context with its own keys. All contexts of one process have one GID per device name. With
/// UDP it names the address; without, no other process has it unless `SOFTEFA_GID` says so.
pub fn open(source: &Source, name: &str) -> Result<Device<Net>, OpenError> {
    let configured = Configured::load(source, name)?;
    let udp = configured.udp()?;
    let iid = udp.as_ref().map_or(configured.iid, Udp::iid);
    let link = Net::new(configured.shm(iid, udp.as_ref())?, udp);
    let (capture, faults) = configured.extras(iid)?;
    Ok(Device::new(link, configured.profile, faults, configured.seed, capture))
}

/// Opens a device as [`open`] does, for processes of this host and user only.
pub fn open_shm(source: &Source, name: &str) -> Result<Device<Shm>, OpenError> {
    let configured = Configured::load(source, name)?;
    let link = configured.shm(configured.iid, None)?;
    let (capture, faults) = configured.extras(configured.iid)?;
    Ok(Device::new(link, configured.profile, faults, configured.seed, capture))
}

/// Guards the copies of all devices of this process.
fn guard_memory() -> Result<(), OpenError> {
    let cannot =
        |errno| OpenError::Environment(format!("no guard of memory (SOFTEFA_GUARD_MEMORY): {errno}"));
    ucs::mem::guard::install().map_err(cannot)
}

/// Returns why the device has no RDMA although its generation does.
fn why_no_rdma(config: &SoftConfig) -> Option<String> {
    if config.generation == Generation::Efa0 {
        return None;
    }
    match config.rdma {
        Auto::Value(true) => None,
        Auto::Value(false) => Some("SOFTEFA_RDMA=n".into()),
        Auto::Auto => permissions::peer_memory()
            .map(|o| format!("{} (fix: {}; or set SOFTEFA_RDMA=y: then RDMA fails)", o.what, o.remedy)),
    }
}

fn warn_once(text: &str) {
    static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if !warned.iter().any(|s| s == text) {
        tracing::warn!("{text}");
        warned.push(text.to_owned());
    }
}

fn random(salt: u64) -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u64(salt);
    hasher.finish()
}

fn process_iid() -> Iid {
    static RANDOM: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let random = RANDOM.get_or_init(|| random(0));
    Iid(reachability::software_iid(HostId::current(), std::process::id(), *random))
}
