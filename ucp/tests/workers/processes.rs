//! Two processes: traffic in both directions, sleeping until a message arrives, and a peer that is killed.
//! The second process is this test binary, running only [`child`] with a role in its environment.

use std::cell::Cell;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{bytes, context, ends, spin};
use ucp::select::copy_method::CopyMethod;
use ucp::select::{DeliveryComplete, Kind, Line, MemKind, Protocol, RmaChoice, RmaOp, RmaVerdict, Verdict};
use ucp::{
    ANY_TAG, Access, Address, Calibration, Config, ConnectError, Context, DeviceCosts, DeviceType, Ep,
    EpParams, Error, ErrorMode, Rkey, RmaMethod, TAG_MASK_FULL, Worker,
};
use ucs::config::{Source, Table as _};

const ROLE: &str = "UCP_TEST_ROLE";
const MESSAGES: u64 = 3000;

pub fn start(role: &str, tls: &str, worker: &Worker) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env(ROLE, format!("{role} {tls}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&worker.address().pack()).unwrap();
    child
}

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, tls) = role.split_once(' ').unwrap();
    let mut packed = Vec::new();
    std::io::stdin().read_to_end(&mut packed).unwrap();
    let worker = context(tls).worker().unwrap();
    let ep = worker.connect(&Address::unpack(&packed).unwrap(), EpParams::default()).unwrap();
    ep.tag_send_blocking(0, &worker.address().pack()).unwrap();
    match role {
        "exchange" => exchange(&worker, &ep, 1),
        "sends-long" => {
            let all = bytes(1, LONG_MOST);
            for n in 0..LONG_MESSAGES {
                ep.tag_send_blocking(n, &all[..long_length(n)]).unwrap();
            }
            ep.flush().wait().unwrap();
        }
        "late" => {
            std::thread::sleep(Duration::from_millis(200));
            ep.tag_send_blocking(1, b"late").unwrap();
            ep.flush().wait().unwrap();
        }
        "lends" => lends(&worker, &ep, Busy::Asleep),
        "serves" => lends(&worker, &ep, Busy::Polling),
        "exile" => {
            let mut room = vec![0; KEPT_LEN];
            worker.tag_recv_blocking(1, TAG_MASK_FULL, &mut room).unwrap();
            // From here on this thread has another user, who may not reach root's memory.
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            for n in 0..KEPT {
                let status = worker.tag_recv_blocking(n, TAG_MASK_FULL, &mut room).unwrap();
                assert!(room[..status.len] == bytes(n, KEPT_LEN), "message {n} differs");
            }
            ep.tag_send_blocking(2, &worker.stats().rare.nacks_sent.to_le_bytes()).unwrap();
            ep.flush().wait().unwrap();
        }
        "outlives-a-worker" => {
            let gone = context(tls).worker().unwrap().address();
            ep.tag_send_blocking(1, &gone.pack()).unwrap();
            loop {
                worker.progress();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        "becomes-another" => crate::exec::becomes_another(&worker, &ep),
        // Runs until it is killed.
        "victim" => loop {
            worker.progress();
        },
        other => panic!("no role {other}"),
    }
}

pub fn meet(worker: &Worker, errors: ErrorMode) -> Ep {
    worker.connect(&child_address(worker), EpParams { errors, ..EpParams::default() }).unwrap()
}

fn child_address(worker: &Worker) -> Address {
    let mut room = [0; 512];
    let status = worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut room).unwrap();
    Address::unpack(&room[..status.len]).unwrap()
}

fn length(n: u64) -> usize {
    let spread = [16, 200, 9000, 70_000, 300_000][(n % 5) as usize];
    (bytes(n, 8).iter().fold(0, |a, b| a * 256 + usize::from(*b)) % spread).min(1 << 20)
}

