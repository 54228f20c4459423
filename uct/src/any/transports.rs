//! The transports, their devices on this machine, and how each is opened. Called at start-up.

use super::{Iface, Md};
use crate::api::{DevKind, Locality, OpenError, ResourcePerf, TlResource};
use crate::efa::dev::{nics, soft};
use crate::{cma, efa, loopback, posix};
use ucs::config::{Source, Table, TableDesc};

struct Transport {
    tl: &'static str,
    list: fn(&Source) -> Result<Vec<TlResource>, OpenError>,
    open_md: fn(&str, &Source) -> Result<Md, OpenError>,
    tables: &'static [&'static TableDesc],
}

const TRANSPORTS: &[Transport] = &[
    Transport {
        tl: loopback::TL,
        list: |_| {
            let about = "memory of this process";
            Ok(vec![resource(loopback::TL, loopback::DEV, DevKind::Loopback, about, loopback::PERF)])
        },
        open_md: |_, _| Ok(Md::Loopback(loopback::Md::open())),
        tables: &[&loopback::Config::DESC],
    },
    Transport {
        tl: posix::TL,
        list: |_| {
            let about = "memory shared by processes of this host";
            Ok(vec![resource(posix::TL, posix::DEV, DevKind::Shm, about, posix::PERF)])
        },
        open_md: |_, source| Ok(Md::Posix(posix::Md::open(&load(source)?)?)),
        tables: &[&posix::Config::DESC],
    },
    Transport {
        tl: cma::TL,
        list: |_| {
            let about = "memory of other processes of this host, by system call";
            let found = resource(cma::TL, cma::DEV, DevKind::Shm, about, cma::PERF);
            Ok(vec![TlResource { has_am: false, ..found }])
        },
        open_md: |_, source| Ok(Md::Cma(cma::Md::open(&cma_config(source)?)?)),
        tables: &[&cma::Config::DESC],
    },
    Transport {
        tl: efa::TL,
        list: efa_devices,
        open_md: open_efa,
        tables: &[&efa::Config::DESC, &soft::SoftConfig::DESC],
    },
];

fn efa_devices(source: &Source) -> Result<Vec<TlResource>, OpenError> {
    let mut all = verbs_devices();
    let as_resource = |d: soft::SoftDevice| TlResource {
        is_software: true,
        ..resource(efa::TL, &d.name, DevKind::Net, &d.about, soft::RESOURCE_PERF)
    };
    all.extend(soft::list(source)?.into_iter().map(as_resource));
    Ok(all)
}

/// The configuration of `cma`, with the socket directory of `posix`: each can name the other's memory.
fn cma_config(source: &Source) -> Result<cma::Config, OpenError> {
    let mut config: cma::Config = load(source)?;
    if config.socket_dir.is_empty() {
        config.socket_dir = load::<posix::Config>(source)?.socket_dir;
    }
    Ok(config)
}

/// Names of software devices have no port, names of libibverbs' devices have one.
fn open_efa(dev: &str, source: &Source) -> Result<Md, OpenError> {
    #[cfg(feature = "verbs")]
    if dev.contains(':') {
        let atomics = load::<efa::Config>(source)?.atomics;
        return Ok(Md::EfaVerbs(efa::Md::open_with(efa::dev::verbs::open(dev)?, atomics)?));
    }
    let atomics = load::<efa::Config>(source)?.atomics;
    Ok(Md::Efa(efa::Md::open_with(soft::open(source, dev)?, atomics)?))
}

#[cfg(feature = "verbs")]
fn verbs_devices() -> Vec<TlResource> {
    let found = efa::dev::verbs::list().into_iter();
    let as_resource = |d: efa::dev::verbs::VerbsDevice| TlResource {
        is_software: d.software,
        ..nic_resource(&d.name, &d.about)
    };
    found.map(as_resource).collect()
}

#[cfg(not(feature = "verbs"))]
fn verbs_devices() -> Vec<TlResource> {
    Vec::new()
}

/// Devices that are in this machine and not among its [`resources`], each with the reason.
pub fn unusable() -> Vec<(TlResource, String)> {
    let usable = verbs_devices();
    let found = nics::list().into_iter().filter_map(|nic| {
        let name = nic.rdma.as_ref().map_or(nic.pci.clone(), |rdma| format!("{rdma}:1"));
        let why = match nic.problem {
            Some(problem) => problem.to_string(),
            None if usable.iter().any(|r| r.dev == name) => return None,
            None if cfg!(feature = "verbs") => {
                "libibverbs does not list it as an EFA (is its provider there? Debian: ibverbs-providers)"
                    .into()
            }
            None => "this program was built without verbs (build it with `--features verbs`)".into(),
        };
        let description = format!("EFA NIC ({:#x}) at {}", nic.part_id, nic.pci);
        Some((nic_resource(&name, &description), why))
    });
    found.collect()
}

/// Every transport on every device found on this machine.
pub fn resources(source: &Source) -> Result<Vec<TlResource>, OpenError> {
    let mut all = Vec::new();
    for transport in TRANSPORTS {
        all.extend((transport.list)(source)?);
    }
    Ok(all)
}

