//! PEER_ERROR of all kinds and lost HANDSHAKEs: operations end once at both ends, forged errors end nothing.

use super::rma::{put_args, share};
use crate::rdm::EngineSnapshot;
use crate::rdm::ids::PeerId;
use crate::rdm::io::RegError;
use crate::rdm::op::{Gather, Scatter};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::rma::args::{AtomicArgs, GetArgs, PutArgs, RmaProtocol};
use crate::rdm::rma::mem::Access;
use crate::rdm::send::cancel;
use crate::rdm::status::PeerError;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::trace::DropReason;
use crate::rdm::types::*;
use crate::wire::ctl::{self, ErrorRef};
use crate::wire::{self, AtomicOp, Datatype, Features, Packet, PktType};

const LEN: usize = 20_000;

fn connected(net_config: NetConfig) -> (Net, PeerId) {
    let cfg = EngineConfig { runt_size: 3000, cts_credits: 2, ..EngineConfig::default() };
    let mut net = Net::with(3, 1, net_config, cfg).with_rdma(4000);
    let peer = net.peer(0, 1);
    net.meet(0, peer);
    (net, peer)
}

fn sent(net: &Net, node: usize) -> u64 {
    net.nodes[node].engine.peers().stats().rare.errors_sent
}

fn heard(net: &Net, node: usize) -> u64 {
    net.nodes[node].engine.peers().stats().rare.errors_received
}

fn forge(net: &mut Net, from: usize, to: usize, what: ErrorRef, prov_errno: u32) {
    let mut bytes = vec![0; ctl::PeerError::LEN];
    ctl::PeerError { what, prov_errno, connid: None }.write(&mut bytes);
    net.deliver(&SentPacket { from, to, bytes });
}

fn nothing_left(net: &mut Net) {
    for node in 0..2 {
        net.resume(node);
        assert!(net.nodes[node].engine.quiet(), "node {node} keeps something");
        assert!(net.nodes[node].engine.is_flushed(None), "node {node} waits for something");
        assert_eq!(net.nodes[node].engine.pending().held_bytes(), 0);
    }
    assert_eq!(net.regs(), 0);
}

/// A later message arrives, so no id is waited for.
fn still_works(net: &mut Net, peer: PeerId) {
    let mut room = [0; 2];
    net.recv(1, &mut room, exact(4), 9);
    net.send(0, peer, b"ok", Some(4), Protocol::Eager);
    net.settle();
    assert_eq!(&room, b"ok");
    net.events(0);
    net.events(1);
}

// [M8.1] [M10.3]
#[test]
fn refusal_waits_for_the_handshake() {
    for knows in [true, false] {
        let withhold = if knows { Features::empty() } else { Features::PEER_ERROR };
        let cfg = EngineConfig { withhold, ..EngineConfig::default() };
        let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
        let peer = net.peer(0, 1);
        let target = share(&mut net, 1, 64, Access::READ);
        let mut room = [0; 80];
        let remote = wire::Iovs::one(wire::RmaIov { len: 80, ..target.at(0, 0) });
        let local = Scatter::one(recv_buf(&mut room));
        let args = GetArgs { local, remote, protocol: RmaProtocol::ShortRead, user: 7 };
        net.at(0, |e, w| e.get(w, peer, args));
        net.settle();
        let ended = EngineEvent::RmaDone { user: 7, result: Err(OpError::Access(peer)) };
        assert_eq!(net.events(0), if knows { vec![ended] } else { Vec::new() });
        assert_eq!(net.nodes[1].engine.snapshot().queued_ctl, 0);
        assert_eq!(sent(&net, 1), u64::from(knows));
    }
}

#[test]
fn refusals_kept_for_a_silent_peer_are_bounded() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    net.peer(0, 1);
    let peer = net.peer(1, 0);
    for n in 0..10_000 {
        net.at(1, |e, w| {
            let next = e.peers.error_to(peer, ErrorRef::Op(n), OpError::Access(peer));
            e.follow(w, peer, next);
        });
    }
    assert_eq!(net.nodes[1].engine.snapshot().queued_ctl, 4096);
    net.at(1, |e, w| e.on_peer_error(w, peer, PeerError::Gone));
    assert_eq!(net.nodes[1].engine.snapshot().queued_ctl, 0);
}

