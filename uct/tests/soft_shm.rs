//! The software device between processes: each test runs this binary as its peer, talks to it by pipe, and
//! kills it. Independent of timing.

#[path = "soft_shm/revoked.rs"]
mod revoked;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use ucs::config::Source;
use uct::api::Access;
use uct::efa::dev::soft::{Ah, Cq, Device, Mr, Pd, Qp, Shm, open_shm};
use uct::efa::dev::{
    Channel, Cqe, CqeOp, Dest, Dev, DevCq, DevMr, DevQp, DevStatus, Gid, PostError, QpInit, QpKind, Sge,
};

const QKEY: u32 = 0x7e57;
const MTU: usize = 8928;
const TIMEOUT: Duration = Duration::from_secs(60);
const ROLE: &str = "UCT_TEST_ROLE";

struct Memory {
    mr: Mr<Shm>,
    /// Memory that the device did not allocate.
    _own: Option<Vec<u8>>,
}

struct Side {
    dev: Device<Shm>,
    pd: Pd,
    cq: Cq<Shm>,
    qp: Qp<Shm>,
}

const INIT: QpInit = QpInit {
    kind: QpKind::Srd,
    send_depth: 64,
    recv_depth: 64,
    qkey: QKEY,
    rnr_retry: 7,
    unsolicited_write_recv: false,
};

impl Side {
    fn open(source: &Source, init: &QpInit, channel: Channel) -> Side {
        let dev = open_shm(source, "softefa0").unwrap();
        let pd = dev.alloc_pd().unwrap();
        let cq = dev.create_cq(256, channel).unwrap();
        let qp = dev.create_qp(&pd, &cq, &cq, init).unwrap();
        Side { dev, pd, cq, qp }
    }

    /// `kind`: `file` for memory of the device, `own` for ours.
    fn memory(&self, kind: &str, len: usize) -> Memory {
        if kind == "file" {
            return Memory { mr: self.dev.alloc_mr(&self.pd, len, Access::ALL).unwrap(), _own: None };
        }
        let mut own = vec![0u8; len];
        // SAFETY: the vector lives as long as the registration and is not accessed by references meanwhile.
        let mr = unsafe { self.dev.reg_mr(&self.pd, own.as_mut_ptr(), len, Access::ALL) }.unwrap();
        Memory { mr, _own: Some(own) }
    }

    fn poll(&self) -> Vec<Cqe> {
        let got = self.poll_upto(32);
        if got.is_empty() {
            // Tests run concurrently on few cores.
            std::thread::yield_now();
        }
        got
    }

    fn poll_upto(&self, max: usize) -> Vec<Cqe> {
        let mut out = [Cqe::EMPTY; 32];
        let n = self.cq.poll(&mut out[..max]);
        out[..n].to_vec()
    }

    fn next_cqe(&self) -> Cqe {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(cqe) = self.poll_upto(1).first() {
                return *cqe;
            }
            assert!(Instant::now() < end, "nothing completed");
            std::thread::yield_now();
        }
    }

    fn to(&self, iid: u64, qpn: u16) -> Dest<Ah> {
        Dest { ah: self.dev.create_ah(&self.pd, Gid::link_local(iid)).unwrap(), qpn, qkey: QKEY }
    }
}

impl Memory {
    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr().wrapping_add(at), len: len as u32, lkey: self.mr.lkey() }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.mr.len());
        // SAFETY: inside the region (asserted); nobody else touches it now.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mr.addr().wrapping_add(at), bytes.len()) }
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.mr.len());
        let mut out = vec![0; len];
        // SAFETY: inside the region (asserted); nobody writes these bytes now.
        unsafe { std::ptr::copy_nonoverlapping(self.mr.addr().wrapping_add(at), out.as_mut_ptr(), len) }
        out
    }
}

fn message(n: u32) -> Vec<u8> {
    let len = match n % 4 {
        0 => 4,
        1 => 4 + n as usize % 29,
        2 => 33 + n as usize % 1000,
        _ => 4 + n as usize * 7 % (MTU - 3),
    };
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u32 * 31 + n) as u8).collect();
    bytes[..4].copy_from_slice(&n.to_le_bytes());
    bytes
}

// --- the peer --------------------------------------------------------------------------------

