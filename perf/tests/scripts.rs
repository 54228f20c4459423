//! Scripts that measure: what cannot be run is a failure, not a figure.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a script of this repository with programs in place of some of the system's: name and shell text.
fn run(script: &str, arguments: &[&str], programs: &[(&str, &str)]) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(script.replace('/', "-"));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, text) in programs {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a program");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("a path"));
    let mut command = Command::new(root.join(script));
    command.current_dir(root).args(arguments).env("PATH", path).output().expect("the script starts")
}

#[test]
fn a_check_without_counts_fails() {
    let library = std::env::temp_dir();
    let library = library.to_str().expect("a path");
    let programs = [("cargo", "exit 0"), ("cc", "exit 0"), ("valgrind", "exit 127")];
    let out = run("perf/c-interface", &["--check", "--library", library], &programs);
    assert!(!out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn a_comparison_of_what_does_not_run_fails_without_ratios() {
    let prefix = std::env::temp_dir();
    let out = run("perf/fabric/versus", &[prefix.to_str().expect("a path"), "1", "1"], &[("cc", "exit 0")]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success() && !text.contains("0.00"), "{text}");
}

#[test]
fn unknown_parts_are_refused() {
    let out = run("perf/figures", &["--quick", "--only", "libary"], &[("cargo", "exit 1")]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && text.contains("--only libary is unknown"), "{text}");
}

#[test]
fn rows_without_namespaces_are_named() {
    if Command::new("python3").arg("--version").output().is_err() {
        return ucs::testing::not_installed("rows of tests/hosts", "no python3");
    }
    let out = run("tests/hosts", &["--row", "killed", "--loopback", "--bin", "/x"], &[]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success() && text.contains("killed not run: no namespaces"), "{text}");
}

/// Every program of `perf/udp` counts 2^20 bytes as a MB, and the table 10^6.
#[test]
fn bandwidths_have_one_unit() {
    let script = "import importlib.machinery as m, importlib.util as u, sys
sys.dont_write_bytecode = True
loader = m.SourceFileLoader('udp', 'perf/udp')
udp = u.module_from_spec(u.spec_from_loader('udp', loader))
loader.exec_module(udp)
ours = '{\"latency_us\": {\"avg\": 1}, \"bandwidth_mbs\": 1000}'
print([udp.figure(kind, 'bw', ours) for kind in ('ours', 'sealed', 'tcp', 'rxd')], udp.figure('ucx', 'bw', '9 1 1 1 1000 1000 1 1'))";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let Ok(out) = Command::new("python3").current_dir(root).args(["-c", script]).output() else {
        return ucs::testing::not_installed("units of perf/udp", "no python3");
    };
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(
        text,
        "[1048.576, 1048.576, 1048.576, 1048.576] 1048.576\n",
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
