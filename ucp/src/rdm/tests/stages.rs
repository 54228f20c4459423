//! Each protocol step by step: packets, ends of operations, disturbances.

use crate::rdm::Cancel;
use crate::rdm::ids::PeerId;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::PeerError;
use crate::rdm::testing::*;
use crate::rdm::trace::{DropReason, TraceEvent};
use crate::rdm::types::*;
use crate::rdm::{ids::*, status::*};
use crate::wire::{self, Packet, PktType, ReqFlags};

const ROWS: [(Protocol, usize); 6] = [
    (Protocol::Eager, 100),
    (Protocol::DcEager, 100),
    (Protocol::Medium, 5000),
    (Protocol::DcMedium, 5000),
    (Protocol::LongCts, 50_000),
    (Protocol::DcLongCts, 50_000),
];

fn pair() -> (Net, PeerId) {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    (net, peer)
}

fn connected() -> (Net, PeerId) {
    let (mut net, peer) = pair();
    let mut room = [0; 1];
    net.recv(1, &mut room, exact(99), 0);
    assert_eq!(net.send(0, peer, &[1], Some(99), Protocol::Eager), Started::Done(()));
    net.settle();
    assert_eq!(net.events(1).len(), 1);
    (net, peer)
}

fn types(net: &Net) -> Vec<PktType> {
    net.sent_packets.iter().map(|f| PktType(f.bytes[0])).collect()
}

fn sent(user: u64) -> EngineEvent {
    EngineEvent::SendDone { user, result: Ok(()) }
}

fn ok(net: &mut Net, me: usize, from: usize, len: usize, tag: u64) -> RecvStatus {
    RecvStatus { len, tag, from: net.peer(me, from), cq_data: None }
}

