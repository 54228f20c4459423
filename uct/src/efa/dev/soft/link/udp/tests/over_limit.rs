//! A peer that asks and asks, and acknowledges nothing.

use super::super::head::{OpHead, op};
use super::*;
use std::net::SocketAddr;
use usnic::addr::Node;
use usnic::{CloseReason, Config, EpId, Head, Module, NoSource, Sink};

/// The engine of the peer, and a socket.
struct OverLimitPeer {
    udp: UdpSocket,
    module: Module,
    opened: Instant,
    ep: EpId,
    to: SocketAddr,
    heard: Heard,
}

#[derive(Default)]
struct Heard {
    dead: bool,
    frags: usize,
}

impl Sink for Heard {
    fn on_accept(&mut self, _: EpId, _: u64) {}
    fn on_dead(&mut self, _: EpId, _: u64, _: CloseReason) {
        self.dead = true;
    }
    fn on_frag(&mut self, _: EpId, _: &Head, _: &[u8]) {
        self.frags += 1;
    }
    fn on_first_chunk(&mut self, _: EpId, _: &Head, _: u32) -> Option<u64> {
        None
    }
    fn on_chunk(&mut self, _: u64, _: u32, _: &[u8]) {}
    fn on_last_chunk(&mut self, _: EpId, _: u64, _: &Head, _: bool) {}
}

impl OverLimitPeer {
    fn new(to: u64) -> OverLimitPeer {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_nonblocking(true).unwrap();
        let node = Node::new(0, udp.local_addr().unwrap()).as_u64();
        let mut module = Module::new(Config { node, min_rto: 100_000_000, ..Config::default() }, 0);
        let ep = module.connect(0, to).unwrap();
        let to = super::super::node_of(to).unwrap().socket_addr_v4().unwrap().into();
        OverLimitPeer { udp, module, opened: Instant::now(), ep, to, heard: Heard::default() }
    }

    /// Sends what there is to send, without acknowledgements, and takes what has come.
    fn turn(&mut self) {
        let now = self.opened.elapsed().as_nanos() as u64;
        let mut bytes = vec![0; 1 << 16];
        while let Ok((len, _)) = self.udp.recv_from(&mut bytes) {
            let _ = self.module.on_datagram(now, &bytes[..len], &mut self.heard);
        }
        self.module.on_time(now, &mut self.heard);
        while let Some(posted) = self.module.poll_send(now, &mut NoSource) {
            let mut bytes = self.module.bytes(&posted).to_vec();
            self.module.completed(&posted);
            // Behind version, type and flags: two names, number, acknowledgement.
            let kind = bytes[1];
            if kind == 1 {
                bytes[16..20].copy_from_slice(&FIRST_ACK.to_le_bytes());
                usnic::seal(&mut bytes);
            }
            if kind != 3 {
                let _ = self.udp.send_to(&bytes, self.to);
            }
        }
    }

    fn ask(&mut self, head: &OpHead) {
        let now = self.opened.elapsed().as_nanos() as u64;
        let Ok(posted) = self.module.send(now, self.ep, &head.bytes(), [&[], &[]]) else { return };
        if let Some(posted) = posted {
            let mut bytes = self.module.bytes(&posted).to_vec();
            self.module.completed(&posted);
            bytes[16..20].copy_from_slice(&FIRST_ACK.to_le_bytes());
            usnic::seal(&mut bytes);
            let _ = self.udp.send_to(&bytes, self.to);
        }
    }
}

/// The number before the first one of a device with this seed, whose upper half is the first.
const SEED: &str = "42949672960001";
const FIRST_ACK: u32 = 9999;

/// Replies to such a peer are bounded, and then its connection is closed. Others are served meanwhile.
#[test]
fn a_peer_that_acknowledges_nothing_is_left() {
    // A NIC that no other test has.
    let seed = [("SOFTEFA_SEED", SEED), ("SOFTEFA_UDP_TIMEOUT", "90s")];
    let a = Side::open("softefa0", &[], QpKind::Srd);
    let b = Side::open("softefa1", &seed, QpKind::Srd);
    let udp = b.dev.link().udp().unwrap();
    let iid = b.dev.gid().iid();
    let mut read = OpHead::new(op::READ, 1);
    read.dst_qpn.set(b.qp.qpn());
    read.qkey.set(QKEY);
    read.rkey.set(b.mr.rkey());
    read.raddr.set(b.mr.addr() as u64);
    read.arg.set(1000);
    for head in [OpHead::new(99, 1), read] {
        udp.0.nic().state.max_responses = 20_000;
        let mut peer_over_limit = OverLimitPeer::new(iid);
        let (start, mut asked, mut most) = (Instant::now(), 0u64, 0);
        while !peer_over_limit.heard.dead {
            assert!(start.elapsed() < 4 * PATIENCE, "{asked} asked, {:?}", udp.stats());
            if peer_over_limit.module.is_open(peer_over_limit.ep) && peer_over_limit.module.segments().0 < 500
            {
                (0..100).for_each(|_| peer_over_limit.ask(&head));
                asked += 100;
            }
            peer_over_limit.turn();
            drop(b.poll());
            most = most.max(udp.0.nic().module.segments().0);
        }
        assert!(asked >= 20_000, "{asked}");
        let window = udp.0.nic().module.config().window as usize;
        assert!(most <= window + 1024, "{most} segments");
        assert!(!udp.0.nic().state.peers.values().any(|peer| !peer.responses.is_empty()));
        exchange_one(&a, &b);
    }
    let nic = udp.0.nic();
    assert_eq!((nic.state.services.iter().count(), nic.module.segments().0 < 20), (0, true));
}
