//! Messages of our own classes: never mixed with others, never sent to a peer that does not know them.

use super::super::io::{PeerError, Rdma};
use crate::rdm::features::ours;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::send::cancel;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::trace::DropReason;
use crate::rdm::types::*;
use crate::rdm::{EngineSnapshot, stream_error};
use crate::wire::{self, Features, MsgClass, Packet, PktType};

fn of(class: MsgClass, tag: u64) -> RecvKind {
    RecvKind::Class { class, tag, mask: !0 }
}

/// Opens the stream of the messages of [`send`].
fn open_stream(net: &mut Net) {
    net.at(1, |e, _| e.peers_mut().streams.open(7, None));
}

fn send(net: &mut Net, class: MsgClass, bytes: &[u8], protocol: Protocol) -> Started<()> {
    let peer = net.peer(0, 1);
    let args = SendArgs {
        buf: send_buf(bytes),
        tag: Some(7),
        sync: DeliveryComplete::No,
        cq_data: None,
        protocol,
        user: 1,
    };
    net.at(0, |e, w| e.send_class(w, peer, class, args))
}

// [M11.1] [M11.2]
#[test]
fn each_class_goes_to_its_own_receives_in_every_protocol() {
    for (protocol, len) in [(Protocol::Eager, 100), (Protocol::Medium, 5000), (Protocol::LongCts, 50_000)] {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE);
        open_stream(&mut net);
        let bytes = message_bytes(3, len);
        let mut rooms = [vec![0; len], vec![0; len], vec![0; len], vec![0; len]];
        let kinds = [exact(7), of(MsgClass::Am, 7), of(MsgClass::AmData, 7), of(MsgClass::Stream, 7)];
        for (n, kind) in kinds.into_iter().enumerate() {
            net.recv(1, &mut rooms[n], kind, n as u64);
        }
        assert!(
            matches!(send(&mut net, MsgClass::Am, &bytes, protocol), Started::Pending(_)),
            "handshake first"
        );
        assert_eq!(PktType(net.sent_packets[0].bytes[0]), PktType::EAGER_RTW);
        net.settle();
        assert_eq!(net.events(1).len(), 1);
        assert_eq!((&rooms[1], &rooms[0][..8]), (&bytes, &[0; 8][..]));
        for class in [MsgClass::Stream, MsgClass::AmData, MsgClass::Message] {
            send(&mut net, class, &bytes, protocol);
        }
        net.settle();
        assert_eq!(net.events(1).len(), 3);
        assert!(rooms.iter().all(|room| *room == bytes));
    }
}

/// A half-received stream piece is dropped with its peer; packets of the rest arrive later.
// [M11.7]
#[test]
fn rest_of_a_dropped_piece_is_no_protocol_error() {
    let (first, second) = (message_bytes(1, 50_000), message_bytes(2, 5000));
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    open_stream(&mut net);
    let peer = net.peer(0, 1);
    net.meet(0, peer);
    send(&mut net, MsgClass::Stream, &first, Protocol::LongCts);
    send(&mut net, MsgClass::Stream, &second, Protocol::Medium);
    // The first is announced and waits for a receive; of the second one packet has come.
    (0..2).for_each(|_| assert!(net.deliver_one()));
    assert_eq!(net.nodes[1].engine.snapshot().unexpected, 2);
    let sender = net.peer(1, 0);
    net.at(1, |e, w| e.on_keepalive_error(w, sender, PeerError::Gone));
    let snapshot = net.nodes[1].engine.snapshot();
    assert_eq!((snapshot.unexpected, snapshot.partial_msgs, snapshot.held_bytes), (0, 0, 0));
    let mut rest = 0;
    while net.sent_packets.iter().any(|sent_packet| sent_packet.to == 1) {
        rest += u64::from(net.sent_packets[0].to == 1);
        net.deliver_one();
    }
    let rare = net.nodes[1].engine.peers().stats().rare;
    assert!(rest > 2);
    assert_eq!((rare.peer_failed, rare.bad_segment, rare.duplicate), (rest, 0, 0));
}

// [M11.1]
#[test]
fn peer_without_classes_gets_none() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    assert!(matches!(send(&mut net, MsgClass::Am, b"am", Protocol::Eager), Started::Pending(_)));
    net.deliver_one();
    // The HANDSHAKE of an endpoint with every feature but ours.
    let at = net.sent_packets.iter().position(|f| f.bytes[0] == PktType::HANDSHAKE.0).unwrap();
    let word = ours(Rdma::NONE).difference(Features::CLASSES).bits().to_le_bytes();
    net.sent_packets[at].bytes[8..16].copy_from_slice(&word);
    net.settle();
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Err(OpError::Unsupported) }]);
    assert_eq!(
        send(&mut net, MsgClass::Stream, b"s", Protocol::Eager),
        Started::Failed(OpError::Unsupported)
    );
}

