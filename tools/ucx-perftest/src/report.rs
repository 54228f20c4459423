//! Output: banner, columns and rows as `ucx_perftest` prints them, CSV, JSON. Scripts read it: the layout is
//! fixed.

use serde::{Deserialize, Serialize};
use tools_common::meter::{Bin, Meter, Reading};
use tools_common::out;
use tools_common::units::grouped;
use ucs::config::Source;
use ucs::sys::CpuSet;
use ucs::time::{Clock as _, Monotonic};

mod group_result;
mod histogram;
mod json;
mod outcome;
mod progress_line;

use crate::cli::Cli;
use crate::fail::Failure;
use crate::link::CoreSharing;
use crate::spec::{Banner, Flow, Histogram, Layer, Layout, Level, Pattern, Spec, Test, Validate};

pub use group_result::{GroupResult, MemberResult};
use outcome::Outcome;
use progress_line::ProgressLine;

const LINE: &str = "+--------------+--------------+------------------------------+---------------------+-----------------------+";
const CELLS: &str = "+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+";
const BOX: &str = "+----------------------------------------------------------------------------------------------------------+";

/// Bytes per MB in bandwidth columns, as `ucx_perftest` counts.
const MB: f64 = 1048576.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Columns,
    Csv,
    Json,
    None,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedTransport {
    pub transport: String,
    pub device: String,
    /// `short`, `bcopy`, `zcopy`, or the protocol of a high-level test.
    pub data_path: String,
}

#[derive(Clone, Debug)]
pub struct TestResult {
    pub spec: Spec,
    pub path: UsedTransport,
    pub reading: Reading,
    pub hist: Vec<Bin>,
    /// Duration, seconds; half of it for a ping-pong.
    pub seconds: f64,
    /// Time of the end on the host's monotonic clock, seconds; halved as `seconds` is.
    pub ended: f64,
    pub group: Option<GroupResult>,
    pub members: Vec<MemberInfo>,
}

/// Where a side ran, and with which settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberInfo {
    pub cores: String,
    /// Transports it may use, as in `UCX_TLS`.
    pub tls: String,
    /// Network devices it may use, as in `UCX_NET_DEVICES`.
    pub devices: String,
    /// Whether it yields its core soon while it waits.
    pub yields: bool,
}

impl MemberInfo {
    pub fn here(spec: &Spec, source: &Source, cores: CoreSharing) -> MemberInfo {
        let set = |asked: &Option<String>, key| {
            let value = asked.as_deref().or_else(|| source.lookup(key).map(|(value, _)| value));
            value.unwrap_or("all").to_owned()
        };
        MemberInfo {
            cores: CpuSet::allowed().map_or_else(|_| String::new(), |set| set.to_string()),
            tls: set(&spec.tl, "UCX_TLS"),
            devices: set(&spec.dev, "UCX_NET_DEVICES"),
            yields: cores == CoreSharing::Shared,
        }
    }
}

impl TestResult {
    /// The result of one side, made when its loop has just ended.
    pub fn new(spec: &Spec, path: UsedTransport, reading: Reading, hist: Vec<Bin>) -> TestResult {
        let seconds = reading.overall * reading.iters as f64;
        let now = Monotonic.now().0 as f64 * 1e-9;
        let ended = if spec.test.flow() == Flow::PingPong { now / 2.0 } else { now };
        TestResult {
            spec: spec.clone(),
            path,
            reading,
            hist,
            seconds,
            ended,
            group: None,
            members: Vec::new(),
        }
    }

    fn figures(&self) -> Figures {
        match &self.group {
            None => Figures::new(self.spec.size(), self.reading),
            Some(total) => Figures {
                overall_rate: total.rate,
                overall_bw: total.rate * self.spec.size() as f64 / MB,
                ..Figures::new(self.spec.size(), total.reading)
            },
        }
    }

    /// Several members have measured: only overall figures are known of all together.
    fn is_group(&self) -> bool {
        self.group.as_ref().is_some_and(|total| total.each.len() > 1)
    }

    /// Iterations as `ucx_perftest` prints them: with `-T` those of one thread.
    fn iters_of_a_thread(&self) -> u64 {
        let threads = if self.spec.pattern == Pattern::Pairs { self.spec.threads } else { 1 };
        self.iters() / u64::from(threads.max(1))
    }

