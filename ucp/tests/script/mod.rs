//! A live engine under a script of bytes: packets of any bytes from a known peer, another one and unknown
//! ones, its own packets sent back, between operations of every kind, RDMA completions, returned packets,
//! receives without headers, cancels, failures. Run by the fuzzer and by a property test.
//!
//! Invariants: no panic; nothing is written outside of lent memory, nor to read-only memory; the device is
//! used within live registrations only; nothing completes twice; held memory is bounded by what has arrived;
//! and when all peers have failed, nothing is left.

mod device;

use std::collections::HashSet;

use device::Device;
use ucp::rdm::io::{PeerError, PeerId, Source};
use ucp::rdm::rma::FenceScope;
use ucp::rdm::rma::mem::{Access, Region};
use ucp::rdm::{
    AtomicArgs, Cancel, DeliveryComplete, DomainId, Engine, EngineConfig, EngineEvent, EngineSnapshot,
    Gather, GetArgs, MemKey, MsgHandle, OpId, ProbeRemove, Protocol, PutArgs, RecvArgs, RecvBuf, RecvKind,
    RmaProtocol, Scatter, SendArgs, SendBuf, Started, UserRecvEnd, WireId,
};
use ucp::wire::{AtomicOp, Datatype, EfaStatus, Iovs, MsgClass, RawAddr, RmaIov, UserRecvQp};
use ucs::time::Nanos;

const GUARD: usize = 64;
const ROOM: usize = 3000;
const FILL: u8 = 0x55;
/// Bytes that the engine may use regardless of input: its tables, and the script's buffers.
const FIXED: usize = 4 << 20;
/// A received byte's cost: the smallest kept packet takes a slot, 128 bytes and queue entries.
const PER_BYTE: usize = 64;

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// Dropped in this order: nobody writes to lent memory once the engine is gone.
struct Live {
    engine: Engine,
    device: Device,
    wire: WireId,
    peers: [PeerId; 2],
    /// The engine as a peer of itself, in the mode without headers.
    me: Option<PeerId>,
    keys: Vec<MemKey>,
    ops: Vec<OpId>,
    taken: Option<MsgHandle>,
    ended: HashSet<u64>,
    next: u64,
    /// Bytes of packets received.
    come: usize,
    rooms: Vec<Vec<u8>>,
    payload: Vec<u8>,
    shared: Vec<Vec<u8>>,
}

fn addr(n: u8) -> RawAddr {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfe, 0x80, n);
    RawAddr { gid, qpn: u16::from(n), connid: u32::from(n) }
}

fn source(n: u8) -> Source {
    Source { node: u64::from(n), port: u32::from(n) }
}

fn kind(n: u8) -> RecvKind {
    match n % 6 {
        0 => RecvKind::Tagged { tag: 0, mask: 0 },
        1 => RecvKind::Tagged { tag: 1, mask: !0 },
        2 => RecvKind::Untagged,
        n => {
            let class = [MsgClass::Am, MsgClass::AmData, MsgClass::Stream][usize::from(n) - 3];
            RecvKind::Class { class, tag: 0, mask: 0 }
        }
    }
}

impl Live {
    fn new(setting: u8) -> Live {
        let device = Device::new(u32::from(setting % 8), u32::from(setting >> 3 & 3) * 2);
        let mut engine = Engine::new(EngineConfig {
            cts_credits: 2,
            max_peers: 16,
            runt_size: if setting & 0x20 == 0 { 0 } else { 300 },
            ..EngineConfig::default()
        });
        let wire = engine.wires_mut().add(addr(1));
        if setting & 0x40 == 0 {
            engine.wires_mut().set_rdma(wire, Device::rdma());
        }
        let peers = [2, 3].map(|n| engine.peers_mut().add(wire, addr(n), source(n)));
        let qp = UserRecvQp { qpn: 9, qkey: 9 };
        let me = (setting & 0x80 != 0).then(|| engine.enable_zcopy_recv(wire, qp, source(1)));
        let mut shared: Vec<Vec<u8>> = vec![vec![FILL; ROOM + 2 * GUARD]; 2];
        let mut keys = Vec::new();
        for (n, memory) in shared.iter_mut().enumerate() {
            let access = [Access::all(), Access::READ][n];
            // SAFETY: the vectors outlive the engine, and are read only after it is dropped.
            let region = unsafe { Region::new(memory[GUARD..].as_mut_ptr(), ROOM, access) };
            let key = region.and_then(|region| engine.memory().add(region));
            keys.extend(key);
            // The engine knows the device's key too: a peer may guess it.
            key.map(|key| engine.memory().add_device_key(key, DomainId(wire.0), 5 + n as u64));
        }
        Live {
            engine,
            device,
            wire,
            peers,
            me,
            keys,
            ops: Vec::new(),
            taken: None,
            ended: HashSet::new(),
            next: 0,
            come: 0,
            rooms: Vec::new(),
            payload: vec![7; 1 << 16],
            shared,
        }
    }

