//! Writes that the target reads (LONGREAD_RTW): packets, ends, fallback, revoked memory, lost peers,
//! forgeries.

use super::rma::{put_args, share};
use crate::rdm::ids::PeerId;
use crate::rdm::io::RegError;
use crate::rdm::op::Gather;
use crate::rdm::protocol::DeliveryComplete;
use crate::rdm::rma::args::{FenceScope, PutArgs, RmaProtocol};
use crate::rdm::rma::mem::Access;
use crate::rdm::status::PeerError;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::trace::DropReason;
use crate::rdm::types::*;
use crate::wire::rtw::{LongRead, RtwBody};
use crate::wire::{self, EfaStatus, Features, Iovs, Opts, Packet, PktType, RmaIov};

const LEN: usize = 50_000;

fn connected(most: u64, net_config: NetConfig) -> (Net, PeerId) {
    let mut net = Net::new(3, 1, net_config).with_rdma(most);
    let peer = net.peer(0, 1);
    net.meet(0, peer);
    (net, peer)
}

fn read_args(bytes: &[u8], remote: Iovs) -> PutArgs {
    PutArgs { protocol: RmaProtocol::LongReadWrite, ..put_args(bytes, remote) }
}

fn count(net: &Net, node: usize, ty: PktType) -> u64 {
    net.nodes[node].engine.peers().stats().tx_pkts[usize::from(ty.0)]
}

const DONE: [EngineEvent; 1] = [EngineEvent::RmaDone { user: 1, result: Ok(()) }];

// [M7.1] [M8.8] [M8.10]
#[test]
fn long_write_is_request_reads_and_eor() {
    for (most, reads) in [(1 << 30, 1), (20_000, 3)] {
        let (mut net, peer) = connected(most, NetConfig::RELIABLE);
        let bytes = message_bytes(1, LEN);
        let target = share(&mut net, 1, LEN + 8, Access::WRITE);
        let args = PutArgs { cq_data: Some(77), ..read_args(&bytes, target.iov(8, LEN)) };
        assert!(matches!(net.put(0, peer, args), Started::Pending(_)));
        let Ok(Packet::Rtw(rtw)) = wire::parse(&net.sent_packets[0].bytes) else { panic!() };
        let RtwBody::LongRead { msg_length, read_iov, .. } = rtw.body else { panic!() };
        assert_eq!((rtw.ty, msg_length), (PktType::LONGREAD_RTW, LEN as u64));
        assert_eq!((read_iov.total(), rtw.opts.cq_data, net.regs()), (Some(LEN as u64), Some(77), 1));
        net.deliver_one();
        assert_eq!((net.sent_packets.len(), net.pending_reads.len(), net.regs()), (0, reads, 2));
        assert!(net.events(1).is_empty(), "not in place yet");
        while net.complete_read() {}
        assert_eq!((net.sent_packets.len(), net.regs()), (1, 1), "its own is released before it ends");
        let from = net.peer(1, 0);
        assert_eq!(net.events(1), [EngineEvent::RemoteWrite { from, len: LEN as u64, cq_data: 77 }]);
        assert!(net.events(0).is_empty(), "the writer's is still lent");
        net.settle();
        assert_eq!((net.events(0).as_slice(), net.regs()), (&DONE[..], 0));
        assert!(target.bytes[..8] == [0; 8] && target.bytes[8..] == bytes);
        let (stats, served) = (net.nodes[0].engine.peers().stats(), net.nodes[1].engine.peers().stats());
        assert_eq!(stats.initiated(RmaProtocol::LongReadWrite).bytes, LEN as u64);
        assert_eq!(served.served(RmaProtocol::LongReadWrite).msgs, 1);
        assert!(net.nodes.iter().all(|node| node.engine.is_flushed(None) && node.engine.quiet()));
    }
}

#[test]
fn eor_acknowledges_write() {
    let (mut net, peer) = connected(1 << 30, NetConfig { reorder: true, ..NetConfig::RELIABLE });
    let (bytes, target) = (message_bytes(1, LEN), share(&mut net, 1, LEN, Access::WRITE));
    net.nodes[0].engine.set_features(peer, Features::RDMA_READ);
    net.put(0, peer, PutArgs { sync: DeliveryComplete::Yes, ..read_args(&bytes, target.iov(0, LEN)) });
    net.at(0, |e, w| e.request_acks(w, None));
    net.settle();
    assert_eq!((net.events(0).as_slice(), count(&net, 1, PktType::RECEIPT)), (&DONE[..], 0));
    assert_eq!(target.bytes, bytes);
}

