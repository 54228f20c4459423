//! Rules that the published text states in passing: grants, peers without extra features, a HANDSHAKE that
//! nobody waits for, messages stopped half way.

use crate::rdm::ids::PeerId;
use crate::rdm::op::{Gather, Scatter};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::rma::args::{AtomicArgs, GetArgs, PutArgs, RmaProtocol};
use crate::rdm::rma::mem::Access;
use crate::rdm::status::{OpError, PeerError};
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::ctl::{Cts, CtsData};
use crate::wire::{self, AtomicOp, Datatype, Features, Packet, PktType};

use super::rma::{put_args, share};

fn type_of(sent: &SentPacket) -> PktType {
    PktType(sent.bytes[0])
}

fn sent_by(net: &Net, node: usize, ty: PktType) -> u64 {
    net.nodes[node].engine.peers().stats().tx_pkts[usize::from(ty.0)]
}

/// Node 0 has met node 1, whose HANDSHAKE had these features.
fn peer_with_features(features: Features, mut cfg: EngineConfig) -> (Net, PeerId) {
    cfg.cts_credits = cfg.cts_credits.max(1);
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    let peer = net.peer(0, 1);
    let mut room = [0; 1];
    net.recv(1, &mut room, exact(99), 0);
    net.send(0, peer, &[1], Some(99), Protocol::Eager);
    net.deliver_one();
    let real = net.sent_packets.iter().position(|sent| type_of(sent) == PktType::HANDSHAKE).expect("one");
    let mut bytes = vec![0; 64];
    let len = wire::Handshake::new(features, 1001, 0xefa2).write(&mut bytes);
    bytes.truncate(len);
    net.sent_packets[real].bytes = bytes;
    net.settle();
    net.events(0);
    net.events(1);
    assert_eq!(net.nodes[0].engine.peers().info(peer).unwrap().features, Some(features));
    (net, peer)
}

// [M5.14]
#[test]
fn a_grant_of_zero_is_dropped() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let bytes = message_bytes(1, 20_000);
    let mut room = vec![0; 20_000];
    net.recv(1, &mut room, exact(1), 0);
    let Started::Pending(send) = net.send(0, peer, &bytes, Some(1), Protocol::LongCts) else { panic!() };
    net.deliver_one();
    let mut packet = [0; 64];
    for of in [wire::ctl::CtsFor::Send, wire::ctl::CtsFor::Read] {
        let zero = Cts { of, send_id: send.0.raw(), recv_id: 1, recv_length: 0, connid: Some(1001) };
        let len = zero.write(&mut packet);
        net.deliver(&SentPacket { from: 1, to: 0, bytes: packet[..len].to_vec() });
    }
    let rare = net.nodes[0].engine.peers().stats().rare;
    assert_eq!((rare.bad_window, rare.bad_id), (1, 1));
    assert!(net.events(0).is_empty(), "the send goes on");
    net.settle();
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Ok(()) }]);
    assert!(room == bytes);
}

