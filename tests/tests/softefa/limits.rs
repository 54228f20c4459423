//! `fi_pingpong` between ends that do not match, and on restricted systems. Without it (Debian package
//! libfabric-bin) these tests pass with a note.

use suites::clients::{End, c_source, compile, folder, have, pingpong, pingpong_ends, sizes};
use suites::launcher::text;

#[test]
fn different_mtus_fail_both_sides_and_are_reported() {
    if !have("fi_pingpong") {
        return;
    }
    let short = End { options: &["--mtu", "4096"], wrapper: &[] };
    let long = End { options: &[], wrapper: &[] };
    for (server, client) in [(short, long), (long, short)] {
        let both = pingpong_ends(server, client, &["-e", "rdm", "-m", "tagged", "-I", "10", "-S", "8192"]);
        let stderr = both.each_ref().map(|out| text(&out.stderr)).concat();
        assert!(both.iter().all(|out| !out.status.success()), "{stderr}");
        assert!(stderr.contains("MTU of 4096 bytes, this one 8928"), "{stderr}");
        assert!(stderr.contains("came for a receive of"), "{stderr}");
    }
}

#[test]
fn messages_within_both_mtus_go_through() {
    if !have("fi_pingpong") {
        return;
    }
    let (server, client) = (
        End { options: &["--mtu", "4096"], wrapper: &[] },
        End { options: &["--mtu", "8928"], wrapper: &[] },
    );
    let both = pingpong_ends(server, client, &["-e", "rdm", "-m", "tagged", "-I", "10", "-S", "1024"]);
    assert!(
        both.iter().all(|out| out.status.success()),
        "{}",
        both.each_ref().map(|o| text(&o.stderr)).concat()
    );
    assert_eq!(sizes(&both[1]).len(), 1);
}

#[test]
fn without_peer_memory_access_messages_go_in_packets() {
    if !have("fi_pingpong") {
        return;
    }
    let arguments = ["-e", "rdm", "-m", "tagged", "-I", "5", "-S", "4194304"];
    let dir = folder(env!("CARGO_TARGET_TMPDIR"));
    if let Some(no_vm) = compile(dir.join("no_vm"), &c_source("no_vm.c"), &[]) {
        let end = End { options: &[], wrapper: &[no_vm.to_str().unwrap()] };
        let both = pingpong_ends(end, end, &arguments);
        for out in &both {
            let stderr = text(&out.stderr);
            assert!(out.status.success() && stderr.contains("has no RDMA: process_vm_readv"), "{stderr}");
        }
        assert_eq!(sizes(&both[1]).len(), 1);
    }
    assert_eq!(pingpong(&["--rdma", "n"], &arguments).len(), 1);
}
