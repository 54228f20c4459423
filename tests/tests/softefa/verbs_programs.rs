//! Verbs' promises and failures of a run: tests/c/verbs_client.c under `softefa run`. Without a C compiler or
//! libibverbs' headers (Debian package libibverbs-dev) these tests pass with a note.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use suites::clients;
use suites::launcher::{assert_no_tree, expect_success, finish, softefa, start, text};

fn folder() -> PathBuf {
    clients::folder(env!("CARGO_TARGET_TMPDIR"))
}

fn compile(name: &str, source: &Path, flags: &[&str]) -> Option<PathBuf> {
    clients::compile(folder().join(name), source, flags)
}

fn client() -> Option<&'static str> {
    static BUILT: OnceLock<Option<String>> = OnceLock::new();
    BUILT.get_or_init(|| clients::verbs(env!("CARGO_TARGET_TMPDIR"), "verbs_client.c")).as_deref()
}

/// Runs scenes, which print nothing on success.
fn scenes(options: &[&str], names: &[&str]) {
    let Some(client) = client() else { return };
    for name in names {
        let out = finish(start(options, &[client, name]), name);
        assert!(out.status.success(), "{name}: {}", text(&out.stderr));
        assert_eq!(text(&out.stderr), "", "{name}");
    }
}

#[test]
fn channels_fire_once_when_armed_and_wake_sleepers() {
    scenes(&[], &["events"]);
}

#[test]
fn receives_take_three_sges_and_failures_have_their_status() {
    scenes(&[], &["reliable"]);
}

#[test]
fn undeliverable_datagrams_are_lost_silently() {
    scenes(&[], &["datagrams"]);
}

#[test]
fn the_character_device_can_be_statted() {
    scenes(&[], &["files"]);
}

#[test]
fn threads_share_a_queue_pair() {
    scenes(&[], &["threads"]);
    scenes(&["--reorder", "0.3", "--seed", "5"], &["threads"]);
}

#[test]
fn threads_register_memory_concurrently() {
    scenes(&[], &["memory"]);
}

#[test]
fn a_cq_lives_until_its_events_are_acknowledged() {
    scenes(&[], &["acknowledged"]);
}

#[test]
fn a_wr_batch_is_posted_whole_or_not_at_all() {
    scenes(&[], &["sessions"]);
}

#[test]
fn an_immediate_reports_whether_it_consumed_a_receive() {
    scenes(&[], &["words"]);
}

#[test]
fn a_failed_queue_pair_may_fail_again() {
    scenes(&[], &["failed"]);
}

#[test]
fn a_queue_pair_takes_what_it_was_made_for() {
    scenes(&[], &["capacities"]);
}

#[test]
fn what_a_device_may_lack_is_told_from_mistakes() {
    scenes(&[], &["refusals"]);
}

#[test]
fn query_qp_returns_the_attributes_set() {
    scenes(&[], &["queried"]);
}

#[test]
fn verbs_report_missing_descriptors() {
    let Some(client) = client() else { return };
    let out = finish(start(&[], &[client, "descriptors"]), "descriptors");
    let stderr = text(&out.stderr);
    assert!(out.status.success(), "{stderr}");
    // Only errors that errno cannot express.
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    assert!(
        stderr.lines().all(|line| line.starts_with("softefa: no ") && line.contains("ulimit -n")),
        "{stderr}"
    );
}

#[test]
fn a_forked_child_does_no_harm() {
    scenes(&[], &["fork"]);
    scenes(&["--delay", "1000"], &["fork"]);
}

#[test]
fn a_delayed_packet_moves_without_polls_of_its_sender() {
    scenes(&["--delay", "20000"], &["held"]);
}