    fn iters(&self) -> u64 {
        self.group.as_ref().map_or(self.reading.iters, |total| total.reading.iters)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    All,
    /// Descriptions of tests: a server.
    Banners,
    /// The client of a server.
    Results,
}

pub struct Report {
    format: Format,
    output: Output,
    rank: f64,
    numeric: bool,
    only_final: bool,
    quiet: bool,
    extra: bool,
    batch: Vec<String>,
    /// CSV has a column for the size, as some tests have a range of sizes.
    size_column: bool,
    header_printed: bool,
    progress_line: ProgressLine,
    outcome: Outcome,
    saved_json: Option<Vec<String>>,
}

impl Report {
    pub fn new(cli: &Cli) -> Report {
        let name = |p: &std::path::PathBuf| {
            p.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
        };
        Report {
            format: match cli {
                Cli { json: true, .. } => Format::Json,
                Cli { csv: true, .. } => Format::Csv,
                _ => Format::Columns,
            },
            output: Output::All,
            rank: cli.test.rank(),
            numeric: cli.numeric,
            only_final: cli.only_final,
            quiet: cli.quiet,
            extra: cli.extra,
            batch: cli.batch.iter().map(name).collect(),
            size_column: false,
            header_printed: false,
            // Columns have a row per second.
            progress_line: ProgressLine::new(cli.json || cli.csv || cli.only_final),
            outcome: Outcome::default(),
            saved_json: cli.plot.is_some().then(Vec::new),
        }
    }

    /// Results so far as JSON, if they are saved for a plot.
    pub fn results(&self) -> &[String] {
        self.saved_json.as_deref().unwrap_or_default()
    }

    pub fn silent() -> Report {
        Report {
            format: Format::None,
            output: Output::All,
            rank: 50.0,
            numeric: false,
            only_final: true,
            quiet: true,
            extra: false,
            batch: Vec::new(),
            size_column: false,
            header_printed: false,
            progress_line: ProgressLine::default(),
            outcome: Outcome::default(),
            saved_json: None,
        }
    }

    pub fn set_output(&mut self, output: Output) {
        self.output = output;
    }

    pub fn expect_tests(&mut self, tests: usize) {
        self.outcome.expect_tests(tests);
    }

    pub fn set_size_column(&mut self, any: bool) {
        self.size_column = any;
    }

    pub fn started(&self) -> usize {
        self.outcome.started
    }

    /// Records a failed test; printed at once if there are several.
    pub fn failed(&mut self, label: Option<&str>, failure: Failure) {
        self.progress_line.clear();
        self.outcome.failed(label, failure, self.format != Format::None);
    }

    /// Records a failure that all sides know; returns any other, which ends the run.
    pub fn continue_after(&mut self, spec: &Spec, failure: Failure) -> Result<(), Failure> {
        if !matches!(failure, Failure::Agreed(_)) {
            return Err(failure);
        }
        self.failed(spec.label().as_deref(), failure);
        Ok(())
    }

    pub fn outcome(&mut self) -> Result<(), Failure> {
        self.outcome.outcome()
    }

    /// Distribution of the times in `meter`, if asked for.
    pub fn histogram(spec: &Spec, meter: &Meter) -> Vec<Bin> {
        let scale = if spec.test.flow() == Flow::PingPong { 0.5 } else { 1.0 };
        if spec.hist == Histogram::Yes { meter.histogram(scale) } else { Vec::new() }
    }

    pub fn note(&self, text: &str) {
        if self.format == Format::Columns && !self.quiet {
            out::line(text);
        }
    }

    pub fn begin_test(&mut self, spec: &Spec) {
        self.outcome.started += 1;
        if self.output != Output::Results {
            self.banner(spec);
        }
        match self.output {
            Output::Banners if spec.banner == Banner::Shown => self.end_banner(),
            Output::Banners => {}
            Output::All | Output::Results => self.print_header(spec),
        }
    }

    fn banner(&self, spec: &Spec) {
        if self.format != Format::Columns || self.quiet || spec.banner == Banner::Hidden {
            return;
        }
        banner(spec).iter().for_each(out::line);
    }

    fn end_banner(&self) {
        if self.format == Format::Columns && !self.quiet {
            out::line(BOX);
        }
    }

