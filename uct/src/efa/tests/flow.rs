//! Finite queues, RNR, dead peers, flush, fence, pending operations.

#![allow(unsafe_code)]

use super::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

on_every_network!(returned_packets_are_whole the_send_queue_is_finite_and_recovers rnr_is_retried_for_ever_or_reported a_dead_peer_is_an_error_of_each_operation pending_operations_go_out_when_there_is_room sends_and_checks_to_a_closed_peer_fail);

fn the_send_queue_is_finite_and_recovers<N: Network>() {
    let config = Config { tx_queue_len: 8, ..Config::default() };
    let (net, mut a, mut b) = pair_on::<N>(&config, &Config::default());
    let ep = a.ep_to(&b);
    for round in 0..10u64 {
        for n in 0..8 {
            assert_eq!(ep.am_short(1, round * 8 + n, &[]), Ok(Sent::Done));
        }
        assert_eq!(ep.am_short(1, 0, &[]), Err(Refused::NoResource));
        assert_eq!(ep.am_packet(100, |_| panic!("no room, no packing")), Err(Refused::NoResource));
        settle(&net, &mut a, &mut b);
    }
    let mut seen: Vec<u64> =
        b.log.ams.iter().map(|(_, p)| u64::from_le_bytes(p[1..9].try_into().unwrap())).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..80).collect::<Vec<_>>());
}

fn rnr_is_retried_for_ever_or_reported<N: Network>() {
    let tiny = Config { rx_queue_len: 1, rx_spare: 0, ..Config::default() };
    let endless_retry = Config::default();
    let (net, mut a, mut b) = pair_on::<N>(&endless_retry, &tiny);
    let ep = a.ep_to(&b);
    for n in 0..50 {
        assert_eq!(ep.am_short(1, n, &[]), Ok(Sent::Done));
    }
    settle(&net, &mut a, &mut b);
    assert_eq!((b.log.ams.len(), a.log.errors.len()), (50, 0));

    let no_retry = Config { rnr_retry: 0, ..Config::default() };
    let (net, mut a, mut b) = pair_on::<N>(&no_retry, &tiny);
    let ep = a.ep_to(&b);
    ep.set_tag(EpTag(77));
    for n in 0..50 {
        assert_eq!(ep.am_short(1, n, &[]), Ok(Sent::Done));
    }
    settle(&net, &mut a, &mut b);
    assert!(!a.log.errors.is_empty());
    assert!(a.log.errors.iter().all(|e| *e == (EpTag(77), Error::NotReady)));
    assert_eq!(b.log.ams.len() + a.log.errors.len(), 50, "each arrived or was reported");
}

fn returned_packets_are_whole<N: Network>() {
    let no_retry = Config { rnr_retry: 0, ..Config::default() };
    let tiny = Config { rx_queue_len: 1, rx_spare: 0, ..Config::default() };
    let (net, a, mut b) = pair_on::<N>(&no_retry, &tiny);
    let ep = a.ep_to(&b);
    ep.set_tag(EpTag(77));
    assert_eq!(ep.am_short(9, 0, &[]), Ok(Sent::Done));
    let inline = a.iface.attr().am.max_short;
    let mut sent = Vec::new();
    for len in [1, 2, 31, 32, 33, 100, inline, inline + 1, inline + 2, 1000, a.iface.attr().am.max_bcopy] {
        let packet: Vec<u8> = (0..len).map(|n| (n + len) as u8).collect();
        let pack = |slot: &mut [u8]| {
            slot[..len].copy_from_slice(&packet);
            len
        };
        // With an exact hint, and with one for which a short packet is built in the buffer.
        for hint in [len, a.iface.attr().am.max_bcopy] {
            assert_eq!(ep.am_packet(hint, pack), Ok(len));
            sent.push((EpTag(77), packet.clone(), Returned::Packet));
        }
    }
    assert_eq!(ep.am_short_iov(5, &[&[1, 2], &[3]]), Ok(Sent::Done));
    sent.push((EpTag(77), vec![5, 1, 2, 3], Returned::Packet));
    let mut back = ReturnedPackets::default();
    for _ in 0..1000 {
        a.iface.poll(64, &mut back);
        net.advance_time();
    }
    b.poll();
    assert_eq!(b.log.ams.len(), 1, "there was one receive");
    back.0.sort_by(|x, y| x.1.cmp(&y.1));
    sent.sort_by(|x: &ReturnedPacket, y| x.1.cmp(&y.1));
    assert_eq!(back.0, sent);
}

