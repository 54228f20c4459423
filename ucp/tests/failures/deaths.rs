//! Failures after each packet of every protocol: a peer dies, the endpoint is closed, memory regions run out
//! or are refused. docs/ucp.md ("When something goes wrong") has the outcomes; nothing may be left.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ucp::rdm::EngineSnapshot;
use ucp::{
    ANY_TAG, Access, AmProto, AtomicOp, CloseMode, Context, Ep, EpParams, Error, Match, Mem, RecvRequest,
    Rkey, RmaParams, SendRequest, TAG_MASK_FULL, Worker, select::DeliveryComplete,
};
use ucs::config::Source;
use uct::efa::dev::Gid;
use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};
use uct::efa::{Iface, Params};

const LEN: usize = 20_000;
/// More rounds of progress than any operation takes.
const ROUNDS: usize = 20_000;

/// Names each kind of operation once: the type, and the list of all.
macro_rules! ways {
    ($($way:ident)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum How {
            $($way),*
        }

        const ALL: &[How] = &[$(How::$way),*];
    };
}

ways! {
    Eager EagerSync Medium MediumSync LongCts LongCtsSync LongRead RuntRead
    Am AmRendezvous Stream PutEager PutLongCts PutLongRead PutDirect
    GetShort GetLongCts GetDirect AtomicPost AtomicFetch AtomicCompare
}

use How::*;

impl How {
    fn settings(self) -> Source {
        let source = Source::empty().with("UCX_KEEPALIVE_INTERVAL", "0");
        match self {
            LongCts | LongCtsSync => source.with("UCX_RNDV_THRESH", "0").with("UCX_MIN_READ", "inf"),
            LongRead => source.with("UCX_MIN_READ", "0"),
            RuntRead => source.with("UCX_MIN_READ", "0").with("UCX_RUNT_SIZE", "9000"),
            PutLongCts => source.with("UCX_MIN_READ_WRITE", "inf"),
            PutLongRead => source.with("UCX_MIN_READ_WRITE", "0"),
            _ => source,
        }
    }

    fn is_two_sided(self) -> bool {
        (self as usize) < PutEager as usize
    }

    /// Whether the initiator's completion waits for the target.
    fn is_answered(self) -> bool {
        !matches!(
            self,
            Eager | Medium | LongCts | Am | AmRendezvous | Stream | PutEager | PutLongCts | AtomicPost
        )
    }
}

type End = Box<dyn FnMut() -> Option<Result<(), Error>>>;

fn end_of_send(request: SendRequest<Vec<u8>>) -> End {
    let mut request = Some(request);
    Box::new(move || match request.as_mut()?.is_done() {
        true => request.take().map(|request| request.wait().0),
        false => None,
    })
}

fn end_of_recv(request: RecvRequest<Vec<u8>>) -> End {
    let mut request = Some(request);
    Box::new(move || match request.as_mut()?.is_done() {
        true => request.take().map(|request| request.wait().0.map(drop)),
        false => None,
    })
}

/// Two workers on devices of their own: 0 initiates, 1 is the target.
struct Rig {
    fabric: Fabric,
    workers: [Worker; 2],
    eps: [Option<Ep>; 2],
    mem: Mem,
    dead: Option<usize>,
}

impl Rig {
    fn new(how: How, regions: u32) -> Rig {
        let fabric = Fabric::new(1, FaultPlan::NONE);
        let context = Context::configured(how.settings()).unwrap();
        let workers = [0, 1].map(|n| {
            let mut profile = Profile::small();
            profile.attr.mtu = 4096;
            profile.attr.max_mr = regions;
            let iface = Iface::open(fabric.open(1 + n, profile).unwrap(), &Params::default()).unwrap();
            context.worker_on(vec![iface.into()]).unwrap()
        });
        let connect = |from: usize, to: usize| {
            Some(workers[from].connect(&workers[to].address(), EpParams::default()).unwrap())
        };
        let eps = [connect(0, 1), connect(1, 0)];
        let mem = workers[1].mem_alloc(LEN, Access::all()).unwrap();
        let rig = Rig { fabric, workers, eps, mem, dead: None };
        // After the handshake the packets of an operation are always the same.
        let hello = rig.workers[1].tag_recv(1, ANY_TAG, Vec::with_capacity(1));
        rig.eps[0].as_ref().unwrap().tag_send_blocking(1, b"x").unwrap();
        let mut ends = vec![(1, end_of_recv(hello))];
        rig.drive(&mut ends, &mut || {});
        rig
    }

