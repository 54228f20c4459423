//! Several flows per peer, over a network with a path for each, and over paths that drop long datagrams.

use super::*;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;

/// Delay of each path over the one before it.
const LONGER: Duration = Duration::from_micros(300);
/// Bytes of the longest datagram once a network has become narrow.
const NARROW: usize = 1300;

/// Network between a device and its peer: each port that one of them sends from takes a path of its own, and
/// comes out of a port of the network's.
pub(super) struct Network {
    public: SocketAddr,
    ends: Arc<AtomicBool>,
    /// Datagrams to ports that nothing is to be sent to.
    strays: Arc<AtomicU64>,
    /// Longer datagrams than [`NARROW`] that it still passes on.
    left: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// Paths in one direction.
#[derive(Default)]
struct Paths {
    /// Port that datagrams come from, and socket that they come out of.
    all: Vec<(SocketAddr, UdpSocket)>,
    /// Datagrams in flight.
    late: VecDeque<(Instant, usize, Vec<u8>)>,
}

impl Paths {
    fn take(&mut self, from: SocketAddr, bytes: &[u8]) {
        let path = self.all.iter().position(|(of, _)| *of == from).unwrap_or_else(|| {
            self.all.push((from, socket()));
            self.all.len() - 1
        });
        self.late.push_back((Instant::now() + LONGER * path as u32, path, bytes.to_vec()));
    }

    fn pass_on(&mut self, to: SocketAddr, first: Option<&UdpSocket>) {
        let now = Instant::now();
        for _ in 0..self.late.len() {
            let Some((due, path, bytes)) = self.late.pop_front() else { break };
            if due > now {
                self.late.push_back((due, path, bytes));
            } else {
                let _ = first.filter(|_| path == 0).unwrap_or(&self.all[path].1).send_to(&bytes, to);
            }
        }
    }

