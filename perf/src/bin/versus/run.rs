//! Starts programs and reads their figures. Both sides run as a server and a client, each pinned to a core.
//! UCX's figure is the last line of its CSV output, ours a JSON object.

use super::cases::{Case, Harness, Metric};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::cell::OnceCell;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const LONGEST: Duration = Duration::from_secs(60);
pub const BUILD: &str = "cargo build --release --bins";

/// Hooks of UCX's development branch into the C library take 0.4 s at the start of a process, and shared
/// memory does not need them.
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
    #[error("--only {0}: no case has that in its name")]
    NoCase(String),
    #[error("no free TCP port: {0}")]
    Port(std::io::Error),
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("cores {a} and {b}: {source}")]
    Cores { a: u32, b: u32, source: std::io::Error },
}

/// A program that ours is compared with.
pub trait Theirs {
    fn name(&self) -> String;
    fn describe(&self) -> String;
    fn run(&self, case: &Case, scale: u64) -> Result<f64, Error>;
    /// One run of ours to compare with.
    fn ours(&self, ours: &Ours, case: &Case, scale: u64) -> Result<f64, Error> {
        ours.run(case, scale)
    }
}

pub struct Ours {
    program: PathBuf,
    pub cores: (u32, u32),
}

pub struct Ucx {
    program: PathBuf,
    cores: (u32, u32),
    tls: String,
    version: String,
    /// Folder of the library that the program runs on; `None`: its own.
    library: Option<PathBuf>,
    /// Device of `self`, whose name depends on the release.
    own_device: OnceCell<String>,
}

/// Path of a program in this program's folder.
pub fn sibling_program(name: &str) -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name(name)
}

/// Number of operations in a run.
pub fn iters(case: &Case, scale: u64) -> u64 {
    (case.iters / scale).max(case.iters.min(1000))
}

impl Ours {
    pub fn find(program: Option<PathBuf>, cores: (u32, u32)) -> Self {
        Ours { program: program.unwrap_or_else(|| sibling_program("ucx-perftest")), cores }
    }

    /// Cores and processor of the figures.
    pub fn describe(&self) -> String {
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu
            .lines()
            .find_map(|l| l.strip_prefix("model name").and_then(|l| l.split_once(':')))
            .map_or("unknown processor", |(_, m)| m.trim());
        format!("cores {} and {} of {model}", self.cores.0, self.cores.1)
    }

    pub fn run(&self, case: &Case, scale: u64) -> Result<f64, Error> {
        let mut cmd = Command::new(&self.program);
        cmd.args(["--json", "-f", "-c"]);
        match case.is_loopback() {
            true => cmd.args([&self.cores.1.to_string(), "-l"]),
            false => cmd.args([&format!("{},{}", self.cores.0, self.cores.1), "--local"]),
        };
        cmd.args(test_args(case, scale, "memory"));
        if case.own {
            cmd.arg("--own");
        }
        if case.harness == Harness::Ucp {
            cmd.env("UCX_TLS", case.tls);
        }
        json_result(&mut cmd, case.metric, BUILD)
    }
}

/// A child that gets some grace to end when dropped, and is then killed.
struct Reaped {
    child: Child,
    grace: Duration,
}