#[test]
fn eager_completes_in_call_with_raw_address_until_handshake() {
    let (mut net, peer) = pair();
    let mut room = [0; 16];
    assert!(matches!(net.recv(1, &mut room, exact(7), 5), Started::Pending(_)));
    assert_eq!(net.send(0, peer, b"hello", Some(7), Protocol::Eager), Started::Done(()));
    let sent_packet = net.sent_packets[0].bytes.clone();
    let Ok(Packet::Rtm(rtm)) = wire::parse(&sent_packet) else { panic!() };
    assert_eq!((rtm.ty, rtm.msg_id, rtm.tag), (PktType::EAGER_TAGRTM, 0, Some(7)));
    assert_eq!(rtm.flags, ReqFlags::MSG | ReqFlags::TAGGED | ReqFlags::RAW_ADDR);
    net.deliver_one();
    assert_eq!(types(&net), [PktType::HANDSHAKE], "before anything else");
    let status = ok(&mut net, 1, 0, 5, 7);
    assert_eq!(net.events(1), [EngineEvent::RecvDone { user: 5, result: Ok(status) }]);
    assert_eq!(&room[..5], b"hello");
    net.settle();
    net.send(0, peer, b"hello", Some(7), Protocol::Eager);
    let Ok(Packet::Rtm(rtm)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
    assert_eq!(rtm.flags, ReqFlags::MSG | ReqFlags::TAGGED | ReqFlags::CONNID);
    assert_eq!((rtm.msg_id, rtm.opts.connid), (1, Some(1000)));
}

// [M3.1]
#[test]
fn handshake_goes_once_each_way_and_is_retried() {
    let (mut net, peer) = pair();
    net.send(0, peer, b"a", None, Protocol::Eager);
    net.nodes[1].wire_full = true;
    net.deliver_one();
    assert!(net.sent_packets.is_empty() && net.resume(1) == 0);
    net.nodes[1].wire_full = false;
    net.resume(1);
    let Ok(Packet::Handshake(shake)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
    assert_eq!(
        (shake.nwords, shake.extra[0], shake.connid),
        (1, crate::rdm::features::ours(crate::rdm::io::Rdma::NONE).bits(), Some(1001))
    );
    assert_eq!(shake.device_version, Some(0xefa2));
    net.settle();
    (0..5).for_each(|_| {
        net.send(0, peer, b"a", None, Protocol::Eager);
    });
    net.settle();
    for node in &net.nodes {
        assert_eq!(node.engine.peers().stats().tx_pkts[usize::from(PktType::HANDSHAKE.0)], 1);
    }
    assert!(net.nodes[0].engine.peers().info(peer).unwrap().features.is_some());
}

// [M3.7] [M3.8] [M3.9]
#[test]
fn delivery_complete_waits_for_handshake() {
    let (mut net, peer) = pair();
    let mut room = [0; 8];
    net.recv(1, &mut room, ANY, 2);
    assert!(matches!(net.send(0, peer, b"sync", Some(3), Protocol::DcEager), Started::Pending(_)));
    assert!(
        matches!(net.send(0, peer, b"next", Some(3), Protocol::Eager), Started::Pending(_)),
        "keeps behind"
    );
    assert_eq!(types(&net), [PktType::EAGER_RTW]);
    assert_eq!(net.sent_packets[0].bytes.len(), 48);
    assert_eq!(net.resume(0), 0, "nothing to do but wait");
    net.settle();
    assert_eq!(net.nodes[1].engine.peers().stats().rare.triggered, 1);
    assert_eq!(net.events(0).len(), 2);
    assert_eq!(&room[..4], b"sync");
}

#[test]
fn no_trigger_after_a_packet() {
    let (mut net, peer) = pair();
    net.send(0, peer, b"a", Some(1), Protocol::Eager);
    net.send(0, peer, b"b", Some(1), Protocol::DcEager);
    assert_eq!(types(&net), [PktType::EAGER_TAGRTM]);
    net.settle();
    assert_eq!(net.nodes[0].engine.peers().stats().rare.triggers, 0);
    assert_eq!(net.nodes[1].engine.peers().stats().rare.unexpected, 2);
}

// [M3.6]
#[test]
fn granted_data_waits_for_the_handshake() {
    let (mut net, peer) = pair();
    let bytes = message_bytes(1, 10_000);
    let mut room = vec![0; 10_000];
    net.recv(1, &mut room, ANY, 0);
    net.send(0, peer, &bytes, Some(1), Protocol::LongCts);
    net.deliver_one();
    assert_eq!(types(&net), [PktType::HANDSHAKE, PktType::CTS]);
    let cts = net.sent_packets.remove(1);
    net.deliver(&cts);
    assert_eq!(types(&net), [PktType::HANDSHAKE, PktType::HANDSHAKE]);
    net.settle();
    assert_eq!((net.events(0), net.events(1).len()), (vec![sent(1)], 1));
    assert_eq!(room, bytes);
}

// [M5.5]
#[test]
fn next_grant_follows_used_up_grant() {
    let cfg = EngineConfig { cts_credits: 2, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig { reorder: true, ..NetConfig::RELIABLE }, cfg);
    let peer = net.peer(0, 1);
    let bytes = message_bytes(1, 20_000);
    let mut room = vec![0; 20_000];
    net.recv(1, &mut room, ANY, 0);
    net.send(0, peer, &bytes, Some(1), Protocol::LongCts);
    net.settle();
    let first = 1024 - 32 - 40;
    let grants = (20_000usize - first).div_ceil(2 * (1024 - 32)) as u64;
    assert_eq!(net.nodes[1].engine.peers().stats().tx_pkts[usize::from(PktType::CTS.0)], grants);
    assert_eq!(room, bytes);
}

#[test]
fn wire_with_back_pressure_grants_whole_message() {
    let cfg = EngineConfig { cts_credits: 2, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    net.nodes[1].engine.wires_mut().set_grant(WireId(0), Grant::Whole);
    let peer = net.peer(0, 1);
    let messages = [1, 2, 3].map(|n| message_bytes(n, 90_000));
    let mut rooms = [1, 2, 3].map(|_| vec![0; 90_000]);
    for (n, room) in rooms.iter_mut().enumerate() {
        net.recv(1, room, exact(n as u64), n as u64);
    }
    for (n, bytes) in messages.iter().enumerate() {
        net.send(0, peer, bytes, Some(n as u64), Protocol::LongCts);
    }
    net.settle();
    assert_eq!(net.nodes[1].engine.peers().stats().tx_pkts[usize::from(PktType::CTS.0)], 3);
    assert_eq!(rooms, messages);
}

// [M5.1] [M5.2] [M5.4] [M5.9]
#[test]
fn every_protocol_expected_and_unexpected() {
    for (protocol, len) in ROWS {
        for early in [false, true] {
            for tag in [Some(5), None] {
                let (mut net, peer) = connected();
                let bytes = message_bytes(3, len);
                let mut room = vec![0; len];
                let kind = if tag.is_some() { exact(5) } else { RecvKind::Untagged };
                if !early {
                    assert!(matches!(net.recv(1, &mut room, kind, 9), Started::Pending(_)));
                }
                let started = net.send(0, peer, &bytes, tag, protocol);
                assert_eq!(
                    started == Started::Done(()),
                    matches!(protocol, Protocol::Eager | Protocol::Medium),
                    "{protocol:?}"
                );
                net.settle();
                let status = ok(&mut net, 1, 0, len, tag.unwrap_or(0));
                if early {
                    assert!(
                        protocol.sync() == DeliveryComplete::No || net.events(0).is_empty(),
                        "receipt before the receive"
                    );
                    match net.recv(1, &mut room, kind, 9) {
                        Started::Done(got) => assert_eq!(got, status),
                        Started::Pending(_) => assert_eq!(protocol.plain(), Protocol::LongCts),
                        Started::Failed(error) => panic!("{error}"),
                    }
                    net.settle();
                }
                let outs = net.events(1);
                assert!(
                    outs.iter().all(|o| *o == EngineEvent::RecvDone { user: 9, result: Ok(status) }),
                    "{outs:?}"
                );
                assert_eq!(outs.is_empty(), early && protocol.plain() != Protocol::LongCts);
                assert_eq!(room, bytes, "{protocol:?} early: {early}");
                let done_later = !matches!(protocol, Protocol::Eager | Protocol::Medium);
                assert_eq!(net.events(0), vec![sent(1); usize::from(done_later)]);
                let before = u64::from(protocol == Protocol::Eager);
                assert_eq!(net.nodes[1].engine.peers().stats().received(protocol).msgs, 1 + before);
                assert_eq!(net.nodes[0].engine.peers().stats().sent(protocol).bytes, len as u64 + before);
            }
        }
    }
}

// [M5.7] [M6.3]
#[test]
fn short_receive_truncates_and_protocol_completes() {
    for (protocol, len) in ROWS {
        for early in [false, true] {
            let (mut net, peer) = connected();
            let bytes = message_bytes(3, len);
            let mut room = [0x55; 70];
            let want = OpError::Truncated { len: len as u64, room: 60, tag: 5, from: PeerId(0) };
            if early {
                net.send(0, peer, &bytes, Some(5), protocol);
                net.settle();
            }
            let started = net.recv(1, &mut room[..60], exact(5), 9);
            if !early {
                net.send(0, peer, &bytes, Some(5), protocol);
            }
            net.settle();
            match started {
                Started::Failed(error) => assert_eq!(error, want),
                _ => assert_eq!(net.events(1), [EngineEvent::RecvDone { user: 9, result: Err(want) }]),
            }
            assert_eq!((&room[..60], &room[60..]), (&bytes[..60], &[0x55; 10][..]));
            assert!(
                net.nodes[0].engine.is_flushed(None) && net.nodes[1].engine.is_flushed(None),
                "{protocol:?}"
            );
            assert_eq!(net.nodes[1].engine.peers().stats().rare.truncated, 1);
        }
    }
}

// [M5.8]
#[test]
fn receive_is_cancelled_only_before_match() {
    for (protocol, len) in ROWS {
        for packets in 0..6 {
            let (mut net, peer) = connected();
            let bytes = message_bytes(3, len);
            let mut room = vec![0x55; len];
            let Started::Pending(op) = net.recv(1, &mut room, exact(5), 9) else { panic!() };
            net.send(0, peer, &bytes, Some(5), protocol);
            (0..packets).for_each(|_| {
                net.deliver_one();
            });
            let over = !net.events(1).is_empty();
            let cancelled = net.nodes[1].engine.receives().cancel(op);
            assert_eq!(cancelled, packets == 0, "{protocol:?} after {packets}");
            assert!(!cancelled || !net.nodes[1].engine.receives().cancel(op), "only once");
            net.settle();
            match net.events(1).as_slice() {
                // The buffer is the user's again, and the message waits for another receive.
                [EngineEvent::RecvDone { user: 9, result: Err(OpError::Cancelled) }] => {
                    assert!(cancelled && room == [0x55].repeat(len))
                }
                [EngineEvent::RecvDone { user: 9, result: Ok(_) }] => assert!(!cancelled && room == bytes),
                [] => assert!(over && room == bytes),
                outs => panic!("{protocol:?} after {packets}: {outs:?}"),
            }
            let came_late = net.nodes[1].engine.receives().probe(exact(5), None, ProbeRemove::No).is_some();
            assert_eq!(came_late, cancelled, "{protocol:?} after {packets}");
            assert!(
                came_late || net.nodes[0].engine.is_flushed(None),
                "{protocol:?}: sender hangs after {packets}"
            );
        }
    }
}

#[test]
fn queued_send_is_cancelled_without_a_trace() {
    for (protocol, len) in ROWS {
        let (mut net, peer) = connected();
        let bytes = message_bytes(3, len);
        net.nodes[0].wire_full = true;
        let Started::Pending(a) = net.send(0, peer, &bytes, Some(5), protocol) else { panic!() };
        let Started::Pending(b) = net.send(0, peer, b"next", Some(5), Protocol::Eager) else { panic!() };
        assert!(
            net.at(0, |e, w| e.cancel_send(w, a, Cancel::Unsent) && !e.cancel_send(w, a, Cancel::Unsent))
        );
        assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Err(OpError::Cancelled) }]);
        net.nodes[0].wire_full = false;
        net.settle();
        assert!(!net.at(0, |e, w| e.cancel_send(w, b, Cancel::Unfinished)));
        let mut room = [0; 4];
        assert!(matches!(net.recv(1, &mut room, exact(5), 9), Started::Done(_)), "no msg_id was spent");
        assert_eq!(&room, b"next");
    }
}