    /// Datagrams that have come to a path from its end; the first path is left out.
    fn strays(&self) -> u64 {
        let mut byte = [0; 1];
        self.all.iter().skip(1).filter(|(_, socket)| socket.recv_from(&mut byte).is_ok()).count() as u64
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

impl Network {
    /// Begins to pass datagrams of up to `longest` bytes on.
    fn start(device: SocketAddr, longest: usize) -> Network {
        let outside = socket();
        let public = outside.local_addr().unwrap();
        let (ends, strays) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let (ended, counted, until) = (ends.clone(), strays.clone(), left.clone());
        let thread = std::thread::spawn(move || {
            let (mut there, mut back) = (Paths::default(), Paths::default());
            let mut bytes = vec![0; 1 << 16];
            let is_left = || until.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
            let passes = |len: usize| len <= longest && (len <= NARROW || is_left());
            while !ended.load(Relaxed) {
                while let Ok((len, from)) = outside.recv_from(&mut bytes) {
                    if passes(len) {
                        there.take(from, &bytes[..len]);
                    }
                }
                there.pass_on(device, None);
                if let Some((peer, inside)) = there.all.first() {
                    while let Ok((len, from)) = inside.recv_from(&mut bytes) {
                        if passes(len) {
                            back.take(from, &bytes[..len]);
                        }
                    }
                    back.pass_on(*peer, Some(&outside));
                }
                counted.fetch_add(there.strays() + back.strays(), Relaxed);
                std::thread::yield_now();
            }
        });
        Network { public, ends, strays, left, thread: Some(thread) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Two devices with a network of that kind in between.
pub(super) fn pair_over(name: &str, longest: usize, more: &[(&str, &str)]) -> (Network, Side, Side) {
    let secret = SecretFile::new(name);
    let device = socket().local_addr().unwrap();
    let network = Network::start(device, longest);
    let mut common = vec![("SOFTEFA_SECRET_FILE", secret.path()), ("SOFTEFA_UDP_MTU", "1500")];
    common.extend_from_slice(more);
    let (port, public) = (device.port().to_string(), network.public.to_string());
    let mut inner = common.clone();
    inner.extend([("SOFTEFA_UDP_PORTS", &*port), ("SOFTEFA_UDP_ADDRESS", &*public)]);
    let a = Side::open("softefa0", &common, QpKind::Srd);
    let b = Side::open("softefa1", &inner, QpKind::Srd);
    (network, a, b)
}

/// Moves bytes both directions, by messages and by RDMA.
pub(super) fn exchange(a: &Side, b: &Side) {
    for (salt, len) in [8, 8928, 1000, 5000].into_iter().enumerate() {
        for (from, at) in [(a, b), (b, a)] {
            at.qp.recv(77, at.sge(0, len)).unwrap();
            from.fill(20_000, len, salt as u8);
            from.qp.send(&from.to(at), 5, &[from.sge(20_000, len)], None).unwrap();
            let (sent, got) = wait(from, at, 1);
            let done = (sent.status, got[0].status, got[0].len as usize);
            assert_eq!(done, (DevStatus::Ok, DevStatus::Ok, len));
            at.check(0, len, salt as u8);
        }
    }
    for (from, at) in [(a, b), (b, a)] {
        let (to, _back) = (from.to(at), at.to(from));
        from.fill(0, 1 << 20, 7);
        from.qp
            .write(&to, 2, from.sge(0, 1 << 20), at.mr.addr() as u64 + (1 << 20), at.mr.rkey(), None)
            .unwrap();
        assert_eq!(status(from, at), DevStatus::Ok);
        at.check(1 << 20, 1 << 20, 7);
    }
}

#[test]
fn flows_overtake_each_other_and_nothing_is_lost_or_sent_astray() {
    let (network, a, b) = pair_over("a-secret-of-four-paths", usize::MAX, &[("SOFTEFA_UDP_FLOWS", "4")]);
    exchange(&a, &b);
    for side in [&a, &b] {
        let (stats, refused) = side.dev.link().udp().unwrap().stats();
        // A machine that pauses lets them arrive in order after it.
        assert!(stats.received_early > 0, "four paths of different length reorder: {stats:?}");
        assert_eq!((refused, stats.deaths, stats.short_paths), (0, 0, 0), "{stats:?}");
    }
    assert_eq!(network.strays.load(Relaxed), 0, "only the first flow's port is sent to");
}

#[test]
fn a_peer_with_one_flow_gets_one() {
    let (a, b) = (
        Side::open("softefa0", &[("SOFTEFA_UDP_FLOWS", "3"), ("SOFTEFA_UDP_MTU", "1500")], QpKind::Srd),
        Side::open("softefa1", &[("SOFTEFA_UDP_MTU", "1500")], QpKind::Srd),
    );
    exchange(&a, &b);
    for side in [&a, &b] {
        assert_eq!(counter(side, "refused"), 0);
        assert_eq!(counter(side, "other flows"), 0);
    }
}

#[test]
fn flows_need_no_secret() {
    for more in [
        &[("SOFTEFA_UDP_FLOWS", "4"), ("SOFTEFA_UDP_MTU", "1500")][..],
        &[("SOFTEFA_UDP_FLOWS", "8"), ("SOFTEFA_UDP_LOSS", "0.02")],
    ] {
        let (a, b) = pair(more);
        exchange(&a, &b);
        assert_eq!((counter(&a, "refused"), counter(&b, "refused")), (0, 0));
        assert!(counter(&a, "other flows") > 0 && counter(&b, "other flows") > 0, "{more:?}");
        exchange_rdma(more);
    }
}

/// A route changes while segments of full length are in flight: they go in pieces, and no request fails.
#[test]
fn requests_survive_a_way_that_becomes_short() {
    let (network, a, b) = pair_over("a-secret-of-a-path-that-narrows", usize::MAX, &[]);
    exchange(&a, &b);
    b.fill(0, 2 << 20, 9);
    let (to, _back) = (a.to(&b), b.to(&a));
    network.left.store(300, Relaxed);
    a.qp.read(&to, 1, a.sge(0, 2 << 20), b.mr.addr() as u64, b.mr.rkey()).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Ok);
    a.check(0, 2 << 20, 9);
    assert!(counter(&b, "resent_in_pieces") > 0 && counter(&b, "short_paths") == 1);
    exchange(&a, &b);
    assert_eq!((counter(&a, "deaths"), counter(&b, "deaths")), (0, 0));
}

#[test]
fn datagrams_fit_paths_that_drop_long_ones() {
    let (_network, a, b) = pair_over("a-secret-of-a-short-path", 1300, &[]);
    let start = Instant::now();
    exchange(&a, &b);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    for (side, times) in [(&a, 1), (&b, 1)] {
        let start = Instant::now();
        while counter(side, "short_paths") < times {
            drop((a.poll(), b.poll()));
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(counter(side, "deaths"), 0);
    }
}
