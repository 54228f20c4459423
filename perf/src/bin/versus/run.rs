//! Starting the two programs and reading their figures.
//!
//! Both run as a server and a client, each pinned to a core. UCX's result is the last line of its CSV output;
//! ours is the JSON object.

use super::rows::{Layer, Metric, Row};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start '{program}': {source} ({hint})")]
    Start { program: String, source: std::io::Error, hint: &'static str },
    #[error("'{program}' failed with {status}: {stderr}")]
    Failed { program: String, status: String, stderr: String },
    #[error("cannot read the result of '{program}': {line:?}")]
    Output { program: String, line: String },
    #[error("the server of '{program}' did not listen within 10 s")]
    NoServer { program: String },
    #[error("{0}")]
    Compile(String),
    #[error("no free TCP port: {0}")]
    Port(std::io::Error),
}

/// A program beside which ours is put.
pub trait Theirs {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// Its version and how it was run.
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
        format!("cores {},{} of: {model}", self.cores.0, self.cores.1)
    }

    /// One run.
    pub fn run(&self, row: &Row, scale: u64) -> Result<f64, Error> {
        let mut cmd = Command::new(&self.program);
        cmd.args(["--local", "--json", "-f", "-c", &format!("{},{}", self.cores.0, self.cores.1)]);
        test_args(&mut cmd, row, scale);
        if row.layer == Layer::Ucp {
            cmd.env("UCX_TLS", row.tls);
        }
        json_result(&mut cmd, row.metric, "cargo build --release --bins")
    }
}

/// Runs a program that prints a result as one JSON object.
pub fn json_result(cmd: &mut Command, metric: Metric, hint: &'static str) -> Result<f64, Error> {
    let program = cmd.get_program().to_string_lossy().into_owned();
    let out = cmd.output().map_err(|source| Error::Start { program: program.clone(), source, hint })?;
    if !out.status.success() {
        return Err(Error::Failed {
            program,
            status: out.status.to_string(),
            stderr: String::from_utf8_lossy(&out.stderr).trim().to_owned(),
        });
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().rfind(|l| l.starts_with('{')).unwrap_or_default();
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let field = match metric {
        Metric::Latency => &value["latency_us"]["avg"],
        Metric::Rate => &value["msg_rate"],
        Metric::Bandwidth => &value["bandwidth_mbs"],
    };
    let figure = field.as_f64().ok_or(Error::Output { program, line: line.to_owned() })?;
    Ok(in_unit(metric, figure))
}

impl Ucx {
    /// Asks UCX for its version.
    pub fn find(program: PathBuf, cores: (u32, u32), tls: String) -> Result<Self, Error> {
        let info = program.with_file_name("ucx_info");
        let out = Command::new(&info).arg("-v").output().map_err(|source| Error::Start {
            program: info.display().to_string(),
            source,
            hint: "Debian package ucx-utils",
        })?;
        let text = String::from_utf8_lossy(&out.stdout);
        let version = text
            .lines()
            .find_map(|l| l.split_once("ersion").map(|(_, v)| v.trim().trim_matches('"').to_owned()))
            .unwrap_or_else(|| "of unknown version".into());
        Ok(Ucx { program, cores, tls, version })
    }
}

impl Theirs for Ucx {
    fn name(&self) -> &'static str {
        "UCX"
    }

    fn describe(&self) -> String {
        format!("UCX {} (UCX_TLS={} for ucp)", self.version, self.tls)
    }

    fn run(&self, row: &Row, scale: u64) -> Result<f64, Error> {
        let program = self.program.display().to_string();
        let port = free_port()?;
        let start = |core: u32, host: Option<&str>, out: Stdio| {
            let mut cmd = Command::new(&self.program);
            cmd.args(["-v", "-f", "-p", &port.to_string(), "-c", &core.to_string()]);
            test_args(&mut cmd, row, scale);
            if row.layer == Layer::Ucp {
                cmd.env("UCX_TLS", &self.tls);
            }
            cmd.args(host);
            cmd.stdin(Stdio::null()).stdout(out).stderr(Stdio::piped());
            cmd.spawn().map_err(|source| Error::Start {
                program: program.clone(),
                source,
                hint: "Debian package ucx-utils",
            })
        };
        let mut server = Reaped(start(self.cores.0, None, Stdio::null())?);
        wait_listening(port, &mut server.0, &program)?;
        let client = start(self.cores.1, Some("127.0.0.1"), Stdio::piped())?;
        let out = client.wait_with_output().map_err(|source| Error::Start {
            program: program.clone(),
            source,
            hint: "it ran but could not be waited for",
        })?;
        let text = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() {
            return Err(Error::Failed { program, status: out.status.to_string(), stderr: text.into_owned() });
        }
        // iterations,<p>_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
        let line = text.lines().rfind(|l| l.starts_with(|c: char| c.is_ascii_digit())).unwrap_or_default();
        let column = match row.metric {
            Metric::Latency => 3,
            Metric::Bandwidth => 5,
            Metric::Rate => 7,
        };
        let figure = line
            .split(',')
            .nth(column)
            .and_then(|f| f.trim().parse::<f64>().ok())
            .ok_or(Error::Output { program, line: line.to_owned() })?;
        Ok(in_unit(row.metric, figure))
    }
}

/// A server that is killed, if it still runs, when its turn is over.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // It outlived its client by two seconds: nothing to save.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn test_args(cmd: &mut Command, row: &Row, scale: u64) {
    let iters = (row.iters / scale).max(1000);
    cmd.args(["-t", row.test, "-s", row.size, "-n", &iters.to_string()]);
    if row.layer == Layer::Uct {
        cmd.args(["-x", "posix", "-d", "memory"]);
    }
    if let Some(path) = row.path {
        cmd.args(["-D", path]);
    }
}

fn in_unit(metric: Metric, figure: f64) -> f64 {
    if metric == Metric::Rate { figure / 1e6 } else { figure }
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

/// Three significant digits, as a person reads a table.
pub fn three_digits(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}
