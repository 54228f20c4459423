//! Temporary exhaustion of descriptors: operations that need one wait, on both sides, and go on later. In a
//! process of its own, since it takes those of the whole process.

use std::fs::File;

use crate::common::{Pair, bytes, runs_in_own_process};
use ucp::TAG_MASK_FULL;

fn exhaust_fds() -> Vec<File> {
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(File::open("/dev/null").is_err());
    files
}

#[test]
fn temporary_fd_exhaustion_fails_nothing() {
    if runs_in_own_process("fd_exhaustion::temporary_fd_exhaustion_fails_nothing") {
        return;
    }
    // Keeps their number small.
    let limit = rustix::process::Rlimit { current: Some(128), maximum: Some(128) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let first = Pair::on("posix");
    let second = Pair::on("posix");

    // The sender cannot attach its peer.
    let all = exhaust_fds();
    let send = first.ab.tag_send(1, bytes(1, 20_000));
    let recv = first.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(20_000));
    for _ in 0..2000 {
        first.a.progress();
        first.b.progress();
    }
    assert!(!send.is_done() && !recv.is_done(), "{:?}", send.is_done());
    drop(all);
    first.until(|| send.is_done() && recv.is_done());
    assert_eq!((send.wait().0, recv.wait().1), (Ok(()), bytes(1, 20_000)));

    // The receiver cannot attach the sender, which waits for its answer.
    second.ab.tag_send_blocking(1, b"by the sender's own way").unwrap();
    let all = exhaust_fds();
    let send = second.ab.tag_send_sync(2, bytes(2, 100_000));
    let recv = second.b.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(100_000));
    for _ in 0..2000 {
        second.a.progress();
        second.b.progress();
    }
    assert!(!send.is_done() && !recv.is_done());
    drop(all);
    second.until(|| send.is_done() && recv.is_done());
    assert_eq!((send.wait().0, recv.wait().1), (Ok(()), bytes(2, 100_000)));
}