    fn packet(&mut self, from: u8, bytes: &[u8]) {
        self.come += bytes.len().max(16);
        self.engine.on_packet(&mut self.device, Nanos(self.next), self.wire, source(from), bytes);
    }

    fn room(&mut self, len: usize) -> RecvBuf {
        let mut room = vec![FILL; len + 2 * GUARD];
        // SAFETY: the vector does not move, is not used, and outlives the engine.
        let buf = unsafe { RecvBuf::new(room[GUARD..].as_mut_ptr(), len) };
        self.rooms.push(room);
        buf
    }

    fn lend(&self, len: usize) -> SendBuf {
        // SAFETY: the bytes outlive the engine and are constant.
        unsafe { SendBuf::new(self.payload.as_ptr(), len.min(self.payload.len())) }
    }

    fn started<T>(&mut self, started: Started<T>) {
        match started {
            Started::Pending(op) => self.ops.push(op),
            _ => drop(self.ended.insert(self.next)),
        }
    }

    /// Memory of a peer, in one piece or two.
    fn remote(len: usize, step: u8) -> Iovs {
        let iov = |at: usize, len: usize| RmaIov { addr: 0x10_0000 + at as u64, len: len as u64, key: 9 };
        let half = len / 2;
        let list =
            if step & 0x40 == 0 { vec![iov(0, len)] } else { vec![iov(0, half), iov(half, len - half)] };
        Iovs::try_from(list.as_slice()).expect("two fit")
    }

