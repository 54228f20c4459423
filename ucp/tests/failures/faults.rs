//! Four workers on a network that delays, reorders and refuses by a seed: every message arrives once, whole,
//! and in its sender's order. `UCP_SEED=n` replays a failing seed, `UCP_SEEDS=n` sets their number.

use crate::common::bytes;
use ucp::lane::Iface;
use ucp::{
    ANY_TAG, Access, Address, CloseMode, Context, Ep, EpParams, Error, Match, RecvRequest, SendRequest,
    Worker,
};
use ucs::config::Source;
use uct::efa::dev::Gid;
use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};
use uct::efa::{self, Params};

const WORKERS: usize = 4;
const MESSAGES: u64 = 60;

struct Rng(u64);

impl Rng {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % below
    }
}

/// A worker on a device of its own. The packet size is the network's.
fn worker(context: &Context, fabric: &Fabric, nth: u64, mtu: u32, rng: &mut Rng) -> Worker {
    let mut profile = Profile::small();
    profile.attr.mtu = mtu;
    let mut params = Params { connid: Some(rng.roll(1 << 30) as u32), ..Params::default() };
    params.config.tx_queue_len = [4, 16, 256][rng.roll(3) as usize];
    params.config.rx_queue_len = [8, 64, 512][rng.roll(3) as usize];
    params.config.rnr_retry = [0, 3, 7][rng.roll(3) as usize];
    let iface = efa::Iface::open(fabric.open(1 + nth, profile).unwrap(), &params).unwrap();
    context.worker_on(vec![Iface::from(iface)]).unwrap()
}

/// The exchange of one worker with everybody, itself included.
struct Side {
    worker: Worker,
    eps: Vec<Ep>,
    sent: [u64; WORKERS],
    got: [u64; WORKERS],
    sends: Vec<SendRequest<Vec<u8>>>,
    recvs: Vec<RecvRequest<Vec<u8>>>,
}

fn tag(from: usize, n: u64) -> u64 {
    (from as u64) << 32 | n
}