/// Sends [`MESSAGES`] of mixed lengths, a window at a time, and checks as many from the other side.
fn exchange(worker: &Worker, ep: &Ep, side: u64) {
    let seed = |side: u64, n: u64| n * 2 + side;
    let mut sends = Vec::new();
    let (mut sent, mut got) = (0, 0);
    let mut recv = None;
    spin(&[worker], &mut || {
        sends.retain_mut(|s: &mut ucp::SendRequest<Vec<u8>>| !s.is_done());
        while sent < MESSAGES && sends.len() < 16 {
            let n = seed(side, sent);
            sends.push(ep.tag_send(100 + sent, bytes(n, length(n))));
            sent += 1;
        }
        while got < MESSAGES {
            let waiting =
                recv.take().unwrap_or_else(|| worker.tag_recv(0, ANY_TAG, Vec::with_capacity(1 << 20)));
            if !waiting.is_done() {
                recv = Some(waiting);
                break;
            }
            let (status, buf) = waiting.wait();
            let n = seed(1 - side, got);
            assert_eq!(status.map(|s| (s.tag, s.len)), Ok((100 + got, length(n))));
            assert!(buf == bytes(n, length(n)), "message {got} differs");
            got += 1;
        }
        sent == MESSAGES && got == MESSAGES && sends.is_empty()
    });
    ep.flush().wait().unwrap();
}

fn both_ways(tls: &str) {
    let (here, there) = ends(tls);
    exchange_between(here, there, |_, _| {});
}

/// Exchanges messages on given transports until the other has exited; `look` is called before that.
fn exchange_between(here: &str, there: &str, look: impl FnOnce(&Worker, &Ep)) {
    let worker = context(here).worker().unwrap();
    let mut child = start("exchange", there, &worker);
    let ep = meet(&worker, ErrorMode::None);
    exchange(&worker, &ep, 0);
    look(&worker, &ep);
    // The other side may still need answers.
    while child.try_wait().unwrap().is_none() {
        worker.progress();
    }
    assert!(child.wait().unwrap().success());
}

const LENT: usize = 300_000;

#[derive(PartialEq)]
enum Busy {
    Asleep,
    Polling,
}