    fn print_header(&mut self, spec: &Spec) {
        match self.format {
            Format::Columns => {
                if !self.header_printed && !self.quiet {
                    head(spec.test, self.rank, self.only_final).iter().for_each(out::line);
                } else if self.only_final && self.output == Output::All && spec.banner == Banner::Shown {
                    self.end_banner();
                }
                if let (Some(label), false) = (spec.label(), self.only_final) {
                    out::line(format!("+{label:-<14}{}", CELLS.get(15..).unwrap_or_default()));
                }
            }
            Format::Csv if !self.header_printed => {
                let mut names: Vec<String> = self.batch.iter().map(|name| cell(name)).collect();
                if self.size_column {
                    names.push(if names.is_empty() { "label" } else { "size" }.into());
                }
                names.push(format!(
                    "iterations,{:.1}_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr",
                    self.rank
                ));
                out::line(names.join(","));
            }
            _ => {}
        }
        self.header_printed = true;
    }

    /// Prints figures so far, once a second.
    pub fn progress(&self, spec: &Spec, path: &UsedTransport, reading: Reading) {
        if self.output == Output::Banners {
            return;
        }
        if self.format == Format::Columns && !self.only_final {
            out::line(self.columns("[thread 0]", spec, reading) + &self.transport_suffix(path));
        }
        self.progress_line.show(spec, reading);
    }

    pub fn result(&mut self, done: &TestResult) {
        self.progress_line.clear();
        if self.output == Output::Banners {
            return;
        }
        let json = || serde_json::to_string(&json::object(done)).expect("a result is plain data");
        if let Some(saved_json) = &mut self.saved_json {
            saved_json.push(json());
        }
        let label = done.spec.label();
        match self.format {
            Format::None => {}
            Format::Columns => {
                let first = match (self.only_final, label) {
                    (false, _) => "Final:    ".to_owned(),
                    (true, Some(label)) => format!("{label:>10}"),
                    (true, None) => String::new(),
                };
                let figures = match done.is_group() {
                    true => self.group_columns(&first, done),
                    false => self.columns(&first, &done.spec, done.reading),
                };
                out::line(figures + &self.transport_suffix(&done.path));
                histogram::lines(&done.hist).iter().for_each(out::line);
            }
            Format::Csv => {
                let mut cells: Vec<String> = done.spec.names.iter().map(|name| cell(name)).collect();
                cells.extend(self.size_column.then(|| done.spec.size().to_string()));
                cells.extend(csv_cells(done));
                out::line(cells.join(","));
            }
            Format::Json => out::line(json()),
        }
    }

    /// Suffix of rows with `-X`, after two blanks as in `ucx_perftest`.
    fn transport_suffix(&self, UsedTransport { transport, device, data_path }: &UsedTransport) -> String {
        if self.extra { format!("  {transport}/{device} {data_path}") } else { String::new() }
    }

    /// The overall columns only, as `ucx_perftest` prints sums of threads.
    fn group_columns(&self, first: &str, done: &TestResult) -> String {
        let f = done.figures();
        let n = |value: f64, decimals| self.number(value, decimals);
        format!(
            "{first:<10}{:>18} {:>10} {:>9} {:>9} {:>11} {:>10} {:>11} {:>11}",
            n(done.iters_of_a_thread() as f64, 0),
            "",
            "",
            n(f.overall, 3),
            "",
            n(f.overall_bw, 2),
            "",
            n(f.overall_rate, 0)
        )
    }

    fn number(&self, value: f64, decimals: usize) -> String {
        if self.numeric { grouped(value, decimals) } else { format!("{value:.decimals$}") }
    }

