//! Starting programs and reading their figures: what every side has in common, our `ucx-perftest`, and UCX's.
//!
//! Both run as a server and a client, each pinned to a core. UCX's result is the last line of its CSV output;
//! ours is the JSON object. No program may take longer than [`LONGEST`].

use super::rows::{By, Metric, Row};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long one run may take.
const LONGEST: Duration = Duration::from_secs(60);
/// What starts our programs, if they are missing.
pub const BUILD: &str = "cargo build --release --bins";

/// UCX's development branch watches memory events by patching the C library, which takes a process 0.4 s at its start; its shared
/// memory does without them.
pub const NO_EVENTS: (&str, &str) = ("UCX_MEM_EVENTS", "n");

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start '{program}': {source} ({hint})")]
    Start { program: String, source: std::io::Error, hint: &'static str },
    #[error("'{program}' failed with {status}: {stderr}")]
    Failed { program: String, status: String, stderr: String },
    #[error("'{program}' did not end within {} s", LONGEST.as_secs())]
    Late { program: String },
    #[error("cannot read the result of '{program}': {line:?}")]
    Output { program: String, line: String },
    #[error("the server of '{program}' did not listen within 10 s")]
    NoServer { program: String },
    #[error("{0}")]
    Compile(String),
    #[error("no free TCP port: {0}")]
    Port(std::io::Error),
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("cores {a} and {b}: {source}")]
    Cores { a: u32, b: u32, source: std::io::Error },
}

/// A program beside which ours is put.
pub trait Theirs {
    /// Its name and version, as the table has it.
    fn name(&self) -> String;
    /// How it was run.
    fn describe(&self) -> String;
    /// One run.
    fn run(&self, row: &Row, scale: u64) -> Result<f64, Error>;
    /// One run of ours to be put beside it.
    fn ours(&self, ours: &Ours, row: &Row, scale: u64) -> Result<f64, Error> {
        ours.run(row, scale)
    }
}

/// Ours, and where both run.
pub struct Ours {
    program: PathBuf,
    pub cores: (u32, u32),
}

/// UCX's ucx_perftest.
pub struct Ucx {
    program: PathBuf,
    cores: (u32, u32),
    tls: String,
    version: String,
}

/// A program beside this one.
pub fn beside(name: &str) -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(name)
}

/// How often a row's operation is done.
pub fn iters(row: &Row, scale: u64) -> u64 {
    (row.iters / scale).max(row.iters.min(1000))
}

impl Ours {
    /// Ours, by default the one beside this program.
    pub fn find(program: Option<PathBuf>, cores: (u32, u32)) -> Self {
        Ours { program: program.unwrap_or_else(|| beside("ucx-perftest")), cores }
    }

    /// Where the figures were taken.
    pub fn describe(&self) -> String {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu
            .lines()
            .find_map(|l| l.strip_prefix("model name").and_then(|l| l.split_once(':')))
            .map_or("unknown processor", |(_, m)| m.trim());
        format!("cores {} and {} of {model}", self.cores.0, self.cores.1)
    }

    /// One run.
    pub fn run(&self, row: &Row, scale: u64) -> Result<f64, Error> {
        let mut cmd = Command::new(&self.program);
        cmd.args(["--local", "--json", "-f", "-c", &format!("{},{}", self.cores.0, self.cores.1)]);
        test_args(&mut cmd, row, scale);
        if row.by == By::Ucp {
            cmd.env("UCX_TLS", row.tls);
        }
        json_result(&mut cmd, row.metric, BUILD)
    }
}

/// A child that is killed, if it still runs, when its turn is over.
struct Reaped {
    child: Child,
    grace: Duration,
}