/// Not a test: what the other process runs.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let source = Source::from_env().unwrap();
    match words[..] {
        ["sink", kind, count] => sink(&source, kind, count.parse().unwrap()),
        ["idle", kind, posts, init] => idle(&source, kind, posts.parse().unwrap(), init),
        ["pour", iid, qpn, count] => {
            send_messages(&source, iid.parse().unwrap(), qpn.parse().unwrap(), count.parse().unwrap())
        }
        ["sleeper"] => sleeper(&source),
        ["owner", kind, how, rounds] => revoked::owner(&source, kind, how, rounds.parse().unwrap()),
        ["starved", more] => out_of_descriptors(&source, more.parse().unwrap()),
        _ => panic!("no such role: {role}"),
    }
}

fn send_line(line: &str) {
    println!("@{line}");
    std::io::stdout().flush().unwrap();
}

fn read_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Receives `count` messages and checks that each came once and whole.
fn sink(source: &Source, kind: &str, count: u32) {
    let side = Side::open(source, &INIT, Channel::Without);
    let memory = side.memory(kind, 64 * MTU);
    (0..64).for_each(|i| side.qp.recv(i as u64, memory.sge(i * MTU, MTU)).unwrap());
    send_line(&format!("{} {}", side.dev.gid().iid(), side.qp.qpn()));
    let (mut seen, mut sorted, mut last) = (HashSet::new(), true, 0);
    let end = Instant::now() + TIMEOUT;
    while seen.len() < count as usize {
        for cqe in side.poll() {
            assert_eq!((cqe.status, cqe.op), (DevStatus::Ok, CqeOp::Recv));
            let at = cqe.wr_id as usize * MTU;
            let bytes = memory.get(at, cqe.len as usize);
            let n = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert!(bytes == message(n) && cqe.imm == Some(n), "message {n} is damaged");
            assert!(seen.insert(n), "message {n} came twice");
            sorted &= n >= last;
            last = n;
            side.qp.recv(cqe.wr_id, memory.sge(at, MTU)).unwrap();
        }
        assert!(Instant::now() < end, "only {} of {count} messages came", seen.len());
    }
    send_line(if sorted { "sorted" } else { "mixed" });
    read_line();
}

/// Posts receives, shows its memory, and waits for commands.
fn idle(source: &Source, kind: &str, posts: u64, init: &str) {
    let init = QpInit { unsolicited_write_recv: init == "unsolicited", ..INIT };
    let side = Side::open(source, &init, Channel::Without);
    let memory = side.memory(kind, 8 << 20);
    (0..posts).for_each(|i| side.qp.recv(i, memory.sge(0, MTU)).unwrap());
    let (addr, rkey) = (memory.mr.addr() as u64, memory.mr.rkey());
    send_line(&format!("{} {} {addr} {rkey}", side.dev.gid().iid(), side.qp.qpn()));
    loop {
        let line = read_line();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["know", iid] => _ = side.to(iid.parse().unwrap(), 0),
            ["recv"] => side.qp.recv(99, memory.sge(0, MTU)).unwrap(),
            ["become", program] => {
                send_line("ok");
                panic!("{}", std::os::unix::process::CommandExt::exec(Command::new(program).arg("60")))
            }
            ["poll"] => {
                let cqe = side.next_cqe();
                send_line(&format!("{:?} {} {:?}", cqe.op, cqe.len, cqe.imm));
                continue;
            }
            _ => return,
        }
        send_line("ok");
    }
}

fn send_messages(source: &Source, iid: u64, qpn: u16, count: u32) {
    let side = Side::open(source, &INIT, Channel::Without);
    send_messages_from(&side, &side.to(iid, qpn), 0, count);
    send_line("done");
    read_line();
}

fn send_messages_from(side: &Side, to: &Dest<Ah>, first: u32, count: u32) {
    let memory = side.memory("own", 64 * MTU);
    let (mut free, mut sent, mut done) = ((0..64usize).collect::<Vec<_>>(), 0, 0);
    let end = Instant::now() + TIMEOUT;
    while done < count {
        while sent < count && !free.is_empty() {
            let n = first + sent;
            let bytes = message(n);
            let slot = free[free.len() - 1];
            let posted = if bytes.len() <= 32 {
                side.qp.send_inline(to, slot as u64, &bytes, Some(n))
            } else {
                memory.put(slot * MTU, &bytes);
                let (a, b) = (bytes.len() / 3, bytes.len() - bytes.len() / 3);
                let pieces = [memory.sge(slot * MTU, a), memory.sge(slot * MTU + a, b)];
                side.qp.send(to, slot as u64, &pieces, Some(n))
            };
            match posted {
                Ok(()) => (free.pop(), sent += 1).1,
                Err(PostError::Full) => break,
                Err(e) => panic!("{e:?}"),
            }
        }
        for cqe in side.poll() {
            assert_eq!(cqe.status, DevStatus::Ok);
            free.push(cqe.wr_id as usize);
            done += 1;
        }
        assert!(Instant::now() < end, "only {done} of {count} messages went");
    }
}

