//! Functions of `libucs` that programs use beside communication: tables of options, pools, texts and locks.
//! The same C programs run on this library, with both kinds of headers, and on UCX, so that both agree.
//!
//! Skipped where there is no C compiler or no header (Debian: gcc, libucx-dev).

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use common::{has_compiler, library_folder, output_within};

const SYSTEM: &str = "/usr/include/ucs/config/parser.h";
const OURS: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");

/// Compiles a program, with our headers or the system's.
fn compile(name: &str, has_ours: bool) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    // Tests compile the same program at the same time.
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let program = format!("helpers.{name}.{}", COMPILED.fetch_add(1, Ordering::Relaxed));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-Werror"]).args(has_ours.then_some(OURS)).arg("-o").arg(&program).arg(source);
    gcc.arg(format!("-L{}", library_folder().display())).args(["-l:libucp.so.0", "-lm"]);
    let output = gcc.output().expect("gcc runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program, which must succeed. Returns what it logs.
fn log_of(name: &str, command: Command) -> String {
    let Output { status, stderr, .. } = output_within(command, 60);
    let text = String::from_utf8_lossy(&stderr).into_owned();
    assert!(status.success(), "{name}: {status}\n{text}");
    text
}

/// Logs of a program on this library, compiled with each kind of headers.
fn logs(name: &str) -> Vec<String> {
    if !has_compiler() {
        return vec![];
    }
    let kinds: &[bool] = if Path::new(SYSTEM).exists() { &[true, false] } else { &[true] };
    let log = |has_ours: &bool| {
        let mut command = Command::new(compile(name, *has_ours));
        command.env("LD_LIBRARY_PATH", library_folder());
        log_of(name, command)
    };
    kinds.iter().map(log).collect()
}

/// Runs a program on UCX, which takes an argument there.
fn run_on_ucx(name: &str) {
    if !Path::new(SYSTEM).exists() || !has_compiler() {
        return ucs::testing::not_installed("helper functions on UCX", "no gcc or no libucx-dev");
    }
    let mut command = Command::new(compile(name, false));
    command.env_remove("LD_LIBRARY_PATH").arg("ucx");
    log_of(name, command);
}

#[test]
fn options_are_read_from_defaults_environment_and_files() {
    for log in logs("options.c") {
        let has = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(has("invalid value for COUNT: 'many'. Expected: integer"), 2, "{log}");
        assert_eq!(has("unused variable of the environment: TESTB_LIST"), 1, "{log}");
        assert_eq!(has("unused variable"), 1, "{log}");
    }
}

#[test]
fn pools_have_limits_and_report_what_is_not_returned() {
    for log in logs("pools.c") {
        let has = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(has("was not returned to the pool limited"), 4, "{log}");
        assert_eq!(has("was not returned"), 4, "{log}");
        assert_eq!(has("the pool refused gets no chunk"), 1, "{log}");
    }
}

/// Programs that were compiled with headers of a release after 1.13.
#[test]
fn later_forms_of_tables_and_pools_are_known() {
    for log in logs("later.c") {
        assert!(!log.contains("was not returned"), "{log}");
    }
}

/// Hash tables, lists, tables of regions, atomics, bits and numbers.
#[test]
fn structures_are_those_of_ucx() {
    for log in logs("structures.c") {
        assert_eq!(log, "");
    }
}

#[test]
fn classes_have_parents_and_messages_have_levels() {
    for log in logs("classes.c") {
        let has = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        assert_eq!(has("INFO SHAPES: classes.c"), 1, "{log}");
        assert_eq!(has("a message of a component, number 1"), 1, "{log}");
        assert_eq!(has("ERROR"), 1, "{log}");
        assert_eq!(has("an error of the program, number 2"), 1, "{log}");
        assert_eq!(has("a warning of the program"), 1, "{log}");
        assert_eq!(has("hidden"), 0, "{log}");
    }
}

/// Headers of UCX 1.13 have other arrays.
#[test]
fn arrays_have_the_form_of_ucx_1_23() {
    if !has_compiler() {
        return;
    }
    let mut command = Command::new(compile("arrays.c", true));
    command.env("LD_LIBRARY_PATH", library_folder());
    assert_eq!(log_of("arrays.c", command), "");
}

/// Two files, each with another kind of headers, work on the same tables.
#[test]
fn hash_tables_are_shared_with_files_that_have_the_headers_of_ucx() {
    if !Path::new(SYSTEM).exists() || !has_compiler() {
        return ucs::testing::not_installed("shared hash tables", "no gcc or no libucx-dev");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/shared_table.c");
    let at = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shared_table.{name}"));
    let gcc = |arguments: &[&str], to: &Path| {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-Wall", "-Werror"]).args(arguments).arg(&source).arg("-o").arg(to);
        let output = gcc.output().expect("gcc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let object = at("o");
    gcc(&["-DPART=other", "-c"], &object);
    let object = object.to_str().expect("a path");
    gcc(&[OURS, "-DPART=one", "-DHAS_MAIN", object], &at("program"));
    assert_eq!(log_of("shared_table.c", Command::new(at("program"))), "");
}

#[test]
fn ucx_agrees() {
    run_on_ucx("structures.c");
    run_on_ucx("classes.c");
    run_on_ucx("options.c");
    run_on_ucx("pools.c");
}
