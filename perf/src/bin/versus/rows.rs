//! What is measured: each row is one test that both programs know by the same name and options.
//! Pure data; `main` chooses the table, `run` and `fabric` carry a row out.

/// Which number of a result is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Overall latency, microseconds: half a round trip, or time per operation.
    Latency,
    /// Overall message rate, millions a second.
    Rate,
    /// Overall bandwidth, MB/s of 2^20 bytes.
    Bandwidth,
}

impl Metric {
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Latency => "us",
            Metric::Rate => "M msg/s",
            Metric::Bandwidth => "MB/s",
        }
    }

    pub fn better(self) -> &'static str {
        match self {
            Metric::Latency => "lower",
            Metric::Rate | Metric::Bandwidth => "higher",
        }
    }
}

/// Which layer a test drives: `uct` tests name a transport and device, `ucp` tests a list of transports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    Uct,
    Ucp,
}

/// One comparison.
pub struct Row {
    pub name: &'static str,
    pub layer: Layer,
    pub test: &'static str,
    /// `-D`, for uct tests that choose.
    pub path: Option<&'static str>,
    pub size: &'static str,
    pub iters: u64,
    pub metric: Metric,
    /// `UCX_TLS` of ours, for ucp tests.
    pub tls: &'static str,
}

const fn uct(
    name: &'static str,
    test: &'static str,
    path: Option<&'static str>,
    size: &'static str,
    iters: u64,
    metric: Metric,
) -> Row {
    Row { name, layer: Layer::Uct, test, path, size, iters, metric, tls: "" }
}

const fn ucp(name: &'static str, test: &'static str, size: &'static str, iters: u64, metric: Metric) -> Row {
    Row { name, layer: Layer::Ucp, test, path: None, size, iters, metric, tls: "posix,self" }
}

/// The same test over the software EFA device.
const fn efa(name: &'static str, test: &'static str, size: &'static str, iters: u64, metric: Metric) -> Row {
    Row { tls: "efa", ..ucp(name, test, size, iters, metric) }
}

/// Beside libfabric: tagged messages over one device.
pub const LIBFABRIC_ROWS: &[Row] = &[
    efa("tag_lat 8 B", "tag_lat", "8", 200_000, Metric::Latency),
    efa("tag_lat 4 KiB", "tag_lat", "4096", 100_000, Metric::Latency),
    efa("tag_rate 8 B", "tag_bw", "8", 1_000_000, Metric::Rate),
    efa("tag_bw 64 KiB", "tag_bw", "65536", 20_000, Metric::Bandwidth),
    efa("tag_bw 1 MiB", "tag_bw", "1048576", 2_000, Metric::Bandwidth),
];

/// Beside UCX: all rows, uct first.
pub const UCX_ROWS: &[Row] = &[
    uct("uct am_lat short 8 B", "am_lat", Some("short"), "8", 2_000_000, Metric::Latency),
    uct("uct am_lat bcopy 4 KiB", "am_lat", Some("bcopy"), "4096", 1_000_000, Metric::Latency),
    uct("uct am_bw short 8 B", "am_bw", Some("short"), "8", 5_000_000, Metric::Rate),
    uct("uct am_bw bcopy 8 B", "am_bw", Some("bcopy"), "8", 5_000_000, Metric::Rate),
    uct("uct am_bw bcopy 8 KiB", "am_bw", Some("bcopy"), "8192", 1_000_000, Metric::Bandwidth),
    uct("uct put_lat short 8 B", "put_lat", Some("short"), "8", 2_000_000, Metric::Latency),
    uct("uct put_bw short 8 B", "put_bw", Some("short"), "8", 10_000_000, Metric::Rate),
    uct("uct get bcopy 8 B", "get", Some("bcopy"), "8", 5_000_000, Metric::Latency),
    uct("uct fadd 8 B", "fadd", None, "8", 5_000_000, Metric::Latency),
    uct("uct cswap 8 B", "cswap", None, "8", 5_000_000, Metric::Latency),
    ucp("ucp tag_lat 8 B", "tag_lat", "8", 1_000_000, Metric::Latency),
    ucp("ucp tag_lat 1 KiB", "tag_lat", "1024", 500_000, Metric::Latency),
    ucp("ucp tag_lat 64 KiB", "tag_lat", "65536", 50_000, Metric::Latency),
    ucp("ucp tag_bw 8 B", "tag_bw", "8", 2_000_000, Metric::Rate),
    ucp("ucp tag_bw 64 KiB", "tag_bw", "65536", 50_000, Metric::Bandwidth),
    ucp("ucp tag_bw 1 MiB", "tag_bw", "1048576", 5_000, Metric::Bandwidth),
];