/// Lends memory that no transport allocated until it has been written, and checks it.
fn lends(worker: &Worker, ep: &Ep, busy: Busy) {
    let mut room = bytes(7, LENT);
    room[..8].fill(0);
    let at = room.as_mut_ptr();
    // SAFETY: `room` outlives the registration, and is read through it only.
    let mem = unsafe { worker.mem_map(at, LENT, Access::all()) }.unwrap();
    let told = [mem.pack_rkey(), [mem.addr(), mem.libfabric_key()].map(u64::to_le_bytes).concat()].concat();
    ep.tag_send_blocking(1, &told).unwrap();
    let since = Instant::now();
    while mem.word(0) == 0 {
        if busy == Busy::Polling {
            worker.progress();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(since.elapsed() < Duration::from_secs(60), "nobody writes");
    }
    let mut got = vec![0; LENT];
    mem.read(0, &mut got);
    assert!(got[8..] == bytes(8, LENT)[8..], "bytes differ");
    drop(mem);
}

#[test]
fn cma_reaches_memory_of_a_busy_process() {
    if let Some(why) = uct::cma::unavailable_reason() {
        return ucs::testing::skipped("copies by the kernel", why);
    }
    let source = Source::empty().with("UCX_TLS", "posix,cma");
    let always = source.with("UCX_MIN_RDMA_PUT", "0").with("UCX_MIN_RDMA_GET", "0");
    let worker = Context::configured(always).unwrap().worker().unwrap();
    let mut child = start("lends", "posix,cma", &worker);
    let ep = meet(&worker, ErrorMode::None);
    let (addr, rkey, number) = lent(&worker, &ep);
    let ways = ep.protocols().explain_rma(&rkey, RmaOp::Get, None, LENT);
    assert_eq!((ways[1].choice, ways[1].verdict), (RmaChoice::Kernel, RmaVerdict::Taken));
    let mut got = vec![0; LENT];
    ep.get_blocking(&mut got, addr, &rkey).unwrap();
    assert!(got[8..] == bytes(7, LENT)[8..], "bytes differ");
    assert_eq!(ep.get_blocking(&mut got, addr + 1, &rkey), Err(Error::RemoteAccess(ep.peer())));
    // The first read learns what the other process publishes, the second knows it.
    for _ in 0..2 {
        got.fill(0);
        ep.get_blocking(&mut got, addr, &number).unwrap();
        assert!(got[8..] == bytes(7, LENT)[8..], "bytes differ");
    }
    let new = bytes(8, LENT);
    let (first, rest) = new[8..].split_at(1000);
    ep.put_blocking(first, addr + 8, &rkey).unwrap();
    ep.put_blocking(rest, addr + 1008, &number).unwrap();
    ep.put_blocking(&1u64.to_le_bytes(), addr, &rkey).unwrap();
    assert!(child.wait().unwrap().success());
    let stats = worker.stats();
    assert!(stats.initiated.iter().all(|traffic| traffic.msgs == 0), "{:?}", stats.initiated);
    // A process that has exited has no memory.
    assert!(ep.get_blocking(&mut got, addr, &rkey).is_err());
}

#[test]
fn long_messages_are_read_by_cma() {
    if let Some(why) = uct::cma::unavailable_reason() {
        return ucs::testing::skipped("copies by the kernel", why);
    }
    exchange_between("kernel", "kernel", |worker, _| {
        let rare = worker.stats().rare;
        assert!(rare.reads > MESSAGES / 4, "{rare:?}");
        assert_eq!((rare.nacks_sent, rare.nacks_received, rare.read_errors), (0, 0, 0), "{rare:?}");
    });
}

/// Messages that both processes copy, and their greatest length.
const LONG_MESSAGES: u64 = 1500;
const LONG_MOST: usize = 1 << 20;

fn long_length(n: u64) -> usize {
    LONG_MOST - (n * 70_001) as usize % (LONG_MOST / 2)
}

/// A process that is killed in the end.
pub struct Killed(pub std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Ends what a test has started, whatever happens.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A process that is stopped while it copies a part of what the other receives ends its part when it goes on.
#[test]
fn long_messages_survive_a_process_that_is_stopped_now_and_then() {
    if let Some(why) = uct::cma::unavailable_reason() {
        return ucs::testing::skipped("copies by the kernel", why);
    }
    let worker = context("kernel").worker().unwrap();
    let mut child = start("sends-long", "kernel", &worker);
    let _ep = meet(&worker, ErrorMode::None);
    let (pid, over) = (rustix::process::Pid::from_child(&child), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let signal = |it| rustix::process::kill_process(pid, it).unwrap();
            while !over.load(Ordering::Relaxed) {
                signal(rustix::process::Signal::STOP);
                std::thread::sleep(Duration::from_millis(30));
                signal(rustix::process::Signal::CONT);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let _end = OnDrop(|| over.store(true, Ordering::Relaxed));
        let (all, mut room) = (bytes(1, LONG_MOST), vec![0; LONG_MOST]);
        for n in 0..LONG_MESSAGES {
            let status = worker.tag_recv_blocking(n, TAG_MASK_FULL, &mut room).unwrap();
            assert!(room[..status.len] == all[..long_length(n)], "message {n} differs");
            room[..status.len].fill(0);
        }
    });
    let rare = worker.stats().rare;
    assert!(rare.reads > LONG_MESSAGES / 2, "{rare:?}");
    // The lane is full while a read waits for a part that takes longer than a call waits. How often a stop
    // falls into a part depends on the machine.
    println!("{} reads found the lane full", rare.full);
    while child.try_wait().unwrap().is_none() {
        worker.progress();
    }
    assert!(child.wait().unwrap().success());
}

/// The process of a worker that is gone says so when it runs again.
#[test]
fn a_check_of_the_peer_waits_for_a_process_that_is_slow() {
    use rustix::process::Signal;
    let worker = context("posix").worker().unwrap();
    let mut child = start("outlives-a-worker", "posix", &worker);
    let ep = meet(&worker, ErrorMode::None);
    let mut room = [0; 512];
    let status = worker.tag_recv_blocking(1, TAG_MASK_FULL, &mut room).unwrap();
    let gone = Address::unpack(&room[..status.len]).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let signal = |it| rustix::process::kill_process(pid, it).unwrap();
    let _end = OnDrop(|| signal(Signal::KILL));
    signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(10));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            signal(Signal::CONT);
        });
        let checked = EpParams { check_peer: true, ..EpParams::default() };
        let made = worker.connect(&gone, checked).map(drop);
        assert!(matches!(made, Err(ConnectError::Unreachable { .. })), "{made:?}");
    });
    drop(ep);
    assert!(child.try_wait().unwrap().is_none(), "the process lives");
}

