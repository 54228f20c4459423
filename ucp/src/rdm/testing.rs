//! Engines in one thread over a simulated network of queues, driven by a seed. For tests only.

use std::ops::Range;

use ucs::time::Nanos;

use crate::rdm::ids::WireId;
use crate::rdm::ids::{PeerId, Source, TxToken};
use crate::rdm::io::{
    Flushed, LaneId, NotPosted, Posted, Rdma, ReceiveSink, Reg, RegAccess, RegError, Remote, RmaAddress, Wire,
};
use crate::rdm::op::table::SendTable;
use crate::rdm::op::{Piece, RecvBuf, SendBuf};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::PeerError;
use crate::rdm::types::{EngineConfig, EngineEvent, RecvArgs, RecvKind, SendArgs, Started};
use crate::rdm::{Engine, RecvStatus};
use crate::wire::{EfaStatus, RawAddr, RmaIov, UserRecvQp};

#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Returns the first n-th part of the seeds if `SEEDS_PART=n` is set, for slow sanitizer runs.
pub fn seeds(all: Range<u64>) -> Range<u64> {
    all.start..all.start + (all.end - all.start).div_ceil(part())
}

/// Scales the expected total `many` by the same part as [`seeds`].
pub fn of_all(many: u64) -> u64 {
    many / part()
}

fn part() -> u64 {
    match std::env::var("SEEDS_PART") {
        Ok(part) => part.parse().ok().filter(|part| *part > 0).expect("SEEDS_PART is a number from 1 on"),
        Err(_) => 1,
    }
}

pub struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct NetConfig {
    pub mtu: usize,
    /// One in so many sends finds no room; 0: never.
    pub full: usize,
    pub reorder: bool,
    /// One in so many packets comes back because its receiver is not ready; 0: never.
    pub rnr: usize,
}

impl NetConfig {
    pub const RELIABLE: NetConfig = NetConfig { mtu: 1024, full: 0, reorder: false, rnr: 0 };
}

#[derive(Clone, Debug)]
pub struct SentPacket {
    pub from: usize,
    pub to: usize,
    pub bytes: Vec<u8>,
}

pub struct Node {
    pub engine: Engine,
    pub addr: RawAddr,
    pub wire: WireId,
    pub paths: Vec<usize>,
    /// The wire of this node has no room for any send.
    pub wire_full: bool,
    /// Packets for which the wire has room; `None`: any number.
    pub wire_room: Option<usize>,
    /// This node has no receive posted: packets to it come back.
    pub no_receives: bool,
    pub device: Device,
}

#[derive(Default)]
pub struct Device {
    /// By number; the key is the number with the node above it.
    pub regs: Vec<Option<(Piece, RegAccess)>>,
    pub no_reg: Option<RegError>,
    /// Registrations may end under reads, which fail then.
    pub revoke: bool,
    pub fault: Option<PeerError>,
    /// Offered memory is read over an RMA-only lane.
    pub rma_address: bool,
    /// The RMA-only lane denies access.
    pub access_denied: bool,
    /// Reads over the RMA-only lane.
    pub rma_lane_reads: usize,
    /// Reads over the RMA-only lane that were given up.
    pub rma_lane_abandoned: usize,
    /// One in so many offers is declined; 0: none.
    pub decline_one_in: usize,
    /// Results of offers: lengths, and whether the peer read.
    pub answers: Vec<(usize, bool)>,
    /// Longest read through the device's own buffers; 0: none.
    pub copies: usize,
    /// Headerless messages sent: destination, bytes, immediate data.
    pub headerless: Vec<(UserRecvQp, Vec<u8>, Option<u32>)>,
    /// User receives that the device has, by their numbers.
    pub user_recvs: Vec<u32>,
}

const UNREGISTERED: u32 = u32::MAX;

pub struct PendingRead {
    pub me: usize,
    pub from: usize,
    pub to: Piece,
    pub reg: u32,
    pub remote: Remote,
    pub token: TxToken,
}

impl Device {
    pub fn live(&self) -> usize {
        self.regs.iter().flatten().count()
    }

    fn holds(&self, n: usize, addr: u64, len: usize, what: RegAccess) -> bool {
        self.regs.get(n).copied().flatten().is_some_and(|(piece, of)| {
            let at = addr.wrapping_sub(piece.ptr() as u64);
            of.contains(what) && at <= piece.len() as u64 && len as u64 <= piece.len() as u64 - at
        })
    }
}