impl Drop for Reaped {
    fn drop(&mut self) {
        if ended(&mut self.child, self.grace) {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the end of a child without waking up meanwhile, which would disturb the measurement.
fn ended(child: &mut Child, within: Duration) -> bool {
    let timeout = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    // A child that has been waited for has no process any more.
    if let Some(pid) = Pid::from_raw(child.id() as i32)
        && let Ok(None) = child.try_wait()
        && let Ok(ends) = pidfd_open(pid, PidfdFlags::empty())
    {
        let _ = poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&timeout));
    }
    matches!(child.try_wait(), Ok(Some(_)) | Err(_))
}

/// Output of a program that has ended; it must fit into the pipes.
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

/// Standard output and error of a program that succeeds.
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

/// Runs a program that prints a result as a JSON object.
pub fn json_result(cmd: &mut Command, metric: Metric, hint: &'static str) -> Result<f64, Error> {
    let (out, _) = text(cmd, hint)?;
    let line = out.lines().rfind(|l| l.starts_with('{')).unwrap_or_default();
    let program = cmd.get_program().to_string_lossy().into_owned();
    metric.of_json(line).ok_or_else(|| Error::Output { program, line: line.to_owned() })
}

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
    pub fn find(program: PathBuf, cores: (u32, u32), tls: String) -> Result<Self, Error> {
        let info = program.with_file_name("ucx_info");
        let (out, _) = text(Command::new(info).arg("-v"), "Debian package ucx-utils")?;
        let version = out
            .lines()
            .find_map(|l| l.split_once("ersion").map(|(_, v)| v.trim_matches([':', ' ', '"']).to_owned()))
            .unwrap_or_else(|| "of unknown version".into());
        let version = version.split(' ').next().unwrap_or_default().to_owned();
        Ok(Ucx { program, cores, tls, version, library: None, own_device: OnceCell::new() })
    }

    /// UCX's program on the library in `folder`, which is this project's.
    pub fn on_library(&self, folder: &Path) -> Result<Ucx, Error> {
        let library = folder.join("libucp.so.0");
        if let Err(source) = std::fs::metadata(&library) {
            return Err(Error::File { path: format!("{} (tools/install)", library.display()), source });
        }
        Ok(Ucx {
            program: self.program.clone(),
            tls: self.tls.clone(),
            version: self.version.clone(),
            library: Some(folder.to_owned()),
            own_device: OnceCell::from("memory".to_owned()),
            ..*self
        })
    }

    fn device(&self, case: &Case) -> Result<&str, Error> {
        if !case.is_loopback() {
            return Ok("memory");
        }
        if let Some(known) = self.own_device.get() {
            return Ok(known);
        }
        let info = self.program.with_file_name("ucx_info");
        let (out, _) = text(Command::new(info).arg("-d"), "Debian package ucx-utils")?;
        Ok(self.own_device.get_or_init(|| device_of(&out, case.tls).unwrap_or("memory").to_owned()))
    }

    fn start(&self, case: &Case, scale: u64, core: u32, extra: &[&str], out: Stdio) -> Result<Child, Error> {
        let mut cmd = Command::new(&self.program);
        cmd.args(["-v", "-f", "-c", &core.to_string()]);
        cmd.args(test_args(case, scale, self.device(case)?)).args(extra);
        if case.harness == Harness::Ucp {
            cmd.env("UCX_TLS", &self.tls);
        }
        if let Some(folder) = &self.library {
            cmd.env("LD_LIBRARY_PATH", folder);
        }
        cmd.env(NO_EVENTS.0, NO_EVENTS.1);
        cmd.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
        let program = self.program.display().to_string();
        cmd.spawn().map_err(|source| Error::Start { program, source, hint: "Debian package ucx-utils" })
    }

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

    fn run(&self, case: &Case, scale: u64) -> Result<f64, Error> {
        let program = self.program.display().to_string();
        let out = if case.is_loopback() {
            output(self.start(case, scale, self.cores.1, &["-l"], Stdio::piped())?, &program)?
        } else {
            let port = free_port()?;
            let line = ["-p", &port.to_string(), "127.0.0.1"];
            let server = self.start(case, scale, self.cores.0, &line[..2], Stdio::null())?;
            let mut server = Reaped { child: server, grace: Duration::from_secs(2) };
            wait_listening(port, &mut server.child, &program)?;
            output(self.start(case, scale, self.cores.1, &line, Stdio::piped())?, &program)?
        };
        let text = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() {
            return Err(Error::Failed { program, status: out.status.to_string(), stderr: text.into_owned() });
        }
        let line = last_figures(&text);
        let figure =
            of_columns(case.metric, line).ok_or_else(|| Error::Output { program, line: line.to_owned() })?;
        Ok(case.metric.in_unit(figure))
    }
}