    fn start(&self, how: How) -> Vec<(usize, End)> {
        let ep = self.eps[0].as_ref().unwrap();
        let bytes = vec![5; if matches!(how, Eager | EagerSync | PutEager) { 100 } else { LEN }];
        // From this peer: a receive from anybody would wait for others.
        let from = Match::tagged(7, TAG_MASK_FULL).from(self.eps[1].as_ref().unwrap());
        let recv = || (1, end_of_recv(self.workers[1].recv(from, Vec::with_capacity(LEN))));
        let packets = Rkey::from_key(self.mem.key());
        let device = ep.unpack_rkey(&self.mem.pack_rkey()).unwrap();
        let (at, sync) = (self.mem.addr(), RmaParams { sync: DeliveryComplete::Yes, ..RmaParams::default() });
        let one = |end: End| vec![(0, end)];
        let value = |request: ucp::FetchRequest<u64>| -> End {
            let mut request = Some(request);
            Box::new(move || match request.as_mut()?.is_done() {
                true => request.take().map(|request| request.wait().map(drop)),
                false => None,
            })
        };
        match how {
            Eager | Medium | LongCts | LongRead | RuntRead => {
                vec![recv(), (0, end_of_send(ep.tag_send(7, bytes)))]
            }
            EagerSync | MediumSync | LongCtsSync => {
                vec![recv(), (0, end_of_send(ep.tag_send_sync(7, bytes)))]
            }
            Am | AmRendezvous => {
                let got: Rc<RefCell<Option<End>>> = Rc::default();
                let slot = got.clone();
                self.workers[1].set_am_handler(3, move |message| {
                    *slot.borrow_mut() = Some(end_of_recv(message.recv(Vec::with_capacity(LEN))));
                });
                let (proto, len) = if how == Am { (AmProto::Eager, 100) } else { (AmProto::Rendezvous, LEN) };
                let mut send = Some(ep.am_send_with(proto, 3, b"head", vec![5; len]));
                let sent: End = Box::new(move || match send.as_mut()?.is_done() {
                    true => send.take().map(|send| send.wait().0),
                    false => None,
                });
                vec![(1, Box::new(move || got.borrow_mut().as_mut()?())), (0, sent)]
            }
            Stream => {
                let back = self.eps[1].as_ref().unwrap();
                let recv = back.stream_recv_full(Vec::with_capacity(LEN));
                vec![(1, end_of_recv(recv)), (0, end_of_send(ep.stream_send(bytes)))]
            }
            PutEager | PutLongCts => one(end_of_send(ep.put(bytes, at, &packets))),
            PutLongRead => one(end_of_send(ep.put_with(bytes, at, &packets, &sync))),
            PutDirect => one(end_of_send(ep.put_with(bytes, at, &device, &sync))),
            GetShort => one(end_of_recv(ep.get(Vec::with_capacity(100), at, &packets))),
            GetLongCts => one(end_of_recv(ep.get(Vec::with_capacity(LEN), at, &packets))),
            GetDirect => one(end_of_recv(ep.get(Vec::with_capacity(LEN), at, &device))),
            AtomicPost => {
                let mut done = Some(ep.atomic_post(AtomicOp::Sum, 1u64, at, &packets));
                one(Box::new(move || done.take()))
            }
            AtomicFetch => one(value(ep.atomic_fetch(AtomicOp::Sum, 1u64, at, &packets))),
            AtomicCompare => one(value(ep.atomic_compare(AtomicOp::CompareSwap, 0u64, 1, at, &packets))),
        }
    }

    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..2).filter(|n| self.dead != Some(*n))
    }

    /// Progresses the living until nothing happens; calls `each` between steps. Returns the results.
    fn drive(&self, ends: &mut [(usize, End)], each: &mut dyn FnMut()) -> Vec<Option<Result<(), Error>>> {
        let mut outcomes = vec![None; ends.len()];
        let (mut quiet, mut asked) = (0, false);
        for _ in 0..ROUNDS {
            each();
            let mut events = usize::from(self.fabric.step());
            for n in self.living() {
                events += self.workers[n].progress();
            }
            for ((who, end), outcome) in ends.iter_mut().zip(&mut outcomes) {
                if self.dead != Some(*who) && outcome.is_none() {
                    *outcome = end();
                }
            }
            quiet = if events > 0 { 0 } else { quiet + 1 };
            if quiet == 3 {
                if asked {
                    return outcomes;
                }
                asked = self.living().map(|n| self.workers[n].check_peers()).fold(true, |a, b| a & b);
                quiet = 0;
            }
        }
        panic!("does not come to rest");
    }

    /// Checks that nothing is in flight except active message buffers and whole messages of the dead.
    fn nothing_left(&self, n: usize, what: &str) {
        let worker = &self.workers[n];
        let snapshot = worker.diagnostics().snapshot();
        let (receives, unexpected, held_bytes) =
            (snapshot.receives, snapshot.unexpected, snapshot.held_bytes);
        assert_eq!(
            snapshot,
            EngineSnapshot { receives, unexpected, held_bytes, ..EngineSnapshot::EMPTY },
            "{what}: worker {n}"
        );
        assert!([0, 32].contains(&receives), "{what}: worker {n} has {receives} receives");
        assert_eq!(worker.diagnostics().registrations(), 0, "{what}: worker {n}");
    }
}