    /// Runs one step; `None` at the end of the script.
    fn step(&mut self, script: &mut Script<'_>) -> Option<()> {
        let step = script.byte()?;
        self.next += 1;
        let to = self.peers[usize::from(step & 1)];
        match step % 20 {
            n @ 0..=4 => {
                let from = [2, 2, 3, 77, 99][usize::from(n)];
                let len = script.byte()?;
                let mut packet = script.bytes(usize::from(len)).to_vec();
                // Half of the packets have a valid header.
                if step & 0x80 == 0 && packet.len() > 1 {
                    packet[1] = 4;
                }
                self.packet(from, &packet);
            }
            // The engine's own packets come back, with a byte changed or not: their ids are live.
            n @ 5..=7 => {
                let (nth, at, with) = (script.byte()?, script.word()?, script.byte()?);
                if let Some(sent) = self.device.sent.iter().rev().nth(usize::from(nth) % 16) {
                    let mut packet = sent.clone();
                    let at = usize::from(at) % packet.len().max(1);
                    if let (Some(byte), false) = (packet.get_mut(at), with == 0) {
                        *byte ^= with;
                    }
                    self.packet([2, 2, 3][usize::from(n) - 5], &packet);
                }
            }
            // A flooding peer: one numbered message after the other.
            8 => {
                let (times, len) = (script.byte()?, script.byte()?);
                let mut packet = script.bytes(usize::from(len)).to_vec();
                for n in 0..times {
                    if let Some(id) = packet.get_mut(4) {
                        *id = n;
                    }
                    self.packet(2, &packet);
                }
            }
            9 => {
                let len = usize::from(script.word()?) % ROOM;
                let buf = self.room(len);
                let from = (step & 0x40 != 0).then_some(self.peers[0]);
                let args = RecvArgs { buf, kind: kind(step / 20), from, user: self.next };
                let started = self.engine.recv(&mut self.device, args);
                self.started(started);
            }
            10 => {
                let (len, how) = (script.word()?, script.byte()?);
                // The last is the engine's own choice.
                let row = Protocol::ALL[usize::from(how) % (Protocol::ALL.len() - 1)];
                let class = [MsgClass::Message, MsgClass::Am, MsgClass::AmData, MsgClass::Stream]
                    [usize::from(how >> 6)];
                let tag = (how & 0x20 == 0 || class != MsgClass::Message).then_some(u64::from(how & 1));
                let cq_data = (how & 0x10 != 0).then_some(5);
                let buf = self.lend(usize::from(len));
                let args = SendArgs { buf, tag, sync: row.sync(), cq_data, protocol: row, user: self.next };
                let started = self.engine.send_class(&mut self.device, to, class, args);
                self.started(started);
            }
            11 => {
                let len = usize::from(script.word()?) % ROOM;
                let row = [RmaProtocol::EagerWrite, RmaProtocol::DirectWrite, RmaProtocol::LongReadWrite]
                    [usize::from(step / 20) % 3];
                let (local, sync) = (
                    Gather::one(self.lend(len)),
                    [DeliveryComplete::No, DeliveryComplete::Yes][usize::from(step >> 7)],
                );
                let cq_data = (step & 2 != 0).then_some(6);
                let args = PutArgs {
                    local,
                    remote: Live::remote(len, step),
                    sync,
                    cq_data,
                    protocol: row,
                    user: self.next,
                };
                let started = self.engine.put(&mut self.device, to, args);
                self.started(started);
            }
            12 => {
                let len = usize::from(script.word()?) % ROOM;
                let row = [RmaProtocol::ShortRead, RmaProtocol::DirectRead][usize::from(step >> 7)];
                let local = Scatter::one(self.room(len));
                let args = GetArgs { local, remote: Live::remote(len, step), protocol: row, user: self.next };
                let started = self.engine.get(&mut self.device, to, args);
                self.started(started);
            }
            13 => {
                let (op, ty) = (script.byte()?, script.byte()?);
                let (Ok(op), Ok(ty)) =
                    (AtomicOp::try_from(u32::from(op % 20)), Datatype::try_from(u32::from(ty % 20)))
                else {
                    return Some(());
                };
                let len = ty.size() * (1 + usize::from(step / 20) % 4);
                let some = |wanted: bool| if wanted { len } else { 0 };
                let operand = Gather::one(self.lend(some(op != AtomicOp::Read)));
                let compare = (step & 0x80 != 0).then(|| Gather::one(self.lend(len)));
                let result = (step & 0xc0 != 0).then(|| Scatter::one(self.room(len)));
                let remote = Live::remote(len, 0);
                let (sync, user) = (DeliveryComplete::No, self.next);
                let args = AtomicArgs { op, ty, remote, operand, compare, result, sync, user };
                let started = self.engine.atomic(&mut self.device, to, args);
                self.started(started);
            }
            14 | 15 => {
                let (nth, how) = (script.byte()?, script.byte()?);
                if self.device.flying.is_empty() {
                    return Some(());
                }
                let result = match how % 8 {
                    0 => Err(PeerError::ACCESS),
                    1 => Err(PeerError::Device(how.into())),
                    2 => Err(PeerError::Gone),
                    _ => Ok(()),
                };
                let (token, result) = self.device.land(usize::from(nth) % self.device.flying.len(), result);
                self.engine.on_sent(&mut self.device, token, result);
            }
            16 => drop(self.engine.resume(&mut self.device, Nanos(self.next << 20))),
            17 => {
                let nth = usize::from(script.byte()?);
                let Some(&op) = self.ops.get(nth % self.ops.len().max(1)) else { return Some(()) };
                match step / 20 % 3 {
                    0 => drop(self.engine.receives().cancel(op)),
                    1 => drop(self.engine.cancel_send(&mut self.device, op, Cancel::Unfinished)),
                    _ => drop(self.engine.cancel_rma(op)),
                }
            }
            18 => match step / 20 {
                0..=3 => {
                    let take = if step & 0x40 == 0 { ProbeRemove::No } else { ProbeRemove::Yes };
                    if let Some(found) = self.engine.receives().probe(kind(step), None, take)
                        && take == ProbeRemove::Yes
                    {
                        self.taken = Some(found.handle);
                    }
                }
                4 => self.engine.fence(&mut self.device, to, FenceScope::Memory),
                5 => self.engine.request_acks(&mut self.device, None),
                _ => {
                    let len = usize::from(script.byte()?);
                    let buf = self.room(len);
                    if let Some(handle) = self.taken.take() {
                        let started = self.engine.recv_probed(&mut self.device, handle, buf, self.next);
                        self.started(started);
                    }
                }
            },
            _ => match step / 20 {
                0 => drop(self.keys.pop().map(|key| self.engine.remove_memory(&mut self.device, key))),
                1 => self.engine.on_peer_error(&mut self.device, self.peers[1], PeerError::Gone),
                2 => self.engine.on_send_error(&mut self.device, self.peers[1], PeerError::Gone),
                3 => self.engine.on_wire_drained(&mut self.device, self.wire),
                4 => self.engine.on_imm(&mut self.device, self.wire, source(step & 3), u64::from(step), 1),
                5 => self.engine.remove_peer(&mut self.device, self.peers[1]),
                6 => self.return_buffer(usize::from(script.byte()?)),
                7 => self.settled(),
                8 | 9 => {
                    let (nth, len, how) = (script.byte()?, script.word()?, script.byte()?);
                    self.receive(usize::from(nth), usize::from(len), how);
                }
                _ => while self.engine.peers_mut().take_trace_event().is_some() {},
            },
        }
        Some(())
    }

