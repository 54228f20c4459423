//! The configuration keys of contexts and workers.

use std::time::Duration;

use crate::rdm::MAX_RAILS;

ucs::config_table! {
    /// Contexts, workers and protocol choice.
    pub struct Config, prefix "UCX_" {
        /// Transports to use: a comma list of names and aliases, or with a leading ^ the ones not to use.
        /// Aliases: all, shm or sm (memory shared on this host), mm (posix), self or loopback (this process),
        /// srd or ib (efa), net. One of them must be there.
        pub tls: String = "all", key "TLS";
        /// Network devices to use: a comma list, with a leading ^ the ones not to use, or all. A name may
        /// have a range, as in softefa[0-3], and :1 for its port. Software devices are used beside hardware
        /// only if named.
        pub net_devices: String = "all", key "NET_DEVICES";
        /// Length from which the receiver controls the transfer (long-CTS or read), not the sender. Also
        /// intra:LENGTH,inter:LENGTH for peers on this host and on others.
        pub rndv_thresh: crate::select::RndvThresh = "auto", key "RNDV_THRESH", unit "bytes";
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
        /// measured; estimated; kernel; packets; alternate: in turn, for tests. UCX_MIN_READ wins.
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
        /// Most senders that have introduced themselves to a worker by a packet and have not answered since.
        /// Packets of further unknown senders are dropped; known peers go on. A sender costs some 400 bytes.
        pub unknown_peers_max: u32 = "262144", key "UNKNOWN_PEERS_MAX", range 1..;
        /// Time after which such a sender is removed, if the transport has found that nobody is there and no
        /// message of it waits to be received.
        pub unknown_peers_timeout: Duration = "60s", key "UNKNOWN_PEERS_TIMEOUT";
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
        /// Most NICs that a long message uses in parallel. More than 4 counts as 4.
        pub max_rndv_rails: u32 = "4", key "MAX_RNDV_RAILS", range 1..;
        /// Fewest bytes of a long message per NIC: a message shorter than twice this uses one NIC. Less than
        /// 4k counts as 4k. inf: one NIC.
        pub min_rndv_chunk: u64 = "128k", key "MIN_RNDV_CHUNK_SIZE", unit "bytes", range 1..;
        /// Most NICs that a long put or get uses in parallel. More than 4 counts as 4.
        pub max_rma_rails: u32 = "4", key "MAX_RMA_RAILS", range 1..;
        /// Fewest bytes of a put or get per NIC: an operation shorter than twice this uses one NIC. Less than
        /// 4k counts as 4k. inf: one NIC.
        pub min_rma_chunk: u64 = "128k", key "MIN_RMA_CHUNK_SIZE", unit "bytes", range 1..;
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
        /// Interval of checking the peers of endpoints; inf or 0: never; auto: 400ms. The default detects a
        /// dead peer within a second. An operation that waits for an unchecked peer learns of its death only
        /// at the next send. An awaited HANDSHAKE is requested again in any case, after 1 s and at growing
        /// intervals.
        pub keepalive: ucs::config::Auto<Duration> = "400ms", key "KEEPALIVE_INTERVAL";
        /// Longest exchange of addresses with a socket address; the endpoint fails then. A client of a
        /// listener that says nothing is dropped after it.
        pub cm_timeout: Duration = "60s", key "CM_TIMEOUT";
        /// Most clients of a worker's listeners that are not connected yet. Beyond it, one that has not said
        /// what it wants gives way to a new one; if all have, new ones wait in the system's queue.
        pub cm_max_pending: usize = "128", key "CM_MAX_PENDING", unit "exchanges", range 1..=65536;
        /// Empty progress calls before a blocking wait goes to sleep.
        pub spin: u32 = "4096", key "SPIN", unit "calls";
    }
}

/// Longest piece per NIC that an engine needs to tell from shorter ones, bytes.
const MAX_CHUNK: u64 = 1 << 40;

impl Config {
    /// Interval of keepalive; `None`: no checks.
    pub fn keepalive_interval(&self) -> Option<Duration> {
        let interval = self.keepalive.unwrap_or(Duration::from_millis(400));
        (!interval.is_zero() && interval < ucs::config::MAX_TIME).then_some(interval)
    }

    /// NICs of a long message, and least bytes of each.
    pub(crate) fn rndv_rails(&self) -> (u8, u64) {
        rails(self.max_rndv_rails, self.min_rndv_chunk)
    }

    /// NICs of a long put or get, and least bytes of each.
    pub(crate) fn rma_rails(&self) -> (u8, u64) {
        rails(self.max_rma_rails, self.min_rma_chunk)
    }
}

fn rails(most: u32, chunk: u64) -> (u8, u64) {
    (most.min(MAX_RAILS as u32) as u8, chunk.clamp(4096, MAX_CHUNK))
}

#[cfg(test)]
mod tests {
    use ucs::config::{Auto, Source, Table as _, TableDesc};

    use super::*;
    use crate::select::RndvThresh;

    fn set(key: &str, value: &str) -> Config {
        Config::load(&Source::empty().with(key, value)).unwrap()
    }

