//! Two devices with a network between them that translates addresses, as at the edge of a private network.

use super::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// Passes datagrams on between a public address and a device behind it, which sees peers at an address of the
/// network's own.
struct Translator {
    public: SocketAddr,
    rebinds: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<u32>>,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

impl Translator {
    fn start(device: SocketAddr) -> Translator {
        let outside = socket();
        let public = outside.local_addr().unwrap();
        let (rebinds, ends) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (told, ended) = (rebinds.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let (mut inside, mut peer, mut times) = (socket(), None, 0);
            let mut bytes = vec![0; 1 << 16];
            while !ended.load(Relaxed) {
                if told.swap(false, Relaxed) {
                    (inside, times) = (socket(), times + 1);
                }
                if let Ok((len, from)) = outside.recv_from(&mut bytes) {
                    peer = Some(from);
                    let _ = inside.send_to(&bytes[..len], device);
                } else if let (Ok((len, from)), Some(peer)) = (inside.recv_from(&mut bytes), peer) {
                    assert_eq!(from, device);
                    let _ = outside.send_to(&bytes[..len], peer);
                } else {
                    std::thread::yield_now();
                }
            }
            times
        });
        Translator { public, rebinds, ends, thread: Some(thread) }
    }
}

impl Drop for Translator {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A port that nobody has at the moment.
fn free_port() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_device_behind_a_translating_network_is_reached_and_answers() {
    let secret = SecretFile::new("a secret for the translated");
    let device = free_port();
    let network = Translator::start(device);
    let common = [("SOFTEFA_SECRET_FILE", secret.path()), ("SOFTEFA_UDP_MTU", "1500")];
    let (port, public) = (device.port().to_string(), network.public.to_string());
    let mut inner = common.to_vec();
    inner.extend([("SOFTEFA_UDP_PORTS", &*port), ("SOFTEFA_UDP_ADDRESS", &*public)]);
    let a = Side::open("softefa0", &common, QpKind::Srd);
    let b = Side::open("softefa1", &inner, QpKind::Srd);
    let named = super::super::node_of(b.dev.gid().iid()).unwrap();
    assert_eq!(named.socket_addr_v4().map(SocketAddr::V4), Some(network.public));
    for round in 0..4 {
        let len = 5000 + 1000 * round;
        for (from, at) in [(&a, &b), (&b, &a)] {
            at.qp.recv(77, at.sge(0, len)).unwrap();
            from.fill(20_000, len, round as u8);
            from.qp.send(&from.to(at), 5, &[from.sge(20_000, len)], None).unwrap();
            let (sent, got) = wait(from, at, 1);
            assert_eq!(
                (sent.status, got[0].status, got[0].len as usize),
                (DevStatus::Ok, DevStatus::Ok, len)
            );
            at.check(0, len, round as u8);
        }
        // The network forgets, and gives the peer another address.
        network.rebinds.store(true, Relaxed);
    }
    assert!(counter(&b, "datagrams received") > 0);
}

#[test]
fn without_a_secret_nobody_is_believed_at_another_address() {
    let device = free_port();
    let network = Translator::start(device);
    let (port, public) = (device.port().to_string(), network.public.to_string());
    let inner = [("SOFTEFA_UDP_PORTS", &*port), ("SOFTEFA_UDP_ADDRESS", &*public)];
    let a = Side::open("softefa0", &[("SOFTEFA_SEED", "77")], QpKind::Srd);
    let b = Side::open("softefa1", &inner, QpKind::Srd);
    b.qp.recv(1, b.sge(0, 8)).unwrap();
    a.qp.send_inline(&a.to(&b), 1, b"x", None).unwrap();
    assert_eq!(status(&a, &b), DevStatus::Unreachable);
    assert!(b.dev.link().udp().unwrap().stats().1 > 0);
}

/// A host with several addresses: datagrams leave from the one that peers are told. Without a secret they are
/// believed from nowhere else.
#[test]
fn a_device_listens_at_the_own_address_that_it_tells() {
    let a = Side::open("softefa0", &[], QpKind::Srd);
    let b = Side::open("softefa1", &[("SOFTEFA_UDP_ADDRESS", "127.0.0.2")], QpKind::Srd);
    let named = super::super::node_of(b.dev.gid().iid()).unwrap().socket_addr_v4().unwrap();
    assert_eq!(named.ip().to_string(), "127.0.0.2");
    exchange_one(&a, &b);
    exchange_one(&b, &a);
}
