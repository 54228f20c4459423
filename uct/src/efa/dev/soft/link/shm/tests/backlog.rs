//! Another user fills the queue of the socket that names a queue pair, and leaves.

use super::*;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connects until there is no room. Runs in a thread whose user is another one, which only root can make.
fn fill(iid: u64, qpn: u16) -> usize {
    let nobody: libc::uid_t = 65534;
    let ours = rustix::process::getuid().as_raw();
    // SAFETY: changes the credentials of this thread only, which ends with this function.
    let code = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
    assert_eq!(code, 0);
    let name = format!("softefa.{ours}.{iid:x}.{qpn:x}");
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let mut filled = 0;
    loop {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match rustix::net::connect(socket, &address) {
            Ok(()) => filled += 1,
            Err(e) => {
                assert_eq!(e, rustix::io::Errno::AGAIN);
                return filled;
            }
        }
    }
}

#[test]
fn a_filled_backlog_hides_no_queue_pair() {
    if !rustix::process::geteuid().is_root() {
        return ucs::testing::skipped("a filled backlog", "only root becomes another user");
    }
    let (side, _, _) = side();
    let (sender, ..) = super::side();
    let (iid, qpn) = (side.dev.gid().iid(), side.qp.qpn());
    let filled = std::thread::spawn(move || fill(iid, qpn)).join().unwrap();
    assert!(filled > 0);
    side.recv(1);
    side.dev.create_ah(&side.pd, sender.dev.gid()).unwrap();
    let to = Dest { ah: sender.dev.create_ah(&sender.pd, side.dev.gid()).unwrap(), qpn, qkey: 1 };
    // The queue pair is idle: nobody polls it, and it empties nothing.
    sender.qp.send_inline(&to, 1, b"message", None).unwrap();
    let mut out = [Cqe::EMPTY; 4];
    assert_eq!(sender.cq.poll(&mut out), 1, "the message was delivered at once");
    assert_eq!(out[0].status, DevStatus::Ok);
    assert_eq!(side.received(1), [(1, 7, DevStatus::Ok)]);
}