// [M11.2]
#[test]
fn class_is_encoded_in_two_flags() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    send(&mut net, MsgClass::Message, b"first", Protocol::Eager);
    net.settle();
    for class in [MsgClass::Message, MsgClass::Am, MsgClass::AmData, MsgClass::Stream] {
        assert_eq!(send(&mut net, class, b"x", Protocol::Eager), Started::Done(()));
        let Ok(Packet::Rtm(rtm)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
        assert_eq!(rtm.flags.bits() & 0x0300, (class as u16) << 8);
        assert_eq!(rtm.opts.class, class);
        net.settle();
    }
}

/// The sender cancels the second of three pieces: the first is received, waiters get an error.
// [M11.7]
#[test]
fn stream_ends_before_a_cancelled_piece() {
    let any = RecvKind::Class { class: MsgClass::Stream, tag: 0, mask: 0 };
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    open_stream(&mut net);
    send(&mut net, MsgClass::Stream, b"one", Protocol::Eager);
    net.settle();
    let long = message_bytes(3, 20_000);
    send(&mut net, MsgClass::Stream, &long, Protocol::LongCts);
    send(&mut net, MsgClass::Stream, b"three", Protocol::Eager);
    while net.deliver_one() {}
    let (sender, receiver) = (net.peer(1, 0), net.peer(0, 1));
    net.at(0, |e, w| cancel::abort_all(e, w, receiver));
    net.settle();
    let first = net.at(1, |e, _| e.receives().probe(any, Some(sender), ProbeRemove::Yes)).unwrap();
    let mut room = [0; 3];
    let begun = net.at(1, |e, w| e.recv_probed(w, first.handle, recv_buf(&mut room), 8));
    assert!(matches!(begun, Started::Done(status) if status.len == 3), "{begun:?}");
    assert_eq!(net.at(1, |e, _| e.receives().probe(any, Some(sender), ProbeRemove::No)), None);
    let error = |net: &mut Net, tag| net.at(1, |e, _| stream_error(e.peers_mut(), sender, tag));
    assert_eq!(error(&mut net, 7), Some(OpError::Aborted(sender, 4127)));
    assert_eq!(error(&mut net, 0), None, "the stream of the workers");
    assert_eq!(net.nodes[1].engine.peers().drain_error(sender), None, "messages of the peer");
    assert_eq!(net.nodes[1].engine.snapshot(), EngineSnapshot::EMPTY);
}

/// Of three streams one loses a piece: the others go on. Messages for a connection that nobody has are
/// dropped.
// [M11.7]
#[test]
fn streams_of_connections_are_apart() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let (sender, receiver) = (net.peer(1, 0), net.peer(0, 1));
    net.at(1, |e, _| e.peers_mut().streams.open(8, Some(sender)));
    let push = |net: &mut Net, tag, bytes: &[u8], protocol| {
        let args = SendArgs {
            buf: send_buf(bytes),
            tag: Some(tag),
            sync: DeliveryComplete::No,
            cq_data: None,
            protocol,
            user: 1,
        };
        net.at(0, |e, w| e.send_class(w, receiver, MsgClass::Stream, args));
    };
    let held = |net: &mut Net, tag| {
        let found =
            net.at(1, |e, _| e.receives().probe(of(MsgClass::Stream, tag), Some(sender), ProbeRemove::No));
        found.map(|found| found.len)
    };
    open_stream(&mut net);
    push(&mut net, 7, b"first", Protocol::Eager);
    net.settle();
    let long = message_bytes(3, 20_000);
    push(&mut net, 7, &long, Protocol::LongCts);
    while net.deliver_one() {}
    net.at(0, |e, w| cancel::abort_all(e, w, receiver));
    for tag in [7, 8, 0, 9, 8 | 1 << 32] {
        push(&mut net, tag, b"behind", Protocol::Eager);
    }
    net.settle();
    assert_eq!(
        [7, 8, 0, 9, 8 | 1 << 32].map(|tag| held(&mut net, tag)),
        [Some(5), Some(6), Some(6), None, None]
    );
    // A long piece that nobody receives ends at its sender.
    net.events(0);
    push(&mut net, 9, &long, Protocol::LongCts);
    net.settle();
    let ended = EngineEvent::SendDone { user: 1, result: Err(OpError::Aborted(receiver, 4127)) };
    assert_eq!(net.events(0), [ended]);
    // A stream is of one peer.
    net.at(1, |e, _| e.peers_mut().streams.set_peer(8, crate::rdm::PeerId(77)));
    push(&mut net, 8, b"of another", Protocol::Eager);
    net.settle();
    net.at(1, |e, w| {
        assert_eq!(e.snapshot().unexpected, 3);
        e.end_stream(w, None, 7);
        e.end_stream(w, None, 8);
        e.end_stream(w, Some(sender), 0);
        assert_eq!(e.snapshot().unexpected, 0);
    });
}

// [M10.1]
#[test]
fn packets_of_a_force_closed_peer_are_dropped() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    send(&mut net, MsgClass::Message, b"first", Protocol::Eager);
    net.settle();
    let sender = net.peer(1, 0);
    net.at(1, |e, w| e.force_close(w, sender));
    for (class, protocol) in [
        (MsgClass::Message, Protocol::Eager),
        (MsgClass::Stream, Protocol::Eager),
        (MsgClass::Am, Protocol::Medium),
    ] {
        send(&mut net, class, &message_bytes(4, 3000), protocol);
    }
    net.settle();
    let engine = &net.nodes[1].engine;
    assert_eq!(engine.snapshot().unexpected, 1, "the first, which came before");
    assert!(engine.peers().stats().dropped(DropReason::PeerFailed) >= 3);
}

