//! Long transfers over several lanes on a seeded network: names in requests, spread, lost lanes.

use std::collections::HashMap;

use ucs::time::Nanos;

use crate::rdm::Engine;
use crate::rdm::MAX_RAILS;
use crate::rdm::io::*;
use crate::rdm::op::{Gather, Piece, Scatter};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::rma::args::{GetArgs, PutArgs, RailKeys, RmaProtocol};
use crate::rdm::rma::mem::{Access, Region as Memory};
use crate::rdm::testing::{ANY, Rng, Seed, message_bytes, of_all, recv_buf, seeds, send_buf};
use crate::rdm::types::*;
use crate::rdm::{ids::*, status::*};
use crate::wire::rtm::RtmBody;
use crate::wire::{self, EfaStatus, Iovs, MAX_IOV, Packet, PktType, RawAddr, RmaIov};

mod failover;
mod lanes;
mod striping;

const LEN: usize = 200_000;
const CHUNK: u64 = 8192;
type Nic = (usize, usize);

enum What {
    Packet(Vec<u8>),
    Read { to: Piece, from: Remote, token: TxToken },
    Write { from: Piece, to: Remote, token: TxToken },
}

struct SentPacket {
    from: Nic,
    to: Nic,
    lane: LaneId,
    what: What,
}

struct Region {
    nic: usize,
    piece: Piece,
}

struct Side {
    me: usize,
    addrs: Vec<Vec<RawAddr>>,
    /// Our NIC and the other end, by the number of a lane.
    paths: HashMap<LaneId, (usize, Nic)>,
    regs: Vec<Option<Region>>,
    /// Further lanes that have become peers.
    promoted: Vec<(LaneId, PeerId)>,
    unwilling: Vec<usize>,
    full: Rng,
    rough: bool,
    out: Vec<SentPacket>,
}

impl Side {
    fn refuses(&mut self) -> bool {
        self.rough && self.full.one_in(5)
    }

    fn fly(&mut self, lane: LaneId, what: What) -> Result<Posted, NotPosted> {
        if self.refuses() {
            return Err(NotPosted::Full);
        }
        let (nic, to) = self.paths[&lane];
        self.out.push(SentPacket { from: (self.me, nic), to, lane, what });
        Ok(Posted::Pending)
    }

    fn nic_of_reg(&self, reg: &Reg) -> usize {
        self.regs[reg.id as usize].as_ref().expect("a live registration").nic
    }

    fn covers(&self, reg: &Reg, piece: Piece) -> bool {
        let region = self.regs[reg.id as usize].as_ref().expect("a live registration");
        let at = piece.ptr().addr().wrapping_sub(region.piece.ptr().addr());
        at + piece.len() <= region.piece.len()
    }

    fn set_path(&mut self, lane: impl Into<LaneId>, nic: usize, to: Nic) {
        self.paths.insert(lane.into(), (nic, to));
    }

    fn nic_of(&self, addr: &RawAddr) -> Nic {
        let host = self.addrs.iter().position(|host| host.contains(addr)).expect("an address");
        (host, self.addrs[host].iter().position(|a| a == addr).expect("an address"))
    }
}

struct NodeWire<'a> {
    side: &'a mut Side,
    nic: usize,
}

impl ReceiveSink for NodeWire<'_> {}