    /// Values that UCX accepts for keys that this library has too.
    #[test]
    fn values_in_the_grammar_of_ucx_are_accepted() {
        let sizes = &["8192", "64k", "64K", "64kb", "1M", "inf"][..];
        let all: [(&str, &[&str]); 22] = [
            ("UCX_TLS", &["all", "rc,ud,sm", "^ib", "self"]),
            ("UCX_NET_DEVICES", &["all", "mlx5_0:1,mlx5_[2-3]:1", "^eth0"]),
            ("UCX_RNDV_THRESH", &["auto", "8192", "64K", "inf", "intra:64k,inter:inf", "inter:auto"]),
            ("UCX_MAX_RNDV_RAILS", &["1", "2", "8", "inf"]),
            ("UCX_MAX_RMA_RAILS", &["1", "2", "8", "inf"]),
            ("UCX_MIN_RNDV_CHUNK_SIZE", sizes),
            ("UCX_MIN_RMA_CHUNK_SIZE", sizes),
            ("UCX_RCACHE_ENABLE", &["y", "Yes", "on", "1", "n", "NO", "off", "0", "try", "maybe"]),
            ("UCX_RCACHE_MAX_REGIONS", &["inf", "1000"]),
            ("UCX_RCACHE_MAX_SIZE", sizes),
            ("UCX_KEEPALIVE_INTERVAL", &["inf", "auto", "0", "20", "20s", "500ms", "100us", "2m", "0.5s"]),
            ("UCX_STATS_DEST", &["", "stdout", "stderr", "file:stats.%p"]),
            ("UCX_STATS_TRIGGER", &["exit", "signal:USR1"]),
            ("UCX_LOG_LEVEL", &["fatal", "ERROR", "warn", "diag", "info", "debug", "trace", "req", "poll"]),
            ("UCX_LOG_FILE", &["", "stdout", "/tmp/ucx.%h.%p"]),
            ("UCX_WARN_UNUSED_ENV_VARS", &["n", "y"]),
            ("UCX_POSIX_FIFO_SIZE", &["64", "256"]),
            ("UCX_POSIX_SEG_SIZE", &["8256", "8k", "64k"]),
            ("UCX_SELF_SEG_SIZE", &["8k", "8192"]),
            ("UCX_CMA_SEG_SIZE", &["8256", "8k"]),
            ("UCX_CM_TIMEOUT", &["inf", "30s"]),
            ("UCX_RNR_WAIT", &["inf", "1us"]),
        ];
        let own = [&ucs::trace::LogConfig::DESC, &ucs::config::SourceConfig::DESC];
        let tables: Vec<&TableDesc> = crate::Context::tables().into_iter().chain(own).collect();
        for (key, values) in all {
            assert!(tables.iter().any(|t| t.keys.iter().any(|k| k.name == key)), "{key}");
            for value in values {
                let source = Source::empty().with(key, value);
                let refused = tables.iter().find_map(|table| table.check(&source).err());
                assert_eq!(refused, None);
            }
        }
        // Keys of both libraries that are not in the list above.
        let shared =
            tables.iter().flat_map(|t| t.keys).map(|k| k.name).filter(|k| ucs::config::is_ucx_name(k));
        let untried: Vec<_> = shared.filter(|k| all.iter().all(|(tried, _)| tried != k)).collect();
        assert_eq!(untried, [""; 0]);
    }

    #[test]
    fn values_beyond_what_is_needed_count_as_the_nearest() {
        assert_eq!(set("UCX_MAX_RNDV_RAILS", "8").rndv_rails(), (4, 128 << 10));
        assert_eq!(set("UCX_MAX_RMA_RAILS", "inf").rma_rails(), (4, 128 << 10));
        assert_eq!(set("UCX_MAX_RMA_RAILS", "1").rma_rails(), (1, 128 << 10));
        assert_eq!(set("UCX_MIN_RNDV_CHUNK_SIZE", "1").rndv_rails(), (4, 4096));
        assert_eq!(set("UCX_MIN_RMA_CHUNK_SIZE", "inf").rma_rails(), (4, MAX_CHUNK));
        for zero in ["UCX_MAX_RNDV_RAILS", "UCX_MIN_RMA_CHUNK_SIZE"] {
            let error = Config::load(&Source::empty().with(zero, "0")).unwrap_err().to_string();
            assert!(error.ends_with(", within 1..") && error.contains(zero), "{error}");
        }
    }

    #[test]
    fn keepalive_is_off_at_infinity_and_zero() {
        let of = |value| set("UCX_KEEPALIVE_INTERVAL", value).keepalive_interval();
        assert_eq!([of("inf"), of("0"), of("1000000000000")], [None; 3]);
        assert_eq!([of("auto"), of("400ms")], [Some(Duration::from_millis(400)); 2]);
        assert_eq!(of("20s"), Some(Duration::from_secs(20)));
    }

    #[test]
    fn rendezvous_threshold_may_differ_by_place() {
        let both = |n| RndvThresh { intra: n, inter: n };
        assert_eq!(Config::default().rndv_thresh, both(Auto::Auto));
        assert_eq!(set("UCX_RNDV_THRESH", "64k").rndv_thresh, both(Auto::Value(65536)));
        let one = RndvThresh { intra: Auto::Auto, inter: Auto::Value(9) };
        assert_eq!(set("UCX_RNDV_THRESH", "inter:9").rndv_thresh, one);
        let error = Config::load(&Source::empty().with("UCX_RNDV_THRESH", "outer:9")).unwrap_err();
        assert!(
            error.to_string().starts_with("UCX_RNDV_THRESH=outer:9 (override): expected auto or a number")
        );
    }
}