// [M8.1] [M10.3] [M10.4]
#[test]
fn operation_refused_by_target_ends_at_requester() {
    for knows in [true, false] {
        let (mut net, peer) = connected(NetConfig { reorder: true, ..NetConfig::RELIABLE });
        let requester = net.peer(1, 0);
        if !knows {
            let old = net.nodes[1].engine.peers().features(requester).unwrap() - Features::PEER_ERROR;
            net.nodes[1].engine.set_features(requester, old);
        }
        let target = share(&mut net, 1, 64, Access::READ);
        let (bytes, mut room, mut old) = (message_bytes(1, LEN), [0; 80], [0; 8]);
        let far = |at, len| wire::Iovs::one(wire::RmaIov { len, ..target.at(at, 0) });
        let mut wanted = 0;
        for (len, protocol) in [
            (8, RmaProtocol::EagerWrite),
            (LEN, RmaProtocol::LongCtsWrite),
            (LEN, RmaProtocol::LongReadWrite),
        ] {
            let args = put_args(&bytes[..len], far(0, len as u64));
            net.put(0, peer, PutArgs { protocol, sync: DeliveryComplete::Yes, ..args });
            wanted += 1;
        }
        let local = |room: &mut [u8]| Scatter::one(recv_buf(room));
        let get = GetArgs {
            local: local(&mut room),
            remote: far(0, 80),
            protocol: RmaProtocol::ShortRead,
            user: 1,
        };
        net.at(0, |e, w| e.get(w, peer, get));
        let mut long = vec![0; LEN];
        let get = GetArgs {
            local: local(&mut long),
            remote: far(9, LEN as u64),
            protocol: RmaProtocol::ShortRead,
            user: 1,
        };
        net.at(0, |e, w| e.get(w, peer, get));
        let args = AtomicArgs {
            op: AtomicOp::Sum,
            ty: Datatype::Uint64,
            remote: far(0, 8),
            operand: Gather::one(send_buf(&bytes[..8])),
            compare: None,
            result: Some(local(&mut old)),
            sync: DeliveryComplete::No,
            user: 1,
        };
        net.at(0, |e, w| e.atomic(w, peer, args));
        wanted += 3;
        net.settle();
        assert_eq!(net.nodes[1].engine.peers().stats().dropped(DropReason::BadAccess), wanted);
        let outs = net.events(0);
        if knows {
            assert_eq!((outs.len() as u64, sent(&net, 1), heard(&net, 0)), (wanted, wanted, wanted));
            let refused = EngineEvent::RmaDone { user: 1, result: Err(OpError::Access(peer)) };
            assert!(outs.iter().all(|out| *out == refused), "{outs:?}");
            nothing_left(&mut net);
        } else {
            assert_eq!((outs.len(), sent(&net, 1)), (0, 0));
        }
        still_works(&mut net, peer);
    }
}

/// Short writes that were refused and nobody waits for: by themselves where they are acknowledged, else by
/// the flush behind them. Peers that cannot be told are not.
// [M8.1] [M10.3]
#[test]
fn refused_posts_are_noted_for_the_next_flush() {
    for (reorder, knows) in [(false, true), (true, true), (false, false), (true, false)] {
        let (mut net, peer) = connected(NetConfig { reorder, ..NetConfig::RELIABLE });
        let requester = net.peer(1, 0);
        if !knows {
            let old = net.nodes[1].engine.peers().features(requester).unwrap() - Features::PEER_ERROR;
            net.nodes[1].engine.set_features(requester, old);
        }
        let target = share(&mut net, 1, 64, Access::READ);
        let bytes = message_bytes(1, 8);
        for _ in 0..3 {
            net.put(0, peer, PutArgs { sync: DeliveryComplete::No, ..put_args(&bytes, target.iov(0, 8)) });
        }
        net.settle();
        net.at(0, |e, w| e.request_acks(w, None));
        net.settle();
        let noted = net.at(0, |e, _| e.peers.refused_ops.take(|of| of == peer));
        assert_eq!(noted, if knows { vec![(peer, OpError::Access(peer))] } else { vec![] });
        assert!(knows == (sent(&net, 1) > 0) && net.events(0).iter().all(is_done));
        if knows {
            nothing_left(&mut net);
        }
        // The next flush has nothing to say.
        net.put(0, peer, PutArgs { sync: DeliveryComplete::No, ..put_args(&[], target.iov(0, 0)) });
        net.at(0, |e, w| e.request_acks(w, None));
        net.settle();
        assert_eq!(net.at(0, |e, _| e.peers.refused_ops.take(|_| true)), []);
        still_works(&mut net, peer);
    }
}

