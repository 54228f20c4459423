//! The edge of verbs' contract under `softefa run`: tests/c/verbs_edges.c, and the names that the library
//! exports. Without a C compiler or libibverbs' headers (Debian package libibverbs-dev) these tests pass with
//! a note.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::OnceLock;
use suites::clients::{self, End, c_source, compile};
use suites::launcher::{finish, softefa, start, text};

fn client() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    BUILT.get_or_init(|| clients::verbs(env!("CARGO_TARGET_TMPDIR"), "verbs_edges.c")).as_deref()
}

/// Runs scenes, which print nothing on success.
fn scenes(options: &[&str], names: &[&str]) {
    let Some(client) = client() else { return };
    for name in names {
        let out = finish(start(options, &[client, name]), name);
        assert!(out.status.success(), "{name}: {:?} {}", out.status, text(&out.stderr));
        assert_eq!(text(&out.stderr), "", "{name}");
    }
}

#[test]
fn read_only_memory_is_not_registered_for_writing() {
    scenes(&[], &["readonly"]);
}

#[test]
fn unmapped_memory_is_an_error_of_the_request() {
    scenes(&[], &["unmapped", "protected"]);
    // A capture reads the memory, too.
    let capture = clients::folder(env!("CARGO_TARGET_TMPDIR")).join("unmapped.pcapng");
    scenes(&["--pcap", capture.to_str().unwrap()], &["unmapped"]);
}

#[test]
fn without_the_guard_unmapped_memory_is_the_programs_fault() {
    let Some(client) = client() else { return };
    let out = finish(start(&["--guard-memory", "n"], &[client, "unmapped"]), "unmapped");
    assert_eq!(out.status.signal(), Some(11), "{:?} {}", out.status, text(&out.stderr));
}

#[test]
fn keys_of_watched_memory_end_with_it() {
    if let Err(errno) = ucs::mem::watch::Watch::open() {
        return ucs::testing::skipped("unmapped memory", format!("userfaultfd: {errno}"));
    }
    scenes(&["--watch-memory", "y", "--guard-memory", "n"], &["unmapped"]);
}

#[test]
fn exit_from_a_signal_handler_ends_the_process() {
    scenes(&[], &["exits"]);
}

/// Names of rdma-core 65 that take no object of a device: the real library answers them.
const WITHOUT_OBJECT: [&str; 5] =
    ["ibv_rate_to_mbps", "ibv_rate_to_mult", "ibv_register_driver", "mbps_to_ibv_rate", "mult_to_ibv_rate"];

#[test]
fn every_name_of_rdma_core_65_is_exported() {
    let names = include_str!("../../../tools/softefa/src/rdma_core_65.txt");
    let known: BTreeSet<&str> = names.lines().collect();
    assert!(WITHOUT_OBJECT.iter().all(|name| known.contains(name)), "a name that rdma-core does not have");
    let library = softefa().with_file_name("libsoftefa.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let Ok(listed) = listed else {
        return ucs::testing::not_installed("the library's names", "no nm (Debian package binutils)");
    };
    let listed = text(&listed.stdout);
    let exported: BTreeSet<&str> = listed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let missing: Vec<&&str> =
        known.iter().filter(|name| !exported.contains(*name) && !WITHOUT_OBJECT.contains(name)).collect();
    assert!(missing.is_empty(), "these would reach the real library: {missing:?}");
}

#[test]
fn programs_reach_each_other_without_pidfd_open() {
    if !clients::have("fi_pingpong") {
        return;
    }
    let refuse = clients::folder(env!("CARGO_TARGET_TMPDIR")).join("refuse-pidfd");
    let Some(refuse) = compile(refuse, &c_source("refuse.c"), &[]) else { return };
    let end = End { options: &[], wrapper: &[refuse.to_str().unwrap(), "pidfd_open"] };
    let ran = clients::pingpong_ends(end, end, &["-e", "rdm", "-I", "10", "-S", "65536"]);
    for out in &ran {
        assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    }
    assert_eq!(clients::sizes(&ran[1]), ["64k"]);
}

#[test]
fn names_that_came_after_rdma_core_61_are_answered() {
    scenes(&[], &["later"]);
}

/// Standard output of `softefa doctor` to which a system call is refused.
fn doctor_without(call: &str) -> Option<(bool, String)> {
    let dir = clients::folder(env!("CARGO_TARGET_TMPDIR"));
    let refuse = compile(dir.join(format!("refuse-{call}")), &c_source("refuse.c"), &[])?;
    let out = Command::new(refuse).arg(call).arg(softefa()).arg("doctor").output().unwrap();
    Some((out.status.success(), text(&out.stdout)))
}

#[test]
fn the_doctor_tries_every_system_call_of_the_data_path() {
    // Without pidfd_open, processes are watched by /proc.
    for call in ["memfd_create", "eventfd2", "epoll_create1", "timerfd_create"] {
        let Some((is_good, report)) = doctor_without(call) else { return };
        let line = report.lines().find(|line| line.starts_with("MISSING  system calls:")).unwrap_or("");
        assert!(!is_good && line.contains("EPERM") && line.contains("fix: allow"), "{call}: {report}");
    }
    let refuse =
        compile(clients::folder(env!("CARGO_TARGET_TMPDIR")).join("refuse"), &c_source("refuse.c"), &[]);
    let Some(refuse) = refuse else { return };
    let out =
        Command::new(refuse).arg("memfd_create").arg(softefa()).args(["run", "--", "true"]).output().unwrap();
    let stderr = text(&out.stderr);
    let is_noted = stderr.contains("note: programs may not reach each other: ");
    assert!(out.status.success() && is_noted && stderr.contains("memfd_create: EPERM"), "{stderr}");
    let out = Command::new(softefa()).arg("doctor").output().unwrap();
    let report = text(&out.stdout);
    assert!(report.contains("ok       system calls: none is refused"), "{report}");
}
