//! One-sided operations: protocols by packet, random jobs against a model, fences, refusals, lost peers.

use crate::rdm::ids::PeerId;
use crate::rdm::io::RegError;
use crate::rdm::op::{Gather, Scatter};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::rma::args::{AtomicArgs, FenceScope, GetArgs, PacketOrder, PutArgs, RmaProtocol};
use crate::rdm::rma::mem::{Access, MemKey, Region};
use crate::rdm::status::PeerError;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::trace::DropReason;
use crate::rdm::types::*;
use crate::wire::{AtomicOp, Datatype, Features, Iovs, PktType, RmaIov, rtr, rtw};

pub(super) struct Shared {
    pub bytes: Vec<u8>,
    addr: u64,
    pub key: MemKey,
}

pub(super) fn share(net: &mut Net, node: usize, len: usize, access: Access) -> Shared {
    let mut bytes = vec![0u8; len];
    // SAFETY: tests keep the vector beside the net, and read it between calls only, in the same thread.
    let region = unsafe { Region::new(bytes.as_mut_ptr(), len, access) }.unwrap();
    let key = net.nodes[node].engine.memory().add(region).unwrap();
    Shared { addr: region.addr(), bytes, key }
}

impl Shared {
    pub fn at(&self, at: usize, len: usize) -> RmaIov {
        RmaIov { addr: self.addr + at as u64, len: len as u64, key: self.key.0 }
    }

    pub fn iov(&self, at: usize, len: usize) -> Iovs {
        Iovs::one(self.at(at, len))
    }
}

pub(super) fn put_args(bytes: &[u8], remote: Iovs) -> PutArgs {
    let local = Gather::one(send_buf(bytes));
    PutArgs {
        local,
        remote,
        sync: DeliveryComplete::No,
        cq_data: None,
        protocol: RmaProtocol::EagerWrite,
        user: 1,
    }
}

impl Net {
    pub(super) fn put(&mut self, me: usize, to: PeerId, args: PutArgs) -> Started<()> {
        self.at(me, |e, w| e.put(w, to, args))
    }

    pub(super) fn get(&mut self, me: usize, to: PeerId, room: &mut [u8], remote: Iovs) -> Started<()> {
        let args = GetArgs {
            local: Scatter::one(recv_buf(room)),
            remote,
            protocol: RmaProtocol::ShortRead,
            user: 2,
        };
        self.at(me, |e, w| e.get(w, to, args))
    }

    /// Runs until idle and returns the packets sent, as (from, name).
    pub(super) fn flow(&mut self) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            while let Some(sent_packet) = self.sent_packets.first() {
                seen.push(format!("{} {}", sent_packet.from, PktType(sent_packet.bytes[0])));
                self.deliver_one();
            }
            let moved: usize = (0..self.nodes.len()).map(|me| self.resume(me)).sum();
            if moved == 0 {
                return seen;
            }
        }
    }

    pub(super) fn in_order(&mut self) {
        for node in &mut self.nodes {
            node.engine.wires_mut().set_packet_order(node.wire, PacketOrder::Kept);
        }
    }

    pub(super) fn meet(&mut self, me: usize, to: PeerId) {
        let mut byte = [0; 1];
        let you = self.node_of(me, to);
        self.recv(you, &mut byte, exact(77), 0);
        self.send(me, to, b"x", Some(77), Protocol::Eager);
        self.settle();
        self.events(me);
        self.events(you);
    }
}

