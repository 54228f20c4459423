//! Loss of a NIC: each operation ends once, with its bytes or, where uncertain, an error that names the peer.

use super::*;
use crate::rdm::rma::args::AtomicArgs;
use crate::rdm::testing::exact;
use crate::rdm::{EngineSnapshot, LaneRank, LocalError};
use crate::wire::{AtomicOp, Datatype, Features};

const ROWS: [(Protocol, usize); 5] = [
    (Protocol::Eager, 100),
    (Protocol::Medium, 9000),
    (Protocol::LongCts, 70_000),
    (Protocol::LongRead, 60_000),
    (Protocol::RuntRead, 60_000),
];

#[derive(Default)]
struct Ends(Vec<(u64, Result<(), OpError>)>);

impl Ends {
    fn started(&mut self, user: u64, started: Started<()>) {
        match started {
            Started::Done(()) => self.0.push((user, Ok(()))),
            Started::Failed(error) => self.0.push((user, Err(error))),
            Started::Pending(_) => {}
        }
    }

    fn ended(&mut self, outs: Vec<EngineEvent>) {
        for out in outs {
            match out {
                EngineEvent::SendDone { user, result } | EngineEvent::RmaDone { user, result } => {
                    self.0.push((user, result))
                }
                EngineEvent::RecvDone { user, result } => self.0.push((user, result.map(drop))),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// All kinds of operations run both ways while a first NIC dies; of three, sometimes a second one later.
// [M11.8] [M11.9] [M11.10]
#[test]
fn only_uncertain_operations_fail_with_the_first_nic() {
    let (mut moved, mut again, mut unsure) = (0, 0, 0);
    for seed in seeds(0..300) {
        let _seed = Seed(seed);
        let nics = 2 + seed as usize % 2;
        let (mut rig, peer) = Rig::connected([nics, nics], seed);
        rig.late = seed % 3 == 0;
        rig.sides.iter_mut().for_each(|side| side.rough = seed % 2 == 0);
        let peers = [peer, PeerId(0)];
        let mut far = message_bytes(seed, 64 + 40_000 + 40_000);
        let there = rig.expose(1, &mut far).0;
        let at = |at: usize, len: usize| {
            Iovs::one(RmaIov { addr: there.addr + at as u64, len: len as u64, ..there })
        };
        let bytes: Vec<Vec<u8>> =
            ROWS.iter().map(|(_, len)| message_bytes(seed + *len as u64, *len)).collect();
        let mut rooms: Vec<Vec<u8>> = (0..2).flat_map(|_| bytes.iter().map(|b| vec![0; b.len()])).collect();
        let mut ends = [Ends::default(), Ends::default()];
        for (n, room) in rooms.iter_mut().enumerate() {
            let (me, tag) = (1 - n / ROWS.len(), (n % ROWS.len()) as u64);
            let args = RecvArgs { buf: recv_buf(room), kind: exact(tag), from: None, user: 100 + tag };
            rig.at(me, 0, |e, w| e.recv(w, args));
        }
        let (long, short) = (message_bytes(seed + 7, 40_000), message_bytes(seed + 8, 8));
        let (mut got, mut old, one) = (vec![0; 40_000], vec![0; 8], 1u64.to_le_bytes());
        let fatal = rig.rng.below(90);
        let first = (rig.rng.below(2), 0);
        let mut turns = 0;
        let mut pass = |rig: &mut Rig, most: usize| {
            for _ in 0..rig.rng.below(most) {
                rig.turn();
                turns += 1;
                if turns == fatal {
                    rig.dead.push(first);
                }
                if turns == fatal + 60 && nics == 3 {
                    rig.dead.push((seed as usize / 2 % 2, 1));
                }
            }
        };
        for (n, (protocol, _)) in ROWS.iter().enumerate() {
            for me in 0..2 {
                let (tag, sync) =
                    (n as u64, if seed % 5 == 0 { DeliveryComplete::Yes } else { DeliveryComplete::No });
                let args = SendArgs {
                    buf: send_buf(&bytes[n]),
                    tag: Some(tag),
                    sync,
                    cq_data: None,
                    protocol: *protocol,
                    user: tag,
                };
                let started = rig.at(me, 0, |e, w| e.send(w, peers[me], args));
                ends[me].started(tag, started);
                pass(&mut rig, 10);
            }
        }
        let put = |local: &[u8], remote, user| PutArgs {
            local: Gather::one(send_buf(local)),
            remote,
            sync: DeliveryComplete::Yes,
            cq_data: None,
            protocol: RmaProtocol::EagerWrite,
            user,
        };
        for (local, to, user) in [(&short, at(8, 8), 50), (&long, at(64, 40_000), 51)] {
            let started = rig.at(0, 0, |e, w| e.put(w, peer, put(local, to, user)));
            ends[0].started(user, started);
            pass(&mut rig, 10);
        }
        let get = GetArgs {
            local: Scatter::one(recv_buf(&mut got)),
            remote: at(64 + 40_000, 40_000),
            protocol: RmaProtocol::LongCtsRead,
            user: 52,
        };
        let started = rig.at(0, 0, |e, w| e.get(w, peer, get));
        ends[0].started(52, started);
        let add = AtomicArgs {
            op: AtomicOp::Sum,
            ty: Datatype::Uint64,
            remote: at(0, 8),
            operand: Gather::one(send_buf(&one)),
            compare: None,
            result: Some(Scatter::one(recv_buf(&mut old))),
            sync: DeliveryComplete::No,
            user: 53,
        };
        let started = rig.at(0, 0, |e, w| e.atomic(w, peer, add));
        ends[0].started(53, started);
        pass(&mut rig, 90);
        if !rig.dead.contains(&first) {
            rig.dead.push(first);
        }
        rig.settle();
        for (me, ends) in ends.iter_mut().enumerate() {
            ends.ended(rig.events(me));
            ends.0.sort_by_key(|(user, _)| *user);
            let users: Vec<u64> = ends.0.iter().map(|(user, _)| *user).collect();
            let ones = if me == 0 { 50..54 } else { 0..0 };
            let want: Vec<u64> = (0..5).chain(ones).chain(100..105).collect();
            assert_eq!(users, want, "each ends once");
            for (user, end) in &ends.0 {
                let may_be_unsure = (50..53).contains(user);
                match end {
                    Ok(()) => {}
                    Err(OpError::Peer(of, _)) if may_be_unsure && *of == peers[me] => unsure += 1,
                    Err(error) => panic!("{me}: {user} ends with {error:?}"),
                }
            }
        }
        for (room, bytes) in rooms.iter().zip(bytes.iter().chain(&bytes)) {
            assert!(room == bytes, "bytes differ");
        }
        let well = |user: u64| ends[0].0.contains(&(user, Ok(())));
        let before = message_bytes(seed, far.len());
        assert!(!well(50) || far[8..16] == short[..]);
        assert!(!well(51) || far[64..40_064] == long[..]);
        assert!(!well(52) || got == before[40_064..]);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!((word(&old), word(&far)), (word(&before), word(&before).wrapping_add(1)), "added once");
        for e in &rig.engines {
            assert!(e.is_flushed(None) && e.quiet(), "{:?}", e.snapshot());
            moved += e.peers().stats().rare.failovers;
            again += e.peers().stats().rare.resent_after_failover;
        }
        assert_eq!(rig.regs(), nics, "what is exposed");
    }
    let enough = moved > of_all(300) && again > of_all(600) && unsure > of_all(20);
    assert!(enough, "{moved} moves, {again} packets, {unsure} unsure");
}

// [M11.9]
#[test]
fn peer_without_another_lane_fails() {
    let (mut rig, peer) = Rig::connected([1, 2], 1);
    rig.dead.push((1, 0));
    rig.send(0, peer, b"x", Protocol::Eager);
    rig.settle();
    assert_eq!(rig.events(0), [EngineEvent::PeerFailed { peer, fault: PeerError::Unreachable }]);
    // Two lanes each, not agreed on yet.
    let (mut rig, peer) = Rig::new([2, 2], 1);
    rig.dead.push((1, 0));
    rig.send(0, peer, b"x", Protocol::Eager);
    rig.settle();
    assert_eq!(rig.events(0), [EngineEvent::PeerFailed { peer, fault: PeerError::Unreachable }]);
}

#[test]
fn only_a_lost_nic_is_replaced() {
    let there = addr(1, 0);
    let rank = |rig: &Rig, nic| rig.engines[0].peers().lane_rank(WireId(nic), &there, source(&there));
    let (rig, _) = Rig::new([2, 2], 1);
    assert_eq!(rank(&rig, 0), LaneRank::Any, "nothing has gone there");
    let (rig, _) = Rig::connected([2, 2], 1);
    assert_eq!((rank(&rig, 0), rank(&rig, 1)), (LaneRank::Known, LaneRank::Any));
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    rig.at(0, 0, |e, w| e.force_close(w, peer));
    assert_eq!(rank(&rig, 0), LaneRank::Any, "closed by force");
    let new = rig.link(0, &[(1, (1, 0))]);
    rig.send(0, new, b"x", Protocol::Eager);
    assert_eq!((rank(&rig, 0), rank(&rig, 1)), (LaneRank::Any, LaneRank::Known));
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    rig.at(0, 0, |e, w| e.on_peer_error(w, peer, PeerError::Gone));
    assert_eq!(rank(&rig, 0), LaneRank::Any, "gone");
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    rig.at(0, 0, |e, w| e.on_peer_error(w, peer, PeerError::Unreachable));
    assert_eq!(rank(&rig, 0), LaneRank::Lost, "a NIC");
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    rig.dead.push((1, 0));
    rig.send(0, peer, b"x", Protocol::Eager);
    rig.settle();
    assert_eq!(rank(&rig, 0), LaneRank::Known, "it goes on over another");
}

#[test]
fn receives_match_a_worker_on_any_lane() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let stranger = PeerId(99);
    // The peer sends from its second NIC to our first, as after losing its first.
    let (mine, remote_id) = (addr(0, 0), addr(1, 1));
    let back = rig.engines[1].peers_mut().add(WireId(1), mine, source(&mine));
    rig.sides[1].set_path(back, 1, (0, 0));
    let mut rooms = [[0; 1]; 5];
    let recv = |rig: &mut Rig, room: &mut [u8], from, user| {
        let args = RecvArgs { buf: recv_buf(room), kind: ANY, from: Some(from), user };
        rig.at(0, 0, |e, w| e.recv(w, args))
    };
    let [first, second, third, fourth, fifth] = &mut rooms;
    assert!(matches!(recv(&mut rig, first, stranger, 10), Started::Pending(_)));
    assert!(matches!(recv(&mut rig, second, peer, 11), Started::Pending(_)));
    rig.send(1, back, b"2", Protocol::Eager);
    rig.settle();
    rig.send(1, back, b"3", Protocol::Eager);
    rig.settle();
    let found = rig.engines[0].receives().probe(ANY, Some(peer), ProbeRemove::No).expect("it has come");
    rig.send(1, PeerId(0), b"4", Protocol::Eager);
    rig.settle();
    assert_ne!(found.from, peer);
    assert_eq!(rig.engines[0].peers().info(found.from).unwrap().addr, remote_id);
    for (room, name) in [(third, peer), (fourth, found.from)] {
        assert!(matches!(recv(&mut rig, room, name, 12), Started::Done(_)));
    }
    assert_eq!(rig.engines[0].receives().probe(ANY, Some(stranger), ProbeRemove::No), None);
    let many = RecvArgs { buf: recv_buf(fifth), kind: ANY, from: Some(peer), user: 13 };
    rig.at(0, 0, |e, w| e.recv_multi(w, many, 1)).unwrap();
    rig.send(1, back, b"5", Protocol::Eager);
    rig.settle();
    let ended: Vec<u64> =
        rig.events(0)
            .iter()
            .filter_map(|out| match out {
                EngineEvent::RecvDone { user, result: Ok(_) }
                | EngineEvent::MultiRecvMessage { user, .. } => Some(*user),
                _ => None,
            })
            .collect();
    assert!(ended.contains(&11) && ended.contains(&13) && !ended.contains(&10), "{ended:?}");
    assert_eq!(rooms, [[0], *b"2", *b"3", *b"4", *b"5"]);
}

#[test]
fn force_close_covers_every_lane_of_the_worker() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let mine = addr(0, 0);
    let back = rig.engines[1].peers_mut().add(WireId(1), mine, source(&mine));
    rig.sides[1].set_path(back, 1, (0, 0));
    let mut room = [0; 1];
    rig.recv(0, &mut room);
    rig.send(1, back, b"2", Protocol::Eager);
    rig.settle();
    let [EngineEvent::RecvDone { result: Ok(RecvStatus { from, .. }), .. }] = rig.events(0)[..] else {
        panic!()
    };
    let long = [0; 70_000];
    assert!(matches!(rig.send(0, from, &long, Protocol::LongCts), Started::Pending(_)));
    rig.at(0, 0, |e, w| e.force_close(w, peer));
    let outs = rig.events(0);
    let failed = |peer| outs.contains(&EngineEvent::PeerFailed { peer, fault: PeerError::Gone });
    assert!(from != peer && failed(peer) && failed(from), "{outs:?}");
    assert!(outs.iter().any(|out| matches!(out, EngineEvent::SendDone { result: Err(_), .. })), "{outs:?}");
    assert_eq!(rig.engines[0].snapshot(), EngineSnapshot::EMPTY);
}

/// The sender cannot be asked to send; either side may have left the named lane first.
// [M11.5] [M11.6]
#[test]
fn memory_named_on_a_lost_lane_is_read_on_another() {
    for (seed, first) in (0..40).flat_map(|seed| [(seed, 0), (seed, 1)]) {
        let _seed = Seed(seed);
        let cfg = |host| EngineConfig {
            withhold: if host == 0 { Features::READ_NACK } else { Features::empty() },
            ..EngineConfig::default()
        };
        let (mut rig, peer) = Rig::made([2, 2], seed, cfg);
        let mut byte = [0; 1];
        rig.recv(1, &mut byte);
        rig.send(0, peer, b"x", Protocol::Eager);
        rig.settle();
        rig.events(1);
        let (bytes, mut room) = (message_bytes(seed, 5000), vec![0; 5000]);
        rig.send(0, peer, &bytes, Protocol::LongRead);
        for _ in 0..rig.rng.below(12) {
            rig.turn();
        }
        rig.dead.push((first, 0));
        rig.recv(1, &mut room);
        for _ in 0..3 {
            rig.settle();
            rig.at(0, 0, |e, w| e.send_keepalive(w, peer));
            rig.at(1, 0, |e, w| e.send_keepalive(w, PeerId(0)));
        }
        let outs = rig.events(1);
        assert!(matches!(outs[..], [EngineEvent::RecvDone { result: Ok(_), .. }]), "{outs:?}");
        assert_eq!((rig.events(0), rig.regs()), (vec![EngineEvent::SendDone { user: 1, result: Ok(()) }], 0));
        assert!(room == bytes);
    }
}

/// A peer without connid cannot be identified on another lane.
// [M11.8]
#[test]
fn failover_needs_connids() {
    for me in 0..2 {
        let withhold = |host| if host == me { Features::CONNID } else { Features::empty() };
        let cfg = |host| EngineConfig { withhold: withhold(host), ..EngineConfig::default() };
        let (mut rig, peer) = Rig::made([2, 2], 1, cfg);
        let mut room = [0; 1];
        rig.recv(1, &mut room);
        rig.send(0, peer, b"x", Protocol::Eager);
        rig.settle();
        rig.events(1);
        rig.dead.push((1, 0));
        rig.send(0, peer, b"x", Protocol::Eager);
        rig.settle();
        assert_eq!(rig.events(0), [EngineEvent::PeerFailed { peer, fault: PeerError::Unreachable }]);
    }
}

/// A stranger's claim on a lane whose owner does not confirm it has no effect.
// [M11.8]
#[test]
fn unconfirmed_lane_claim_has_no_effect() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let (first, own) = (addr(0, 0), addr(7, 1));
    let mut packet = vec![0; 200];
    let say = |named: RawAddr, role: Option<u64>, packet: &mut [u8]| {
        let mut hdr = wire::rtw::Eager::trigger(named);
        hdr.opts.cq_data = role;
        hdr.write(packet)
    };
    rig.sides.iter_mut().for_each(|side| side.addrs.resize(8, vec![own, own]));
    // The stranger names the other's first lane as its own first, and sends as that.
    for (named, role) in [(own, None), (first, Some(0))] {
        let len = say(named, role, &mut packet);
        let bytes = packet[..len].to_vec();
        rig.at(1, 1, |e, w| e.on_packet(w, Nanos(0), WireId(1), source(&own), &bytes));
    }
    let mut room = [0; 1];
    rig.recv(1, &mut room);
    let opts = wire::Opts::connid(first.connid);
    let forged = wire::rtm::Eager { msg_id: 1, tag: Some(1), receipt: None, opts };
    let len = forged.write(&mut packet);
    packet[len] = b'!';
    let bytes = packet[..=len].to_vec();
    rig.at(1, 1, |e, w| e.on_packet(w, Nanos(0), WireId(1), source(&own), &bytes));
    assert_eq!(rig.events(1), []);
    rig.sent_packets.retain(|sent_packet| sent_packet.to.0 < 2);
    rig.send(0, peer, b"x", Protocol::Eager);
    rig.settle();
    assert_eq!((rig.events(1).len(), room), (1, *b"x"));
}

/// Each side ends every operation once it has checked the other for liveness.
// [M11.9]
#[test]
fn nic_loss_during_handshakes_ends_every_operation() {
    let (mut well, mut ill) = (0, 0);
    for seed in seeds(0..800) {
        let _seed = Seed(seed);
        let (mut rig, peer) = Rig::new([2, 2], seed);
        rig.late = seed % 3 == 0;
        rig.sides.iter_mut().for_each(|side| side.rough = seed % 2 == 0);
        let peers = [peer, PeerId(0)];
        let bytes = message_bytes(seed, 70_000);
        let mut rooms = [vec![0; 70_000], vec![0; 70_000]];
        let fatal = rig.rng.below(if seed % 4 == 0 { 200 } else { 60 });
        let first = (rig.rng.below(2), 0);
        let mut begun = [false; 2];
        for turn in 0..400 {
            if turn == fatal {
                rig.dead.push(first);
            }
            for me in 0..2 {
                if !begun[me] && rig.engines[me].peers().info(peers[me]).is_some() {
                    begun[me] = true;
                    rig.send(me, peers[me], &bytes, Protocol::LongCts);
                    let args =
                        RecvArgs { buf: recv_buf(&mut rooms[me]), kind: ANY, from: Some(peers[me]), user: 2 };
                    rig.at(me, 0, |e, w| e.recv(w, args));
                }
            }
            rig.turn();
        }
        rig.settle();
        for _ in 0..3 {
            for me in 0..2 {
                while begun[me] && !rig.at(me, 0, |e, w| e.send_keepalive(w, peers[me])) {}
                rig.settle();
            }
        }
        for (me, peer) in peers.into_iter().enumerate() {
            rig.at(me, 0, |e, w| (0..2).for_each(|nic| e.on_wire_drained(w, WireId(nic))));
            for out in rig.events(me) {
                let end = match out {
                    EngineEvent::SendDone { result, .. } => result,
                    EngineEvent::RecvDone { result, .. } => result.map(drop),
                    _ => continue,
                };
                match end {
                    Ok(()) => well += 1,
                    Err(OpError::Peer(of, _)) => {
                        assert_eq!(of, peer);
                        ill += 1;
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        for e in &rig.engines {
            assert_eq!(e.snapshot(), EngineSnapshot::EMPTY);
        }
        assert_eq!(rig.regs(), 0);
    }
    assert!(well > of_all(500) && ill > of_all(1000), "{well} well, {ill} ill");
}

/// A further NIC dies during the handshakes or later; the first lane stays.
// [M11.6] [M11.12]
#[test]
fn losing_a_further_nic_loses_no_message() {
    const MESSAGES: usize = 12;
    let mut lost_on_way = 0;
    for seed in seeds(0..800) {
        let _seed = Seed(seed);
        let nics = 2 + seed as usize % 2;
        let (mut rig, peer) = Rig::new([nics, nics], seed);
        rig.late = seed % 3 == 0;
        rig.sides.iter_mut().for_each(|side| side.rough = seed % 2 == 0);
        let peers = [peer, PeerId(0)];
        let messages: Vec<(Protocol, Vec<u8>)> = (0..MESSAGES)
            .map(|n| {
                let (protocol, len) = ROWS[rig.rng.below(ROWS.len())];
                (protocol, message_bytes(seed * 100 + n as u64, len))
            })
            .collect();
        let mut rooms = vec![vec![vec![0; 70_000]; MESSAGES]; 2];
        let fatal = rig.rng.below(if seed % 4 == 0 { 600 } else { 150 });
        let lost = (rig.rng.below(2), 1);
        let (mut sent, mut asked) = ([0; 2], [0; 2]);
        let mut outs = [Vec::new(), Vec::new()];
        for turn in 0..4000 {
            if turn == fatal {
                rig.dead.push(lost);
            }
            let me = rig.rng.below(2);
            let known = rig.engines[me].peers().info(peers[me]).is_some();
            if known && sent[me] < MESSAGES && rig.rng.one_in(4) {
                let (protocol, bytes) = &messages[sent[me]];
                let user = sent[me] as u64;
                let args = SendArgs {
                    buf: send_buf(bytes),
                    tag: Some(1),
                    sync: DeliveryComplete::No,
                    cq_data: None,
                    protocol: *protocol,
                    user,
                };
                if let Started::Done(()) = rig.at(me, 0, |e, w| e.send(w, peers[me], args)) {
                    outs[me].push(EngineEvent::SendDone { user, result: Ok(()) });
                }
                sent[me] += 1;
            }
            if asked[me] < MESSAGES && rig.rng.one_in(4) {
                let buf = recv_buf(&mut rooms[me][asked[me]]);
                let user = 100 + asked[me] as u64;
                let args = RecvArgs { buf, kind: ANY, from: None, user };
                if let Started::Done(got) = rig.at(me, 0, |e, w| e.recv(w, args)) {
                    outs[me].push(EngineEvent::RecvDone { user, result: Ok(got) });
                }
                asked[me] += 1;
            }
            rig.turn();
        }
        assert_eq!((sent, asked), ([MESSAGES; 2], [MESSAGES; 2]));
        rig.settle();
        for me in 0..2 {
            outs[me].extend(rig.events(me));
            let (mut sends, mut recvs) = (0, 0);
            for out in &outs[me] {
                match out {
                    EngineEvent::SendDone { result: Ok(()), .. } => sends += 1,
                    EngineEvent::RecvDone { user, result: Ok(got) } => {
                        let n = *user as usize - 100;
                        let (protocol, bytes) = &messages[n];
                        let room = &rooms[me][n][..bytes.len()];
                        assert!(room == &bytes[..], "{me}: message {n} ({protocol:?}) differs: {got:?}");
                        recvs += 1;
                    }
                    out => panic!("{me}: {out:?}"),
                }
            }
            assert_eq!((sends, recvs), (MESSAGES, MESSAGES), "{me}: {:?}", rig.engines[me].snapshot());
            assert!(rig.engines[me].peers().info(peers[me]).unwrap().fault.is_none());
            let rare = &rig.engines[me].peers().stats().rare;
            lost_on_way += rare.rails_lost + rare.resent_after_failover;
        }
        assert_eq!(rig.regs(), 0);
    }
    assert!(lost_on_way > of_all(100), "{lost_on_way}");
}

/// An operation that the transport refuses at this end ends with that cause; no rail goes down, and the peer
/// stays.
#[test]
fn caller_error_fails_no_rail() {
    let text = ucs::InternedStr::new("of a test");
    for (len, why) in [
        (100, LocalError::Unsupported(text)),
        (LEN, LocalError::Unsupported(text)),
        (100, LocalError::InvalidParam(text)),
        (LEN, LocalError::System(text)),
        (LEN, LocalError::TooLong(text)),
    ] {
        let (mut rig, peer) = Rig::connected([2, 2], 1);
        let (bytes, mut far, mut back) = (vec![7; len], vec![0; len], vec![0; len]);
        let there = rig.expose(1, &mut far);
        rig.refusal = Some(PeerError::Local(why));
        let error = OpError::Peer(peer, PeerError::Local(why));
        rig.put(peer, &bytes, there);
        rig.settle();
        assert_eq!(
            rig.events(0),
            [EngineEvent::RmaDone { user: 3, result: Err(error) }],
            "put of {len}: {why}"
        );
        rig.get(peer, &mut back, there);
        rig.settle();
        assert_eq!(
            rig.events(0),
            [EngineEvent::RmaDone { user: 4, result: Err(error) }],
            "get of {len}: {why}"
        );
        rig.refusal = None;
        assert_eq!(rig.engines[0].peers().info(peer).unwrap().fault, None);
        assert!(rig.engines[0].peers().failed_lanes(peer).is_empty());
        assert_eq!(rig.engines[0].peers().stats().rare.rails_lost, 0);
        rig.put(peer, &bytes, there);
        rig.settle();
        assert_eq!(rig.events(0), [EngineEvent::RmaDone { user: 3, result: Ok(()) }]);
        assert!(far == bytes);
    }
}
