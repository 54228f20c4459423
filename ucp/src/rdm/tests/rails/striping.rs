//! Granted data over several NICs: choice of lanes, and lanes lost, not ready, or claimed by others.

use super::*;
use crate::rdm::trace::DropReason;
use crate::wire::ctl::CtsData;
use crate::wire::{EfaStatus, Features};

/// The sending and the receiving worker, and the sender's id of the receiver.
type Pair = (usize, usize, PeerId);

fn pairs(peer: PeerId) -> [Pair; 2] {
    [(0, 1, peer), (1, 0, PeerId(0))]
}

/// Transfers `len` bytes by a message, a write and a read in packets; returns bytes sent and received.
fn all_three(rig: &mut Rig, (from, to, peer): Pair, len: usize) -> [(Vec<u8>, Vec<u8>); 3] {
    let [message, write, read] = [11, 12, 13].map(|key| message_bytes(key, len));
    let (mut room, mut far, mut near, mut back) = (vec![0; len], vec![0; len], read.clone(), vec![0; len]);
    let (there, from_there) = (rig.expose(to, &mut far).0, rig.expose(to, &mut near).0);
    rig.recv(to, &mut room);
    rig.send(from, peer, &message, Protocol::LongCts);
    let put = PutArgs {
        local: Gather::one(send_buf(&write)),
        remote: Iovs::one(there),
        sync: DeliveryComplete::Yes,
        cq_data: None,
        protocol: RmaProtocol::EagerWrite,
        user: 3,
    };
    rig.at(from, 0, |e, w| e.put(w, peer, put));
    let (local, remote, protocol) =
        (Scatter::one(recv_buf(&mut back)), Iovs::one(from_there), RmaProtocol::LongCtsRead);
    rig.at(from, 0, |e, w| e.get(w, peer, GetArgs { local, remote, protocol, user: 4 }));
    rig.settle();
    [(message, room), (write, far), (read, back)]
}

fn ended_well(outs: &[EngineEvent]) -> usize {
    let well = |out: &&EngineEvent| match out {
        EngineEvent::SendDone { result, .. } | EngineEvent::RmaDone { result, .. } => result.is_ok(),
        EngineEvent::RecvDone { result, .. } => result.is_ok(),
        _ => false,
    };
    outs.iter().filter(well).count()
}

// [M11.11]
#[test]
fn granted_data_go_over_every_lane() {
    for nics in [2, 3, 4, 6] {
        for pair in pairs(Rig::connected([nics, nics], 1).1) {
            let (mut rig, _) = Rig::connected([nics, nics], nics as u64);
            let (from, to, _) = pair;
            for (sent, came) in all_three(&mut rig, pair, LEN) {
                assert!(sent == came, "{nics} {pair:?}");
            }
            assert_eq!((ended_well(&rig.events(from)), ended_well(&rig.events(to))), (3, 1));
            let lanes = nics.min(4);
            for me in [from, to] {
                let data = rig.data[me];
                assert!(data[..lanes].iter().all(|n| *n > 10), "{nics}: {data:?}");
                assert_eq!(data[lanes..].iter().sum::<u32>(), 0);
                let further = data[1..].iter().sum::<u32>();
                let stats = rig.engines[me].peers().stats();
                assert_eq!(stats.rare.ctsdata_striped, u64::from(further));
                assert_eq!((stats.rare.bad_id, stats.rare.bad_window, stats.rare.unknown_sender), (0, 0, 0));
            }
        }
    }
}

// [M11.11]
#[test]
fn further_lane_carries_only_data_under_its_own_connid() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    rig.recv(1, &mut room);
    rig.send(0, peer, &bytes, Protocol::LongCts);
    let mut seen = [0; 2];
    while !rig.sent_packets.is_empty() || rig.engines.iter().any(|engine| engine.pending().waits_for_room()) {
        for sent_packet in &rig.sent_packets {
            let What::Packet(packet) = &sent_packet.what else { panic!("RDMA") };
            let (nic, is_data) = (sent_packet.from.1, packet[0] == PktType::CTSDATA.0);
            assert!(nic == 0 || is_data, "{:?}", PktType(packet[0]));
            if let Ok(Packet::CtsData(hdr, _)) = wire::parse(packet) {
                assert_eq!((hdr.connid, sent_packet.to.1), (Some(addr(0, nic).connid), nic));
                seen[nic] += 1;
            }
        }
        rig.turn();
    }
    assert!(seen[0] > 10 && seen[1] > 10 && room == bytes);
}