// [M4.2]
#[test]
fn sends_without_room_keep_their_order() {
    let (mut net, peer) = connected();
    let bytes = message_bytes(3, 3000);
    net.nodes[0].wire_full = true;
    for (n, protocol) in
        [Protocol::Eager, Protocol::Medium, Protocol::Eager, Protocol::LongCts, Protocol::Eager]
            .into_iter()
            .enumerate()
    {
        let args = SendArgs {
            buf: send_buf(&bytes[..100 + n * 700]),
            tag: Some(n as u64),
            sync: DeliveryComplete::No,
            cq_data: None,
            protocol,
            user: n as u64,
        };
        assert!(matches!(net.send_args(0, peer, args), Started::Pending(_)));
    }
    assert_eq!(net.resume(0), 0);
    net.nodes[0].wire_full = false;
    let mut rooms = vec![vec![0; 3000]; 5];
    for (n, room) in rooms.iter_mut().enumerate() {
        net.recv(1, room, ANY, n as u64);
    }
    net.settle();
    for out in net.events(1) {
        let EngineEvent::RecvDone { user, result: Ok(status) } = out else { panic!("{out:?}") };
        assert_eq!(user, status.tag);
        assert_eq!(rooms[user as usize][..status.len], bytes[..100 + user as usize * 700]);
    }
    assert_eq!(net.events(0).len(), 5);
}

