//! Processes on `posix`: bursts of two writers, atomics under contention, writers that are killed; and a
//! death on `cma`. No test harness: the program starts itself again in other roles (`suites::partner`).

use std::cell::Cell;
use std::process::Command;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};
use suites::clients;
use suites::leftovers::{self, Leftovers};
use suites::partner::Partner;
use ucs::testing::skipped;
use uct::Worker;
use uct::api::{
    AllocReq, Am, AtomicOp, Comp, Ep, EpTag, Error, Iface as _, Md, Memory, Refused, Sent, Sink, SrcAddr,
};
use uct::posix::Iface;

/// Messages of each writer.
const COUNT: u64 = 500_000;
/// Rounds of each writer on the contended words.
const ROUNDS: u64 = 20_000;
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("burst") => return burst_writer(args[1].parse().unwrap()),
        Some("atomics") => return atomics_writer(args[1].parse().unwrap()),
        Some("victim") => return victim(),
        Some("cma") => return cma_victim(),
        Some("forbidden") => return forbidden(),
        _ => {}
    }
    // Nothing here can be run by name.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let tests: [(&str, fn()); 5] = [
        ("two_writers_one_reader", two_writers_one_reader),
        ("atomics_under_contention", atomics_under_contention),
        ("killed_writers_leave_nothing", killed_writers_leave_nothing),
        ("cma_death_wakes_a_sleeper", cma_death_wakes_a_sleeper),
        ("posix_needs_no_ptrace_permission", posix_needs_no_ptrace_permission),
    ];
    for (name, test) in tests {
        let start = Instant::now();
        test();
        println!("test {name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
    }
    println!("{} passed, 0 failed", tests.len());
}

/// Device and interface address, and optionally a key and the address it is for.
type Contact = (Vec<u8>, Vec<u8>, Vec<u8>, u64);

fn open() -> Iface {
    Iface::open(&Default::default()).unwrap()
}

fn connect(iface: &Iface, to: &Contact) -> uct::posix::Ep {
    let ep = iface.connect(&to.0, &to.1).unwrap();
    ep.ensure_connected().unwrap();
    ep
}

fn contact_of(iface: &Iface) -> Contact {
    (iface.device_addr().to_vec(), iface.iface_addr().to_vec(), Vec::new(), 0)
}

struct Check {
    next: [u64; 2],
    sources: [Option<SrcAddr>; 2],
}

impl Sink for Check {
    fn on_am(&mut self, am: Am<'_>) {
        let (who, data) = (usize::from(am.id()), am.data());
        let n = u64::from_le_bytes(data[..8].try_into().unwrap());
        assert_eq!(n, self.next[who], "order of writer {who}");
        assert_eq!(data.len(), 8 + body(n));
        assert!(data[8..].iter().all(|b| *b == n as u8));
        assert_eq!(*self.sources[who].get_or_insert(am.source()), am.source());
        self.next[who] += 1;
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, error: Error) {
        panic!("{error}");
    }
}

/// Bytes after the number: mostly for a cell, now and then for a slot.
fn body(n: u64) -> usize {
    match n % 16 {
        0 => 1000,
        k => 5 * k as usize,
    }
}

fn burst_writer(who: u8) {
    let mut line = Partner::parent();
    let to: Contact = line.recv(TIMEOUT).unwrap();
    let iface = open();
    let ep = connect(&iface, &to);
    for n in 0..COUNT {
        let len = 9 + body(n);
        let pack = |slot: &mut [u8]| {
            slot[0] = who;
            slot[1..9].copy_from_slice(&n.to_le_bytes());
            slot[9..len].fill(n as u8);
            len
        };
        loop {
            match ep.am_packet(len, pack) {
                Ok(_) => break,
                Err(Refused::NoResource) => std::thread::yield_now(),
                Err(Refused::Failed(e)) => panic!("{e}"),
            }
        }
    }
    // The memory must outlive what was sent.
    line.recv::<()>(TIMEOUT).unwrap();
}

fn two_writers_one_reader() {
    let iface = open();
    let mut writers: Vec<_> =
        (0..2).map(|who| Partner::start(&["burst".into(), who.to_string()]).unwrap()).collect();
    for writer in &mut writers {
        writer.send(&contact_of(&iface)).unwrap();
    }
    let mut check = Check { next: [0; 2], sources: [None; 2] };
    let mut idle = Instant::now();
    while check.next != [COUNT; 2] {
        if iface.poll(64, &mut check) > 0 {
            idle = Instant::now();
        } else {
            assert!(idle.elapsed() < TIMEOUT, "stuck at {:?}", check.next);
            std::thread::yield_now();
        }
    }
    assert_ne!(check.sources[0], check.sources[1]);
    for mut writer in writers {
        writer.send(&()).unwrap();
        assert!(writer.exited_ok());
    }
    assert_eq!(iface.poll(64, &mut check), 0);
    assert_eq!(iface.rx_stats(), Default::default());
}

