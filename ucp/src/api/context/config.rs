//! Configuration, and the choice of transports and devices by `UCX_TLS` and `UCX_NET_DEVICES`.

use std::time::Duration;

use uct::api::{DevKind, OpenError, TlResource};

ucs::config_table! {
    /// Contexts, workers and protocol choice.
    pub struct Config, prefix "UCX_" {
        /// Transports to use: a comma list of names and aliases, or with a leading ^ the ones not to use.
        /// Aliases: all, shm (memory shared on this host), self or loopback (this process), srd (efa), net.
        pub tls: String = "all", key "TLS";
        /// Network devices to use: a comma list, with a leading ^ the ones not to use, or all. Software
        /// devices are used beside hardware only if named.
        pub net_devices: String = "all", key "NET_DEVICES";
        /// Length from which the receiver controls the transfer (long-CTS or read), not the sender.
        pub rndv_thresh: ucs::config::Auto<usize> = "auto", key "RNDV_THRESH", unit "bytes";
        /// Longest message sent in several packets without asking the receiver, unless UCX_RNDV_THRESH is set
        /// (libfabric: FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE). auto: while it is the cheapest, at most 64k.
        pub max_medium: ucs::config::Auto<usize> = "auto", key "MAX_MEDIUM", unit "bytes";
        /// Length from which the receiver reads a message from the sender's memory, if both ends can
        /// (libfabric: FI_EFA_INTER_MIN_READ_MESSAGE_SIZE). inf: never. auto: from where it is the cheapest.
        pub min_read: ucs::config::Auto<usize> = "auto", key "MIN_READ", unit "bytes";
        /// Bytes of a message sent while the receiver reads the rest. 0: none (libfabric: FI_EFA_RUNT_SIZE).
        pub runt_size: usize = "0", key "RUNT_SIZE", unit "bytes";
        /// Length from which the target reads a put that the device does not carry, if both ends can
        /// (libfabric: FI_EFA_INTER_MIN_READ_WRITE_SIZE). inf: never. auto: from where it is the cheapest.
        pub min_read_write: ucs::config::Auto<usize> = "auto", key "MIN_READ_WRITE", unit "bytes";
        /// Length from which the device or the kernel carries a put, where it can; else packets do. 0:
        /// always. inf: never. auto: from where it is cheaper, counting the peer's processor.
        pub min_rdma_put: ucs::config::Auto<usize> = "auto", key "MIN_RDMA_PUT", unit "bytes";
        /// Length from which the device or the kernel carries a get; values as for UCX_MIN_RDMA_PUT.
        pub min_rdma_get: ucs::config::Auto<usize> = "auto", key "MIN_RDMA_GET", unit "bytes";
        /// Copy method on this host of long messages in memory that no transport allocated. auto: as
        /// measured; said: as estimated; kernel; packets; turns: alternating, for tests. UCX_MIN_READ wins.
        pub kernel_copy: crate::select::copy_method::CopyPolicy = "auto", key "KERNEL_COPY";
        /// Choose protocols by measured costs of this machine instead of the transports' estimates. The first
        /// context measures for some tens of ms and saves the costs in UCX_CACHE_DIR.
        pub calibrate: bool = "n", key "CALIBRATE";
        /// Directory of measured costs. Empty: ucx in $XDG_CACHE_HOME, or in $HOME/.cache.
        pub cache_dir: String = "", key "CACHE_DIR";
        /// Longest single read (libfabric: FI_EFA_INTER_READ_SEGMENT_SIZE).
        pub read_segment: usize = "1g", key "READ_SEGMENT", unit "bytes", range 1..=1073741824;
        /// Memory of unexpected messages from which a worker stops receiving while the program waits for
        /// nothing, so that senders wait. inf: no limit.
        pub unexp_mem: usize = "256m", key "UNEXP_MEM", unit "bytes";
        /// Most memory of unexpected messages: a peer that exceeds it fails with an error. At least
        /// UCX_UNEXP_MEM and one poll of full packets. inf: no limit.
        pub unexp_max: usize = "1g", key "UNEXP_MAX", unit "bytes";
        /// Ask peers for constant header length (bit 2 of the HANDSHAKE): every request carries the sender's
        /// address of 36 bytes. Costs those bytes, and the fast path of short messages.
        pub const_hdr: bool = "n", key "CONST_HDR";
        /// Where a worker writes counters: stdout, stderr, file:PATH (appended; %p: process id). Empty:
        /// nowhere.
        pub stats_dest: String = "", key "STATS_DEST";
        /// Time of writing counters: exit (the worker's end), signal:USR1, signal:USR2, or a comma list.
        pub stats_trigger: String = "exit", key "STATS_TRIGGER";
        /// Let the peer's processor execute puts, gets and atomics where nothing else can. n: they fail.
        pub emulation: bool = "y", key "EMULATION";
        /// Delay untagged messages until the peer's HANDSHAKE arrives: libfabric 1.22 to 2.5 in zero-copy
        /// receive mode loses untagged messages that arrive before.
        pub untagged_wait: bool = "n", key "UNTAGGED_WAIT";
        /// Zero-copy receive mode, as in libfabric 1.22 to 2.5: the device places untagged messages of one
        /// packet in their receive buffers. Nothing else is received. Needs one NIC and no other transport.
        pub zcopy_recv: bool = "n", key "ZCOPY_RECV";
        /// First delay before resending to a receiver that is not ready, after an immediate try; doubles with
        /// each try. 0: random, 40 to 120 microseconds (libfabric: FI_EFA_TIMEOUT_INTERVAL).
        pub rnr_wait: Duration = "0", key "RNR_WAIT";
        /// Longest delay between two such tries (libfabric: FI_EFA_MAX_TIMEOUT).
        pub rnr_max_wait: Duration = "1s", key "RNR_MAX_WAIT";
        /// Most NICs that a long message uses in parallel.
        pub max_rndv_rails: u8 = "4", key "MAX_RNDV_RAILS", range 1..=4;
        /// Fewest bytes of a long message per NIC: a message shorter than twice this uses one NIC.
        pub min_rndv_chunk: usize = "128k", key "MIN_RNDV_CHUNK_SIZE", unit "bytes", range 4096..=1073741824;
        /// Most NICs that a long put or get uses in parallel.
        pub max_rma_rails: u8 = "4", key "MAX_RMA_RAILS", range 1..=4;
        /// Fewest bytes of a put or get per NIC: an operation shorter than twice this uses one NIC.
        pub min_rma_chunk: usize = "128k", key "MIN_RMA_CHUNK_SIZE", unit "bytes", range 4096..=1073741824;
        /// Cache memory registrations of long messages, puts and gets: y, n, or try (if registration is
        /// costly and the system reports unmapped memory by userfaultfd).
        pub rcache: crate::lane::RcacheMode = "try", key "RCACHE_ENABLE";
        /// Most cached registrations per transport.
        pub rcache_regions: usize = "4096", key "RCACHE_MAX_REGIONS";
        /// Most bytes in cached registrations per transport.
        pub rcache_size: usize = "1g", key "RCACHE_MAX_SIZE", unit "bytes";
        /// Bits of the HANDSHAKE's feature word not to announce, so that peers use fallbacks. For tests.
        pub withhold_features: u64 = "0", key "WITHHOLD_FEATURES";
        /// Most events taken from one transport in one call of progress.
        pub progress_batch: usize = "32", key "PROGRESS_BATCH", unit "events", range 1..=4096;
        /// Interval of checking the peers of endpoints; 0: never. The default detects a dead peer within a
        /// second. An operation that waits for an unchecked peer learns of its death only at the next send.
        /// An awaited HANDSHAKE is requested again in any case, after 1 s and at growing intervals.
        pub keepalive: Duration = "400ms", key "KEEPALIVE_INTERVAL";
        /// Longest exchange of addresses with a socket address; the endpoint fails then. A client of a
        /// listener that says nothing is dropped after it.
        pub cm_timeout: Duration = "10s", key "CM_TIMEOUT";
        /// Most clients of a worker's listeners that are not connected yet. Beyond it, one that has not said
        /// what it wants gives way to a new one; if all have, new ones wait in the system's queue.
        pub cm_max_pending: usize = "128", key "CM_MAX_PENDING", unit "exchanges", range 1..=65536;
        /// Empty progress calls before a blocking wait goes to sleep.
        pub spin: u32 = "4096", key "SPIN", unit "calls";
    }
}