impl Drop for Reaped {
    fn drop(&mut self) {
        if ended(&mut self.child, self.grace) {
            return;
        }
        // It outlived what it was for: nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sleeps until it has ended: nothing wakes up beside what is measured.
fn ended(child: &mut Child, within: Duration) -> bool {
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    // One that has been waited for has no process any more.
    if let Some(pid) = Pid::from_raw(child.id() as i32)
        && let Ok(None) = child.try_wait()
        && let Ok(ends) = pidfd_open(pid, PidfdFlags::empty())
    {
        let _ = poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&timeout));
    }
    matches!(child.try_wait(), Ok(Some(_)) | Err(_))
}

/// What a program says, which is little, once it has ended.
fn output(mut child: Child, program: &str) -> Result<Output, Error> {
    if !ended(&mut child, LONGEST) {
        drop(Reaped { child, grace: Duration::ZERO });
        return Err(Error::Late { program: program.to_owned() });
    }
    child.wait_with_output().map_err(|source| Error::Start {
        program: program.to_owned(),
        source,
        hint: "it ran but could not be waited for",
    })
}

/// The whole output of a program that succeeds.
pub fn text(cmd: &mut Command, hint: &'static str) -> Result<(String, String), Error> {
    let program = cmd.get_program().to_string_lossy().into_owned();
    cmd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = cmd.spawn().map_err(|source| Error::Start { program: program.clone(), source, hint })?;
    let out = output(child, &program)?;
    let stderr = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    if !out.status.success() {
        return Err(Error::Failed { program, status: out.status.to_string(), stderr });
    }
    Ok((String::from_utf8_lossy(&out.stdout).into_owned(), stderr))
}

/// Runs a program that prints a result as one JSON object.
pub fn json_result(cmd: &mut Command, metric: Metric, hint: &'static str) -> Result<f64, Error> {
    let (out, _) = text(cmd, hint)?;
    let line = out.lines().rfind(|l| l.starts_with('{')).unwrap_or_default();
    let program = cmd.get_program().to_string_lossy().into_owned();
    metric.of_json(line).ok_or_else(|| Error::Output { program, line: line.to_owned() })
}

/// Compiles a C program of ours on the spot.
pub fn compile(source: &str, to: &Path, extra: &[String], hint: &str) -> Result<(), Error> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut cc = Command::new(&compiler);
    cc.args(["-std=gnu11", "-O2", "-g", "-o"]).arg(to).arg(source).args(extra);
    let program = compiler.to_string_lossy().into_owned();
    let out = cc.output().map_err(|source| Error::Start { program, source, hint: "Debian package gcc" })?;
    if out.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&out.stderr);
    Err(Error::Compile(format!("{source} does not compile ({hint}):\n{why}")))
}

impl Ucx {
    /// Asks UCX for its version.
    pub fn find(program: PathBuf, cores: (u32, u32), tls: String) -> Result<Self, Error> {
        let info = program.with_file_name("ucx_info");
        let (out, _) = text(Command::new(info).arg("-v"), "Debian package ucx-utils")?;
        let version = out
            .lines()
            .find_map(|l| l.split_once("ersion").map(|(_, v)| v.trim_matches([':', ' ', '"']).to_owned()))
            .unwrap_or_else(|| "of unknown version".into());
        let version = version.split(' ').next().unwrap_or_default().to_owned();
        Ok(Ucx { program, cores, tls, version })
    }

    /// Where it is installed, if not in the system's own place.
    pub fn prefix(&self) -> Option<&Path> {
        self.program.parent().filter(|bin| !bin.as_os_str().is_empty())?.parent()
    }
}

impl Theirs for Ucx {
    fn name(&self) -> String {
        format!("UCX {}", self.version)
    }

    fn describe(&self) -> String {
        format!("UCX_TLS={} for UCX's ucp", self.tls)
    }