#[test]
fn flushes_wait_for_earlier_operations_under_faults() {
    let config = Config { tx_queue_len: 32, rx_queue_len: 16, ..Config::default() };
    let (fabric, mut a, mut b) = pair(FaultPlan::ROUGH, &config, &config);
    let ep = a.ep_to(&b);
    let mem = alloc(&a, 4000, 1);
    let iov = [Iov::new(mem.addr(), 4000, Some(&mem))];
    let (mut sent, mut waits) = (0u64, Vec::new());
    while sent < 2000 {
        // SAFETY: `mem` outlives the test's traffic and is not written.
        let answer = unsafe { ep.am_zcopy(1, &sent.to_le_bytes(), &iov, Comp::Token(sent)) };
        match answer {
            Ok(_) => {
                sent += 1;
                if sent % 7 == 0 {
                    let by_ep = sent % 2 == 0;
                    let token = 1 << 32 | sent;
                    let comp = Comp::Token(token);
                    let answer = if by_ep { ep.flush(comp) } else { a.iface.flush(comp) };
                    assert_eq!(answer, Ok(Sent::InProgress));
                    waits.push((token, sent));
                }
            }
            Err(e) => {
                assert_eq!(e, Refused::NoResource);
                a.poll();
                b.poll();
                fabric.advance(500);
            }
        }
    }
    settle(&fabric, &mut a, &mut b);
    let mut seen: Vec<u64> =
        b.log.ams.iter().map(|(_, p)| u64::from_le_bytes(p[1..9].try_into().unwrap())).collect();
    assert!(!seen.is_sorted(), "the link reorders");
    seen.sort_unstable();
    assert_eq!(seen, (0..2000).collect::<Vec<_>>());
    assert!(a.log.comps.iter().all(|c| c.1.is_ok()));
    assert_eq!(a.log.comps.len(), 2000 + waits.len(), "each exactly once");
    for (token, before) in waits {
        let reported = a.log.comps.iter().position(|c| c.0 == token).expect("the flush completed");
        let earlier = a.log.comps[..reported].iter().filter(|c| c.0 < before).count();
        assert_eq!(earlier as u64, before, "flush {token:#x} waited for all issued before it");
    }
}

fn a_dead_peer_is_an_error_of_each_operation<N: Network>() {
    let (net, mut a, b) = faultless_pair::<N>();
    let ep = a.ep_to(&b);
    ep.set_tag(EpTag(5));
    let mem = alloc(&a, 100, 0);
    drop(b);
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    // SAFETY: `mem` lives to the end of the test.
    let sent = unsafe { ep.am_zcopy(1, &[], &[Iov::new(mem.addr(), 100, Some(&mem))], Comp::Token(9)) };
    assert_eq!(sent, Ok(Sent::InProgress));
    assert_eq!(ep.check(Comp::Token(10)), Ok(Sent::InProgress));
    assert_eq!(ep.flush(Comp::Token(11)), Ok(Sent::InProgress));
    for _ in 0..100 {
        a.poll();
        net.advance_time();
    }
    assert_eq!(a.log.errors, [(EpTag(5), Error::PeerDead)]);
    a.log.comps.sort_by_key(|c| c.0);
    assert_eq!(a.log.comps, [(9, Err(Error::PeerDead)), (10, Err(Error::PeerDead)), (11, Ok(()))]);
}

fn sends_and_checks_to_a_closed_peer_fail<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let ep = a.ep_to(&b);
    assert_eq!(ep.check(Comp::Token(1)), Ok(Sent::InProgress));
    settle(&net, &mut a, &mut b);
    drop(b);
    assert_eq!(ep.check(Comp::Token(2)), Ok(Sent::InProgress));
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    for _ in 0..100 {
        a.poll();
        net.advance_time();
    }
    assert_eq!(a.log.comps, [(1, Ok(())), (2, Err(Error::PeerDead))]);
    assert_eq!(a.log.errors, [(EpTag(0), Error::PeerDead)]);
}