/// Opens an interface of transport `tl` on device `dev`, with a memory domain of its own. A
/// [`Worker`](crate::Worker) progresses several.
pub fn open(tl: &str, dev: &str, source: &Source) -> Result<Iface, OpenError> {
    open_iface(&open_md(tl, dev, source)?, source)
}

/// Opens an interface on a memory domain that other interfaces, of this and other threads, may share: what is
/// registered with the domain serves all of them. The interface belongs to the calling thread.
pub fn open_iface(md: &Md, source: &Source) -> Result<Iface, OpenError> {
    Ok(match md {
        Md::Loopback(md) => loopback::Iface::open_on(md, &load(source)?)?.into(),
        Md::Posix(md) => posix::Iface::open_on(md, &load(source)?)?.into(),
        Md::Cma(md) => cma::Iface::open_on(md, &cma_config(source)?)?.into(),
        Md::Efa(md) => efa::Iface::open_on(md, &efa::Params::from_source(source)?)?.into(),
        Md::EfaInproc(md) => efa::Iface::open_on(md, &efa::Params::from_source(source)?)?.into(),
        #[cfg(feature = "verbs")]
        Md::EfaVerbs(md) => efa::Iface::open_on(md, &efa::Params::from_source(source)?)?.into(),
    })
}

/// Opens an interface for threads that use it, and all that is made from it, one at a time under a lock.
/// Unlike one of [`open_iface`], an interface of `self` exchanges messages with itself only: others of its
/// thread do not have the lock.
pub fn open_iface_for_threads(md: &Md, source: &Source) -> Result<Iface, OpenError> {
    match md {
        Md::Loopback(md) => Ok(loopback::Iface::open_private_on(md, &load(source)?)?.into()),
        md => open_iface(md, source),
    }
}

/// Opens a memory domain of transport `tl` on device `dev`, for interfaces that [`open_iface`] opens.
pub fn open_md(tl: &str, dev: &str, source: &Source) -> Result<Md, OpenError> {
    let Some(transport) = TRANSPORTS.iter().find(|transport| transport.tl == tl) else {
        let known: Vec<_> = TRANSPORTS.iter().map(|transport| transport.tl).collect();
        return Err(OpenError::UnknownTransport { name: tl.into(), known: known.join(", ") });
    };
    let devices = (transport.list)(source)?;
    if devices.iter().any(|found| found.dev == dev) {
        return (transport.open_md)(dev, source);
    }
    if let Some((_, why)) = unusable().into_iter().find(|(found, _)| found.tl == tl && found.dev == dev) {
        return Err(OpenError::Environment(format!("{tl} device '{dev}' cannot be used: {why}")));
    }
    let known: Vec<_> = devices.into_iter().map(|found| found.dev).collect();
    Err(OpenError::UnknownDevice { transport: tl.into(), name: dev.into(), known: known.join(", ") })
}

/// Configuration for a sink that resends returned packets (`Sink::on_rnr`): by default three RNR retries, so
/// that one receiver does not block the send queue.
pub fn with_rnr_resend(source: &Source) -> Source {
    const RETRIES: &str = "UCX_EFA_RNR_RETRY";
    match source.is_set(RETRIES) {
        true => source.clone(),
        false => source.clone().with(RETRIES, "3"),
    }
}

/// Configuration for users of `Iface::post_user_recv`: by default 256 receives at a time.
pub fn with_user_receives(source: &Source) -> Source {
    const DEPTH: &str = "UCX_EFA_USER_RX_QUEUE_LEN";
    match source.is_set(DEPTH) {
        true => source.clone(),
        false => source.clone().with(DEPTH, "256"),
    }
}

/// Configuration for users with atomics of their own: without those of `efa`, whatever is set.
pub fn without_emulated_atomics(source: &Source) -> Source {
    source.clone().with("UCX_EFA_ATOMICS", "n")
}

/// Configuration for users that queue refused sends: by default a longer queue of `self`.
pub fn with_deep_queues(source: &Source) -> Source {
    const BYTES: &str = "UCX_SELF_FIFO_BYTES";
    match source.is_set(BYTES) {
        true => source.clone(),
        false => source.clone().with(BYTES, "128k"),
    }
}

/// The configuration tables of all transports, for lists of keys and for finding misspelt ones.
pub fn tables() -> Vec<&'static TableDesc> {
    TRANSPORTS.iter().flat_map(|transport| transport.tables).copied().collect()
}

/// A NIC, or what libibverbs takes for one; its name has a port.
fn nic_resource(name: &str, description: &str) -> TlResource {
    let (perf, locality) = nics::describe(name.split(':').next().unwrap_or_default());
    TlResource { locality, ..resource(efa::TL, name, DevKind::Net, description, perf) }
}

fn resource(tl: &'static str, dev: &str, kind: DevKind, description: &str, perf: ResourcePerf) -> TlResource {
    TlResource {
        tl,
        dev: dev.into(),
        kind,
        description: description.into(),
        has_am: true,
        perf,
        locality: Locality::default(),
        is_software: false,
    }
}

fn load<T: Table>(source: &Source) -> Result<T, OpenError> {
    T::load(source).map_err(|e| OpenError::Config(e.to_string()))
}
