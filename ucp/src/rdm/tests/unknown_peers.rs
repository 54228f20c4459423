//! Unknown peers: senders that introduce themselves and do not answer are bounded in number, and removed if
//! nobody is there. Honest ones lose nothing.

use std::time::Duration;

use crate::rdm::ids::{PeerId, Source};
use crate::rdm::protocol::Protocol;
use crate::rdm::status::PeerError;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::rdm::{has_unknown_peers, mark_connected, remove_unknown_peers};
use ucs::time::Nanos;

/// Length of the header of a tagged eager message, before its options.
const TAGGED_EAGER_LEN: usize = 16;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A forger: one packet, over and over, from addresses where nobody is.
#[test]
fn forged_senders_are_bounded_and_known_peers_go_on() {
    const LIMIT: u32 = 64;
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    net.send(0, peer, b"forged", Some(1), Protocol::Eager);
    let first = net.sent_packets.pop().unwrap();
    let cfg = EngineConfig { max_unknown_peers: LIMIT, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    // An honest peer that has answered before.
    let honest = net.peer(0, 1);
    let mut room = [0; 6];
    let mut exchange = |net: &mut Net, n: u64| {
        net.send(0, honest, b"honest", Some(2), Protocol::Eager);
        net.settle();
        assert!(matches!(net.recv(1, &mut room, exact(2), n), Started::Done(_)), "message {n}");
    };
    exchange(&mut net, 0);
    let mut events = Vec::new();
    for n in 0..10 * u64::from(LIMIT) {
        let (wire, from) = (net.nodes[1].wire, Source { node: 1000 + n, port: 5 });
        let bytes = naming(from, &first);
        net.at(1, |e, w| e.on_packet(w, ucs::time::Nanos::default(), wire, from, &bytes));
        net.sent_packets.clear();
        events.extend(net.events(1));
        if n % 50 == 0 {
            exchange(&mut net, n);
        }
    }
    let rare = net.nodes[1].engine.peers().stats().rare;
    assert!(rare.peers_found <= u64::from(LIMIT) + 1, "{rare:?}");
    assert!(rare.no_path >= 8 * u64::from(LIMIT), "{rare:?}");
    let told =
        events.iter().filter(|event| matches!(event, EngineEvent::UnknownPeersRefused { limit: LIMIT }));
    assert!((1..100).contains(&told.count()));
}

/// Messages that forgers send: of node 0, the `n`th of its conversation.
fn messages(n: usize) -> Vec<SentPacket> {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    (0..n).for_each(|_| {
        net.send(0, peer, b"forged", Some(1), Protocol::Eager);
    });
    net.sent_packets
}

fn forger(n: u64) -> Source {
    Source { node: 1000 + n, port: 5 }
}

/// A tagged eager message with this address of its sender.
fn naming(from: Source, packet: &SentPacket) -> Vec<u8> {
    let mut bytes = packet.bytes.clone();
    let addr = TAGGED_EAGER_LEN + 4;
    bytes[addr + 8..addr + 16].copy_from_slice(&from.node.to_be_bytes());
    bytes[addr + 16..addr + 18].copy_from_slice(&(from.port as u16).to_le_bytes());
    bytes
}

/// Gives node 1 a packet of a source, which it answers; `is_there`: the answer arrives.
fn forge(net: &mut Net, from: Source, packet: &SentPacket, is_there: bool) {
    let wire = net.nodes[1].wire;
    let bytes = naming(from, packet);
    net.at(1, |e, w| e.on_packet(w, Nanos::default(), wire, from, &bytes));
    net.sent_packets.clear();
    let peer = net.nodes[1].engine.peers().lookup.known(wire, from).and_then(|lane| lane.first_of());
    if let Some(peer) = peer.filter(|_| !is_there) {
        net.at(1, |e, w| e.on_send_error(w, peer, PeerError::Gone));
    }
}

fn receive_all(net: &mut Net, many: usize) {
    let mut room = [0; 6];
    (0..many).for_each(|n| assert!(matches!(net.recv(1, &mut room, exact(1), n as u64), Started::Done(_))));
}

/// Removes who is absent at this time, and returns how many they were.
fn reap(net: &mut Net, at: Duration, keep: Option<PeerId>) -> usize {
    let reap = |e: &mut crate::rdm::Engine, w: &mut NodeWire<'_>| {
        let round = |_| remove_unknown_peers(e, w, Nanos::default() + at, |peer| Some(peer) == keep).len();
        (0..64).map(round).sum()
    };
    net.at(1, reap)
}