#[test]
fn a_fence_blocks_operations_until_earlier_ones_are_done() {
    let slow = FaultPlan { delay: 100_000, ..FaultPlan::NONE };
    let (fabric, mut a, mut b) = pair(slow, &Config::default(), &Config::default());
    let (first, second) = (a.ep_to(&b), a.ep_to(&b));
    assert_eq!(first.am_short(1, 1, &[]), Ok(Sent::Done));
    assert_eq!(first.fence(), Ok(Sent::Done));
    assert_eq!(first.am_short(1, 2, &[]), Err(Refused::NoResource));
    assert_eq!(second.am_short(1, 3, &[]), Ok(Sent::Done), "the other endpoint is not held");
    settle(&fabric, &mut a, &mut b);
    assert_eq!(first.am_short(1, 2, &[]), Ok(Sent::Done));
    assert_eq!(a.iface.fence(), Ok(Sent::Done));
    assert_eq!(second.am_short(1, 4, &[]), Err(Refused::NoResource));
    settle(&fabric, &mut a, &mut b);
    assert_eq!(second.am_short(1, 4, &[]), Ok(Sent::Done));
    settle(&fabric, &mut a, &mut b);
    assert_eq!(b.log.ams.len(), 4);
}

fn pending_operations_go_out_when_there_is_room<N: Network>() {
    let config = Config { tx_queue_len: 2, ..Config::default() };
    let (net, mut a, mut b) = pair_on::<N>(&config, &Config::default());
    let ep = Rc::new(a.ep_to(&b));
    assert_eq!(ep.pending_add(Box::new(|| panic!("there is room"))), Ok(PendingQueued::Busy));
    while ep.am_short(1, 100, &[]).is_ok() {}
    for n in 0..10u64 {
        let weak = Rc::downgrade(&ep);
        let op = move || match weak.upgrade().expect("the endpoint lives").am_short(1, n, &[]) {
            Ok(_) => Retry::Done,
            Err(_) => Retry::NoResource,
        };
        assert_eq!(ep.pending_add(Box::new(op)), Ok(PendingQueued::Queued));
    }
    settle(&net, &mut a, &mut b);
    assert_eq!(b.log.ams.len(), 12);
    while ep.am_short(1, 100, &[]).is_ok() {}
    let tried = Rc::new(Cell::new(false));
    let seen = tried.clone();
    let _ = ep.pending_add(Box::new(move || {
        seen.set(true);
        Retry::Done
    }));
    let mut purged = 0;
    ep.pending_purge(&mut |_| purged += 1);
    settle(&net, &mut a, &mut b);
    assert_eq!((purged, tried.get()), (1, false));
}

#[test]
fn operations_outlive_their_endpoint() {
    let slow = FaultPlan { delay: 100_000, ..FaultPlan::NONE };
    let (fabric, mut a, mut b) = pair(slow, &Config::default(), &Config::default());
    let ep = a.ep_to(&b);
    let mem = alloc(&a, 1000, 3);
    let fired = Rc::new(Cell::new(0));
    let count = fired.clone();
    let comp = Completion::new(2, move |r| {
        assert_eq!(r, Ok(()));
        count.set(count.get() + 1);
    });
    for _ in 0..2 {
        let iov = [Iov::new(mem.addr(), 1000, Some(&mem))];
        // SAFETY: `mem` lives to the end of the test.
        let sent = unsafe { ep.am_zcopy(1, &[], &iov, Comp::Handle(comp.clone())) };
        assert_eq!(sent, Ok(Sent::InProgress));
    }
    drop(ep);
    settle(&fabric, &mut a, &mut b);
    assert_eq!((fired.get(), b.log.ams.len()), (1, 2));
}

