//! Two devices of this process that reach each other over UDP, with and without losses.

#![allow(unsafe_code)]

mod captured;
mod full;
mod multipath;
mod over_limit;
mod sessions;
mod silence;
mod translated;

use crate::api::Access;
use crate::efa::dev::soft::{self, Ah, Cq, Device, Mr, Net, Pd, Qp};
use crate::efa::dev::{Channel, Cqe, CqeOp, Dest, Dev, DevCq, DevMr, DevQp, DevStatus, QpInit, QpKind, Sge};
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use ucs::config::Source;

const QKEY: u32 = 0x1234_5678;
const LEN: usize = 3 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

struct Side {
    dev: Device<Net>,
    pd: Pd,
    mr: Mr<Net>,
    qp: Qp<Net>,
    cq: Cq<Net>,
}

impl Side {
    fn open(name: &str, more: &[(&str, &str)], kind: QpKind) -> Side {
        let usual = [("SOFTEFA_DEVICES", "2"), ("SOFTEFA_UDP", "all")];
        let vars = usual.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into()));
        let dev = soft::open(&Source::from_vars(vars).unwrap(), name).unwrap();
        let pd = dev.alloc_pd().unwrap();
        let mr = dev.alloc_mr(&pd, LEN, Access::ALL).unwrap();
        let cq = dev.create_cq(1024, Channel::Without).unwrap();
        let init = QpInit {
            kind,
            send_depth: 256,
            recv_depth: 256,
            qkey: QKEY,
            rnr_retry: 7,
            unsolicited_write_recv: false,
        };
        let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
        Side { dev, pd, mr, qp, cq }
    }

    fn to(&self, other: &Side) -> Dest<Ah> {
        let ah = self.dev.create_ah(&self.pd, other.dev.gid()).unwrap();
        Dest { ah, qpn: other.qp.qpn(), qkey: QKEY }
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr().wrapping_add(at), len: len as u32, lkey: self.mr.lkey() }
    }

    fn fill(&self, at: usize, len: usize, salt: u8) {
        assert!(at + len <= LEN);
        for n in 0..len {
            // SAFETY: inside the region (asserted), which nobody else uses at the moment.
            unsafe { self.mr.addr().wrapping_add(at + n).write(byte(n, salt)) }
        }
    }

    fn check(&self, at: usize, len: usize, salt: u8) {
        assert!(at + len <= LEN);
        // SAFETY: inside the region (asserted), which nobody writes during the call.
        let bytes = unsafe { std::slice::from_raw_parts(self.mr.addr().wrapping_add(at), len) };
        assert!(bytes.iter().enumerate().all(|(n, b)| *b == byte(n, salt)), "{len} bytes of {salt}");
    }

    fn poll(&self) -> Vec<Cqe> {
        let mut out = [Cqe::EMPTY; 16];
        let n = self.cq.poll(&mut out);
        out[..n].to_vec()
    }
}

fn byte(at: usize, salt: u8) -> u8 {
    (at.wrapping_mul(31) >> 3) as u8 ^ at as u8 ^ salt
}

fn pair(more: &[(&str, &str)]) -> (Side, Side) {
    (Side::open("softefa0", more, QpKind::Srd), Side::open("softefa1", more, QpKind::Srd))
}

/// Polls both until `a` has one completion and `b` has `of_b`.
fn wait(a: &Side, b: &Side, of_b: usize) -> (Cqe, Vec<Cqe>) {
    let (start, mut at_a, mut at_b) = (Instant::now(), Vec::new(), Vec::new());
    while at_a.is_empty() || at_b.len() < of_b {
        at_a.extend(a.poll());
        at_b.extend(b.poll());
        assert!(start.elapsed() < PATIENCE, "{at_a:?} {at_b:?} {:?}", a.dev.link().udp().unwrap().stats());
    }
    assert_eq!((at_a.len(), at_b.len()), (1, of_b));
    (at_a[0], at_b)
}

fn status(a: &Side, b: &Side) -> DevStatus {
    wait(a, b, 0).0.status
}

