//! A process that ends without destroying its queue pairs says goodbye over UDP, and its forked child does
//! not say it in its place. What it owes its peers arrives, even if it is lost. The tests run this binary as
//! their peer.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use ucs::config::Source;
use uct::api::Access;
use uct::efa::dev::soft::{self, Ah, Cq, Device, Mr, Net, Pd, Qp};
use uct::efa::dev::{Channel, Cqe, Dest, Dev, DevCq, DevMr, DevQp, DevStatus, Gid, QpInit, QpKind, Sge};

const ROLE: &str = "UCT_TEST_ROLE";
const QKEY: u32 = 0x7e57;
const LEN: usize = 100;
const TIMEOUT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(20);

struct Side {
    dev: Device<Net>,
    pd: Pd,
    mr: Mr<Net>,
    cq: Cq<Net>,
    qp: Qp<Net>,
}

fn open(more: &[(&str, &str)]) -> Side {
    let vars = [("SOFTEFA_UDP", "all"), ("SOFTEFA_UDP_MTU", "1311")];
    let vars = vars.iter().chain(more).copied();
    let source = Source::from_vars(vars.map(|(name, value)| (name.into(), value.into()))).unwrap();
    let dev = soft::open(&source, "softefa0").unwrap();
    let pd = dev.alloc_pd().unwrap();
    let mr = dev.alloc_mr(&pd, LEN, Access::ALL).unwrap();
    let cq = dev.create_cq(64, Channel::Without).unwrap();
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 16,
        recv_depth: 16,
        qkey: QKEY,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
    Side { dev, pd, mr, cq, qp }
}

impl Side {
    fn sge(&self) -> Sge {
        Sge { addr: self.mr.addr(), len: LEN as u32, lkey: self.mr.lkey() }
    }

    fn next_cqe(&self, within: Duration) -> Option<Cqe> {
        let end = Instant::now() + within;
        let mut out = [Cqe::EMPTY];
        while self.cq.poll(&mut out) == 0 {
            if Instant::now() > end {
                return None;
            }
            std::thread::yield_now();
        }
        Some(out[0])
    }
}

impl Side {
    /// Connections that have ended.
    fn deaths(&self) -> u64 {
        let counters = self.dev.counters_by_part();
        let mut counts = counters.iter().flat_map(|part| &part.counts);
        counts.find(|(name, _)| *name == "deaths").unwrap().1
    }
}

/// Not a test: what the other process runs. It receives a message; its forked child ends by `exit`; it
/// receives another one, and ends by `exit`. In role `lossy` it loses a fifth of what it sends, receives one
/// message and ends at once.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let is_lossy = role == "lossy";
    let side = open(if is_lossy { &[("SOFTEFA_UDP_LOSS", "0.2")] } else { &[] });
    println!("@{} {}", side.dev.gid().iid(), side.qp.qpn());
    std::io::stdout().flush().unwrap();
    let receive = || {
        side.qp.recv(1, side.sge()).unwrap();
        assert_eq!(side.next_cqe(TIMEOUT).unwrap().status, DevStatus::Ok);
    };
    receive();
    if is_lossy {
        // SAFETY: ends the process without destroying the queue pair.
        unsafe { libc::exit(0) }
    }
    // SAFETY: the child calls `exit` only.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends the process.
            unsafe { libc::exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child of just now, with an integer of ours for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    receive();
    // SAFETY: ends the process without destroying the queue pair.
    unsafe { libc::exit(0) }
}

/// Starts this binary as the peer. Returns the process, and where it receives.
fn start(side: &Side, role: &str) -> (Child, Dest<Ah>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.map(|line| line.split_once('@').map(|(_, told)| told.to_owned())).find_map(|told| told);
    let line = line.expect("the peer does not start");
    let (iid, qpn) = line.split_once(' ').unwrap();
    let ah = side.dev.create_ah(&side.pd, Gid::link_local(iid.parse().unwrap())).unwrap();
    (child, Dest { ah, qpn: qpn.parse().unwrap(), qkey: QKEY })
}

/// A response that is lost is sent again, though the process has called `exit`.
#[test]
fn what_a_process_owes_arrives_though_it_ends_at_once() {
    let side = open(&[]);
    for n in 0..12 {
        let (mut child, to) = start(&side, "lossy");
        side.qp.send(&to, n, &[side.sge()], None).unwrap();
        assert_eq!(side.next_cqe(TIMEOUT).unwrap().status, DevStatus::Ok, "process {n}");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_process_that_ends_says_goodbye_and_its_child_does_not() {
    // A device that no other test has: the counters are its own.
    let side = open(&[("SOFTEFA_UDP_MTU", "1312")]);
    let (mut child, to) = start(&side, "peer");
    for message in 1..=2 {
        side.qp.send(&to, message, &[side.sge()], None).unwrap();
        assert_eq!(side.next_cqe(TIMEOUT).unwrap().status, DevStatus::Ok, "message {message}");
    }
    assert!(child.wait().unwrap().success());
    // Nothing is awaited from the peer: silence would never tell.
    let end = Instant::now() + SOON;
    while side.deaths() == 0 {
        assert_eq!(side.cq.poll(&mut [Cqe::EMPTY]), 0);
        assert!(Instant::now() < end, "it said no goodbye");
    }
    // After a goodbye of the child, the second message would have begun a connection, which ends, too.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        assert_eq!(side.cq.poll(&mut [Cqe::EMPTY]), 0);
    }
    assert_eq!(side.deaths(), 1);
}