// [M8.2] [M8.3]
#[test]
fn writes_packet_by_packet() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 10_000, Access::all());
    let bytes = message_bytes(1, 5000);
    assert!(matches!(net.put(0, peer, put_args(&bytes[..100], target.iov(8, 100))), Started::Pending(_)));
    assert_eq!(
        net.flow(),
        ["0 EAGER_RTW", "1 HANDSHAKE", "0 HANDSHAKE", "0 DC_EAGER_RTW", "1 RECEIPT"].map(String::from)
    );
    assert_eq!(net.events(0), [EngineEvent::RmaDone { user: 1, result: Ok(()) }]);
    // Complete as soon as the bytes may be reused; the acknowledgement comes later.
    assert_eq!(net.put(0, peer, put_args(&bytes[..50], target.iov(200, 50))), Started::Done(()));
    assert!(!net.nodes[0].engine.is_flushed(Some(peer)));
    assert_eq!(net.flow(), ["0 DC_EAGER_RTW", "1 RECEIPT"].map(String::from));
    assert!(net.nodes[0].engine.is_flushed(Some(peer)) && net.events(0).is_empty());
    assert!(matches!(net.put(0, peer, put_args(&bytes, target.iov(300, 5000))), Started::Pending(_)));
    let flow = net.flow();
    assert_eq!(flow[..2], ["0 DC_LONGCTS_RTW", "1 CTS"]);
    assert!(flow[2..flow.len() - 1].iter().all(|pkt| pkt == "0 CTSDATA"));
    assert_eq!((flow.len(), flow.last().unwrap().as_str()), (8, "1 RECEIPT"));
    assert_eq!(target.bytes[8..108], bytes[..100]);
    assert_eq!(target.bytes[200..250], bytes[..50]);
    assert_eq!(target.bytes[300..5300], bytes);
    assert_eq!(target.bytes[108..200], [0; 92]);
}

// [M8.10]
#[test]
fn writes_on_an_ordered_wire_are_acknowledged_together() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    net.in_order();
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 10_000, Access::all());
    let bytes = message_bytes(1, 5000);
    net.meet(0, peer);
    for at in 0..3 {
        assert_eq!(net.put(0, peer, put_args(&bytes[..9], target.iov(at * 9, 9))), Started::Done(()));
    }
    assert!(matches!(net.put(0, peer, put_args(&bytes, target.iov(300, 5000))), Started::Pending(_)));
    let flow = net.flow();
    assert_eq!(flow[..5], ["0 EAGER_RTW", "0 EAGER_RTW", "0 EAGER_RTW", "0 LONGCTS_RTW", "1 CTS"]);
    assert!(flow[5..].iter().all(|pkt| pkt == "0 CTSDATA"));
    assert_eq!(net.events(0), [EngineEvent::RmaDone { user: 1, result: Ok(()) }]);
    net.at(0, |e, w| e.request_acks(w, None));
    net.at(0, |e, w| e.request_acks(w, Some(peer)));
    assert!(!net.nodes[0].engine.is_flushed(None));
    assert_eq!(net.flow(), ["0 DC_EAGER_RTW", "1 RECEIPT"].map(String::from));
    assert!(net.nodes[0].engine.is_flushed(None) && net.events(0).is_empty());
    net.at(0, |e, w| e.request_acks(w, None));
    assert!(net.sent_packets.is_empty(), "nothing to ask for");
    assert_eq!(target.bytes[300..5300], bytes);
    let args =
        PutArgs { sync: DeliveryComplete::Yes, cq_data: Some(44), ..put_args(&bytes[..5], target.iov(0, 5)) };
    assert!(matches!(net.put(0, peer, args), Started::Pending(_)));
    assert_eq!(net.flow(), ["0 DC_EAGER_RTW", "1 RECEIPT"].map(String::from));
    assert_eq!(net.events(0), [EngineEvent::RmaDone { user: 1, result: Ok(()) }]);
    let from = net.peer(1, 0);
    assert_eq!(net.events(1), [EngineEvent::RemoteWrite { from, len: 5, cq_data: 44 }]);
}