/// Selects the resources that `config` asks for, in the order of `found`.
pub(crate) fn choose_resources(found: &[TlResource], config: &Config) -> Result<Vec<TlResource>, OpenError> {
    let tls = NameList::read(&config.tls);
    let devices = NameList::read(&config.net_devices);
    for name in &tls.names {
        if !found.iter().any(|r| matches_name(name, r)) {
            return Err(OpenError::UnknownTransport { name: (*name).into(), known: known_transports(found) });
        }
    }
    for name in &devices.names {
        if *name != "all" && !found.iter().any(|r| r.kind == DevKind::Net && r.dev == *name) {
            return Err(unknown_device(name, found));
        }
    }
    let mut chosen: Vec<TlResource> = found
        .iter()
        .filter(|r| tls.allows(|name| matches_name(name, r)))
        // Transports without messages (`cma`) may be named, but are no lanes.
        .filter(|r| r.has_am)
        .filter(|r| r.kind != DevKind::Net || devices.allows(|name| name == "all" || r.dev == name))
        .cloned()
        .collect();
    let is_real = |r: &TlResource| r.kind == DevKind::Net && !r.is_software;
    let real: Vec<&'static str> = chosen.iter().filter(|r| is_real(r)).map(|r| r.tl).collect();
    chosen.retain(|r| !r.is_software || !real.contains(&r.tl) || devices.wants(&r.dev));
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
        "srd" => r.tl == "efa",
        name => r.tl == name,
    }
}

