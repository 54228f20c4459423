//! More messages than are received: their cost is bounded, and wires are paused.

use crate::rdm::Conversation;
use crate::rdm::ids::PeerId;
use crate::rdm::peers::limits::MAX_QUEUED_CTL;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::rma::mem::{Access, Region};
use crate::rdm::status::PeerError;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::ctl::{self, ErrorRef};
use crate::wire::{Features, MsgClass};

const LIMIT: usize = 20_000;

fn flooded() -> (Net, PeerId) {
    let cfg = EngineConfig { unexpected_max: LIMIT, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    let peer = net.peer(0, 1);
    for n in 0..100 {
        net.send(0, peer, &message_bytes(n, 400), Some(n), Protocol::Eager);
    }
    assert!(!net.nodes[1].engine.may_stop_polling());
    net.settle();
    (net, peer)
}

#[test]
fn memory_of_unexpected_messages_is_counted_and_released() {
    let (mut net, peer) = flooded();
    let long = message_bytes(7, 5000);
    assert!(matches!(
        net.send(0, peer, &long, Some(100), Protocol::Medium),
        Started::Pending(_) | Started::Done(())
    ));
    net.settle();
    let engine = &net.nodes[1].engine;
    let cost = engine.pending().unexpected_bytes();
    assert!((100 * 400 + 5000..=101 * 256 + 100 * 512 + 8192).contains(&cost), "{cost}");
    assert!(engine.pending().is_over_limit());
    let rare = engine.peers().stats().rare;
    assert!(rare.unexpected == 101 && rare.over_limit > 20 && rare.over_limit < 101, "{rare:?}");
    let mut room = vec![0; 5000];
    for n in 0..101 {
        assert!(matches!(net.recv(1, &mut room, exact(n), 0), Started::Done(_)));
    }
    assert_eq!(
        (net.nodes[1].engine.pending().unexpected_bytes(), net.nodes[1].engine.pending().held_bytes()),
        (0, 0)
    );
}

#[test]
fn messages_of_removed_peer_count_until_received() {
    let (mut net, _) = flooded();
    let peer = net.peer(1, 0);
    net.at(1, |e, w| e.remove_peer(w, peer));
    assert!(net.nodes[1].engine.pending().is_over_limit());
    let mut room = [0; 400];
    for n in 0..100 {
        assert!(matches!(net.recv(1, &mut room, exact(n), 0), Started::Done(_)));
    }
    assert_eq!(net.nodes[1].engine.pending().unexpected_bytes(), 0);
}

#[test]
fn engine_that_waits_keeps_polling() {
    let (mut net, _) = flooded();
    let back = net.peer(1, 0);
    assert!(net.nodes[1].engine.may_stop_polling() && net.nodes[1].engine.may_stop_polling());

    assert!(net.nodes[1].engine.receives().probe(exact(7), None, ProbeRemove::No).is_some());
    assert!(net.nodes[1].engine.may_stop_polling(), "it was there");
    assert!(net.nodes[1].engine.receives().probe(exact(777), None, ProbeRemove::No).is_none());
    assert!(!net.nodes[1].engine.may_stop_polling(), "looked for in vain");
    assert!(net.nodes[1].engine.may_stop_polling(), "once");
    net.nodes[1].engine.receives().expect_arrivals();
    assert!(!net.nodes[1].engine.may_stop_polling());

    let mut room = [0; 8];
    let Started::Pending(op) = net.recv(1, &mut room, exact(777), 0) else { panic!() };
    assert!(!net.nodes[1].engine.may_stop_polling(), "a receive waits");
    assert!(net.nodes[1].engine.receives().cancel(op));
    assert!(!net.nodes[1].engine.may_stop_polling(), "somebody is to be told");
    net.events(1);
    assert!(net.nodes[1].engine.may_stop_polling());

    let args = SendArgs {
        buf: send_buf(b"?"),
        tag: Some(1),
        sync: DeliveryComplete::Yes,
        cq_data: None,
        protocol: Protocol::Eager,
        user: 0,
    };
    assert!(matches!(net.send_args(1, back, args), Started::Pending(_)));
    assert!(!net.nodes[1].engine.may_stop_polling(), "a send waits for its receipt");
    let mut there = [0; 8];
    net.recv(0, &mut there, exact(1), 0);
    net.settle();
    net.events(1);
    assert!(net.nodes[1].engine.may_stop_polling());

    let mut bytes = vec![0u8; 64];
    // SAFETY: the region's key is not given out, and the bytes outlive it.
    let region = unsafe { Region::new(bytes.as_mut_ptr(), bytes.len(), Access::all()) }.unwrap();
    let key = net.nodes[1].engine.memory().add(region).unwrap();
    assert!(!net.nodes[1].engine.may_stop_polling(), "peers may want this memory");
    assert!(net.at(1, |e, w| e.remove_memory(w, key)));
    assert!(net.nodes[1].engine.may_stop_polling());
}

#[test]
fn unexpected_messages_never_exceed_the_memory_limit() {
    const MOST: usize = 40_000;
    for (len, protocol) in [(400, Protocol::Eager), (9000, Protocol::Medium), (9000, Protocol::LongCts)] {
        let cfg =
            EngineConfig { unexpected_max: LIMIT, unexpected_hard_max: MOST, ..EngineConfig::default() };
        let mut net = Net::with(3, 1, NetConfig::RELIABLE, cfg);
        let (flooded, quiet) = (net.peer(0, 1), net.peer(2, 1));
        let over_limit_peer = net.peer(1, 0);
        let (mut remote_id, mut anybodys) = ([0; 8], [0; 8]);
        let args = RecvArgs {
            buf: recv_buf(&mut remote_id),
            kind: exact(777),
            from: Some(over_limit_peer),
            user: 1,
        };
        net.at(1, |e, w| e.recv(w, args));
        net.recv(1, &mut anybodys, exact(777), 2);
        let body = message_bytes(7, len);
        for n in 0..200 {
            net.send(0, flooded, &body, Some(n), protocol);
            net.settle();
            assert!(net.nodes[1].engine.pending().unexpected_bytes() <= MOST, "{protocol:?}: after {n}");
        }
        net.send(0, flooded, b"too late", Some(777), Protocol::Eager);
        net.settle();
        let flood = OpError::Peer(over_limit_peer, PeerError::OverLimit);
        let outs = net.events(1);
        assert!(
            outs.contains(&EngineEvent::RecvDone { user: 1, result: Err(flood) }),
            "{protocol:?}: {outs:?}"
        );
        assert!(
            outs.contains(&EngineEvent::PeerFailed { peer: over_limit_peer, fault: PeerError::OverLimit })
        );
        assert!(
            !outs.iter().any(|out| matches!(out, EngineEvent::RecvDone { user: 2, .. })),
            "nothing overtakes what was refused"
        );
        net.send(2, quiet, b"hello", Some(777), Protocol::Eager);
        net.settle();
        assert!(
            net.events(1).iter().any(|out| matches!(out, EngineEvent::RecvDone { user: 2, result: Ok(_) }))
        );
        if protocol == Protocol::Eager {
            let mut room = vec![0; len];
            assert!(matches!(net.recv(1, &mut room, exact(0), 3), Started::Done(_)));
            assert_eq!(room, body);
        }
    }
}

#[test]
fn out_of_order_packets_never_exceed_the_memory_limit() {
    const MOST: usize = 40_000;
    let cfg = EngineConfig { unexpected_max: LIMIT, unexpected_hard_max: MOST, ..EngineConfig::default() };
    for protocol in [Protocol::Eager, Protocol::Medium] {
        let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
        let (peer, over_limit_peer) = (net.peer(0, 1), net.peer(1, 0));
        net.send(0, peer, b"met", Some(0), Protocol::Eager);
        net.settle();
        net.send(0, peer, b"lost", Some(1), Protocol::Eager);
        net.sent_packets.clear();
        let body = message_bytes(7, 400);
        let mut most = 0;
        for n in 0..200 {
            net.send(0, peer, &body, Some(n), protocol);
            net.settle();
            most = most.max(net.nodes[1].engine.pending().held_bytes());
        }
        assert!((MOST / 2..=MOST).contains(&most), "{protocol:?}: {most}");
        assert!(
            net.events(1)
                .contains(&EngineEvent::PeerFailed { peer: over_limit_peer, fault: PeerError::OverLimit }),
            "{protocol:?}"
        );
        assert!(
            net.nodes[1].engine.pending().held_bytes() <= 3,
            "what waited is given back: all but the first"
        );
    }
}

// [M10.4]
#[test]
fn skipped_message_ids_never_exceed_the_memory_limit() {
    const MOST: usize = 40_000;
    let cfg = EngineConfig { unexpected_max: LIMIT, unexpected_hard_max: MOST, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    let (peer, over_limit_peer) = (net.peer(0, 1), net.peer(1, 0));
    net.send(0, peer, b"met", Some(0), Protocol::Eager);
    net.settle();
    let due = net.nodes[1].engine.next_rx(over_limit_peer);
    for n in 1..10_000 {
        let mut bytes = vec![0; ctl::PeerError::LEN];
        let what = ErrorRef::Skip(due.wrapping_add(n));
        ctl::PeerError { what, prov_errno: 5, connid: None }.write(&mut bytes);
        net.deliver(&SentPacket { from: 0, to: 1, bytes });
    }
    let failed = EngineEvent::PeerFailed { peer: over_limit_peer, fault: PeerError::OverLimit };
    assert!(net.events(1).contains(&failed));
}

// [M10.7]
#[test]
fn peer_cut_off_for_a_flood_gets_an_error() {
    const ROOM: usize = 40_000;
    for protocol in [Protocol::Eager, Protocol::LongCts] {
        let cfg =
            EngineConfig { unexpected_max: LIMIT, unexpected_hard_max: ROOM, ..EngineConfig::default() };
        let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
        let (flooded, back) = (net.peer(0, 1), net.peer(1, 0));
        net.send(0, flooded, b"met", Some(0), Protocol::Eager);
        net.settle();
        let body = message_bytes(7, 900);
        let sync = |user| SendArgs {
            buf: send_buf(&body),
            tag: Some(user),
            sync: DeliveryComplete::Yes,
            cq_data: None,
            protocol: protocol.with(DeliveryComplete::Yes),
            user,
        };
        let count = 200;
        for user in 1..=count {
            net.send_args(0, flooded, sync(user));
        }
        net.settle();
        assert!(
            net.events(1).contains(&EngineEvent::PeerFailed { peer: back, fault: PeerError::OverLimit }),
            "{protocol:?}"
        );
        let told = |outs: &[EngineEvent], user| {
            outs.contains(&EngineEvent::SendDone { user, result: Err(OpError::Aborted(flooded, 4108)) })
        };
        let outs = net.events(0);
        assert!(told(&outs, count) && !told(&outs, 1), "{protocol:?}: {outs:?}");
        net.send_args(0, flooded, sync(999));
        net.settle();
        assert!(told(&net.events(0), 999), "{protocol:?}");
        if protocol == Protocol::Eager {
            // The message that was one too many is told of, too.
            let first = (1..=count).find(|user| told(&outs, *user)).unwrap();
            let mut room = vec![0; body.len()];
            assert!(matches!(net.recv(1, &mut room, exact(first - 1), 3), Started::Done(_)), "{first}");
        }
    }
}

// [M10.7]
#[test]
fn peer_cut_off_before_the_handshake_gets_an_error() {
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, EngineConfig::default());
    let (to, back) = (net.peer(0, 1), net.peer(1, 0));
    // It has been spoken to, and has not answered.
    net.send(1, back, b"hi", Some(1), Protocol::Eager);
    net.at(1, |e, w| e.force_close(w, back));
    let body = message_bytes(7, 900);
    for (user, protocol) in [(1, Protocol::DcEager), (2, Protocol::DcLongCts)] {
        let args = SendArgs {
            buf: send_buf(&body),
            tag: Some(user),
            sync: DeliveryComplete::Yes,
            cq_data: None,
            protocol,
            user,
        };
        net.send_args(0, to, args);
    }
    net.settle();
    let outs = net.events(0);
    for user in [1, 2] {
        let told = EngineEvent::SendDone { user, result: Err(OpError::Aborted(to, 4127)) };
        assert!(outs.contains(&told), "{user}: {outs:?}");
    }
}

/// Fills the queue of control packets of a peer of node 1, whose wire takes nothing.
fn fill_ctl(net: &mut Net, peer: PeerId) {
    net.nodes[1].wire_full = true;
    let answer = Ctl::Receipt { send_id: 1, msg_id: 1 };
    net.at(1, |e, _| e.peers.table[peer].queue_mut().ctl.resize(MAX_QUEUED_CTL, answer));
}

fn queued_ctl(net: &Net, peer: PeerId) -> usize {
    net.nodes[1].engine.peers.table[peer].queue.as_ref().map_or(0, |queue| queue.ctl.len())
}

/// Sends a long piece of the stream with this tag to node 1.
fn push_piece(net: &mut Net, from: usize, tag: u64, bytes: &[u8]) {
    let to = net.peer(from, 1);
    let (sync, cq_data, protocol) = (DeliveryComplete::No, None, Protocol::LongCts);
    let args = SendArgs { buf: send_buf(bytes), tag: Some(tag), sync, cq_data, protocol, user: 1 };
    net.at(from, |e, w| e.send_class(w, to, MsgClass::Stream, args));
}

/// A peer that asks and takes no answers is closed, whatever it asks.
#[test]
fn refusals_of_stream_pieces_that_wait_are_bounded() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let (peer, over_limit_peer) = (net.peer(0, 1), net.peer(1, 0));
    net.send(0, peer, b"met", Some(0), Protocol::Eager);
    net.settle();
    net.events(1);
    fill_ctl(&mut net, over_limit_peer);
    // Nobody receives this stream.
    push_piece(&mut net, 0, 9, &message_bytes(3, 20_000));
    while net.deliver_one() {
        assert!(queued_ctl(&net, over_limit_peer) <= MAX_QUEUED_CTL);
    }
    let failed = EngineEvent::PeerFailed { peer: over_limit_peer, fault: PeerError::OverLimit };
    assert_eq!(net.events(1), [failed]);
    assert_eq!(queued_ctl(&net, over_limit_peer), 0);
}

