//! Closes: what both sides have begun ends, what is lost is told, and the next conversation begins with
//! nothing of the last, in any order of packets.

use std::collections::BTreeSet;

use super::rma::{put_args, share};
use crate::rdm::Cancel;
use crate::rdm::ids::PeerId;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::rma::args::{PutArgs, RmaProtocol};
use crate::rdm::rma::mem::Access;
use crate::rdm::status::{OpError, PeerError};
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::rdm::{Conversation, EngineSnapshot, notify_lost_peers};
use crate::wire::{EfaStatus, Features, MsgClass, PktType};

const LEN: usize = 20_000;

fn cfg() -> EngineConfig {
    EngineConfig { runt_size: 3000, cts_credits: 2, ..EngineConfig::default() }
}

fn connected(net_config: NetConfig) -> (Net, PeerId, PeerId) {
    let mut net = Net::with(2, 1, net_config, cfg()).with_rdma(4000);
    let (to, back) = (net.peer(0, 1), net.peer(1, 0));
    net.meet(0, to);
    (net, to, back)
}

fn connect(net: &mut Net, me: usize) -> PeerId {
    let you = 1 - me;
    let (addr, wire) = (net.nodes[you].addr, net.nodes[me].wire);
    net.at(me, |e, w| e.add_peer(w, wire, addr, source(&addr)))
}

fn close(net: &mut Net, me: usize) {
    let peer = net.peer(me, 1 - me);
    net.at(me, |e, w| e.force_close(w, peer));
}

fn sends(net: &mut Net, me: usize) -> Vec<(u64, Result<(), OpError>)> {
    let ends = net.events(me).into_iter().filter_map(|event| match event {
        EngineEvent::SendDone { user, result } | EngineEvent::RmaDone { user, result } => {
            Some((user, result))
        }
        _ => None,
    });
    ends.collect()
}

fn args(bytes: &[u8], tag: u64, protocol: Protocol) -> SendArgs {
    SendArgs {
        buf: send_buf(bytes),
        tag: Some(tag),
        sync: protocol.sync(),
        cq_data: None,
        protocol,
        user: tag,
    }
}

const PROTOCOLS: [Protocol; 8] = [
    Protocol::Eager,
    Protocol::DcEager,
    Protocol::Medium,
    Protocol::DcMedium,
    Protocol::LongCts,
    Protocol::DcLongCts,
    Protocol::LongRead,
    Protocol::RuntRead,
];

fn len_for(protocol: Protocol) -> usize {
    if protocol.plain() == Protocol::Eager { 100 } else { LEN }
}

// [M11.15] [M11.16]
#[test]
fn close_ends_what_the_peer_has_begun() {
    for reorder in [false, true] {
        for claimed in [false, true] {
            for protocol in PROTOCOLS {
                for class in [MsgClass::Message, MsgClass::Am, MsgClass::AmData, MsgClass::Stream] {
                    let (mut net, to, back) = connected(NetConfig { reorder, ..NetConfig::RELIABLE });
                    let bytes = message_bytes(3, len_for(protocol));
                    net.at(1, |e, _| e.peers_mut().streams.open(5, None));
                    let sent = net.at(0, |e, w| e.send_class(w, to, class, args(&bytes, 5, protocol)));
                    net.settle();
                    let why = format!("{protocol:?} {class:?} claimed {claimed}");
                    if claimed {
                        let any = RecvKind::Class { class, tag: 0, mask: 0 };
                        let any = if class == MsgClass::Message { ANY } else { any };
                        let found = net.at(1, |e, _| e.receives().probe(any, None, ProbeRemove::Yes));
                        assert!(found.is_some(), "{why}");
                    }
                    let mut room = [0; 9];
                    let named = RecvArgs { buf: recv_buf(&mut room), kind: ANY, from: Some(to), user: 9 };
                    net.at(0, |e, w| e.recv(w, named));
                    let done = matches!(sent, Started::Done(())) || sends(&mut net, 0).contains(&(5, Ok(())));
                    close(&mut net, 1);
                    net.settle();
                    let (mut ended, mut received, mut failed) = (Vec::new(), Vec::new(), Vec::new());
                    for event in net.events(0) {
                        match event {
                            EngineEvent::SendDone { result, .. } => ended.push(result),
                            EngineEvent::RecvDone { user: 9, result } => received.push(result.map(drop)),
                            EngineEvent::PeerFailed { peer, fault } => failed.push((peer, fault)),
                            other => panic!("{why}: {other:?}"),
                        }
                    }
                    let aborted = Err(OpError::Aborted(to, 4127));
                    assert_eq!(ended, if done { vec![] } else { vec![aborted] }, "{why}");
                    assert_eq!((received, failed), (vec![aborted], vec![(to, PeerError::Closed)]), "{why}");
                    assert!(net.nodes[0].engine.is_flushed(Some(to)), "{why}");
                    let after = net.send(0, to, b"no", Some(1), Protocol::Eager);
                    let refused = Started::Failed(OpError::Peer(to, PeerError::Closed));
                    assert_eq!(after, refused, "{why}");
                    assert!(net.nodes[1].engine.peers().info(back).unwrap().fault.is_some());
                    let reopened = [connect(&mut net, 0), connect(&mut net, 1)];
                    assert_eq!(reopened, [to, back]);
                    exchange(&mut net, &why);
                }
            }
        }
    }
}