/// One lane serves peers without rails or connids such as libfabric, configuration, and short transfers.
// [M11.11]
#[test]
fn peer_without_striping_gets_all_over_one_lane() {
    let chunk = EngineConfig { rndv_chunk: CHUNK, rma_chunk: CHUNK, ..EngineConfig::default() };
    let withheld = |bits| {
        move |host| EngineConfig { withhold: if host == 1 { bits } else { Features::empty() }, ..chunk }
    };
    let alone = |_| EngineConfig { rndv_rails: 1, rma_rails: 1, ..chunk };
    let made: [(Rig, PeerId); 5] = [
        Rig::made([1, 3], 1, |_| chunk),
        Rig::made([3, 1], 1, |_| chunk),
        Rig::made([2, 2], 1, withheld(Features::RAILS)),
        Rig::made([2, 2], 1, withheld(Features::CONNID)),
        Rig::made([2, 2], 1, alone),
    ];
    for (n, (mut rig, peer)) in made.into_iter().enumerate() {
        let mut byte = [0; 1];
        rig.recv(1, &mut byte);
        rig.send(0, peer, b"x", Protocol::Eager);
        rig.settle();
        for (sent, came) in all_three(&mut rig, (0, 1, peer), LEN) {
            assert!(sent == came);
        }
        for me in 0..2 {
            assert_eq!(
                (rig.engines[me].peers().stats().rare.ctsdata_striped, rig.data[me][1]),
                (0, 0),
                "{n}"
            );
        }
    }
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    all_three(&mut rig, (0, 1, peer), 2 * CHUNK as usize - 1);
    assert_eq!((rig.data[0][1], rig.data[1][1]), (0, 0), "too short");
    all_three(&mut rig, (0, 1, peer), 2 * CHUNK as usize);
    assert!(rig.data[0][0] > 0 && rig.data[0][1] == 0, "one run");
}

/// One or two NICs die, perhaps after their packets arrived: message bytes come exactly once, those of writes
/// and reads unless their request may be lost.
// [M11.11] [M11.12]
#[test]
fn lost_lane_loses_no_byte() {
    let (mut elsewhere, mut abreast, mut twice) = (0, 0, 0);
    for seed in seeds(0..400) {
        let _seed = Seed(seed);
        let nics = 2 + seed as usize % 3;
        let (mut rig, peer) = Rig::connected([nics, nics], seed);
        rig.late = seed % 3 == 0;
        rig.sides.iter_mut().for_each(|side| side.rough = seed % 2 == 0);
        let bytes = [message_bytes(seed, LEN), message_bytes(seed + 1, LEN)];
        let mut rooms = [vec![0; LEN], vec![0; LEN]];
        for (me, peer) in [(0, peer), (1, PeerId(0))] {
            rig.recv(1 - me, &mut rooms[1 - me]);
            rig.send(me, peer, &bytes[me], Protocol::LongCts);
        }
        let (write, read) = (message_bytes(seed + 2, LEN), message_bytes(seed + 3, LEN));
        let (mut far, mut near, mut back) = (vec![0; LEN], read.clone(), vec![0; LEN]);
        let (there, from) = (rig.expose(1, &mut far).0, rig.expose(1, &mut near).0);
        let put = PutArgs {
            local: Gather::one(send_buf(&write)),
            remote: Iovs::one(there),
            sync: DeliveryComplete::Yes,
            cq_data: None,
            protocol: RmaProtocol::EagerWrite,
            user: 3,
        };
        rig.at(0, 0, |e, w| e.put(w, peer, put));
        let (local, remote, protocol) =
            (Scatter::one(recv_buf(&mut back)), Iovs::one(from), RmaProtocol::LongCtsRead);
        rig.at(0, 0, |e, w| e.get(w, peer, GetArgs { local, remote, protocol, user: 4 }));
        for _ in 0..20 + rig.rng.below(400) {
            rig.turn();
        }
        let nic = (rig.rng.below(2), rig.rng.below(nics));
        rig.dead.push(nic);
        if nics == 4 {
            for _ in 0..rig.rng.below(200) {
                rig.turn();
            }
            rig.dead.push((nic.0, (nic.1 + 1) % nics));
        }
        rig.settle();
        let outs = [rig.events(0), rig.events(1)].concat();
        let unsure = rig.engines.iter().map(|e| e.peers().stats().rare.outcome_unknown).sum::<u64>();
        assert_eq!(ended_well(&outs) as u64 + unsure, 6, "{outs:?}");
        assert!(rooms[1] == bytes[0] && rooms[0] == bytes[1]);
        assert!(unsure > 0 || far == write && back == read);
        for e in &rig.engines {
            let rare = e.peers().stats().rare;
            assert_eq!((rare.bad_window, rare.unknown_sender), (0, 0));
            assert!(e.is_flushed(None) && e.quiet(), "{:?}", e.snapshot());
            elsewhere += rare.resent_after_failover;
            abreast += rare.ctsdata_striped;
            twice += rare.bad_segment + rare.bad_id;
        }
    }
    let enough = elsewhere > of_all(4000) && abreast > of_all(50_000) && twice > of_all(700);
    assert!(enough, "{elsewhere} {abreast} {twice}");
}

