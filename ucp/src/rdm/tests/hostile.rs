//! Malicious packets: no panic, no write outside user buffers, no double end; honest traffic arrives.

use std::collections::HashSet;

use crate::rdm::protocol::Protocol;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::PktType;
use crate::wire::ctl::{Cts, CtsData, Receipt};
use crate::wire::rtm::Medium;

const GUARD: usize = 64;

/// An engine receives mutated copies of the packets in flight to it.
fn storm(seed: u64) {
    let _seed = Seed(seed);
    let mut rng = Rng(seed ^ 0xbad);
    let mut net = Net::new(3, seed, NetConfig { mtu: 512, full: 4, reorder: true, ..NetConfig::RELIABLE });
    if seed % 2 == 1 {
        net = net.with_rdma(1000);
    }
    let messages: Vec<Vec<u8>> = (0..40).map(|n| message_bytes(n, rng.below(6000))).collect();
    let mut rooms: Vec<Vec<u8>> = (0..60).map(|_| vec![0x55; rng.below(7000) + 2 * GUARD]).collect();
    let (mut next, mut posted) = (0, 0);
    let mut ended = HashSet::new();
    let mut pool: Vec<SentPacket> = Vec::new();
    for _ in 0..1500 {
        match rng.below(8) {
            0 if next < messages.len() => {
                let (from, to) = (rng.below(3), rng.below(3));
                let peer = net.peer(from, to);
                let protocol = rng.pick(&Protocol::ALL);
                let tag = rng.one_in(2).then_some(rng.below(2) as u64);
                let buf = send_buf(&messages[next]);
                let args =
                    SendArgs { buf, tag, sync: protocol.sync(), cq_data: None, protocol, user: next as u64 };
                net.send_args(from, peer, args);
                next += 1;
            }
            1 if posted < rooms.len() => {
                let kind = rng.pick(&[ANY, exact(0), exact(1), RecvKind::Untagged]);
                let room = &mut rooms[posted];
                let end = room.len() - GUARD;
                let me = rng.below(3);
                match net.recv(me, &mut room[GUARD..end], kind, posted as u64) {
                    Started::Pending(_) => {}
                    _ => assert!(ended.insert((true, posted as u64))),
                }
                posted += 1;
            }
            2 => {
                let me = rng.below(3);
                net.resume(me);
            }
            3 | 4 if !pool.is_empty() => {
                let mut sent_packet = pool[rng.below(pool.len())].clone();
                mutate(&mut sent_packet, &mut rng);
                net.deliver(&sent_packet);
            }
            _ => {
                pool.extend(net.sent_packets.iter().take(1).cloned());
                net.deliver_one();
                net.complete_read();
            }
        }
        for me in 0..3 {
            for out in net.events(me) {
                let key = match out {
                    EngineEvent::SendDone { user, .. } => (false, user),
                    EngineEvent::RecvDone { user, .. } => (true, user),
                    EngineEvent::RmaDone { .. }
                    | EngineEvent::RemoteWrite { .. }
                    | EngineEvent::PeerFailed { .. }
                    | EngineEvent::ConnectionClosed { .. }
                    | EngineEvent::UnknownPeersRefused { .. } => continue,
                    EngineEvent::MultiRecvMessage { .. } | EngineEvent::MultiRecvDone { .. } => {
                        panic!("{out:?}")
                    }
                };
                assert!(ended.insert(key), "{key:?} ended twice");
            }
        }
    }
    drop(net);
    for room in &rooms {
        assert!(room[..GUARD].iter().chain(&room[room.len() - GUARD..]).all(|&b| b == 0x55), "out of bounds");
    }
}

fn mutate(sent_packet: &mut SentPacket, rng: &mut Rng) {
    let bytes = &mut sent_packet.bytes;
    for _ in 0..rng.below(4) {
        match rng.below(6) {
            0 => bytes.truncate(rng.below(bytes.len() + 1)),
            1 => bytes.extend(message_bytes(rng.next(), rng.below(40))),
            2 if !bytes.is_empty() => bytes[0] = rng.next() as u8,
            3 if bytes.len() >= 48 => {
                let at = rng.below(40);
                bytes[at..at + 8]
                    .copy_from_slice(&rng.pick(&[0u64, 1, u64::MAX, 1 << 63, 4096]).to_le_bytes());
            }
            _ if !bytes.is_empty() => {
                let at = rng.below(bytes.len().min(64));
                bytes[at] ^= 1 << rng.below(8);
            }
            _ => {}
        }
    }
    if rng.one_in(8) {
        sent_packet.from = rng.below(3);
    }
}

// [M10.6]
#[test]
fn mutated_packets_do_no_harm() {
    (0..120).for_each(storm);
}

#[test]
fn random_packets_do_no_harm() {
    let _seed = Seed(7);
    let mut rng = Rng(7);
    let mut net = Net::new(2, 7, NetConfig::RELIABLE);
    net.peer(1, 0);
    let mut room = vec![0u8; 500];
    net.recv(1, &mut room, ANY, 0);
    for _ in 0..20_000 {
        let mut bytes = message_bytes(rng.next(), rng.below(100));
        if bytes.len() > 3 && rng.one_in(2) {
            bytes[0] = rng.pick(&[
                3, 4, 5, 7, 8, 9, 10, 11, 12, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 128, 129,
                130, 133, 134, 135, 136, 137, 138, 139, 140, 141, 145, 146,
            ]);
            bytes[1] = 4;
            bytes[2] &= 0xfe;
        }
        net.deliver(&SentPacket { from: 0, to: 1, bytes });
        net.sent_packets.clear();
    }
}