/// Messages of every protocol arrive both ways, and nothing is left.
fn exchange(net: &mut Net, why: &str) {
    // What came before, and was whole.
    for me in 0..2 {
        let mut room = vec![0; LEN];
        while net.at(me, |e, _| e.receives().probe(ANY, None, ProbeRemove::No)).is_some() {
            assert!(matches!(net.recv(me, &mut room, ANY, 0), Started::Done(_)), "{why}");
        }
    }
    net.events(0);
    net.events(1);
    for me in 0..2 {
        let peer = net.peer(me, 1 - me);
        for (n, protocol) in PROTOCOLS.into_iter().enumerate() {
            let (bytes, mut room) = (message_bytes(n as u64, len_for(protocol)), vec![0; LEN]);
            let tag = 1000 + n as u64;
            net.recv(1 - me, &mut room, exact(tag), tag);
            let started = net.send_args(me, peer, args(&bytes, tag, protocol));
            net.settle();
            let ended = sends(net, me);
            let well = started == Started::Done(()) || ended == [(tag, Ok(()))];
            assert!(well, "{why}: {protocol:?} from {me}: {started:?} {ended:?}");
            assert!(room[..bytes.len()] == bytes, "{why}: {protocol:?} from {me}");
            net.events(1 - me);
        }
    }
}

// [M11.16]
#[test]
fn flush_of_the_worker_tells_lost_messages() {
    for heard in [true, false] {
        let (mut net, to, _) = connected(NetConfig::RELIABLE);
        assert_eq!(net.send(0, to, b"taken", Some(1), Protocol::Eager), Started::Done(()));
        net.settle();
        if !heard {
            assert_eq!(net.send(0, to, b"lost", Some(1), Protocol::Eager), Started::Done(()));
        }
        close(&mut net, 1);
        net.settle();
        let lost = net.nodes[0].engine.peers_mut().take_failed();
        assert_eq!(lost, (!heard).then_some((to, PeerError::Closed)));
        assert_eq!(net.nodes[1].engine.peers_mut().take_failed(), None, "who closes knows");
        let mut room = [0; 9];
        assert!(matches!(net.recv(1, &mut room, ANY, 0), Started::Done(status) if status.len == 5));
        assert!(matches!(net.recv(1, &mut room, ANY, 0), Started::Pending(_)));
    }
}