#[test]
fn absent_unknown_peers_are_removed_and_their_memory_used_again() {
    const MANY: usize = 500;
    let packets = messages(1);
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let mut slots = Vec::new();
    for round in 0..4u32 {
        let at = TIMEOUT * 3 * round;
        for n in 0..MANY as u64 {
            forge(&mut net, forger(1000 * u64::from(round) + n), &packets[0], false);
        }
        assert_eq!(reap(&mut net, at, None), 0, "their messages wait");
        receive_all(&mut net, MANY);
        assert_eq!(reap(&mut net, at + TIMEOUT / 2, None), 0, "not yet");
        assert_eq!(reap(&mut net, at + TIMEOUT, None), MANY);
        assert!(!has_unknown_peers(net.nodes[1].engine.peers()));
        assert_eq!(net.nodes[1].engine.peers().table.len(), 0);
        slots.push(net.nodes[1].engine.peers().table.slots());
    }
    assert_eq!(slots, [MANY as u32; 4], "the same slots");
    let rare = net.nodes[1].engine.peers().stats().rare;
    assert_eq!((rare.unknown_peers_removed, rare.peers_found), (4 * MANY as u64, 4 * MANY as u64));
}

#[test]
fn unknown_peers_that_may_be_there_stay() {
    let packets = messages(1);
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    // One that got our answer, one that the program needs, one of which a message waits, and a connected one.
    forge(&mut net, forger(0), &packets[0], true);
    forge(&mut net, forger(1), &packets[0], false);
    receive_all(&mut net, 2);
    forge(&mut net, forger(2), &packets[0], false);
    let known = |net: &Net, n| {
        let wire = net.nodes[1].wire;
        net.nodes[1].engine.peers().lookup.known(wire, forger(n)).and_then(|lane| lane.first_of())
    };
    let (needed, waiting) = (known(&net, 1).unwrap(), known(&net, 2).unwrap());
    reap(&mut net, Duration::ZERO, None);
    assert_eq!(reap(&mut net, TIMEOUT, Some(needed)), 0);
    receive_all(&mut net, 1);
    net.at(1, |e, _| mark_connected(e.peers_mut(), waiting));
    assert_eq!(reap(&mut net, TIMEOUT, Some(needed)), 0);
    assert_eq!(reap(&mut net, TIMEOUT, None), 1);
    assert_eq!((known(&net, 0).is_some(), known(&net, 1), known(&net, 2)), (true, None, Some(waiting)));
}

/// The network was down for longer than the limit: the next message of the sender is the next one here.
#[test]
fn a_removed_unknown_peer_goes_on_with_its_next_message() {
    let packets = messages(3);
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    for (n, packet) in packets.iter().enumerate() {
        forge(&mut net, forger(0), packet, false);
        receive_all(&mut net, 1);
        let at = TIMEOUT * 3 * n as u32;
        assert_eq!((reap(&mut net, at, None), reap(&mut net, at + TIMEOUT, None)), (0, 1));
    }
    // A message that has been taken is a duplicate.
    forge(&mut net, forger(0), &packets[1], false);
    let mut room = [0; 6];
    assert!(matches!(net.recv(1, &mut room, exact(1), 9), Started::Pending(_)));
}

// [M2.6]
#[test]
fn an_address_that_is_not_the_source_makes_no_peer() {
    let packet = &messages(1)[0];
    let own = source(&address(0));
    let forgers = [Source { node: own.node + 1, ..own }, Source { port: own.port + 1, ..own }, forger(0)];
    for from in forgers {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE);
        let wire = net.nodes[1].wire;
        net.at(1, |e, w| e.on_packet(w, Nanos::default(), wire, from, &packet.bytes));
        let peers = net.nodes[1].engine.peers();
        let rare = peers.stats().rare;
        assert_eq!((rare.wrong_address, rare.peers_found, peers.table.len()), (1, 0, 0), "{from:?}");
        assert!(net.sent_packets.is_empty(), "nobody is answered");
        // The worker at that address becomes a peer.
        net.at(1, |e, w| e.on_packet(w, Nanos::default(), wire, own, &packet.bytes));
        receive_all(&mut net, 1);
        // A forger does not take its place.
        net.at(1, |e, w| e.on_packet(w, Nanos::default(), wire, from, &packet.bytes));
        assert_eq!(net.nodes[1].engine.peers().stats().rare.wrong_address, 2);
    }
    // A device that does not know the GID gives none.
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let (wire, from) = (net.nodes[1].wire, Source { node: 0, ..own });
    net.at(1, |e, w| e.on_packet(w, Nanos::default(), wire, from, &packet.bytes));
    receive_all(&mut net, 1);
}