// [M1.6]
#[test]
fn ids_of_another_peer_are_refused() {
    let mut net = Net::new(3, 1, NetConfig::RELIABLE);
    let (peer, thief) = (net.peer(0, 1), net.peer(2, 0));
    net.send(2, thief, b"hi", Some(9), Protocol::Eager);
    net.settle();
    let bytes = message_bytes(1, 20_000);
    let mut room = vec![0; 20_000];
    let Started::Pending(send) = net.send(0, peer, &bytes, Some(1), Protocol::DcLongCts) else { panic!() };
    net.settle();
    let send_id = send.0.raw();
    let mut packet = [0; 64];
    let forge = |net: &mut Net, to: usize, len: usize, packet: &[u8]| {
        net.deliver(&SentPacket { from: 2, to, bytes: packet[..len].to_vec() });
    };
    let cts = Cts { send_id, recv_id: 1, recv_length: 5000, ..Cts::default() };
    let len = cts.write(&mut packet);
    forge(&mut net, 0, len, &packet);
    let len = Receipt { send_id, ..Receipt::default() }.write(&mut packet);
    forge(&mut net, 0, len, &packet);
    assert_eq!(net.nodes[0].engine.peers().stats().rare.bad_id, 2);
    // The right peer, but data that were never sent cannot have been received.
    net.deliver(&SentPacket { from: 1, to: 0, bytes: packet[..len].to_vec() });
    assert_eq!(net.nodes[0].engine.peers().stats().rare.bad_id, 3);
    assert!(net.sent_packets.is_empty() && net.events(0).is_empty());

    let Started::Pending(recv) = net.recv(1, &mut room, exact(1), 0) else { panic!() };
    let recv_id = recv.0.raw();
    let data = CtsData { recv_id, seg_length: 8, seg_offset: 15_000, connid: None };
    let at = data.write(&mut packet);
    net.peer(1, 2);
    forge(&mut net, 1, at + 8, &packet);
    // Beyond the window, beyond the message, and twice, from the right peer.
    let honest = net.sent_packets.clone();
    for (seg_offset, seg_length) in [(19_999, 2), (u64::MAX - 8, 8), (0, 8)] {
        let at = CtsData { recv_id, seg_length, seg_offset, connid: None }.write(&mut packet);
        net.deliver(&SentPacket { from: 0, to: 1, bytes: packet[..at + 8].to_vec() });
    }
    let rare = net.nodes[1].engine.peers().stats().rare;
    assert_eq!((rare.bad_id, rare.bad_window, rare.bad_segment), (1, 2, 1));
    assert_eq!(net.sent_packets.len(), honest.len());
    net.settle();
    assert_eq!(room, bytes);
    assert_eq!(net.events(0).len(), 1);
    let type_count = |ty: PktType| net.nodes[1].engine.peers().stats().tx_pkts[usize::from(ty.0)];
    assert_eq!(type_count(PktType::RECEIPT), 1);
}

// [M5.3]
#[test]
fn empty_segments_are_not_kept() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    net.send(0, peer, &message_bytes(1, 3000), Some(1), Protocol::Medium);
    net.deliver_one();
    let held = net.nodes[1].engine.pending().held_bytes();
    let medium = Medium { tag: Some(1), msg_length: 3000, ..Medium::default() };
    let mut packet = [0; 64];
    for seg_offset in 0..100 {
        let len = Medium { seg_offset, ..medium }.write(&mut packet);
        net.deliver(&SentPacket { from: 0, to: 1, bytes: packet[..len].to_vec() });
    }
    assert_eq!(net.nodes[1].engine.peers().stats().rare.bad_segment, 100);
    assert_eq!(net.nodes[1].engine.pending().held_bytes(), held);
}

// [M5.6]
// [M6.2]
#[test]
fn receipt_counts_only_from_the_receiver_and_window_binds_its_sender() {
    let cfg = EngineConfig { cts_credits: 1, ..EngineConfig::default() };
    let mut net = Net::with(3, 1, NetConfig::RELIABLE, cfg);
    let (peer, thief) = (net.peer(0, 1), net.peer(2, 0));
    net.send(2, thief, b"hi", Some(9), Protocol::Eager);
    let Started::Pending(send) = net.send(0, peer, b"sync", Some(1), Protocol::DcEager) else { panic!() };
    net.settle();
    let mut packet = [0; 2048];
    let len = Receipt { send_id: send.0.raw(), ..Receipt::default() }.write(&mut packet);
    net.deliver(&SentPacket { from: 2, to: 0, bytes: packet[..len].to_vec() });
    assert_eq!(net.nodes[0].engine.peers().stats().rare.bad_id, 1);
    assert!(net.events(0).is_empty());
    net.deliver(&SentPacket { from: 1, to: 0, bytes: packet[..len].to_vec() });
    assert_eq!(net.events(0), [EngineEvent::SendDone { user: 1, result: Ok(()) }]);

    let bytes = message_bytes(1, 20_000);
    let mut room = vec![0; 20_000];
    let Started::Pending(recv) = net.recv(1, &mut room, exact(2), 0) else { panic!() };
    net.send(0, peer, &bytes, Some(2), Protocol::LongCts);
    net.deliver_one();
    let data = CtsData { recv_id: recv.0.raw(), seg_length: 993, seg_offset: 5000, connid: None };
    let at = data.write(&mut packet);
    net.deliver(&SentPacket { from: 0, to: 1, bytes: packet[..at + 993].to_vec() });
    assert_eq!(net.nodes[1].engine.peers().stats().rare.bad_window, 1);
    net.settle();
    assert_eq!(room, bytes);
}
