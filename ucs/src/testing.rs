//! For tests: reports those that cannot run on this machine, and waits for servers.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

/// Says on standard error that `test` is skipped and why. With `SKIPS=fail` it fails instead.
pub fn skipped(test: &str, why: impl Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    assert!(
        std::env::var_os("SKIPS").is_none_or(|skips| skips != "fail"),
        "{test} is skipped, and must not be: {why}"
    );
}

/// Waits, for a minute at most, until somebody listens on a port of this machine.
pub fn wait_for_listener(port: u16) {
    let (wanted, begun) = (format!(":{port:04X}"), Instant::now());
    let is_listening = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&wanted)) && fields.nth(1) == Some("0A")
    };
    let tables =
        || ["/proc/net/tcp", "/proc/net/tcp6"].map(|at| std::fs::read_to_string(at).unwrap_or_default());
    while !tables().iter().any(|table| table.lines().any(is_listening)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody listens on port {port}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
