//! Peers that come and go: interfaces of one process, opened and dropped.

use super::peer_failure::PeerInfo;
use super::{Log, PollLimit};
use crate::partner::Partner;
use std::collections::VecDeque;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucs::config::Source;
use uct::any;
use uct::api::{Access, AllocReq, Caps, Comp, Ep, Iface, Iov, Md, Memory, Outcome, Refused, Retry, Sent};

const PEERS: usize = 1000;
/// Peers after which caches are full.
const WARM: usize = 300;
const LEN: usize = 256;
/// Limit for what a process does at its start, and for an operation.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Resources of this process.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    mappings: usize,
    /// Bytes of memory in use.
    memory: usize,
}

fn held() -> Held {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    Held {
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        mappings: maps.lines().count(),
        memory: resident * ucs::mem::page::page_size(),
    }
}

/// Runs `body` in a process of its own, where no other test opens and maps anything: this program again, with
/// the one test `name`.
fn alone(name: &str, body: impl FnOnce()) {
    const ALONE: &str = "CONFORM_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let program = std::env::current_exe().unwrap();
    let out = Command::new(program).args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let passed = out.status.success() && text.contains("1 passed");
    assert!(passed, "{text}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// An interface, and one that comes, exchanges a message and a put with it, and goes.
fn visit<I: Iface>(n: usize, hub: &I, peer: I, hub_mem: &<I::Md as Md>::Mem) {
    let there = hub.connect(&peer.device_addr(), &peer.iface_addr()).unwrap();
    let here = peer.connect(&hub.device_addr(), &hub.iface_addr()).unwrap();
    assert_eq!((there.ensure_connected(), here.ensure_connected()), (Ok(()), Ok(())));
    let attr = hub.attr().clone();
    let (mut at_hub, mut at_peer) = (Log::default(), Log::default());
    if attr.has(Caps::AM_BCOPY) {
        for ep in [&there, &here] {
            finish(hub, &peer, &mut at_hub, &mut at_peer, |_| ep.am_bcopy(7, |_| LEN).map(|_| Sent::Done));
        }
        let mut polls = PollLimit::default();
        while at_hub.ams.len() + at_peer.ams.len() < 2 {
            let (here, there) = (at_hub.ams.len(), at_peer.ams.len());
            let errors = (&at_hub.errors, &at_peer.errors);
            assert!(polls.is_left(), "peer {n}: {here} and {there} messages arrived, {errors:?}");
            hub.poll(16, &mut at_hub);
            peer.poll(16, &mut at_peer);
        }
    }
    if attr.has(Caps::PUT_ZCOPY) {
        let local = peer.md().alloc(&AllocReq::new(LEN, "visitor")).unwrap();
        let rkey = peer.md().unpack_rkey(&hub.md().pack_rkey(hub_mem).unwrap()).unwrap();
        let (iov, at) = ([Iov::new(local.addr(), LEN, Some(&local))], hub_mem.addr().addr() as u64);
        // SAFETY: `local` lives until the operation is over, which is waited for.
        let put = |comp| unsafe { here.put_zcopy(&iov, at, &rkey, comp) };
        finish(hub, &peer, &mut at_hub, &mut at_peer, put);
    }
    finish(hub, &peer, &mut at_hub, &mut at_peer, |comp| here.flush(comp));
    assert!(at_hub.errors.is_empty() && at_peer.errors.is_empty());
}

/// Runs an operation of `peer` or `hub` to its end.
fn finish<I: Iface>(
    hub: &I,
    peer: &I,
    at_hub: &mut Log,
    at_peer: &mut Log,
    mut call: impl FnMut(Comp) -> Outcome,
) {
    let mut polls = PollLimit::default();
    let sent = loop {
        match call(Comp::Token(1)) {
            Ok(sent) => break sent,
            Err(Refused::NoResource) => (hub.poll(16, at_hub), peer.poll(16, at_peer)),
            Err(Refused::Failed(e)) => panic!("{e}"),
        };
        assert!(polls.is_left(), "no resource for ever");
    };
    while sent == Sent::InProgress && at_hub.comps.is_empty() && at_peer.comps.is_empty() {
        assert!(polls.is_left(), "no completion");
        hub.poll(16, at_hub);
        peer.poll(16, at_peer);
    }
    at_hub.comps.clear();
    at_peer.comps.clear();
}

/// A thousand peers that come and go leave no descriptor, mapping or memory behind.
pub fn coming_and_going_leaks_nothing<I: Iface>(name: &str, open: impl Fn() -> I) {
    alone(name, || {
        let hub = open();
        let access = Access::ALL - Access::REMOTE_ATOMIC;
        let mem = hub.md().alloc(&AllocReq { access, ..AllocReq::new(LEN, "hub") }).unwrap();
        let mut before = held();
        for n in 0..PEERS {
            if n == WARM {
                before = held();
            }
            visit(n, &hub, open(), &mem);
        }
        let after = held();
        let grown = after.memory.saturating_sub(before.memory);
        let same = after.descriptors <= before.descriptors + 2 && after.mappings <= before.mappings + 8;
        assert!(same && grown < 4 << 20, "{} peers later: {before:?}, {after:?}", PEERS - WARM);
    });
}

/// Sends to and puts into a process that was just started, and is killed.
fn visit_process(hub: &any::Iface, local: &<any::Md as Md>::Mem, program: &str, place: (&str, &str)) {
    let mut process = Partner::start_program(program, &[place.0.into(), place.1.into()]).unwrap();
    let (device, addr, at, key): PeerInfo = process.recv(TIMEOUT).unwrap();
    let ours: PeerInfo = (hub.device_addr().to_vec(), hub.iface_addr().to_vec(), 0, Vec::new());
    process.send(&ours).unwrap();
    process.recv::<()>(TIMEOUT).unwrap();
    let there = hub.connect(&device, &addr).unwrap();
    let mut log = Log::default();
    let mut run = |call: &dyn Fn(Comp) -> Outcome| {
        let start = Instant::now();
        log.comps.clear();
        let mut sent = call(Comp::Token(1));
        while sent == Err(Refused::NoResource) || sent == Ok(Sent::InProgress) && log.comps.is_empty() {
            assert!(start.elapsed() < TIMEOUT, "{place:?}: an operation does not end");
            hub.poll(16, &mut log);
            if sent == Err(Refused::NoResource) {
                sent = call(Comp::Token(1));
            }
        }
        assert!(sent.is_ok(), "{place:?}: {sent:?}");
    };
    if hub.attr().has(Caps::AM_BCOPY) {
        run(&|_| there.am_bcopy(7, |_| LEN).map(|_| Sent::Done));
    }
    if hub.attr().has(Caps::PUT_ZCOPY) && !key.is_empty() {
        let rkey = hub.md().unpack_rkey(&key).unwrap();
        let iov = [Iov::new(local.addr(), LEN, Some(local))];
        // SAFETY: `local` lives until the operation is over, which `run` waits for.
        run(&|comp| unsafe { there.put_zcopy(&iov, at, &rkey, comp) });
    }
    run(&|comp| there.flush(comp));
    assert_eq!(log.errors, []);
    // It is killed, and its endpoint dropped after that.
    drop(process);
    drop(there);
}

/// Processes that come, are written to and are killed leave no descriptor and no mapping behind.
pub fn processes_that_come_and_go(name: &str, program: &str, tl: &str, dev: &str) {
    const PROCESSES: usize = 40;
    const WARM: usize = 10;
    alone(name, || {
        let hub = any::open(tl, dev, &Source::empty()).unwrap();
        let local = hub.md().alloc(&AllocReq::new(LEN, "local")).unwrap();
        let mut before = held();
        for n in 0..PROCESSES {
            if n == WARM {
                before = held();
            }
            visit_process(&hub, &local, program, (tl, dev));
        }
        // Deaths are noticed within a while.
        let start = Instant::now();
        let is_back = || held().descriptors <= before.descriptors && held().mappings <= before.mappings + 4;
        while !is_back() {
            let after = held();
            assert!(start.elapsed() < TIMEOUT, "{} processes later: {before:?}, {after:?}", PROCESSES - WARM);
            hub.poll(16, &mut Log::default());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// 24 peers close one after the other with messages and waiting operations under way; the last ones go on.
pub fn peers_close_in_order<I: Iface>(_name: &str, open: impl Fn() -> I)
where
    I::Ep: 'static,
{
    const CLOSING: usize = 24;
    let hub = open();
    let attr = hub.attr().clone();
    let mut peers = VecDeque::new();
    let mut waiting = 0;
    for n in 0..CLOSING {
        let peer = open();
        let there = Rc::new(hub.connect(&peer.device_addr(), &peer.iface_addr()).unwrap());
        let here = Rc::new(peer.connect(&hub.device_addr(), &hub.iface_addr()).unwrap());
        there.ensure_connected().unwrap();
        if attr.has(Caps::AM_BCOPY) {
            // Both ways, and nobody polls.
            for ep in [&there, &here] {
                (0..40).take_while(|_| ep.am_bcopy(7, |_| 8).is_ok()).count();
                let of = Rc::downgrade(ep);
                let op = move || match of.upgrade().map(|ep| ep.am_bcopy(7, |_| 8)) {
                    Some(Err(Refused::NoResource)) => Retry::NoResource,
                    _ => Retry::Done,
                };
                waiting += usize::from(ep.pending_add(Box::new(op)).is_ok());
            }
        }
        peers.push_back((n, peer, there, here));
    }
    let mut at_hub = Log::default();
    while peers.len() > 2 {
        let (n, peer, there, here) = peers.pop_front().unwrap();
        match n % 3 {
            // In each order of the three, with and without a poll before.
            0 => drop((peer, here, there)),
            1 => drop((there, here, peer)),
            _ => {
                hub.poll(4, &mut at_hub);
                drop((here, peer, there));
            }
        }
        hub.poll(64, &mut at_hub);
        for (_, peer, ..) in &peers {
            peer.poll(1, &mut Log::default());
        }
    }
    // What was under way to those that are gone ends, and does not keep others from going on.
    let mem = hub.md().alloc(&AllocReq::new(LEN, "hub")).unwrap();
    let mut polls = PollLimit::default();
    let mut done = false;
    while !done {
        assert!(polls.is_left(), "a flush does not end; {waiting} operations waited");
        hub.poll(64, &mut at_hub);
        for (_, peer, ..) in &peers {
            peer.poll(64, &mut Log::default());
        }
        done = hub.flush(Comp::None) == Ok(Sent::Done);
    }
    drop(peers);
    visit(CLOSING, &hub, open(), &mem);
}

/// Instantiates the cases for a transport: `leave_suite!(name,
///
/// open);`, and `leave_suite!(name, open, program, transport, device);` for one between processes, where
/// `program` runs [`run_peer`](super::peer_failure::run_peer).
#[macro_export]
macro_rules! leave_suite {
    ($tl:ident, $open:expr, $program:expr, $name:literal, $dev:literal) => {
        mod $tl {
            #[allow(unused_imports, reason = "what the expression needs")]
            use super::*;
            $crate::leave_suite!(@cases $tl, $open; coming_and_going_leaks_nothing peers_close_in_order);
            #[test] fn processes_that_come_and_go() {
                let case = concat!(stringify!($tl), "::processes_that_come_and_go");
                $crate::conform::leave::processes_that_come_and_go(case, $program, $name, $dev);
            }
        }
    };
    ($tl:ident, $open:expr) => {
        mod $tl {
            #[allow(unused_imports, reason = "what the expression needs")]
            use super::*;
            $crate::leave_suite!(@cases $tl, $open; coming_and_going_leaks_nothing peers_close_in_order);
        }
    };
    (@cases $tl:ident, $open:expr; $($case:ident)+) => {
        $(#[test] fn $case() {
            $crate::conform::leave::$case(concat!(stringify!($tl), "::", stringify!($case)), $open);
        })+
    };
}