fn is_done(event: &EngineEvent) -> bool {
    matches!(event, EngineEvent::RmaDone { result: Ok(()), .. })
}

// [M10.3] [M10.4]
#[test]
fn revoked_memory_ends_the_operations_of_peers() {
    for protocol in [RmaProtocol::LongCtsWrite, RmaProtocol::LongReadWrite, RmaProtocol::ShortRead] {
        let (mut net, peer) = connected(NetConfig::RELIABLE);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        let target = share(&mut net, 1, LEN, Access::all());
        match protocol {
            RmaProtocol::ShortRead => net.get(0, peer, &mut room, target.iov(0, LEN)),
            protocol => net.put(0, peer, PutArgs { protocol, ..put_args(&bytes, target.iov(0, LEN)) }),
        };
        for _ in 0..3 {
            net.deliver_one();
        }
        net.nodes[1].device.revoke = true;
        assert!(net.at(1, |e, w| e.remove_memory(w, target.key)));
        net.settle();
        let ends = net.events(0);
        assert!(
            matches!(ends[..], [EngineEvent::RmaDone { result: Err(OpError::Access(_)), .. }]),
            "{protocol:?} {ends:?}"
        );
        assert_eq!((sent(&net, 1), heard(&net, 0)), (1, 1));
        nothing_left(&mut net);
    }
}

// [M10.3]
#[test]
fn message_neither_readable_nor_sendable_ends_at_both_ends() {
    let (mut net, peer) = connected(NetConfig::RELIABLE);
    let sender = net.peer(1, 0);
    let old = net.nodes[1].engine.peers().features(sender).unwrap() - Features::READ_NACK;
    net.nodes[1].engine.set_features(sender, old);
    net.nodes[1].device.no_reg = Some(RegError::Full);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    net.recv(1, &mut room, ANY, 0);
    net.send(0, peer, &bytes, Some(1), Protocol::LongRead);
    net.settle();
    assert_eq!(net.events(1), [EngineEvent::RecvDone { user: 0, result: Err(OpError::Unsupported) }]);
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Err(OpError::Aborted(peer, 4127)) }]);
    nothing_left(&mut net);
    still_works(&mut net, peer);
}

/// After any number of steps, with and without reordering and a posted receive; the next message arrives.
// [M10.3] [M10.4]
#[test]
fn sends_cancelled_at_every_step_end_once() {
    let mut cancelled = 0;
    for protocol in [
        Protocol::Medium,
        Protocol::LongCts,
        Protocol::DcLongCts,
        Protocol::DcMedium,
        Protocol::LongRead,
        Protocol::RuntRead,
    ] {
        for (posted, reorder, full) in
            [(true, false, 0), (false, false, 0), (true, true, 0), (false, true, 0), (true, true, 3)]
        {
            for steps in 0..30 {
                let (mut net, peer) = connected(NetConfig { reorder, ..NetConfig::RELIABLE });
                net.net_config.full = full;
                let (bytes, mut room) = (message_bytes(1, LEN), vec![0x55; LEN]);
                if posted {
                    net.recv(1, &mut room, exact(1), 7);
                }
                let sync = protocol.sync();
                let args =
                    SendArgs { buf: send_buf(&bytes), tag: Some(1), sync, cq_data: None, protocol, user: 1 };
                let Started::Pending(op) = net.send_args(0, peer, args) else { continue };
                for step in 0..steps {
                    let _ = if step % 3 == 2 { net.complete_read() } else { net.deliver_one() };
                    net.resume(step % 2);
                }
                let given_up = net.at(0, |e, w| cancel::abort(e, w, op));
                assert!(!net.at(0, |e, w| cancel::abort(e, w, op)) || !given_up, "twice");
                net.settle();
                let (ours, remote_id) = (net.events(0), net.events(1));
                if given_up {
                    cancelled += 1;
                    assert_eq!(ours, [EngineEvent::SendDone { user: 1, result: Err(OpError::Cancelled) }]);
                    let why = format!("{protocol:?} {posted} {reorder} {full} after {steps}: {remote_id:?}");
                    match remote_id[..] {
                        [EngineEvent::RecvDone { user: 7, result: Err(OpError::Aborted(..)) }] => {
                            assert!(posted, "{why}")
                        }
                        // All of it was read, and EOR is in flight.
                        [EngineEvent::RecvDone { user: 7, result: Ok(_) }] => {
                            assert!(
                                matches!(protocol, Protocol::LongRead | Protocol::RuntRead) && room == bytes,
                                "{why}"
                            );
                        }
                        [] => {}
                        _ => panic!("{why}"),
                    }
                    if posted && remote_id.is_empty() {
                        net.send(0, peer, b"next", Some(1), Protocol::Eager);
                        net.settle();
                        assert_eq!((net.events(1).len(), &room[..4]), (1, &b"next"[..]), "{why}");
                    }
                } else if posted {
                    assert_eq!((ours.len(), remote_id.len()), (1, 1), "{protocol:?} after {steps}");
                } else {
                    net.recv(1, &mut room, exact(1), 7);
                    net.settle();
                    assert_eq!(room, bytes);
                }
                net.events(0);
                net.events(1);
                still_works(&mut net, peer);
                nothing_left(&mut net);
            }
        }
    }
    assert!(cancelled > 300, "{cancelled} on their way");
}

