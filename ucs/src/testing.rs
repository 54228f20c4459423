//! For tests: what cannot be tried on this machine is said, not passed over. Called by tests of all crates;
//! part of no program.

use std::fmt::Display;
use std::io::Write;

/// Says that `test` is skipped and why, on standard error, also where the output of tests that pass is kept
/// back. With `SKIPS=fail` in the environment it is a failure, for machines that are to have everything.
pub fn skipped(test: &str, why: impl Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
    assert!(
        std::env::var_os("SKIPS").is_none_or(|skips| skips != "fail"),
        "{test} is skipped, and must not be: {why}"
    );
}