fn known_transports(found: &[TlResource]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for r in found {
        if !names.contains(&r.tl) {
            names.push(r.tl);
        }
    }
    let aliases = ["shm", "srd", "net"].iter().filter(|a| found.iter().any(|r| matches_name(a, r)));
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
struct NameList<'a> {
    names: Vec<&'a str>,
    deny: bool,
}

impl<'a> NameList<'a> {
    fn read(text: &'a str) -> Self {
        let text = text.trim();
        let (deny, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        NameList { names: text.split(',').map(str::trim).filter(|n| !n.is_empty()).collect(), deny }
    }

    fn wants(&self, name: &str) -> bool {
        !self.deny && self.names.contains(&name)
    }

    fn allows(&self, is: impl Fn(&str) -> bool) -> bool {
        self.names.iter().any(|n| is(n)) != self.deny
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

    fn picks(tls: &str, devices: &str) -> Result<String, String> {
        picks_of(&found(), tls, devices)
    }

    fn picks_of(found: &[TlResource], tls: &str, devices: &str) -> Result<String, String> {
        let config = Config { tls: tls.into(), net_devices: devices.into(), ..Config::default() };
        let names = |rs: Vec<TlResource>| {
            rs.iter().map(|r| format!("{}/{}", r.tl, r.dev)).collect::<Vec<_>>().join(" ")
        };
        choose_resources(found, &config).map(names).map_err(|e| e.to_string())
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
    fn rma_only_transports_are_no_lanes() {
        let mut found = found();
        found.push(TlResource { tl: "cma", has_am: false, ..found[1].clone() });
        for (tls, want) in [("all", 1), ("shm", 1), ("posix", 0), ("posix,cma", 1), ("^cma", 0)] {
            let config = Config { tls: tls.into(), ..Config::default() };
            assert_eq!(choose_rma_only(&found, &config).len(), want, "{tls}");
            assert!(choose_resources(&found, &config).unwrap().iter().all(|r| r.tl != "cma"), "{tls}");
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
            picks("posix,tcp", "all").unwrap_err(),
            "unknown transport 'tcp' (there are: self, posix, efa, shm, srd, net, all)"
        );
        assert_eq!(
            picks("all", "mlx5_0").unwrap_err(),
            "transport 'efa' has no device 'mlx5_0' (there are: softefa0, softefa1, all)"
        );
        assert!(picks("^all", "all").unwrap_err().contains("leave no transport"));
        assert!(picks("", "all").unwrap_err().contains("leave no transport"));
    }
}