fn sleeper(source: &Source) {
    let side = Side::open(source, &INIT, Channel::With);
    let memory = side.memory("file", MTU);
    side.qp.recv(1, memory.sge(0, MTU)).unwrap();
    let epoll = ucs::sys::Epoll::new().unwrap();
    epoll.add(side.cq.event_fd().unwrap(), 1).unwrap();
    assert!(side.cq.arm());
    send_line(&format!("{} {}", side.dev.gid().iid(), side.qp.qpn()));
    loop {
        if epoll.wait(&mut Vec::new(), Some(TIMEOUT)).unwrap() == 0 {
            panic!("nobody woke me");
        }
        if side.poll().len() == 1 {
            break send_line("awake");
        }
        side.cq.arm();
    }
    read_line();
}

/// Opens everything with few descriptors to spare, and reports the first error.
fn out_of_descriptors(source: &Source, more: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1;
    let limit = Rlimit { current: Some(open + more), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let first_error = || -> Result<(), uct::api::OpenError> {
        let dev = open_shm(source, "softefa0")?;
        let pd = dev.alloc_pd()?;
        let cq = dev.create_cq(16, Channel::With)?;
        let qp = dev.create_qp(&pd, &cq, &cq, &INIT)?;
        drop(qp);
        Ok(())
    };
    send_line(&first_error().map_or_else(|e| e.to_string(), |()| "fine".into()));
}

// --- the tests --------------------------------------------------------------------------------

struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(role: &str, env: &[(&str, &str)]) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "peer", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Peer { child, input, output }
    }

    /// The next line from the peer, without the test runner's output.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the peer ended early");
            if let Some((_, report)) = line.split_once('@') {
                return report.trim().to_owned();
            }
        }
    }

    fn numbers(&mut self) -> Vec<u64> {
        self.line().split(' ').map(|n| n.parse().unwrap()).collect()
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.line()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn side() -> Side {
    Side::open(&Source::empty(), &INIT, Channel::Without)
}

/// An idle peer that knows `side`, with its destination, memory address and key.
fn idle_peer(side: &Side, role: &str) -> (Peer, Dest<Ah>, u64, u32) {
    let mut peer = Peer::start(role, &[]);
    let n = peer.numbers();
    assert_eq!(peer.ask(&format!("know {}", side.dev.gid().iid())), "ok");
    let to = side.to(n[0], n[1] as u16);
    (peer, to, n[2], n[3] as u32)
}

#[test]
fn messages_of_all_sizes_arrive_once_and_whole() {
    for (kind, env) in [
        ("file", [("SOFTEFA_REORDER", "0"), ("SOFTEFA_RNR", "0")]),
        ("own", [("SOFTEFA_REORDER", "0"), ("SOFTEFA_RNR", "0")]),
        ("file", [("SOFTEFA_REORDER", "0.3"), ("SOFTEFA_RNR", "0.1")]),
    ] {
        let mut sink = Peer::start(&format!("sink {kind} 40000"), &[]);
        let n = sink.numbers();
        let mut source = Source::empty();
        env.iter().for_each(|(key, value)| source.set(key, value));
        let side = Side::open(&source, &INIT, Channel::Without);
        send_messages_from(&side, &side.to(n[0], n[1] as u16), 0, 40_000);
        let order = sink.line();
        assert!(env[0].1 == "0" || order == "mixed", "{kind} {env:?}: nothing was overtaken");
    }
}

#[test]
fn two_senders_share_a_receiver() {
    let mut sink = Peer::start("sink file 30000", &[]);
    let n = sink.numbers();
    let mut other = Peer::start(&format!("pour {} {} 10000", n[0], n[1]), &[]);
    let side = side();
    send_messages_from(&side, &side.to(n[0], n[1] as u16), 10_000, 20_000);
    assert_eq!(other.line(), "done");
    sink.line();
}

#[test]
fn rdma_needs_no_code_on_the_target() {
    for kind in ["file", "own"] {
        let side = side();
        let (mut peer, to, addr, rkey) = idle_peer(&side, &format!("idle {kind} 1 solicited"));
        let local = side.memory("own", 8 << 20);
        for len in [1usize, 64, 4097, 1 << 20, (3 << 20) + 5] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            local.put(0, &bytes);
            side.qp.write(&to, 1, local.sge(0, len), addr + 3, rkey, None).unwrap();
            let cqe = side.next_cqe();
            assert_eq!((cqe.status, cqe.op), (DevStatus::Ok, CqeOp::Write), "{kind} {len}");
            local.put(0, &vec![0; len]);
            side.qp.read(&to, 2, local.sge(0, len), addr + 3, rkey).unwrap();
            assert_eq!(side.next_cqe().status, DevStatus::Ok);
            assert!(local.get(0, len) == bytes, "{kind} {len}");
        }
        for (raddr, key) in [(addr - 1, rkey), (addr + (8 << 20), rkey), (addr, rkey ^ 1 << 16)] {
            side.qp.read(&to, 3, local.sge(0, 1), raddr, key).unwrap();
            assert_eq!(side.next_cqe().status, DevStatus::RemoteBadAddress);
        }
        side.qp.write(&to, 4, local.sge(0, 100), addr, rkey, Some(77)).unwrap();
        assert_eq!(side.next_cqe().status, DevStatus::Ok);
        assert_eq!(peer.ask("poll"), "RecvWriteImm 100 Some(77)");
    }
}