fn deliveries(how: How) -> u64 {
    let rig = Rig::new(how, 1000);
    let before = rig.fabric.delivered();
    let outcomes = rig.drive(&mut rig.start(how), &mut || {});
    assert!(outcomes.iter().all(|end| *end == Some(Ok(()))), "{how:?}: {outcomes:?}");
    let flush = rig.workers[0].flush();
    rig.drive(&mut [], &mut || {});
    assert!(flush.is_done());
    (0..2).for_each(|n| rig.nothing_left(n, "well"));
    rig.fabric.delivered() - before
}

fn death(how: How, victim: usize, k: u64) -> Vec<Result<(), Error>> {
    let mut rig = Rig::new(how, 1000);
    let survivor = 1 - victim;
    rig.fabric.kill_after(Gid::link_local(1 + victim as u64), k);
    let mut ends = rig.start(how);
    rig.dead = Some(victim);
    // The victim progresses as long as its device lives.
    let workers = rig.workers.clone();
    let mut alive = || {
        workers[victim].progress();
    };
    let outcomes = rig.drive(&mut ends, &mut alive);
    rig.fabric.kill(Gid::link_local(1 + victim as u64));
    rig.drive(&mut [], &mut || {});
    let what = format!("{how:?}: worker {victim} dies after {k}");
    let peer = rig.eps[survivor].as_ref().unwrap().peer();
    let mut told = Vec::new();
    for ((who, _), outcome) in ends.iter().zip(outcomes) {
        if *who == survivor {
            // An active message that never arrived has no handler to call.
            let announced = matches!(how, Am | AmRendezvous) && survivor == 1;
            match outcome {
                Some(Ok(())) => told.push(Ok(())),
                Some(Err(Error::PeerGone(p) | Error::Unreachable(p) | Error::Unresponsive(p)))
                    if p == peer =>
                {
                    told.push(Err(Error::PeerGone(p)));
                }
                None if announced => told.push(Err(Error::PeerGone(peer))),
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    rig.nothing_left(survivor, &what);
    // A survivor without pending operations may notice by the next packet only; then everything fails.
    let ep = rig.eps[survivor].as_ref().unwrap();
    ep.tag_send(8, vec![0; 8]).detach();
    rig.drive(&mut [], &mut || {});
    assert_eq!(ep.tag_send(9, vec![0; 9]).wait().0, Err(Error::PeerGone(peer)), "{what}");
    told
}

#[test]
fn peer_dies_after_each_packet() {
    for &how in ALL {
        let total = deliveries(how);
        let mut first_well = [None; 2];
        for victim in [0, 1] {
            for k in 0..=total {
                let told = death(how, victim, k);
                let well = told.iter().all(Result::is_ok);
                match (well, first_well[1 - victim]) {
                    (true, None) => first_well[1 - victim] = Some(k),
                    (false, Some(at)) => panic!("{how:?}: well after {at} deliveries, not after {k}"),
                    _ => {}
                }
            }
        }
        let [initiator, target] = first_well.map(|k| k.map_or("never".into(), |k| k.to_string()));
        println!("{how:<14?} ends well if the peer dies after: initiator {initiator}, target {target}");
        assert!(first_well[0].is_some(), "{how:?}: the initiator never ends well");
        if how.is_answered() {
            assert!(first_well[0] > Some(0), "{how:?}: ends without the peer");
        }
        if how.is_two_sided() {
            assert!(first_well[1] > Some(0), "{how:?}: received from nobody");
            assert!(first_well[1].is_some(), "{how:?}: the target never ends well");
        }
    }
}

#[test]
fn endpoint_is_closed_after_each_packet() {
    for &how in ALL {
        for k in 0..=deliveries(how) {
            for force in [true, false] {
                let mut rig = Rig::new(how, 1000);
                let (before, mut ends) = (rig.fabric.delivered(), rig.start(how));
                let mut ep = rig.eps[0].take();
                let peer = ep.as_ref().unwrap().peer();
                let mut closing = None;
                let fabric = rig.fabric.clone();
                let outcomes = rig.drive(&mut ends, &mut || {
                    if fabric.delivered() - before >= k
                        && let Some(ep) = ep.take()
                    {
                        let how = match force {
                            true => CloseMode::Force,
                            false => CloseMode::Flush(Duration::from_secs(1 << 30)),
                        };
                        closing = Some(ep.close(how));
                    }
                });
                let what = format!("{how:?}: closed after {k}, force {force}");
                assert!(closing.as_mut().is_none_or(|close| close.is_done()), "{what}");
                for ((who, _), outcome) in ends.iter().zip(outcomes) {
                    match (outcome, force) {
                        (Some(Ok(())), _) => {}
                        (Some(Err(Error::PeerGone(p))), true) if *who == 0 && p == peer => {}
                        (Some(Err(Error::Cancelled)), true) if *who == 0 => {}
                        // The other side fails what it began to receive and keeps waiting for the rest.
                        (None | Some(Err(_)), true) if *who == 1 => {}
                        other => panic!("{what}: at {who}: {other:?}"),
                    }
                }
                rig.nothing_left(0, &what);
            }
        }
    }
}

#[test]
fn packets_replace_rma_without_memory_regions() {
    for &how in ALL {
        for refused in [false, true] {
            // Two for the interface, one for the offered memory.
            let rig = Rig::new(how, if refused { 1000 } else { 3 });
            if refused {
                rig.fabric.refuse_registrations(1.0);
            }
            let outcomes = rig.drive(&mut rig.start(how), &mut || {});
            assert!(outcomes.iter().all(|end| *end == Some(Ok(()))), "{how:?}, {refused}: {outcomes:?}");
            (0..2).for_each(|n| rig.nothing_left(n, &format!("{how:?}, refused {refused}")));
            let reads = rig.workers[1].stats().rare.reads;
            assert_eq!(reads, 0, "{how:?}: read in spite of it");
        }
    }
}

fn flushed(rig: &Rig) -> Result<(), Error> {
    let mut flush = Some(rig.workers[0].flush());
    let end: End = Box::new(move || match flush.as_mut()?.is_done() {
        true => flush.take().map(|flush| flush.wait()),
        false => None,
    });
    rig.drive(&mut [(0, end)], &mut || {})[0].expect("a flush ends")
}

#[test]
fn worker_flush_reports_a_failed_peer() {
    let kill = |rig: &mut Rig| {
        rig.fabric.kill(Gid::link_local(2));
        rig.dead = Some(1);
    };
    for how in [EagerSync, MediumSync, LongRead, PutEager, AtomicPost] {
        let [mut during, mut before, mut after] = [(); 3].map(|()| Rig::new(how, 1000));
        let gone = Error::PeerGone(during.eps[0].as_ref().unwrap().peer());

        let _ends = during.start(how);
        kill(&mut during);
        assert_eq!(flushed(&during), Err(gone), "{how:?}: lost during the flush");
        assert_eq!(flushed(&during), Ok(()), "{how:?}: told once");

        let mut ends = before.start(how);
        kill(&mut before);
        before.drive(&mut ends, &mut || {});
        assert_eq!(flushed(&before), Err(gone), "{how:?}: lost before the flush");

        let mut ends = after.start(how);
        after.drive(&mut ends, &mut || {});
        assert_eq!(flushed(&after), Ok(()));
        kill(&mut after);
        after.drive(&mut [], &mut || {});
        assert_eq!(flushed(&after), Ok(()), "{how:?}: lost with nothing unfinished");
    }
}

#[test]
fn worker_flush_reports_a_returned_message() {
    for found_before in [true, false] {
        let mut rig = Rig::new(Eager, 1000);
        rig.fabric.kill(Gid::link_local(2));
        rig.dead = Some(1);
        let ep = rig.eps[0].as_ref().unwrap();
        assert_eq!(ep.tag_send(8, vec![0; 8]).wait().0, Ok(()));
        if found_before {
            rig.drive(&mut [], &mut || {});
        }
        assert_eq!(flushed(&rig), Err(Error::PeerGone(ep.peer())));
    }
}

/// Operations given up by a forced close are no loss for a flush.
#[test]
fn worker_flush_ignores_cancelled_operations() {
    let mut rig = Rig::new(EagerSync, 1000);
    let _ends = rig.start(EagerSync);
    assert_eq!(rig.eps[0].take().unwrap().close(CloseMode::Force).wait(), Ok(()));
    assert_eq!(flushed(&rig), Ok(()));
}

/// With nothing but a receive pending, the peer is checked once in each interval.
// [M10.2]
#[test]
fn keepalive_finds_a_silent_peer() {
    const PEERS: usize = 300;
    for (setting, interval) in [("100ms", 100_000_000), ("2s", 2_000_000_000)] {
        let fabric = Fabric::new(1, FaultPlan::NONE);
        let context = Context::configured(Source::empty().with("UCX_KEEPALIVE_INTERVAL", setting)).unwrap();
        let worker = |n: usize| {
            let device = fabric.open(n as u64, Profile::small()).unwrap();
            let iface = Iface::open(device, &Params::default()).unwrap();
            context.worker_simulated(vec![iface.into()], Box::new(fabric.clone()), n as u32).unwrap()
        };
        let a = worker(1);
        let others: Vec<Worker> = (0..PEERS).map(|n| worker(2 + n)).collect();
        let eps: Vec<Ep> =
            others.iter().map(|b| a.connect(&b.address(), EpParams::default()).unwrap()).collect();
        let pass = |time: u64| {
            for _ in 0..20 {
                fabric.advance(time / 20);
                (0..100).for_each(|_| _ = a.progress());
            }
        };
        pass(2 * interval);
        for victim in [PEERS - 1, 0, 150] {
            let recv = a.recv(Match::tagged(7, TAG_MASK_FULL).from(&eps[victim]), Vec::with_capacity(8));
            pass(interval);
            assert!(!recv.is_done());
            fabric.kill(Gid::link_local(2 + victim as u64));
            pass(interval + interval / 10);
            assert!(recv.is_done(), "{setting}: peer {victim}");
            assert_eq!(recv.wait().0, Err(Error::PeerGone(eps[victim].peer())));
        }
    }
}

/// Operations that wait for a HANDSHAKE request it again: they complete with it, or fail with the peer.
// [M10.2]
#[test]
fn handshake_is_requested_again_without_keepalive() {
    for dies in [false, true] {
        let fabric = Fabric::new(1, FaultPlan::NONE);
        let context = Context::configured(Source::empty().with("UCX_KEEPALIVE_INTERVAL", "0")).unwrap();
        let [a, b] = [1, 2].map(|n| {
            let device = fabric.open(n, Profile::small()).unwrap();
            let iface = Iface::open(device, &Params::default()).unwrap();
            context.worker_simulated(vec![iface.into()], Box::new(fabric.clone()), n as u32).unwrap()
        });
        let ep = a.connect(&b.address(), EpParams::default()).unwrap();
        let send = ep.tag_send_sync(7, vec![1; 8]);
        let pass = |time: u64, b_too: bool| {
            for _ in 0..100 {
                fabric.advance(time / 100);
                for _ in 0..100 {
                    a.progress();
                    if b_too {
                        b.progress();
                    }
                }
            }
            send.is_done()
        };
        assert!(!pass(900_000_000, false));
        let first = a.stats().rare.triggers;
        assert!(!pass(40_000_000_000, false), "a peer that makes no progress is waited for");
        assert!(a.stats().rare.triggers >= first + 4, "called for {} times", a.stats().rare.triggers);
        assert!(
            a.next_timer().is_some_and(|at| at <= Duration::from_secs(64)),
            "a sleeper would wake up for it"
        );
        if dies {
            fabric.kill(Gid::link_local(2));
            assert!(pass(64_000_000_000, false));
            assert_eq!(send.wait().0, Err(Error::PeerGone(ep.peer())));
        } else {
            let recv = b.tag_recv(7, TAG_MASK_FULL, vec![0; 8]);
            assert!(pass(64_000_000_000, true));
            assert_eq!((send.wait().0, recv.wait().1), (Ok(()), vec![1; 8]));
            assert_eq!(a.next_timer(), None, "nothing is waited for");
        }
    }
}