/// Options that both programs have.
fn test_args(case: &Case, scale: u64, device: &str) -> Vec<String> {
    let mut args: Vec<String> =
        ["-t", case.test, "-s", &case.size.to_string(), "-n", &iters(case, scale).to_string()]
            .map(str::to_owned)
            .into();
    let mut add = |option: &str, value: &str| args.extend([option.to_owned(), value.to_owned()]);
    if case.harness == Harness::Uct {
        add("-x", case.tls);
        add("-d", device);
    }
    if let Some(path) = case.path {
        add("-D", path);
    }
    if let Some(window) = case.window {
        add("-O", &window.to_string());
    }
    if case.threads > 1 {
        add("-T", &case.threads.to_string());
    }
    args
}

/// Device of a transport in the output of `ucx_info -d`.
fn device_of<'a>(info: &'a str, tl: &str) -> Option<&'a str> {
    let value = |line: &'a str, name| line.trim_start_matches(['#', ' ']).strip_prefix(name).map(str::trim);
    let mut lines = info.lines();
    lines.find(|line| value(line, "Transport:") == Some(tl))?;
    value(lines.next()?, "Device:")
}

/// The last line of figures; text may follow it.
fn last_figures(text: &str) -> &str {
    let digit = |c: char| c.is_ascii_digit();
    text.lines().map(str::trim_start).rfind(|l| l.starts_with(digit)).unwrap_or_default()
}

/// A figure of a CSV line:
/// `iterations,<p>_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr`, or
/// `iterations,overall_lat,overall_bw,overall_mr` with several threads.
fn of_columns(metric: Metric, line: &str) -> Option<f64> {
    let columns: Vec<&str> = line.split(',').collect();
    let column = match (metric, columns.len()) {
        (Metric::Latency, 4) => 1,
        (Metric::Bandwidth, 4) => 2,
        (Metric::Rate, 4) => 3,
        (Metric::Latency, 8) => 3,
        (Metric::Bandwidth, 8) => 5,
        (Metric::Rate, 8) => 7,
        _ => return None,
    };
    let figure = |column: usize| -> Option<f64> { columns.get(column)?.trim().parse().ok() };
    let printed = figure(column)?;
    if let (Metric::Latency, 8) = (metric, columns.len()) {
        // Latency has whole nanoseconds. With one message at a time the rate says the same more exactly.
        let exact = figure(7).filter(|rate| *rate > 0.0).map(|rate| 1e6 / rate);
        return exact.filter(|exact| (exact - printed).abs() < 0.002).or(Some(printed));
    }
    Some(printed)
}

fn free_port() -> Result<u16, Error> {
    let probe = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::Port)?;
    Ok(probe.local_addr().map_err(Error::Port)?.port())
}

/// Waits for a listener on `port` without connecting, as the server takes one connection only.
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

/// Instructions per operation: the difference of a run with twice as many operations. Both run at once, as
/// counts are not disturbed. The last argument of the program is the number of operations.
pub fn counted(
    case: &Case,
    scale: u64,
    under: impl Fn() -> Command + Sync,
    program: &Path,
    args: &[&str],
) -> Result<f64, Error> {
    let run = |operations: u64| -> Result<f64, Error> {
        let mut cmd = under();
        cmd.args(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
        cmd.args(args).arg(operations.to_string());
        let (_, said) = text(&mut cmd, "Debian package valgrind")?;
        let counted = said.lines().find_map(|l| l.split_once("Collected : ")?.1.trim().parse().ok());
        let program = program.display().to_string();
        counted.ok_or_else(|| Error::Output { program, line: said.clone() })
    };
    let n = iters(case, scale);
    let (twice, once) = std::thread::scope(|s| {
        let twice = s.spawn(|| run(2 * n));
        let once = run(n);
        (twice.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), once)
    });
    Ok((twice? - once?) / n as f64)
}

