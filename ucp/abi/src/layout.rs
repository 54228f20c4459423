//! Tests of layouts: a C compiler checks assertions against the system's headers.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Compiles a source, where a C compiler and the header are installed (Debian: gcc, libucx-dev).
pub(crate) fn assert_compiles(header: &str, source: &str) {
    if !Path::new(header).exists() {
        return eprintln!("skipped: no {header}");
    }
    let gcc = Command::new("gcc").args(["-fsyntax-only", "-x", "c", "-"]).stdin(Stdio::piped()).spawn();
    let Ok(mut gcc) = gcc else { return eprintln!("skipped: no gcc") };
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    assert!(gcc.wait().expect("gcc ends").success());
}