// [M5.14]
#[test]
fn each_grant_moves_data() {
    let cfg = EngineConfig { cts_credits: 0, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    let peer = net.peer(0, 1);
    let bytes = message_bytes(1, 20_000);
    let mut room = vec![0; 20_000];
    let Started::Pending(recv) = net.recv(1, &mut room, exact(1), 0) else { panic!() };
    net.send(0, peer, &bytes, Some(1), Protocol::LongCts);
    net.deliver_one();
    // Data of no length ask for no grant, and end nothing.
    let mut packet = [0; 64];
    let empty = CtsData { recv_id: recv.0.raw(), seg_length: 0, seg_offset: 10_000, connid: None };
    let len = empty.write(&mut packet);
    for _ in 0..10 {
        net.deliver(&SentPacket { from: 0, to: 1, bytes: packet[..len].to_vec() });
    }
    assert_eq!(sent_by(&net, 1, PktType::CTS), 1);
    while let Some(sent) = net.sent_packets.first() {
        if let Ok(Packet::Cts(cts)) = wire::parse(&sent.bytes) {
            assert!(cts.recv_length > 0);
        }
        if let Ok(Packet::CtsData(hdr, payload)) = wire::parse(&sent.bytes) {
            assert!(hdr.seg_length > 0 && !payload.is_empty());
        }
        net.deliver_one();
        for me in 0..2 {
            net.resume(me);
        }
    }
    let (grants, data) = (sent_by(&net, 1, PktType::CTS), sent_by(&net, 0, PktType::CTSDATA));
    assert!(grants > 1 && data >= grants, "{grants} grants, {data} packets of data");
    assert!(room == bytes);
}

// [M6.4]
#[test]
fn delivery_complete_without_the_peers_consent_is_an_error() {
    let (mut net, peer) = peer_with_features(Features::empty(), EngineConfig::default());
    let target = share(&mut net, 1, 10_000, Access::all());
    let bytes = message_bytes(1, 5000);
    for protocol in [Protocol::DcEager, Protocol::DcMedium, Protocol::DcLongCts] {
        let started = net.send(0, peer, &bytes[..100], Some(1), protocol);
        let events = net.events(0);
        let failed = EngineEvent::SendDone { user: 1, result: Err(OpError::Unsupported) };
        assert!(started == Started::Failed(OpError::Unsupported) || events == [failed], "{started:?}");
    }
    let put = PutArgs { sync: DeliveryComplete::Yes, ..put_args(&bytes[..100], target.iov(0, 100)) };
    let started = net.put(0, peer, put);
    let failed = |events: Vec<EngineEvent>| format!("{events:?}").contains("Unsupported");
    assert!(started == Started::Failed(OpError::Unsupported) || failed(net.events(0)), "{started:?}");
    assert!(net.sent_packets.is_empty(), "nothing of it is sent");
    // What needs no consent goes on.
    let mut room = [0; 5];
    net.recv(1, &mut room, exact(2), 0);
    net.send(0, peer, b"hello", Some(2), Protocol::Eager);
    net.settle();
    assert_eq!(&room, b"hello");
}

// [M5.15]
#[test]
fn a_medium_message_that_stops_half_way_goes_on_first() {
    for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE);
        let peer = net.peer(0, 1);
        let mut first = [0; 1];
        net.recv(1, &mut first, exact(99), 0);
        net.send(0, peer, &[1], Some(99), Protocol::Eager);
        net.settle();
        net.events(0);
        net.events(1);
        let bytes = message_bytes(1, 5000);
        let (mut room, mut late) = (vec![0; 5000], [0; 4]);
        net.recv(1, &mut room, exact(1), 1);
        net.recv(1, &mut late, exact(2), 2);
        net.nodes[0].wire_room = Some(2);
        net.send(0, peer, &bytes, Some(1), Protocol::Medium.with(sync));
        net.send(0, peer, b"late", Some(2), Protocol::Eager);
        assert_eq!(net.sent_packets.len(), 2, "room for two packets");
        net.settle();
        assert!(net.events(1).is_empty(), "half a message is none, and nothing passes it");
        net.nodes[0].wire_room = None;
        net.resume(0);
        let ids: Vec<(PktType, u32)> =
            net.sent_packets.iter().map(|sent| (type_of(sent), msg_id(sent))).collect();
        let (last, rest) = ids.split_last().unwrap();
        let medium = [PktType::MEDIUM_TAGRTM, PktType::DC_MEDIUM_TAGRTM];
        assert!(!rest.is_empty() && rest.iter().all(|(ty, id)| medium.contains(ty) && *id == 1), "{ids:?}");
        assert_eq!(*last, (PktType::EAGER_TAGRTM, 2));
        net.settle();
        assert!(room == bytes && &late == b"late");
        assert_eq!(net.events(1).len(), 2);
    }
}

fn msg_id(sent: &SentPacket) -> u32 {
    let Ok(Packet::Rtm(rtm)) = wire::parse(&sent.bytes) else { panic!("an RTM") };
    rtm.msg_id
}

// [M3.12]
#[test]
fn nobody_waits_for_a_handshake_in_flight() {
    // We close: the HANDSHAKE is on its way, and neither flush nor close waits for it.
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let mut room = [0; 2];
    net.recv(1, &mut room, ANY, 0);
    net.send(0, peer, b"by", Some(1), Protocol::Eager);
    net.deliver_one();
    assert_eq!(type_of(&net.sent_packets[0]), PktType::HANDSHAKE);
    assert!(net.nodes[1].engine.is_flushed(None), "a HANDSHAKE is no operation");
    let back = net.peer(1, 0);
    assert!(net.nodes[1].engine.is_flushed(Some(back)));
    net.events(1);
    // The peer has closed: that its HANDSHAKE comes back is no error of anybody's.
    net.sent_packets.clear();
    net.at(1, |e, w| e.on_send_error(w, back, PeerError::Gone));
    assert!(net.events(1).is_empty() && net.nodes[1].engine.is_flushed(None));
    // One that waits for room holds nothing back either.
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    net.recv(1, &mut room, ANY, 0);
    net.send(0, peer, b"by", Some(1), Protocol::Eager);
    net.nodes[1].wire_full = true;
    net.deliver_one();
    assert!(net.sent_packets.is_empty() && net.nodes[1].engine.peers().info(peer).is_some());
    let back = net.peer(1, 0);
    net.at(1, |e, w| e.on_peer_error(w, back, PeerError::Gone));
    assert!(net.nodes[1].engine.is_flushed(None), "and goes with its peer");
}