#[test]
fn puts_and_gets_cancelled_in_flight_end_once() {
    for get in [false, true] {
        let (mut net, peer) = connected(NetConfig::RELIABLE);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        let target = share(&mut net, 1, LEN, Access::all());
        let started = match get {
            true => net.get(0, peer, &mut room, target.iov(0, LEN)),
            false => net.put(
                0,
                peer,
                PutArgs { protocol: RmaProtocol::LongCtsWrite, ..put_args(&bytes, target.iov(0, LEN)) },
            ),
        };
        let Started::Pending(op) = started else { panic!() };
        assert!(!net.at(0, |e, w| cancel::abort(e, w, op)), "its peer has no name for it yet");
        net.deliver_one();
        net.deliver_one();
        assert!(net.at(0, |e, w| cancel::abort(e, w, op)));
        net.settle();
        assert!(matches!(net.events(0)[..], [EngineEvent::RmaDone { result: Err(OpError::Cancelled), .. }]));
        assert_eq!((sent(&net, 0), heard(&net, 1)), (1, 1));
        nothing_left(&mut net);
    }
}

// [M10.4]
#[test]
fn skipped_message_ids_do_not_block_the_order() {
    for (n, what) in [ErrorRef::Skip, ErrorRef::Msg].into_iter().enumerate() {
        let (mut net, peer) = connected(NetConfig::RELIABLE);
        let due = net.nodes[1].engine.next_rx(PeerId(0));
        let mut rooms = [[0; 4]; 3];
        for (user, room) in rooms.iter_mut().enumerate() {
            net.recv(1, room, exact(1), user as u64);
        }
        for text in [b"zero", b"once", b"twos", b"last"] {
            net.send(0, peer, text, Some(1), Protocol::Eager);
        }
        // The third is skipped before it comes, the first in its turn, the second in between.
        let [zero, one, two, last] = net.sent_packets.split_off(0).try_into().unwrap();
        net.deliver(&last);
        if n == 1 {
            net.deliver(&two);
        }
        forge(&mut net, 0, 1, what(due.wrapping_add(2)), 5);
        forge(&mut net, 0, 1, what(due), 5);
        assert!(net.events(1).is_empty());
        net.deliver(&one);
        assert_eq!((net.events(1).len(), &rooms[0], &rooms[1]), (2, b"once", b"last"));
        net.deliver(&zero);
        net.deliver(&two);
        assert_eq!(net.nodes[1].engine.peers().stats().dropped(DropReason::Duplicate), 2);
        assert_eq!((heard(&net, 1), net.nodes[1].engine.pending().held_bytes()), (2, 0));
        // A complete message is not ended, nor ended twice.
        forge(&mut net, 0, 1, what(due.wrapping_add(1)), 5);
        forge(&mut net, 0, 1, what(due), 5);
        assert_eq!(net.nodes[1].engine.peers().stats().dropped(DropReason::BadId), 2);
        assert!(net.events(1).is_empty());
        still_works(&mut net, peer);
    }
}

