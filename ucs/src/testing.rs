//! For tests: reports those that cannot run on this machine, waits for servers, forks, and checks tables of
//! documents.

#![allow(unsafe_code)]

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Says on standard error that `test` is skipped and why: this machine cannot run it. With `SKIPS=fail` it
/// fails instead.
pub fn skipped(test: &str, why: impl Display) {
    skipped_but_for(&["fail"], test, &why);
}

/// Says on standard error that `test` is skipped, as a program or a header is not installed. It fails with
/// `SKIPS=fail` and with `SKIPS=installed`, which `tests/run` sets.
pub fn not_installed(test: &str, what: impl Display) {
    skipped_but_for(&["fail", "installed"], test, &what);
}

/// Fails if the variable `SKIPS` has one of these values.
fn skipped_but_for(failures: &[&str], test: &str, why: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    let is_failure =
        std::env::var_os("SKIPS").is_some_and(|skips| failures.iter().any(|value| skips == *value));
    assert!(!is_failure, "{test} is skipped, and must not be: {why}");
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

/// Drops something in a forked child, which must end, and returns what the parent has of it.
pub fn drop_in_child<T>(it: T) -> T {
    // SAFETY: the child drops what it has got a copy of, and ends; a signal ends it if it hangs.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: no memory is touched.
            unsafe { libc::alarm(20) };
            drop(it);
            // SAFETY: ends the child without the exit handlers of the test's process.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child hung or failed");
            it
        }
    }
}

/// Checks that a document has exactly this text between two marks, such as a table that a test makes of the
/// source. With `PAGE=write` in the environment the text is written instead.
pub fn page_has(page: &Path, (begin, end): (&str, &str), must: &str) {
    let name = page.file_name().unwrap_or_default().display();
    let text = std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let (head, rest) = text.split_once(begin).expect("the page has a place for the table");
    let (is, tail) = rest.split_once(end).expect("the table has an end");
    if std::env::var("PAGE").is_ok_and(|mode| mode == "write") {
        return std::fs::write(page, format!("{head}{begin}{must}{end}{tail}")).expect("the page is written");
    }
    for (is, must) in is.lines().zip(must.lines()) {
        assert_eq!(is, must, "{name} says the first, the source the second (PAGE=write writes it)");
    }
    assert!(is == must, "{name} is stale: PAGE=write writes it");
}