    fn columns(&self, first: &str, spec: &Spec, reading: Reading) -> String {
        let f = Figures::new(spec.size(), reading);
        let n = |value: f64, decimals| self.number(value, decimals);
        format!(
            "{first:<10}{:>18} {:>10} {:>9} {:>9} {:>11} {:>10} {:>11} {:>11}",
            n(reading.iters as f64, 0),
            n(f.rank, 3),
            n(f.recent, 3),
            n(f.overall, 3),
            n(f.recent_bw, 2),
            n(f.overall_bw, 2),
            n(f.recent_rate, 0),
            n(f.overall_rate, 0)
        )
    }
}

struct Figures {
    rank: f64,
    recent: f64,
    overall: f64,
    recent_bw: f64,
    overall_bw: f64,
    recent_rate: f64,
    overall_rate: f64,
}

impl Figures {
    fn new(size: usize, r: Reading) -> Figures {
        let rate = |seconds: f64| if seconds > 0.0 { 1.0 / seconds } else { 0.0 };
        Figures {
            rank: r.rank * 1e6,
            recent: r.recent * 1e6,
            overall: r.overall * 1e6,
            recent_bw: rate(r.recent) * size as f64 / MB,
            overall_bw: rate(r.overall) * size as f64 / MB,
            recent_rate: rate(r.recent),
            overall_rate: rate(r.overall),
        }
    }
}

fn cell(word: &str) -> String {
    if word.contains([',', '"']) { format!("\"{}\"", word.replace('"', "\"\"")) } else { word.to_owned() }
}

/// Cells of a CSV row; a group has the four overall figures only, as `ucx_perftest` has with threads.
fn csv_cells(done: &TestResult) -> Vec<String> {
    let f = done.figures();
    let (us, mb, n) =
        (|us: f64| format!("{us:.3}"), |mb: f64| format!("{mb:.2}"), |n: f64| format!("{n:.0}"));
    let iters = done.iters_of_a_thread().to_string();
    if done.is_group() {
        return vec![iters, us(f.overall), mb(f.overall_bw), n(f.overall_rate)];
    }
    let times = [us(f.rank), us(f.recent), us(f.overall)];
    let rates = [mb(f.recent_bw), mb(f.overall_bw), n(f.recent_rate), n(f.overall_rate)];
    std::iter::once(iters).chain(times).chain(rates).collect()
}

fn banner(spec: &Spec) -> Vec<String> {
    let rows = rows(spec);
    std::iter::once(BOX.to_owned()).chain(rows.iter().map(|(key, value)| box_row(key, value))).collect()
}

fn rows(spec: &Spec) -> Vec<(&'static str, String)> {
    let layer = match spec.test.layer() {
        Layer::Uct => "transport layer",
        Layer::Ucp => "protocol layer",
    };
    let layout = match (spec.layout, spec.test.layer()) {
        (_, Layer::Ucp) => "(automatic)".into(),
        (Some(Layout::ShortIov), _) => "short iov".into(),
        (Some(layout), _) => layout.to_string(),
        (None, Layer::Uct) => "(first that fits)".into(),
    };
    let mut rows = vec![
        ("API:", layer.to_owned()),
        ("Test:", spec.test.about().to_owned()),
        ("Data layout:", layout),
        ("Send memory:", "host".to_owned()),
        ("Recv memory:", "host".to_owned()),
        ("Message size:", spec.size().to_string()),
        ("Window size:", spec.window.to_string()),
    ];
    if matches!(spec.test, Test::UcpAmLat | Test::UcpAmBw) {
        rows.push(("AM header size:", spec.am_header.to_string()));
    }
    // Rows that `ucx_perftest` does not have come last.
    if spec.pattern != Pattern::Pairs {
        rows.push(("Pattern:", spec.pattern.name().to_owned()));
    }
    if spec.level != Level::Single {
        rows.push(("Thread mode:", spec.level.name().to_owned()));
    }
    if spec.validate == Validate::Yes {
        rows.push(("Validation:", "every byte".to_owned()));
    }
    rows
}

fn box_row(key: &str, value: &str) -> String {
    format!("| {:<105}|", format!("{key:<13} {value}"))
}

/// Column titles in three rows.
pub fn head(test: Test, rank: f64, only_final: bool) -> [String; 5] {
    let stage = if only_final { "    Test     " } else { "   Stage     " };
    let times = format!("{} (usec)", test.times());
    [
        LINE.into(),
        format!("|              |              |{times:^30}|   bandwidth (MB/s)  |  message rate (msg/s) |"),
        CELLS.into(),
        format!(
            "| {stage}| # iterations |{:>9} | average | overall |  average |  overall |  average  |  overall  |",
            format!("{rank:.1}%ile")
        ),
        CELLS.into(),
    ]
}

#[cfg(test)]
mod tests;