pub struct Net {
    pub nodes: Vec<Node>,
    pub sent_packets: Vec<SentPacket>,
    pub pending_reads: Vec<PendingRead>,
    /// Pending notifications that a peer has nothing in flight: waiting node, its peer, the peer's node.
    pub flush_waiters: Vec<(usize, LaneId, usize)>,
    pub now: Nanos,
    pub rng: Rng,
    pub net_config: NetConfig,
    pub gone: Option<usize>,
}

pub struct NodeWire<'a> {
    me: usize,
    paths: &'a mut Vec<usize>,
    wire_full: bool,
    wire_room: &'a mut Option<usize>,
    addrs: &'a [RawAddr],
    gone: Option<usize>,
    sent_packets: &'a mut Vec<SentPacket>,
    pending_reads: &'a mut Vec<PendingRead>,
    flush_waiters: &'a mut Vec<(usize, LaneId, usize)>,
    device: &'a mut Device,
    rng: &'a mut Rng,
    net_config: NetConfig,
}

impl ReceiveSink for NodeWire<'_> {}

impl Wire for NodeWire<'_> {
    fn mtu(&self, _to: PeerId) -> usize {
        self.net_config.mtu
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: LaneId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        assert!(max <= self.net_config.mtu, "packet of {max}");
        if self.wire_full || *self.wire_room == Some(0) || self.rng.one_in(self.net_config.full) {
            return Err(NotPosted::Full);
        }
        let to = self.paths[to.0 as usize];
        if to == usize::MAX {
            return Err(NotPosted::Peer(PeerError::Gone));
        }
        let mut bytes = vec![0xee; max];
        let len = fill(&mut bytes);
        bytes.truncate(len);
        self.sent_packets.push(SentPacket { from: self.me, to, bytes });
        *self.wire_room = self.wire_room.map(|room| room - 1);
        Ok(Posted::Done)
    }

    fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _to: PeerId,
        qp: UserRecvQp,
        max: usize,
        imm: Option<u32>,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        assert!(max <= self.net_config.mtu, "message of {max}");
        if self.wire_full || self.rng.one_in(self.net_config.full) {
            return Err(NotPosted::Full);
        }
        let mut bytes = vec![0xee; max];
        let len = fill(&mut bytes);
        bytes.truncate(len);
        self.device.headerless.push((qp, bytes, imm));
        Ok(Posted::Done)
    }

    fn post_user_recv(
        &mut self,
        _wire: WireId,
        _into: Piece,
        _reg: &Reg,
        receive: u32,
    ) -> Result<(), NotPosted> {
        self.device.user_recvs.push(receive);
        Ok(())
    }

    fn flush_lane(&mut self, to: LaneId) -> Flushed {
        let node = self.paths[to.0 as usize];
        if !self.sent_packets.iter().any(|sent_packet| (sent_packet.from, sent_packet.to) == (self.me, node))
        {
            return Flushed::Now;
        }
        self.flush_waiters.push((self.me, to, node));
        Flushed::Later
    }

    fn connect(&mut self, peer: LaneId, _from: Source, addr: &RawAddr) -> Result<(), PeerError> {
        // Forgers have the connid of a node and an address of nobody.
        let is_it = |a: &RawAddr| a.connid == addr.connid;
        let node = self.addrs.iter().position(is_it).ok_or(PeerError::Unreachable)?;
        if self.gone == Some(node) {
            return Err(PeerError::Gone);
        }
        set_path(self.paths, peer, node);
        Ok(())
    }

    fn register(&mut self, _wire: WireId, piece: Piece, for_what: RegAccess) -> Result<Reg, RegError> {
        assert!(!piece.is_empty());
        if let Some(why) = self.device.no_reg {
            return Err(why);
        }
        self.device.regs.push(Some((piece, for_what)));
        let id = self.device.regs.len() as u32 - 1;
        Ok(Reg { id, key: (self.me as u64) << 20 | u64::from(id) })
    }

    fn release(&mut self, reg: Reg) {
        let gone = self.device.regs[reg.id as usize].take();
        gone.expect("released once");
        let by_it = |pending_read: &PendingRead| pending_read.me == self.me && pending_read.reg == reg.id;
        assert!(self.device.revoke || !self.pending_reads.iter().any(by_it), "released under a read");
    }

    fn read(
        &mut self,
        peer: LaneId,
        to: Piece,
        reg: &Reg,
        remote: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        if self.wire_full || self.rng.one_in(self.net_config.full) {
            return Err(NotPosted::Full);
        }
        let at = to.ptr() as u64;
        assert!(!to.is_empty() && self.device.holds(reg.id as usize, at, to.len(), RegAccess::LOCAL_WRITE));
        let from = self.paths[peer.0 as usize];
        if from == usize::MAX {
            return Err(NotPosted::Peer(PeerError::Gone));
        }
        self.pending_reads.push(PendingRead { me: self.me, from, to, reg: reg.id, remote, token });
        Ok(Posted::Pending)
    }

    fn rma_address(&self, reg: &Reg) -> Option<RmaAddress> {
        let named = RmaIov { addr: self.me as u64, len: 0, key: reg.key };
        (self.device.rma_address && self.device.regs[reg.id as usize].is_some())
            .then(|| [named; 2].into_iter().collect())
    }

    fn read_rma_lane(
        &mut self,
        peer: PeerId,
        to: Piece,
        from: Remote,
        address: &RmaAddress,
    ) -> Option<Result<(), NotPosted>> {
        let named = RmaIov { addr: self.paths[peer.0 as usize] as u64, len: 0, key: from.key };
        if **address != [named; 2] {
            return None;
        }
        assert!(!to.is_empty());
        if self.device.access_denied {
            return Some(Err(NotPosted::Peer(PeerError::NO_RDMA)));
        }
        if self.wire_full || self.rng.one_in(self.net_config.full) {
            return Some(Err(NotPosted::Full));
        }
        let source = std::ptr::with_exposed_provenance::<u8>(from.addr as usize);
        // SAFETY: the test keeps sent bytes until the send is over, and room until the receive is.
        unsafe { std::ptr::copy(source, to.ptr(), to.len()) };
        self.device.rma_lane_reads += 1;
        Some(Ok(()))
    }

    fn abandon_rma_lane_read(&mut self, _peer: PeerId) {
        self.device.rma_lane_abandoned += 1;
    }

    fn prefers_packets(&mut self, _peer: PeerId, len: usize, address: &RmaAddress) -> bool {
        assert!(!address.is_empty() && len > 0);
        self.rng.one_in(self.device.decline_one_in)
    }

    fn on_offer_result(&mut self, _peer: PeerId, _reg: &Reg, len: usize, read: bool) {
        self.device.answers.push((len, read));
    }

    fn read_copy_max(&self, _peer: PeerId) -> usize {
        self.device.copies
    }

    fn read_copy(
        &mut self,
        peer: PeerId,
        to: Piece,
        remote: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        if to.len() > self.device.copies {
            return Err(NotPosted::Peer(PeerError::NO_RDMA));
        }
        let from = self.paths[peer.0 as usize];
        self.pending_reads.push(PendingRead { me: self.me, from, to, reg: UNREGISTERED, remote, token });
        Ok(Posted::Pending)
    }
}