// [M4.1]
#[test]
fn message_ids_wrap() {
    let (mut net, peer) = connected();
    let back = net.peer(1, 0);
    net.nodes[0].engine.peers[peer].next_tx = u32::MAX - 2;
    net.nodes[1].engine.peers[back].next_rx = u32::MAX - 2;
    net.net_config.reorder = true;
    let messages: Vec<Vec<u8>> = (0..6).map(|n| message_bytes(n, 1500)).collect();
    for bytes in &messages {
        net.send(0, peer, bytes, Some(1), Protocol::Medium);
    }
    net.settle();
    for bytes in &messages {
        let mut room = vec![0; 1500];
        assert!(matches!(net.recv(1, &mut room, exact(1), 0), Started::Done(_)));
        assert_eq!(room, *bytes);
    }
    assert_eq!(net.nodes[1].engine.peers[back].next_rx, 3);
}

// [M4.5]
#[test]
fn duplicates_are_dropped() {
    let (mut net, peer) = connected();
    let bytes = message_bytes(1, 2500);
    net.send(0, peer, b"once", Some(1), Protocol::Eager);
    net.send(0, peer, &bytes, Some(2), Protocol::Medium);
    let packets: Vec<SentPacket> = net.sent_packets.drain(..).collect();
    assert_eq!(packets.len(), 4);
    for n in [0, 0, 1, 1, 2, 3, 3, 0] {
        net.deliver(&packets[n]);
    }
    let rare = net.nodes[1].engine.peers().stats().rare;
    assert_eq!((rare.duplicate, rare.bad_segment, rare.unexpected), (3, 1, 2));
    net.send(0, peer, b"next", Some(1), Protocol::Eager);
    net.send(0, peer, b"then", Some(1), Protocol::Eager);
    let later: Vec<SentPacket> = net.sent_packets.drain(..).collect();
    for n in [1, 1, 0] {
        net.deliver(&later[n]);
    }
    let rare = net.nodes[1].engine.peers().stats().rare;
    assert_eq!((rare.duplicate, rare.out_of_order, rare.unexpected), (4, 1, 4));
    let event = std::iter::from_fn(|| net.nodes[1].engine.peers_mut().take_trace_event()).last();
    assert!(
        matches!(event, Some(TraceEvent::Dropped { why: DropReason::Duplicate, ty: 65, .. })),
        "{event:?}"
    );
}

