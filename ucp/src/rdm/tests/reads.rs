//! Messages that the receiver reads: packets, ends, fallback when reading fails; no registration stays.

use crate::rdm::EngineConfig;
use crate::rdm::ids::PeerId;
use crate::rdm::io::RegError;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::PeerError;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::trace::DropReason;
use crate::rdm::types::*;
use crate::wire::rtm::{LongRead, Medium, RtmBody};
use crate::wire::{self, EfaStatus, Iovs, Opts, Packet, PktType, RmaIov};

const LEN: usize = 50_000;
const RUNT: usize = 3000;

fn connected(most: u64, net_config: NetConfig) -> (Net, PeerId) {
    let cfg = EngineConfig { runt_size: RUNT, ..EngineConfig::default() };
    let mut net = Net::with(2, 1, net_config, cfg).with_rdma(most);
    let peer = net.peer(0, 1);
    let mut room = [0; 1];
    net.recv(1, &mut room, exact(99), 0);
    net.send(0, peer, &[1], Some(99), Protocol::Eager);
    net.settle();
    net.events(0);
    net.events(1);
    (net, peer)
}

fn types(net: &Net) -> Vec<PktType> {
    net.sent_packets.iter().map(|sent_packet| PktType(sent_packet.bytes[0])).collect()
}

fn count(net: &Net, node: usize, ty: PktType) -> u64 {
    net.nodes[node].engine.peers().stats().tx_pkts[usize::from(ty.0)]
}

fn received(net: &mut Net) -> Option<Result<usize, OpError>> {
    match net.events(1).as_slice() {
        [] => None,
        [EngineEvent::RecvDone { result, .. }] => Some(result.map(|status| status.len)),
        outs => panic!("{outs:?}"),
    }
}

// [M3.7] [M7.1] [M7.2]
#[test]
fn long_read_is_request_reads_and_eor() {
    for (most, reads) in [(1 << 30, 1), (20_000, 3)] {
        let (mut net, peer) = connected(most, NetConfig::RELIABLE);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        net.recv(1, &mut room, exact(5), 0);
        assert!(matches!(net.send(0, peer, &bytes, Some(5), Protocol::LongRead), Started::Pending(_)));
        assert_eq!(types(&net), [PktType::LONGREAD_TAGRTM]);
        let Ok(Packet::Rtm(rtm)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
        let RtmBody::LongRead { msg_length, read_iov, .. } = rtm.body else { panic!() };
        assert_eq!((msg_length, read_iov.total(), rtm.payload.len()), (LEN as u64, Some(LEN as u64), 0));
        net.deliver_one();
        assert_eq!((net.sent_packets.len(), net.pending_reads.len(), net.regs()), (0, reads, 2));
        while net.complete_read() {}
        assert_eq!((types(&net), net.regs()), (vec![PktType::EOR], 1), "its own is released before it ends");
        assert_eq!(received(&mut net), Some(Ok(LEN)));
        assert!(net.events(0).is_empty(), "the sender's is still lent");
        net.settle();
        assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Ok(()) }]);
        assert_eq!((net.regs(), room), (0, bytes));
    }
}

// [M3.7]
#[test]
fn message_is_sent_without_handshake_or_rdma_read() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE).with_rdma(1 << 30);
    let peer = net.peer(0, 1);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    net.recv(1, &mut room, exact(5), 0);
    net.send(0, peer, &bytes, Some(5), Protocol::LongRead);
    assert_eq!(types(&net), [PktType::LONGCTS_TAGRTM]);
    net.settle();
    assert_eq!((received(&mut net), room), (Some(Ok(LEN)), bytes.clone()));
    let (mut net, peer) = connected(0, NetConfig::RELIABLE);
    net.send(0, peer, &bytes, Some(5), Protocol::RuntRead);
    assert_eq!(types(&net), [PktType::LONGCTS_TAGRTM]);
}