fn length(tag: u64, to: usize) -> usize {
    let mut rng = Rng((tag + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ to as u64);
    let spread = [10, 2000, 20_000, 200_000][rng.roll(4) as usize];
    rng.roll(spread) as usize
}

impl Side {
    /// Sends, receives and checks at random. True: nothing is left to do.
    fn act(&mut self, me: usize, rng: &mut Rng) -> bool {
        for to in 0..WORKERS {
            if self.sent[to] < MESSAGES && self.sends.len() < 20 && rng.roll(3) == 0 {
                let tag = tag(me, self.sent[to]);
                let message = bytes(tag + to as u64, length(tag, to));
                let send = match rng.roll(4) {
                    0 => self.eps[to].tag_send_sync(tag, message),
                    _ => self.eps[to].tag_send(tag, message),
                };
                self.sends.push(send);
                self.sent[to] += 1;
            }
        }
        self.sends.retain_mut(|send| !send.is_done());
        let due: u64 = self.got.iter().sum::<u64>() + self.recvs.len() as u64;
        if due < MESSAGES * WORKERS as u64 && self.recvs.len() < 8 && rng.roll(2) == 0 {
            self.recvs.push(self.worker.recv(Match::tagged(0, ANY_TAG), Vec::with_capacity(200_000)));
        }
        // A long message may complete after a short one behind it: the order of receives counts.
        while !self.recvs.is_empty() && self.recvs[0].is_done() {
            let (status, message) = self.recvs.remove(0).wait();
            let status = status.unwrap();
            let (from, n) = ((status.tag >> 32) as usize, status.tag & 0xffff_ffff);
            assert_eq!(n, self.got[from], "messages of one sender keep their order");
            assert_eq!(status.len, length(status.tag, me));
            assert!(message == bytes(status.tag + me as u64, status.len), "message {n} of {from} differs");
            self.got[from] += 1;
        }
        self.got == [MESSAGES; WORKERS] && self.sent == [MESSAGES; WORKERS] && self.sends.is_empty()
    }
}

fn exchange(seed: u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let fabric = Fabric::new(seed, FaultPlan::ROUGH);
    let context = Context::configured(Source::empty()).unwrap();
    let mtu = [1500, 4096, 8900][rng.roll(3) as usize];
    let workers: Vec<Worker> =
        (0..WORKERS).map(|nth| worker(&context, &fabric, nth as u64, mtu, &mut rng)).collect();
    let addresses: Vec<Address> = workers.iter().map(Worker::address).collect();
    let mut sides: Vec<Side> = workers
        .iter()
        .map(|worker| Side {
            worker: worker.clone(),
            eps: addresses.iter().map(|a| worker.connect(a, EpParams::default()).unwrap()).collect(),
            sent: [0; WORKERS],
            got: [0; WORKERS],
            sends: Vec::new(),
            recvs: Vec::new(),
        })
        .collect();
    let mut quiet = 0;
    loop {
        let mut done = true;
        let before: Vec<_> = sides.iter().map(|s| (s.got, s.sent)).collect();
        for (me, side) in sides.iter_mut().enumerate() {
            for _ in 0..rng.roll(4) {
                side.worker.progress();
            }
            done &= side.act(me, &mut rng);
        }
        if done {
            break;
        }
        quiet =
            if before == sides.iter().map(|s| (s.got, s.sent)).collect::<Vec<_>>() { quiet + 1 } else { 0 };
        assert!(quiet < 200_000, "nothing arrives any more");
    }
    for _ in 0..10_000 {
        for worker in &workers {
            worker.progress();
        }
    }
    for worker in &workers {
        assert_eq!((worker.diagnostics().requests(), worker.diagnostics().held_bytes()), (0, 0));
        let flush = worker.flush();
        crate::common::spin(&workers.iter().collect::<Vec<_>>(), &mut || flush.is_done());
    }
}

#[test]
fn messages_arrive_once_and_in_order() {
    let number = |key: &str| std::env::var(key).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match number("UCP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("UCP_SEEDS").unwrap_or(20),
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| exchange(seed)) {
            eprintln!("seed {seed} failed: UCP_SEED={seed} replays it");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn rnr_peer_delays_nobody_else() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let source = Source::empty().with("UCX_RNR_WAIT", "10us").with("UCX_RNR_MAX_WAIT", "200us");
    let context = Context::configured(source).unwrap();
    let [a, b, c] = [1, 2, 3].map(|nth| {
        let mut params = Params::default();
        (params.config.tx_queue_len, params.config.rx_queue_len, params.config.rx_spare) = (16, 8, 0);
        params.config.rnr_retry = 0;
        let device = fabric.open(nth, Profile::small()).unwrap();
        context.worker_on(vec![Iface::from(efa::Iface::open(device, &params).unwrap())]).unwrap()
    });
    let [ab, ac] = [&b, &c].map(|to| a.connect(&to.address(), EpParams::default()).unwrap());
    // The first peer makes no progress: eight of these find a receive, and the send queue has room for 16.
    let mut sends: Vec<_> = (0..100).map(|n| ab.tag_send(n, bytes(n, 500))).collect();
    for n in 0..200 {
        let send = ac.tag_send_sync(n, bytes(n, 5000));
        let recv = c.tag_recv(n, ucp::TAG_MASK_FULL, vec![0; 5000]);
        crate::common::spin(&[&a, &c], &mut || send.is_done() && recv.is_done());
        assert!(recv.wait().1 == bytes(n, 5000));
    }
    let stats = a.stats().rare;
    assert!(stats.not_ready > 0 && stats.sent_again > 0, "{stats:?}");
    let flush = ab.flush();
    assert!(!flush.is_done());
    for n in 0..100 {
        let recv = b.tag_recv(n, ucp::TAG_MASK_FULL, vec![0; 500]);
        crate::common::spin(&[&a, &b], &mut || recv.is_done());
        assert!(recv.wait().1 == bytes(n, 500));
    }
    crate::common::spin(&[&a, &b], &mut || flush.is_done() && sends.iter_mut().all(|send| send.is_done()));
    assert_eq!(
        (flush.wait(), a.diagnostics().held_bytes(), ab.peer_view().unwrap().fault),
        (Ok(()), 0, None)
    );
}

#[test]
fn raw_address_is_enough() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let context = Context::configured(Source::empty()).unwrap();
    let mut rng = Rng(3);
    let (a, b) = (worker(&context, &fabric, 0, 8900, &mut rng), worker(&context, &fabric, 1, 8900, &mut rng));
    let raw = b.address().efa_raw().unwrap();
    let ep = a.connect(&Address::unpack(&raw).unwrap(), EpParams::default()).unwrap();
    let recv = b.tag_recv(1, ANY_TAG, Vec::with_capacity(50_000));
    let send = ep.tag_send_sync(1, bytes(1, 50_000));
    crate::common::spin(&[&a, &b], &mut || send.is_done() && recv.is_done());
    let (status, message) = recv.wait();
    assert!(message == bytes(1, 50_000));
    // The receiver made no endpoint: it knows the sender from its packets, later under the same peer id.
    let back =
        b.connect(&Address::unpack(&a.address().efa_raw().unwrap()).unwrap(), EpParams::default()).unwrap();
    assert_eq!(status.map(|s| s.from), Ok(back.peer()));
    let view = back.peer_view().unwrap();
    assert!(view.features.is_some(), "the handshake has come");
}

#[test]
fn dead_peer_fails_pending_operations() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let context = Context::configured(Source::empty()).unwrap();
    let mut rng = Rng(3);
    let (a, b) = (worker(&context, &fabric, 0, 8900, &mut rng), worker(&context, &fabric, 1, 8900, &mut rng));
    let ep = a.connect(&b.address(), EpParams::default()).unwrap();
    let send = ep.tag_send_sync(1, bytes(1, 100_000));
    crate::common::spin(&[&a, &b], &mut || b.probe(Match::tagged(1, ANY_TAG)).is_some());
    fabric.kill(Gid::link_local(2));
    // Only the next packet notices the death.
    ep.tag_send(2, "are you there?").detach();
    crate::common::spin(&[&a], &mut || send.is_done());
    assert_eq!(send.wait().0, Err(Error::PeerGone(ep.peer())));
    assert_eq!(ep.tag_send(3, "no").wait().0, Err(Error::PeerGone(ep.peer())));
}