/// A message that comes alone is delivered before its bookkeeping: the acknowledgement goes in the next poll.
#[test]
fn a_short_message_is_delivered_before_its_acknowledgement() {
    // A NIC that no other test has.
    let (a, b) = pair(&[("SOFTEFA_UDP_MTU", "1405")]);
    exchange_one(&a, &b);
    let stats = |side: &Side| side.dev.link().udp().unwrap().stats().0;
    let in_order = |side: &Side| stats(side).received_in_order;
    let mut left = 0;
    for _ in 0..100 {
        let before = in_order(&b);
        b.qp.recv(1, b.sge(0, 100)).unwrap();
        a.qp.send_inline(&a.to(&b), 2, b"short", None).unwrap();
        let start = Instant::now();
        while b.poll().is_empty() {
            assert!(start.elapsed() < PATIENCE);
        }
        // The NIC's thread does the bookkeeping of a program that does not get to it.
        left += u32::from(in_order(&b) == before);
        while in_order(&b) == before {
            drop(b.poll());
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(in_order(&b), before + 1);
        while a.poll().is_empty() {
            drop(b.poll());
            assert!(start.elapsed() < PATIENCE);
        }
    }
    assert!(left > 0 && stats(&b).received_fast > 0);
}

fn exchange_one(a: &Side, b: &Side) {
    b.qp.recv(1, b.sge(0, 100)).unwrap();
    a.qp.send_inline(&a.to(b), 2, b"first", None).unwrap();
    assert_eq!(wait(a, b, 1).0.status, DevStatus::Ok);
}

fn exchange_messages(more: &[(&str, &str)]) {
    let (a, b) = pair(more);
    for (salt, len) in [0, 1, 31, 32, 33, 700, 1400, 1500, 4096, 8928].into_iter().enumerate() {
        for (from, at) in [(&a, &b), (&b, &a)] {
            let imm = (salt % 2 == 0).then_some(len as u32 + 5);
            at.qp.recv(77, at.sge(100, 8928)).unwrap();
            from.fill(20_000, len, salt as u8);
            let to = from.to(at);
            match len <= 32 {
                true => {
                    let bytes: Vec<u8> = (0..len).map(|n| byte(n, salt as u8)).collect();
                    from.qp.send_inline(&to, 5, &bytes, imm).unwrap();
                }
                false => {
                    let parts = [from.sge(20_000, 16), from.sge(20_016, len - 16)];
                    from.qp.send(&to, 5, &parts, imm).unwrap();
                }
            }
            let (sent, got) = wait(from, at, 1);
            assert_eq!((sent.wr_id, sent.status, sent.op), (5, DevStatus::Ok, CqeOp::Send));
            let got = got[0];
            assert_eq!((got.wr_id, got.status, got.len as usize, got.imm), (77, DevStatus::Ok, len, imm));
            assert_eq!((got.src_gid, got.src_qpn), (from.dev.gid(), from.qp.qpn()));
            at.check(100, len, salt as u8);
        }
    }
}

fn exchange_rdma(more: &[(&str, &str)]) {
    let (a, b) = pair(more);
    let (to, _back) = (a.to(&b), b.to(&a));
    let there = b.mr.addr() as u64;
    for (salt, len) in [0, 1, 1000, 1 << 16, 1 << 20].into_iter().enumerate() {
        let salt = salt as u8;
        b.fill(1 << 20, len, salt);
        a.qp.read(&to, 1, a.sge(1 << 20, len), there + (1 << 20), b.mr.rkey()).unwrap();
        let (done, _) = wait(&a, &b, 0);
        assert_eq!((done.wr_id, done.status, done.op), (1, DevStatus::Ok, CqeOp::Read));
        a.check(1 << 20, len, salt);
        a.fill(7, len, salt ^ 0x55);
        a.qp.write(&to, 2, a.sge(7, len), there + (2 << 20) - 9, b.mr.rkey(), None).unwrap();
        let (done, _) = wait(&a, &b, 0);
        assert_eq!((done.wr_id, done.status, done.op), (2, DevStatus::Ok, CqeOp::Write));
        b.check((2 << 20) - 9, len, salt ^ 0x55);
        b.qp.recv(9, b.sge(0, 0)).unwrap();
        a.qp.write(&to, 3, a.sge(7, len), there + 5, b.mr.rkey(), Some(42)).unwrap();
        let (done, got) = wait(&a, &b, 1);
        assert_eq!((done.status, got[0].op, got[0].imm), (DevStatus::Ok, CqeOp::RecvWriteImm, Some(42)));
        assert_eq!((got[0].wr_id, got[0].len as usize), (9, len));
        b.check(5, len, salt ^ 0x55);
    }
}

#[test]
fn messages_of_all_lengths_arrive() {
    exchange_messages(&[]);
}

#[test]
fn rdma_of_all_lengths_moves_the_bytes() {
    exchange_rdma(&[]);
}

#[test]
fn processes_of_this_host_go_by_shared_memory() {
    // A NIC of its own: the counters are of this test.
    let near = [("SOFTEFA_UDP", "y"), ("SOFTEFA_UDP_MTU", "1402")];
    let (a, b) = pair(&near);
    b.qp.recv(77, b.sge(0, 5000)).unwrap();
    a.fill(20_000, 5000, 3);
    a.qp.send(&a.to(&b), 5, &[a.sge(20_000, 5000)], None).unwrap();
    assert_eq!(wait(&a, &b, 1).0.status, DevStatus::Ok);
    b.check(0, 5000, 3);
    let (to, _back) = (a.to(&b), b.to(&a));
    a.qp.write(&to, 2, a.sge(20_000, 5000), b.mr.addr() as u64 + 9000, b.mr.rkey(), None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Ok);
    b.check(9000, 5000, 3);
    for side in [&a, &b] {
        assert_eq!((counter(side, "sent"), counter(side, "datagrams sent")), (0, 0));
    }
    // Told to, the same two use datagrams.
    let far = [("SOFTEFA_UDP", "all"), ("SOFTEFA_UDP_MTU", "1402")];
    let (a, b) = pair(&far);
    b.qp.recv(77, b.sge(0, 5000)).unwrap();
    a.qp.send(&a.to(&b), 5, &[a.sge(20_000, 5000)], None).unwrap();
    assert_eq!(wait(&a, &b, 1).0.status, DevStatus::Ok);
    assert!(counter(&a, "datagrams sent") > 0);
}

#[test]
fn datagrams_go_one_by_one_where_the_kernel_does_not_cut_them() {
    const PLAIN: &[(&str, &str)] = &[("SOFTEFA_UDP_OFFLOAD", "n"), ("SOFTEFA_UDP_MTU", "1500")];
    let (a, b) = pair(PLAIN);
    let (to, _back) = (a.to(&b), b.to(&a));
    a.qp.write(&to, 2, a.sge(0, 1 << 20), b.mr.addr() as u64, b.mr.rkey(), None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Ok);
    assert_eq!(counter(&a, "runs sent") + counter(&b, "runs received"), 0);
    exchange_rdma(PLAIN);
}

#[test]
fn the_kernel_takes_many_datagrams_as_one() {
    // A NIC that no other test has.
    let (a, b) = pair(&[("SOFTEFA_UDP_MTU", "1403")]);
    b.fill(0, 1 << 20, 9);
    let (to, _back) = (a.to(&b), b.to(&a));
    let mut counted = (0, 0);
    // On a busy machine the two sides may take turns with a few datagrams each.
    let is_batched = (0..20).any(|_| {
        let before = (counter(&b, "send calls"), counter(&b, "datagrams sent"));
        a.qp.read(&to, 1, a.sge(1 << 20, 1 << 20), b.mr.addr() as u64, b.mr.rkey()).unwrap();
        assert_eq!(status(&a, &b), DevStatus::Ok);
        a.check(1 << 20, 1 << 20, 9);
        counted = (counter(&b, "send calls") - before.0, counter(&b, "datagrams sent") - before.1);
        counted.0 * 4 < counted.1
    });
    assert!(is_batched, "{counted:?}: calls, and datagrams");
}

/// A short message goes by the priority channel's socket, a write of many datagrams by the other one; with
/// and without a secret, and between a device with two sockets and one with one.
#[test]
fn each_channel_goes_by_its_socket() {
    let file = SecretFile::new("a socket per channel");
    // NICs that no other test has: the counters are of this one.
    for more in [("SOFTEFA_UDP_MTU", "1404"), ("SOFTEFA_SECRET_FILE", file.path())] {
        for of_b in ["y", "n"] {
            let (of_a, of_b) = (
                [more, ("SOFTEFA_UDP_WINDOW", if of_b == "y" { "2048" } else { "1024" })],
                [more, ("SOFTEFA_UDP_CHANNELS", of_b)],
            );
            let a = Side::open("softefa0", &of_a, QpKind::Srd);
            let b = Side::open("softefa1", &of_b, QpKind::Srd);
            socket_of_each_channel(&a, &b, of_b[1].1 == "y");
        }
    }
}

fn socket_of_each_channel(a: &Side, b: &Side, has_two: bool) {
    let (to, _back) = (a.to(b), b.to(a));
    let sent = || [counter(a, "priority sent"), counter(a, "datagrams sent")];
    let of_first = sent();
    for n in 0..20 {
        b.qp.recv(n, b.sge(0, 100)).unwrap();
        a.qp.send(&to, n, &[a.sge(0, 8)], None).unwrap();
        assert_eq!(wait(a, b, 1).0.status, DevStatus::Ok);
    }
    let of_messages = sent();
    assert!(of_messages[0] >= of_first[0] + 20, "{of_messages:?}");
    assert_eq!(counter(b, "priority sockets"), u64::from(has_two));
    assert_eq!(counter(b, "priority received") >= 20, has_two);
    a.qp.write(&to, 99, a.sge(0, 1 << 20), b.mr.addr() as u64, b.mr.rkey(), None).unwrap();
    assert_eq!(status(a, b), DevStatus::Ok);
    let of_all = sent();
    let [priority, all] = [0, 1].map(|at| of_all[at] - of_messages[at]);
    assert!(all >= 100 && priority * 4 < all, "{priority} of {all}");
}

fn counter(side: &Side, name: &str) -> u64 {
    let all = side.dev.link().udp().unwrap().counters();
    let of =
        |part: &crate::api::DeviceCounters| part.counts.iter().find(|(of, _)| *of == name).map(|(_, n)| *n);
    all.iter().find_map(of).unwrap()
}

#[test]
fn hosts_with_ipv6_reach_each_other() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return; // A host without IPv6.
    }
    const V6: &[(&str, &str)] = &[("SOFTEFA_NET", "::1"), ("SOFTEFA_UDP_MTU", "1500")];
    let (a, _b) = pair(V6);
    assert_eq!(a.dev.gid().iid() >> 56, 0x0e);
    exchange_messages(V6);
    exchange_rdma(V6);
}