// [M3.7] [M3.8] [M8.9]
#[test]
fn target_reads_only_after_its_handshake_allows_it() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE).with_rdma(1 << 30);
    let peer = net.peer(0, 1);
    let (bytes, target) = (message_bytes(1, LEN), share(&mut net, 1, LEN, Access::WRITE));
    net.put(0, peer, read_args(&bytes, target.iov(0, LEN)));
    let first = ["0 EAGER_RTW", "1 HANDSHAKE", "0 HANDSHAKE", "0 LONGREAD_RTW"].map(String::from);
    assert_eq!(net.flow()[..4], first);
    net.settle();
    assert_eq!((net.events(0).as_slice(), &target.bytes), (&DONE[..], &bytes));
    net.nodes[0].engine.set_features(peer, Features::DELIVERY_COMPLETE);
    net.put(0, peer, read_args(&bytes, target.iov(0, LEN)));
    assert_eq!((net.flow()[0].as_str(), net.regs()), ("0 DC_LONGCTS_RTW", 0));
    assert_eq!(net.events(0), DONE);
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    net.in_order();
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, LEN, Access::WRITE);
    net.put(0, peer, read_args(&bytes, target.iov(0, LEN)));
    assert_eq!(net.flow()[0], "0 LONGCTS_RTW");
    let (mut net, peer) = connected(1 << 30, NetConfig::RELIABLE);
    let target = share(&mut net, 1, LEN, Access::WRITE);
    net.put(0, peer, read_args(&bytes[..100], target.iov(0, 100)));
    net.put(0, peer, read_args(&[], target.iov(0, 0)));
    assert_eq!(net.flow().iter().filter(|pkt| *pkt == "0 DC_EAGER_RTW").count(), 2);
}

#[test]
fn pieces_at_both_ends_are_read_in_any_order() {
    for reorder in [false, true] {
        let (mut net, peer) = connected(900, NetConfig { reorder, full: 5, ..NetConfig::RELIABLE });
        let (bytes, target) = (message_bytes(9, 8000), share(&mut net, 1, 20_000, Access::WRITE));
        let (mut local, mut remote) = (Gather::EMPTY, Vec::new());
        for (from, len) in [(0, 3000), (3000, 1), (3001, 0), (3001, 4999)] {
            assert!(local.push(send_buf(&bytes[from..from + len])));
        }
        for (at, len) in [(10, 10), (5000, 6000), (200, 1990), (100, 0)] {
            remote.push(target.at(at, len));
        }
        let remote = Iovs::try_from(remote.as_slice()).unwrap();
        net.put(0, peer, PutArgs { local, ..read_args(&[], remote) });
        net.settle();
        assert_eq!((net.events(0).as_slice(), net.regs()), (&DONE[..], 0));
        assert_eq!(target.bytes[10..20], bytes[..10]);
        assert_eq!(target.bytes[5000..11_000], bytes[10..6010]);
        assert_eq!(target.bytes[200..2190], bytes[6010..]);
        assert!(target.bytes[20..200].iter().chain(&target.bytes[11_000..]).all(|&byte| byte == 0));
    }
}

// [M7.5] [M7.7]
#[test]
fn unreadable_write_is_sent_from_the_first_byte() {
    let disturb: [fn(&mut Net); 4] = [
        |net| net.nodes[1].device.no_reg = Some(RegError::Full),
        |net| net.nodes[1].device.no_reg = Some(RegError::Refused),
        |net| net.nodes[1].device.fault = Some(PeerError::Device(EfaStatus::RemoteBadAddress)),
        |net| {
            let wire = net.nodes[1].wire;
            net.nodes[1].engine.wires_mut().set_rdma(wire, Default::default());
        },
    ];
    for disturb in disturb {
        for (sync, ordered) in
            [(DeliveryComplete::No, true), (DeliveryComplete::No, false), (DeliveryComplete::Yes, true)]
        {
            let (mut net, peer) = connected(20_000, NetConfig { reorder: !ordered, ..NetConfig::RELIABLE });
            if ordered {
                net.in_order();
            }
            disturb(&mut net);
            let (bytes, target) = (message_bytes(1, LEN), share(&mut net, 1, LEN, Access::WRITE));
            let args = PutArgs { sync, cq_data: Some(5), ..read_args(&bytes, target.iov(0, LEN)) };
            net.put(0, peer, args);
            net.at(0, |e, w| e.fence(w, peer, FenceScope::Packets));
            net.put(0, peer, put_args(&[9; 4], target.iov(0, 4)));
            net.settle();
            let long = match (sync, ordered) {
                (DeliveryComplete::No, true) => PktType::LONGCTS_RTW,
                _ => PktType::DC_LONGCTS_RTW,
            };
            assert_eq!((count(&net, 1, PktType::READ_NACK), count(&net, 0, long)), (1, 1));
            assert_eq!((net.events(0).len(), net.regs(), count(&net, 1, PktType::EOR)), (2, 0, 0));
            assert_eq!(net.events(1).len(), 1, "its data, once");
            assert!(target.bytes[..4] == [9; 4] && target.bytes[4..] == bytes[4..]);
            assert_eq!(net.nodes[0].engine.peers().stats().initiated(RmaProtocol::LongCtsWrite).msgs, 1);
            assert!(net.nodes.iter().all(|node| node.engine.is_flushed(None) && node.engine.quiet()));
        }
    }
}

