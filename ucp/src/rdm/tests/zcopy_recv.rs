//! Zero-copy receive mode, receiving end: messages that come in packets and wait to be forwarded.

use crate::rdm::UserRecvEnd;
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::{EfaStatus, Features, UserRecvQp};

const QP: UserRecvQp = UserRecvQp { qpn: 0x22, qkey: 0x33 };
const FAILED: PeerError = PeerError::Device(EfaStatus::Flushed);

/// Node 1 is in the mode, of which node 0 does not know. Returns node 1 at node 0, and at itself.
fn pair() -> (Net, PeerId, PeerId) {
    let cfg = EngineConfig { withhold: Features::USER_RECV_QP, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, NetConfig::RELIABLE, cfg);
    let wire = net.nodes[1].wire;
    let me = net.at(1, |e, _| e.enable_zcopy_recv(wire, QP, source(&address(1))));
    net.nodes[1].paths.push(1);
    let peer = net.peer(0, 1);
    (net, peer, me)
}

/// Sends an untagged message whose sender waits until it has been received.
fn send_synced(net: &mut Net, to: PeerId, user: u64) {
    let (sync, protocol) = (DeliveryComplete::Yes, Protocol::DcEager);
    let args = SendArgs { buf: send_buf(b"synced"), tag: None, sync, cq_data: None, protocol, user };
    assert!(matches!(net.send_args(0, to, args), Started::Pending(_)));
    net.settle();
}

fn told(user: u64, peer: PeerId) -> EngineEvent {
    EngineEvent::SendDone { user, result: Err(OpError::Aborted(peer, ABORTED)) }
}

// [M5.13]
#[test]
fn senders_of_messages_that_are_not_forwarded_are_told() {
    let (mut net, peer, me) = pair();
    send_synced(&mut net, peer, 1);
    send_synced(&mut net, peer, 2);
    assert_eq!(net.events(0), [], "they wait for receives");
    assert!(net.nodes[1].engine.pending().unexpected_bytes() > 0);
    net.at(1, |e, w| e.on_peer_error(w, me, FAILED));
    net.settle();
    assert_eq!(net.events(0), [told(1, peer), told(2, peer)]);
    assert_eq!(net.nodes[1].engine.pending().unexpected_bytes(), 0);
    send_synced(&mut net, peer, 3);
    assert_eq!(net.events(0), [told(3, peer)], "and so are later ones");
}

// [M5.13]
#[test]
fn failure_of_the_user_receive_qp_ends_what_waits_for_it() {
    let (mut net, peer, _) = pair();
    let mut room = [0; 8];
    net.recv(1, &mut room, RecvKind::Untagged, 9);
    send_synced(&mut net, peer, 1);
    send_synced(&mut net, peer, 2);
    assert_eq!((net.events(0), net.nodes[1].device.headerless.len()), (Vec::new(), 1), "one is forwarded");
    let (wire, receive) = (net.nodes[1].wire, net.nodes[1].device.user_recvs[0]);
    let end = UserRecvEnd { from: Source::default(), len: 0, imm: None, result: Err(FAILED) };
    net.at(1, |e, w| e.on_user_recv(w, wire, receive, end));
    net.settle();
    assert_eq!(net.events(0), [told(1, peer), told(2, peer)]);
    let failed = |event: &EngineEvent| matches!(event, EngineEvent::RecvDone { user: 9, result: Err(_) });
    assert!(net.events(1).iter().any(failed));
}