// [M2.1] [M2.2] [M2.3] [M2.5]
#[test]
fn reused_qpn_gets_a_new_peer() {
    let (mut net, peer) = connected();
    net.send(0, peer, b"old life", Some(1), Protocol::Eager);
    let late = net.sent_packets.pop().unwrap();
    let old = net.peer(1, 0);
    // Node 0 restarts with the same address but for the connid.
    let mut reborn = Net::new(1, 0, NetConfig::RELIABLE).nodes.remove(0);
    reborn.addr.connid += 77;
    reborn.engine = crate::rdm::Engine::new(EngineConfig::default());
    reborn.wire = reborn.engine.wires_mut().add(reborn.addr);
    net.nodes[0] = reborn;
    let peer = net.peer(0, 1);
    net.send(0, peer, b"new life", Some(1), Protocol::Eager);
    net.settle();
    net.deliver(&late);
    let new = net.peer(1, 0);
    assert_ne!(old, new);
    let mut room = [0; 8];
    for (text, from) in [(b"new life", new), (b"old life", old)] {
        let Started::Done(status) = net.recv(1, &mut room, exact(1), 0) else { panic!() };
        assert_eq!((&room, status.from), (text, from));
    }
    let rare = net.nodes[1].engine.peers().stats().rare;
    assert_eq!((rare.peers_found, rare.peers_displaced), (2, 1));
}

// [M2.4]
#[test]
fn unknown_sender_needs_the_raw_address_header() {
    let (mut net, peer) = connected();
    net.send(0, peer, b"x", Some(1), Protocol::Eager);
    let known = net.sent_packets.pop().unwrap();
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    net.deliver(&known);
    assert_eq!(net.nodes[1].engine.peers().stats().rare.unknown_sender, 1);
    assert!(net.sent_packets.is_empty());
    let type_of_nobody = SentPacket { bytes: vec![200, 4, 0, 0], ..known };
    net.deliver(&type_of_nobody);
    assert_eq!(net.nodes[1].engine.peers().stats().rare.unsupported, 1);
}

#[test]
fn messages_of_an_exited_peer_arrive_in_order() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let messages = [5, 50].map(|len| message_bytes(len as u64, len));
    for bytes in &messages {
        net.send(0, peer, bytes, Some(1), Protocol::Eager);
    }
    net.gone = Some(0);
    let mut rooms = [vec![0; 5], vec![0; 50]];
    net.recv(1, &mut rooms[0], exact(1), 0);
    net.settle();
    assert!(matches!(net.recv(1, &mut rooms[1], exact(1), 1), Started::Done(_)), "it waited unexpected");
    assert_eq!(rooms, messages);
    let outs = net.events(1);
    assert!(matches!(
        outs[..],
        [EngineEvent::PeerFailed { fault: PeerError::Gone, .. }, EngineEvent::RecvDone { result: Ok(_), .. }]
    ));
    let stats = net.nodes[1].engine.peers().stats();
    assert_eq!((stats.rare.no_path, stats.rare.peers_found, stats.rare.peers_failed), (0, 1, 1));
    assert_eq!(net.nodes[1].engine.pending().held_bytes(), 0);
}