#[cfg(test)]
mod tests {
    use super::super::cases::{LIBFABRIC_CASES, SCALE_CASES, UCX_CASES};
    use super::*;

    fn args(name: &str) -> (&'static Case, String) {
        let case = UCX_CASES.iter().find(|case| case.name == name).unwrap();
        (case, test_args(case, 1, "memory0").join(" "))
    }

    #[test]
    fn case_determines_transport_window_and_memory() {
        let (case, line) = args("uct am_bw bcopy 8 KiB");
        assert_eq!(line, "-t am_bw -s 8192 -n 150000 -x posix -d memory0 -D bcopy -O 32");
        assert!(!case.own && !case.is_loopback());
        let (case, line) = args("uct cma get_bw zcopy 64 KiB");
        assert_eq!(line, "-t get -s 65536 -n 5000 -x cma -d memory0 -D zcopy -O 32");
        assert!(case.own && !case.is_loopback());
        let (case, line) = args("uct self am_lat short 8 B");
        assert_eq!(line, "-t am_lat -s 8 -n 3000000 -x self -d memory0 -D short");
        assert!(!case.own && case.is_loopback());
        let (case, line) = args("ucp tag_lat 8 B");
        assert_eq!(line, "-t tag_lat -s 8 -n 100000");
        assert!(!case.is_loopback());
        let (case, line) = args("ucp self tag_bw 64 KiB");
        assert_eq!(line, "-t tag_bw -s 65536 -n 50000");
        assert!(case.is_loopback());
    }

    #[test]
    fn case_names_are_unique() {
        for cases in [UCX_CASES, SCALE_CASES, LIBFABRIC_CASES] {
            let mut names: Vec<_> = cases.iter().map(|case| case.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), cases.len());
        }
    }

    #[test]
    fn figures_of_ucx_with_and_without_a_server_and_of_threads() {
        let titles =
            "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n";
        let text =
            format!("{titles}100000,0.171,0.291,0.290,26829.55,26829.50,3434182,3434181\nnot a figure\n");
        let line = last_figures(&text);
        assert_eq!(of_columns(Metric::Latency, line), Some(1e6 / 3434181.0), "it is 0.2912");
        let short = "100,0.005,0.005,0.005,1424.88,1424.88,188352284,188352284";
        assert_eq!(of_columns(Metric::Latency, short), Some(1e6 / 188352284.0));
        let windows = "100,0.005,0.005,0.400,1424.88,1424.88,188352284,188352284";
        assert_eq!(of_columns(Metric::Latency, windows), Some(0.4));
        assert_eq!(of_columns(Metric::Bandwidth, line), Some(26829.50));
        assert_eq!(of_columns(Metric::Rate, line), Some(3434181.0));
        let line = last_figures("  2000,0.5,15.25,2000000\n");
        let all = [Metric::Latency, Metric::Bandwidth, Metric::Rate].map(|metric| of_columns(metric, line));
        assert_eq!(all, [Some(0.5), Some(15.25), Some(2e6)]);
        assert_eq!(of_columns(Metric::Idle, line), None);
        assert_eq!(of_columns(Metric::Latency, last_figures(titles)), None);
    }

    #[test]
    fn device_of_transport_is_found() {
        let info = "#      Transport: posix\n#         Device: memory\n#           Type: intra-node\n\
                    #      Transport: self\n#         Device: memory0\n#           Type: loopback\n";
        assert_eq!(device_of(info, "self"), Some("memory0"));
        assert_eq!(device_of(info, "posix"), Some("memory"));
        assert_eq!(device_of(info, "se"), None);
        assert_eq!(device_of("#      Transport: self\n", "self"), None);
    }
}
