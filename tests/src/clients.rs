//! Client programs for tests of `softefa`: installed ones and our C programs. Missing ones are skipped with a
//! note.

use crate::launcher::{TIMEOUT, finish, start, text};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use ucs::testing::{not_installed, skipped};

/// Whether a client is installed; notes a missing one.
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        not_installed(program, "not on this machine (Debian package libfabric-bin)");
    }
    found
}

fn is_listening(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|p| std::fs::read_to_string(p).unwrap_or_default());
    let (place, listening) = (format!(":{port:04X}"), "0A");
    tables.iter().flat_map(|t| t.lines()).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|at| at.ends_with(&place)) && words.nth(1) == Some(listening)
    })
}

/// Start of one end of a ping-pong.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// Options of `softefa run`.
    pub options: &'a [&'a str],
    /// Command that starts `fi_pingpong`, if any.
    pub wrapper: &'a [&'a str],
}

/// Runs both ends of a checked ping-pong, server and client.
pub fn pingpong_ends(server: End<'_>, client: End<'_>, arguments: &[&str]) -> [Output; 2] {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let common = [&["fi_pingpong", "-p", "efa", "-c"][..], arguments].concat();
    let serving = start(server.options, &[server.wrapper, &common[..], &["-B", &port]].concat());
    let until = Instant::now() + TIMEOUT;
    while !is_listening(port.parse().unwrap()) {
        assert!(Instant::now() < until, "fi_pingpong {arguments:?}: the server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    let asking = start(client.options, &[client.wrapper, &common[..], &["-P", &port, "127.0.0.1"]].concat());
    let client = finish(asking, "fi_pingpong, client");
    [finish(serving, "fi_pingpong, server"), client]
}

/// Sizes that a client printed.
pub fn sizes(client: &Output) -> Vec<String> {
    let stdout = text(&client.stdout);
    let sizes = stdout.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    sizes.map(str::to_owned).collect()
}

/// Runs a ping-pong that succeeds; returns its sizes.
pub fn pingpong(options: &[&str], arguments: &[&str]) -> Vec<String> {
    let end = End { options, wrapper: &[] };
    let both = pingpong_ends(end, end, arguments);
    for out in &both {
        let (stderr, stdout) = (text(&out.stderr), text(&out.stdout));
        assert!(out.status.success(), "{options:?} {arguments:?}: {:?}\n{stdout}\n{stderr}", out.status);
    }
    sizes(&both[1])
}

/// Folder for what the tests of this process build.
pub fn folder(tmp: &str) -> PathBuf {
    let dir = Path::new(tmp).join(format!("softefa-c-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Compiles C to `program`; `None` without a compiler or what the source needs.
pub fn compile(program: PathBuf, source: &Path, flags: &[&str]) -> Option<PathBuf> {
    let built = Command::new("cc").arg("-o").arg(&program).arg(source).args(flags).output().ok()?;
    if !built.status.success() {
        skipped(&source.display().to_string(), text(&built.stderr));
        return None;
    }
    Some(program)
}

/// Path of a C program of tests/c.
pub fn c_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name)
}

/// Compiles a verbs program of tests/c; `None`, with a note, without libibverbs' headers.
pub fn verbs(tmp: &str, source: &str) -> Option<String> {
    if !Path::new("/usr/include/infiniband/efadv.h").is_file() {
        not_installed(source, "no infiniband/efadv.h (Debian package libibverbs-dev)");
        return None;
    }
    let flags = ["-Wall", "-Werror", "-O1", "-libverbs", "-lefa", "-lpthread"];
    let program = folder(tmp).join(source.trim_end_matches(".c"));
    let built = compile(program, &c_source(source), &flags).expect("it compiles");
    Some(built.to_str().unwrap().to_owned())
}