// [M3.13]
#[test]
fn baseline_features_work_with_a_peer_that_has_no_other() {
    let (mut net, peer) = peer_with_features(Features::empty(), EngineConfig::default());
    let (bytes, mut room) = (message_bytes(1, 9000), vec![0; 9000]);
    for (protocol, len) in [(Protocol::Eager, 100), (Protocol::Medium, 5000), (Protocol::LongCts, 9000)] {
        room.fill(0);
        net.recv(1, &mut room, exact(1), 1);
        net.send(0, peer, &bytes[..len], Some(1), protocol);
        net.settle();
        assert!(room[..len] == bytes[..len], "{protocol:?}");
        assert_eq!(net.events(1).len(), 1);
        assert_eq!(net.nodes[0].engine.peers().stats().sent(protocol).bytes % 1_000_000, {
            let before = u64::from(protocol == Protocol::Eager);
            len as u64 + before
        });
    }
    let mut target = share(&mut net, 1, 9000, Access::all());
    for (protocol, len) in [(RmaProtocol::EagerWrite, 100), (RmaProtocol::LongCtsWrite, 9000)] {
        target.bytes.fill(0);
        let put = PutArgs { protocol, ..put_args(&bytes[..len], target.iov(0, len)) };
        net.put(0, peer, put);
        net.settle();
        assert!(target.bytes[..len] == bytes[..len], "{protocol:?}");
    }
    for (protocol, len) in [(RmaProtocol::ShortRead, 100), (RmaProtocol::LongCtsRead, 9000)] {
        room.fill(0);
        let local = Scatter::one(recv_buf(&mut room[..len]));
        let get = GetArgs { local, remote: target.iov(0, len), protocol, user: 2 };
        net.at(0, |e, w| e.get(w, peer, get));
        net.settle();
        assert!(room[..len] == bytes[..len], "{protocol:?}");
    }
    atomics_without_features(&mut net, peer);
    let used = [
        PktType::EAGER_TAGRTM,
        PktType::MEDIUM_TAGRTM,
        PktType::LONGCTS_TAGRTM,
        PktType::EAGER_RTW,
        PktType::LONGCTS_RTW,
        PktType::SHORT_RTR,
        PktType::LONGCTS_RTR,
        PktType::WRITE_RTA,
        PktType::FETCH_RTA,
        PktType::COMPARE_RTA,
    ];
    for ty in 64..=u8::MAX {
        let sent = sent_by(&net, 0, PktType(ty));
        assert_eq!(sent > 0, used.contains(&PktType(ty)), "{sent} packets of type {}", PktType(ty));
    }
    assert!(net.nodes[0].engine.is_flushed(None));
}

fn atomics_without_features(net: &mut Net, peer: PeerId) {
    let target = share(net, 1, 8, Access::all());
    let word = |target: &super::rma::Shared| u64::from_le_bytes(target.bytes[..8].try_into().unwrap());
    let (two, three, nine) = (2u64.to_le_bytes(), 3u64.to_le_bytes(), 9u64.to_le_bytes());
    let mut old = [0; 8];
    let plain = AtomicArgs {
        op: AtomicOp::Sum,
        ty: Datatype::Uint64,
        remote: target.iov(0, 8),
        operand: Gather::one(send_buf(&two)),
        compare: None,
        result: None,
        sync: DeliveryComplete::No,
        user: 3,
    };
    net.at(0, |e, w| e.atomic(w, peer, plain));
    net.settle();
    assert_eq!(word(&target), 2);
    let operand = Gather::one(send_buf(&two));
    let fetch = AtomicArgs {
        op: AtomicOp::Sum,
        ty: Datatype::Uint64,
        remote: target.iov(0, 8),
        operand,
        compare: None,
        result: Some(Scatter::one(recv_buf(&mut old))),
        sync: DeliveryComplete::No,
        user: 3,
    };
    net.at(0, |e, w| e.atomic(w, peer, fetch));
    net.settle();
    assert_eq!((word(&target), u64::from_le_bytes(old)), (4, 2));
    for (compare, then) in [(&three, 4), (&4u64.to_le_bytes(), 9)] {
        let swap = AtomicArgs {
            op: AtomicOp::CompareSwap,
            ty: Datatype::Uint64,
            remote: target.iov(0, 8),
            operand: Gather::one(send_buf(&nine)),
            compare: Some(Gather::one(send_buf(compare))),
            result: Some(Scatter::one(recv_buf(&mut old))),
            sync: DeliveryComplete::No,
            user: 3,
        };
        net.at(0, |e, w| e.atomic(w, peer, swap));
        net.settle();
        assert_eq!((word(&target), u64::from_le_bytes(old)), (then, 4));
    }
}