fn set_path(paths: &mut Vec<usize>, peer: impl Into<LaneId>, node: usize) {
    let at = peer.into().0 as usize;
    if paths.len() <= at {
        paths.resize(at + 1, usize::MAX);
    }
    paths[at] = node;
}

pub fn address(node: usize) -> RawAddr {
    let mut gid = [0; 16];
    gid[0] = 0xfe;
    gid[1] = 0x80;
    gid[15] = node as u8 + 1;
    RawAddr { gid, qpn: node as u16 + 10, connid: 1000 + node as u32 }
}

pub fn source(addr: &RawAddr) -> Source {
    Source { node: u64::from(addr.gid[15]), port: u32::from(addr.qpn) }
}

impl Net {
    pub fn new(nodes: usize, seed: u64, net_config: NetConfig) -> Net {
        Net::with(nodes, seed, net_config, EngineConfig::default())
    }

    pub fn with(nodes: usize, seed: u64, net_config: NetConfig, cfg: EngineConfig) -> Net {
        let node = |n| {
            let mut engine = Engine::new(cfg);
            let wire = engine.wires_mut().add(address(n));
            Node {
                engine,
                addr: address(n),
                wire,
                paths: Vec::new(),
                wire_full: false,
                wire_room: None,
                no_receives: false,
                device: Device::default(),
            }
        };
        Net {
            nodes: (0..nodes).map(node).collect(),
            sent_packets: Vec::new(),
            pending_reads: Vec::new(),
            flush_waiters: Vec::new(),
            now: Nanos(0),
            rng: Rng(seed),
            net_config,
            gone: None,
        }
    }

