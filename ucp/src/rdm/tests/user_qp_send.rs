//! Messages to a peer in zero-copy receive mode: packets and destinations, refusals, returned messages.

use crate::rdm::ids::PeerId;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::{self, Features, Handshake, PktType, UserRecvQp};

const QP: UserRecvQp = UserRecvQp { qpn: 0x22, qkey: 0x33 };
const WORD: u64 = 0xda;

fn shake(net: &mut Net, qp: Option<UserRecvQp>, word: u64) {
    let mut bytes = vec![0; 64];
    let mut hdr = Handshake::new(Features::from_bits_retain(word), 1001, 0xefa2);
    hdr.user_recv_qp = qp;
    let len = hdr.write(&mut bytes);
    bytes.truncate(len);
    net.deliver(&SentPacket { from: 1, to: 0, bytes });
}

fn connected() -> (Net, PeerId) {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    shake(&mut net, Some(QP), WORD);
    net.sent_packets.clear();
    (net, peer)
}

fn args(bytes: &[u8], cq_data: Option<u64>) -> SendArgs {
    SendArgs {
        buf: send_buf(bytes),
        tag: None,
        sync: DeliveryComplete::No,
        cq_data,
        protocol: Protocol::Eager,
        user: 7,
    }
}

fn sent(net: &mut Net) -> Vec<(UserRecvQp, Vec<u8>, Option<u32>)> {
    assert!(net.sent_packets.is_empty(), "no packet goes out");
    std::mem::take(&mut net.nodes[0].device.headerless)
}

// [M5.10]
#[test]
fn untagged_messages_go_headerless_to_the_user_qp() {
    let (mut net, peer) = connected();
    let long = message_bytes(1, net.net_config.mtu);
    assert_eq!(net.send_args(0, peer, args(b"bytes", None)), Started::Done(()));
    assert_eq!(net.send_args(0, peer, args(b"", Some(0xffff_ffff))), Started::Done(()));
    assert_eq!(net.send_args(0, peer, args(&long, Some(0))), Started::Done(()));
    let expected =
        [(QP, b"bytes".to_vec(), None), (QP, Vec::new(), Some(0xffff_ffff)), (QP, long.clone(), Some(0))];
    assert_eq!(sent(&mut net), expected);
    let engine = &net.nodes[0].engine;
    let traffic = engine.peers().stats().sent(Protocol::UserQp);
    assert_eq!((traffic.msgs, traffic.bytes), (3, 5 + long.len() as u64));
    assert!(
        engine.is_flushed(None) && engine.peers().stats().tx_pkts[usize::from(PktType::EAGER_MSGRTM.0)] == 0
    );
}

// [M5.10] [M4.1]
#[test]
fn headerless_messages_take_no_message_id() {
    let (mut net, peer) = connected();
    assert_eq!(net.send_args(0, peer, args(b"one", None)), Started::Done(()));
    assert_eq!(sent(&mut net).len(), 1);
    shake(&mut net, None, WORD & !0x80);
    net.sent_packets.clear();
    assert_eq!(net.send_args(0, peer, args(b"two", None)), Started::Done(()));
    let Ok(wire::Packet::Rtm(rtm)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
    assert_eq!(rtm.msg_id, 0);
}

// [M5.11]
#[test]
fn unsupported_sends_are_refused_at_once() {
    let (mut net, peer) = connected();
    let bytes = message_bytes(1, net.net_config.mtu + 1);
    let max = net.net_config.mtu;
    let base = args(&bytes[..8], None);
    let refused = Started::Failed(OpError::Unsupported);
    assert_eq!(net.send_args(0, peer, SendArgs { tag: Some(3), ..base }), refused);
    assert_eq!(net.send_args(0, peer, SendArgs { sync: DeliveryComplete::Yes, ..base }), refused);
    assert_eq!(net.send_args(0, peer, SendArgs { protocol: Protocol::DcEager, ..base }), refused);
    assert_eq!(net.send_args(0, peer, args(&bytes[..8], Some(1 << 32))), refused);
    let long = Started::Failed(OpError::TooLong { len: max + 1, max });
    for protocol in [Protocol::Eager, Protocol::Medium, Protocol::LongCts, Protocol::LongRead] {
        assert_eq!(net.send_args(0, peer, SendArgs { protocol, ..args(&bytes, None) }), long, "{protocol:?}");
    }
    assert!(!net.at(0, |e, w| e.peers_mut().send_short(
        w,
        peer,
        (crate::wire::MsgClass::Message, 1),
        send_buf(&bytes[..8])
    )));
    assert_eq!(sent(&mut net), []);
    let engine = &net.nodes[0].engine;
    assert!(engine.is_flushed(None) && engine.peers().info(peer).unwrap().fault.is_none());
}

// [M3.8] [M5.10]
#[test]
fn headerless_messages_wait_for_room_and_handshake() {
    let cfg = EngineConfig { first_contact: FirstContact::Wait, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    let peer = net.peer(0, 1);
    assert!(matches!(net.send_args(0, peer, args(b"first", None)), Started::Pending(_)));
    assert_eq!(net.sent_packets.len(), 1, "the trigger and no more");
    assert_eq!(net.sent_packets[0].bytes[0], PktType::EAGER_RTW.0);
    assert!(matches!(net.send_args(0, peer, args(b"second", Some(9))), Started::Pending(_)));
    net.nodes[0].wire_full = true;
    shake(&mut net, Some(QP), WORD);
    net.sent_packets.clear();
    assert!(net.nodes[0].device.headerless.is_empty() && net.events(0).is_empty());
    net.nodes[0].wire_full = false;
    while net.resume(0) > 0 {}
    net.sent_packets.clear();
    let bytes: Vec<_> = sent(&mut net).into_iter().map(|(_, bytes, imm)| (bytes, imm)).collect();
    assert_eq!(bytes, [(b"first".to_vec(), None), (b"second".to_vec(), Some(9))]);
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 7, result: Ok(()) }; 2]);
    // A peer of another kind gets packets; requests without tag need no handshake.
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    let peer = net.peer(0, 1);
    assert_eq!(net.send(0, peer, b"tagged", Some(1), Protocol::Eager), Started::Done(()));
    assert!(matches!(net.send_args(0, peer, args(b"untagged", None)), Started::Pending(_)));
    let mut room = [0; 8];
    net.recv(1, &mut room, RecvKind::Untagged, 0);
    net.settle();
    assert_eq!(net.events(1).len(), 1);
    assert_eq!(&room, b"untagged");
}