// [M11.12]
#[test]
fn packets_held_by_a_lost_lane_go_over_the_first() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    rig.recv(1, &mut room);
    rig.send(0, peer, &bytes, Protocol::LongCts);
    let mut back = Vec::new();
    while back.len() < 4 {
        rig.turn();
        let at = rig.sent_packets.iter().position(|sent_packet| sent_packet.from == (0, 1));
        back.extend(at.map(|at| rig.sent_packets.remove(at)));
    }
    let packet = |sent_packet: &SentPacket| match &sent_packet.what {
        What::Packet(bytes) => bytes.clone(),
        _ => panic!("RDMA"),
    };
    let lane = back[0].lane;
    rig.at(0, 1, |e, _| e.returns().on_rnr(Nanos(0), lane, &packet(&back[0])));
    assert!(
        rig.engines[0].pending().is_backed_off(rig.engines[0].peers(), Some(peer))
            && !rig.engines[0].is_flushed(Some(peer)),
        "not delivered yet"
    );
    rig.dead.push((1, 1));
    let way = (WireId(1), PeerError::Unreachable);
    rig.at(0, 1, |e, w| e.on_packet_lost(w, lane, way, &packet(&back[1])));
    rig.at(0, 1, |e, w| e.on_wire_drained(w, WireId(1)));
    assert_eq!(rig.engines[0].peers().lane_info(lane).unwrap().fault, Some(PeerError::Unreachable));
    rig.at(0, 1, |e, _| e.returns().on_rnr(Nanos(0), lane, &packet(&back[2])));
    rig.at(0, 1, |e, w| e.on_packet_lost(w, lane, way, &packet(&back[3])));
    rig.settle();
    assert!(room == bytes);
    assert!(
        !rig.engines[0].pending().is_backed_off(rig.engines[0].peers(), Some(peer))
            && rig.engines[0].is_flushed(Some(peer))
    );
    assert!(rig.engines[0].peers().stats().rare.resent_after_failover >= 4);
}

/// A packet that never comes back may have been data, so the peer fails.
// [M11.12]
#[test]
fn packet_lost_for_good_fails_the_peer() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    rig.recv(1, &mut room);
    rig.send(0, peer, &bytes, Protocol::LongCts);
    let at = loop {
        rig.turn();
        if let Some(at) = rig.sent_packets.iter().position(|sent_packet| sent_packet.from == (0, 1)) {
            break at;
        }
    };
    let lane = rig.sent_packets.remove(at).lane;
    rig.at(0, 1, |e, w| e.on_send_error(w, lane, PeerError::Device(EfaStatus::UnknownPeer)));
    let error = OpError::Peer(peer, PeerError::Device(EfaStatus::UnknownPeer));
    assert!(rig.events(0).contains(&EngineEvent::SendDone { user: 1, result: Err(error) }));
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let lane = rig.engines[0].peers().further_lanes(peer)[0];
    rig.at(0, 1, |e, w| e.on_send_error(w, lane, PeerError::Device(EfaStatus::UnknownPeer)));
    assert_eq!(
        (rig.engines[0].peers().peer_error(peer), rig.engines[0].peers().lane_info(lane).unwrap().fault),
        (None, Some(PeerError::Device(EfaStatus::UnknownPeer)))
    );
}

// [M11.11]
#[test]
fn further_lane_data_name_only_operations_of_its_own_worker() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    rig.recv(1, &mut room);
    rig.send(0, peer, &bytes, Protocol::LongCts);
    let own = addr(7, 1);
    rig.sides.iter_mut().for_each(|side| side.addrs.resize(8, vec![own, own]));
    let mut packet = vec![0; 2000];
    let len = wire::rtw::Eager::trigger(own).write(&mut packet);
    let hello = packet[..len].to_vec();
    rig.at(1, 1, |e, w| e.on_packet(w, Nanos(0), WireId(1), source(&own), &hello));
    rig.sent_packets.retain(|sent_packet| sent_packet.to.0 < 2);
    let granted = loop {
        rig.turn();
        let cts = rig.sent_packets.iter().find_map(|sent_packet| match &sent_packet.what {
            What::Packet(bytes) => match wire::parse(bytes) {
                Ok(Packet::Cts(cts)) => Some(cts),
                _ => None,
            },
            _ => None,
        });
        if let Some(cts) = cts {
            break cts;
        }
    };
    let at = LEN as u64 - 100;
    let forged =
        CtsData { recv_id: granted.recv_id, seg_length: 100, seg_offset: at, connid: Some(own.connid) };
    let len = forged.write(&mut packet) + 100;
    let bytes_of = packet[..len].to_vec();
    rig.at(1, 1, |e, w| e.on_packet(w, Nanos(0), WireId(1), source(&own), &bytes_of));
    assert_eq!(rig.engines[1].peers().stats().dropped(DropReason::BadId), 1);
    rig.settle();
    assert!(room == bytes);
}