// [M1.6] [M10.4]
#[test]
fn forged_peer_errors_end_nothing() {
    let (mut net, peer) = connected(NetConfig::RELIABLE);
    net.peer(0, 2);
    net.peer(1, 2);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    let target = share(&mut net, 1, LEN, Access::all());
    let Started::Pending(recv) = net.recv(1, &mut room, exact(1), 0) else { panic!() };
    let Started::Pending(send) = net.send(0, peer, &bytes, Some(1), Protocol::LongCts) else { panic!() };
    let Started::Pending(put) = net.put(0, peer, put_args(&bytes, target.iov(0, LEN))) else { panic!() };
    assert_ne!(send.0.raw(), recv.0.raw(), "sends and receives have no id in common");
    forge(&mut net, 0, 1, ErrorRef::Op(recv.0.raw()), 1);
    net.deliver_one();
    for id in [send.0.raw(), put.0.raw(), recv.0.raw()] {
        for to in [0, 1] {
            forge(&mut net, 2, to, ErrorRef::Op(id), 1);
        }
    }
    forge(&mut net, 1, 0, ErrorRef::Op(recv.0.raw()), 1);
    forge(&mut net, 1, 0, ErrorRef::Op(send.0.raw() ^ 1 << 25), 1);
    assert!(net.events(0).is_empty() && net.events(1).is_empty());
    let bad = |net: &Net, node: usize| net.nodes[node].engine.peers().stats().dropped(DropReason::BadId);
    assert_eq!((bad(&net, 0), bad(&net, 1)), (5, 4));
    let mut rng = Rng(3);
    for _ in 0..2000 {
        let id = rng.next() as u32;
        let what = rng.pick(&[ErrorRef::Op(id), ErrorRef::Msg(id | 1 << 20), ErrorRef::Skip(id | 1 << 20)]);
        forge(&mut net, 2, rng.below(2), what, id);
    }
    net.settle();
    assert_eq!((net.events(0).len(), net.events(1).len()), (2, 1));
    assert!(room == bytes && target.bytes == bytes);
}

// [M10.2]
#[test]
fn undeliverable_handshake_fails_only_an_awaited_peer() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let mut room = [0; 2];
    net.recv(1, &mut room, ANY, 0);
    net.send(0, peer, b"by", Some(1), Protocol::Eager);
    net.deliver_one();
    assert_eq!(PktType(net.sent_packets[0].bytes[0]), PktType::HANDSHAKE);
    net.sent_packets.clear();
    net.events(1);
    let writer = net.peer(1, 0);
    net.at(1, |e, w| e.on_send_error(w, writer, PeerError::Gone));
    assert_eq!((net.events(1).len(), net.nodes[1].engine.peers().stats().rare.handshakes_lost), (0, 1));
    assert_eq!(net.nodes[1].engine.peers().info(writer).unwrap().fault, None);
    // If the peer is waited for, or was sent anything else, it has failed.
    for asks in [false, true] {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE);
        let peer = net.peer(0, 1);
        net.send(0, peer, b"by", Some(1), Protocol::Eager);
        net.deliver_one();
        let writer = net.peer(1, 0);
        match asks {
            true => drop(net.send(1, writer, b"hi", Some(1), Protocol::Eager)),
            false => {
                let args = RecvArgs { buf: recv_buf(&mut room), kind: exact(5), from: Some(writer), user: 0 };
                net.at(1, |e, w| e.recv(w, args));
            }
        }
        net.at(1, |e, w| e.on_send_error(w, writer, PeerError::Gone));
        let failed = EngineEvent::PeerFailed { peer: writer, fault: PeerError::Gone };
        assert!(net.events(1).contains(&failed));
    }
}

/// A flush does not wait for the refusal. If the peer has gone, it is dropped.
// [M10.5] [M10.7]
#[test]
fn refusal_to_a_cut_off_peer_is_retried() {
    for gone in [false, true] {
        // With one that knows closes, the operation ends by that.
        let cfg = EngineConfig { withhold: Features::CLOSE, ..EngineConfig::default() };
        let mut net = Net::with(3, 1, NetConfig::RELIABLE, cfg).with_rdma(4000);
        let peer = net.peer(0, 1);
        net.meet(0, peer);
        let other = net.peer(1, 0);
        net.at(1, |e, w| e.force_close(w, other));
        net.events(1);
        let args = SendArgs {
            buf: send_buf(b"hi"),
            tag: Some(1),
            protocol: Protocol::Eager,
            sync: DeliveryComplete::Yes,
            cq_data: None,
            user: 3,
        };
        assert!(matches!(net.send_args(0, peer, args), Started::Pending(_)));
        net.deliver_one();
        net.nodes[0].no_receives = true;
        for _ in 0..3 {
            net.resume(1);
            while net.deliver_one() {}
            net.wait();
        }
        let engine = &net.nodes[1].engine;
        assert_eq!((engine.pending().held_bytes() > 0, engine.peers().stats().rare.not_ready), (true, 3));
        assert!(
            engine.is_flushed(None)
                && engine.is_flushed(Some(other))
                && !engine.pending().is_backed_off(engine.peers(), None)
        );
        net.nodes[0].no_receives = false;
        if gone {
            net.at(1, |e, w| e.on_send_error(w, other, PeerError::Gone));
            // Nothing follows with it.
            assert_eq!(net.events(1), [EngineEvent::PeerFailed { peer: other, fault: PeerError::Gone }]);
        } else {
            net.settle();
            let end = Err(OpError::Aborted(peer, 4127));
            assert_eq!(net.events(0), [EngineEvent::SendDone { user: 3, result: end }]);
        }
        assert_eq!(
            (net.nodes[1].engine.snapshot(), net.nodes[1].engine.pending().held_bytes()),
            (EngineSnapshot::EMPTY, 0)
        );
        assert_eq!(net.nodes[1].engine.pending().next_deadline(net.nodes[1].engine.peers(),), None);
    }
}