    /// Returns a send that found no receive.
    fn return_buffer(&mut self, nth: usize) {
        if self.device.out.is_empty() {
            return;
        }
        let device::Out { to, bytes, bare } = self.device.out.remove(nth % self.device.out.len());
        self.come += bytes.len().max(16);
        match bare {
            None => self.engine.returns().on_rnr(Nanos(self.next), to, &bytes),
            Some(imm) => self.engine.returns().on_rnr_user_qp(Nanos(self.next), PeerId(to.0), &bytes, imm),
        }
    }

    fn settled(&mut self) {
        let Some(to) = self.device.settling.pop() else { return };
        self.device.out.retain(|out| out.to != to);
        self.engine.returns().on_flushed(Nanos(self.next), to);
    }

    fn receive(&mut self, nth: usize, len: usize, how: u8) {
        if self.device.lent.is_empty() {
            return;
        }
        let nth = nth % self.device.lent.len();
        // Only sends in flight to ourselves come from us.
        let to_me = self
            .device
            .out
            .iter()
            .position(|out| self.me.is_some_and(|me| out.to == me.into()) && out.bare.is_some());
        let from = match (how & 3, to_me) {
            (0, Some(at)) => {
                self.device.out.remove(at);
                source(1)
            }
            (n, _) => source([2, 2, 3, 77][usize::from(n)]),
        };
        let result = match how >> 5 {
            0 => Err(PeerError::TOO_LONG),
            1 => Err(PeerError::Device(how.into())),
            _ => Ok(()),
        };
        let (receive, took) = self.device.receive(nth, len);
        let len = if result.is_ok() { took } else { len };
        let imm = (how & 4 != 0).then_some(u32::from(how));
        let end = UserRecvEnd { from, len, imm, result };
        self.engine.on_user_recv(&mut self.device, self.wire, receive, end);
    }

    fn take_outs(&mut self) {
        while let Some(out) = self.engine.pending_mut().take_event() {
            let (EngineEvent::SendDone { user, .. }
            | EngineEvent::RecvDone { user, .. }
            | EngineEvent::RmaDone { user, .. }) = out
            else {
                continue;
            };
            assert!(self.ended.insert(user), "operation {user} ended twice");
        }
    }

    /// Fails every peer and completes everything: nothing is in flight afterwards.
    fn finish(&mut self) {
        while !self.device.flying.is_empty() {
            let (token, result) = self.device.land(0, Err(PeerError::Gone));
            self.engine.on_sent(&mut self.device, token, result);
        }
        while !self.device.lent.is_empty() {
            let (receive, _) = self.device.receive(0, 0);
            let end = UserRecvEnd {
                from: source(1),
                len: 0,
                imm: None,
                result: Err(PeerError::Device(EfaStatus::Flushed)),
            };
            self.device.out.clear();
            self.engine.on_user_recv(&mut self.device, self.wire, receive, end);
        }
        for peer in 0..64 {
            self.engine.on_peer_error(&mut self.device, PeerId(peer), PeerError::Gone);
        }
        while !self.device.flying.is_empty() {
            let (token, result) = self.device.land(0, Err(PeerError::Gone));
            self.engine.on_sent(&mut self.device, token, result);
        }
        self.engine.resume(&mut self.device, Nanos::NEVER);
        self.take_outs();
        let snapshot = self.engine.snapshot();
        // Receives from anybody may wait on, and whole messages of the dead for a receive.
        let (receives, unexpected, held_bytes) =
            (snapshot.receives, snapshot.unexpected, snapshot.held_bytes);
        assert_eq!(snapshot, EngineSnapshot { receives, unexpected, held_bytes, ..EngineSnapshot::EMPTY });
        assert_eq!(self.device.live(), 0, "registrations are left");
    }

    /// Checks the lent memory, which nobody writes any more.
    fn look(self) {
        let Live { engine, rooms, shared, .. } = self;
        drop(engine);
        for room in rooms.iter().chain(&shared) {
            let (head, tail) = (&room[..GUARD], &room[room.len() - GUARD..]);
            assert!(head.iter().chain(tail).all(|&b| b == FILL), "written outside of what was lent");
        }
        assert!(shared[1].iter().all(|&b| b == FILL), "memory that may only be read was written");
    }
}

/// Runs a script. `allocated` returns the bytes allocated by this thread.
pub fn run(script: &[u8], allocated: impl Fn() -> usize) {
    let before = allocated();
    let mut script = Script(script);
    let Some(setting) = script.byte() else { return };
    let mut live = Live::new(setting);
    while live.step(&mut script).is_some() {
        live.take_outs();
        let lent: usize = live.rooms.iter().map(Vec::len).sum();
        let may = FIXED + PER_BYTE * live.come + 2 * lent;
        let costs = allocated().saturating_sub(before);
        assert!(costs <= may, "{costs} bytes allocated, {} have come", live.come);
        assert!(live.engine.pending().held_bytes() <= live.come, "more is held than has come");
    }
    live.finish();
    live.look();
}