/// A side that has sent its first messages, and has not heard of the other, closes once it has.
// [M11.15]
#[test]
fn close_waits_for_the_handshake() {
    for reconnects in [false, true] {
        let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg());
        let (to, back) = (net.peer(0, 1), net.peer(1, 0));
        let bytes = message_bytes(1, LEN);
        net.send(0, to, &bytes, Some(1), Protocol::LongCts);
        close(&mut net, 0);
        let mut wanted = [0; 4];
        if reconnects {
            assert_eq!(connect(&mut net, 0), to);
            let started = net.send(0, to, b"next", Some(2), Protocol::Eager);
            assert!(matches!(started, Started::Pending(_)), "it does not overtake the close");
        }
        let mut room = vec![0; LEN];
        net.recv(1, &mut room, exact(1), 1);
        net.recv(1, &mut wanted, exact(2), 2);
        net.settle();
        let outs = net.events(1);
        let aborted = Err(OpError::Aborted(back, 4127));
        assert!(outs.contains(&EngineEvent::RecvDone { user: 1, result: aborted }), "{outs:?}");
        assert_eq!(&wanted == b"next", reconnects, "{outs:?}");
        // The receiver may go on, too.
        connect(&mut net, 1);
        connect(&mut net, 0);
        exchange(&mut net, "met late");
    }
}

/// A peer that was never spoken to is not told: its first message is welcome.
// [M11.18]
#[test]
fn unused_endpoint_is_closed_without_a_word() {
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg());
    let (to, _) = (net.peer(0, 1), net.peer(1, 0));
    close(&mut net, 1);
    let mut room = [0; 2];
    net.recv(1, &mut room, ANY, 1);
    net.send(0, to, b"hi", Some(1), Protocol::Eager);
    net.settle();
    assert_eq!((&room, net.events(0).len()), (b"hi", 0));
    exchange(&mut net, "never spoken to");
}

// [M11.18]
#[test]
fn message_of_the_next_conversation_opens_a_closed_peer() {
    for closer in 0..2 {
        let (mut net, ..) = connected(NetConfig::RELIABLE);
        close(&mut net, closer);
        net.settle();
        assert_eq!([failures(&mut net, 0), failures(&mut net, 1)], [1, 1]);
        let peer = connect(&mut net, 0);
        net.send(0, peer, b"again", Some(7), Protocol::Eager);
        net.settle();
        let mut room = [0; 5];
        assert!(matches!(net.recv(1, &mut room, ANY, 0), Started::Done(_)), "closed by {closer}");
        assert_eq!(&room, b"again");
        exchange(&mut net, "opened by a message");
    }
}

fn failures(net: &mut Net, me: usize) -> usize {
    let events = net.events(me);
    events.iter().filter(|event| matches!(event, EngineEvent::PeerFailed { .. })).count()
}

/// A put has no place in the order of messages: it does not overtake a close.
// [M11.17]
#[test]
fn request_of_the_next_conversation_waits_for_the_close() {
    for seed in seeds(0..200) {
        let _seed = Seed(seed);
        let net_config = NetConfig { reorder: true, full: 3, rnr: 5, ..NetConfig::RELIABLE };
        let mut net = Net::with(2, seed, net_config, cfg());
        let (to, _) = (net.peer(0, 1), net.peer(1, 0));
        net.meet(0, to);
        let target = share(&mut net, 1, LEN, Access::all());
        let bytes = message_bytes(seed, LEN);
        close(&mut net, (seed % 2) as usize);
        for _ in 0..net.rng.below(10) {
            net.deliver_one();
            net.resume(0);
        }
        let peer = connect(&mut net, 0);
        let (len, protocol) = match net.rng.one_in(2) {
            true => (900, RmaProtocol::EagerWrite),
            false => (LEN, RmaProtocol::LongCtsWrite),
        };
        let put = put_args(&bytes[..len], target.iov(0, len));
        net.put(0, peer, PutArgs { protocol, sync: DeliveryComplete::Yes, user: 5, ..put });
        net.settle();
        let ended = sends(&mut net, 0);
        let closed_by_other = ended.iter().any(|(_, end)| *end == Err(OpError::Aborted(peer, 4127)));
        // The other side may have closed behind the connect.
        assert!(ended == [(5, Ok(()))] || closed_by_other && seed % 2 == 1, "{ended:?}");
        if !closed_by_other {
            assert!(target.bytes[..len] == bytes[..len]);
        }
    }
}

