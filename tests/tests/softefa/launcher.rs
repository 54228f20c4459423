//! Debian's `fi_info` and `fi_pingpong` under `softefa run`. Without them (package `libfabric-bin`) these
//! tests pass with a note.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use suites::clients::{have, pingpong};
use suites::launcher::{TIMEOUT, assert_no_tree, expect_success, finish, softefa, start, text, trees_of};

#[test]
fn fi_info_finds_both_kinds_of_endpoint() {
    if !have("fi_info") {
        return;
    }
    for generation in ["1", "2", "3", "4"] {
        let found = expect_success(start(&["--gen", generation], &["fi_info", "-p", "efa"]), "fi_info");
        assert!(found.contains("domain: softefa0-rdm"), "{found}");
        assert!(found.contains("domain: softefa0-dgrm"), "{found}");
    }
}

/// Standard error on a full disk: a program that is told why it has no device ends all the same.
#[test]
fn a_line_that_cannot_be_written_ends_and_stops_no_program() {
    if !have("fi_info") {
        return;
    }
    let command = "exec fi_info -p efa 2>/dev/full";
    let out = finish(start(&[], &["env", "SOFTEFA_MTU=lots", "sh", "-c", command]), "fi_info");
    // Without a device `fi_info` ends with an error of its own.
    assert!(out.status.code().is_some_and(|code| code != 101), "{:?}", out.status);
}

#[test]
fn fi_pingpong_rdm_all_sizes() {
    if !have("fi_pingpong") {
        return;
    }
    for kind in ["msg", "tagged"] {
        let sizes = pingpong(&[], &["-e", "rdm", "-m", kind, "-I", "10", "-S", "all"]);
        for size in ["1", "64", "4k", "64k", "1m", "4m"] {
            assert!(sizes.iter().any(|s| s == size), "{kind}: no {size} in {sizes:?}");
        }
        assert_eq!(pingpong(&[], &["-e", "rdm", "-m", kind, "-I", "10", "-S", "0"]), ["0"]);
    }
}

#[test]
fn fi_pingpong_on_every_generation() {
    if !have("fi_pingpong") {
        return;
    }
    for generation in ["1", "2", "4"] {
        for size in ["8", "65536", "1048576"] {
            let sizes =
                pingpong(&["--gen", generation], &["-e", "rdm", "-m", "tagged", "-I", "10", "-S", size]);
            assert_eq!(sizes.len(), 1, "generation {generation}, {size} bytes");
        }
    }
}

#[test]
fn fi_pingpong_on_a_rough_network() {
    if !have("fi_pingpong") {
        return;
    }
    for (seed, kind) in [("7", "tagged"), ("3", "msg")] {
        let options = ["--seed", seed, "--reorder", "0.2", "--rnr", "0.05"];
        for size in ["8", "4096", "65536", "1048576", "4194304"] {
            let sizes = pingpong(&options, &["-e", "rdm", "-m", kind, "-I", "10", "-S", size]);
            assert_eq!(sizes.len(), 1, "seed {seed}, {size} bytes");
        }
    }
}

#[test]
fn fi_pingpong_datagrams() {
    if !have("fi_pingpong") {
        return;
    }
    assert!(!pingpong(&[], &["-e", "dgram", "-I", "10"]).is_empty());
    assert_eq!(pingpong(&[], &["-e", "dgram", "-I", "10", "-S", "0"]), ["0"]);
}

#[test]
fn exit_status_is_passed_on_and_files_are_removed() {
    for (command, code, signal) in [
        (&["true"][..], Some(0), None),
        (&["sh", "-c", "exit 7"], Some(7), None),
        (&["sh", "-c", "kill -9 $$"], None, Some(9)),
    ] {
        let running = start(&[], command);
        let pid = running.0.id();
        let out = finish(running, "softefa run");
        assert_eq!((out.status.code(), out.status.signal()), (code, signal), "{}", text(&out.stderr));
        assert_no_tree(pid);
    }
}

#[test]
fn a_signal_ends_the_program_and_removes_the_tree() {
    for signal in ["-TERM", "-KILL", "-INT"] {
        let running = start(&[], &["sleep", "600"]);
        let pid = running.0.id();
        let until = Instant::now() + TIMEOUT;
        while std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim() != "sleep" {
            assert!(Instant::now() < until, "the program does not run");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(trees_of(pid).len(), 1);
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        assert!(finish(running, "softefa run").status.signal().is_some());
        assert_no_tree(pid);
    }
}

#[test]
fn the_program_gets_no_extra_child() {
    let out = expect_success(start(&[], &["sh", "-c", "wait; cat /proc/$$/task/$$/children"]), "softefa run");
    // cat itself.
    assert_eq!(out.split_whitespace().count(), 1, "{out}");
}

#[test]
fn bad_input_is_reported_in_one_line() {
    let check = |options: &[&str], command: &[&str], code: i32, has: &str| {
        let out = finish(start(options, command), "softefa run");
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{err}");
        assert!(err.contains(has), "{err}");
    };
    check(&["--mtu", "lots"], &["true"], 125, "SOFTEFA_MTU=lots");
    check(&["--gid", "0"], &["true"], 125, "SOFTEFA_GID=0");
    check(&["--gen", "5"], &["true"], 2, "1..=4");
    check(&["--no-such-option"], &["true"], 2, "--no-such-option");
    check(&["--down", "1"], &["true"], 125, "NIC:PACKETS");
    check(&["--devices", "9"], &["true"], 125, "SOFTEFA_DEVICES=9");
    check(&[], &["/no/such/program"], 127, "/no/such/program cannot be run");
    check(&[], &["fi_no_such_program"], 127, "apt-get install libfabric-bin");
}

#[test]
fn common_mistakes_are_reported_with_a_remedy() {
    let out = Command::new(softefa()).args(["run", "fi_pingpong", "-p", "efa"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("-- <PROGRAM>"), "{}", text(&out.stderr));
    let alone =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("alone-{}", std::process::id()));
    std::fs::create_dir_all(&alone).unwrap();
    // A link is not open for writing when another test forks. A copy could not be run then ("text file
    // busy").
    std::fs::hard_link(softefa(), alone.join("softefa")).unwrap();
    let out = Command::new(alone.join("softefa")).args(["run", "--", "true"]).output().unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("cargo build --release -p softefa"), "{}", text(&out.stderr));
    std::fs::remove_dir_all(alone).unwrap();
    if have("fi_info") {
        let out = finish(start(&["--pcap", "/no/such/folder/x"], &["fi_info", "-p", "efa"]), "fi_info");
        let told = text(&out.stderr);
        // fi_info opens the device several times.
        assert_eq!(told.matches("cannot write /no/such/folder/x").count(), 1, "{told}");
    }
}

#[test]
fn list_and_doctor_report_the_devices() {
    let out = Command::new(softefa()).args(["list", "--gen", "4", "--devices", "2"]).output().unwrap();
    let listed = text(&out.stdout);
    assert!(out.status.success() && listed.lines().count() == 2, "{listed}");
    assert!(listed.contains("softefa1: part 0xefa3"), "{listed}");
    let out = Command::new(softefa()).arg("doctor").output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stdout));
}

#[test]
fn a_closed_pipe_is_not_an_error_message() {
    for what in [&["list"][..], &["doctor"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = Command::new(softefa()).args(what).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), stderr.as_ref()), (Some(141), ""), "{what:?}");
    }
}