#[test]
fn nothing_is_lost_on_a_short_path_that_loses() {
    const LOSSY: &[(&str, &str)] = &[("SOFTEFA_UDP_LOSS", "0.03"), ("SOFTEFA_UDP_MTU", "1500")];
    exchange_messages(LOSSY);
    exchange_rdma(LOSSY);
}

/// A file with a secret, removed at the end.
struct SecretFile(std::path::PathBuf);

impl SecretFile {
    fn new(text: &str) -> SecretFile {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("udp-{}-{text}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        SecretFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_secret_seals_all_and_keeps_others_out() {
    let (one, two) = (SecretFile::new("the-secret-of-job-one"), SecretFile::new("the-secret-of-job-two"));
    let sealed = [("SOFTEFA_SECRET_FILE", one.path()), ("SOFTEFA_UDP_LOSS", "0.01")];
    exchange_messages(&sealed);
    exchange_rdma(&sealed);
    let other = [("SOFTEFA_SECRET_FILE", two.path()), ("SOFTEFA_UDP_LOSS", "0.01")];
    let a = Side::open("softefa0", &sealed, QpKind::Srd);
    let b = Side::open("softefa1", &other, QpKind::Srd);
    a.qp.send_inline(&a.to(&b), 1, b"x", None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Unreachable);
    let stats = a.dev.link().udp().unwrap().auth_stats().unwrap();
    assert!(stats.sealed > 100 && stats.opened > 100 && stats.forged == 0, "{stats:?}");
    // Neither does one without a secret.
    let c = Side::open("softefa1", &[], QpKind::Srd);
    c.qp.send_inline(&c.to(&a), 1, b"x", None).unwrap();
    assert_eq!(status(&c, &a), DevStatus::Unreachable);
}

#[test]
fn many_messages_in_flight_complete_once() {
    let (a, b) = pair(&[("SOFTEFA_UDP_LOSS", "0.01")]);
    let (to, start) = (a.to(&b), Instant::now());
    let (mut sent, mut completed, mut received) = (0u64, vec![false; 3000], vec![false; 3000]);
    (0..200).for_each(|n| b.qp.recv(n, b.sge(n as usize * 4096, 4096)).unwrap());
    while completed.contains(&false) || received.contains(&false) {
        assert!(start.elapsed() < PATIENCE, "{sent} sent");
        if sent < 3000 && (sent < 100 || completed[sent as usize - 100]) {
            let len = 8 + sent as usize * 7 % 2000;
            let at = 1024 + sent as usize % 100 * 4096;
            a.fill(at, len, sent as u8);
            // SAFETY: inside the region, and of a slot whose last message is complete.
            unsafe { a.mr.addr().wrapping_add(at).cast::<u64>().write_unaligned(sent) };
            a.qp.send(&to, sent, &[a.sge(at, len)], None).unwrap();
            sent += 1;
        }
        for cqe in a.poll() {
            assert_eq!(cqe.status, DevStatus::Ok);
            assert!(!std::mem::replace(&mut completed[cqe.wr_id as usize], true));
        }
        for cqe in b.poll() {
            assert_eq!(cqe.status, DevStatus::Ok);
            let at = cqe.wr_id as usize * 4096;
            // SAFETY: inside the region; this receive is complete.
            let number = unsafe { b.mr.addr().wrapping_add(at).cast::<u64>().read_unaligned() } as usize;
            assert_eq!(cqe.len as usize, 8 + number * 7 % 2000);
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(b.mr.addr().wrapping_add(at), cqe.len as usize) };
            assert!(bytes.iter().enumerate().skip(8).all(|(n, b)| *b == byte(n, number as u8)));
            assert!(!std::mem::replace(&mut received[number], true), "message {number} twice");
            b.qp.recv(cqe.wr_id, b.sge(at, 4096)).unwrap();
        }
    }
}

#[test]
fn counters_tell_what_was_lost_and_how_long_it_took() {
    let (a, b) = pair(&[("SOFTEFA_UDP_LOSS", "0.05"), ("SOFTEFA_SEED", "42")]);
    a.fill(0, 1 << 20, 3);
    // RDMA needs an address handle on the other side.
    b.to(&a);
    a.qp.write(&a.to(&b), 9, a.sge(0, 1 << 20), b.mr.addr() as u64, b.mr.rkey(), None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Ok);
    let parts = a.dev.counters_by_part();
    let names: Vec<_> = parts.iter().map(|part| part.part).collect();
    assert_eq!(names, ["efa", "udp"]);
    let udp = &parts[1];
    let resent = ["resent_by_timer", "resent_by_duplicate_ack", "resent_by_time"].map(|name| udp.get(name));
    let (sent, resent) = (udp.get("sent"), resent.iter().sum::<u64>());
    assert!(sent > 100 && resent > 0, "{udp}");
    assert!(
        udp.get("datagrams sent") > sent / 2 && udp.get("send calls") <= udp.get("datagrams sent"),
        "{udp}"
    );
    assert!(udp.get("datagrams received") > 0 && udp.times[0].1.iter().sum::<u64>() > 0, "{udp}");
    let at_b = &b.dev.counters_by_part()[1];
    let acks = ["acks_delayed", "acks_immediate", "acks_piggybacked"].map(|name| at_b.get(name));
    assert!(acks.iter().sum::<u64>() > 0, "{at_b}");
}

#[test]
fn the_far_side_decides() {
    let (a, b) = pair(&[]);
    let to = a.to(&b);
    let gone = Side::open("softefa1", &[], QpKind::Srd).qp.qpn();
    a.qp.send_inline(&Dest { qpn: gone, ..to }, 1, b"x", None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::BadDestQpn);
    a.qp.send_inline(&Dest { qkey: 1, ..to }, 1, b"x", None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::BadDestQpn);
    let there = b.mr.addr() as u64;
    a.qp.read(&to, 1, a.sge(0, 10), there, b.mr.rkey()).unwrap();
    assert_eq!(status(&a, &b), DevStatus::UnknownPeer);
    let _back = b.to(&a);
    let end = there + LEN as u64;
    for len in [10, 100_000] {
        a.qp.read(&to, 1, a.sge(0, len), end - 5, b.mr.rkey()).unwrap();
        assert_eq!(status(&a, &b), DevStatus::RemoteBadAddress);
        a.qp.write(&to, 1, a.sge(0, len), end - 5, b.mr.rkey(), None).unwrap();
        assert_eq!(status(&a, &b), DevStatus::RemoteBadAddress);
        a.qp.write(&to, 1, a.sge(0, len), u64::MAX - 5, b.mr.rkey(), Some(1)).unwrap();
        assert_eq!(status(&a, &b), DevStatus::RemoteBadAddress);
        a.qp.write(&to, 1, a.sge(0, len), there, b.mr.rkey() ^ 1 << 16, None).unwrap();
        assert_eq!(status(&a, &b), DevStatus::RemoteBadAddress);
    }
    b.qp.recv(2, b.sge(0, 8)).unwrap();
    a.qp.send(&to, 1, &[a.sge(0, 9)], None).unwrap();
    let (sent, got) = wait(&a, &b, 1);
    assert_eq!((sent.status, got[0].status), (DevStatus::RemoteBadLength, DevStatus::BadLength));
}

#[test]
fn a_receiver_that_is_not_ready_is_tried_again_or_reported() {
    let (a, b) = pair(&[]);
    let to = a.to(&b);
    a.qp.send_inline(&to, 1, b"late", None).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(5) {
        assert!(a.poll().is_empty() && b.poll().is_empty());
    }
    b.qp.recv(2, b.sge(0, 8)).unwrap();
    let (sent, got) = wait(&a, &b, 1);
    assert_eq!((sent.status, got[0].len), (DevStatus::Ok, 4));
    a.qp.set_rnr_retry(0);
    a.qp.send_inline(&to, 1, b"x", None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Rnr);
}

#[test]
fn a_peer_that_computes_is_served_by_its_thread() {
    // A NIC of its own, which no other test polls.
    let (a, b) = pair(&[("SOFTEFA_UDP_MTU", "9000")]);
    let (to, _back) = (a.to(&b), b.to(&a));
    b.fill(0, 300_000, 9);
    b.qp.recv(2, b.sge(1 << 20, 100)).unwrap();
    a.qp.read(&to, 1, a.sge(0, 300_000), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    a.qp.send_inline(&to, 2, b"there", None).unwrap();
    let (start, mut done) = (Instant::now(), 0);
    while done < 2 {
        done += a.poll().iter().inspect(|cqe| assert_eq!(cqe.status, DevStatus::Ok)).count();
        assert!(start.elapsed() < PATIENCE);
    }
    a.check(0, 300_000, 9);
    assert_eq!(b.poll().len(), 1);
}

#[test]
fn the_last_queue_pair_says_goodbye() {
    let secret = SecretFile::new("the-secret-of-a-job-that-ends");
    // Devices that no other test has: the counters are theirs.
    for more in [&[("SOFTEFA_UDP_MTU", "1301")][..], &[("SOFTEFA_SECRET_FILE", secret.path())]] {
        let (a, b) = pair(more);
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth: 16,
            recv_depth: 16,
            qkey: QKEY,
            rnr_retry: 7,
            unsolicited_write_recv: false,
        };
        let other = b.dev.create_qp(&b.pd, &b.cq, &b.cq, &init).unwrap();
        let deaths = || a.dev.link().udp().unwrap().stats().0.deaths;
        let to = Dest { qpn: other.qpn(), ..a.to(&b) };
        let _back = b.to(&a);
        other.recv(1, b.sge(0, 100)).unwrap();
        a.qp.send(&to, 2, &[a.sge(0, 100)], None).unwrap();
        assert_eq!(wait(&a, &b, 1).0.status, DevStatus::Ok);
        // It waits for a receive, with or without the first queue pair.
        a.qp.send(&to, 3, &[a.sge(0, 100)], None).unwrap();
        drop(b.qp);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            assert!(a.poll().is_empty());
        }
        assert_eq!(deaths(), 0, "a queue pair is left");
        drop(other);
        let start = Instant::now();
        let mut done = Vec::new();
        while done.is_empty() || deaths() == 0 {
            done.extend(a.poll());
            assert!(start.elapsed() < Duration::from_secs(6), "it learns by silence only: {done:?}");
        }
        assert_eq!((done[0].wr_id, done[0].status, deaths()), (3, DevStatus::BadDestQpn, 1));
    }
}