// [M8.4] [M8.5] [M8.6]
#[test]
fn reads_packet_by_packet() {
    let mut net =
        Net::with(2, 1, NetConfig::RELIABLE, EngineConfig { cts_credits: 2, ..EngineConfig::default() });
    let peer = net.peer(0, 1);
    let mut source = share(&mut net, 1, 9000, Access::READ);
    source.bytes.copy_from_slice(&message_bytes(4, 9000));
    // 999 is the longest short read: strictly less than the room of a READRSP.
    let mut room = vec![0; 999];
    assert!(matches!(net.get(0, peer, &mut room, source.iov(10, 999)), Started::Pending(_)));
    assert_eq!(net.flow(), ["0 SHORT_RTR", "1 HANDSHAKE", "1 READRSP", "0 HANDSHAKE"].map(String::from));
    assert_eq!((net.events(0).len(), &room[..]), (1, &source.bytes[10..1009]));
    let mut room = vec![0; 1000];
    net.get(0, peer, &mut room, source.iov(0, 1000));
    assert_eq!(net.flow(), ["0 LONGCTS_RTR", "1 READRSP"].map(String::from));
    assert_eq!((net.events(0).len(), &room[..]), (1, &source.bytes[..1000]));
    let mut room = vec![0; 9000];
    net.get(0, peer, &mut room, source.iov(0, 9000));
    let flow = net.flow().join(",");
    // Windows of two packets of 992 bytes: the first of READRSP's 1000 and the rest.
    let start = "0 LONGCTS_RTR,1 READRSP,1 CTSDATA,0 CTS,1 CTSDATA,1 CTSDATA,0 CTS,";
    assert!(flow.starts_with(start), "{flow}");
    assert_eq!((net.events(0).len(), &room), (1, &source.bytes));
    let stats = net.nodes[1].engine.peers().stats();
    assert_eq!(
        (stats.served(RmaProtocol::ShortRead).msgs, stats.served(RmaProtocol::LongCtsRead).bytes),
        (1, 10_000)
    );
    assert!(net.nodes[1].engine.is_flushed(None));
}

// [M8.11]
#[test]
fn iovs_on_both_sides_and_empty_operations() {
    let mut net = Net::new(2, 3, NetConfig { reorder: true, ..NetConfig::RELIABLE });
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 9000, Access::all());
    let bytes = message_bytes(9, 4000);
    let cuts = [(0, 1500), (1500, 1), (1501, 0), (1501, 2499)];
    let (mut local, mut remote) = (Gather::EMPTY, Vec::new());
    for (n, (at, len)) in cuts.into_iter().enumerate() {
        assert!(local.push(send_buf(&bytes[at..at + len])));
        let (at, len) = [(0, 10), (5000, 3000), (200, 990), (100, 0)][n];
        remote.push(target.at(at, len));
    }
    let remote = Iovs::try_from(remote.as_slice()).unwrap();
    net.put(0, peer, PutArgs { local, ..put_args(&[], remote) });
    net.settle();
    assert_eq!(net.events(0).len(), 1);
    let mut room = vec![0; 4000];
    let (left, right) = room.split_at_mut(77);
    let mut local = Scatter::one(recv_buf(left));
    local.push(recv_buf(right));
    let args = GetArgs { local, remote, protocol: RmaProtocol::ShortRead, user: 5 };
    net.at(0, |e, w| e.get(w, peer, args));
    net.settle();
    assert_eq!((net.events(0).len(), room), (1, bytes.clone()));
    assert_eq!(target.bytes[5000..8000], bytes[10..3010]);
    let none = Iovs::one(RmaIov { addr: 5, len: 0, key: 0 });
    let sync = PutArgs { sync: DeliveryComplete::Yes, ..put_args(&[], none) };
    net.put(0, peer, sync);
    net.get(0, peer, &mut [], none);
    net.settle();
    assert_eq!(net.events(0).len(), 2);
    let invalid = Started::Failed(OpError::Invalid);
    assert_eq!(net.put(0, peer, put_args(&bytes[..3], target.iov(0, 4))), invalid);
    assert_eq!(net.put(0, peer, put_args(&[], Iovs::NONE)), invalid);
    assert_eq!(net.get(0, peer, &mut [0; 4], target.iov(0, 3)), invalid);
}

fn atomic(op: AtomicOp, ty: Datatype, remote: Iovs) -> AtomicArgs {
    let operand = Gather::EMPTY;
    AtomicArgs { op, ty, remote, operand, compare: None, result: None, sync: DeliveryComplete::No, user: 3 }
}

