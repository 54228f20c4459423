//! Peers and their lanes: which pairs of NICs are a peer, and when one becomes a peer of its own.

use super::*;
use crate::rdm::EngineSnapshot;
use crate::rdm::testing::exact;
use crate::wire::{MsgClass, UserRecvQp};

const PROTOCOLS: [Protocol; 4] = [Protocol::Eager, Protocol::Medium, Protocol::LongCts, Protocol::LongRead];

fn lengths(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Eager => 100,
        Protocol::Medium => 9000,
        _ => LEN,
    }
}

fn peers(rig: &Rig, me: usize) -> usize {
    rig.engines[me].peers().iter_with_stats().count()
}

fn chunked(_: usize) -> EngineConfig {
    EngineConfig { rndv_chunk: CHUNK, rma_chunk: CHUNK, ..EngineConfig::default() }
}

/// Sends every protocol both ways, `links` as seen by either side, and checks the bytes.
fn exchange(rig: &mut Rig, links: [PeerId; 2], seed: u64) {
    let bytes: Vec<Vec<u8>> =
        PROTOCOLS.iter().map(|protocol| message_bytes(seed + *protocol as u64, lengths(*protocol))).collect();
    let mut rooms: Vec<Vec<u8>> =
        (0..2).flat_map(|_| bytes.iter().map(|bytes| vec![0; bytes.len()])).collect();
    for (n, room) in rooms.iter_mut().enumerate() {
        let (me, tag) = (1 - n / PROTOCOLS.len(), (n % PROTOCOLS.len()) as u64);
        let args = RecvArgs { buf: recv_buf(room), kind: exact(tag), from: None, user: 100 + tag };
        rig.at(me, 0, |e, w| e.recv(w, args));
    }
    for (n, protocol) in PROTOCOLS.into_iter().enumerate() {
        for (me, link) in links.iter().enumerate() {
            let args = SendArgs {
                buf: send_buf(&bytes[n]),
                tag: Some(n as u64),
                sync: DeliveryComplete::No,
                cq_data: None,
                protocol,
                user: n as u64,
            };
            let started = rig.at(me, 0, |e, w| e.send(w, *link, args));
            assert!(!matches!(started, Started::Failed(_)), "{started:?}");
        }
        (0..5).for_each(|_| rig.turn());
    }
    rig.settle();
    for me in 0..2 {
        for event in rig.events(me) {
            let result = match event {
                EngineEvent::SendDone { result, .. } => result,
                EngineEvent::RecvDone { result, .. } => result.map(drop),
                other => panic!("{me}: {other:?}"),
            };
            assert_eq!(result, Ok(()), "{me}");
        }
    }
    for (n, room) in rooms.iter().enumerate() {
        assert!(*room == bytes[n % PROTOCOLS.len()], "{n}");
    }
    for e in &rig.engines {
        assert_eq!(e.snapshot(), EngineSnapshot::EMPTY);
    }
}

#[test]
fn further_lanes_are_no_peers() {
    for nics in [2, 4, 6] {
        let (rig, peer) = Rig::connected([nics, nics], 1);
        for (me, peer) in [(0, peer), (1, PeerId(0))] {
            assert_eq!(peers(&rig, me), 1, "{nics} {me}");
            let engine = &rig.engines[me].peers();
            let lanes = engine.further_lanes(peer);
            assert_eq!(lanes.len(), nics.min(4) - 1);
            // Over the wire the pairs become known in any order.
            let mut wires: Vec<usize> = Vec::new();
            for lane in lanes {
                let view = engine.lane_info(*lane).unwrap();
                let nic = usize::from(view.wire.0);
                assert_eq!(view.addr, addr(1 - me, nic));
                assert!(view.features.is_some() && view.fault.is_none());
                wires.push(nic);
            }
            wires.sort_unstable();
            wires.dedup();
            assert!(wires.len() == lanes.len() && !wires.contains(&0), "{wires:?}");
        }
    }
}

/// Each side has chosen its second NIC for messages: the first lane of each is a further one of the other.
#[test]
fn conversation_on_a_further_lane_is_a_peer_of_its_own() {
    for seed in seeds(0..60) {
        let _seed = Seed(seed);
        let mut rig = Rig::apart([2, 2], seed, chunked);
        rig.sides.iter_mut().for_each(|side| side.rough = seed % 2 == 0);
        let crossed = |other: usize| [(1, (other, 0)), (0, (other, 1))];
        let first = rig.link(0, &crossed(1));
        if seed % 3 == 0 {
            let mut byte = [0; 1];
            rig.recv(1, &mut byte);
            rig.send(0, first, b"x", Protocol::Eager);
            rig.settle();
            assert_eq!((rig.events(1).len(), byte), (1, *b"x"));
        }
        let second = rig.link(1, &crossed(0));
        exchange(&mut rig, [first, second], seed);
        for me in 0..2 {
            assert_eq!(peers(&rig, me), 2, "{me}");
        }
        exchange(&mut rig, [first, second], seed + 1);
    }
}