// [M11.7]
#[test]
fn stream_ends_before_an_incomplete_piece() {
    let any = RecvKind::Class { class: MsgClass::Stream, tag: 0, mask: 0 };
    for matched in [false, true] {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE);
        open_stream(&mut net);
        let long = message_bytes(3, 20_000);
        send(&mut net, MsgClass::Stream, b"one", Protocol::Eager);
        net.settle();
        send(&mut net, MsgClass::Stream, &long, Protocol::LongCts);
        send(&mut net, MsgClass::Stream, b"three", Protocol::Eager);
        while net.deliver_one() {}
        let sender = net.peer(1, 0);
        let first = net.at(1, |e, _| e.receives().probe(any, Some(sender), ProbeRemove::Yes)).unwrap();
        assert_eq!(first.len, 3);
        let mut rooms = [vec![0; 20_000], vec![0; 20_000]];
        let [middle, room] = &mut rooms;
        if matched {
            let found = net.at(1, |e, _| e.receives().probe(any, Some(sender), ProbeRemove::Yes)).unwrap();
            let begun = net.at(1, |e, w| e.recv_probed(w, found.handle, recv_buf(middle), 9));
            assert!(matches!(begun, Started::Pending(_)));
        }
        net.at(1, |e, w| e.on_peer_error(w, sender, PeerError::Gone));
        let begun = net.at(1, |e, w| e.recv_probed(w, first.handle, recv_buf(room), 8));
        assert!(matches!(begun, Started::Done(status) if status.len == 3), "{begun:?}");
        assert_eq!(net.at(1, |e, _| e.receives().probe(any, Some(sender), ProbeRemove::No)), None);
        let sent_packets = std::mem::take(&mut net.sent_packets);
        sent_packets
            .iter()
            .filter(|sent_packet| sent_packet.to == 1)
            .for_each(|sent_packet| net.deliver(sent_packet));
        assert_eq!(net.at(1, |e, _| e.receives().probe(any, Some(sender), ProbeRemove::No)), None);
        let gone = EngineEvent::RecvDone { user: 9, result: Err(OpError::Peer(sender, PeerError::Gone)) };
        assert_eq!(net.events(1).contains(&gone), matched);
        assert_eq!(net.nodes[1].engine.snapshot(), crate::rdm::EngineSnapshot::EMPTY);
    }
}

#[test]
fn out_of_order_packet_of_a_dead_peer_is_dropped() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let sender = net.peer(1, 0);
    let peer = net.peer(0, 1);
    for n in 0..4 {
        net.send(0, peer, b"m", Some(n), Protocol::Eager);
    }
    let sent_packets = std::mem::take(&mut net.sent_packets);
    net.deliver(&sent_packets[2]);
    assert_eq!(net.nodes[1].engine.snapshot().reordering_peers, 1);
    net.at(1, |e, w| e.on_peer_error(w, sender, PeerError::Gone));
    net.deliver(&sent_packets[3]);
    net.events(1);
    assert_eq!(net.nodes[1].engine.snapshot(), crate::rdm::EngineSnapshot::EMPTY);
    assert!(net.nodes[1].engine.peers().stats().rare.peer_failed > 0);
}

#[test]
fn receive_gets_what_a_dead_peer_had_sent() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let (sender, peer) = (net.peer(1, 0), net.peer(0, 1));
    net.send(0, peer, b"first", Some(1), Protocol::Eager);
    net.settle();
    net.send(0, peer, b"last", Some(2), Protocol::Eager);
    let mut rooms = [[0; 8]; 3];
    let [one, two, three] = &mut rooms;
    let post = |net: &mut Net, room: &mut [u8], user| {
        let args = RecvArgs { buf: recv_buf(room), kind: exact(2), from: Some(sender), user };
        net.at(1, |e, w| e.recv(w, args))
    };
    assert!(matches!(post(&mut net, one, 1), Started::Pending(_)));
    assert!(matches!(post(&mut net, two, 2), Started::Pending(_)));
    net.at(1, |e, w| e.on_send_error(w, sender, PeerError::Gone));
    assert!(!net.events(1).iter().any(|out| matches!(out, EngineEvent::RecvDone { .. })));
    net.deliver_one();
    assert!(matches!(net.events(1)[..], [EngineEvent::RecvDone { user: 1, result: Ok(_) }]));
    let wire = net.nodes[1].wire;
    net.at(1, |e, w| e.on_wire_drained(w, wire));
    let gone = OpError::Peer(sender, PeerError::Gone);
    assert_eq!(net.events(1), [EngineEvent::RecvDone { user: 2, result: Err(gone) }]);
    assert_eq!(post(&mut net, three, 3), Started::Failed(gone));
    assert_eq!(net.nodes[1].engine.snapshot().receives, 0);
}
