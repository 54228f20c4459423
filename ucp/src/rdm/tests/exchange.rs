//! Random exchanges on unreliable networks: messages arrive once, intact, in order; operations end once.

use crate::wire::EfaStatus;
use std::collections::HashMap;

use crate::rdm::ids::PeerId;
use crate::rdm::io::RegError;
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol};
use crate::rdm::status::PeerError;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::rdm::{Cancel, OpId};

struct Sent {
    from: usize,
    to: usize,
    kind: Kind,
    tag: u64,
    seq: usize,
    sync: bool,
    bytes: Vec<u8>,
    done: bool,
    cancelled: bool,
    received: bool,
}

struct Posted {
    at: usize,
    bytes: Vec<u8>,
    op: Option<OpId>,
    done: bool,
}

struct Exchange {
    net: Net,
    rng: Rng,
    sent: Vec<Sent>,
    posted: Vec<Posted>,
    /// (from, to, kind, tag) -> positions of the last message and of the receive that got it.
    last: HashMap<(usize, usize, Kind, u64), (usize, usize)>,
}

const ROWS: [Protocol; 5] =
    [Protocol::Eager, Protocol::Medium, Protocol::LongCts, Protocol::LongRead, Protocol::RuntRead];
/// The tag holds the message number in its low part and the class in its high part.
const CLASS: u64 = 0xff << 56;

impl Exchange {
    fn new(seed: u64, nodes: usize, net_config: NetConfig, cfg: EngineConfig) -> Exchange {
        let mut net = Net::with(nodes, seed, net_config, cfg);
        if !seed.is_multiple_of(4) {
            net = net.with_rdma(700 + seed * 37 % 5000);
        }
        // One node may be unable to register or to read.
        match seed % 8 {
            1 => net.nodes[0].device.no_reg = Some(RegError::Full),
            2 => net.nodes[nodes - 1].device.fault = Some(PeerError::Device(EfaStatus::RemoteBadAddress)),
            _ => {}
        }
        Exchange { net, rng: Rng(!seed), sent: Vec::new(), posted: Vec::new(), last: HashMap::new() }
    }

    fn send_one(&mut self, most: usize) {
        let nodes = self.net.nodes.len();
        let (from, to) = (self.rng.below(nodes), self.rng.below(nodes));
        let peer = self.net.peer(from, to);
        let mtu = self.net.net_config.mtu;
        let near =
            [0, 1, 8, mtu - 64, mtu - 56, mtu - 48, mtu - 28, mtu - 20, mtu - 12, mtu, 2 * mtu, 40 * mtu];
        let len = match self.rng.below(3) {
            0 => self.rng.below(most),
            _ => (self.rng.pick(&near) + self.rng.below(5)).min(most),
        };
        let kind = self.rng.pick(&[Kind::Tagged, Kind::Tagged, Kind::Untagged]);
        let class = if kind == Kind::Tagged { self.rng.below(3) as u64 } else { 0 };
        let number = self.sent.len();
        let sync = self.rng.one_in(4);
        let bytes = message_bytes(number as u64, len);
        let args = SendArgs {
            buf: send_buf(&bytes),
            tag: (kind == Kind::Tagged).then_some(class << 56),
            sync: if sync { DeliveryComplete::Yes } else { DeliveryComplete::No },
            cq_data: Some(number as u64),
            protocol: self.rng.pick(&ROWS),
            user: number as u64,
        };
        let tag = class << 56;
        let seq = number;
        let sent =
            Sent { from, to, kind, tag, seq, sync, bytes, done: false, cancelled: false, received: false };
        self.sent.push(sent);
        match self.net.send_args(from, peer, args) {
            Started::Done(()) => self.send_done(number, Ok(())),
            Started::Pending(op) if self.rng.one_in(20) => {
                // One that has begun may end a receive, too: see `errors` and `conversation`.
                self.net.at(from, |e, w| e.cancel_send(w, op, Cancel::Unsent));
            }
            Started::Pending(_) => {}
            Started::Failed(error) => panic!("{error}"),
        }
    }

    fn post_one(&mut self, at: usize, kind: RecvKind, most: usize) {
        let room = if self.rng.one_in(8) { 8 + self.rng.below(most - 8) } else { most };
        let from = match self.rng.below(4) {
            0 => {
                let node = self.rng.below(self.net.nodes.len());
                Some(self.net.peer(at, node))
            }
            _ => None,
        };
        self.post(at, kind, from, room);
    }

