//! `--local` without `-t`: some tests over every transport in one table, some seconds in all.

use tools_common::out;
use tools_common::table::{Align, Table};
use tools_common::units::short_bytes;
use ucs::config::Source;

use crate::cli::{Cli, Sizes, TestArgs};
use crate::fail::Failure;
use crate::local;
use crate::report::{Report, TestResult};
use crate::session::{self, Plan};
use crate::spec::{Layer, Spec, Test};

/// Test, size, iterations over shared memory, iterations over the network.
type SweepTest = (Test, usize, u64, u64);

const TESTS: &[SweepTest] = &[
    (Test::AmLat, 8, 200_000, 50_000),
    (Test::AmBw, 8, 1_000_000, 200_000),
    (Test::AmBw, 8192, 200_000, 100_000),
    (Test::PutLat, 8, 200_000, 50_000),
    (Test::PutBw, 65536, 20_000, 10_000),
    (Test::Get, 65536, 20_000, 10_000),
    (Test::Fadd, 8, 500_000, 0),
    (Test::TagLat, 8, 200_000, 50_000),
    (Test::TagLat, 4096, 100_000, 30_000),
    (Test::TagBw, 8, 500_000, 100_000),
    (Test::TagBw, 65536, 10_000, 5_000),
    (Test::TagBw, 1 << 20, 1_000, 500),
];

const TRANSPORTS: &[(&str, &str)] = &[("posix", "memory"), ("efa", "softefa0")];

/// Options that a sweep accepts.
const ALLOWED_OPTIONS: [&str; 6] = ["--local", "--json", "-v", "-c", "-q", "-f"];

pub fn run(cli: &Cli, source: &Source) -> Result<(), Failure> {
    if let Some(option) = cli.given.iter().find(|option| !ALLOWED_OPTIONS.contains(&option.as_str())) {
        return Err(Failure::Usage(format!(
            "{option} is for a test, which -t or -b names; --local alone is a short sweep of tests, for which there are: {}",
            ALLOWED_OPTIONS[1..].join(", ")
        )));
    }
    let specs = specs()?;
    let (mut link, _peer) = local::start(cli.cpus.as_ref())?;
    Plan { specs: specs.clone() }.send(&mut link)?;
    let mut report = if cli.json || cli.csv { Report::new(cli) } else { Report::silent() };
    let mut table = Table::new(&[
        ("wire", Align::Left),
        ("test", Align::Left),
        ("size", Align::Right),
        ("data path", Align::Left),
        ("median usec", Align::Right),
        ("average usec", Align::Right),
        ("99.9 % usec", Align::Right),
        ("MB/s", Align::Right),
        ("M msg/s", Align::Right),
    ]);
    session::run_active(&specs, source, &mut link, &mut report, |done| table.row(cells(&done)))?;
    report.outcome()?;
    if !(cli.json || cli.csv) {
        out::line(table.to_string());
        out::line(
            "Two processes on two cores. *_lat: half a round trip; others: time per message, delivered.\n\
             One measurement each: -t TEST -x TRANSPORT repeats one with more iterations.",
        );
    }
    Ok(())
}

fn specs() -> Result<Vec<Spec>, Failure> {
    let mut specs = Vec::new();
    for (tl, dev) in TRANSPORTS {
        for (test, size, shm, net) in TESTS {
            let iters = if *tl == "efa" { *net } else { *shm };
            if iters == 0 {
                continue;
            }
            let args = TestArgs {
                test: Some(*test),
                tl: Some((*tl).into()),
                dev: (test.layer() == Layer::Uct).then(|| (*dev).into()),
                size: Some(Sizes::Pieces(vec![*size])),
                iters: Some(iters),
                ..TestArgs::default()
            };
            specs.extend(args.specs(&[])?);
        }
    }
    Ok(specs)
}

fn cells(done: &TestResult) -> [String; 9] {
    let r = done.reading;
    // In a stream most posts are short and some wait for the window: their median says little.
    let each = |seconds: f64| match done.spec.test.times() {
        "overhead" => "-".to_owned(),
        _ => format!("{:.3}", seconds * 1e6),
    };
    let rate = if r.overall > 0.0 { 1.0 / r.overall } else { 0.0 };
    [
        done.path.transport.clone(),
        done.spec.test.name().into(),
        short_bytes(done.spec.size()),
        done.path.data_path.clone(),
        each(r.p50),
        format!("{:.3}", r.overall * 1e6),
        each(r.p99_9),
        format!("{:.0}", rate * done.spec.size() as f64 / 1048576.0),
        format!("{:.3}", rate / 1e6),
    ]
}