fn atomics_writer(who: u64) {
    let mut line = Partner::parent();
    let to: Contact = line.recv(TIMEOUT).unwrap();
    let iface = open();
    let ep = connect(&iface, &to);
    let rkey = iface.md().unpack_rkey(&to.2).unwrap();
    let fetch = |op, value: u64, word: u64| {
        let mut old = 0u64;
        // SAFETY: `old` outlives the call, which completes the operation.
        let sent = unsafe {
            ep.atomic_fetch(op, value, NonNull::from(&mut old), to.3 + 8 * word, &rkey, Comp::None)
        };
        assert_eq!(sent, Ok(Sent::Done));
        old
    };
    let mut sum = 0u64;
    for n in 0..ROUNDS {
        // Word 0: every old value is seen by exactly one writer, so the sums add up.
        sum = sum.wrapping_add(fetch(AtomicOp::Add, 1, 0));
        // Words 1 to 3: each writer owns one bit, which it alone changes.
        let bit = 1 << who;
        assert_eq!(fetch(AtomicOp::Or, bit, 1) & bit, 0);
        assert_eq!(fetch(AtomicOp::And, !bit, 1) & bit, bit);
        assert_eq!(fetch(AtomicOp::Xor, bit, 2) & bit, if n % 2 == 0 { 0 } else { bit });
        // Word 3: a lock by compare-and-swap around a word that is not atomic in itself.
        loop {
            let mut old = 0u64;
            let result = NonNull::from(&mut old);
            // SAFETY: as above.
            let sent = unsafe { ep.atomic_cswap(0u64, 1 + who, result, to.3 + 24, &rkey, Comp::None) };
            assert_eq!(sent, Ok(Sent::Done));
            // SAFETY: `old` is alive.
            if unsafe { result.read() } == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let mut count = [0; 8];
        assert_eq!(ep.get_short(&mut count, to.3 + 32, &rkey), Ok(Sent::Done));
        let next = u64::from_ne_bytes(count) + 1;
        assert_eq!(ep.put_short(&next.to_ne_bytes(), to.3 + 32, &rkey), Ok(Sent::Done));
        assert_eq!(fetch(AtomicOp::Swap, 0, 3), 1 + who);
        assert_eq!(ep.atomic_post(AtomicOp::Add, 1u32, to.3 + 40, &rkey), Ok(Sent::Done));
    }
    line.send(&sum).unwrap();
    line.recv::<()>(TIMEOUT).unwrap();
}

fn atomics_under_contention() {
    let iface = open();
    let mem = iface.md().alloc(&AllocReq::new(64, "contended")).unwrap();
    let mut to = contact_of(&iface);
    to.2 = iface.md().pack_rkey(&mem).unwrap().to_vec();
    to.3 = mem.addr().addr() as u64;
    let mut writers: Vec<_> =
        (0..2).map(|who| Partner::start(&["atomics".into(), who.to_string()]).unwrap()).collect();
    for writer in &mut writers {
        writer.send(&to).unwrap();
    }
    let sum: u64 = writers.iter_mut().map(|writer| writer.recv::<u64>(TIMEOUT).unwrap()).sum();
    for mut writer in writers {
        writer.send(&()).unwrap();
        assert!(writer.exited_ok());
    }
    let words = mem.addr().cast::<u64>();
    let word = |n: usize| {
        let at = words.wrapping_add(n);
        // SAFETY: the first eight words are inside the memory, and the writers are gone.
        unsafe { at.read_volatile() }
    };
    let all = 2 * ROUNDS;
    assert_eq!((word(0), sum), (all, all * (all - 1) / 2));
    assert_eq!((word(1), word(2), word(3)), (0, 0, 0));
    assert_eq!((word(4), word(5)), (all, all));
}

/// Sends, then stops while packing a message until it is killed.
fn victim() {
    let mut line = Partner::parent();
    let to: Contact = line.recv(TIMEOUT).unwrap();
    let iface = open();
    let _fd = iface.event_fd().unwrap();
    let ep = connect(&iface, &to);
    let _mem = iface.md().alloc(&AllocReq::new(1 << 20, "victim")).unwrap();
    let _ = ep.am_packet(4000, |slot| {
        slot.fill(1);
        line.send(&contact_of(&iface)).unwrap();
        std::thread::sleep(TIMEOUT);
        4000
    });
}

/// A writer is killed between claim and publish: the reader goes on, and later messages arrive.
fn killed_writers_leave_nothing() {
    let before = Leftovers::now(leftovers::of_this_project);
    let iface = open();
    for round in 1..=3 {
        let mut victim = Partner::start(&["victim".into()]).unwrap();
        victim.send(&contact_of(&iface)).unwrap();
        let contact: Contact = victim.recv(TIMEOUT).unwrap();
        let to_victim = connect(&iface, &contact);
        // Behind the message that is never published.
        let other = open();
        let ep = connect(&other, &contact_of(&iface));
        let sent = ep.am_packet(9, |slot| {
            slot[..9].copy_from_slice(&[0; 9]);
            slot[1] = 1;
            9
        });
        assert_eq!(sent, Ok(9));
        let mut check = Check { next: [1, 0], sources: [None; 2] };
        for _ in 0..10_000 {
            assert_eq!(iface.poll(8, &mut check), 0, "a live writer is waited for");
        }
        assert_eq!(to_victim.check(Comp::None), Ok(Sent::Done));
        // Dropping the partner kills it.
        drop(victim);
        struct Count(u64);
        impl Sink for Count {
            fn on_am(&mut self, _am: Am<'_>) {
                self.0 += 1;
            }
            fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
            fn on_ep_error(&mut self, _ep: EpTag, _error: Error) {}
        }
        let mut count = Count(0);
        let start = Instant::now();
        while count.0 == 0 {
            iface.poll(8, &mut count);
            assert!(start.elapsed() < TIMEOUT, "the FIFO is stuck behind a dead writer");
        }
        assert_eq!((count.0, iface.rx_stats().abandoned), (1, round));
        assert_eq!(to_victim.check(Comp::None), Err(Refused::Failed(Error::PeerDead)));
        let refused = (0..100_000).find_map(|_| match to_victim.am_short(1, 0, &[]) {
            Err(Refused::Failed(e)) => Some(e),
            _ => None,
        });
        assert_eq!(refused, Some(Error::PeerDead));
    }
    drop(iface);
    assert_eq!(before.since(Duration::from_secs(5), leftovers::of_this_project), Vec::<String>::new());
}

/// Exits a while after it was told to.
fn cma_victim() {
    let mut line = Partner::parent();
    let iface = uct::cma::Iface::open(&Default::default()).unwrap();
    line.send(&(iface.device_addr().to_vec(), iface.iface_addr().to_vec())).unwrap();
    let _ = line.recv::<()>(TIMEOUT);
    std::thread::sleep(Duration::from_millis(50));
    std::process::exit(0);
}

/// A worker that sleeps on `cma`, where nothing arrives, is woken by a death.
fn cma_death_wakes_a_sleeper() {
    let iface = match uct::cma::Iface::open(&Default::default()) {
        Ok(iface) => iface,
        Err(why) => return skipped("cma_death_wakes_a_sleeper", why),
    };
    let mut victim = Partner::start(&["cma".into()]).unwrap();
    let (device, addr): (Vec<u8>, Vec<u8>) = victim.recv(TIMEOUT).unwrap();
    let ep = iface.connect(&device, &addr).unwrap();
    ep.set_tag(EpTag(5));
    let notified = Rc::new(Cell::new(None));
    let log = notified.clone();
    iface.set_error_handler(Some(Box::new(move |tag, error| log.set(Some((tag, error))))));
    let worker = Worker::new();
    worker.add(Rc::new(iface)).unwrap();
    worker.add(Rc::new(open())).unwrap();
    assert_eq!(worker.wait(8, 0, Some(Duration::from_millis(50))), Ok(0));
    victim.send(&()).unwrap();
    let start = Instant::now();
    assert_eq!(worker.wait(8, 0, Some(TIMEOUT)), Ok(1));
    assert!(start.elapsed() < TIMEOUT / 2);
    assert_eq!(notified.take(), Some((EpTag(5), Error::PeerDead)));
    assert_eq!(ep.check(Comp::None), Err(Refused::Failed(Error::PeerDead)));
}

/// Memory is shared because its owner hands it out, so no permission to trace is needed.
fn posix_needs_no_ptrace_permission() {
    const NAME: &str = "posix_needs_no_ptrace_permission";
    let dir = clients::folder(env!("CARGO_TARGET_TMPDIR"));
    let Some(no_vm) = clients::compile(dir.join("no_vm_posix"), &clients::c_source("no_vm.c"), &[]) else {
        return skipped(NAME, "no_vm.c does not compile");
    };
    let me = std::env::current_exe().unwrap();
    assert!(Command::new(no_vm).arg(me).arg("forbidden").status().unwrap().success());
}

fn forbidden() {
    let cma = uct::cma::Iface::open(&Default::default()).err();
    assert!(cma.is_some_and(|why| why.to_string().contains("off")), "the filter is not in force");
    two_writers_one_reader();
    atomics_under_contention();
}
