//! Tests of layouts: a C compiler checks assertions against the system's headers.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Compiles a source, where a C compiler and the header are installed (Debian: gcc, libucx-dev).
pub(crate) fn assert_compiles(header: &str, source: &str) {
    if !Path::new(header).exists() {
        return ::ucs::testing::not_installed("layouts", format!("no {header}"));
    }
    compile(&[], source);
}

/// Compiles a source with the headers of this crate.
pub(crate) fn assert_compiles_with_ours(source: &str) {
    compile(&[concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include")], source);
}

fn compile(arguments: &[&str], source: &str) {
    let mut gcc = Command::new("gcc");
    let gcc = gcc.args(arguments).args(["-fsyntax-only", "-x", "c", "-"]).stdin(Stdio::piped()).spawn();
    let Ok(mut gcc) = gcc else { return ::ucs::testing::not_installed("layouts", "no gcc") };
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    assert!(gcc.wait().expect("gcc ends").success());
}