// [M7.9]
#[test]
fn runtread_sends_head_while_rest_is_read() {
    for reorder in [false, true] {
        for early in [false, true] {
            let (mut net, peer) = connected(7000, NetConfig { reorder, ..NetConfig::RELIABLE });
            let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
            if !early {
                net.recv(1, &mut room, RecvKind::Untagged, 0);
            }
            net.send(0, peer, &bytes, None, Protocol::RuntRead);
            assert!(
                types(&net).iter().all(|ty| *ty == PktType::RUNTREAD_MSGRTM) && net.sent_packets.len() == 4
            );
            let second = net.send(0, peer, &bytes, Some(7), Protocol::RuntRead);
            assert!(matches!(second, Started::Pending(_)));
            assert_eq!(types(&net)[4], PktType::LONGREAD_TAGRTM, "one that runts at a time");
            net.deliver_one();
            assert_eq!(net.pending_reads.is_empty(), early || reorder && net.sent_packets.len() < 4);
            net.settle();
            if early {
                net.recv(1, &mut room, RecvKind::Untagged, 0);
                net.settle();
            }
            assert_eq!((received(&mut net), &room), (Some(Ok(LEN)), &bytes));
            let mut other = vec![0; LEN];
            net.recv(1, &mut other, exact(7), 0);
            net.settle();
            assert_eq!((received(&mut net), &other), (Some(Ok(LEN)), &bytes));
            assert_eq!((net.events(0).len(), net.regs(), count(&net, 1, PktType::EOR)), (2, 0, 2));
            assert_eq!(net.nodes[1].engine.pending().held_bytes(), 0);
        }
    }
}

// [M5.3] [M7.9]
#[test]
fn segments_of_another_protocol_do_not_end_a_read_message() {
    for early in [false, true] {
        let (mut net, peer) = connected(7000, NetConfig::RELIABLE);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        if !early {
            net.recv(1, &mut room, RecvKind::Untagged, 0);
        }
        let msg_id = net.nodes[1].engine.next_rx(PeerId(0));
        net.send(0, peer, &bytes, None, Protocol::RuntRead);
        net.deliver_one();
        assert_eq!(net.pending_reads.is_empty(), early);
        let medium = Medium { msg_id, msg_length: LEN as u64, ..Medium::default() };
        for seg_offset in (0..LEN).step_by(500) {
            let mut packet = vec![0; 64];
            let len = Medium { seg_offset: seg_offset as u64, ..medium }.write(&mut packet);
            packet.truncate(len);
            packet.extend([0xee; 500]);
            net.deliver(&SentPacket { from: 0, to: 1, bytes: packet });
        }
        assert_eq!(net.nodes[1].engine.peers().stats().rare.bad_segment, LEN as u64 / 500);
        assert_eq!(received(&mut net), None, "the device writes on");
        net.settle();
        if early {
            net.recv(1, &mut room, RecvKind::Untagged, 0);
            net.settle();
        }
        assert_eq!((received(&mut net), room == bytes, net.regs()), (Some(Ok(LEN)), true, 0));
    }
}

// [M7.9]
#[test]
fn synchronous_messages_use_no_runtread_and_end_by_eor() {
    let (mut net, peer) = connected(1 << 30, NetConfig::RELIABLE);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    let args = SendArgs {
        buf: send_buf(&bytes),
        tag: Some(1),
        sync: DeliveryComplete::Yes,
        cq_data: None,
        protocol: Protocol::RuntRead,
        user: 1,
    };
    net.send_args(0, peer, args);
    assert_eq!(types(&net), [PktType::LONGREAD_TAGRTM]);
    net.settle();
    assert!(net.events(0).is_empty(), "nobody has received it");
    net.recv(1, &mut room, ANY, 0);
    net.settle();
    assert_eq!((net.events(0).len(), count(&net, 1, PktType::RECEIPT)), (1, 0));
}

// [M7.4]
#[test]
fn read_stops_at_the_end_of_a_short_receive() {
    for protocol in [Protocol::LongRead, Protocol::RuntRead] {
        for space in [0, 100, RUNT, RUNT + 1, LEN - 1] {
            let (mut net, peer) = connected(1 << 30, NetConfig { reorder: true, ..NetConfig::RELIABLE });
            let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
            net.recv(1, &mut room[..space], ANY, 0);
            net.send(0, peer, &bytes, Some(1), protocol);
            net.settle();
            let Some(Err(OpError::Truncated { len, room: end, tag, from })) = received(&mut net) else {
                panic!("not truncated");
            };
            assert_eq!((len, end, tag), (LEN as u64, space, 1));
            assert!(net.nodes[1].engine.peers().info(from).is_some(), "the sender is a peer");
            assert_eq!((net.events(0).len(), net.regs()), (1, 0), "{protocol:?} {space}");
            assert_eq!(room[..space], bytes[..space]);
            assert!(room[space..].iter().all(|byte| *byte == 0));
        }
    }
}

