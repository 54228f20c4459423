//! The choice of transports and devices by `UCX_TLS` and `UCX_NET_DEVICES`.

use ucs::config::{Origin, Source, SourceConfig, Table as _, is_first_report};
use uct::api::{DevKind, OpenError, TlResource};

use crate::api::context::config::Config;

/// Rules for names of a list that are not there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListPolicy {
    /// At least one of the devices has to be there, because the program or its user names them for this
    /// context. In the environment or a file they stand for all programs: other transports serve without.
    devices_required: bool,
    /// Warn of names that UCX does not know either.
    warn: bool,
}

impl ListPolicy {
    pub(crate) fn of(source: &Source) -> ListPolicy {
        let origin = source.lookup("UCX_NET_DEVICES").map(|(_, origin)| origin);
        let warn = SourceConfig::load(source).is_ok_and(|config| config.warn_unused);
        ListPolicy { devices_required: origin == Some(Origin::Override), warn }
    }
}

/// Selects the resources that `config` asks for, in the order of `found`. Logs once what of a list is not
/// there.
pub(crate) fn choose_resources(
    found: &[TlResource],
    config: &Config,
    policy: ListPolicy,
) -> Result<Vec<TlResource>, OpenError> {
    let tls = NameList::read(&config.tls);
    let devices = NameList::with_ranges(&config.net_devices);
    check_transports(&tls, found, config, policy)?;
    check_devices(&devices, found, policy)?;
    let mut chosen: Vec<TlResource> = found
        .iter()
        .filter(|r| tls.allows(|name| matches_name(name, r)))
        // Transports without messages (`cma`) may be named, but are no lanes.
        .filter(|r| r.has_am)
        .filter(|r| r.kind != DevKind::Net || devices.allows(|name| names_device(name, r, found)))
        .cloned()
        .collect();
    let is_real = |r: &TlResource| r.kind == DevKind::Net && !r.is_software;
    let real: Vec<&'static str> = chosen.iter().filter(|r| is_real(r)).map(|r| r.tl).collect();
    chosen.retain(|r| {
        !r.is_software
            || !real.contains(&r.tl)
            || devices.wants(|name| name != "all" && names_device(name, r, found))
    });
    if chosen.is_empty() {
        return Err(OpenError::Config(format!(
            "UCX_TLS={} and UCX_NET_DEVICES={} leave no transport (there are: {})",
            config.tls,
            config.net_devices,
            known_transports(found)
        )));
    }
    Ok(chosen)
}

/// Selects the permitted transports without messages (`cma`), which serve beside lanes.
pub(crate) fn choose_rma_only(found: &[TlResource], config: &Config) -> Vec<TlResource> {
    let tls = NameList::read(&config.tls);
    let wanted = found.iter().filter(|r| !r.has_am && tls.allows(|name| matches_name(name, r)));
    wanted.cloned().collect()
}

fn matches_name(word: &str, r: &TlResource) -> bool {
    match word {
        "all" => true,
        "shm" | "sm" => r.kind == DevKind::Shm,
        "self" | "loopback" => r.kind == DevKind::Loopback,
        "net" => r.kind == DevKind::Net,
        "mm" => r.tl == "posix",
        "srd" | "ib" => r.tl == "efa",
        name => r.tl == name,
    }
}

/// Names and aliases of UCX's transports. One that is absent here is not worth a warning.
const UCX_TLS: &[&str] = &[
    "cuda",
    "cuda_copy",
    "cuda_ipc",
    "dc",
    "dc_mlx5",
    "dc_x",
    "gaudi",
    "gaudi_gdr",
    "gdr_copy",
    "gga",
    "gga_mlx5",
    "ib",
    "knem",
    "rc",
    "rc_gda",
    "rc_mlx5",
    "rc_v",
    "rc_verbs",
    "rc_x",
    "rocm",
    "rocm_copy",
    "rocm_gdr",
    "rocm_ipc",
    "shm",
    "sm",
    "srd",
    "sysv",
    "tcp",
    "ud",
    "ud_mlx5",
    "ud_v",
    "ud_verbs",
    "ud_x",
    "ugni",
    "ugni_rdma",
    "ugni_smsg",
    "ugni_udt",
    "xpmem",
    "ze",
    "ze_copy",
    "ze_gdr",
    "ze_ipc",
];