#[test]
fn receipts_of_closes_that_wait_are_bounded() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let (peer, over_limit_peer) = (net.peer(0, 1), net.peer(1, 0));
    net.send(0, peer, b"met", Some(0), Protocol::Eager);
    net.settle();
    fill_ctl(&mut net, over_limit_peer);
    net.at(0, |e, w| e.force_close(w, peer));
    net.resume(0);
    while net.deliver_one() {}
    assert!(queued_ctl(&net, over_limit_peer) <= MAX_QUEUED_CTL, "{}", queued_ctl(&net, over_limit_peer));
}

/// Two peers exceed a limit between two packets: both are closed.
#[test]
fn each_peer_over_a_limit_is_closed() {
    for by_a_packet in [false, true] {
        let mut net = Net::new(4, 1, NetConfig::RELIABLE);
        let over_limit_peers = [0, 2].map(|node| {
            let (peer, over_limit_peer) = (net.peer(node, 1), net.peer(1, node));
            net.send(node, peer, b"met", Some(0), Protocol::Eager);
            net.settle();
            over_limit_peer
        });
        let quiet = net.peer(3, 1);
        let long = message_bytes(3, 20_000);
        for (node, tag, over_limit_peer) in [(0, 7, over_limit_peers[0]), (2, 8, over_limit_peers[1])] {
            net.at(1, |e, _| e.peers_mut().streams.open(tag, Some(over_limit_peer)));
            push_piece(&mut net, node, tag, &long);
        }
        while net.deliver_one() {}
        net.events(1);
        over_limit_peers.iter().for_each(|over_limit_peer| fill_ctl(&mut net, *over_limit_peer));
        // Nobody receives what they have sent, and they take no answer.
        for tag in [7, 8] {
            net.at(1, |e, w| e.end_stream(w, None, tag));
        }
        if by_a_packet {
            net.send(3, quiet, b"hello", Some(1), Protocol::Eager);
            while net.deliver_one() {}
        } else {
            net.resume(1);
        }
        let failed =
            over_limit_peers.map(|peer| EngineEvent::PeerFailed { peer, fault: PeerError::OverLimit });
        assert_eq!(net.events(1), failed);
    }
}