#[test]
fn unsolicited_writes_use_no_receive() {
    let side = side();
    let (mut peer, to, addr, rkey) = idle_peer(&side, "idle file 0 unsolicited");
    let local = side.memory("file", 4096);
    for n in 0..20 {
        side.qp.write(&to, 1, local.sge(0, 10), addr, rkey, Some(n)).unwrap();
        assert_eq!(side.next_cqe().status, DevStatus::Ok);
    }
    for n in 0..20 {
        assert_eq!(peer.ask("poll"), format!("RecvWriteImm 10 Some({n})"));
    }
}

#[test]
fn rdma_needs_an_address_handle_at_the_target() {
    let side = side();
    let mut peer = Peer::start("idle file 0 solicited", &[]);
    let n = peer.numbers();
    let to = side.to(n[0], n[1] as u16);
    let local = side.memory("own", 8);
    side.qp.read(&to, 1, local.sge(0, 8), n[2], n[3] as u32).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::UnknownPeer);
    assert_eq!(peer.ask(&format!("know {}", side.dev.gid().iid())), "ok");
    side.qp.read(&to, 1, local.sge(0, 8), n[2], n[3] as u32).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::Ok);
}

#[test]
fn wrong_qkeys_and_qpns_complete_with_bad_dest_qpn() {
    let side = side();
    let (_peer, to, ..) = idle_peer(&side, "idle file 4 solicited");
    for dest in [Dest { qkey: 1, ..to }, Dest { qpn: to.qpn ^ 0x8000, ..to }, side.to(0xdead_beef, 1)] {
        side.qp.send_inline(&dest, 1, b"x", None).unwrap();
        assert_eq!(side.next_cqe().status, DevStatus::BadDestQpn);
    }
    side.qp.send_inline(&to, 1, b"x", None).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::Ok);
}

#[test]
fn rnr_retry_count_7_is_infinite_and_others_are_bounded() {
    let mut peer = Peer::start("idle file 0 solicited", &[]);
    let n = peer.numbers();
    for retry in [0, 2] {
        let side = Side::open(&Source::empty(), &QpInit { rnr_retry: retry, ..INIT }, Channel::Without);
        side.qp.send_inline(&side.to(n[0], n[1] as u16), 1, b"x", None).unwrap();
        assert_eq!(side.next_cqe().status, DevStatus::Rnr);
    }
    let ever = side();
    ever.qp.send_inline(&ever.to(n[0], n[1] as u16), 1, b"x", None).unwrap();
    (0..10_000).for_each(|_| assert!(ever.poll().is_empty()));
    assert_eq!(peer.ask("recv"), "ok");
    assert_eq!(ever.next_cqe().status, DevStatus::Ok);
    assert_eq!(peer.ask("poll"), "Recv 1 None");
}