/// The process of the receiver answers late. A program that makes no call for long after its first message
/// counts on it nevertheless.
#[test]
fn a_first_message_leaves_within_its_call() {
    use rustix::process::Signal;
    let worker = context("posix").worker().unwrap();
    let mut child = start("victim", "posix", &worker);
    let address = child_address(&worker);
    let pid = rustix::process::Pid::from_child(&child);
    let signal = |it| rustix::process::kill_process(pid, it).unwrap();
    let _end = OnDrop(|| signal(Signal::KILL));
    let stranger = context("posix").worker().unwrap();
    let ep = stranger.connect(&address, EpParams::default()).unwrap();
    signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(10));
    let send = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(60));
            signal(Signal::CONT);
        });
        ep.tag_send(1, vec![1; 8])
    });
    assert!(send.is_done(), "it waits for progress of the sender");
    assert!(child.try_wait().unwrap().is_none(), "the process lives");
}

/// One process does not answer. First messages to others are waited for, if more briefly.
#[test]
fn a_process_that_is_stopped_keeps_no_first_message_to_another() {
    use rustix::process::Signal;
    // On a busy machine the other process may answer too late, too.
    let is_done = || first_message_goes_past_a_stopped_process(Signal::STOP);
    assert!((0..5).any(|_| is_done()), "it waits for progress of the sender");
}

/// Whether a first message to a process is done in its call, while another process does not answer.
fn first_message_goes_past_a_stopped_process(stop: rustix::process::Signal) -> bool {
    let worker = context("posix").worker().unwrap();
    let children = [(); 2].map(|()| {
        let child = Killed(start("victim", "posix", &worker));
        (child_address(&worker), rustix::process::Pid::from_child(&child.0), child)
    });
    let stranger = context("posix").worker().unwrap();
    let [stopped, other] =
        children.each_ref().map(|(at, ..)| stranger.connect(at, EpParams::default()).unwrap());
    rustix::process::kill_process(children[0].1, stop).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    let send = stopped.tag_send(1, vec![1; 8]);
    assert!(!send.is_done(), "nobody answers");
    other.tag_send(1, vec![1; 8]).is_done()
}

#[test]
fn cma_and_packets_keep_their_order() {
    if let Some(why) = uct::cma::unavailable_reason() {
        return ucs::testing::skipped("copies by the kernel", why);
    }
    exchange_between("copy-alternate", "copy-alternate", |worker, _| {
        let (stats, rare) = (worker.stats(), worker.stats().rare);
        assert!(rare.reads > 50, "{rare:?}");
        assert!(rare.nacks_by_choice > 10 && rare.nacks_received > 10, "{rare:?}");
        assert_eq!((rare.nacks_by_choice, rare.read_errors), (rare.nacks_sent, 0), "{rare:?}");
        let sent = |row| stats.sent(row).msgs;
        assert!(
            sent(Protocol::LongRead) > 50 && sent(Protocol::Medium) > 50 && sent(Protocol::LongCts) > 50,
            "{rare:?}"
        );
    });
}

