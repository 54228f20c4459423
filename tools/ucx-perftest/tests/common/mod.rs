//! Runs the program under test, and looks for processes it leaves behind.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

/// Two-process runs spin: one at a time is faster than all at once on a small machine.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ucx-perftest"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("UCX_") || text.starts_with("SOFTEFA_") {
            command.env_remove(&name);
        }
    }
    command
}

pub struct Ran {
    pub out: String,
    pub err: String,
    pub status: i32,
}

impl From<Output> for Ran {
    fn from(o: Output) -> Ran {
        Ran {
            out: String::from_utf8(o.stdout).unwrap(),
            err: String::from_utf8(o.stderr).unwrap(),
            status: o.status.code().unwrap_or(-1),
        }
    }
}

/// Runs to the end, with `line` split at blanks as arguments.
pub fn run(line: &str) -> Ran {
    run_with(line, &[])
}

pub fn run_with(line: &str, vars: &[(&str, &str)]) -> Ran {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let mut command = program();
    command.args(line.split_whitespace()).envs(vars.iter().copied());
    command.stdin(Stdio::null()).output().unwrap().into()
}

/// Runs to the end; panics unless it succeeds.
pub fn run_ok(line: &str) -> String {
    let ran = run(line);
    assert_eq!(ran.status, 0, "{line}: {}{}", ran.out, ran.err);
    assert_eq!(ran.err, "", "{line}");
    ran.out
}

pub struct Server {
    pub child: Child,
    pub port: u16,
    out: BufReader<std::process::ChildStdout>,
}

impl Server {
    pub fn start(args: &str) -> Server {
        Server::start_with(args, Stdio::piped)
    }

    /// Starts a server with `stderr` as its standard error.
    pub fn start_with(args: &str, stderr: impl Fn() -> Stdio) -> Server {
        // Another program may take the port meanwhile: try another.
        for _ in 0..20 {
            let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = program();
            command.args(["-p", &port.to_string()]).args(args.split_whitespace());
            let mut child =
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr()).spawn().unwrap();
            let mut out = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            if line == "Waiting for connection...\n" {
                return Server { child, port, out };
            }
            child.wait().unwrap();
        }
        panic!("no server could be started");
    }

    pub fn finish(mut self) -> Ran {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().map(|mut from| from.read_to_string(&mut err).unwrap());
        let status = self.child.wait().unwrap().code().unwrap_or(-1);
        Ran { out, err, status }
    }
}

pub fn children_of(pid: u32) -> Vec<u32> {
    let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = |pid: u32| {
        let text = stat(pid);
        text.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok())
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|p| parent(*p) == Some(pid))
        .collect()
}

/// Whether a process runs (a zombie does not).
pub fn is_running(pid: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Waits until `done`, at most ten seconds; returns whether it became true.
pub fn soon(mut done: impl FnMut() -> bool) -> bool {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while std::time::Instant::now() < until {
        if done() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    done()
}