#[test]
fn a_destroyed_queue_pair_leaves_nothing_that_writes() {
    let (a, b) = pair(&[]);
    let (to, _back) = (a.to(&b), b.to(&a));
    for round in 0..20 {
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth: 8,
            recv_depth: 8,
            qkey: QKEY,
            rnr_retry: 7,
            unsolicited_write_recv: false,
        };
        let qp = a.dev.create_qp(&a.pd, &a.cq, &a.cq, &init).unwrap();
        let mr = a.dev.alloc_mr(&a.pd, 1 << 20, Access::ALL).unwrap();
        let sge = Sge { addr: mr.addr(), len: 1 << 20, lkey: mr.lkey() };
        qp.read(&to, 1, sge, b.mr.addr() as u64, b.mr.rkey()).unwrap();
        (0..round).for_each(|_| drop((a.poll(), b.poll())));
        match round % 2 {
            0 => drop((qp, mr)),
            _ => drop((mr, qp)),
        }
    }
    a.qp.read(&to, 7, a.sge(0, 64), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(wait(&a, &b, 0).0.wr_id, 7);
}

#[test]
fn a_peer_of_another_host_is_refused_by_the_name_of_the_setting() {
    let dev = soft::open(&Source::empty(), "softefa0").unwrap();
    let elsewhere = crate::efa::dev::Gid::link_local(dev.gid().iid() ^ 1 << 50);
    let why = dev.check_reachable(elsewhere).unwrap_err().to_string();
    assert!(why.contains("another host") && why.contains("SOFTEFA_NET"), "{why}");
}