// [M7.5]
#[test]
fn target_without_read_nack_leaks_nothing() {
    // The target may not say READ_NACK: the write never ends, but the target keeps nothing of it.
    let (mut net, peer) = connected(1 << 30, NetConfig::RELIABLE);
    let back = net.peer(1, 0);
    net.nodes[1].engine.set_features(back, Features::RDMA_READ);
    net.nodes[1].device.no_reg = Some(RegError::Full);
    let (bytes, target) = (message_bytes(1, LEN), share(&mut net, 1, LEN, Access::WRITE));
    net.put(0, peer, read_args(&bytes, target.iov(0, LEN)));
    net.settle();
    assert!(net.events(0).is_empty() && net.nodes[1].engine.quiet());
    net.at(0, |e, w| e.on_peer_error(w, peer, PeerError::Gone));
    net.resume(0);
    assert_eq!(net.regs(), 0);
    // A target without RECEIPT cannot tell of the arrival after a READ_NACK.
    let (mut net, peer) = connected(1 << 30, NetConfig::RELIABLE);
    net.nodes[0].engine.set_features(peer, Features::RDMA_READ);
    net.nodes[1].device.no_reg = Some(RegError::Full);
    let target = share(&mut net, 1, LEN, Access::WRITE);
    net.put(0, peer, PutArgs { sync: DeliveryComplete::Yes, ..read_args(&bytes, target.iov(0, LEN)) });
    net.settle();
    assert_eq!(net.events(0), [EngineEvent::RmaDone { user: 1, result: Err(OpError::Unsupported) }]);
}

// [M7.8]
#[test]
fn writer_without_registration_sends_packets() {
    let (mut net, peer) = connected(1 << 30, NetConfig::RELIABLE);
    net.nodes[0].device.no_reg = Some(RegError::Full);
    let (bytes, target) = (message_bytes(1, LEN), share(&mut net, 1, LEN, Access::WRITE));
    net.put(0, peer, read_args(&bytes, target.iov(0, LEN)));
    assert_eq!(net.flow()[0], "0 DC_LONGCTS_RTW");
    assert_eq!(target.bytes, bytes);
}

#[test]
fn peer_lost_at_any_step_leaks_nothing() {
    for loser in [0, 1] {
        for refuse in [false, true] {
            for steps in 0..14 {
                let (mut net, peer) = connected(9000, NetConfig::RELIABLE);
                let back = net.peer(1, 0);
                net.nodes[1].device.no_reg = refuse.then_some(RegError::Full);
                let (bytes, target) = (message_bytes(1, LEN), share(&mut net, 1, LEN, Access::WRITE));
                net.put(0, peer, read_args(&bytes, target.iov(0, LEN)));
                for step in 0..steps {
                    let _ = if step % 3 == 2 { net.complete_read() } else { net.deliver_one() };
                }
                let lost = if loser == 0 { peer } else { back };
                net.at(loser, |e, w| e.on_peer_error(w, lost, PeerError::Gone));
                net.resume(loser);
                net.at(loser, |e, w| e.remove_peer(w, lost));
                while net.complete_read() {}
                net.resume(loser);
                assert_eq!(net.nodes[loser].device.live(), 0, "loser {loser} after {steps}");
                assert!(net.nodes[loser].engine.quiet() && net.nodes[loser].engine.is_flushed(None));
                let ends =
                    net.events(0).iter().filter(|out| matches!(out, EngineEvent::RmaDone { .. })).count();
                assert!(ends <= 1 && (loser == 1 || ends == 1));
            }
        }
    }
}