#[test]
fn long_messages_of_an_exited_peer_arrive_if_complete() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let messages = [1, 2, 3].map(|n| message_bytes(n, 20_000));
    for (bytes, tag) in messages.iter().zip(1..) {
        net.send(0, peer, bytes, Some(tag), Protocol::Medium);
    }
    net.gone = Some(0);
    // The first is expected, the second not, and of the third the end is lost.
    let mut rooms = [vec![0; 20_000], vec![0; 20_000], vec![0; 20_000]];
    net.recv(1, &mut rooms[0], exact(1), 1);
    while net.resume(0) > 0 {}
    assert!(net.sent_packets.pop().is_some());
    net.settle();
    assert!(matches!(net.recv(1, &mut rooms[1], exact(2), 2), Started::Done(_)));
    assert!(matches!(net.recv(1, &mut rooms[2], exact(3), 3), Started::Pending(_)));
    assert!(rooms[..2] == messages[..2]);
    let outs = net.events(1);
    assert!(matches!(
        outs[..],
        [
            EngineEvent::PeerFailed { fault: PeerError::Gone, .. },
            EngineEvent::RecvDone { user: 1, result: Ok(_) }
        ]
    ));
    let wire = net.nodes[1].wire;
    assert!(net.nodes[1].engine.pending().is_draining());
    net.at(1, |e, w| e.on_wire_drained(w, wire));
    assert!(!net.nodes[1].engine.pending().is_draining());
    let error = OpError::Peer(peer, PeerError::Gone);
    assert_eq!(net.events(1), [EngineEvent::RecvDone { user: 3, result: Err(error) }]);
    assert_eq!(net.nodes[1].engine.pending().held_bytes(), 0);
}

#[test]
fn granted_messages_of_an_exited_peer_arrive_if_sent() {
    for granted in [true, false] {
        let (mut net, peer) = connected();
        let back = net.peer(1, 0);
        let bytes = message_bytes(1, 20_000);
        let mut room = vec![0; 20_000];
        net.recv(1, &mut room, exact(1), 1);
        net.send(0, peer, &bytes, Some(1), Protocol::LongCts);
        net.nodes[1].wire_full = !granted;
        for _ in 0..2 {
            net.deliver_one();
        }
        while net.resume(0) > 0 {}
        net.at(1, |e, w| e.on_keepalive_error(w, back, PeerError::Gone));
        let failed = EngineEvent::PeerFailed { peer: back, fault: PeerError::Gone };
        if granted {
            assert_eq!(net.events(1), [failed]);
            net.settle();
            let status = ok(&mut net, 1, 0, 20_000, 1);
            assert_eq!(net.events(1), [EngineEvent::RecvDone { user: 1, result: Ok(status) }]);
            assert!(room == bytes);
        } else {
            let error = OpError::Peer(back, PeerError::Gone);
            assert_eq!(net.events(1), [EngineEvent::RecvDone { user: 1, result: Err(error) }, failed]);
        }
    }
}

#[test]
fn probes_peek_and_claim() {
    let (mut net, peer) = connected();
    let messages = [10, 3000, 9000].map(|len| message_bytes(len as u64, len));
    for (tag, bytes) in [1, 1, 2].into_iter().zip(&messages) {
        net.send(
            0,
            peer,
            bytes,
            Some(tag),
            if bytes.len() > 5000 { Protocol::LongCts } else { Protocol::Eager },
        );
    }
    net.settle();
    let engine = &mut net.nodes[1].engine;
    assert!(engine.receives().probe(exact(3), None, ProbeRemove::Yes).is_none());
    assert!(engine.receives().probe(RecvKind::Untagged, None, ProbeRemove::No).is_none());
    assert_eq!(engine.receives().probe(exact(1), None, ProbeRemove::No).unwrap().len, 10);
    let first = engine.receives().probe(exact(1), None, ProbeRemove::Yes).unwrap();
    let second = engine.receives().probe(exact(1), None, ProbeRemove::Yes).unwrap();
    let third = engine.receives().probe(ANY, None, ProbeRemove::Yes).unwrap();
    assert_eq!((first.len, second.len, third.len, third.tag), (10, 3000, 9000, 2));
    assert!(engine.receives().probe(ANY, None, ProbeRemove::No).is_none());
    let mut rooms = [vec![0; 10], vec![0; 3000], vec![0; 9000]];
    for (n, found) in [second, third, first].into_iter().enumerate() {
        let room = &mut rooms[[1, 2, 0][n]];
        let buf = recv_buf(room);
        let again = recv_buf(&mut []);
        let started = net.at(1, |e, w| e.recv_probed(w, found.handle, buf, 4));
        assert_eq!(matches!(started, Started::Pending(_)), n == 1);
        let twice = net.at(1, |e, w| e.recv_probed(w, found.handle, again, 4));
        assert_eq!(twice, Started::Failed(OpError::Unknown));
    }
    net.settle();
    assert_eq!(net.events(1).len(), 1);
    assert!(rooms.iter().all(|room| *room == message_bytes(room.len() as u64, room.len())));
}