fn shm_files() -> HashSet<std::ffi::OsString> {
    std::fs::read_dir("/dev/shm").map(|d| d.flatten().map(|e| e.file_name()).collect()).unwrap_or_default()
}

fn is_listed(iid: u64) -> bool {
    std::fs::read_to_string("/proc/net/unix").unwrap().contains(&format!(".{iid:x}."))
}

#[test]
fn a_killed_receiver_is_detected_and_leaves_nothing() {
    let before = shm_files();
    let side = side();
    let (mut peer, to, addr, rkey) = idle_peer(&side, "idle file 16 solicited");
    let iid = {
        let mut other = Peer::start("idle file 0 solicited", &[]);
        let iid = other.numbers()[0];
        assert!(is_listed(iid));
        other.kill();
        iid
    };
    assert!(!is_listed(iid), "the name outlived its process");
    let local = side.memory("own", 8);
    side.qp.read(&to, 0, local.sge(0, 8), addr, rkey).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::Ok);
    for _ in 0..16 {
        side.qp.send_inline(&to, 1, b"x", None).unwrap();
        assert_eq!(side.next_cqe().status, DevStatus::Ok);
    }
    side.qp.send_inline(&to, 2, b"waits", None).unwrap();
    assert!(side.poll().is_empty());
    peer.kill();
    let cqe = side.next_cqe();
    assert_eq!((cqe.wr_id, cqe.status), (2, DevStatus::BadDestQpn));
    side.qp.send_inline(&to, 3, b"late", None).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::BadDestQpn);
    side.qp.read(&to, 4, local.sge(0, 8), addr, rkey).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::BadDestQpn);
    let new: Vec<_> = shm_files().difference(&before).cloned().collect();
    assert!(!new.iter().any(|f| f.to_string_lossy().contains("softefa")), "{new:?}");
}

/// It calls `execve`: the system finds the process alive.
#[test]
fn a_peer_that_becomes_another_program_is_gone() {
    for kind in ["file", "own"] {
        let side = side();
        let (mut peer, to, addr, rkey) = idle_peer(&side, &format!("idle {kind} 16 solicited"));
        let local = side.memory("own", 8);
        let write = |id| {
            side.qp.write(&to, id, local.sge(0, 8), addr, rkey, None).unwrap();
            side.next_cqe().status
        };
        assert_eq!(write(0), DevStatus::Ok);
        assert_eq!(peer.ask("become sleep"), "ok");
        let end = Instant::now() + TIMEOUT;
        let failed = loop {
            match write(1) {
                DevStatus::Ok => assert!(Instant::now() < end, "{kind}: it is written to"),
                // Before that is noticed, some other memory may be at the address, or none.
                DevStatus::RemoteBadAddress if kind == "own" => {}
                status => break status,
            }
        };
        assert_eq!(failed, DevStatus::BadDestQpn, "{kind}");
        side.qp.send_inline(&to, 2, b"late", None).unwrap();
        assert_eq!(side.next_cqe().status, DevStatus::BadDestQpn);
        assert!(peer.child.try_wait().unwrap().is_none(), "the process has ended");
    }
}

#[test]
fn a_killed_sender_does_not_block_the_receiver() {
    // Whatever moment each is killed in, the next one gets through.
    let side = side();
    let memory = side.memory("file", 64 * MTU);
    (0..64).for_each(|i| side.qp.recv(i as u64, memory.sge(i * MTU, MTU)).unwrap());
    let role = format!("pour {} {} 100000000", side.dev.gid().iid(), side.qp.qpn());
    for _ in 0..4 {
        let mut sender = Peer::start(&role, &[]);
        let end = Instant::now() + TIMEOUT;
        let mut came = 0;
        while came < 5_000 {
            for cqe in side.poll() {
                came += 1;
                side.qp.recv(cqe.wr_id, memory.sge(cqe.wr_id as usize * MTU, MTU)).unwrap();
            }
            assert!(Instant::now() < end, "only {came} came");
        }
        sender.kill();
    }
}

#[test]
fn a_sleeper_is_woken_by_a_message() {
    let mut peer = Peer::start("sleeper", &[]);
    let n = peer.numbers();
    let side = side();
    side.qp.send_inline(&side.to(n[0], n[1] as u16), 1, b"x", None).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::Ok);
    assert_eq!(peer.line(), "awake");
}