    fn post(&mut self, at: usize, kind: RecvKind, from: Option<PeerId>, room: usize) {
        let seq = self.posted.len();
        let mut bytes = vec![0x55; room];
        let buf = recv_buf(&mut bytes);
        self.posted.push(Posted { at, bytes, op: None, done: false });
        let started = if from.is_none() && self.rng.one_in(3) {
            match self.net.nodes[at].engine.receives().probe(kind, None, ProbeRemove::Yes) {
                Some(found) => self.net.at(at, |e, w| e.recv_probed(w, found.handle, buf, seq as u64)),
                None => self.net.at(at, |e, w| e.recv(w, RecvArgs { buf, kind, from, user: seq as u64 })),
            }
        } else {
            self.net.at(at, |e, w| e.recv(w, RecvArgs { buf, kind, from, user: seq as u64 }))
        };
        match started {
            Started::Done(status) => self.recv_done(seq, Ok(status)),
            Started::Failed(error) => self.recv_done(seq, Err(error)),
            Started::Pending(op) => self.posted[seq].op = Some(op),
        }
    }

    fn send_done(&mut self, number: usize, result: Result<(), OpError>) {
        let sent = &mut self.sent[number];
        assert!(!std::mem::replace(&mut sent.done, true), "send {number} ended twice");
        match result {
            Ok(()) => {
                assert!(!sent.sync || sent.received, "send {number} acknowledged before it was received")
            }
            Err(OpError::Cancelled) => sent.cancelled = true,
            Err(error) => panic!("send {number}: {error}"),
        }
        // The engine may not read the buffer any more; if it does, the message arrives damaged.
        sent.bytes.fill(0xdd);
    }

    fn recv_done(&mut self, seq: usize, result: Result<RecvStatus, OpError>) {
        let posted = &mut self.posted[seq];
        assert!(!std::mem::replace(&mut posted.done, true), "receive {seq} ended twice");
        let status = match result {
            Ok(status) => status,
            // Messages share tags, so this one is found by its first bytes.
            Err(OpError::Truncated { len, room, .. }) => {
                assert!(len > room as u64 && room == posted.bytes.len());
                return self.recv_cut(seq, len as usize);
            }
            Err(OpError::Cancelled) => return,
            Err(error) => panic!("receive {seq}: {error}"),
        };
        let number = status.cq_data.expect("every message has a number") as usize;
        let at = posted.at;
        let sent = &mut self.sent[number];
        assert!(!std::mem::replace(&mut sent.received, true), "message {number} came twice");
        assert!(!sent.cancelled && sent.to == at && status.len == sent.bytes.len() && status.tag == sent.tag);
        let (from, to, kind, tag) = (sent.from, sent.to, sent.kind, sent.tag);
        assert!(
            posted.bytes[..status.len] == message_bytes(number as u64, status.len),
            "message {number} damaged"
        );
        assert!(posted.bytes[status.len..].iter().all(|&b| b == 0x55), "wrote behind message {number}");
        assert_eq!(self.net.node_of(at, status.from), from);
        if let Some((other, its)) = self.last.insert((from, to, kind, tag), (number, seq)) {
            assert_eq!(
                other < number,
                its < seq,
                "messages {other} and {number} in receives {its} and {seq}"
            );
        }
    }

    fn recv_cut(&mut self, seq: usize, len: usize) {
        let (at, room) = (self.posted[seq].at, self.posted[seq].bytes.len());
        let bytes = &self.posted[seq].bytes;
        let fits = |s: &&mut Sent| {
            !s.received
                && s.to == at
                && s.bytes.len() == len
                && message_bytes(s.seq as u64, len)[..room] == *bytes
        };
        let sent = self.sent.iter_mut().find(fits).expect("a message that was cut");
        sent.received = true;
    }

    /// Checks all events, receives before sends, since an acknowledgement may come out before its receive.
    fn take_outs(&mut self) {
        let outs: Vec<EngineEvent> = (0..self.net.nodes.len()).flat_map(|me| self.net.events(me)).collect();
        for out in &outs {
            match *out {
                EngineEvent::RecvDone { user, result } => self.recv_done(user as usize, result),
                EngineEvent::SendDone { .. }
                | EngineEvent::RmaDone { .. }
                | EngineEvent::RemoteWrite { .. } => {}
                EngineEvent::PeerFailed { peer, fault } => panic!("{peer:?}: {fault}"),
                EngineEvent::MultiRecvMessage { .. }
                | EngineEvent::MultiRecvDone { .. }
                | EngineEvent::ConnectionClosed { .. }
                | EngineEvent::UnknownPeersRefused { .. } => panic!("{out:?}"),
            }
        }
        for out in outs {
            if let EngineEvent::SendDone { user, result } = out {
                self.send_done(user as usize, result);
            }
        }
    }