#[test]
fn revoked_memory_is_not_read_into() {
    for lost in [false, true] {
        let (mut net, peer) = connected(9000, NetConfig::RELIABLE);
        let back = net.peer(1, 0);
        let (bytes, target) = (message_bytes(1, LEN), share(&mut net, 1, LEN, Access::WRITE));
        net.put(0, peer, read_args(&bytes, target.iov(0, LEN)));
        net.deliver_one();
        net.complete_read();
        assert_eq!((net.pending_reads.len(), net.nodes[1].device.live()), (4, 1));
        if lost {
            net.at(1, |e, w| e.on_peer_error(w, back, PeerError::Gone));
        }
        net.nodes[1].device.revoke = true;
        assert!(net.at(1, |e, w| e.remove_memory(w, target.key)));
        assert_eq!(net.nodes[1].device.live(), 0);
        let before = target.bytes.clone();
        net.settle();
        assert!(target.bytes == before && net.nodes[1].engine.quiet());
        let told = [EngineEvent::RmaDone { user: 1, result: Err(OpError::Access(PeerId(0))) }];
        assert_eq!(net.events(0), if lost { &[][..] } else { &told[..] });
    }
}

// [M1.6] [M7.10] [M8.1]
#[test]
fn forged_requests_and_ends_change_nothing() {
    let (mut net, peer) = connected(1 << 30, NetConfig::RELIABLE);
    let target = share(&mut net, 1, 100, Access::WRITE);
    let read_only = share(&mut net, 1, 100, Access::READ);
    let claim = |net: &mut Net, rma_iov: Iovs, read: RmaIov| {
        let opts = Opts { connid: Some(1000), ..Opts::NONE };
        let (read_iov, msg_length) = (Iovs::one(read), rma_iov.total().unwrap_or(0));
        let hdr = LongRead { rma_iov, msg_length, send_id: 1 << 31 | 5, read_iov, opts };
        let mut bytes = vec![0; 512];
        let len = hdr.write(&mut bytes);
        bytes.truncate(len);
        net.deliver(&SentPacket { from: 0, to: 1, bytes });
    };
    let far = |len| RmaIov { addr: 4096, len, key: 1 };
    claim(&mut net, target.iov(0, 100), far(99));
    claim(&mut net, target.iov(1, 100), far(100));
    claim(&mut net, read_only.iov(0, 100), far(100));
    let stats = net.nodes[1].engine.peers().stats();
    assert_eq!((stats.dropped(DropReason::BadSegment), stats.dropped(DropReason::BadAccess)), (1, 2));
    assert!(net.pending_reads.is_empty() && net.regs() == 0);
    // The device refuses the unknown key; such a write was never announced.
    claim(&mut net, target.iov(0, 100), RmaIov { addr: u64::MAX - 8, len: 100, key: u64::MAX });
    net.settle();
    assert_eq!((count(&net, 1, PktType::READ_NACK), net.regs()), (1, 0));
    assert_eq!(net.nodes[0].engine.peers().stats().dropped(DropReason::BadId), 4);
    assert!(target.bytes.iter().all(|&byte| byte == 0));
    claim(&mut net, Iovs::one(RmaIov { addr: 0, len: 0, key: 0 }), far(0));
    assert_eq!(count(&net, 1, PktType::EOR), 1);
    net.settle();

    // An EOR or a READ_NACK counts from the target of that very write, while it is read.
    let long = share(&mut net, 1, LEN, Access::WRITE);
    let bytes = message_bytes(1, LEN);
    let Started::Pending(op) = net.put(0, peer, read_args(&bytes, long.iov(0, LEN))) else { panic!() };
    net.peer(0, 2);
    let before = net.nodes[0].engine.peers().stats().rare.bad_id;
    let mut packet = [0; 64];
    for ty in 0..2 {
        let send_id = op.0.raw();
        let len = match ty {
            0 => wire::ctl::Eor { send_id, ..Default::default() }.write(&mut packet),
            _ => wire::ctl::ReadNack { send_id, ..Default::default() }.write(&mut packet),
        };
        net.deliver(&SentPacket { from: 2, to: 0, bytes: packet[..len].to_vec() });
    }
    assert_eq!(net.nodes[0].engine.peers().stats().rare.bad_id, before + 2);
    assert!(net.events(0).is_empty());
    net.settle();
    assert_eq!((net.events(0).as_slice(), &long.bytes), (&DONE[..], &bytes));
}
