//! The tables of cases. A case is one test that both programs know by the same name and options.

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Microseconds: half a round trip, or time per operation.
    Latency,
    /// Millions of messages per second.
    Rate,
    /// MB/s of 2^20 bytes.
    Bandwidth,
    /// Microseconds to make an endpoint.
    Create,
    /// Microseconds to make an endpoint and send a first message.
    First,
    /// Microseconds to make another endpoint to the same peer.
    Again,
    /// Resident memory per endpoint, bytes.
    Rss,
    /// Length of an address, bytes.
    Address,
    /// Nanoseconds of progress that finds nothing.
    Idle,
    /// Instructions per message at both ends.
    Instructions,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

impl Better {
    pub fn word(self) -> &'static str {
        match self {
            Better::Lower => "lower",
            Better::Higher => "higher",
        }
    }
}

impl Metric {
    pub fn unit(self) -> &'static str {
        match self {
            Metric::Latency | Metric::Create | Metric::First | Metric::Again => "µs",
            Metric::Rate => "M messages/s",
            Metric::Bandwidth => "MB/s",
            Metric::Rss | Metric::Address => "bytes",
            Metric::Idle => "ns",
            Metric::Instructions => "instructions",
        }
    }

    pub fn better(self) -> Better {
        match self {
            Metric::Rate | Metric::Bandwidth => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// The figure in a program's JSON, in the unit of the table.
    pub fn of_json(self, line: &str) -> Option<f64> {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let field = match self {
            Metric::Latency => &value["latency_us"]["avg"],
            Metric::Rate => &value["msg_rate"],
            Metric::Bandwidth => &value["bandwidth_mbs"],
            Metric::Create => &value["create_us"],
            Metric::First => &value["first_us"],
            Metric::Again => &value["again_us"],
            Metric::Rss => &value["rss_bytes"],
            Metric::Address => &value["address_bytes"],
            Metric::Idle => &value["idle_ns"],
            Metric::Instructions => return None,
        };
        field.as_f64().map(|figure| self.in_unit(figure))
    }

    pub fn in_unit(self, figure: f64) -> f64 {
        if self == Metric::Rate { figure / 1e6 } else { figure }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Harness {
    /// `ucx_perftest` of both, low level.
    Uct,
    /// `ucx_perftest` of both, high level.
    Ucp,
    /// `bench` and `ucp_bench`.
    Bench,
    /// `scale` in C and in Rust.
    Scale,
    /// `bench self` and `ucp_bench self` under callgrind.
    Count,
}

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub harness: Harness,
    pub test: &'static str,
    pub path: Option<&'static str>,
    /// Bytes of a message; for `scale` the number of endpoints or of messages per window.
    pub size: u64,
    /// For 20 to 50 ms: shorter than a virtual machine keeps its processors in place, long enough for warm
    /// caches.
    pub iters: u64,
    pub metric: Metric,
    /// `-x` of uct tests; else `UCX_TLS` of this library.
    pub tls: &'static str,
    pub threads: u32,
    /// `-O`; `None`: the default of the test, if both have the same.
    pub window: Option<u32>,
    /// This library uses memory of the program, as UCX does.
    pub own: bool,
}

impl Case {
    /// `-l`: the transport `self` connects a process with itself only.
    pub fn is_loopback(&self) -> bool {
        self.tls == SELF
    }
}

use Harness::*;
use Metric::*;

const SHM: &str = "posix,cma,self";
const SELF: &str = "self";

const fn case(
    harness: Harness,
    name: &'static str,
    test: &'static str,
    size: u64,
    iters: u64,
    metric: Metric,
) -> Case {
    let tls = match harness {
        Bench | Count => "efa",
        Uct => "posix",
        _ => SHM,
    };
    Case { name, harness, test, path: None, size, iters, metric, tls, threads: 1, window: None, own: false }
}

const fn uct(
    name: &'static str,
    test: &'static str,
    path: &'static str,
    size: u64,
    iters: u64,
    metric: Metric,
) -> Case {
    Case { path: Some(path), ..case(Uct, name, test, size, iters, metric) }
}

/// Sets `-O` where releases of UCX differ in the default or in the name of the test.
const fn window(window: u32, case: Case) -> Case {
    Case { window: Some(window), ..case }
}

const fn of_program(case: Case) -> Case {
    Case { own: true, ..case }
}

const fn cma(case: Case) -> Case {
    Case { tls: "cma", ..of_program(case) }
}

const fn loopback(case: Case) -> Case {
    Case { tls: SELF, ..case }
}

const fn count(name: &'static str, window: u64) -> Case {
    Case { tls: "posix", ..case(Scale, name, "self", window, 16_000, Instructions) }
}

const fn threads(name: &'static str, threads: u32) -> Case {
    Case { threads, ..case(Ucp, name, "tag_bw", 8, 500_000, Rate) }
}

const KB: u64 = 1024;
const MB: u64 = 1 << 20;

/// Beside UCX, over shared memory; uct cases of `posix` unless they name another transport.
pub const UCX_CASES: &[Case] = &[
    uct("uct am_lat short 8 B", "am_lat", "short", 8, 100_000, Latency),
    uct("uct am_lat bcopy 4 KiB", "am_lat", "bcopy", 4 * KB, 75_000, Latency),
    window(32, uct("uct am_bw short 8 B", "am_bw", "short", 8, 1_000_000, Rate)),
    window(32, uct("uct am_bw bcopy 8 B", "am_bw", "bcopy", 8, 1_000_000, Rate)),
    window(32, uct("uct am_bw bcopy 4 KiB", "am_bw", "bcopy", 4 * KB, 250_000, Bandwidth)),
    window(32, uct("uct am_bw bcopy 8 KiB", "am_bw", "bcopy", 8 * KB, 150_000, Bandwidth)),
    uct("uct put_lat short 8 B", "put_lat", "short", 8, 250_000, Latency),
    uct("uct put_bw short 8 B", "put_bw", "short", 8, 3_000_000, Rate),
    uct("uct put_bw bcopy 8 KiB", "put_bw", "bcopy", 8 * KB, 300_000, Bandwidth),
    uct("uct get bcopy 8 B", "get", "bcopy", 8, 3_000_000, Latency),
    window(32, uct("uct get_bw bcopy 8 KiB", "get", "bcopy", 8 * KB, 300_000, Bandwidth)),
    case(Uct, "uct add_lat 8 B", "add_lat", 8, 250_000, Latency),
    case(Uct, "uct add_mr 8 B", "add_mr", 8, 2_000_000, Rate),
    case(Uct, "uct fadd 8 B", "fadd", 8, 2_000_000, Latency),
    case(Uct, "uct swap 8 B", "swap", 8, 2_000_000, Latency),
    case(Uct, "uct cswap 8 B", "cswap", 8, 2_000_000, Latency),
    cma(window(32, uct("uct cma put_bw zcopy 64 KiB", "put_bw", "zcopy", 64 * KB, 5_000, Bandwidth))),
    cma(window(32, uct("uct cma get_bw zcopy 64 KiB", "get", "zcopy", 64 * KB, 5_000, Bandwidth))),
    cma(uct("uct cma get zcopy 4 KiB", "get", "zcopy", 4 * KB, 25_000, Latency)),
    loopback(uct("uct self am_lat short 8 B", "am_lat", "short", 8, 3_000_000, Latency)),
    loopback(window(32, uct("uct self am_bw bcopy 8 KiB", "am_bw", "bcopy", 8 * KB, 200_000, Bandwidth))),
    loopback(uct("uct self put_bw bcopy 8 KiB", "put_bw", "bcopy", 8 * KB, 200_000, Bandwidth)),
    loopback(window(32, uct("uct self get_bw bcopy 8 KiB", "get", "bcopy", 8 * KB, 200_000, Bandwidth))),
    loopback(case(Uct, "uct self fadd 8 B", "fadd", 8, 2_000_000, Latency)),
    case(Ucp, "ucp tag_lat 8 B", "tag_lat", 8, 100_000, Latency),
    case(Ucp, "ucp tag_lat 1 KiB", "tag_lat", KB, 50_000, Latency),
    case(Ucp, "ucp tag_lat 2 KiB", "tag_lat", 2 * KB, 50_000, Latency),
    case(Ucp, "ucp tag_lat 4 KiB", "tag_lat", 4 * KB, 30_000, Latency),
    case(Ucp, "ucp tag_lat 16 KiB", "tag_lat", 16 * KB, 10_000, Latency),
    case(Ucp, "ucp tag_lat 64 KiB", "tag_lat", 64 * KB, 3_000, Latency),
    of_program(case(Ucp, "ucp tag_lat 64 KiB, any memory", "tag_lat", 64 * KB, 3_000, Latency)),
    case(Ucp, "ucp tag_bw 8 B", "tag_bw", 8, 500_000, Rate),
    case(Ucp, "ucp tag_bw 1 KiB", "tag_bw", KB, 150_000, Bandwidth),
    case(Ucp, "ucp tag_bw 4 KiB", "tag_bw", 4 * KB, 80_000, Bandwidth),
    case(Ucp, "ucp tag_bw 64 KiB", "tag_bw", 64 * KB, 6_000, Bandwidth),
    case(Ucp, "ucp tag_bw 1 MiB", "tag_bw", MB, 500, Bandwidth),
    of_program(case(Ucp, "ucp tag_bw 64 KiB, any memory", "tag_bw", 64 * KB, 6_000, Bandwidth)),
    of_program(case(Ucp, "ucp tag_bw 1 MiB, any memory", "tag_bw", MB, 500, Bandwidth)),
    case(Ucp, "ucp put_lat 8 B", "ucp_put_lat", 8, 150_000, Latency),
    case(Ucp, "ucp put_bw 8 B", "ucp_put_bw", 8, 1_000_000, Rate),
    case(Ucp, "ucp put_bw 1 MiB", "ucp_put_bw", MB, 800, Bandwidth),
    case(Ucp, "ucp get 8 B", "ucp_get", 8, 60_000, Latency),
    case(Ucp, "ucp get 1 MiB", "ucp_get", MB, 800, Bandwidth),
    case(Ucp, "ucp fadd 8 B", "ucp_fadd", 8, 500_000, Latency),
    case(Ucp, "ucp am_lat 8 B", "ucp_am_lat", 8, 100_000, Latency),
    case(Ucp, "ucp am_bw 8 B", "ucp_am_bw", 8, 500_000, Rate),
    case(Ucp, "ucp am_bw 1 KiB", "ucp_am_bw", KB, 200_000, Bandwidth),
    case(Ucp, "ucp stream_lat 8 B", "stream_lat", 8, 100_000, Latency),
    loopback(case(Ucp, "ucp self tag_lat 8 B", "tag_lat", 8, 1_000_000, Latency)),
    loopback(case(Ucp, "ucp self tag_lat 64 KiB", "tag_lat", 64 * KB, 50_000, Latency)),
    loopback(case(Ucp, "ucp self tag_bw 64 KiB", "tag_bw", 64 * KB, 50_000, Bandwidth)),
];

/// Cases of several sizes: `$name $label` is the name of a figure.
macro_rules! sizes {
    ($(#[$doc:meta])* $CASES:ident, $harness:ident:
     $($name:literal $test:literal $metric:ident { $($label:literal $size:expr, $iters:expr;)+ })+) => {
        $(#[$doc])*
        pub const $CASES: &[Case] =
            &[$($(case($harness, concat!($name, " ", $label), $test, $size, $iters, $metric)),+),+];
    };
}

sizes! {
    /// Beside UCX, over shared memory: the curves of `docs/versus-ucx.svg`.
    UCX_SIZE_CASES, Ucp:
    "ucp tag_lat" "tag_lat" Latency {
        "8 B" 8, 100_000; "64 B" 64, 100_000; "512 B" 512, 75_000; "1 KiB" KB, 50_000; "4 KiB" 4 * KB, 30_000;
        "8 KiB" 8 * KB, 20_000; "16 KiB" 16 * KB, 10_000; "64 KiB" 64 * KB, 3_000; "256 KiB" 256 * KB, 800;
        "1 MiB" MB, 200; "4 MiB" 4 * MB, 40;
    }
    "ucp tag_bw" "tag_bw" Bandwidth {
        "8 B" 8, 500_000; "64 B" 64, 400_000; "512 B" 512, 200_000; "1 KiB" KB, 150_000; "4 KiB" 4 * KB, 80_000;
        "8 KiB" 8 * KB, 40_000; "16 KiB" 16 * KB, 20_000; "64 KiB" 64 * KB, 6_000; "256 KiB" 256 * KB, 1_600;
        "1 MiB" MB, 500; "4 MiB" 4 * MB, 100;
    }
}

sizes! {
    /// Beside libfabric, on the software EFA device.
    LIBFABRIC_CASES, Bench:
    "tag_lat" "tag_lat" Latency {
        "8 B" 8, 20_000; "512 B" 512, 15_000; "4 KiB" 4 * KB, 8_000; "16 KiB" 16 * KB, 4_000;
        "64 KiB" 64 * KB, 1_500; "256 KiB" 256 * KB, 400; "1 MiB" MB, 150; "4 MiB" 4 * MB, 30;
    }
    "tag_rate" "tag_bw" Rate { "8 B" 8, 100_000; }
    "tag_bw" "tag_bw" Bandwidth {
        "512 B" 512, 60_000; "4 KiB" 4 * KB, 30_000; "16 KiB" 16 * KB, 10_000;
        "64 KiB" 64 * KB, 4_000; "256 KiB" 256 * KB, 800; "1 MiB" MB, 240; "4 MiB" 4 * MB, 64;
    }
    "put_lat" "put_lat" Latency {
        "8 B" 8, 30_000; "4 KiB" 4 * KB, 15_000; "64 KiB" 64 * KB, 3_000; "1 MiB" MB, 300; "4 MiB" 4 * MB, 60;
    }
    "put_rate" "put_bw" Rate { "8 B" 8, 60_000; }
    "put_bw" "put_bw" Bandwidth {
        "4 KiB" 4 * KB, 25_000; "64 KiB" 64 * KB, 3_000; "1 MiB" MB, 240; "4 MiB" 4 * MB, 64;
    }
    "get_lat" "get_lat" Latency {
        "8 B" 8, 15_000; "4 KiB" 4 * KB, 10_000; "64 KiB" 64 * KB, 3_000; "1 MiB" MB, 300; "4 MiB" 4 * MB, 60;
    }
    "get_rate" "get_bw" Rate { "8 B" 8, 40_000; }
    "get_bw" "get_bw" Bandwidth {
        "4 KiB" 4 * KB, 20_000; "64 KiB" 64 * KB, 3_000; "1 MiB" MB, 240; "4 MiB" 4 * MB, 64;
    }
    "fadd" "fadd" Latency { "8 B" 8, 30_000; "512 B" 512, 15_000; "4 KiB" 4 * KB, 5_000; }
}

/// Threads that share a worker on each side, and threads with a worker each, beside UCX.
pub const THREAD_CASES: &[Case] = &[
    threads("8 B, a worker each, 1 thread", 1),
    threads("8 B, a worker each, 2 threads", 2),
    threads("8 B, a worker each, 4 threads", 4),
    case(Scale, "8 B, one worker, 1 thread", "threads", 1, 600_000, Rate),
    case(Scale, "8 B, one worker, 2 threads", "threads", 2, 400_000, Rate),
    case(Scale, "8 B, one worker, 4 threads", "threads", 4, 200_000, Rate),
];

/// Threads and endpoints, beside UCX.
pub const SCALE_CASES: &[Case] = &[
    threads("tag_bw 8 B, 1 thread each side", 1),
    threads("tag_bw 8 B, 2 threads each side", 2),
    threads("tag_bw 8 B, 4 threads each side", 4),
    case(Scale, "tag rate 8 B, 1 endpoint", "rate", 1, 1_000_000, Rate),
    case(Scale, "tag rate 8 B, 2 endpoints", "rate", 2, 1_000_000, Rate),
    case(Scale, "tag rate 8 B, 8 endpoints", "rate", 8, 1_000_000, Rate),
    case(Scale, "tag rate 8 B, 64 endpoints", "rate", 64, 1_000_000, Rate),
    case(Scale, "uct posix: rate 8 B, locked, 1 thread", "shared", 1, 800_000, Rate),
    case(Scale, "uct posix: rate 8 B, locked, 2 threads", "shared", 2, 300_000, Rate),
    case(Scale, "uct posix: rate 8 B, locked, 4 threads", "shared", 4, 100_000, Rate),
    case(Scale, "uct posix: idle progress, 64 endpoints", "uct_peers", 64, 0, Idle),
    case(Scale, "uct posix: endpoint to a new peer", "uct_peers", 64, 0, Create),
    case(Scale, "uct posix: endpoint and first message", "uct_peers", 64, 0, First),
    case(Scale, "uct posix: the same, one peer alone", "uct_peers", 1, 0, First),
    case(Scale, "uct posix: another to the same", "uct_peers", 64, 0, Again),
    case(Scale, "uct posix: memory of an endpoint", "uct_peers", 64, 0, Rss),
    case(Scale, "uct posix: device and iface address", "uct_peers", 64, 0, Address),
    case(Scale, "ucp: idle progress, 64 endpoints", "peers", 64, 0, Idle),
    case(Scale, "ucp: endpoint to a new peer", "peers", 64, 0, Create),
    case(Scale, "ucp: endpoint and first message", "peers", 64, 0, First),
    case(Scale, "ucp: the same, one peer alone", "peers", 1, 0, First),
    case(Scale, "ucp: another to the same", "peers", 64, 0, Again),
    case(Scale, "ucp: memory of an endpoint", "peers", 64, 0, Rss),
    case(Scale, "ucp: worker address", "peers", 64, 0, Address),
    count("tagged message of 8 B, one at a time", 1),
    count("tagged message of 8 B, windows of 16", 16),
];

/// Instructions at both ends, beside libfabric.
pub const INSTRUCTION_CASES: &[Case] = &[
    case(Count, "tagged message of 8 B", "tag", 8, 2_000, Instructions),
    case(Count, "tagged message of 1 KiB", "tag", KB, 2_000, Instructions),
    case(Count, "tagged message of 4 KiB", "tag", 4 * KB, 2_000, Instructions),
    case(Count, "put of 8 B, until it is there", "put", 8, 2_000, Instructions),
    case(Count, "fetch-add of 8 B", "fadd", 8, 2_000, Instructions),
    case(Count, "fetch-add of 512 B", "fadd", 512, 2_000, Instructions),
    case(Count, "fetch-add of 4 KiB", "fadd", 4 * KB, 2_000, Instructions),
];
