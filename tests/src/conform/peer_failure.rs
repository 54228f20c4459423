//! Peer failure on transports with [`Caps::PEER_FAILURE`]: each endpoint to the failed peer fails, operations
//! in flight and pending ones end once, and others are not affected. The peer is a process that is killed.

use super::{Log, MAX_POLLS, Pair, rma};
use crate::partner::Partner;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucs::config::Source;
use uct::any;
use uct::api::{
    Access, AllocReq, AtomicOp, Caps, Comp, Ep, EpTag, Error, Iface, Iov, Md, Memory, Outcome, PendingQueued,
    Refused, Retry, Sent,
};

/// Notification takes milliseconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(30);
const EPS: u64 = 3;
/// Bytes of the peer's memory, and of an operation.
const MEMORY: usize = 4096;
const LEN: usize = 64;

type KeyOf<I> = <<I as Iface>::Md as Md>::Rkey;
type MemOf<I> = <<I as Iface>::Md as Md>::Mem;

/// An interface with endpoints to a peer that will fail; the interface is one side of a pair that lives.
pub struct FailingPeer<I: Iface> {
    pair: Pair<I>,
    eps: Vec<Rc<I::Ep>>,
    remote: Option<(u64, KeyOf<I>)>,
    local: MemOf<I>,
    kill: RefCell<Option<Box<dyn FnOnce()>>>,
}

/// Device and interface address; address and key of memory.
pub type PeerInfo = (Vec<u8>, Vec<u8>, u64, Vec<u8>);

/// The addresses of an interface and its memory.
pub fn describe<I: Iface>(iface: &I, mem: &MemOf<I>) -> PeerInfo {
    let key = iface.md().pack_rkey(mem).map_or(Vec::new(), |key| key.to_vec());
    (iface.device_addr().to_vec(), iface.iface_addr().to_vec(), mem.addr().addr() as u64, key)
}

/// Allocates memory with all access rights.
pub fn memory<I: Iface>(iface: &I) -> MemOf<I> {
    let req = AllocReq { access: Access::ALL, ..AllocReq::new(MEMORY, "peer") };
    iface.md().alloc(&req).expect("memory")
}