// [M9.1] [M9.2] [M9.3] [M9.5]
#[test]
fn atomics_packet_by_packet_and_in_order() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 64, Access::all());
    net.meet(0, peer);
    let word = |target: &Shared, n: usize| u64::from_le_bytes(target.bytes[n..n + 8].try_into().unwrap());
    let (one, two, nine) = (1u64.to_le_bytes(), 2u64.to_le_bytes(), 9u64.to_le_bytes());
    let at = target.iov(8, 8);
    let add =
        AtomicArgs { operand: Gather::one(send_buf(&two)), ..atomic(AtomicOp::Sum, Datatype::Uint64, at) };
    assert_eq!(net.at(0, |e, w| e.atomic(w, peer, add)), Started::Done(()));
    assert_eq!(net.flow(), ["0 DC_WRITE_RTA", "1 RECEIPT"].map(String::from));
    let (mut old, mut older) = ([0u8; 8], [0u8; 8]);
    let pending_read = AtomicArgs {
        operand: Gather::one(send_buf(&one)),
        result: Some(Scatter::one(recv_buf(&mut old))),
        ..atomic(AtomicOp::Sum, Datatype::Uint64, at)
    };
    net.at(0, |e, w| e.atomic(w, peer, pending_read));
    let swap = AtomicArgs {
        operand: Gather::one(send_buf(&nine)),
        compare: Some(Gather::one(send_buf(&[3, 0, 0, 0, 0, 0, 0, 0]))),
        result: Some(Scatter::one(recv_buf(&mut older))),
        ..atomic(AtomicOp::CompareSwap, Datatype::Uint64, at)
    };
    net.at(0, |e, w| e.atomic(w, peer, swap));
    // Reversed on the wire; the order of the messages holds.
    net.sent_packets.reverse();
    assert_eq!(net.flow(), ["0 COMPARE_RTA", "0 FETCH_RTA", "1 ATOMRSP", "1 ATOMRSP"].map(String::from));
    assert_eq!((u64::from_le_bytes(old), u64::from_le_bytes(older), word(&target, 8)), (2, 3, 9));
    assert_eq!(net.events(0).len(), 2);
    assert!(net.nodes[0].engine.is_flushed(None));
    let invalid = [
        atomic(AtomicOp::Sum, Datatype::Uint64, at),
        AtomicArgs { operand: Gather::one(send_buf(&one)), ..atomic(AtomicOp::Read, Datatype::Uint64, at) },
        AtomicArgs { operand: Gather::one(send_buf(&one)), ..atomic(AtomicOp::BitOr, Datatype::Double, at) },
        AtomicArgs {
            operand: Gather::one(send_buf(&one[..3])),
            ..atomic(AtomicOp::Sum, Datatype::Uint16, target.iov(0, 3))
        },
    ];
    for args in invalid {
        assert_eq!(net.at(0, |e, w| e.atomic(w, peer, args)), Started::Failed(OpError::Invalid));
    }
}

#[test]
fn fences_delay_later_operations() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 20_000, Access::all());
    net.meet(0, peer);
    let (long, flag) = (message_bytes(1, 15_000), [7u8; 8]);
    net.put(0, peer, put_args(&long, target.iov(0, 15_000)));
    net.at(0, |e, w| e.fence(w, peer, FenceScope::Packets));
    assert!(matches!(net.put(0, peer, put_args(&flag, target.iov(16_000, 8))), Started::Pending(_)));
    net.at(0, |e, w| e.fence(w, peer, FenceScope::Packets));
    net.at(0, |e, w| e.fence(w, peer, FenceScope::Packets));
    let mut room = [0; 8];
    net.get(0, peer, &mut room, target.iov(16_000, 8));
    loop {
        let flagged = target.bytes[16_000] == 7;
        assert!(!flagged || target.bytes[..15_000] == long, "the flag overtook the data");
        if !net.deliver_one() && net.resume(0) + net.resume(1) == 0 {
            break;
        }
    }
    assert_eq!((net.events(0).len(), room), (3, flag));
    net.at(0, |e, w| e.fence(w, peer, FenceScope::Packets));
    assert_eq!(net.put(0, peer, put_args(&flag, target.iov(0, 8))), Started::Done(()));
}