    fn run(mut self, messages: usize, most: usize) -> Net {
        let nodes = self.net.nodes.len();
        let (mut to_send, mut to_post) = (messages, messages);
        while to_send + to_post > 0 {
            match self.rng.below(6) {
                0 | 1 if to_send > 0 => {
                    self.send_one(most);
                    to_send -= 1;
                }
                2 | 3 if to_post > 0 => {
                    let at = self.rng.below(nodes);
                    let class = self.rng.below(3) as u64;
                    let kind = match self.rng.below(4) {
                        0 => ANY,
                        1 => RecvKind::Tagged { tag: class << 56, mask: CLASS },
                        2 => exact(class << 56),
                        _ => RecvKind::Untagged,
                    };
                    self.post_one(at, kind, most);
                    to_post -= 1;
                }
                4 => {
                    let me = self.rng.below(nodes);
                    self.net.resume(me);
                }
                _ => (0..4).for_each(|_| {
                    self.net.deliver_one();
                }),
            }
            self.take_outs();
            if self.rng.one_in(30) && !self.posted.is_empty() {
                let n = self.rng.below(self.posted.len());
                let unmatched = self.posted[n].op.filter(|_| !self.posted[n].done);
                let at = self.posted[n].at;
                if let Some(op) = unmatched
                    && self.net.nodes[at].engine.ops.recvs.is_posted(op)
                {
                    assert!(self.net.nodes[at].engine.receives().cancel(op));
                }
            }
        }
        self.net.settle();
        self.take_outs();
        self.sweep(most);
        self.net
    }

    fn sweep(&mut self, most: usize) {
        for n in 0..self.posted.len() {
            let at = self.posted[n].at;
            if let (Some(op), false) = (self.posted[n].op, self.posted[n].done) {
                assert!(self.net.nodes[at].engine.receives().cancel(op));
            }
        }
        self.take_outs();
        assert!(self.posted.iter().all(|p| p.done));
        for at in 0..self.net.nodes.len() {
            for kind in [ANY, RecvKind::Untagged] {
                while self.net.nodes[at].engine.receives().probe(kind, None, ProbeRemove::No).is_some() {
                    self.post(at, kind, None, most);
                    self.net.settle();
                    self.take_outs();
                }
            }
        }
        for (n, sent) in self.sent.iter().enumerate() {
            assert!(sent.done, "send {n} of {} bytes never ended", sent.bytes.len());
            assert!(sent.received || sent.cancelled, "message {n} of {} bytes is lost", sent.bytes.len());
        }
        assert_eq!(self.net.regs(), 0, "registrations are left");
        for (n, node) in self.net.nodes.iter().enumerate() {
            assert!(node.engine.is_flushed(None), "node {n} is not idle");
            assert_eq!(node.engine.pending().held_bytes(), 0, "node {n} holds bytes");
            let rare = &node.engine.peers().stats().rare;
            let bad = rare.malformed + rare.unsupported + rare.duplicate + rare.bad_segment + rare.bad_id;
            assert_eq!(bad + rare.bad_window + rare.unknown_sender + rare.no_path, 0, "{rare:?}");
        }
    }
}

fn run_exchanges(
    range: std::ops::Range<u64>,
    nodes: usize,
    messages: usize,
    most: usize,
    net_config: NetConfig,
) {
    let mut reads = 0;
    for seed in seeds(range) {
        let _seed = Seed(seed);
        let cfg = EngineConfig {
            cts_credits: 1 + (seed % 5) as u32,
            burst: 2 + (seed % 7) as u32,
            runt_size: [0, 100, 1000, 5000][seed as usize / 2 % 4],
            ..Default::default()
        };
        let net = Exchange::new(seed, nodes, net_config, cfg).run(messages, most);
        reads += net.nodes.iter().map(|node| node.engine.peers().stats().rare.reads).sum::<u64>();
    }
    assert!(reads > 0, "nothing was read in place");
}

#[test]
fn two_nodes_on_a_reliable_network() {
    run_exchanges(0..60, 2, 60, 20_000, NetConfig::RELIABLE);
}

// [M4.3]
#[test]
fn two_nodes_with_reordering() {
    run_exchanges(100..200, 2, 60, 20_000, NetConfig { reorder: true, ..NetConfig::RELIABLE });
}

#[test]
fn four_nodes_with_reordering_and_full_queues() {
    run_exchanges(
        200..320,
        4,
        80,
        30_000,
        NetConfig { mtu: 512, full: 3, reorder: true, ..NetConfig::RELIABLE },
    );
}

#[test]
fn one_node_sends_to_itself() {
    run_exchanges(
        300..360,
        1,
        40,
        10_000,
        NetConfig { mtu: 256, full: 4, reorder: true, ..NetConfig::RELIABLE },
    );
}

#[test]
fn three_nodes_with_a_small_mtu() {
    run_exchanges(
        400..460,
        3,
        30,
        1500,
        NetConfig { mtu: 128, full: 5, reorder: true, ..NetConfig::RELIABLE },
    );
}

#[test]
fn large_packets_large_messages() {
    run_exchanges(
        500..520,
        2,
        40,
        300_000,
        NetConfig { mtu: 8928, full: 6, reorder: true, ..NetConfig::RELIABLE },
    );
}

// [M10.5]
#[test]
fn four_nodes_with_frequent_rnr() {
    let net_config = NetConfig { mtu: 512, full: 5, reorder: true, rnr: 4 };
    run_exchanges(600..680, 4, 60, 30_000, net_config);
    run_exchanges(680..720, 2, 40, 100_000, NetConfig { mtu: 8928, ..net_config });
}