    pub fn at<T>(&mut self, me: usize, call: impl FnOnce(&mut Engine, &mut NodeWire<'_>) -> T) -> T {
        let addrs: Vec<RawAddr> = self.nodes.iter().map(|n| n.addr).collect();
        let node = &mut self.nodes[me];
        let mut port = NodeWire {
            me,
            paths: &mut node.paths,
            wire_full: node.wire_full,
            wire_room: &mut node.wire_room,
            addrs: &addrs,
            gone: self.gone,
            sent_packets: &mut self.sent_packets,
            pending_reads: &mut self.pending_reads,
            flush_waiters: &mut self.flush_waiters,
            device: &mut node.device,
            rng: &mut self.rng,
            net_config: self.net_config,
        };
        call(&mut node.engine, &mut port)
    }

    pub fn peer(&mut self, me: usize, you: usize) -> PeerId {
        let addr = self.nodes[you].addr;
        let node = &mut self.nodes[me];
        let peer = node.engine.peers_mut().add(node.wire, addr, source(&addr));
        set_path(&mut node.paths, peer, you);
        peer
    }

    pub fn node_of(&self, me: usize, peer: PeerId) -> usize {
        self.nodes[me].paths[peer.0 as usize]
    }

    pub fn deliver_one(&mut self) -> bool {
        if self.sent_packets.is_empty() {
            return false;
        }
        let at = if self.net_config.reorder { self.rng.below(self.sent_packets.len()) } else { 0 };
        let sent_packet = self.sent_packets.remove(at);
        if self.nodes[sent_packet.to].no_receives || self.rng.one_in(self.net_config.rnr) {
            self.return_packet(&sent_packet);
        } else {
            self.deliver(&sent_packet);
        }
        let is_over = |&(me, _, node): &(usize, LaneId, usize), sent_packets: &[SentPacket]| {
            !sent_packets.iter().any(|sent_packet| (sent_packet.from, sent_packet.to) == (me, node))
        };
        let over: Vec<_> = self
            .flush_waiters
            .iter()
            .filter(|&settle| is_over(settle, &self.sent_packets))
            .copied()
            .collect();
        self.flush_waiters.retain(|settle| !is_over(settle, &self.sent_packets));
        for (me, peer, _) in over {
            let now = self.now;
            self.at(me, |e, _| e.returns().on_flushed(now, peer));
        }
        true
    }

    fn return_packet(&mut self, sent_packet: &SentPacket) {
        let paths = &self.nodes[sent_packet.from].paths;
        let peer = paths.iter().position(|&node| node == sent_packet.to).expect("sent to a peer");
        let now = self.now;
        self.at(sent_packet.from, |e, _| e.returns().on_rnr(now, PeerId(peer as u32), &sent_packet.bytes));
    }

    /// Lets every node read, `most` bytes at a time.
    pub fn with_rdma(mut self, most: u64) -> Net {
        for node in &mut self.nodes {
            node.engine.wires_mut().set_rdma(node.wire, Rdma { read: most, ..Rdma::NONE });
        }
        self
    }

    pub fn complete_read(&mut self) -> bool {
        if self.pending_reads.is_empty() {
            return false;
        }
        let at = if self.net_config.reorder { self.rng.below(self.pending_reads.len()) } else { 0 };
        let PendingRead { me, from, to, reg, remote, token } = self.pending_reads.remove(at);
        let (node, number) = ((remote.key >> 20) as usize, (remote.key & 0xf_ffff) as usize);
        let allowed = node == from
            && self.nodes[from].device.holds(number, remote.addr, to.len(), RegAccess::REMOTE_READ);
        let result = match self.nodes[me].device.fault {
            Some(fault) => Err(fault),
            None if reg != UNREGISTERED && self.nodes[me].device.regs[reg as usize].is_none() => {
                Err(PeerError::Device(EfaStatus::InvalidLkey))
            }
            None if self.gone == Some(from) => Err(PeerError::Gone),
            None if !allowed => Err(PeerError::Device(EfaStatus::RemoteBadAddress)),
            None => {
                let source = std::ptr::with_exposed_provenance::<u8>(remote.addr as usize);
                // SAFETY: both lie in live registrations of buffers that the test keeps.
                unsafe { std::ptr::copy(source, to.ptr(), to.len()) };
                Ok(())
            }
        };
        self.at(me, |e, w| e.on_sent(w, token, result));
        true
    }

    pub fn regs(&self) -> usize {
        self.nodes.iter().map(|node| node.device.live()).sum()
    }

    pub fn deliver(&mut self, sent_packet: &SentPacket) {
        let from = source(&self.nodes[sent_packet.from].addr);
        let wire = self.nodes[sent_packet.to].wire;
        let now = self.now;
        self.at(sent_packet.to, |e, w| e.on_packet(w, now, wire, from, &sent_packet.bytes));
    }

    pub fn resume(&mut self, me: usize) -> usize {
        self.now = self.now + std::time::Duration::from_micros(5);
        let now = self.now;
        self.at(me, |e, w| e.resume(w, now))
    }

    /// Advances time to the next deadline of an engine; false if there is none.
    pub fn wait(&mut self) -> bool {
        let next = self
            .nodes
            .iter()
            .filter_map(|node| node.engine.pending().next_deadline(node.engine.peers()))
            .min();
        self.now = self.now.max(next.unwrap_or_default());
        next.is_some()
    }

    /// Runs until nothing moves. Does not end while a node has no receives, since its peers retry for ever.
    pub fn settle(&mut self) {
        let mut still = 0;
        // A single idle round proves nothing while wires are full at random.
        while still < 50 {
            let mut moved = false;
            while self.deliver_one() || self.complete_read() {
                moved = true;
            }
            for me in 0..self.nodes.len() {
                moved |= self.resume(me) > 0;
            }
            let waits = self.wait();
            still = if moved || waits || !self.sent_packets.is_empty() { 0 } else { still + 1 };
        }
    }

    pub fn events(&mut self, me: usize) -> Vec<EngineEvent> {
        std::iter::from_fn(|| self.nodes[me].engine.pending_mut().take_event()).collect()
    }

    /// Sends `bytes`, which must live until the send is over.
    pub fn send(
        &mut self,
        me: usize,
        to: PeerId,
        bytes: &[u8],
        tag: Option<u64>,
        protocol: Protocol,
    ) -> Started<()> {
        self.send_args(
            me,
            to,
            SendArgs {
                buf: send_buf(bytes),
                tag,
                sync: DeliveryComplete::No,
                cq_data: None,
                protocol,
                user: 1,
            },
        )
    }

    pub fn send_args(&mut self, me: usize, to: PeerId, args: SendArgs) -> Started<()> {
        self.at(me, |e, w| e.send(w, to, args))
    }

    /// Receives into `bytes`, which must live, untouched, until the receive is over.
    pub fn recv(&mut self, me: usize, bytes: &mut [u8], kind: RecvKind, user: u64) -> Started<RecvStatus> {
        let args = RecvArgs { buf: recv_buf(bytes), kind, from: None, user };
        self.at(me, |e, w| e.recv(w, args))
    }
}

pub const ANY: RecvKind = RecvKind::Tagged { tag: 0, mask: 0 };

pub fn exact(tag: u64) -> RecvKind {
    RecvKind::Tagged { tag, mask: !0 }
}

/// Makes a send buffer of bytes that the test keeps until the operation is over.
pub fn send_buf(bytes: &[u8]) -> SendBuf {
    // SAFETY: tests declare their buffers before the `Net` that uses them, or keep them beside it.
    unsafe { SendBuf::new(bytes.as_ptr(), bytes.len()) }
}

/// Makes a receive buffer of bytes that the test does not touch until the operation is over.
pub fn recv_buf(bytes: &mut [u8]) -> RecvBuf {
    // SAFETY: tests declare their buffers before the `Net` that uses them, or keep them beside it.
    unsafe { RecvBuf::new(bytes.as_mut_ptr(), bytes.len()) }
}

/// Makes `len` bytes that identify their message and position.
pub fn message_bytes(key: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(key.wrapping_mul(0x1234_5678_9abc_def1));
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

impl Engine {
    /// Lets at most so many sends be in progress. There are none.
    pub fn limit_sends(&mut self, most: usize) {
        assert!(self.ops.sends.table.is_empty());
        self.ops.sends.table = SendTable::with_limit(most);
    }
}