/// Random operations between three interfaces with tiny queues under faults; returns a trace.
fn random_run(seed: u64) -> Vec<u64> {
    let fabric = Fabric::new(seed, FaultPlan::ROUGH);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut random_below = move |sides: u64| rng.next_u64() % sides;
    let config = Config {
        tx_queue_len: 1 + random_below(6) as u32,
        rx_queue_len: 1 + random_below(6) as u32,
        rx_spare: random_below(4) as u32,
        atomics: false,
        user_rx_queue_len: 0,
        rnr_retry: 7,
    };
    let mut sides: Vec<Side<Simulated>> = (1..4).map(|iid| Side::open(&fabric, iid, &config)).collect();
    let eps: Vec<Vec<Ep<Simulated>>> =
        sides.iter().map(|from| sides.iter().map(|to| from.ep_to(to)).collect()).collect();
    let mems: Vec<Mem<Simulated>> = sides.iter().map(|s| alloc(s, 6000, 0)).collect();
    let mut sent = [0u64; 9];
    let mut comps = [0usize; 3];
    for n in 0..600u64 {
        let (from, to) = (random_below(3) as usize, random_below(3) as usize);
        let ep = &eps[from][to];
        let stamp = (n << 8 | from as u64).to_le_bytes();
        let ok = match random_below(5) {
            0 => ep.am_short_iov(1, &[&stamp]).is_ok(),
            1 | 2 => {
                let len = 8 + random_below(3000) as usize;
                let pack = |buf: &mut [u8]| {
                    buf[..len].fill(n as u8);
                    buf[..8].copy_from_slice(&stamp);
                    len
                };
                ep.am_bcopy(1, pack).is_ok()
            }
            3 => {
                let iov = [Iov::new(mems[from].addr(), random_below(6000) as usize, Some(&mems[from]))];
                // SAFETY: the memory lives to the end of the run and is never written.
                let answer = unsafe { ep.am_zcopy(1, &stamp, &iov, Comp::Token(n)) };
                comps[from] += usize::from(answer == Ok(Sent::InProgress));
                answer.is_ok()
            }
            _ => {
                comps[from] += usize::from(ep.flush(Comp::Token(n)) == Ok(Sent::InProgress));
                false
            }
        };
        sent[from * 3 + to] += u64::from(ok);
        sides[random_below(3) as usize].poll();
        fabric.advance(random_below(2000));
    }
    let mut quiet = 0;
    while quiet < 100 {
        let events: usize = sides.iter_mut().map(Side::poll).sum();
        quiet = if events > 0 { 0 } else { quiet + 1 };
        fabric.advance(10_000);
    }
    let mut trace = Vec::new();
    for (to, side) in sides.iter().enumerate() {
        let stamp = |p: &[u8]| u64::from_le_bytes(p[1..9].try_into().expect("8 bytes"));
        let mut stamps: Vec<u64> = side.log.ams.iter().map(|(_, p)| stamp(p)).collect();
        trace.extend(&stamps);
        stamps.sort_unstable();
        assert!(stamps.is_sorted_by(|a, b| a < b), "seed {seed}: a message came twice");
        for from in 0..3 {
            let got = stamps.iter().filter(|&&s| s & 0xff == from as u64).count() as u64;
            assert_eq!(got, sent[from * 3 + to], "seed {seed}: {from} to {to}");
        }
        assert_eq!((side.log.comps.len(), side.log.errors.len()), (comps[to], 0), "seed {seed}: side {to}");
        assert_eq!(eps[to][0].flush(Comp::None), Ok(Sent::Done), "seed {seed}: side {to}");
    }
    trace
}

#[test]
fn random_runs_lose_nothing_and_replay() {
    let traces: Vec<_> = (0..100).map(random_run).collect();
    assert_eq!(random_run(42), traces[42], "the same seed is the same run");
    assert_ne!(traces[41], traces[42]);
}

#[test]
fn a_flushed_queue_pair_gets_no_more_receives() {
    let fabric = Fabric::new(3, FaultPlan::NONE);
    let devs = [1, 2].map(|iid| fabric.open(iid, Profile::default()).unwrap());
    let open = |at: usize| Iface::open(devs[at].clone(), &Params::default()).unwrap();
    let (a, b) = (open(0), open(1));
    let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
    for n in 0..5 {
        assert_eq!(ep.am_short(1, n, &[]), Ok(Sent::Done));
    }
    devs[1].take_down();
    let mut log = Log::default();
    let mut polls = 0;
    while b.poll(16, &mut log) > 0 {
        polls += 1;
        assert!(polls < 1000, "receives are posted and come back");
    }
    assert_eq!(log.ams.len(), 5);
    assert_eq!((b.poll(16, &mut log), b.poll(16, &mut log)), (0, 0));
}
