//! Messages that nobody wants: their senders get an end, also while no receive is left.

use super::super::io::PeerError;
use crate::rdm::ids::{OpId, PeerId};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::rdm::{Discard, discard};
use crate::wire::MsgClass;

const LEN: usize = 50_000;
const NUMBER: u64 = 7;

fn send(net: &mut Net, class: MsgClass, bytes: &[u8], (protocol, user): (Protocol, u64)) {
    let peer = net.peer(0, 1);
    let args = SendArgs {
        buf: send_buf(bytes),
        tag: Some(NUMBER),
        sync: DeliveryComplete::No,
        cq_data: None,
        protocol,
        user,
    };
    let started = net.at(0, |e, w| e.send_class(w, peer, class, args));
    assert!(matches!(started, Started::Pending(_)));
}

/// Posts receives that nothing matches, until there is no room for more. Returns them.
fn fill(net: &mut Net) -> Vec<OpId> {
    let mut posted = Vec::new();
    while let Started::Pending(op) = net.recv(1, &mut [], exact(77), 0) {
        posted.push(op);
    }
    posted
}

/// Frees as many receives.
fn free(net: &mut Net, posted: &mut Vec<OpId>, many: usize) {
    for op in posted.drain(..many) {
        assert!(net.at(1, |e, _| e.receives().cancel(op)));
    }
    net.events(1);
}

fn probe(net: &mut Net) -> Probed {
    net.at(1, |e, _| e.receives().probe(exact(NUMBER), None, ProbeRemove::Yes)).expect("it has arrived")
}

fn ends(net: &mut Net) -> Vec<(u64, Result<(), OpError>)> {
    let of = |event| match event {
        EngineEvent::SendDone { user, result } => (user, result),
        other => panic!("{other:?}"),
    };
    net.events(0).into_iter().map(of).collect()
}

/// One test, since a full table takes much memory.
#[test]
fn sends_of_discarded_messages_complete_without_a_free_receive_entry() {
    let bytes = message_bytes(1, LEN);
    for protocol in [Protocol::LongCts, Protocol::LongRead] {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE).with_rdma(1 << 20);
        let peer = net.peer(0, 1);
        net.meet(0, peer);
        let from = net.peer(1, 0);
        net.meet(1, from);
        let mut posted = fill(&mut net);
        // Data that an active message has announced, discarded before and after it has come; a probed
        // message; one that is whole and needs no receive.
        net.at(1, |e, w| discard(e, w, from, Discard::Announced(NUMBER)));
        send(&mut net, MsgClass::AmData, &bytes, (protocol, 1));
        send(&mut net, MsgClass::Message, &bytes, (protocol, 2));
        net.settle();
        let message = probe(&mut net);
        net.at(1, |e, w| discard(e, w, from, Discard::Probed(message.handle)));
        net.settle();
        assert_eq!(ends(&mut net), []);
        send(&mut net, MsgClass::Message, &bytes[..10], (Protocol::DcEager, 3));
        net.settle();
        let whole = probe(&mut net);
        net.at(1, |e, w| discard(e, w, from, Discard::Probed(whole.handle)));
        net.settle();
        assert_eq!(ends(&mut net), [(3, Ok(()))]);
        free(&mut net, &mut posted, 1);
        net.settle();
        let mut ended = ends(&mut net);
        ended.sort_by_key(|end| end.0);
        assert_eq!(ended, [(1, Ok(())), (2, Ok(()))]);
        assert_eq!((net.events(1), net.nodes[1].engine.snapshot().unexpected), (vec![], 0));
        // One whose sender fails meanwhile leaves nothing.
        posted.extend(fill(&mut net));
        send(&mut net, MsgClass::Message, &bytes, (protocol, 4));
        send(&mut net, MsgClass::AmData, &bytes, (protocol, 5));
        net.settle();
        let message = probe(&mut net);
        net.at(1, |e, w| discard(e, w, from, Discard::Probed(message.handle)));
        net.at(1, |e, w| discard(e, w, from, Discard::Announced(NUMBER)));
        assert_eq!(net.nodes[1].engine.snapshot().unexpected, 2);
        net.at(1, |e, w| e.on_peer_error(w, from, PeerError::Gone));
        let snapshot = net.nodes[1].engine.snapshot();
        assert_eq!((snapshot.unexpected, snapshot.held_bytes), (0, 0));
        let scheduled = net.resume(1);
        assert_eq!(scheduled, 0);
    }
}

/// Data without a byte, and data in one packet, end a discard without an event, as the rest does.
#[test]
fn discards_are_not_reported() {
    for len in [0, 10, 5000, LEN] {
        let bytes = message_bytes(1, len);
        let mut net = Net::new(2, 1, NetConfig::RELIABLE);
        let peer = net.peer(0, 1);
        net.meet(0, peer);
        let from: PeerId = net.peer(1, 0);
        net.at(1, |e, w| discard(e, w, from, Discard::Announced(NUMBER)));
        let protocol = match len {
            0 | 10 => Protocol::Eager,
            5000 => Protocol::Medium,
            _ => Protocol::LongCts,
        };
        let args = SendArgs {
            buf: send_buf(&bytes),
            tag: Some(NUMBER),
            sync: DeliveryComplete::No,
            cq_data: None,
            protocol,
            user: 1,
        };
        net.at(0, |e, w| e.send_class(w, peer, MsgClass::AmData, args));
        net.settle();
        let snapshot = net.nodes[1].engine.snapshot();
        assert_eq!((net.events(1), snapshot.unexpected), (vec![], 0), "{len}");
        assert!(ends(&mut net).iter().all(|end| *end == (1, Ok(()))));
    }
}

/// The sender of an announced piece of a stream is told when the stream ends before it is received.
// [M11.7]
#[test]
fn senders_of_held_stream_pieces_are_told() {
    let bytes = message_bytes(1, LEN);
    for protocol in [Protocol::LongCts, Protocol::LongRead, Protocol::DcEager] {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE).with_rdma(1 << 20);
        let peer = net.peer(0, 1);
        net.meet(0, peer);
        let from = net.peer(1, 0);
        net.meet(1, from);
        net.at(1, |e, _| e.peers_mut().streams.open(NUMBER, None));
        let len = if protocol == Protocol::DcEager { 10 } else { LEN };
        send(&mut net, MsgClass::Stream, &bytes[..len], (protocol, 1));
        net.settle();
        assert_eq!((ends(&mut net), net.nodes[1].engine.snapshot().unexpected), (vec![], 1));
        net.at(1, |e, w| e.end_stream(w, Some(from), NUMBER));
        net.settle();
        let told = matches!(ends(&mut net)[..], [(1, Err(OpError::Aborted(..)))]);
        assert!(told && net.nodes[1].engine.snapshot().unexpected == 0);
    }
}