// [M7.5] [M7.6]
#[test]
fn unreadable_message_is_sent() {
    let disturb: [fn(&mut Net); 4] = [
        |net| net.nodes[1].device.no_reg = Some(RegError::Full),
        |net| net.nodes[1].device.no_reg = Some(RegError::Refused),
        |net| net.nodes[1].device.fault = Some(PeerError::Device(EfaStatus::RemoteBadAddress)),
        |net| {
            let wire = net.nodes[1].wire;
            net.nodes[1].engine.wires_mut().set_rdma(wire, Default::default());
        },
    ];
    for (protocol, disturb) in
        [Protocol::LongRead, Protocol::RuntRead].into_iter().flat_map(|r| disturb.map(|d| (r, d)))
    {
        for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
            for (reorder, early) in [(false, false), (true, false), (true, true)] {
                let (mut net, peer) = connected(20_000, NetConfig { reorder, ..NetConfig::RELIABLE });
                disturb(&mut net);
                let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
                if !early {
                    net.recv(1, &mut room, ANY, 0);
                }
                let args =
                    SendArgs { buf: send_buf(&bytes), tag: Some(1), sync, cq_data: None, protocol, user: 1 };
                net.send_args(0, peer, args);
                net.settle();
                if early {
                    net.recv(1, &mut room, ANY, 0);
                    net.settle();
                }
                assert_eq!((received(&mut net), &room), (Some(Ok(LEN)), &bytes), "{protocol:?}");
                assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Ok(()) }]);
                assert_eq!((net.regs(), count(&net, 1, PktType::READ_NACK)), (0, 1));
                let again = match sync {
                    DeliveryComplete::No => PktType::LONGCTS_TAGRTM,
                    DeliveryComplete::Yes => PktType::DC_LONGCTS_TAGRTM,
                };
                assert_eq!((count(&net, 0, again), count(&net, 1, PktType::EOR)), (1, 0));
                let dropped = net.nodes[0].engine.peers().stats().rare.bad_id
                    + net.nodes[1].engine.peers().stats().rare.bad_id;
                assert_eq!(dropped, 0);
            }
        }
    }
}

// [M7.8]
#[test]
fn sender_without_registration_sends_packets() {
    for why in [RegError::Full, RegError::Refused] {
        let (mut net, peer) = connected(1 << 30, NetConfig::RELIABLE);
        net.nodes[0].device.no_reg = Some(why);
        let bytes = message_bytes(1, LEN);
        net.send(0, peer, &bytes, Some(1), Protocol::LongRead);
        assert_eq!(types(&net), [PktType::LONGCTS_TAGRTM]);
    }
}

/// Each operation ends once, and a receive only when the device no longer writes to it.
// [M7.3]
#[test]
fn peer_lost_at_any_step_leaks_nothing() {
    for protocol in [Protocol::LongRead, Protocol::RuntRead] {
        for (loser, refuse) in [(0, false), (1, false), (0, true), (1, true)] {
            for steps in 0..24 {
                let (mut net, peer) = connected(9000, NetConfig::RELIABLE);
                let back = net.peer(1, 0);
                net.nodes[1].device.no_reg = refuse.then_some(RegError::Full);
                let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
                net.recv(1, &mut room, ANY, 0);
                net.send(0, peer, &bytes, Some(1), protocol);
                for step in 0..steps {
                    let _ = if step % 3 == 2 { net.complete_read() } else { net.deliver_one() };
                }
                let lost = if loser == 0 { peer } else { back };
                net.at(loser, |e, w| e.on_peer_error(w, lost, PeerError::Gone));
                if let Some(result) =
                    net.events(1).iter().find(|out| matches!(out, EngineEvent::RecvDone { .. }))
                {
                    assert!(net.pending_reads.is_empty() || loser == 0, "{result:?} under a read");
                }
                net.at(loser, |e, w| e.remove_peer(w, lost));
                while net.complete_read() {}
                assert_eq!(net.nodes[loser].device.live(), 0, "{protocol:?} loser {loser} after {steps}");
                assert!(net.nodes[loser].engine.is_flushed(None));
            }
        }
    }
}