#[test]
fn operations_with_a_dead_peer_name_it() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let context = Context::configured(Source::empty()).unwrap();
    let mut rng = Rng(3);
    let [a, b, c] = [0, 1, 2].map(|nth| worker(&context, &fabric, nth, 8900, &mut rng));
    let (to_b, to_c) =
        (a.connect(&b.address(), EpParams::default()), a.connect(&c.address(), EpParams::default()));
    let (ep, other) = (to_b.unwrap(), to_c.unwrap());
    let mem = b.mem_alloc(100_000, Access::all()).unwrap();
    // This key uses packets, so the target has to answer.
    let rkey = ucp::Rkey::from_key(mem.key());
    let at = mem.addr();
    // After the handshake every protocol can start; then the peer stops progressing.
    let hello = ep.tag_send_sync(0, "hello");
    let heard = b.tag_recv(0, ANY_TAG, vec![0; 8]);
    crate::common::spin(&[&a, &b], &mut || heard.is_done());
    hello.wait().0.unwrap();
    let gone = Error::PeerGone(ep.peer());

    let mut sends = vec![
        ep.tag_send_sync(1, bytes(1, 10)),
        ep.tag_send_sync(2, bytes(2, 30_000)),
        ep.tag_send(3, bytes(3, 200_000)),
        ep.tag_send(4, bytes(4, 2 << 20)),
    ];
    let recv = a.recv(Match::tagged(9, ANY_TAG).from(&ep), vec![0; 100]);
    let many = || a.recv_multi(Match::tagged(10, ANY_TAG).from(&ep), vec![0; 100], 8).unwrap();
    let before = many();
    let acked = ucp::RmaParams { sync: ucp::select::DeliveryComplete::Yes, ..Default::default() };
    let put = ep.put_with(bytes(5, 100_000), at, &rkey, &acked);
    let get = ep.get(vec![0; 100_000], at, &rkey);
    let flush = ep.flush();
    let all = a.flush_within(std::time::Duration::from_secs(30));
    fabric.kill(Gid::link_local(2));
    ep.tag_send(7, "are you there?").detach();
    crate::common::spin(&[&a], &mut || {
        sends.iter_mut().all(|send| send.is_done())
            && recv.is_done()
            && before.is_done()
            && put.is_done()
            && get.is_done()
            && flush.is_done()
            && all.is_done()
    });
    for send in sends {
        assert_eq!(send.wait().0, Err(gone));
    }
    assert_eq!((recv.wait().0, put.wait().0, get.wait().0.map(drop)), (Err(gone), Err(gone), Err(gone)));
    assert_eq!((flush.wait(), all.wait()), (Err(gone), Err(gone)), "nothing else is left to flush");
    assert_eq!(before.finish().0, Err(gone));
    let after = many();
    crate::common::spin(&[&a], &mut || after.is_done());
    assert_eq!(after.finish().0, Err(gone), "nothing of it can come");
    // From here on no operation starts.
    assert_eq!(ep.tag_send(8, "no").wait().0, Err(gone));
    assert_eq!(ep.put(vec![1], at, &rkey).wait().0, Err(gone));
    assert_eq!(ep.flush().wait(), Err(gone));
    assert_eq!(ep.close(CloseMode::Flush(std::time::Duration::from_secs(30))).wait(), Err(gone));
    let sent = other.tag_send_sync(1, bytes(1, 50_000));
    let heard = c.tag_recv(1, ANY_TAG, vec![0; 50_000]);
    crate::common::spin(&[&a, &c], &mut || heard.is_done());
    sent.wait().0.unwrap();
    assert_eq!(a.diagnostics().requests(), 0);
    drop(mem);
}