fn killed_peer(options: &[&str]) {
    let Some(client) = client() else { return };
    let mut victim = start(options, &[client, "victim"]);
    let pid = victim.0.id();
    let mut line = String::new();
    BufReader::new(victim.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address: Vec<&str> = line.split_whitespace().collect();
    let mut sender = start(options, &[client, "mourner", address[0], address[1]]);
    let mut stderr = BufReader::new(sender.0.stdout.take().unwrap());
    line.clear();
    stderr.read_line(&mut line).unwrap();
    assert_eq!(line, "sent\n");
    victim.0.kill().unwrap();
    // The program itself gives up after five seconds.
    expect_success(sender, "the sender");
    assert_no_tree(pid);
}

#[test]
fn a_killed_peer_is_an_error_of_its_sender() {
    killed_peer(&[]);
}

#[test]
fn a_non_dumpable_process_is_unreachable_and_reported() {
    let Some(client) = client() else { return };
    let mut hidden = start(&[], &[client, "hidden"]);
    let mut line = String::new();
    BufReader::new(hidden.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address: Vec<&str> = line.split_whitespace().collect();
    let out = finish(start(&[], &[client, "stranger", address[0], address[1]]), "the sender");
    let stderr = text(&out.stderr);
    assert!(out.status.success() && stderr.contains("cannot look at process"), "{stderr}");
    hidden.0.kill().unwrap();
    let stderr = text(&finish(hidden, "the receiver").stderr);
    assert!(stderr.contains("not dumpable"), "{stderr}");
}

#[test]
fn two_processes_share_a_gid() {
    let gid = format!("fe80::77aa:{:x}:0:1", std::process::id() & 0xffff);
    killed_peer(&["--gid", &gid]);
}

#[test]
fn a_program_without_verbs_runs_unchanged() {
    let out = finish(start(&[], &["echo", "hello"]), "echo");
    assert_eq!((text(&out.stdout).as_str(), text(&out.stderr).as_str()), ("hello\n", ""));
}

#[test]
fn programs_that_cannot_be_preloaded_are_reported() {
    let source = folder().join("nothing.c");
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    if let Some(program) = compile("static", &source, &["-static"]) {
        let out = finish(start(&[], &[program.to_str().unwrap()]), "static");
        assert_eq!(out.status.code(), Some(3));
        assert!(text(&out.stderr).contains("statically linked"), "{}", text(&out.stderr));
        let (is_good, report) = doctor(&program, None);
        assert!(!is_good && report.contains("statically linked") && report.contains("fix:"), "{report}");
    }
    let Some(program) = compile("setuid", &source, &[]) else { return };
    // Only root can make a program another user's.
    if std::os::unix::fs::chown(&program, Some(65534), None).is_ok() {
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        let out = finish(start(&[], &[program.to_str().unwrap()]), "setuid");
        assert_eq!(out.status.code(), Some(126));
        assert!(text(&out.stderr).contains("setuid"), "{}", text(&out.stderr));
    }
}

#[test]
fn a_program_for_a_later_rdma_core_is_rejected_by_version() {
    if client().is_none() {
        return;
    }
    let dir = folder();
    let file = |name: &str, body: &str| {
        let path = dir.join(name);
        std::fs::write(&path, body).unwrap();
        path
    };
    let library = file("later.c", "void ibv_of_tomorrow(void) {}\n");
    let versions = file("later.map", "IBVERBS_9.9 { global: ibv_of_tomorrow; };\n");
    let script = format!("-Wl,--version-script={}", versions.display());
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", &script];
    let Some(library) = compile("libibverbs-later.so", &library, &flags) else { return };
    let user =
        file("user.c", "void ibv_of_tomorrow(void);\nint main(void) { ibv_of_tomorrow(); return 0; }\n");
    let Some(user) = compile("user", &user, &[library.to_str().unwrap()]) else { return };
    let out = finish(start(&[], &[user.to_str().unwrap()]), "a program for a later rdma-core");
    let err = text(&out.stderr);
    assert!(!out.status.success() && err.contains("IBVERBS_9.9"), "{err}");
    assert!(err.contains("softefa doctor"), "{err}");
    let (is_good, report) = doctor(&user, None);
    assert!(!is_good && report.contains("IBVERBS_9.9") && report.contains("later rdma-core"), "{report}");
    // With that library it starts, and calls verbs that we lack.
    let later = dir.join("later");
    std::fs::create_dir_all(&later).unwrap();
    std::fs::copy(&library, later.join("libibverbs.so.1.15.99.0")).unwrap();
    let _ = std::os::unix::fs::symlink("libibverbs.so.1.15.99.0", later.join("libibverbs.so.1"));
    let (is_good, report) = doctor(&user, Some(&later));
    assert!(!is_good && report.contains("calls: ibv_of_tomorrow"), "{report}");
    assert!(report.contains("rdma-core 99.0"), "{report}");
}

/// Output of `softefa doctor PROGRAM`, and whether it succeeded.
fn doctor(program: &Path, libraries: Option<&Path>) -> (bool, String) {
    let mut doctor = Command::new(softefa());
    doctor.arg("doctor").arg(program);
    if let Some(libraries) = libraries {
        doctor.env("LD_LIBRARY_PATH", libraries);
    }
    let out = doctor.output().unwrap();
    (out.status.success(), text(&out.stdout))
}

#[test]
fn the_doctor_inspects_a_program() {
    let (is_good, report) = doctor(Path::new("sh"), None);
    assert!(is_good && report.contains("not linked with libibverbs"), "{report}");
    let (is_good, report) = doctor(Path::new("/no/such/program"), None);
    assert!(!is_good && report.contains("MISSING  program: /no/such/program: no such file"), "{report}");
    if let Some(client) = client() {
        let (is_good, report) = doctor(Path::new(client), None);
        assert!(is_good && report.contains("libibverbs.so.1 of rdma-core"), "{report}");
        assert!(report.contains("libefa.so.1"), "{report}");
    }
    let script = folder().join("script");
    std::fs::write(&script, "#! /bin/sh -e\n").unwrap();
    let (is_good, report) = doctor(&script, None);
    assert!(is_good && report.contains("script, which /bin/sh runs"), "{report}");
}
