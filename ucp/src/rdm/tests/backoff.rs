//! Receivers that are not ready: growing retry intervals, and no effect on other peers.

use std::time::Duration;

use crate::rdm::ids::PeerId;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::PeerError;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::PktType;

const FIRST: Duration = Duration::from_micros(100);
const MOST: Duration = Duration::from_millis(5);

fn net(burst: u32) -> (Net, PeerId, PeerId) {
    let retry = crate::rdm::RetryPolicy { first_delay: FIRST, max_delay: MOST };
    let cfg = EngineConfig { burst, retry, ..EngineConfig::default() };
    let mut net = Net::with(3, 1, NetConfig::RELIABLE, cfg);
    let (no_receives, open) = (net.peer(0, 1), net.peer(0, 2));
    net.nodes[1].no_receives = true;
    (net, no_receives, open)
}

fn land(net: &mut Net) {
    while net.deliver_one() {}
}

fn rare(net: &Net) -> crate::rdm::stats::Rare {
    net.nodes[0].engine.peers().stats().rare
}

// [M10.5]
#[test]
fn returned_packet_is_retried_with_growing_delay() {
    let (mut net, no_receives, _) = net(16);
    assert_eq!(net.send(0, no_receives, b"x", Some(1), Protocol::Eager), Started::Done(()));
    land(&mut net);
    assert_eq!(rare(&net).not_ready, 1);
    assert!(!net.nodes[0].engine.is_flushed(Some(no_receives)) && !net.nodes[0].engine.is_flushed(None));
    assert!(net.nodes[0].engine.pending().is_backed_off(net.nodes[0].engine.peers(), Some(no_receives)));
    let mut tries = Vec::new();
    for _ in 0..9 {
        let before = net.now;
        assert!(net.wait());
        tries.push(net.now.since(before));
        assert_eq!(net.resume(0), 1);
        assert_eq!(
            net.nodes[0].engine.pending().next_deadline(net.nodes[0].engine.peers(),),
            None,
            "the try has to be decided first"
        );
        assert_eq!(net.resume(0), 0, "one try at a time");
        land(&mut net);
    }
    assert!(tries[0].is_zero(), "the first try is made at once: {tries:?}");
    let grows = [1, 2, 4, 8, 16, 32, 50, 50].map(|n| FIRST * n);
    let near = |a: Duration, b: Duration| a <= b && b - a < Duration::from_micros(20);
    assert!(tries[1..].iter().zip(grows).all(|(&waited, wait)| near(waited, wait)), "{tries:?}");

    net.nodes[1].no_receives = false;
    let mut room = [0; 1];
    net.recv(1, &mut room, exact(1), 0);
    net.settle();
    assert_eq!((net.events(1).len(), room[0]), (1, b'x'));
    assert!(net.nodes[0].engine.is_flushed(None));
    assert_eq!((rare(&net).not_ready, rare(&net).sent_again), (10, 10));
    net.nodes[1].no_receives = true;
    net.send(0, no_receives, b"y", Some(2), Protocol::Eager);
    land(&mut net);
    assert_eq!(net.nodes[0].engine.pending().next_deadline(net.nodes[0].engine.peers(),), Some(net.now));
}

// [M10.5]
#[test]
fn unready_peer_gets_no_new_packets_and_others_continue() {
    let (mut net, no_receives, open) = net(16);
    net.send(0, no_receives, b"x", Some(1), Protocol::Eager);
    land(&mut net);
    for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
        let buf = send_buf(b"later");
        let args = SendArgs { buf, tag: Some(2), sync, cq_data: None, protocol: Protocol::Eager, user: 7 };
        assert!(matches!(net.send_args(0, no_receives, args), Started::Pending(_)));
    }
    for n in 0..200 {
        assert_eq!(net.send(0, open, b"go", Some(n), Protocol::Eager), Started::Done(()));
        net.resume(0);
        assert!(net.sent_packets.iter().filter(|f| f.to == 1).count() <= 1, "only what came back");
        land(&mut net);
    }
    assert_eq!(net.nodes[2].engine.peers().stats().rare.unexpected, 200);
    net.nodes[1].no_receives = false;
    net.settle();
    assert_eq!(net.nodes[1].engine.peers().stats().rare.unexpected, 3);
    let mut rooms = [[0; 8]; 3];
    let lens: Vec<usize> = rooms
        .iter_mut()
        .map(|room| match net.recv(1, room, ANY, 0) {
            Started::Done(status) => status.len,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lens, [1, 5, 5]);
}

