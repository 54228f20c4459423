//! Two modules over UDP sockets of the loopback interface, a thread each: a socket per flow, and a sender
//! that loses, repeats and swaps datagrams. The shape of an owner: datagrams first, then timers, then sends.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use usnic::{ChannelId, CloseReason, Config, EpId, HEAD, Head, Module, Posted, Sink, Source, Stats};

const FLOWS: usize = 3;
const MESSAGES: u64 = 3_000;

fn byte(id: u64, at: usize) -> u8 {
    (id.wrapping_mul(131) as usize).wrapping_add(at.wrapping_mul(7)) as u8
}

fn len(id: u64) -> usize {
    match id % 10 {
        0..=4 => (id * 37 % 700) as usize,
        5..=7 => (id * 137 % 8_000) as usize,
        _ => 1 + (id * 1_379 % 60_000) as usize,
    }
}

fn head(id: u64) -> Head {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&id.to_le_bytes());
    head
}

fn id(head: &Head) -> u64 {
    u64::from_le_bytes(head[..8].try_into().unwrap())
}

#[derive(Default)]
struct Received {
    done: Vec<bool>,
    count: u64,
    partly: HashMap<u64, Vec<u8>>,
}

impl Received {
    fn check(&mut self, id: u64, bytes: &[u8]) {
        assert_eq!(bytes.len(), len(id), "message {id}");
        assert!(bytes.iter().enumerate().all(|(at, b)| *b == byte(id, at)), "message {id}");
        assert!(!std::mem::replace(&mut self.done[id as usize], true), "message {id} twice");
        self.count += 1;
    }
}

impl Sink for Received {
    fn on_accept(&mut self, _: EpId, _: u64) {}
    fn on_dead(&mut self, _: EpId, node: u64, why: CloseReason) {
        panic!("node {node}: {why:?}");
    }
    fn on_frag(&mut self, _: EpId, head: &Head, payload: &[u8]) {
        self.check(id(head), payload);
    }
    fn on_first_chunk(&mut self, _: EpId, head: &Head, total: u32) -> Option<u64> {
        self.partly.insert(id(head), vec![0; total as usize]);
        Some(id(head))
    }
    fn on_chunk(&mut self, target: u64, offset: u32, bytes: &[u8]) {
        let to = self.partly.get_mut(&target).expect("a message that has begun");
        to[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn on_last_chunk(&mut self, _: EpId, target: u64, _: &Head, whole: bool) {
        assert!(whole);
        let bytes = self.partly.remove(&target).expect("a message that has begun");
        self.check(target, &bytes);
    }
}

struct Pattern;

impl Source for Pattern {
    fn fetch(&mut self, id: u64, offset: u32, to: &mut [u8]) -> bool {
        to.iter_mut().enumerate().for_each(|(n, b)| *b = byte(id, offset as usize + n));
        true
    }
    fn on_copied(&mut self, _: u64) {}
}

/// Sockets of a node: the priority channel, then the flows of the data channel.
struct Sockets {
    own: Vec<UdpSocket>,
    peer: Vec<SocketAddr>,
    rng: ChaCha8Rng,
    /// A datagram that the next one overtakes.
    late: Option<(usize, Vec<u8>)>,
}

impl Sockets {
    fn transmit(&mut self, module: &mut Module, posted: Posted) {
        let way = match posted.channel {
            ChannelId::Priority => 0,
            ChannelId::Data => 1 + usize::from(posted.flow),
        };
        let put = |way: usize, bytes: &[u8]| _ = self.own[way].send_to(bytes, self.peer[way]);
        match self.rng.next_u32() % 100 {
            0..=2 => {}
            3 => (0..2).for_each(|_| put(way, module.bytes(&posted))),
            4..=8 if self.late.is_none() => self.late = Some((way, module.bytes(&posted).to_vec())),
            _ => {
                put(way, module.bytes(&posted));
                if let Some((way, bytes)) = self.late.take() {
                    put(way, &bytes);
                }
            }
        }
        module.completed(&posted);
    }
}

fn run(node: u64, mut sockets: Sockets, born: Instant, finished: &AtomicUsize) -> Stats {
    let config = Config { node, flows: FLOWS as u8, ..Config::default() };
    let now = || born.elapsed().as_nanos() as u64;
    let mut module = Module::new(config, now());
    let mut received = Received { done: vec![false; MESSAGES as usize], ..Received::default() };
    let ep = module.connect(now(), 1 - node).expect("room for a peer");
    let (mut next, mut told, mut buf) = (0, false, [0; 2048]);
    while finished.load(SeqCst) < 2 {
        assert!(born.elapsed() < Duration::from_secs(60), "{} arrived: {:?}", received.count, module.stats());
        let (mut idle, mut first) = (true, true);
        for way in 0..sockets.own.len() {
            while let Ok((n, _)) = sockets.own[way].recv_from(&mut buf) {
                idle = false;
                let fast = way == 0 && std::mem::take(&mut first);
                if !(fast && module.recv_fast(now(), &buf[..n], &mut received)) {
                    let reset = module.on_datagram(now(), &buf[..n], &mut received);
                    assert!(reset.is_none());
                }
            }
        }
        module.on_time(now(), &mut received);
        // A few at a time, so that they meet acknowledgements.
        let batch = next..MESSAGES.min(next + 8);
        next = batch.end;
        for id in batch {
            let bytes: Vec<u8> = (0..len(id)).map(|at| byte(id, at)).collect();
            if bytes.len() > module.longest_small(ep) {
                module.send_large(now(), ep, &head(id), bytes.len() as u32, id).unwrap();
            } else if let Some(posted) = module.send(now(), ep, &head(id), [&bytes, &[]]).unwrap() {
                sockets.transmit(&mut module, posted);
            }
        }
        while let Some(posted) = module.poll_send(now(), &mut Pattern) {
            idle = false;
            sockets.transmit(&mut module, posted);
        }
        if !told && received.count == MESSAGES && next == MESSAGES && module.segments().0 == 0 {
            told = true;
            finished.fetch_add(1, SeqCst);
        }
        if idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    *module.stats()
}

#[test]
fn messages_over_a_lossy_loopback_arrive_once_and_whole() {
    let bind = || {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket of the loopback interface");
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let own: Vec<Vec<UdpSocket>> = (0..2).map(|_| (0..=FLOWS).map(|_| bind()).collect()).collect();
    let addresses: Vec<Vec<SocketAddr>> =
        own.iter().map(|all| all.iter().map(|s| s.local_addr().unwrap()).collect()).collect();
    let (born, finished) = (Instant::now(), AtomicUsize::new(0));
    let stats: Vec<Stats> = std::thread::scope(|scope| {
        let threads: Vec<_> = own
            .into_iter()
            .zip(0u64..)
            .map(|(own, node)| {
                let peer = addresses[1 - node as usize].clone();
                let rng = ChaCha8Rng::seed_from_u64(node);
                let (sockets, finished) = (Sockets { own, peer, rng, late: None }, &finished);
                scope.spawn(move || run(node, sockets, born, finished))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no message was lost or doubled")).collect()
    });
    for stats in &stats {
        assert!(stats.resent_by_timer + stats.resent_by_time > 50, "{stats:?}");
        assert_eq!((stats.violations, stats.malformed, stats.corrupt), (0, 0, 0), "{stats:?}");
    }
    println!("{} messages each way in {:?}: {stats:?}", MESSAGES, born.elapsed());
}