#[test]
fn flush_timeout_ends_only_the_flush() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let context = Context::configured(Source::empty()).unwrap();
    let mut rng = Rng(3);
    let [a, b] = [0, 1].map(|nth| worker(&context, &fabric, nth, 8900, &mut rng));
    let ep = a.connect(&b.address(), EpParams::default()).unwrap();
    let send = ep.tag_send_sync(1, bytes(1, 100_000));
    for (flush, of) in [
        (ep.flush_within(std::time::Duration::from_millis(5)), Some(ep.peer())),
        (a.flush_within(std::time::Duration::from_millis(5)), None),
    ] {
        crate::common::spin(&[&a], &mut || flush.is_done());
        assert_eq!(flush.wait(), Err(Error::TimedOut(of)));
    }
    let recv = b.tag_recv(1, ANY_TAG, vec![0; 100_000]);
    crate::common::spin(&[&a, &b], &mut || recv.is_done() && send.is_done());
    assert_eq!(send.wait().0, Ok(()));
}

#[test]
fn late_flush_does_not_end_a_later_close() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let context = Context::configured(Source::empty()).unwrap();
    let mut rng = Rng(3);
    let [a, b] = [0, 1].map(|nth| worker(&context, &fabric, nth, 8900, &mut rng));
    let ep = a.connect(&b.address(), EpParams::default()).unwrap();
    let send = ep.tag_send_sync(1, bytes(1, 100_000));
    let (peer, flush) = (ep.peer(), ep.flush_within(std::time::Duration::from_millis(5)));
    let close = ep.close(CloseMode::Flush(std::time::Duration::from_secs(600)));
    crate::common::spin(&[&a], &mut || flush.is_done());
    assert_eq!(flush.wait(), Err(Error::TimedOut(Some(peer))));
    let recv = b.tag_recv(1, ANY_TAG, vec![0; 100_000]);
    crate::common::spin(&[&a, &b], &mut || recv.is_done() && send.is_done() && close.is_done());
    assert_eq!((send.wait().0, close.wait()), (Ok(()), Ok(())));
}

#[test]
fn close_ends_within_its_timeout() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let context = Context::configured(Source::empty()).unwrap();
    let mut rng = Rng(3);
    let (a, b) = (worker(&context, &fabric, 0, 8900, &mut rng), worker(&context, &fabric, 1, 8900, &mut rng));
    let ep = a.connect(&b.address(), EpParams::default()).unwrap();
    // The peer never makes progress, so it never receives this.
    let send = ep.tag_send_sync(1, bytes(1, 100_000));
    let (peer, close) = (ep.peer(), ep.close(CloseMode::Flush(std::time::Duration::from_millis(20))));
    crate::common::spin(&[&a], &mut || close.is_done() && send.is_done());
    assert!(send.wait().0.is_err());
    assert_eq!(close.wait(), Err(Error::TimedOut(Some(peer))));
    assert_eq!(a.diagnostics().requests(), 0);
    // A forced close waits for nothing.
    let ep = b.connect(&a.address(), EpParams::default()).unwrap();
    let send = ep.tag_send_sync(1, bytes(1, 100_000));
    let close = ep.close(CloseMode::Force);
    assert!(close.is_done());
    crate::common::spin(&[&b], &mut || send.is_done());
    assert!(send.wait().0.is_err());
}

#[test]
fn unsuitable_interfaces_are_rejected() {
    let context = Context::configured(Source::empty()).unwrap();
    let error = context.worker_on(Vec::new()).unwrap_err();
    assert!(error.to_string().contains("1 to 255 interfaces"), "{error}");
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let worker = worker(&context, &fabric, 0, 8900, &mut Rng(3));
    assert_eq!(worker.ifaces().len(), 1);
    let posix = crate::common::context("posix").worker().unwrap();
    let error = posix.connect(&worker.address(), EpParams::default()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "no transport in common: the peer has efa; this worker has posix (see UCX_TLS)"
    );
}