impl Wire for NodeWire<'_> {
    fn mtu(&self, _to: PeerId) -> usize {
        2000
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: LaneId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        if self.side.refuses() {
            return Err(NotPosted::Full);
        }
        let mut bytes = vec![0; max];
        let len = fill(&mut bytes);
        bytes.truncate(len);
        let rough = std::mem::replace(&mut self.side.rough, false);
        let sent = self.side.fly(to, What::Packet(bytes));
        self.side.rough = rough;
        sent.map(|_| Posted::Done)
    }

    fn connect(&mut self, lane: LaneId, _from: Source, addr: &RawAddr) -> Result<(), PeerError> {
        let to = self.side.nic_of(addr);
        self.side.set_path(lane, self.nic, to);
        Ok(())
    }

    fn promote(&mut self, lane: LaneId, peer: PeerId) {
        let (nic, to) = self.side.paths.remove(&lane).expect("a path");
        self.side.set_path(peer, nic, to);
        self.side.promoted.push((lane, peer));
    }

    fn reroute(&mut self, peer: PeerId, onto: LaneId, addr: &RawAddr) -> Result<(), PeerError> {
        let (nic, to) = self.side.paths[&onto];
        assert_eq!(to, self.side.nic_of(addr));
        self.side.set_path(peer, nic, to);
        Ok(())
    }

    fn register(&mut self, wire: WireId, piece: Piece, _for_what: RegAccess) -> Result<Reg, RegError> {
        let nic = usize::from(wire.0);
        if self.side.unwilling.contains(&nic) {
            return Err(RegError::Full);
        }
        self.side.regs.push(Some(Region { nic, piece }));
        let id = self.side.regs.len() as u32 - 1;
        Ok(Reg { id, key: u64::from(id) + 1 })
    }

    fn release(&mut self, reg: Reg) {
        self.side.regs[reg.id as usize].take().expect("released once");
    }

    fn read(
        &mut self,
        lane: LaneId,
        to: Piece,
        reg: &Reg,
        from: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        let (nic, _) = self.side.paths[&lane];
        if self.side.nic_of_reg(reg) != nic {
            return Err(NotPosted::Peer(PeerError::NO_RDMA));
        }
        assert!(self.side.covers(reg, to));
        self.side.fly(lane, What::Read { to, from, token })
    }

    fn write(
        &mut self,
        lane: LaneId,
        from: Piece,
        reg: &Reg,
        to: Remote,
        _imm: Option<u32>,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        let (nic, _) = self.side.paths[&lane];
        if self.side.nic_of_reg(reg) != nic {
            return Err(NotPosted::Peer(PeerError::NO_RDMA));
        }
        assert!(self.side.covers(reg, from));
        self.side.fly(lane, What::Write { from, to, token })
    }
}

struct Rig {
    engines: Vec<Engine>,
    sides: Vec<Side>,
    sent_packets: Vec<SentPacket>,
    rng: Rng,
    dead: Vec<Nic>,
    /// Error of every RDMA operation, instead of its effect.
    refusal: Option<PeerError>,
    /// Whether packets of a dead device may still arrive.
    late: bool,
    /// Successful RDMA operations, by device.
    done: Vec<[u32; 8]>,
    /// CTSDATA delivered, by sending device.
    data: Vec<[u32; 8]>,
}

fn addr(host: usize, nic: usize) -> RawAddr {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[14], gid[15]) = (0xfe, 0x80, host as u8 + 1, nic as u8);
    RawAddr { gid, qpn: 30 + nic as u16, connid: 0x7001_0000 + (host as u32) * 100 + nic as u32 }
}

fn source(addr: &RawAddr) -> Source {
    Source { node: addr.node(), port: u32::from(addr.qpn) }
}

impl Rig {
    /// Creates two workers with so many devices each; the first has an endpoint to the other.
    fn new(nics: [usize; 2], seed: u64) -> (Rig, PeerId) {
        let cfg = EngineConfig { rndv_chunk: CHUNK, rma_chunk: CHUNK, ..EngineConfig::default() };
        Rig::made(nics, seed, |_| cfg)
    }

    fn made(nics: [usize; 2], seed: u64, cfg: impl Fn(usize) -> EngineConfig) -> (Rig, PeerId) {
        let mut rig = Rig::apart(nics, seed, cfg);
        let lanes: Vec<(usize, Nic)> = (0..nics[0].min(nics[1])).map(|nic| (nic, (1, nic))).collect();
        let peer = rig.link(0, &lanes);
        (rig, peer)
    }

    /// Creates two workers with so many devices each, without an endpoint.
    fn apart(nics: [usize; 2], seed: u64, cfg: impl Fn(usize) -> EngineConfig) -> Rig {
        let addrs: Vec<Vec<RawAddr>> =
            (0..2).map(|host| (0..nics[host]).map(|nic| addr(host, nic)).collect()).collect();
        let engine = |host: usize| {
            let mut e = Engine::new(cfg(host));
            let wires: Vec<WireId> = addrs[host].iter().map(|me| e.wires_mut().add(*me)).collect();
            let rdma = Rdma { read: 1 << 30, write: 1 << 30, write_imm: true };
            wires.iter().for_each(|wire| e.wires_mut().set_rdma(*wire, rdma));
            e.wires_mut().set_rails(&wires);
            e
        };
        let side = |me| Side {
            me,
            addrs: addrs.clone(),
            paths: HashMap::new(),
            promoted: Vec::new(),
            regs: Vec::new(),
            unwilling: Vec::new(),
            full: Rng(seed),
            rough: false,
            out: Vec::new(),
        };
        Rig {
            engines: (0..2).map(engine).collect(),
            sides: (0..2).map(side).collect(),
            sent_packets: Vec::new(),
            rng: Rng(seed),
            dead: Vec::new(),
            refusal: None,
            late: false,
            done: vec![[0; 8]; 2],
            data: vec![[0; 8]; 2],
        }
    }