// [M10.1]
#[test]
fn failed_peer_ends_only_its_own_operations() {
    let mut net = Net::new(3, 1, NetConfig::RELIABLE);
    let (gone, stays) = (net.peer(1, 0), net.peer(1, 2));
    let back = net.peer(0, 1);
    let bytes = message_bytes(1, 40_000);
    let (mut a, mut b, mut c) = (vec![0; 40_000], vec![0; 8], vec![0; 8]);
    // In flight in both directions, posted for that peer alone, unexpected whole and in part.
    net.recv(1, &mut a, exact(1), 1);
    net.send(0, back, &bytes, Some(1), Protocol::LongCts);
    net.send(0, back, b"whole", Some(2), Protocol::Eager);
    net.send(0, back, &bytes, Some(3), Protocol::LongCts);
    (0..3).for_each(|_| {
        net.deliver_one();
    });
    net.sent_packets.clear();
    let only = RecvArgs { buf: recv_buf(&mut b), kind: exact(4), from: Some(gone), user: 2 };
    net.at(1, |e, w| e.recv(w, only));
    net.recv(1, &mut c, exact(5), 3);
    net.send(1, gone, &bytes, Some(1), Protocol::LongCts);
    net.send(1, stays, &bytes, Some(1), Protocol::LongCts);
    net.at(1, |e, w| e.on_peer_error(w, gone, PeerError::Gone));
    let mut outs = net.events(1);
    assert_eq!(outs.pop(), Some(EngineEvent::PeerFailed { peer: gone, fault: PeerError::Gone }));
    let error = OpError::Peer(gone, PeerError::Gone);
    assert_eq!(
        outs,
        [
            EngineEvent::SendDone { user: 1, result: Err(error) },
            EngineEvent::RecvDone { user: 1, result: Err(error) },
            EngineEvent::RecvDone { user: 2, result: Err(error) },
        ]
    );
    assert_eq!(net.send(1, gone, b"x", Some(1), Protocol::Eager), Started::Failed(error));
    assert!(
        net.nodes[1].engine.receives().probe(exact(3), None, ProbeRemove::No).is_none(),
        "will never be whole"
    );
    assert!(matches!(net.recv(1, &mut b, exact(2), 9), Started::Done(_)));
    net.at(1, |e, w| e.on_peer_error(w, gone, PeerError::Gone));
    assert!(net.events(1).is_empty(), "once");
    net.settle();
    assert_eq!(net.nodes[1].engine.pending().held_bytes(), 0);
    assert_eq!(net.nodes[1].engine.peers().info(gone).unwrap().fault, Some(PeerError::Gone));
}

#[test]
fn removed_peer_id_is_reused_after_its_messages_are_gone() {
    let (mut net, peer) = connected();
    net.send(0, peer, b"bye", Some(1), Protocol::Eager);
    net.settle();
    let old = net.peer(1, 0);
    net.at(1, |e, w| e.remove_peer(w, old));
    assert!(net.nodes[1].engine.peers().info(old).is_none());
    assert_eq!(net.send(1, old, b"x", Some(1), Protocol::Eager), Started::Failed(OpError::Unknown));
    let new = net.peer(1, 1);
    assert_ne!(new, old);
    let mut room = [0; 3];
    assert!(matches!(net.recv(1, &mut room, ANY, 0), Started::Done(s) if s.from == old));
    let wire = net.nodes[1].wire;
    let other = crate::wire::RawAddr { connid: 5, ..address(0) };
    assert_eq!(net.nodes[1].engine.peers_mut().add(wire, other, source(&other)), old);
}