// [M8.1]
#[test]
fn requests_beyond_key_rights_are_dropped() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let read_only = share(&mut net, 1, 64, Access::READ);
    let write_only = share(&mut net, 1, 64, Access::WRITE);
    net.meet(0, peer);
    let writer = net.peer(1, 0);
    let old = net.nodes[1].engine.peers().features(writer).unwrap() - Features::PEER_ERROR;
    net.nodes[1].engine.set_features(writer, old);
    let beyond = Iovs::try_from([read_only.at(0, 8), read_only.at(60, 5)].as_slice()).unwrap();
    let bytes = [1u8; 13];
    net.put(0, peer, put_args(&bytes[..8], read_only.iov(0, 8)));
    net.put(0, peer, put_args(&bytes[..8], write_only.iov(57, 8)));
    net.get(0, peer, &mut [0; 13], beyond);
    net.get(0, peer, &mut [0; 8], write_only.iov(0, 8));
    let eight = Gather::one(send_buf(&bytes[..8]));
    let add = |iov| AtomicArgs { operand: eight, ..atomic(AtomicOp::Sum, Datatype::Uint32, iov) };
    for iov in [write_only.iov(0, 8), read_only.iov(0, 8)] {
        net.at(0, |e, w| e.atomic(w, peer, add(iov)));
    }
    net.settle();
    assert_eq!(net.nodes[1].engine.peers().stats().dropped(DropReason::BadAccess), 6);
    assert_eq!((&read_only.bytes, &write_only.bytes), (&vec![0; 64], &vec![0; 64]));
    // A refused atomic still takes its turn in the order.
    let mut room = [0; 2];
    net.recv(1, &mut room, exact(4), 9);
    net.send(0, peer, b"ok", Some(4), Protocol::Eager);
    net.settle();
    assert_eq!(&room, b"ok");
    // The failure of the peer ends what it never answered.
    net.events(0);
    net.at(0, |e, w| e.on_peer_error(w, peer, PeerError::Gone));
    let ends = net
        .events(0)
        .into_iter()
        .filter(|out| matches!(out, EngineEvent::RmaDone { result: Err(OpError::Peer(..)), .. }));
    assert_eq!(ends.count(), 2, "writes and posted atomics are complete at this end, reads are not");
    assert!(net.nodes[0].engine.is_flushed(None));
}

#[test]
fn revoked_memory_is_not_touched() {
    let mut net =
        Net::with(2, 1, NetConfig::RELIABLE, EngineConfig { cts_credits: 1, ..EngineConfig::default() });
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 9000, Access::all());
    net.meet(0, peer);
    let (bytes, mut room) = (message_bytes(1, 9000), vec![0; 9000]);
    net.put(0, peer, put_args(&bytes, target.iov(0, 9000)));
    net.get(0, peer, &mut room, target.iov(0, 9000));
    for _ in 0..6 {
        net.deliver_one();
    }
    assert!(net.at(1, |e, w| e.remove_memory(w, target.key)));
    assert!(!net.at(1, |e, w| e.remove_memory(w, target.key)));
    let before = target.bytes.clone();
    net.settle();
    assert_eq!(target.bytes, before);
    let refused =
        |out: &EngineEvent| matches!(out, EngineEvent::RmaDone { result: Err(OpError::Access(_)), .. });
    let outs = net.events(0);
    assert!(outs.len() == 2 && outs.iter().all(refused), "both are told: {outs:?}");
}

#[test]
fn operations_are_cancelled_before_first_packet() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 64, Access::all());
    net.nodes[0].wire_full = true;
    let Started::Pending(op) = net.put(0, peer, put_args(&[1; 8], target.iov(0, 8))) else { panic!() };
    assert!(net.nodes[0].engine.cancel_rma(op) && !net.nodes[0].engine.cancel_rma(op));
    net.nodes[0].wire_full = false;
    net.settle();
    assert_eq!(net.events(0), [EngineEvent::RmaDone { user: 1, result: Err(OpError::Cancelled) }]);
    assert_eq!(target.bytes, vec![0; 64]);
}