/// Checks that a transport of a list of permitted ones is there.
fn check_transports(
    tls: &NameList,
    found: &[TlResource],
    config: &Config,
    policy: ListPolicy,
) -> Result<(), OpenError> {
    let absent: Vec<&str> =
        tls.names.iter().map(|name| &**name).filter(|name| !is_there(name, found)).collect();
    if !tls.deny && !absent.is_empty() && absent.len() == tls.names.len() {
        return Err(OpenError::UnknownTransport {
            name: config.tls.trim().into(),
            known: known_transports(found),
        });
    }
    for name in absent.into_iter().filter(|name| is_first_report(&format!("UCX_TLS {name}"))) {
        let is_ucx = UCX_TLS.contains(&name.split(':').next().unwrap_or(name));
        match policy.warn && !is_ucx {
            false => tracing::debug!("UCX_TLS={}: transport '{name}' is not there", config.tls),
            true => tracing::warn!(
                "UCX_TLS={}: transport '{name}' is unknown (there are: {})",
                config.tls,
                known_transports(found)
            ),
        }
    }
    Ok(())
}

fn is_there(name: &str, found: &[TlResource]) -> bool {
    found.iter().any(|r| matches_name(name, r))
}

/// Checks that a device of a list of permitted ones is there, if `policy` requires it.
fn check_devices(devices: &NameList, found: &[TlResource], policy: ListPolicy) -> Result<(), OpenError> {
    let nets = || found.iter().filter(|r| r.kind == DevKind::Net);
    let is_there = |name: &str| name == "all" || nets().any(|r| names_device(name, r, found));
    let absent: Vec<&str> = devices.names.iter().map(|name| &**name).filter(|name| !is_there(name)).collect();
    let Some(first) = absent.first() else { return Ok(()) };
    let none = !devices.deny && absent.len() == devices.names.len();
    if none && policy.devices_required {
        return Err(unknown_device(first, found));
    }
    let list = absent.join(",");
    if is_first_report(&format!("UCX_NET_DEVICES {list}")) {
        match policy.warn && none && nets().next().is_some() {
            true => {
                tracing::warn!("UCX_NET_DEVICES: {}; no network device is used", unknown_device(&list, found))
            }
            false => tracing::debug!("UCX_NET_DEVICES: '{list}' is not there"),
        }
    }
    Ok(())
}

/// Whether `name` is the resource's device. A name that is no device's is compared without the number of the
/// only port: `softefa0:1` is a device of its own where libibverbs shows it, and `softefa0` elsewhere.
fn names_device(name: &str, r: &TlResource, found: &[TlResource]) -> bool {
    fn plain(name: &str) -> &str {
        name.strip_suffix(":1").unwrap_or(name)
    }
    let is_exact = || found.iter().any(|r| r.dev == name);
    name == "all" || r.dev == name || (plain(name) == plain(&r.dev) && !is_exact())
}

fn known_transports(found: &[TlResource]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for r in found {
        if !names.contains(&r.tl) {
            names.push(r.tl);
        }
    }
    let aliases =
        ["shm", "sm", "mm", "srd", "ib", "net"].iter().filter(|a| found.iter().any(|r| matches_name(a, r)));
    names.extend(aliases);
    names.push("all");
    names.join(", ")
}

fn unknown_device(name: &str, found: &[TlResource]) -> OpenError {
    let nets = || found.iter().filter(|r| r.kind == DevKind::Net);
    OpenError::UnknownDevice {
        transport: nets().next().map_or("network", |r| r.tl).into(),
        name: name.into(),
        known: nets().map(|r| r.dev.as_str()).chain(["all"]).collect::<Vec<_>>().join(", "),
    }
}

/// Comma list of permitted names, or after `^` of denied ones.
struct NameList {
    names: Vec<String>,
    deny: bool,
}

/// Most names that one range stands for.
const MAX_RANGE: u32 = 1024;

