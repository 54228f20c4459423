//! Messages read by another transport than the wire, or sent in packets to a receiver denied access.

use crate::rdm::EngineConfig;
use crate::rdm::ids::PeerId;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::send::cancel;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::rtm::RtmBody;
use crate::wire::{self, Packet, PktType};

const LEN: usize = 50_000;

/// Creates a pair that has shaken hands; the wire does not read node 0's memory.
fn connected(net_config: NetConfig, cfg: EngineConfig) -> (Net, PeerId) {
    let mut net = Net::with(2, 1, net_config, cfg).with_rdma(1 << 30);
    let peer = net.peer(0, 1);
    let mut room = [0; 1];
    net.recv(1, &mut room, exact(99), 0);
    net.send(0, peer, &[1], Some(99), Protocol::Eager);
    net.settle();
    net.events(0);
    net.events(1);
    net.nodes[0].device.rma_address = true;
    (net, peer)
}

fn received(net: &mut Net) -> Result<usize, OpError> {
    match net.events(1).as_slice() {
        [EngineEvent::RecvDone { result, .. }] => result.map(|status| status.len),
        outs => panic!("{outs:?}"),
    }
}

// [M11.13]
#[test]
fn request_carries_the_address_that_the_receiver_reads() {
    for (segment, reads) in [(1 << 30, 1), (20_000, 3)] {
        let cfg = EngineConfig { read_segment: segment, ..EngineConfig::default() };
        let (mut net, peer) = connected(NetConfig::RELIABLE, cfg);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        net.recv(1, &mut room, exact(5), 0);
        net.send(0, peer, &bytes, Some(5), Protocol::LongRead);
        let Ok(Packet::Rtm(rtm)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
        let RtmBody::LongRead { msg_length, read_iov, .. } = rtm.body else { panic!() };
        assert_eq!((msg_length, read_iov.count(), read_iov.total()), (LEN as u64, 3, Some(LEN as u64)));
        net.deliver_one();
        assert_eq!(
            (net.pending_reads.len(), net.nodes[1].device.rma_lane_reads),
            (0, reads),
            "not by the wire"
        );
        assert_eq!(received(&mut net), Ok(LEN));
        net.settle();
        assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Ok(()) }]);
        assert_eq!((net.regs(), room), (0, bytes));
        assert_eq!(net.nodes[1].engine.peers().stats().rare.reads, reads as u64);
    }
}

// [M11.13]
#[test]
fn messages_arrive_for_any_receive_on_a_full_wire() {
    let protocol = |n: usize| if n % 3 == 2 { Protocol::RuntRead } else { Protocol::LongRead };
    for seed in 0..20 {
        let cfg = EngineConfig { runt_size: 3000, read_segment: 7000, ..EngineConfig::default() };
        let (mut net, peer) = connected(NetConfig { full: 3, reorder: true, ..NetConfig::RELIABLE }, cfg);
        net.rng = Rng(seed);
        let messages: Vec<Vec<u8>> = (0..12).map(|n| message_bytes(n, 4000 + 3000 * n as usize)).collect();
        let room = |n: usize| if n == 5 { 3500 } else { messages[n].len() };
        let mut rooms: Vec<Vec<u8>> = (0..12).map(|n| vec![0; room(n)]).collect();
        for (n, into) in rooms.iter_mut().enumerate().take(6) {
            net.recv(1, into, exact(n as u64), n as u64);
        }
        for (n, message_bytes) in messages.iter().enumerate() {
            net.send(0, peer, message_bytes, Some(n as u64), protocol(n));
        }
        net.settle();
        for (n, into) in rooms.iter_mut().enumerate().skip(6) {
            net.recv(1, into, exact(n as u64), n as u64);
        }
        net.settle();
        assert_eq!((net.events(1).len(), net.events(0).len(), net.regs()), (12, 12, 0), "seed {seed}");
        for (message_bytes, room) in messages.iter().zip(&rooms) {
            assert!(*room == message_bytes[..room.len()], "seed {seed}");
        }
    }
}

/// The peer may be copying a part of it: the lane must know before the memory is the program's again.
// [M10.3] [M11.13]
#[test]
fn a_read_that_waits_is_given_up_before_its_receive_ends() {
    let (mut net, peer) = connected(NetConfig::RELIABLE, EngineConfig::default());
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    net.recv(1, &mut room, exact(5), 0);
    let Started::Pending(send) = net.send(0, peer, &bytes, Some(5), Protocol::LongRead) else { panic!() };
    let sent = net.sent_packets.remove(0);
    net.nodes[1].wire_full = true;
    net.deliver(&sent);
    net.resume(1);
    assert_eq!((net.nodes[1].device.rma_lane_abandoned, net.events(1).len()), (0, 0));
    assert!(net.at(0, |e, w| cancel::abort(e, w, send)));
    net.nodes[1].wire_full = false;
    while net.sent_packets.iter().any(|packet| packet.to == 1) {
        net.deliver_one();
    }
    assert!(matches!(received(&mut net), Err(OpError::Aborted(..))));
    assert_eq!((net.nodes[1].device.rma_lane_abandoned, net.nodes[1].device.rma_lane_reads), (1, 0));
}