/// The program has posted no receive, so the device returns the message.
// [M5.11] [M10.5]
#[test]
fn returned_message_is_sent_again_unchanged() {
    let (mut net, peer) = connected();
    assert_eq!(net.send_args(0, peer, args(b"back", Some(5))), Started::Done(()));
    let (qp, bytes, imm) = sent(&mut net).remove(0);
    let now = net.now;
    net.at(0, |e, _| e.returns().on_rnr_user_qp(now, peer, &bytes, imm));
    assert!(
        !net.nodes[0].engine.is_flushed(Some(peer))
            && net.nodes[0].engine.pending().is_backed_off(net.nodes[0].engine.peers(), Some(peer))
    );
    assert!(matches!(net.send_args(0, peer, args(b"behind", None)), Started::Pending(_)));
    while net.resume(0) > 0 {}
    let again = sent(&mut net);
    assert_eq!(again, [(qp, bytes, imm), (QP, b"behind".to_vec(), None)]);
    assert_eq!(net.nodes[0].engine.peers().stats().rare.sent_again, 1);
    assert!(net.nodes[0].engine.is_flushed(None) && net.nodes[0].engine.pending().held_bytes() == 0);
}

// [M5.11]
#[test]
fn message_begun_in_packets_ends_with_an_error() {
    let mut net = Net::new(2, 1, NetConfig { full: 2, ..NetConfig::RELIABLE });
    let peer = net.peer(0, 1);
    let bytes = message_bytes(1, 20_000);
    let args = SendArgs { protocol: Protocol::Medium, ..args(&bytes, None) };
    assert!(matches!(net.send_args(0, peer, args), Started::Pending(_)));
    assert!(!net.sent_packets.is_empty());
    net.net_config.full = 0;
    net.sent_packets.clear();
    shake(&mut net, Some(QP), WORD);
    while net.resume(0) > 0 {}
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 7, result: Err(OpError::Unsupported) }]);
    assert_eq!(net.nodes[0].engine.peers().info(peer).unwrap().outstanding, 0);
}

/// A long message waits for a grant, which a peer of that mode never sends.
// [M5.11]
#[test]
fn message_announced_before_the_handshake_ends_with_it() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let long = message_bytes(1, 50_000);
    for tag in [None, Some(3)] {
        let announced = net.send(0, peer, &long, tag, Protocol::LongCts);
        assert!(matches!(announced, Started::Pending(_)), "{announced:?}");
    }
    assert_eq!(net.sent_packets.len(), 2, "both are announced");
    shake(&mut net, Some(QP), WORD);
    let refused = OpError::TooLong { len: long.len(), max: net.net_config.mtu };
    let ends = net.events(0);
    assert_eq!(ends.len(), 2);
    assert!(
        ends.iter().all(|end| matches!(end, EngineEvent::SendDone { result, .. } if *result == Err(refused))),
        "{ends:?}"
    );
    assert!(net.nodes[0].engine.is_flushed(Some(peer)));
}