impl NameList {
    fn read(text: &str) -> NameList {
        let text = text.trim();
        let (deny, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let names = text.split(',').map(str::trim).filter(|n| !n.is_empty());
        NameList { names: names.map(str::to_owned).collect(), deny }
    }

    /// As [`read`](Self::read), where `mlx5_[0-2]:1` stands for three names.
    fn with_ranges(text: &str) -> NameList {
        let list = NameList::read(text);
        NameList { names: list.names.into_iter().flat_map(expand_range).collect(), ..list }
    }

    fn wants(&self, is: impl Fn(&str) -> bool) -> bool {
        !self.deny && self.names.iter().any(|n| is(n))
    }

    fn allows(&self, is: impl Fn(&str) -> bool) -> bool {
        self.names.iter().any(|n| is(n)) != self.deny
    }
}

/// The names of a range in brackets; a name without a range stays.
fn expand_range(name: String) -> Vec<String> {
    let parts = name.split_once('[').and_then(|(before, rest)| {
        let (range, after) = rest.split_once(']')?;
        let (first, last) = range.split_once('-')?;
        Some((before, first.parse::<u32>().ok()?, last.parse::<u32>().ok()?, after))
    });
    match parts {
        Some((before, first, last, after)) if first <= last && last - first < MAX_RANGE => {
            (first..=last).map(|n| format!("{before}{n}{after}")).collect()
        }
        _ => vec![name],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Vec<TlResource> {
        let one = |tl, dev: &str, kind| TlResource {
            tl,
            dev: dev.into(),
            kind,
            description: String::new(),
            perf: Default::default(),
            locality: Default::default(),
            has_am: true,
            is_software: dev.starts_with("soft"),
        };
        vec![
            one("self", "memory", DevKind::Loopback),
            one("posix", "memory", DevKind::Shm),
            one("efa", "softefa0", DevKind::Net),
            one("efa", "softefa1", DevKind::Net),
        ]
    }

    #[test]
    fn a_port_is_a_device_of_its_own_where_both_are_there() {
        let mut found = found();
        assert_eq!(picks_of(&found, "efa", "softefa0:1").unwrap(), "efa/softefa0");
        found.push(TlResource { dev: "softefa0:1".into(), ..found[2].clone() });
        assert_eq!(picks_of(&found, "efa", "softefa0:1").unwrap(), "efa/softefa0:1");
        assert_eq!(picks_of(&found, "efa", "softefa0").unwrap(), "efa/softefa0");
        assert_eq!(picks_of(&found, "efa", "softefa1:1").unwrap(), "efa/softefa1");
    }

    fn picks(tls: &str, devices: &str) -> Result<String, String> {
        picks_of(&found(), tls, devices)
    }

    fn picks_of(found: &[TlResource], tls: &str, devices: &str) -> Result<String, String> {
        picks_by(found, tls, devices, true)
    }

    fn picks_by(
        found: &[TlResource],
        tls: &str,
        devices: &str,
        devices_required: bool,
    ) -> Result<String, String> {
        let config = Config { tls: tls.into(), net_devices: devices.into(), ..Config::default() };
        let names = |rs: Vec<TlResource>| {
            rs.iter().map(|r| format!("{}/{}", r.tl, r.dev)).collect::<Vec<_>>().join(" ")
        };
        choose_resources(found, &config, ListPolicy { devices_required, warn: true })
            .map(names)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn lists_aliases_and_negation() {
        let all = "self/memory posix/memory efa/softefa0 efa/softefa1";
        assert_eq!(picks("all", "all").as_deref(), Ok(all));
        assert_eq!(picks("posix", "all").as_deref(), Ok("posix/memory"));
        assert_eq!(picks("shm,self", "all").as_deref(), Ok("self/memory posix/memory"));
        assert_eq!(picks(" srd ", "softefa1").as_deref(), Ok("efa/softefa1"));
        assert_eq!(picks("^efa", "all").as_deref(), Ok("self/memory posix/memory"));
        assert_eq!(picks("^shm, self", "^softefa0").as_deref(), Ok("efa/softefa1"));
        assert_eq!(picks("posix", "softefa0").as_deref(), Ok("posix/memory"));
    }

    #[test]
    fn lists_of_other_machines_serve_if_something_is_there() {
        let (shm, efa) = ("posix/memory", "efa/softefa0 efa/softefa1");
        assert_eq!(picks("rc,ud,sm", "all").as_deref(), Ok(shm));
        assert_eq!(picks("mm", "all").as_deref(), Ok(shm));
        assert_eq!(picks("rc_x,ib,cuda", "all").as_deref(), Ok(efa));
        assert_eq!(picks("posxi,posix", "all").as_deref(), Ok(shm));
        assert_eq!(picks("^ib,cuda_ipc,tcp", "all"), Ok(format!("self/memory {shm}")));
        assert_eq!(picks("rc,ud", "all").unwrap_err().split(" (").next(), Some("unknown transport 'rc,ud'"));
        assert_eq!(picks("efa", "mlx5_0:1,softefa1:1").as_deref(), Ok("efa/softefa1"));
        assert_eq!(picks("efa", "softefa[1-9]:1").as_deref(), Ok("efa/softefa1"));
        assert_eq!(picks("efa", "^softefa[1-9]").as_deref(), Ok("efa/softefa0"));
        assert_eq!(picks("efa", "^mlx5_0").as_deref(), Ok(efa));
        assert!(picks("efa", "mlx5_0:1").unwrap_err().contains("has no device 'mlx5_0:1'"));
        let by_env = |tls| picks_by(&found(), tls, "mlx5_0:1,mlx5_1:1", false);
        assert_eq!(by_env("all"), Ok(format!("self/memory {shm}")));
        let none = "UCX_TLS=efa and UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1 leave no transport (there are: ";
        assert!(by_env("efa").unwrap_err().starts_with(none));
    }

    #[test]
    fn ranges_stand_for_names() {
        let of = |text: &str| NameList::with_ranges(text).names;
        assert_eq!(of("mlx5_[0-2]:1,eth0"), ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "eth0"]);
        for odd in ["a[2-1]", "a[1-9999999]", "a[x-1]", "a[1", "a]1[", "a[]"] {
            assert_eq!(of(odd), [odd]);
        }
    }

    #[test]
    fn rma_only_transports_are_no_lanes() {
        let mut found = found();
        found.push(TlResource { tl: "cma", has_am: false, ..found[1].clone() });
        for (tls, want) in [("all", 1), ("shm", 1), ("posix", 0), ("posix,cma", 1), ("^cma", 0)] {
            let config = Config { tls: tls.into(), ..Config::default() };
            assert_eq!(choose_rma_only(&found, &config).len(), want, "{tls}");
            assert!(
                choose_resources(&found, &config, ListPolicy::of(&Source::empty()))
                    .unwrap()
                    .iter()
                    .all(|r| r.tl != "cma"),
                "{tls}"
            );
        }
    }

    #[test]
    fn software_devices_give_way_to_hardware() {
        let mut found = found();
        let nic = TlResource { dev: "rdmap0s31:1".into(), is_software: false, ..found[2].clone() };
        found.insert(2, nic);
        let picks = |tls, devices| picks_of(&found, tls, devices).unwrap();
        assert_eq!(picks("all", "all"), "self/memory posix/memory efa/rdmap0s31:1");
        assert_eq!(picks("efa", "^softefa0"), "efa/rdmap0s31:1");
        assert_eq!(picks("efa", "softefa1"), "efa/softefa1");
        assert_eq!(picks("efa", "all,softefa1"), "efa/rdmap0s31:1 efa/softefa1");
        assert_eq!(picks("efa", "^rdmap0s31:1"), "efa/softefa0 efa/softefa1");
    }

    #[test]
    fn errors_of_unknown_names_list_the_known() {
        assert_eq!(
            picks("tcp", "all").unwrap_err(),
            "unknown transport 'tcp' (there are: self, posix, efa, shm, sm, mm, srd, ib, net, all)"
        );
        assert_eq!(
            picks("all", "mlx5_0").unwrap_err(),
            "transport 'efa' has no device 'mlx5_0' (there are: softefa0, softefa1, all)"
        );
        assert!(picks("^all", "all").unwrap_err().contains("leave no transport"));
        assert!(picks("", "all").unwrap_err().contains("leave no transport"));
    }
}