#[test]
fn late_packets_of_a_failed_peer_leave_nothing_behind() {
    let (mut net, peer) = pair();
    let back = net.peer(1, 0);
    let bytes = message_bytes(1, 5000);
    let mut rooms = [vec![0; 5000], vec![0; 5000]];
    for (n, room) in rooms.iter_mut().enumerate() {
        net.recv(1, room, exact(n as u64), n as u64);
    }
    net.send(0, peer, &bytes, Some(0), Protocol::LongCts);
    net.send(0, peer, &bytes[..100], Some(1), Protocol::Eager);
    net.send(0, peer, &bytes, Some(2), Protocol::Medium);
    net.at(1, |e, w| e.on_peer_error(w, back, PeerError::Gone));
    net.settle();
    let status = ok(&mut net, 1, 0, 100, 1);
    let failed = EngineEvent::PeerFailed { peer: back, fault: PeerError::Gone };
    assert_eq!(net.events(1), [failed, EngineEvent::RecvDone { user: 1, result: Ok(status) }]);
    assert!(net.nodes[1].engine.is_flushed(None) && net.nodes[1].engine.pending().held_bytes() == 0);
    assert!(net.nodes[1].engine.peers().stats().rare.peer_failed > 1);
}

#[test]
fn sends_that_a_peer_does_not_support_are_refused() {
    let shake = |features: u64| {
        let (mut net, peer) = pair();
        net.net_config.mtu = 256;
        net.send(0, peer, b"first", Some(1), Protocol::Eager);
        let Started::Pending(_) = net.send(0, peer, b"sync", Some(1), Protocol::DcEager) else { panic!() };
        net.sent_packets.clear();
        let mut bytes = vec![0; 64];
        let hdr = wire::Handshake::new(wire::Features::from_bits_retain(features), 1001, 0xefa0);
        let len = hdr.write(&mut bytes);
        bytes.truncate(len);
        net.deliver(&SentPacket { from: 1, to: 0, bytes });
        (net, peer)
    };
    let (mut net, _) = shake(0);
    let error = OpError::Unsupported;
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Err(error) }]);
    let (mut net, peer) = shake(0xda);
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Err(error) }]);
    assert_eq!(net.send(0, peer, b"x", None, Protocol::Eager), Started::Failed(error));
    assert_eq!(net.send(0, peer, b"x", Some(1), Protocol::Eager), Started::Failed(error));
    // [M3.4] Constant header length: the raw address for ever, no connid.
    let (mut net, peer) = shake(0x1e);
    net.sent_packets.clear();
    net.send(0, peer, b"x", Some(1), Protocol::Eager);
    let Ok(Packet::Rtm(rtm)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
    assert!(rtm.opts.raw_addr == Some(address(0)) && rtm.opts.connid.is_none());
}

/// A peer that asks for constant header length gets it in every request. Engines of other tests do not ask.
// [M3.11]
#[test]
fn constant_header_length_is_negotiated() {
    let constant = EngineConfig { req_len: ReqLen::Constant, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, constant);
    let peer = net.peer(0, 1);
    let mut room = [0; 300];
    let mut lens = Vec::new();
    for tag in 0..4 {
        net.recv(1, &mut room, exact(tag), 0);
        net.send(0, peer, b"hello", Some(tag), Protocol::Eager);
        let request = &net.sent_packets[0].bytes;
        lens.push(request.len());
        let Ok(Packet::Rtm(rtm)) = wire::parse(request) else { panic!() };
        assert_eq!((rtm.opts.raw_addr, rtm.opts.connid), (Some(address(0)), None), "request {tag}");
        net.deliver_one();
        if tag == 0 {
            // Bits 1, 2, 3, 6, 9, 61 and 63; connid 1001, device version 0xefa2.
            let golden = [
                [0x09, 0x04, 0x02, 0x80, 4, 0, 0, 0],
                [0x4e, 0x02, 0, 0, 0, 0, 0, 0xa0],
                [0xe9, 0x03, 0, 0, 0, 0, 0, 0],
                [0xa2, 0xef, 0, 0, 0, 0, 0, 0],
            ];
            assert_eq!(net.sent_packets[0].bytes, golden.concat());
        }
        net.settle();
    }
    assert!(lens.iter().all(|len| *len == lens[0]), "{lens:?}");
    assert_eq!(net.events(1).len(), 4);
}