/// Two workers send, receive, close and connect as they like.
struct Pair {
    net: Net,
    bodies: Vec<Vec<u8>>,
    rooms: Vec<Vec<u8>>,
    open: [BTreeSet<u64>; 2],
    synced: Vec<u64>,
    got: [Vec<u64>; 2],
    legacy: bool,
}

impl Pair {
    fn new(seed: u64, withhold: Features, net_config: NetConfig) -> Pair {
        let mut net = Net::with(2, seed, net_config, EngineConfig { withhold, ..cfg() }).with_rdma(4000);
        net.peer(0, 1);
        net.peer(1, 0);
        let (open, got) = (Default::default(), Default::default());
        let legacy = !withhold.is_empty();
        Pair { net, bodies: Vec::new(), rooms: Vec::new(), open, synced: Vec::new(), got, legacy }
    }

    fn send(&mut self, me: usize) {
        let peer = connect(&mut self.net, me);
        let protocol = self.net.rng.pick(&PROTOCOLS);
        let number = self.bodies.len() as u64;
        self.bodies.push(message_bytes(number, len_for(protocol)));
        let bytes = self.bodies.last().unwrap();
        if let Started::Pending(_) = self.net.send_args(me, peer, args(bytes, number, protocol)) {
            self.open[me].insert(number);
            if protocol.sync() == DeliveryComplete::Yes {
                self.synced.push(number);
            }
        }
    }

    fn recv(&mut self, me: usize) -> bool {
        let n = self.rooms.len();
        self.rooms.push(vec![0; LEN]);
        let started = self.net.recv(me, &mut self.rooms[n], ANY, n as u64);
        if let Started::Done(status) = started {
            self.took(me, n, status.tag, status.len);
        }
        matches!(started, Started::Done(_) | Started::Failed(_))
    }

    fn took(&mut self, me: usize, room: usize, number: u64, len: usize) {
        assert!(self.rooms[room][..len] == self.bodies[number as usize], "message {number}");
        assert!(!self.got[me].contains(&number), "message {number} came twice");
        self.got[me].push(number);
    }