/// Runs the failing peer until it is killed: the program `peer`, started by [`FailingPeer::in_process`].
pub fn run_peer(tl: &str, dev: &str) {
    let iface = any::open(tl, dev, &Source::empty()).expect("the transport");
    let (mut driver, mem) = (Partner::parent(), memory(&iface));
    driver.send(&describe(&iface, &mem)).expect("the observer");
    let (device, addr, ..): PeerInfo = driver.recv(TIMEOUT).expect("the observer");
    // RDMA needs a connected target.
    let _back = iface.connect(&device, &addr).expect("the observer");
    driver.send(&()).expect("the observer");
    while !driver.is_gone() {
        if iface.progress(64) == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl FailingPeer<any::Iface> {
    /// The peer is a process that runs `program`.
    pub fn in_process(program: &str, tl: &str, dev: &str) -> Self {
        FailingPeer::wrapped(program, tl, dev, |iface| iface)
    }
}

impl<I: Iface> FailingPeer<I> {
    /// The peer is a process; `wrap` wraps the interfaces of this one.
    pub fn wrapped(program: &str, tl: &str, dev: &str, wrap: impl Fn(any::Iface) -> I) -> Self {
        let open = || wrap(any::open(tl, dev, &Source::empty()).expect("the transport"));
        let pair = Pair::new(open(), open());
        let mut peer = Partner::start_program(program, &[tl.into(), dev.into()]).expect("the peer");
        let peer_info: PeerInfo = peer.recv(TIMEOUT).expect("its address");
        let our_info: PeerInfo = (pair.a.device_addr().to_vec(), pair.a.iface_addr().to_vec(), 0, Vec::new());
        peer.send(&our_info).expect("it hears");
        peer.recv::<()>(TIMEOUT).expect("it knows us");
        // Dropping it kills it with SIGKILL.
        FailingPeer::new(pair, &peer_info, move || drop(peer))
    }

    /// Connects side `a` of the pair to the peer, which knows it; `kill` ends the peer.
    pub fn new(pair: Pair<I>, peer_info: &PeerInfo, kill: impl FnOnce() + 'static) -> Self {
        let (device, addr, at, key) = peer_info;
        let eps: Vec<_> =
            (0..EPS).map(|_| Rc::new(pair.a.connect(device, addr).expect("it lives"))).collect();
        eps.iter().zip(10..).for_each(|(ep, tag)| ep.set_tag(EpTag(tag)));
        let remote = (!key.is_empty()).then(|| (*at, pair.a.md().unpack_rkey(key).expect("its key")));
        let local = memory(&pair.a);
        let peer = FailingPeer { pair, eps, remote, local, kill: RefCell::new(Some(Box::new(kill))) };
        assert!(peer.has(Caps::PEER_FAILURE), "a transport without has no such suite");
        peer.warm_up();
        peer
    }

    fn has(&self, caps: Caps) -> bool {
        self.pair.a.attr().has(caps)
    }

    fn kill(&self) {
        let kill = self.kill.borrow_mut().take().expect("it dies once");
        kill();
    }

    fn nth_op(&self, ep: &I::Ep, n: usize, comp: Comp) -> Outcome {
        let send = || {
            let pack = |slot: &mut [u8]| {
                slot[..LEN].fill(n as u8);
                LEN
            };
            ep.am_bcopy(7, pack).map(|_| Sent::Done)
        };
        let Some((at, key)) =
            self.remote.as_ref().filter(|_| !n.is_multiple_of(3) || !self.has(Caps::AM_BCOPY))
        else {
            return send();
        };
        let piece = |from: usize| [Iov::new(self.local.addr().wrapping_add(from), LEN, Some(&self.local))];
        match n % 2 {
            // SAFETY: `local` lives as long as the interface is polled, and is looked at by nobody.
            0 if self.has(Caps::PUT_ZCOPY) => unsafe { ep.put_zcopy(&piece(0), *at, key, comp) },
            // SAFETY: as above.
            1 if self.has(Caps::GET_ZCOPY) => unsafe { ep.get_zcopy(&piece(LEN), *at, key, comp) },
            _ => send(),
        }
    }

    fn until(&self, what: &str, log: &mut Log, mut condition: impl FnMut(&mut Log) -> bool) {
        let (start, mut other) = (Instant::now(), Log::default());
        while !condition(log) {
            self.pair.poll_both(log, &mut other);
            assert!(start.elapsed() < TIMEOUT, "{what} for ever");
        }
    }

    fn warm_up(&self) {
        let mut log = Log::default();
        for n in 0..12 {
            for ep in &self.eps {
                self.until("no room", &mut log, |_| match self.nth_op(ep, n, Comp::None) {
                    Ok(_) => true,
                    Err(why) => {
                        assert_eq!(why, Refused::NoResource);
                        false
                    }
                });
            }
        }
        self.until("under way", &mut log, |_| match self.pair.a.flush(Comp::None) {
            Ok(Sent::Done) => true,
            Ok(Sent::InProgress) | Err(Refused::NoResource) => false,
            Err(why) => panic!("{why:?}"),
        });
        assert_eq!(log.errors, []);
    }

    /// Starts operations on every endpoint until each has failed or was reported as failed.
    fn until_notified(&self, log: &mut Log) {
        let mut notified = vec![false; self.eps.len()];
        let mut n = 0;
        self.until("not notified", log, |log| {
            for (ep, notified) in self.eps.iter().zip(&mut notified) {
                match self.nth_op(ep, n, Comp::None) {
                    Err(Refused::Failed(e)) => {
                        is_death(e);
                        *notified = true;
                    }
                    _ => *notified |= log.errors.iter().any(|(tag, _)| *tag == ep.tag()),
                }
            }
            n += 1;
            notified.iter().all(|notified| *notified)
        });
        log.errors.iter().for_each(|(_, e)| is_death(*e));
    }
}

fn is_death(e: Error) {
    assert!(matches!(e, Error::PeerDead | Error::Unreachable | Error::Unresponsive), "{e:?}");
}

/// Every endpoint to a failed peer is notified or fails, and so do all later operations.
pub fn every_endpoint_is_notified<I: Iface>(m: &FailingPeer<I>) {
    let mut log = Log::default();
    m.kill();
    m.until_notified(&mut log);
    for again in 0..3 {
        log.errors.clear();
        m.until_notified(&mut log);
        for ep in &m.eps {
            if log.errors.iter().any(|(tag, _)| *tag == ep.tag()) {
                continue;
            }
            let ended = m.pair.finish(|comp| m.nth_op(ep, 1 + again, comp));
            is_death(ended.expect_err("an operation on the dead"));
        }
    }
}

/// Operations in flight when the peer fails end once, and so does a flush.
pub fn operations_in_flight_end_once<I: Iface>(m: &FailingPeer<I>) {
    let mut log = Log::default();
    let mut expected = BTreeMap::new();
    let mut token = 0;
    let mut start = |call: &dyn Fn(Comp) -> Outcome, expected: &mut BTreeMap<u64, u32>| {
        token += 1;
        match call(Comp::Token(token)) {
            Ok(Sent::InProgress) => drop(expected.insert(token, 0)),
            Ok(Sent::Done) | Err(Refused::NoResource) => {}
            Err(Refused::Failed(e)) => is_death(e),
        }
    };
    for n in 0..60 {
        if n == 30 {
            m.kill();
        }
        for ep in &m.eps {
            start(&|comp| m.nth_op(ep, n, comp), &mut expected);
            if n % 10 == 9 {
                start(&|comp| ep.flush(comp), &mut expected);
            }
        }
        if n % 10 == 9 {
            start(&|comp| m.pair.a.flush(comp), &mut expected);
        }
    }
    m.until("completions missing", &mut log, |log| log.comps.len() >= expected.len());
    for _ in 0..1000 {
        m.pair.poll_both(&mut log, &mut Log::default());
    }
    for (token, result) in &log.comps {
        *expected.get_mut(token).expect("what is under way") += 1;
        result.map_or_else(is_death, |()| {});
    }
    assert!(expected.values().all(|times| *times == 1), "{expected:?}");
    log.errors.iter().for_each(|(_, e)| is_death(*e));
    m.until("nothing is left", &mut log, |_| m.pair.a.flush(Comp::None) != Ok(Sent::InProgress));
}

/// Atomics under way when the peer fails end once, also those that it has taken and will not answer, and a
/// flush ends.
pub fn atomics_in_flight_end_once<I: Iface>(m: &FailingPeer<I>) {
    let Some((at, key)) = m.remote.as_ref().filter(|_| m.has(Caps::ATOMIC)) else { return };
    let (mut log, mut olds, mut under_way) = (Log::default(), vec![0u64; 60], 0);
    let first = olds.as_mut_ptr();
    for n in 0..60 {
        if n == 40 {
            m.kill();
        }
        let ep = &m.eps[n % m.eps.len()];
        let result = NonNull::new(first.wrapping_add(n)).expect("an element");
        // SAFETY: `olds` lives until all have ended, which is waited for.
        match unsafe { ep.atomic_fetch(AtomicOp::Add, 1u64, result, *at, key, Comp::Token(n as u64)) } {
            Ok(Sent::InProgress) => under_way += 1,
            Ok(Sent::Done) | Err(Refused::NoResource) => {}
            Err(Refused::Failed(e)) => is_death(e),
        }
    }
    m.until("atomics do not end", &mut log, |log| log.comps.len() >= under_way);
    m.until("a flush does not end", &mut log, |_| m.pair.a.flush(Comp::None) != Ok(Sent::InProgress));
    let mut tokens: Vec<u64> = log.comps.iter().map(|(token, _)| *token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!((tokens.len(), log.comps.len()), (under_way, under_way), "each once");
    log.comps.iter().for_each(|(_, result)| result.map_or_else(is_death, |()| {}));
}

/// A pending operation is released when the peer fails.
pub fn pending_operations_are_released<I: Iface + 'static>(m: &FailingPeer<I>) {
    if !m.has(Caps::PENDING | Caps::AM_BCOPY) {
        return;
    }
    m.kill();
    let (mut log, ep) = (Log::default(), &m.eps[0]);
    let send = |ep: &I::Ep| ep.am_bcopy(7, |_| LEN).map(drop);
    let mut refused = None;
    for _ in 0..MAX_POLLS {
        match send(ep) {
            Ok(()) => {}
            Err(why) => {
                refused = Some(why);
                break;
            }
        }
    }
    match refused.expect("its queues end") {
        Refused::Failed(e) => is_death(e),
        Refused::NoResource => {
            let (of, ended) = (Rc::downgrade(ep), Rc::new(Cell::new(None)));
            let tell = ended.clone();
            let op = move || match of.upgrade().map(|ep| ep.am_bcopy(7, |_| LEN)) {
                Some(Err(Refused::NoResource)) => Retry::NoResource,
                outcome => {
                    tell.set(Some(outcome.and_then(Result::err)));
                    Retry::Done
                }
            };
            if ep.pending_add(Box::new(op)) == Ok(PendingQueued::Queued) {
                m.until("it waits", &mut log, |_| ended.get().is_some());
                if let Some(Some(Refused::Failed(e))) = ended.get() {
                    is_death(e);
                }
            }
        }
    }
    m.until_notified(&mut log);
}

/// `check` succeeds while the peer lives, and fails afterwards.
pub fn ep_check_is_answered<I: Iface>(m: &FailingPeer<I>) {
    if !m.has(Caps::EP_CHECK) {
        return;
    }
    let ask = |ep: &I::Ep| m.pair.finish(|comp| ep.check(comp));
    assert!(m.eps.iter().all(|ep| ask(ep) == Ok(())));
    m.kill();
    for ep in &m.eps {
        let start = Instant::now();
        while let Ok(()) = ask(ep) {
            assert!(start.elapsed() < TIMEOUT, "said to live");
        }
        is_death(ask(ep).expect_err("it stays dead"));
    }
}

/// Living peers are not affected, nor are later connections to them.
pub fn other_peers_are_unaffected<I: Iface>(m: &FailingPeer<I>) {
    let (p, mut log) = (&m.pair, Log::default());
    m.kill();
    m.until_notified(&mut log);
    let late = p.a.connect(&p.b.device_addr(), &p.b.iface_addr()).expect("it lives");
    for ep in [&p.ab, &late] {
        if m.has(Caps::AM_BCOPY) {
            let (mut a, mut b) = (Log::default(), Log::default());
            let mut send = || p.retry(&mut a, &mut b, || ep.am_bcopy(7, |_| LEN));
            for _ in 0..20 {
                assert_eq!(send(), Ok(LEN));
            }
            let start = Instant::now();
            while b.ams.len() < 20 {
                p.poll_both(&mut a, &mut b);
                assert!(start.elapsed() < TIMEOUT, "nothing arrives");
            }
        }
        if m.has(Caps::PUT_ZCOPY) {
            let t = rma::target(p, MEMORY, Access::ALL);
            rma::write(&m.local, 0, &[5; MEMORY]);
            let iov = [Iov::new(m.local.addr(), MEMORY, Some(&m.local))];
            // SAFETY: `local` is left alone until the completion that `finish` waits for.
            assert_eq!(p.finish(|comp| unsafe { ep.put_zcopy(&iov, t.at, &t.rkey, comp) }), Ok(()));
            assert_eq!(p.finish(|comp| ep.flush(comp)), Ok(()));
            assert!(rma::read(&t.mem, 0, MEMORY) == [5; MEMORY]);
        }
    }
}

/// Instantiates all cases for a transport: `peer_failure_suite!(name,
///
/// peer);`.
#[macro_export]
macro_rules! peer_failure_suite {
    ($tl:ident, $make:expr) => {
        mod $tl {
            #[allow(unused_imports, reason = "what the expression needs")]
            use super::*;
            $crate::conform_suite!(@cases $make;
                peer_failure::every_endpoint_is_notified peer_failure::operations_in_flight_end_once peer_failure::atomics_in_flight_end_once
                peer_failure::pending_operations_are_released
                peer_failure::ep_check_is_answered peer_failure::other_peers_are_unaffected
            );
        }
    };
}