#[test]
fn device_error_about_the_peer_fails_it() {
    let (mut net, peer) = connected(9000, NetConfig::RELIABLE);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    net.recv(1, &mut room, ANY, 0);
    net.send(0, peer, &bytes, Some(1), Protocol::LongRead);
    net.deliver_one();
    net.gone = Some(0);
    while net.complete_read() {}
    let outs = net.events(1);
    assert_eq!(outs.len(), 2, "{outs:?}");
    assert!(
        outs.contains(&EngineEvent::RecvDone { user: 0, result: Err(OpError::Peer(peer, PeerError::Gone)) })
    );
    assert_eq!(net.nodes[1].device.live(), 0);
}

#[test]
fn message_to_self_is_read() {
    let cfg = EngineConfig { runt_size: RUNT, ..EngineConfig::default() };
    let mut net = Net::with(1, 1, NetConfig::RELIABLE, cfg).with_rdma(9000);
    let me = net.peer(0, 0);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    let mut small = [0; 1];
    net.recv(0, &mut small, exact(9), 0);
    net.send(0, me, &[1], Some(9), Protocol::Eager);
    net.settle();
    net.events(0);
    for protocol in [Protocol::LongRead, Protocol::RuntRead] {
        room.fill(0);
        net.recv(0, &mut room, ANY, 0);
        net.send(0, me, &bytes, Some(1), protocol);
        net.settle();
        assert_eq!((net.events(0).len(), net.regs()), (2, 0));
        assert_eq!(room, bytes);
    }
    assert_eq!(net.nodes[0].engine.peers().stats().sent(Protocol::LongRead).msgs, 1);
    assert_eq!(net.nodes[0].engine.peers().stats().received(Protocol::RuntRead).bytes, LEN as u64);
}

/// libfabric before 1.20 knows no READ_NACK: it waits until its message has been read.
// [M7.5]
#[test]
fn peer_without_nack_is_read_through_device_buffers() {
    for (copies, end) in [(8192, Ok(LEN)), (0, Err(OpError::Unsupported))] {
        for protocol in [Protocol::LongRead, Protocol::RuntRead] {
            let (mut net, peer) = connected(20_000, NetConfig::RELIABLE);
            let mut shake = vec![0; 64];
            let hdr = wire::Handshake::new(wire::Features::from_bits_retain(0x1b), 1000, 0xefa2);
            let len = hdr.write(&mut shake);
            shake.truncate(len);
            net.deliver(&SentPacket { from: 0, to: 1, bytes: shake });
            net.nodes[1].device.no_reg = Some(RegError::Full);
            net.nodes[1].device.copies = copies;
            let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
            net.recv(1, &mut room, ANY, 0);
            net.send(0, peer, &bytes, Some(1), protocol);
            net.settle();
            assert_eq!(received(&mut net), Some(end), "{protocol:?}");
            assert_eq!(count(&net, 1, PktType::READ_NACK), 0);
            assert_eq!(count(&net, 1, PktType::EOR), u64::from(end.is_ok()));
            assert_eq!(room == bytes, end.is_ok());
        }
    }
}

// [M7.10]
#[test]
fn requests_that_name_too_little_are_dropped_and_bad_keys_are_nacked() {
    let (mut net, _) = connected(1 << 30, NetConfig::RELIABLE);
    let mut room = vec![0; LEN];
    net.recv(1, &mut room, ANY, 0);
    let claim = |net: &mut Net, msg_id: u32, iov: RmaIov| {
        let opts = Opts { connid: Some(1000), ..Opts::NONE };
        let read_iov = Iovs::one(iov);
        let hdr = LongRead { msg_id, tag: Some(1), msg_length: LEN as u64, send_id: 77, read_iov, opts };
        let mut bytes = vec![0; 256];
        let len = hdr.write(&mut bytes);
        bytes.truncate(len);
        net.deliver(&SentPacket { from: 0, to: 1, bytes });
    };
    claim(&mut net, 1, RmaIov { addr: 4096, len: LEN as u64 - 1, key: 1 });
    assert_eq!(net.nodes[1].engine.peers().stats().dropped(DropReason::BadSegment), 1);
    claim(&mut net, 2, RmaIov { addr: u64::MAX - 8, len: LEN as u64, key: u64::MAX });
    net.settle();
    assert_eq!((count(&net, 1, PktType::READ_NACK), net.regs(), received(&mut net)), (1, 0, None));
    assert_eq!(net.nodes[0].engine.peers().stats().dropped(DropReason::BadId), 1, "nobody has announced it");
    assert!(room.iter().all(|byte| *byte == 0));
}