#[test]
fn writes_to_a_peer_without_acknowledgements_end_at_once() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let target = share(&mut net, 1, 64, Access::all());
    net.meet(0, peer);
    net.nodes[0].engine.set_features(peer, Features::empty());
    assert_eq!(net.put(0, peer, put_args(&[1; 8], target.iov(0, 8))), Started::Done(()));
    let sync = PutArgs { sync: DeliveryComplete::Yes, ..put_args(&[1; 8], target.iov(0, 8)) };
    assert_eq!(net.put(0, peer, sync), Started::Failed(OpError::Unsupported));
    net.at(0, |e, w| e.request_acks(w, None));
    assert_eq!(net.flow(), ["0 EAGER_RTW", "0 EAGER_RTW"].map(String::from));
    assert!(net.nodes[0].engine.is_flushed(None));
    assert_eq!(target.bytes[..8], [1; 8]);
}

// [M8.7]
/// Every node accesses its own cells and shared words in all other memories, on an unreliable network.
fn job(seed: u64, order: PacketOrder) {
    let _seed = Seed(seed);
    let mut rng = Rng(!seed);
    let nodes = 2 + rng.below(3);
    let full = rng.pick(&[0, 0, 3, 10]);
    let mtu = rng.pick(&[512, 1024, 4096]);
    // A wire that keeps order has no receivers that are not ready.
    let rnr = if order == PacketOrder::None { rng.pick(&[0, 0, 4, 12]) } else { 0 };
    let net_config = NetConfig { mtu, full, reorder: order == PacketOrder::None, rnr };
    let cfg = EngineConfig { cts_credits: 1 + rng.below(8) as u32, ..EngineConfig::default() };
    let mut net = Net::with(nodes, seed, net_config, cfg);
    if order == PacketOrder::Kept {
        net.in_order();
    }
    if rng.one_in(2) {
        net = net.with_rdma(rng.pick(&[700, 1 << 30]));
    }
    const CELL: usize = 16 << 10;
    const CELLS: usize = 24;
    // Layout: words, then written cells, then read cells.
    let mut mems: Vec<Shared> =
        (0..nodes).map(|n| share(&mut net, n, 64 + 2 * CELLS * CELL, Access::all())).collect();
    for (n, mem) in mems.iter_mut().enumerate() {
        mem.bytes[64 + CELLS * CELL..].copy_from_slice(&message_bytes(n as u64, CELLS * CELL));
    }
    let mut model: Vec<Vec<u8>> = mems.iter().map(|mem| mem.bytes.clone()).collect();
    let (mut puts, mut gets, mut tickets) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = vec![0; nodes];
    let words: Vec<[u8; 8]> = (0..64u64).map(u64::to_le_bytes).collect();
    let (mut wanted, mut ended) = (0, 0);
    for _ in 0..60 {
        let (me, you) = (rng.below(nodes), rng.below(nodes));
        let peer = net.peer(me, you);
        let near = [0, 1, 8, mtu - 72, mtu - 36, mtu - 24, mtu, 2 * mtu];
        let len = match rng.below(3) {
            0 => rng.below(CELL),
            _ => (rng.pick(&near) + rng.below(3)).min(CELL),
        };
        let started = match rng.below(4) {
            0 if next[you] < CELLS => {
                let at = 64 + next[you] * CELL;
                next[you] += 1;
                let bytes = message_bytes(rng.next(), len);
                model[you][at..at + len].copy_from_slice(&bytes);
                let sync = rng.pick(&[DeliveryComplete::No, DeliveryComplete::Yes]);
                let protocol = rng.pick(&[
                    RmaProtocol::EagerWrite,
                    RmaProtocol::LongCtsWrite,
                    RmaProtocol::LongReadWrite,
                ]);
                let args = PutArgs { sync, protocol, ..put_args(&bytes, mems[you].iov(at, len)) };
                puts.push(bytes);
                net.put(me, peer, args)
            }
            1 => {
                let at = 64 + CELLS * CELL + rng.below(CELLS * CELL - len);
                let mut room = vec![0; len];
                let started = net.get(me, peer, &mut room, mems[you].iov(at, len));
                gets.push((you, at, room));
                started
            }
            2 => {
                let n = rng.below(64);
                let word = &mut model[you][8..16];
                let sum = u64::from_le_bytes((&*word).try_into().unwrap()) + n as u64;
                word.copy_from_slice(&sum.to_le_bytes());
                let operand = Gather::one(send_buf(&words[n]));
                let add = atomic(AtomicOp::Sum, Datatype::Uint64, mems[you].iov(8, 8));
                net.at(me, |e, w| e.atomic(w, peer, AtomicArgs { operand, ..add }))
            }
            _ => {
                let mut room = vec![0; 8];
                let args = AtomicArgs {
                    operand: Gather::one(send_buf(&words[1])),
                    result: Some(Scatter::one(recv_buf(&mut room))),
                    ..atomic(AtomicOp::Sum, Datatype::Uint64, mems[0].iov(0, 8))
                };
                let zero = net.peer(me, 0);
                tickets.push(room);
                net.at(me, |e, w| e.atomic(w, zero, args))
            }
        };
        match started {
            Started::Done(()) => {}
            Started::Pending(_) => wanted += 1,
            Started::Failed(error) => panic!("{error}"),
        }
        if rng.one_in(8) {
            let behind = rng.pick(&[FenceScope::Packets, FenceScope::Memory]);
            net.at(me, |e, w| e.fence(w, peer, behind));
        }
        for _ in 0..rng.below(6) {
            net.deliver_one();
            net.complete_read();
        }
        for n in 0..nodes {
            net.nodes[n].device.no_reg = rng.one_in(16).then_some(RegError::Full);
            net.resume(n);
            ended += net.events(n).len();
        }
    }
    for n in 0..nodes {
        net.at(n, |e, w| e.request_acks(w, None));
    }
    net.settle();
    for n in 0..nodes {
        for out in net.events(n) {
            assert!(matches!(out, EngineEvent::RmaDone { result: Ok(()), .. }), "{out:?}");
            ended += 1;
        }
        assert!(net.nodes[n].engine.is_flushed(None));
        assert!(net.nodes[n].engine.quiet(), "something is kept");
    }
    for n in 0..nodes {
        net.resume(n);
    }
    assert_eq!(net.regs(), 0);
    assert_eq!(ended, wanted);
    for (you, at, room) in &gets {
        assert!(mems[*you].bytes[*at..at + room.len()] == room[..], "a read of {} bytes", room.len());
    }
    let mut drawn: Vec<u64> = tickets.iter().map(|t| u64::from_le_bytes(t[..].try_into().unwrap())).collect();
    drawn.sort_unstable();
    assert_eq!(drawn, (0..tickets.len() as u64).collect::<Vec<_>>());
    model[0][..8].copy_from_slice(&(tickets.len() as u64).to_le_bytes());
    for (n, mem) in mems.iter().enumerate() {
        let wrong = mem.bytes.iter().zip(&model[n]).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "node {n}");
    }
}