#[test]
fn a_port_that_nobody_has_is_unreachable() {
    let (a, b) = pair(&[]);
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let gid = crate::efa::dev::Gid::link_local(0x0a << 56 | u64::from(gone) << 32 | 0x7f00_0001);
    let to = Dest { ah: a.dev.create_ah(&a.pd, gid).unwrap(), qpn: 5, qkey: QKEY };
    a.qp.send_inline(&to, 1, b"x", None).unwrap();
    a.qp.read(&to, 2, a.sge(0, 100), 0, 1).unwrap();
    let (start, mut got) = (Instant::now(), Vec::new());
    while got.len() < 2 && start.elapsed() < PATIENCE {
        got.extend(a.poll().iter().map(|cqe| cqe.status));
        drop(b.poll());
    }
    assert_eq!(got, [DevStatus::Unreachable; 2]);
}

#[test]
fn strangers_are_dropped_before_the_engine() {
    let (a, b) = pair(&[]);
    let to = a.to(&b);
    let addr = super::node_of(b.dev.gid().iid()).unwrap().socket_addr_v4().unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut rng = 1u64;
    for round in 0..500u32 {
        let bytes: Vec<u8> = (0..round % 200)
            .map(|_| {
                rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (rng >> 56) as u8 % 9
            })
            .collect();
        stranger.send_to(&bytes, addr).unwrap();
        if round % 50 == 0 {
            b.qp.recv(1, b.sge(0, 8)).unwrap();
            a.qp.send_inline(&to, 1, b"x", None).unwrap();
            assert_eq!(wait(&a, &b, 1).0.status, DevStatus::Ok);
        }
    }
    let (stats, refused) = b.dev.link().udp().unwrap().stats();
    assert!(refused > 0, "{stats:?}");
}