    fn take_events(&mut self) {
        for me in 0..2 {
            for event in self.net.events(me) {
                match event {
                    EngineEvent::SendDone { user, result } => {
                        assert!(self.open[me].remove(&user), "message {user} ended twice");
                        if result.is_err() {
                            self.synced.retain(|synced| *synced != user);
                        }
                    }
                    EngineEvent::RecvDone { user, result: Ok(status) } => {
                        self.took(me, user as usize, status.tag, status.len)
                    }
                    EngineEvent::RecvDone { .. } | EngineEvent::PeerFailed { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn run(&mut self) {
        for _ in 0..self.net.rng.below(200) {
            let me = self.net.rng.below(2);
            match self.net.rng.below(10) {
                0 if self.net.rng.one_in(2) => close(&mut self.net, me),
                0 => drop(connect(&mut self.net, me)),
                1..3 => self.send(me),
                3..5 => drop(self.recv(me)),
                5 => drop(self.net.complete_read()),
                6 => drop(self.net.resume(me)),
                _ => drop(self.net.deliver_one()),
            }
            self.take_events();
        }
        self.net.settle();
        self.take_events();
        // What waits for a receive gets one.
        for me in [0, 1, 0, 1] {
            while self.net.nodes[me].engine.has_unexpected(crate::rdm::Kind::Tagged) {
                self.recv(me);
            }
            self.net.settle();
            self.take_events();
        }
        let still_open = self.open.clone();
        assert!(self.legacy || still_open.iter().all(BTreeSet::is_empty), "{still_open:?}");
        let all: BTreeSet<u64> = self.got.iter().flatten().copied().collect();
        assert!(self.synced.iter().all(|n| all.contains(n) || still_open.iter().any(|o| o.contains(n))));
    }
}

// [M11.15] [M11.16] [M11.18]
#[test]
fn closes_and_connections_at_any_time_leave_nothing_behind() {
    for seed in seeds(0..600) {
        let _seed = Seed(seed);
        let net_config = NetConfig {
            reorder: seed % 2 == 1,
            full: [0, 3][(seed / 2 % 2) as usize],
            rnr: [0, 6][(seed / 4 % 2) as usize],
            ..NetConfig::RELIABLE
        };
        // Libfabric knows no closes, and some of its releases no PEER_ERROR.
        let withhold = match seed % 5 {
            0 => Features::CLOSE,
            1 => Features::CLOSE | Features::PEER_ERROR,
            _ => Features::empty(),
        };
        let mut pair = Pair::new(seed, withhold, net_config);
        pair.run();
        if pair.legacy {
            // One side alone can always resume: it sends, and the other has never closed.
            continue;
        }
        // Whatever was closed last is open again for both.
        connect(&mut pair.net, 0);
        connect(&mut pair.net, 1);
        pair.net.settle();
        drop_receives(&mut pair.net);
        exchange(&mut pair.net, &format!("seed {seed}"));
        for node in 0..2 {
            assert!(pair.net.nodes[node].engine.quiet(), "seed {seed}: node {node} keeps something");
            assert_eq!(pair.net.nodes[node].engine.snapshot(), EngineSnapshot::EMPTY, "seed {seed}");
        }
        assert_eq!(pair.net.regs(), 0, "seed {seed}");
    }
}

/// How node 0 comes to ask a side that has lost it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trigger {
    ByMessage,
    ByClose,
    AfterClose,
    ByKeepalive,
}

/// A device has failed a packet of one side only: the other, which lives, is told when it asks, and waits for
/// nothing.
// [M11.19]
#[test]
fn side_that_was_lost_is_told_and_waits_for_nothing() {
    for trigger in [Trigger::ByMessage, Trigger::ByClose, Trigger::AfterClose, Trigger::ByKeepalive] {
        for (drained, closed) in [(false, false), (true, false), (true, true)] {
            for protocol in [Protocol::DcEager, Protocol::DcMedium, Protocol::LongCts, Protocol::LongRead] {
                let why = format!("{trigger:?} drained {drained} closed {closed} {protocol:?}");
                let (mut net, to, back) = connected(NetConfig::RELIABLE);
                let fault = PeerError::Device(EfaStatus::Unresponsive);
                let bytes = message_bytes(3, len_for(protocol));
                if trigger == Trigger::ByKeepalive {
                    // Begun before the other side lost it.
                    net.send_args(0, to, args(&bytes, 5, protocol));
                    net.settle();
                }
                match drained {
                    true => net.at(1, |e, w| e.on_peer_error(w, back, fault)),
                    false => _ = net.at(1, |e, w| e.on_keepalive_error(w, back, fault)),
                }
                if closed {
                    close(&mut net, 1);
                }
                if matches!(trigger, Trigger::ByClose | Trigger::AfterClose) {
                    close(&mut net, 0);
                    connect(&mut net, 0);
                }
                match trigger {
                    Trigger::ByMessage | Trigger::AfterClose => {
                        _ = net.send_args(0, to, args(&bytes, 5, protocol))
                    }
                    Trigger::ByClose => {}
                    Trigger::ByKeepalive => assert!(net.at(0, |e, w| e.send_keepalive(w, to)), "{why}"),
                }
                net.settle();
                // One that is whole is received, and not acknowledged.
                let mut room = vec![0; LEN];
                net.recv(1, &mut room, ANY, 9);
                net.settle();
                let gone = Err(OpError::Peer(to, PeerError::Gone));
                let aborted = Err(OpError::Aborted(to, 4127));
                let ended = sends(&mut net, 0);
                match trigger {
                    Trigger::ByClose => assert_eq!(ended, [], "{why}"),
                    // A closed side refuses what names itself.
                    _ => assert!(ended == [(5, gone)] || ended == [(5, aborted)], "{why}: {ended:?}"),
                }
                assert!(net.nodes[0].engine.is_flushed(Some(to)), "{why}");
                assert!(!Conversation::with(net.nodes[0].engine.peers(), to).awaits_close, "{why}");
                let after = net.send_args(0, to, args(&bytes, 6, protocol));
                assert!(
                    matches!(after, Started::Failed(OpError::Peer(_, PeerError::Gone))),
                    "{why}: {after:?}"
                );
            }
        }
    }
}

/// The answer was lost, too: the keep-alive brings another.
// [M11.19]
#[test]
fn keepalive_asks_again_for_what_a_close_waits_for() {
    let (mut net, to, back) = connected(NetConfig::RELIABLE);
    net.at(1, |e, w| e.on_keepalive_error(w, back, PeerError::Device(EfaStatus::Unresponsive)));
    close(&mut net, 0);
    connect(&mut net, 0);
    let target = share(&mut net, 1, 64, Access::all());
    let put = PutArgs { protocol: RmaProtocol::EagerWrite, user: 5, ..put_args(b"never", target.iov(0, 5)) };
    net.put(0, to, put);
    net.sent_packets.clear();
    assert!(Conversation::with(net.nodes[0].engine.peers(), to).awaits_close);
    net.at(0, |e, w| e.send_keepalive(w, to));
    net.settle();
    assert_eq!(sends(&mut net, 0), [(5, Err(OpError::Peer(to, PeerError::Gone)))]);
    assert!(!Conversation::with(net.nodes[0].engine.peers(), to).awaits_close);
}

/// A peer that does not announce bit 61, as libfabric, hears nothing of it.
/// A peer that says nothing, as it only waits for messages, learns of it, although the device loses notes.
// [M11.20]
#[test]
fn silent_side_is_told_that_it_was_lost() {
    for lost_notes in 0..4 {
        for lane_fails in [false, true] {
            let (mut net, to, back) = connected(NetConfig::RELIABLE);
            let mut room = [0; 4];
            let named = RecvArgs { buf: recv_buf(&mut room), kind: ANY, from: Some(to), user: 9 };
            net.at(0, |e, w| e.recv(w, named));
            let fault = match lane_fails {
                true => EfaStatus::Flushed,
                false => EfaStatus::RemoteAbort,
            };
            net.at(1, |e, w| e.on_keepalive_error(w, back, PeerError::Device(fault)));
            net.settle();
            assert_eq!(net.events(0), [], "nothing says so yet");
            for n in 0..6 {
                net.at(1, |e, w| notify_lost_peers(e.peers_mut(), w));
                if n < lost_notes {
                    net.sent_packets.clear();
                }
                net.settle();
            }
            let notes = net.nodes[1].engine.peers().stats().rare.errors_sent;
            // What had come before can still be received until then.
            let wire = net.nodes[0].wire;
            net.at(0, |e, w| e.on_wire_drained(w, wire));
            let told = net.events(0);
            if lane_fails {
                // Nothing can be sent; the other side's keepalive finds the queue pair gone.
                assert_eq!((notes, told), (0, vec![]));
                continue;
            }
            let gone = Err(OpError::Peer(to, PeerError::Gone));
            assert_eq!(notes, 4);
            assert!(told.contains(&EngineEvent::RecvDone { user: 9, result: gone }), "{told:?}");
            assert!(told.contains(&EngineEvent::PeerFailed { peer: to, fault: PeerError::Gone }), "{told:?}");
        }
    }
}

// [M11.19]
#[test]
fn peer_without_closes_is_not_told_that_it_was_lost() {
    let config = EngineConfig { withhold: Features::CLOSE, ..cfg() };
    let mut net = Net::with(2, 3, NetConfig::RELIABLE, config);
    let (to, back) = (net.peer(0, 1), net.peer(1, 0));
    net.meet(0, to);
    net.at(1, |e, w| e.on_peer_error(w, back, PeerError::Device(EfaStatus::Unresponsive)));
    net.send_args(0, to, args(&message_bytes(1, LEN), 5, Protocol::LongCts));
    net.at(0, |e, w| e.send_keepalive(w, to));
    net.settle();
    assert_eq!((sends(&mut net, 0), net.nodes[1].engine.peers().stats().rare.errors_sent), (vec![], 0));
}

/// Cancels all posted receives.
fn drop_receives(net: &mut Net) {
    for me in 0..2 {
        net.at(me, |e, _| {
            let posted: Vec<_> = e.ops.recvs.table.iter().map(|(id, _)| crate::rdm::OpId(id)).collect();
            posted.into_iter().for_each(|op| assert!(e.receives().cancel(op), "a receive hangs"));
        });
        net.events(me);
    }
}

/// A peer that knows no closes is told by PEER_ERROR what it named, and message ids go on.
// [M10.7]
#[test]
fn conversation_with_a_peer_without_closes_is_resumed() {
    for reorder in [false, true] {
        let config = EngineConfig { withhold: Features::CLOSE, ..cfg() };
        let mut net = Net::with(2, 3, NetConfig { reorder, ..NetConfig::RELIABLE }, config);
        let (to, back) = (net.peer(0, 1), net.peer(1, 0));
        net.meet(0, to);
        let body = message_bytes(7, 900);
        for round in 0..100 {
            close(&mut net, 1);
            for n in 0..3 {
                net.send(0, to, b"lost", Some(1), Protocol::Eager);
                net.send_args(0, to, args(&body, n, Protocol::DcEager));
            }
            net.settle();
            let aborted = Err(OpError::Aborted(to, 4127));
            let mut ended = sends(&mut net, 0);
            ended.sort_unstable_by_key(|(n, _)| *n);
            assert_eq!(ended, [0, 1, 2].map(|n| (n, aborted)), "round {round}");
            assert_eq!(connect(&mut net, 1), back);
            let mut rooms = [[0; 2]; 2];
            net.recv(1, &mut rooms[0], ANY, 1);
            net.recv(0, &mut rooms[1], ANY, 1);
            net.send(0, to, b"ok", Some(1), Protocol::Eager);
            net.send(1, back, b"ok", Some(1), Protocol::Eager);
            net.settle();
            assert_eq!(rooms, [*b"ok"; 2], "round {round}");
            net.events(1);
            net.events(0);
        }
        let closes = net.nodes[1].engine.peers().stats().tx_pkts[usize::from(PktType::DC_EAGER_MSGRTM.0)];
        assert_eq!(closes, 0, "a close was sent to one that does not know it");
    }
}

// [M10.8]
#[test]
fn cancelled_message_is_withdrawn() {
    for protocol in PROTOCOLS {
        for matched in [false, true] {
            let (mut net, to, _) = connected(NetConfig::RELIABLE);
            let (bytes, mut room) = (message_bytes(3, len_for(protocol)), vec![0; LEN]);
            let started = net.send_args(0, to, args(&bytes, 5, protocol));
            let Started::Pending(op) = started else { continue };
            net.deliver_one();
            if matched {
                net.recv(1, &mut room, ANY, 9);
            }
            assert!(net.at(0, |e, w| e.cancel_send(w, op, Cancel::Unfinished)), "{protocol:?}");
            assert!(!net.at(0, |e, w| e.cancel_send(w, op, Cancel::Unfinished)), "{protocol:?}: twice");
            net.settle();
            assert_eq!(sends(&mut net, 0), [(5, Err(OpError::Cancelled))], "{protocol:?}");
            let here = net.at(1, |e, _| e.receives().probe(ANY, None, ProbeRemove::No));
            assert_eq!(here, None, "{protocol:?}");
            drop_receives(&mut net);
            exchange(&mut net, &format!("{protocol:?}"));
            assert_eq!(net.regs(), 0);
        }
    }
}

/// Nothing may be missing of a stream, or of what an active message has announced.
#[test]
fn begun_streams_and_active_messages_are_not_cancelled() {
    for class in [MsgClass::Am, MsgClass::AmData, MsgClass::Stream] {
        let (mut net, to, _) = connected(NetConfig::RELIABLE);
        let bytes = message_bytes(3, LEN);
        let started = net.at(0, |e, w| e.send_class(w, to, class, args(&bytes, 5, Protocol::LongCts)));
        let Started::Pending(op) = started else { panic!("{started:?}") };
        assert!(!net.at(0, |e, w| e.cancel_send(w, op, Cancel::Unfinished)), "{class:?}");
    }
}