/// The two sides pair their NICs differently: each has a peer with a further lane for either direction.
#[test]
fn lanes_of_two_conversations_do_not_mix() {
    for seed in seeds(0..60) {
        let _seed = Seed(seed);
        let mut rig = Rig::apart([2, 2], seed, chunked);
        rig.sides.iter_mut().for_each(|side| side.rough = seed % 2 == 0);
        let first = rig.link(0, &[(0, (1, 0)), (1, (1, 1))]);
        let second = rig.link(1, &[(1, (0, 0)), (0, (0, 1))]);
        exchange(&mut rig, [first, second], seed);
        // By now all lanes are known.
        rig.data = vec![[0; 8]; 2];
        exchange(&mut rig, [first, second], seed + 1);
        for me in 0..2 {
            assert_eq!(peers(&rig, me), 2, "{me}");
            assert!(rig.data[me][0] > 0 && rig.data[me][1] > 0, "both lanes carry data");
        }
        // A receive from one takes messages of the other.
        let mut room = [0; 1];
        let args = RecvArgs { buf: recv_buf(&mut room), kind: ANY, from: Some(first), user: 1 };
        rig.at(0, 0, |e, w| e.recv(w, args));
        rig.send(1, second, b"y", Protocol::Eager);
        rig.settle();
        assert_eq!((rig.events(0).len(), room), (1, *b"y"));
    }
}

/// An endpoint to the other end of a further lane makes that a peer, which has met already.
#[test]
fn endpoint_to_a_further_lane_makes_it_a_peer() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let lane = rig.engines[1].peers().further_lanes(PeerId(0))[0];
    let new = rig.link(1, &[(1, (0, 1))]);
    assert_eq!((peers(&rig, 1), rig.engines[1].peers().lane_info(lane)), (2, None));
    assert!(rig.engines[1].peers().features(new).is_some());
    exchange(&mut rig, [peer, new], 7);
    exchange(&mut rig, [peer, PeerId(0)], 8);
    assert_eq!((peers(&rig, 0), peers(&rig, 1)), (2, 2));
    // A further lane that is a peer is not taken back.
    assert_eq!(rig.add_lane(1, PeerId(0), 1, (0, 1)), None);
}

#[test]
fn lost_further_lane_is_no_failed_peer() {
    let (mut rig, peer) = Rig::connected([3, 3], 1);
    rig.dead.push((1, 1));
    for seed in 0..3 {
        exchange(&mut rig, [peer, PeerId(0)], seed);
    }
    let lanes = rig.engines[0].peers().further_lanes(peer).to_vec();
    let fault = |lane: LaneId| rig.engines[0].peers().lane_info(lane).unwrap().fault;
    assert_eq!((fault(lanes[0]), fault(lanes[1])), (Some(PeerError::Unreachable), None));
    assert_eq!(rig.engines[0].peers().stats().rare.peers_failed, 0);
}

/// A worker in zero-copy receive mode takes nothing but messages without a header, also if it has asked for
/// our HANDSHAKE before it sent a message.
#[test]
fn worker_in_zero_copy_mode_is_a_peer_once_met() {
    let mut rig = Rig::apart([2, 1], 1, chunked);
    let qp = UserRecvQp { qpn: 9, qkey: 1 };
    rig.engines[1].enable_zcopy_recv(WireId(0), qp, source(&addr(1, 0)));
    let peer = rig.link(1, &[(0, (0, 0))]);
    assert!(rig.at(1, 0, |e, w| e.send_keepalive(w, peer)));
    rig.settle();
    assert_eq!(peers(&rig, 0), 1);
    let args = SendArgs {
        buf: send_buf(b"x"),
        tag: Some(1),
        sync: DeliveryComplete::No,
        cq_data: None,
        protocol: Protocol::Eager,
        user: 1,
    };
    let started = rig.at(0, 0, |e, w| e.send_class(w, PeerId(0), MsgClass::Am, args));
    assert_eq!(started, Started::Failed(OpError::Unsupported));
}