#[test]
fn messages_arrive_by_either_method() {
    if let Some(why) = uct::cma::unavailable_reason() {
        return ucs::testing::skipped("copies by the kernel", why);
    }
    for (here, there) in
        [("kernel", "kernel"), ("packets", "packets"), ("kernel", "packets"), ("auto", "auto")]
    {
        let (ours, theirs) = (format!("copy-{here}"), format!("copy-{there}"));
        exchange_between(&ours, &theirs, |worker, ep| {
            let (stats, rare) = (worker.stats(), worker.stats().rare);
            let sent = |row| stats.sent(row).msgs;
            let taken =
                ep.protocols().explain_from(MemKind::Process, Kind::Tagged, DeliveryComplete::No, LONG);
            let taken =
                taken.into_iter().find(|candidate| candidate.verdict == Verdict::Taken).unwrap().protocol;
            assert_eq!(rare.read_errors, 0, "{here} {there}: {rare:?}");
            // Who never reads says so for good to a message that has come before the HANDSHAKE of its sender.
            assert!(here == "packets" || rare.nacks_by_choice == rare.nacks_sent, "{here} {there}: {rare:?}");
            match (here, there) {
                ("kernel", "kernel") => {
                    assert!(
                        sent(Protocol::LongRead) > MESSAGES / 4 && sent(Protocol::LongCts) < 50,
                        "{rare:?}"
                    );
                    assert_eq!((taken, rare.nacks_received), (Protocol::LongRead, 0), "{rare:?}");
                    assert_eq!(
                        ep.protocols().measured_copy_cost(LONG).map(|found| (found.packets, found.method)),
                        Some((None, CopyMethod::Kernel))
                    );
                }
                ("packets", "packets") => {
                    assert_eq!(
                        (sent(Protocol::LongRead), rare.reads, taken),
                        (0, 0, Protocol::LongCts),
                        "{rare:?}"
                    );
                }
                // The refusal is permanent.
                ("kernel", _) => {
                    assert!(sent(Protocol::LongRead) < 20 && rare.nacks_received < 20, "{rare:?}")
                }
                _ => {
                    let found = ep.protocols().measured_copy_cost(LONG).unwrap();
                    assert!(found.packets.is_some_and(|ns| ns > 0.0), "{found:?}");
                    assert!(found.kernel.is_some_and(|ns| ns > 0.0), "{found:?}");
                    assert!(matches!(taken, Protocol::LongRead | Protocol::LongCts));
                    assert!(worker.report().to_string().contains("128 KiB and more: packets"));
                }
            }
        });
    }
}

/// A length that needs a rendezvous.
const LONG: usize = 200_000;

/// Messages to a process that the kernel does not admit, and their length.
const KEPT: u64 = 20;
const KEPT_LEN: usize = 50_000;

#[test]
fn packets_replace_cma_without_permission() {
    if uct::cma::unavailable_reason().is_some() || !rustix::process::geteuid().is_root() {
        return ucs::testing::skipped("copies by the kernel", "needs cma, and root to keep others out");
    }
    let worker = context("kernel").worker().unwrap();
    let mut child = start("exile", "kernel", &worker);
    let ep = meet(&worker, ErrorMode::None);
    let reads = || ep.protocols().table(Kind::Tagged, DeliveryComplete::No).pick(KEPT_LEN);
    assert_eq!(reads(), Protocol::LongRead);
    ep.tag_send_blocking(1, b"go").unwrap();
    for n in 0..KEPT {
        ep.tag_send_blocking(n, &bytes(n, KEPT_LEN)).unwrap();
    }
    let mut told = [0; 8];
    worker.tag_recv_blocking(2, TAG_MASK_FULL, &mut told).unwrap();
    assert_eq!((u64::from_le_bytes(told), worker.stats().rare.nacks_received), (1, 1));
    assert_eq!(reads(), Protocol::Medium);
    while child.try_wait().unwrap().is_none() {
        worker.progress();
    }
    assert!(child.wait().unwrap().success());
}

/// Address of lent memory, its key, and the number that names it, too.
fn lent(worker: &Worker, ep: &Ep) -> (u64, Rkey, Rkey) {
    let (status, told) = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(4096)).wait();
    let len = status.unwrap().len;
    let (key, words) = told[..len].split_at(len - 16);
    let [addr, number] = [&words[..8], &words[8..]].map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let rkey = ep.unpack_rkey(key).unwrap();
    assert_eq!(ep.protocols().rma_method(&rkey), RmaMethod::Kernel);
    let number = Rkey::from_libfabric_key(ep, number);
    assert_eq!(ep.protocols().rma_method(&number), RmaMethod::Kernel);
    (addr, rkey, number)
}