// [M10.2]
#[test]
fn out_of_order_message_is_dropped_with_its_dead_sender() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    net.send(0, peer, b"1", Some(1), Protocol::Eager);
    net.send(0, peer, b"2", Some(1), Protocol::Eager);
    net.sent_packets.remove(0);
    net.deliver_one();
    let writer = net.peer(1, 0);
    assert_eq!(
        (net.nodes[1].engine.snapshot().reordering_peers, net.nodes[1].engine.pending().held_bytes() > 0),
        (1, true)
    );
    net.at(1, |e, w| e.on_send_error(w, writer, PeerError::Gone));
    assert_eq!(net.events(1), [EngineEvent::PeerFailed { peer: writer, fault: PeerError::Gone }]);
    let wire = net.nodes[1].wire;
    net.at(1, |e, w| e.on_wire_drained(w, wire));
    assert_eq!(
        (net.nodes[1].engine.snapshot(), net.nodes[1].engine.pending().held_bytes()),
        (EngineSnapshot::EMPTY, 0)
    );
}

// [M3.1] [M10.2]
/// A packet of a peer that waits for a lost HANDSHAKE shows that it lives.
#[test]
fn lost_handshake_is_sent_again_when_the_peer_sends() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let mut room = [0; 2];
    net.recv(1, &mut room, ANY, 0);
    // A receipt needs the peer's consent, so this send waits.
    let args = SendArgs {
        buf: send_buf(b"hi"),
        tag: Some(1),
        protocol: Protocol::Eager,
        sync: DeliveryComplete::Yes,
        cq_data: None,
        user: 3,
    };
    assert!(matches!(net.send_args(0, peer, args), Started::Pending(_)));
    net.deliver_one();
    assert_eq!(PktType(net.sent_packets[0].bytes[0]), PktType::HANDSHAKE);
    let writer = net.peer(1, 0);
    for lost in 1..3 {
        net.sent_packets.clear();
        net.at(1, |e, w| e.on_send_error(w, writer, PeerError::Unreachable));
        net.settle();
        assert!(net.events(0).is_empty());
        assert_eq!(net.nodes[1].engine.peers().stats().rare.handshakes_lost, lost);
        assert!(net.nodes[0].engine.peers().awaits_handshake(peer));
        assert!(net.at(0, |e, w| e.send_keepalive(w, peer)));
        net.deliver_one();
        assert_eq!(net.sent_packets.len(), 1);
    }
    net.settle();
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 3, result: Ok(()) }]);
    assert_eq!(&room, b"hi");
    assert!(!net.nodes[0].engine.peers().awaits_handshake(peer));
    let shakes = net.nodes[1].engine.peers().stats().tx_pkts[usize::from(PktType::HANDSHAKE.0)];
    assert!(net.at(0, |e, w| e.send_keepalive(w, peer)));
    net.settle();
    let now = net.nodes[1].engine.peers().stats().tx_pkts[usize::from(PktType::HANDSHAKE.0)];
    assert_eq!((shakes, now), (3, 3), "one that arrived is the last");
}

#[test]
fn peer_error_packet_matches_the_specification() {
    let (mut net, peer) = connected(NetConfig::RELIABLE);
    let target = share(&mut net, 1, 8, Access::READ);
    net.put(0, peer, PutArgs { sync: DeliveryComplete::Yes, ..put_args(&[1; 8], target.iov(0, 8)) });
    net.deliver_one();
    let Ok(Packet::PeerError(hdr)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
    assert_eq!((hdr.prov_errno, hdr.connid, net.sent_packets[0].bytes.len()), (4111, Some(1001), 20));
    assert!(matches!(hdr.what, ErrorRef::Op(_)));
}