// [M11.13]
#[test]
fn receiver_denied_access_gets_one_offer() {
    let (mut net, peer) = connected(NetConfig::RELIABLE, EngineConfig::default());
    net.nodes[1].device.access_denied = true;
    assert!(net.nodes[0].engine.peers().can_read_us(peer));
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    net.recv(1, &mut room, exact(5), 0);
    net.send(0, peer, &bytes, Some(5), Protocol::LongRead);
    net.settle();
    assert_eq!((received(&mut net), room == bytes), (Ok(LEN), true));
    assert_eq!((net.events(0).len(), net.regs()), (1, 0));
    assert!(!net.nodes[0].engine.peers().can_read_us(peer), "its user asks, and sends the next in packets");
    assert_eq!(net.nodes[0].engine.peers().stats().rare.nacks_received, 1);
}

// [M11.14]
#[test]
fn receiver_declines_each_offer_it_does_not_want() {
    let (mut net, peer) = connected(NetConfig::RELIABLE, EngineConfig::default());
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    for (n, decline_one_in) in [1, 0, 1].into_iter().enumerate() {
        net.nodes[1].device.decline_one_in = decline_one_in;
        room.fill(0);
        net.recv(1, &mut room, exact(5), 0);
        net.send(0, peer, &bytes, Some(5), Protocol::LongRead);
        net.settle();
        assert_eq!((received(&mut net), room == bytes), (Ok(LEN), true));
        assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Ok(()) }]);
        assert!(net.nodes[0].engine.peers().can_read_us(peer), "it is not kept out");
        assert_eq!(net.nodes[0].device.answers.len(), n + 1);
    }
    assert_eq!(net.nodes[0].device.answers, [(LEN, false), (LEN, true), (LEN, false)]);
    let (sender, receiver) = (net.nodes[0].engine.peers().stats(), net.nodes[1].engine.peers().stats());
    assert_eq!(
        (receiver.rare.nacks_by_choice, receiver.rare.nacks_sent, sender.rare.nacks_received),
        (2, 2, 2)
    );
    assert_eq!((net.nodes[1].device.rma_lane_reads, net.regs()), (1, 0));
}

// [M11.14]
#[test]
fn declined_offers_keep_message_order() {
    for seed in 0..20 {
        let (mut net, peer) =
            connected(NetConfig { full: 3, reorder: true, ..NetConfig::RELIABLE }, EngineConfig::default());
        net.rng = Rng(seed);
        net.nodes[1].device.decline_one_in = 2;
        let messages: Vec<Vec<u8>> = (0..12).map(|n| message_bytes(n, 4000 + 3000 * n as usize)).collect();
        let mut rooms: Vec<Vec<u8>> =
            messages.iter().map(|message_bytes| vec![0; message_bytes.len()]).collect();
        for (n, into) in rooms.iter_mut().enumerate().take(6) {
            net.recv(1, into, exact(n as u64), n as u64);
        }
        for (n, message_bytes) in messages.iter().enumerate() {
            net.send(0, peer, message_bytes, Some(n as u64), Protocol::LongRead);
        }
        net.settle();
        for (n, into) in rooms.iter_mut().enumerate().skip(6) {
            net.recv(1, into, exact(n as u64), n as u64);
        }
        net.settle();
        assert_eq!((net.events(1).len(), net.events(0).len(), net.regs()), (12, 12, 0), "seed {seed}");
        assert!(messages == rooms, "seed {seed}");
        let declined = net.nodes[1].engine.peers().stats().rare.nacks_by_choice;
        let answers = &net.nodes[0].device.answers;
        assert_eq!(answers.len(), 12, "seed {seed}");
        assert_eq!(answers.iter().filter(|(_, read)| !read).count() as u64, declined, "seed {seed}");
        assert!(net.nodes[0].engine.peers().can_read_us(peer));
    }
}

#[test]
fn declined_offer_and_failed_read_are_told_apart() {
    let (mut net, peer) = connected(NetConfig::RELIABLE, EngineConfig::default());
    net.nodes[1].device.access_denied = true;
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    net.recv(1, &mut room, exact(5), 0);
    net.send(0, peer, &bytes, Some(5), Protocol::LongRead);
    net.settle();
    assert!(!net.nodes[0].engine.peers().can_read_us(peer));
    assert_eq!(net.nodes[0].device.answers, []);
}

#[test]
fn message_that_fits_a_packet_goes_in_one() {
    for (sync, ty) in
        [(DeliveryComplete::No, PktType::EAGER_TAGRTM), (DeliveryComplete::Yes, PktType::DC_EAGER_TAGRTM)]
    {
        let (mut net, peer) = connected(NetConfig::RELIABLE, EngineConfig::default());
        let args =
            |buf| SendArgs { buf, tag: Some(1), sync, cq_data: None, protocol: Protocol::LongRead, user: 1 };
        let (short, long) = (message_bytes(1, 500), message_bytes(1, 5000));
        net.nodes[0].device.no_reg = Some(crate::rdm::io::RegError::Refused);
        net.send_args(0, peer, args(send_buf(&short)));
        net.send_args(0, peer, args(send_buf(&long)));
        let types: Vec<PktType> =
            net.sent_packets.iter().map(|sent_packet| PktType(sent_packet.bytes[0])).collect();
        let granted =
            if sync == DeliveryComplete::Yes { PktType::DC_LONGCTS_TAGRTM } else { PktType::LONGCTS_TAGRTM };
        assert_eq!(types, [ty, granted]);
    }
}