#[test]
fn a_process_sends_to_itself_and_a_destroyed_queue_pair_is_gone() {
    let (a, b) = (side(), side());
    assert_eq!(a.dev.gid(), b.dev.gid(), "one process is one host");
    let memory = b.memory("own", 100);
    b.qp.recv(5, memory.sge(0, 100)).unwrap();
    let to = a.to(b.dev.gid().iid(), b.qp.qpn());
    a.qp.send_inline(&to, 1, b"self", Some(3)).unwrap();
    assert_eq!(a.next_cqe().status, DevStatus::Ok);
    let cqe = b.next_cqe();
    assert_eq!((cqe.wr_id, cqe.len, cqe.imm, cqe.src_qpn), (5, 4, Some(3), a.qp.qpn()));
    assert_eq!(memory.get(0, 4), b"self");
    b.qp.recv(6, memory.sge(0, 100)).unwrap();
    drop(b.qp);
    a.qp.send_inline(&to, 2, b"late", None).unwrap();
    assert_eq!(a.next_cqe().status, DevStatus::BadDestQpn);
}

#[test]
fn two_processes_may_share_a_gid() {
    let gid = [("SOFTEFA_GID", "0x5157a5")];
    let mut other = Peer::start("idle file 1 solicited", &gid);
    let n = other.numbers();
    assert_eq!(n[0], 0x5157a5);
    let side = Side::open(&Source::empty().with("SOFTEFA_GID", "0x5157a5"), &INIT, Channel::Without);
    assert_ne!(u64::from(side.qp.qpn()), n[1]);
    side.qp.send_inline(&side.to(n[0], n[1] as u16), 1, b"neighbour", None).unwrap();
    assert_eq!(side.next_cqe().status, DevStatus::Ok);
    assert_eq!(other.ask("poll"), "Recv 9 None");
}

#[test]
fn opening_errors_name_the_cause() {
    let text = |source: &Source, name: &str| open_shm(source, name).err().unwrap().to_string();
    assert_eq!(
        text(&Source::empty(), "softefa7"),
        "transport 'efa' has no device 'softefa7' (there are: softefa0)"
    );
    let bad = Source::empty().with("SOFTEFA_MTU", "1");
    assert!(text(&bad, "softefa0").starts_with("SOFTEFA_MTU=1"));
    let two = Source::empty().with("SOFTEFA_DEVICES", "2");
    let (a, b) = (open_shm(&two, "softefa0").unwrap(), open_shm(&two, "softefa1").unwrap());
    assert_eq!(a.gid().iid() + 1, b.gid().iid());
}

#[test]
fn too_few_descriptors_are_reported() {
    let mut reports = HashSet::new();
    for more in 0..12 {
        let report = Peer::start(&format!("starved {more}"), &[]).line();
        assert!(
            report == "fine" || report.contains("EMFILE") && report.contains("limit"),
            "{more} to spare: {report}"
        );
        reports.insert(report);
    }
    assert!(reports.contains("fine") && reports.len() >= 3, "{reports:?}");
}

/// A file with a secret, removed at the end.
struct SecretFile(std::path::PathBuf);

impl SecretFile {
    fn new(text: &str) -> SecretFile {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("shm-{}-{text}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        SecretFile(path)
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn processes_of_one_host_meet_if_they_have_one_secret() {
    let [one, two] = ["the-secret-of-job-one", "the-secret-of-job-two"].map(SecretFile::new);
    let [one, two] = [&one, &two].map(|file| file.0.to_str().unwrap());
    for (theirs, ours) in [(one, one), (two, one), ("", one), (one, ""), ("", "")] {
        let mut peer = Peer::start("idle file 1 -", &[("SOFTEFA_SECRET_FILE", theirs)]);
        let [iid, qpn, ..] = peer.numbers()[..] else { panic!("a queue pair") };
        let source = Source::empty().with("SOFTEFA_SECRET_FILE", ours);
        let side = Side::open(&source, &INIT, Channel::Without);
        side.qp.send_inline(&side.to(iid, qpn as u16), 1, b"hello", None).unwrap();
        let wanted = if theirs == ours { DevStatus::Ok } else { DevStatus::Unreachable };
        assert_eq!(side.next_cqe().status, wanted, "{theirs:?} {ours:?}");
    }
}