#[test]
fn random_operations_on_an_unordered_wire() {
    seeds(0..60).for_each(|seed| job(seed, PacketOrder::None));
}

#[test]
fn random_operations_on_an_ordered_wire() {
    seeds(0..40).for_each(|seed| job(seed, PacketOrder::Kept));
}

// [M8.1] [M9.2] [M9.4]
#[test]
fn forged_requests_change_nothing_outside_the_region() {
    let _seed = Seed(5);
    let mut rng = Rng(5);
    let mut net = Net::new(2, 5, NetConfig::RELIABLE).with_rdma(600);
    let peer = net.peer(0, 1);
    net.meet(0, peer);
    let mut arena = vec![0x55u8; 3000];
    let base = arena.as_mut_ptr();
    // SAFETY: the middle of the arena, which is read after the net is dropped.
    let middle = unsafe { Region::new(base.wrapping_add(1000), 1000, Access::all()) }.unwrap();
    let key = net.nodes[1].engine.memory().add(middle).unwrap().0;
    let mut packet = vec![0; 1024];
    for _ in 0..30_000 {
        let iovs: Vec<RmaIov> = (0..1 + rng.below(4))
            .map(|_| RmaIov {
                addr: middle.addr().wrapping_add(rng.pick(&[0, 1, 500, 999, 1000, u64::MAX, 1 << 63])),
                len: rng.pick(&[0u64, 1, 8, 500, 1000, 1001, u64::MAX / 4, u64::MAX]),
                key: rng.pick(&[key, key, key, key ^ 1, 0]),
            })
            .collect();
        let rma_iov = Iovs::try_from(iovs.as_slice()).unwrap();
        let msg_length = rma_iov.total().unwrap_or(rng.next());
        let id = rng.pick(&[0, 1, 1 << 31, (1 << 31) | (1 << 20), rng.0 as u32]);
        let len = match rng.below(9) {
            0 => {
                let hdr = rtw::Eager { rma_iov, receipt: rng.one_in(2).then_some(id), ..Default::default() };
                hdr.write(&mut packet) + msg_length.min(800) as usize
            }
            1 => {
                let hdr = rtw::LongCts { rma_iov, msg_length, send_id: id, ..Default::default() };
                hdr.write(&mut packet) + rng.below(800)
            }
            2 => {
                let recv_length = rng.pick(&[0, 1, 5000, u32::MAX]);
                let kind = rng.pick(&[rtr::ReadKind::Short, rtr::ReadKind::LongCts]);
                rtr::Rtr { kind, rma_iov, msg_length, recv_id: id, recv_length, ..Default::default() }
                    .write(&mut packet)
            }
            3 => {
                let recv_length = rng.pick(&[0, 1, u64::MAX]);
                let of = rng.pick(&[crate::wire::ctl::CtsFor::Send, crate::wire::ctl::CtsFor::Read]);
                crate::wire::ctl::Cts { of, send_id: id, recv_id: id, recv_length, connid: None }
                    .write(&mut packet)
            }
            4 => {
                let seg_offset = rng.pick(&[0, 1, 992, u64::MAX - 8]);
                let hdr = crate::wire::ctl::CtsData { recv_id: id, seg_length: 8, seg_offset, connid: None };
                hdr.write(&mut packet) + 8
            }
            5 | 6 => {
                let read_iov = if rng.one_in(2) { rma_iov } else { iovs[..1].try_into().unwrap() };
                rtw::LongRead { rma_iov, msg_length, send_id: id, read_iov, ..Default::default() }
                    .write(&mut packet)
            }
            7 if rng.one_in(2) => {
                crate::wire::ctl::Eor { send_id: id, recv_id: id, connid: None }.write(&mut packet)
            }
            7 => crate::wire::ctl::ReadNack { send_id: id, recv_id: id, ..Default::default() }
                .write(&mut packet),
            _ => {
                let msg_id = net.nodes[1].engine.next_rx(PeerId(0));
                let kind = rng.pick(&[
                    crate::wire::rta::RtaKind::Write,
                    crate::wire::rta::RtaKind::Fetch { recv_id: id },
                    crate::wire::rta::RtaKind::Compare { recv_id: id },
                    crate::wire::rta::RtaKind::DcWrite { send_id: id },
                ]);
                let (datatype, op) = (rng.below(22) as u32, rng.below(22) as u32);
                let hdr =
                    crate::wire::rta::Rta { kind, msg_id, rma_iov, datatype, op, opts: Default::default() };
                hdr.write(&mut packet) + (msg_length.min(400) as usize) * (1 + rng.below(2))
            }
        };
        net.deliver(&SentPacket { from: 0, to: 1, bytes: packet[..len.min(1024)].to_vec() });
        net.sent_packets.retain(|sent_packet| sent_packet.bytes.len() < 60);
        if rng.one_in(4) {
            net.deliver_one();
            net.complete_read();
        }
        net.sent_packets.truncate(16);
        net.events(1);
    }
    drop(net);
    assert!(arena[..1000].iter().chain(&arena[2000..]).all(|&b| b == 0x55), "out of bounds");
    assert!(arena[1000..2000].iter().any(|&b| b != 0x55), "the attack never hit anything");
}
