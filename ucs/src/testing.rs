//! Reports tests that cannot run on this machine.

use std::fmt::Display;
use std::io::Write;

/// Says on standard error that `test` is skipped and why. With `SKIPS=fail` it fails instead.
pub fn skipped(test: &str, why: impl Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    assert!(
        std::env::var_os("SKIPS").is_none_or(|skips| skips != "fail"),
        "{test} is skipped, and must not be: {why}"
    );
}