#[test]
fn costs_choose_the_copy_method() {
    if let Some(why) = uct::cma::unavailable_reason() {
        return ucs::testing::skipped("copies by the kernel", why);
    }
    const LENS: [usize; 6] = [8, 1000, 8192, 20_000, 100_000, LENT - 8];
    let dir = std::env::temp_dir().join(format!("ucp-processes-{}", std::process::id()));
    let source = Source::empty().with("UCX_TLS", "posix,cma").with("UCX_CACHE_DIR", dir.to_str().unwrap());
    let measured = source.clone().with("UCX_CALIBRATE", "y");
    let of_call = |ns: f64| {
        let (put, get) = ([Some(Line::new(ns, 0.01)); 2], [Some(Line::new(ns, 0.01)); 2]);
        let (tl, dev, device_type) = ("cma".into(), "memory".into(), DeviceType::Software);
        let cma = DeviceCosts { tl, dev, device_type, overhead: None, register: None, put, get };
        Calibration { copy: 0.02, copy_uncached: 0.02, core_to_core: None, devices: vec![cma] }
    };
    // By the kernel: no length, all, and those for which it pays here.
    let cases = [(&measured, Some(1e9), 0..0), (&measured, Some(1.0), 0..LENS.len()), (&source, None, 0..0)];
    for (source, call, sure) in cases {
        if let Some(call) = call {
            of_call(call).save(&Config::load(source).unwrap()).unwrap();
        }
        let context = Context::configured(source.clone()).unwrap();
        assert_eq!(context.calibration().is_some(), call.is_some());
        let worker = context.worker().unwrap();
        let mut child = start("serves", "posix,cma", &worker);
        let ep = meet(&worker, ErrorMode::None);
        let (addr, rkey, _) = lent(&worker, &ep);
        let asked = || worker.stats().initiated.iter().map(|traffic| traffic.msgs).sum::<u64>();
        for (n, len) in LENS.into_iter().enumerate() {
            let by_kernel = |op| ep.protocols().rma_method_for(&rkey, op, len) == RmaMethod::Kernel;
            let (put, get) = (by_kernel(RmaOp::Put), by_kernel(RmaOp::Get));
            if sure.contains(&n) {
                assert!(put && get, "{call:?} {len}");
            } else if call.is_some() || n == 0 {
                assert!(!put && !get, "{call:?} {len}");
            }
            let before = asked();
            let data = bytes(n as u64 + 20, len);
            ep.put_blocking(&data, addr + 8, &rkey).unwrap();
            assert_eq!(asked() - before, u64::from(!put), "{call:?} {len}");
            ep.flush().wait().unwrap();
            let mut got = vec![0; len];
            let before = asked();
            ep.get_blocking(&mut got, addr + 8, &rkey).unwrap();
            assert_eq!(asked() - before, u64::from(!get), "{call:?} {len}");
            assert!(got == data, "{call:?} {len}: bytes differ");
        }
        // The lender checks all of it.
        ep.put_blocking(&bytes(8, LENT)[8..], addr + 8, &rkey).unwrap();
        ep.flush().wait().unwrap();
        // The lender exits when it sees this.
        ep.put_blocking(&1u64.to_le_bytes(), addr, &rkey).unwrap();
        while child.try_wait().unwrap().is_none() {
            worker.progress();
        }
        assert!(child.wait().unwrap().success());
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Whether a NIC was lost. The exit of the other process, which may have been noticed, is no such loss.
fn is_nic_lost(rail: &ucp::Rail) -> bool {
    rail.fault.is_some_and(|fault| fault != ucp::rdm::io::PeerError::Gone)
}

#[test]
fn lost_nic_loses_no_message() {
    for nics in [2, 4] {
        let worker = context(&format!("efa*{nics}")).worker().unwrap();
        let mut child = start("exchange", &format!("efa*{nics}/1:150"), &worker);
        let ep = meet(&worker, ErrorMode::None);
        exchange(&worker, &ep, 0);
        while child.try_wait().unwrap().is_none() {
            worker.progress();
        }
        assert!(child.wait().unwrap().success());
        let rails = ep.protocols().rails();
        let lost: Vec<bool> = rails.iter().map(is_nic_lost).collect();
        let want: Vec<bool> = (0..nics).map(|nic| nic == 1).collect();
        assert!(rails[1].to_string().starts_with("softefa1 to [fe80::"), "{}", rails[1]);
        assert!(lost == want, "{rails:?}");
    }
}

#[test]
fn lost_first_nic_loses_no_message() {
    for (here, there) in [("efa*2", "efa*2/0:1000"), ("efa*2/0:1000", "efa*2"), ("efa*4/0:2000", "efa*4")] {
        exchange_between(here, there, |worker, ep| {
            let rails = ep.protocols().rails();
            assert_eq!(rails[0].device, "softefa1", "{rails:?}");
            let lost: Vec<_> = rails.iter().filter(|rail| is_nic_lost(rail)).collect();
            assert!(lost.len() == 1 && lost[0].device == "softefa0", "{rails:?}");
            assert_eq!(worker.stats().rare.failovers, 1);
        });
    }
}

fn message_wakes_a_sleeper(tls: &str) {
    let (here, there) = ends(tls);
    let worker = context(here).worker().unwrap();
    let mut child = start("late", there, &worker);
    let _ep = meet(&worker, ErrorMode::None);
    let recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(16));
    let mut rests = 0;
    while !recv.is_done() {
        if worker.progress() == 0 {
            assert_eq!(worker.wait(Some(Duration::from_secs(60))), Ok(ucp::WaitStatus::Ready));
            rests += 1;
        }
    }
    assert_eq!(recv.wait().1, b"late");
    assert!(rests < 10_000, "it was polling, not sleeping: {rests}");
    assert!(child.wait().unwrap().success());
}

fn killed_peer_is_an_error(tls: &str) {
    let (here, there) = ends(tls);
    let worker = context(here).worker().unwrap();
    let mut child = start("victim", there, &worker);
    let told = Rc::new(Cell::new(None));
    let seen = told.clone();
    let ep = meet(&worker, ErrorMode::Peer(Box::new(move |e| seen.set(Some(e)))));
    ep.tag_send_blocking(5, b"first").unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // Sends to the dead are accepted until queues fill or the device reports it.
    let mut sends: Vec<_> = (0..10_000).map(|n| ep.tag_send(n, bytes(n, 100))).collect();
    let large = ep.tag_send(5, bytes(5, 500_000));
    spin(&[&worker], &mut || large.is_done() && sends.iter_mut().all(|s| s.is_done()));
    assert_eq!(large.wait().0, Err(Error::PeerGone(ep.peer())));
    spin(&[&worker], &mut || told.get().is_some());
    assert_eq!(told.get(), Some(Error::PeerGone(ep.peer())));
    assert_eq!(ep.tag_send(6, "more").wait().0, Err(Error::PeerGone(ep.peer())));
    let peer = ep.peer();
    assert_eq!(ep.close(ucp::CloseMode::Flush(Duration::from_secs(60))).wait(), Err(Error::PeerGone(peer)));
}

on! {
    [both_ways message_wakes_a_sleeper killed_peer_is_an_error]
    posix: "posix",
    efa: "efa",
    two_nics: "efa*2",
    four_nics: "efa*4",
    // On libibverbs, and between that and the native device: under `softefa run`, see `tests/run verbs`.
    #[cfg(feature = "verbs")]
    verbs: "verbs",
    #[cfg(feature = "verbs")]
    verbs_to_soft: "verbs|soft",
    #[cfg(feature = "verbs")]
    soft_to_verbs: "soft|verbs",
}