#[test]
fn datagrams_carry_their_header() {
    let (a, b) = (Side::open("softefa0", &[], QpKind::Ud), Side::open("softefa1", &[], QpKind::Ud));
    b.qp.recv(3, b.sge(0, 1000)).unwrap();
    a.fill(0, 700, 3);
    a.qp.send(&a.to(&b), 1, &[a.sge(0, 700)], None).unwrap();
    let (sent, got) = wait(&a, &b, 1);
    assert_eq!((sent.status, got[0].status, got[0].len), (DevStatus::Ok, DevStatus::Ok, 740));
    b.check(40, 700, 3);
    // Nobody has posted a receive: a datagram is lost, and its sender is not told.
    a.qp.send_inline(&a.to(&b), 2, b"lost", None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Ok);
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let open = |vars: &[(&str, &str)]| {
        let vars = vars.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        soft::open(&Source::from_vars(vars).unwrap(), "softefa0").err().unwrap().to_string()
    };
    assert!(open(&[("SOFTEFA_UDP", "y"), ("SOFTEFA_GID", "a1")]).contains("SOFTEFA_UDP_ADDRESS"));
    assert!(open(&[("SOFTEFA_NET", "ib7")]).contains("ib7"));
    assert!(open(&[("SOFTEFA_UDP", "y"), ("SOFTEFA_UDP_ADDRESS", "here")]).contains("192.0.2.7"));
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let text = open(&[("SOFTEFA_UDP", "y"), ("SOFTEFA_UDP_PORTS", &port)]);
    assert!(text.contains(&port), "{text}");
}