    fn run(&self, row: &Row, scale: u64) -> Result<f64, Error> {
        let program = self.program.display().to_string();
        let port = free_port()?;
        let start = |core: u32, host: Option<&str>, out: Stdio| {
            let mut cmd = Command::new(&self.program);
            cmd.args(["-v", "-f", "-p", &port.to_string(), "-c", &core.to_string()]);
            test_args(&mut cmd, row, scale);
            if row.by == By::Ucp {
                cmd.env("UCX_TLS", &self.tls);
            }
            cmd.env(NO_EVENTS.0, NO_EVENTS.1);
            cmd.args(host);
            cmd.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
            cmd.spawn().map_err(|source| Error::Start {
                program: program.clone(),
                source,
                hint: "Debian package ucx-utils",
            })
        };
        let grace = Duration::from_secs(2);
        let mut server = Reaped { child: start(self.cores.0, None, Stdio::null())?, grace };
        wait_listening(port, &mut server.child, &program)?;
        let out = output(start(self.cores.1, Some("127.0.0.1"), Stdio::piped())?, &program)?;
        let text = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() {
            return Err(Error::Failed { program, status: out.status.to_string(), stderr: text.into_owned() });
        }
        // iterations,<p>_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr; with several threads
        // iterations,overall_lat,overall_bw,overall_mr.
        let digit = |c: char| c.is_ascii_digit();
        let line = text.lines().map(str::trim_start).rfind(|l| l.starts_with(digit)).unwrap_or_default();
        let columns: Vec<&str> = line.split(',').collect();
        let column = match (row.metric, columns.len()) {
            (Metric::Latency, 4) => 1,
            (Metric::Bandwidth, 4) => 2,
            (Metric::Rate, 4) => 3,
            (Metric::Latency, _) => 3,
            (Metric::Bandwidth, _) => 5,
            _ => 7,
        };
        let figure = columns
            .get(column)
            .and_then(|f| f.trim().parse::<f64>().ok())
            .ok_or(Error::Output { program, line: line.to_owned() })?;
        Ok(row.metric.in_unit(figure))
    }
}

fn test_args(cmd: &mut Command, row: &Row, scale: u64) {
    cmd.args(["-t", row.test, "-s", &row.size.to_string(), "-n", &iters(row, scale).to_string()]);
    if row.by == By::Uct {
        cmd.args(["-x", "posix", "-d", "memory"]);
    }
    if let Some(path) = row.path {
        cmd.args(["-D", path]);
    }
    // Elsewhere both have the same default; here old releases of theirs and ours had 32, and figures are to stay comparable.
    if row.test == "am_bw" {
        cmd.args(["-O", "32"]);
    }
    if row.threads > 1 {
        cmd.args(["-T", &row.threads.to_string()]);
    }
}

fn free_port() -> Result<u16, Error> {
    let probe = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::Port)?;
    Ok(probe.local_addr().map_err(Error::Port)?.port())
}

/// Waits until somebody listens on `port`, without connecting (the server takes one connection only).
fn wait_listening(port: u16, server: &mut Child, program: &str) -> Result<(), Error> {
    let needle = format!(":{port:04X} ");
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            let text = std::fs::read_to_string(table).unwrap_or_default();
            if text.lines().any(|l| l.contains(&needle) && l.split_whitespace().nth(3) == Some("0A")) {
                return Ok(());
            }
        }
        if let Ok(Some(status)) = server.try_wait() {
            return Err(Error::Failed {
                program: program.to_owned(),
                status: status.to_string(),
                stderr: "the server ended before a client came".into(),
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::NoServer { program: program.to_owned() })
}

/// Instructions of an operation: what twice as many of them cost more, by their number, which is the program's last argument.
pub fn counted(row: &Row, under: impl Fn() -> Command, program: &Path, args: &[&str]) -> Result<f64, Error> {
    let run = |operations: u64| -> Result<f64, Error> {
        let mut cmd = under();
        cmd.args(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
        cmd.args(args).arg(operations.to_string());
        let (_, said) = text(&mut cmd, "Debian package valgrind")?;
        let counted = said.lines().find_map(|l| l.split_once("Collected : ")?.1.trim().parse().ok());
        let program = program.display().to_string();
        counted.ok_or_else(|| Error::Output { program, line: said.clone() })
    };
    Ok((run(2 * row.iters)? - run(row.iters)?) / row.iters as f64)
}