    /// Makes an endpoint of `me`: its NIC and the other end, of the first lane and of further ones.
    fn link(&mut self, me: usize, lanes: &[(usize, Nic)]) -> PeerId {
        let (nic, to) = lanes[0];
        let there = addr(to.0, to.1);
        let wire = WireId(nic as u8);
        let peer = self.at(me, nic, |e, w| e.add_peer(w, wire, there, source(&there)));
        self.sides[me].paths.entry(peer.into()).or_insert((nic, to));
        let further: Vec<LaneId> =
            lanes[1..].iter().filter_map(|(nic, to)| self.add_lane(me, peer, *nic, *to)).collect();
        self.at(me, 0, |e, w| e.set_peer_lanes(w, peer, &further[..further.len().min(MAX_RAILS - 1)]));
        peer
    }

    /// Adds a further lane to a peer of `me`.
    fn add_lane(&mut self, me: usize, peer: PeerId, nic: usize, to: Nic) -> Option<LaneId> {
        let there = addr(to.0, to.1);
        let wire = WireId(nic as u8);
        let lane = self.engines[me].peers_mut().add_lane(peer, wire, there, source(&there))?;
        self.sides[me].paths.entry(lane).or_insert((nic, to));
        Some(lane)
    }

    fn connected(nics: [usize; 2], seed: u64) -> (Rig, PeerId) {
        let (mut rig, peer) = Rig::new(nics, seed);
        let mut byte = [0; 1];
        rig.recv(1, &mut byte);
        rig.send(0, peer, b"x", Protocol::Eager);
        rig.settle();
        assert_eq!((rig.events(0).len(), rig.events(1).len()), (0, 1));
        (rig, peer)
    }