#[test]
fn returned_packets_are_retried_in_bursts() {
    let (mut net, no_receives, _) = net(4);
    for n in 0..100 {
        net.send(0, no_receives, &message_bytes(n, 64), Some(n), Protocol::Eager);
    }
    land(&mut net);
    assert_eq!(rare(&net).not_ready, 100);
    for _ in 0..5 {
        net.wait();
        assert_eq!(net.resume(0), 4);
        assert_eq!(net.sent_packets.len(), 4);
        land(&mut net);
    }
    net.nodes[1].no_receives = false;
    net.settle();
    assert_eq!(net.nodes[1].engine.peers().stats().rare.unexpected, 100);
    for n in 0..100 {
        let mut room = [0; 64];
        assert!(matches!(net.recv(1, &mut room, exact(n), 0), Started::Done(_)));
        assert_eq!(&room[..], &message_bytes(n, 64)[..]);
    }
    assert_eq!(net.nodes[0].engine.pending().held_bytes(), 0);
}

#[test]
fn returned_control_packets_are_retried() {
    for (protocol, len) in
        [(Protocol::DcEager, 10), (Protocol::LongCts, 50_000), (Protocol::DcLongCts, 50_000)]
    {
        let (mut net, peer, _) = net(16);
        net.nodes[1].no_receives = false;
        let (bytes, mut room) = (message_bytes(1, len), vec![0; len]);
        net.recv(1, &mut room, exact(1), 5);
        assert!(matches!(net.send(0, peer, &bytes, Some(1), protocol), Started::Pending(_)), "{protocol:?}");
        // The receiver's answers, from its HANDSHAKE on, find the sender not ready twice.
        net.nodes[0].no_receives = true;
        for _ in 0..2 {
            net.resume(1);
            land(&mut net);
            net.wait();
        }
        assert!(net.nodes[1].engine.peers().stats().rare.not_ready >= 2, "{protocol:?}");
        net.nodes[0].no_receives = false;
        net.settle();
        assert_eq!((net.events(0).len(), net.events(1).len()), (1, 1), "{protocol:?}");
        assert_eq!(room, bytes);
        assert_eq!(
            net.nodes[1].engine.peers().stats().tx_pkts[usize::from(PktType::HANDSHAKE.0)],
            1,
            "counted once"
        );
    }
}

#[test]
fn failed_peer_ends_its_backoff() {
    for removed in [false, true] {
        let (mut net, no_receives, _) = net(16);
        net.send(0, no_receives, b"x", Some(1), Protocol::Eager);
        land(&mut net);
        match removed {
            true => net.at(0, |e, w| e.remove_peer(w, no_receives)),
            false => net.at(0, |e, w| e.on_peer_error(w, no_receives, PeerError::Gone)),
        }
        let engine = &net.nodes[0].engine;
        assert!(
            engine.pending().next_deadline(engine.peers(),).is_none()
                && !engine.pending().needs_time()
                && engine.is_flushed(None)
        );
        assert_eq!(engine.pending().held_bytes(), 0);
        let now = net.now;
        net.at(0, |e, _| e.returns().on_rnr(now, no_receives, b"x"));
        net.at(0, |e, _| e.returns().on_flushed(now, no_receives));
        assert_eq!((net.resume(0), net.nodes[0].engine.pending().held_bytes()), (0, 0));
    }
}