/// A peer that knows no closes was closed, and a message of it arrives early: its number is passed over in
/// the next conversation. Without memory for that there is none, where the messages would wait for ever.
#[test]
fn a_closed_peer_whose_order_is_lost_begins_no_other_conversation() {
    const MOST: usize = 40_000;
    for has_room in [true, false] {
        let withhold = Features::CLOSE;
        let cfg = EngineConfig { unexpected_hard_max: MOST, withhold, ..EngineConfig::default() };
        let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
        let (peer, closed) = (net.peer(0, 1), net.peer(1, 0));
        net.send(0, peer, b"met", Some(0), Protocol::Eager);
        net.settle();
        net.at(1, |e, w| e.force_close(w, closed));
        net.settle();
        let may_follow = |net: &Net| Conversation::with(net.nodes[1].engine.peers(), closed).may_follow;
        assert!(may_follow(&net));
        let other = net.at(1, |e, _| e.pending.held_packets.copy_reordered(&[0; MOST]));
        if has_room {
            net.at(1, |e, _| e.pending.held_packets.release_reordered(other));
        }
        for text in [b"late", b"next"] {
            net.send(0, peer, text, Some(1), Protocol::Eager);
        }
        let early = net.sent_packets.pop().unwrap();
        net.deliver(&early);
        assert_eq!(may_follow(&net), has_room);
        assert_eq!(net.nodes[1].engine.snapshot().reordering_peers, usize::from(has_room));
    }
}