    fn at<T>(&mut self, me: usize, nic: usize, call: impl FnOnce(&mut Engine, &mut NodeWire<'_>) -> T) -> T {
        let value = call(&mut self.engines[me], &mut NodeWire { side: &mut self.sides[me], nic });
        self.sent_packets.append(&mut self.sides[me].out);
        value
    }

    fn send(&mut self, me: usize, to: PeerId, bytes: &[u8], protocol: Protocol) -> Started<()> {
        let args = SendArgs {
            buf: send_buf(bytes),
            tag: Some(1),
            sync: DeliveryComplete::No,
            cq_data: None,
            protocol,
            user: 1,
        };
        self.at(me, 0, |e, w| e.send(w, to, args))
    }

    fn recv(&mut self, me: usize, room: &mut [u8]) {
        let args = RecvArgs { buf: recv_buf(room), kind: ANY, from: None, user: 2 };
        self.at(me, 0, |e, w| e.recv(w, args));
    }

    fn events(&mut self, me: usize) -> Vec<EngineEvent> {
        std::iter::from_fn(|| self.engines[me].pending_mut().take_event()).collect()
    }

    fn rdma(&self) -> usize {
        self.sent_packets.iter().filter(|sent_packet| !matches!(sent_packet.what, What::Packet(_))).count()
    }

    fn regs(&self) -> usize {
        self.sides.iter().map(|side| side.regs.iter().flatten().count()).sum()
    }

    fn carry_out(&mut self, sent_packet: &SentPacket) -> Result<(), PeerError> {
        let (from, to) = (sent_packet.from, sent_packet.to);
        if let (Some(error), What::Read { .. } | What::Write { .. }) = (self.refusal, &sent_packet.what) {
            return Err(error);
        }
        if self.dead.contains(&from) {
            return Err(PeerError::Device(EfaStatus::Flushed));
        }
        if self.dead.contains(&to) {
            return Err(PeerError::Unreachable);
        }
        // The target's device knows the peers its owner has connected to.
        if !self.sides[to.0].paths.values().any(|path| *path == (to.1, from)) {
            return Err(PeerError::Device(EfaStatus::UnknownPeer));
        }
        let (near, far) = match &sent_packet.what {
            What::Read { to, from, .. } => (to, from),
            What::Write { from, to, .. } => (from, to),
            What::Packet(_) => return Ok(()),
        };
        let region = far.key.checked_sub(1).and_then(|n| self.sides[to.0].regs.get(n as usize)?.as_ref());
        let inside = region.is_some_and(|region| {
            let at = (far.addr as usize).wrapping_sub(region.piece.ptr().addr());
            region.nic == to.1 && at <= region.piece.len() && near.len() <= region.piece.len() - at
        });
        if !inside {
            return Err(PeerError::ACCESS);
        }
        let far = std::ptr::with_exposed_provenance_mut::<u8>(far.addr as usize);
        let (source, target) = match sent_packet.what {
            What::Read { .. } => (far, near.ptr()),
            _ => (near.ptr(), far),
        };
        // SAFETY: both ends lie in live registrations of buffers that the test keeps.
        unsafe { std::ptr::copy(source, target, near.len()) };
        self.done[from.0][from.1] += 1;
        Ok(())
    }

    fn arrive(&mut self, sent_packet: &SentPacket, bytes: &[u8]) {
        let from = source(&addr(sent_packet.from.0, sent_packet.from.1));
        let (host, nic) = sent_packet.to;
        let is_data = matches!(wire::parse(bytes), Ok(Packet::CtsData(..)));
        self.data[sent_packet.from.0][sent_packet.from.1] += u32::from(is_data);
        self.at(host, nic, |e, w| e.on_packet(w, Nanos(0), WireId(nic as u8), from, bytes));
    }

    fn deliver(&mut self, at: usize) {
        let mut sent_packet = self.sent_packets.remove(at);
        let promoted = self.sides[sent_packet.from.0].promoted.iter();
        let promoted = { promoted }.find(|(lane, _)| *lane == sent_packet.lane);
        sent_packet.lane = promoted.map_or(sent_packet.lane, |(_, peer)| (*peer).into());
        let result = self.carry_out(&sent_packet);
        let (me, nic) = sent_packet.from;
        match &sent_packet.what {
            What::Packet(bytes) if let Some(fault) = result.err().filter(|fault| fault.is_lane_failure()) => {
                if self.late && self.rng.one_in(2) {
                    self.arrive(&sent_packet, bytes);
                }
                let way = (WireId(nic as u8), fault);
                self.at(me, nic, |e, w| e.on_packet_lost(w, sent_packet.lane, way, bytes));
            }
            What::Packet(bytes) => self.arrive(&sent_packet, bytes),
            What::Read { token, .. } | What::Write { token, .. } => {
                self.at(me, nic, |e, w| e.on_sent(w, *token, result));
            }
        }
    }

    fn turn(&mut self) {
        match self.rng.below(3) {
            0 => {
                let me = self.rng.below(2);
                self.at(me, 0, |e, w| e.resume(w, Nanos(0)));
            }
            _ if self.sent_packets.is_empty() => {}
            _ => {
                let at = self.rng.below(self.sent_packets.len());
                self.deliver(at);
            }
        }
    }

    fn settle(&mut self) {
        let (mut still, mut turns) = (0, 0);
        while still < 100 {
            turns += 1;
            assert!(turns < 200_000, "it never comes to rest");
            let busy = !self.sent_packets.is_empty()
                || self.engines.iter().any(|engine| engine.pending().waits_for_room());
            still = if busy { 0 } else { still + 1 };
            self.turn();
        }
    }

    /// Registers memory of `host` for peers; returns its key on each device.
    fn expose(&mut self, host: usize, bytes: &mut [u8]) -> (RmaIov, RailKeys) {
        let (piece, len) = (recv_buf(bytes).piece().expect("not empty"), bytes.len() as u64);
        let addr = piece.ptr().expose_provenance() as u64;
        let nics = self.sides[host].addrs[host].len();
        let keys: Vec<u64> = (0..nics)
            .map(|nic| {
                self.at(host, 0, |_, w| {
                    w.register(WireId(nic as u8), piece, RegAccess::REMOTE_READ).unwrap().key
                })
            })
            .collect();
        // SAFETY: the test keeps the bytes beside the rig.
        let region = unsafe { Memory::new(piece.ptr(), bytes.len(), Access::all()) }.unwrap();
        let key = self.engines[host].memory().add(region).unwrap();
        for (nic, device_key) in keys.iter().enumerate() {
            self.engines[host].memory().add_device_key(key, DomainId(nic as u8), *device_key);
        }
        let rails: RailKeys = std::array::from_fn(|n| keys.get(n + 1).copied());
        (RmaIov { addr, len, key: keys[0] }, rails)
    }

    fn put(&mut self, peer: PeerId, bytes: &[u8], (iov, keys): (RmaIov, RailKeys)) -> Started<()> {
        let (local, remote, protocol) =
            (Gather::one(send_buf(bytes)), Iovs::one(iov), RmaProtocol::DirectWrite);
        let args = PutArgs { local, remote, sync: DeliveryComplete::Yes, cq_data: None, protocol, user: 3 };
        self.at(0, 0, |e, w| e.put_striped(w, peer, args, &keys))
    }

    fn get(&mut self, peer: PeerId, room: &mut [u8], (iov, keys): (RmaIov, RailKeys)) -> Started<()> {
        let (local, remote, protocol) =
            (Scatter::one(recv_buf(room)), Iovs::one(iov), RmaProtocol::DirectRead);
        let args = GetArgs { local, remote, protocol, user: 4 };
        self.at(0, 0, |e, w| e.get_striped(w, peer, args, &keys))
    }

    fn longread(&self) -> Iovs {
        let packets = self.sent_packets.iter().filter_map(|sent_packet| match &sent_packet.what {
            What::Packet(bytes) => wire::parse(bytes).ok(),
            _ => None,
        });
        let mut iovs = packets.filter_map(|packet| match packet {
            Packet::Rtm(rtm) => match rtm.body {
                RtmBody::LongRead { read_iov, .. } => Some(read_iov),
                _ => None,
            },
            _ => None,
        });
        iovs.next().expect("a LONGREAD")
    }
}

// [M11.3] [M11.4] [M11.6]
#[test]
fn a_long_message_is_read_over_every_lane() {
    for nics in [2, 3, 4, 6] {
        for back in [false, true] {
            let (mut rig, peer) = Rig::connected([nics, nics], 1);
            // The receiver's side may send as well: its peer is the first it has.
            let (from, to, peer) = if back { (1, 0, PeerId(0)) } else { (0, 1, peer) };
            let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
            rig.recv(to, &mut room);
            rig.send(from, peer, &bytes, Protocol::LongRead);
            let rails = nics.min(MAX_IOV);
            let iovs = rig.longread();
            assert_eq!((iovs.count(), iovs.total()), (rails, Some(LEN as u64)));
            for (nic, iov) in iovs.as_slice().iter().enumerate().skip(1) {
                let me = addr(from, nic);
                assert_eq!((iov.len, iov.addr), (0, me.node()));
                assert_eq!((iov.key >> 32) as u16, me.qpn);
                assert_eq!((iov.key >> 48) as u16, me.connid as u16);
            }
            while rig.rdma() == 0 {
                rig.turn();
            }
            assert_eq!(rig.rdma(), rails, "one piece each");
            rig.settle();
            assert_eq!(rig.done[to][..rails], [1; 4][..rails]);
            assert_eq!(rig.events(from), [EngineEvent::SendDone { user: 1, result: Ok(()) }]);
            assert!(matches!(
                rig.events(to)[..],
                [EngineEvent::RecvDone { result: Ok(RecvStatus { len: LEN, .. }), .. }]
            ));
            assert!(rig.regs() == 0 && room == bytes);
            let stats = rig.engines[to].peers().stats();
            assert_eq!((stats.rare.striped, stats.rare.rails_lost), (1, 0));
            assert_eq!(rig.engines[from].peers().stats().rx_pkts[usize::from(PktType::EOR.0)], 1);
        }
    }
}

// [M11.3] [M11.4]
#[test]
fn peer_with_one_lane_gets_one_name() {
    for nics in [[1, 3], [3, 1]] {
        let (mut rig, peer) = Rig::connected(nics, 1);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        rig.recv(1, &mut room);
        rig.send(0, peer, &bytes, Protocol::LongRead);
        assert_eq!(rig.longread().count(), 1);
        rig.settle();
        assert!(room == bytes && rig.regs() == 0);
    }
}

#[test]
fn short_transfer_uses_one_lane() {
    let (mut rig, peer) = Rig::connected([4, 4], 1);
    let len = 2 * CHUNK as usize - 1;
    let (bytes, mut room) = (message_bytes(1, len), vec![0; len]);
    rig.recv(1, &mut room);
    rig.send(0, peer, &bytes, Protocol::LongRead);
    assert_eq!(rig.longread().count(), 1);
    rig.settle();
    assert!(room == bytes && rig.done[1][0] == 1);
    let mut far = vec![0; len];
    let there = rig.expose(1, &mut far);
    rig.put(peer, &bytes, there);
    rig.settle();
    assert!(far == bytes);
    assert_eq!(rig.done[0][..2], [1, 0]);
}

// [M11.5]
#[test]
fn unknown_lane_name_is_skipped() {
    for wrong in 0..3 {
        let (mut rig, peer) = Rig::connected([2, 2], 1);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        rig.recv(1, &mut room);
        rig.send(0, peer, &bytes, Protocol::LongRead);
        let [SentPacket { what: What::Packet(packet), .. }] = &mut rig.sent_packets[..] else { panic!() };
        let at = packet.len() - RmaIov::LEN;
        packet[at + [0, 20, 22][wrong]] ^= 1;
        rig.settle();
        assert!(room == bytes);
        assert_eq!(rig.done[1][..2], [1, 0], "{wrong}");
    }
    // Only the first lane was met; the other's introduction is in flight.
    let (mut rig, peer) = Rig::new([2, 2], 1);
    let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
    rig.send(0, peer, b"x", Protocol::Eager);
    (0..3).for_each(|_| rig.deliver(0));
    assert_eq!(rig.sent_packets.len(), 1, "the introduction");
    let mut byte = [0; 1];
    rig.recv(1, &mut byte);
    rig.recv(1, &mut room);
    rig.send(0, peer, &bytes, Protocol::LongRead);
    assert_eq!(rig.longread().count(), 2);
    rig.deliver(1);
    assert_eq!(rig.rdma(), 1);
    rig.settle();
    assert!(room == bytes && rig.regs() == 0);
}

// [M11.6]
#[test]
fn refusing_lane_is_left_out() {
    for wrong in [1, 2] {
        let (mut rig, peer) = Rig::connected([2, 2], 1);
        let (bytes, mut room) = (message_bytes(1, LEN), vec![0; LEN]);
        rig.recv(1, &mut room);
        rig.send(0, peer, &bytes, Protocol::LongRead);
        let count = rig.sides[0].regs.len();
        for n in 0..wrong {
            let region = rig.sides[0].regs[count - 1 - n].as_mut().unwrap();
            region.piece = region.piece.part(0, 0);
        }
        rig.settle();
        assert!(room == bytes);
        assert_eq!((rig.events(0).len(), rig.events(1).len(), rig.regs()), (1, 1, 0));
        let nacks = rig.engines[1].peers().stats().rare.nacks_sent;
        assert_eq!(nacks, u64::from(wrong == 2), "{wrong}");
        assert_eq!(rig.engines[0].peers().info(peer).unwrap().fault, None);
    }
}

#[test]
fn puts_and_gets_go_over_every_lane() {
    for nics in [1, 2, 4] {
        let (mut rig, peer) = Rig::connected([nics, nics], 1);
        let (bytes, mut far, mut back) = (message_bytes(1, LEN), vec![0; LEN], vec![0; LEN]);
        let there = rig.expose(1, &mut far);
        assert!(matches!(rig.put(peer, &bytes, there), Started::Pending(_)));
        assert_eq!(rig.rdma(), nics);
        assert!(!rig.engines[0].is_flushed(Some(peer)));
        rig.settle();
        assert_eq!(rig.events(0), [EngineEvent::RmaDone { user: 3, result: Ok(()) }]);
        assert!(far == bytes);
        rig.get(peer, &mut back, there);
        rig.settle();
        assert_eq!(rig.events(0), [EngineEvent::RmaDone { user: 4, result: Ok(()) }]);
        assert!(back == bytes);
        assert_eq!(rig.regs(), nics, "the target's own are left");
        assert_eq!(rig.done[0][..nics], [2; 4][..nics]);
        assert!(rig.engines[0].is_flushed(None));
        let stats = rig.engines[0].peers().stats();
        assert_eq!(stats.initiated(RmaProtocol::DirectWrite).bytes, LEN as u64);
        assert_eq!(stats.initiated(RmaProtocol::DirectRead).bytes, LEN as u64);
    }
}

#[test]
fn lane_without_registrations_is_left_out() {
    let (mut rig, peer) = Rig::connected([3, 3], 1);
    let (bytes, mut far) = (message_bytes(1, LEN), vec![0; LEN]);
    let there = rig.expose(1, &mut far);
    rig.sides[0].unwilling = vec![1];
    rig.put(peer, &bytes, there);
    rig.settle();
    assert!(far == bytes);
    assert_eq!((rig.done[0][1], rig.engines[0].peers().stats().rare.striped), (0, 1));
    rig.sides[0].unwilling = vec![1, 2];
    rig.put(peer, &bytes, there);
    rig.settle();
    assert_eq!(rig.engines[0].peers().stats().rare.striped, 1);
    assert_eq!((rig.events(0).len(), rig.regs()), (2, 3));
}

#[test]
fn refused_key_ends_put() {
    let (mut rig, peer) = Rig::connected([2, 2], 1);
    let (bytes, mut far) = (message_bytes(1, LEN), vec![0; LEN]);
    let (iov, _) = rig.expose(1, &mut far);
    rig.put(peer, &bytes, (iov, [Some(1000), None, None]));
    rig.settle();
    assert_eq!(rig.events(0), [EngineEvent::RmaDone { user: 3, result: Err(OpError::Access(peer)) }]);
    assert_eq!((rig.engines[0].peers().info(peer).unwrap().fault, rig.regs()), (None, 2));
    assert!(rig.engines[0].is_flushed(None));
}

// [M11.6] [M11.9]
#[test]
fn lost_device_loses_no_byte() {
    let (mut lost, mut moved) = (0, 0);
    for seed in seeds(0..400) {
        let _seed = Seed(seed);
        let nics = 2 + seed as usize % 3;
        let (mut rig, peer) = Rig::connected([nics, nics], seed);
        let (bytes, mut room) = (message_bytes(seed, LEN), vec![0; LEN]);
        let (mut far, mut back) = (vec![0; LEN], vec![0; LEN]);
        let other = message_bytes(seed + 1, LEN);
        let mut near = other.clone();
        let (there, from) = (rig.expose(1, &mut far), rig.expose(1, &mut near));
        rig.sides.iter_mut().for_each(|side| side.rough = seed % 2 == 0);
        rig.recv(1, &mut room);
        rig.put(peer, &bytes, there);
        rig.send(0, peer, &bytes, Protocol::LongRead);
        rig.get(peer, &mut back, from);
        for _ in 0..rig.rng.below(60) {
            rig.turn();
        }
        let nic = (rig.rng.below(2), rig.rng.below(nics));
        rig.dead.push(nic);
        rig.settle();
        let (mine, remote_id) = (rig.events(0), rig.events(1));
        let ended = |outs: &[EngineEvent]| {
            let results = outs.iter().filter_map(|out| match out {
                EngineEvent::SendDone { result, .. } | EngineEvent::RmaDone { result, .. } => Some(*result),
                EngineEvent::RecvDone { result, .. } => Some(result.map(drop)),
                _ => None,
            });
            results.collect::<Vec<_>>()
        };
        let all = [ended(&mine), ended(&remote_id)].concat();
        lost += rig.engines.iter().map(|e| e.peers().stats().rare.rails_lost).sum::<u64>();
        moved += rig.engines.iter().map(|e| e.peers().stats().rare.failovers).sum::<u64>();
        assert_eq!(all, [Ok(()); 4], "{mine:?} {remote_id:?}");
        assert!(room == bytes && far == bytes && back == other);
        assert_eq!(rig.regs(), 2 * nics, "what is exposed");
        assert!(rig.engines[0].is_flushed(None) && rig.engines[0].quiet());
    }
    assert!(lost > of_all(100) && moved > of_all(50), "{lost} pieces lost, {moved} peers moved");
}
