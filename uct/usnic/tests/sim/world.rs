//! Nodes and a network, and what is checked at each step.

use crate::clock::Clock;
use crate::network::{Datagram, Faults, Network, Rand};
use crate::node::{Node, Received, Sent, byte, head};
use std::collections::{HashMap, HashSet};
use usnic::{ChannelId, Config, EpId, Module, Posted};

/// A posted datagram that the channel has not sent yet.
struct Held {
    due: u64,
    node: usize,
    posted: Posted,
}

/// Segments of one connection, as seen from outside.
#[derive(Default)]
struct Seen {
    /// Numbers sent and not known to be freed.
    open: HashSet<u32>,
    /// Numbers that have arrived intact.
    arrived: HashSet<u32>,
    /// Of numbers that come in pieces: length of the pieces, and places of those that have arrived.
    pieces: HashMap<(u32, u16), HashSet<u32>>,
}

pub struct World {
    pub now: u64,
    pub rand: Rand,
    pub network: Network,
    pub nodes: Vec<Node>,
    held: Vec<Held>,
    /// By sender and its connection.
    seen: HashMap<(usize, u32), Seen>,
    /// Sends complete after a while.
    pub slow_channel: bool,
    /// Whether an acknowledgement is asked of every freed segment.
    pub watch: bool,
    /// Longest datagram to each node that is no ping.
    pub longest_to: Vec<usize>,
}

/// Type of a piece of a segment.
const PIECE: u8 = 11;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl World {
    pub fn new(seed: u64, faults: Vec<Vec<Faults>>, config: impl Fn(usize) -> Config) -> World {
        let faults_len = faults.len();
        let nodes = (0..faults_len)
            .map(|n| Node {
                module: Module::new(config(n), 0),
                received: Received::default(),
                sent: Sent::default(),
                asleep: 0,
                clock: Clock::default(),
            })
            .collect();
        World {
            now: 0,
            rand: Rand::new(seed),
            network: Network::new(faults),
            nodes,
            held: Vec::new(),
            seen: HashMap::new(),
            slow_channel: false,
            watch: true,
            longest_to: vec![0; faults_len],
        }
    }

    /// Sends message `id` of `len` bytes.
    pub fn send(&mut self, from: usize, to: usize, id: u64, len: u32) {
        let node = &mut self.nodes[from];
        let now = node.clock.at(self.now);
        let ep = node.module.connect(now, to as u64).expect("room for peers");
        if len as usize > node.module.longest_small(ep) {
            node.sent.large.insert(id, len);
            node.module.send_large(now, ep, &head(id, len), len, id).unwrap();
        } else {
            let bytes: Vec<u8> = (0..len).map(|at| byte(id, at)).collect();
            let parts = bytes.split_at(bytes.len() / 3);
            if let Some(posted) = node.module.send(now, ep, &head(id, len), [parts.0, parts.1]).unwrap() {
                assert!(posted.inline && posted.channel == ChannelId::Priority);
                self.post(from, posted);
            }
        }
        self.pump(from);
    }

    /// Says goodbye for a node, as often as told, and ends its connection.
    pub fn leave(&mut self, from: usize, to: usize, times: usize) {
        let node = &mut self.nodes[from];
        let ep = node.module.find(to as u64).expect("a connection");
        let bye = node.module.goodbye(ep).expect("an open connection");
        (0..times).for_each(|_| self.network.send(&mut self.rand, self.now, (from, to), false, &bye));
        let node = &mut self.nodes[from];
        node.module.disconnect(ep, &mut node.received);
    }

    fn post(&mut self, from: usize, posted: Posted) {
        if self.slow_channel {
            let due = self.now + self.rand.below(30_000);
            self.held.push(Held { due, node: from, posted });
        } else {
            self.transmit(from, &posted);
        }
    }

    fn transmit(&mut self, from: usize, posted: &Posted) {
        let node = &mut self.nodes[from];
        let bytes = node.module.bytes(posted).to_vec();
        let limit = match posted.channel {
            ChannelId::Priority => node.module.config().priority.mtu,
            ChannelId::Data => node.module.config().data.mtu,
        };
        assert!(bytes.len() <= limit as usize, "{} bytes on {:?}", bytes.len(), posted.channel);
        if matches!(bytes[1], 1 | 2) && self.watch {
            self.seen.entry((from, word(&bytes, 8))).or_default().open.insert(word(&bytes, 12));
        }
        let to = self.peer(from, posted.ep.expect("a peer"));
        node_completed(&mut self.nodes[from], posted);
        if let Some(to) = to {
            if !posted.is_ping {
                self.longest_to[to] = self.longest_to[to].max(bytes.len());
            }
            let priority = posted.channel == ChannelId::Priority;
            self.network.send(&mut self.rand, self.now, (from, to), priority, &bytes);
        }
    }

    /// Node of a connection, from what its owner knows.
    fn peer(&self, node: usize, ep: EpId) -> Option<usize> {
        let all = (0..self.nodes.len()).filter(|n| *n != node);
        let by_find = |n: &usize| self.nodes[node].module.find(*n as u64) == Some(ep);
        all.into_iter().find(by_find)
    }

    /// Sends everything that a node has to send.
    pub fn pump(&mut self, n: usize) {
        loop {
            let node = &mut self.nodes[n];
            let Some(posted) = node.module.poll_send(node.clock.at(self.now), &mut node.sent) else { break };
            self.post(n, posted);
        }
    }

    fn arrive(&mut self, datagram: &Datagram) {
        let node = &mut self.nodes[datagram.to];
        let bytes = &datagram.bytes;
        let fast = datagram.priority && self.rand.permille(300);
        if fast && node.module.recv_fast(node.clock.at(self.now), bytes, &mut node.received) {
            self.record_arrival(datagram);
            return;
        }
        let before = node.module.stats().corrupt + node.module.stats().malformed;
        let node = &mut self.nodes[datagram.to];
        let reply = node.module.on_datagram(node.clock.at(self.now), bytes, &mut node.received);
        let was_good = node.module.stats().corrupt + node.module.stats().malformed == before;
        if let Some(reply) = reply {
            let way = (datagram.to, datagram.from);
            self.network.send(&mut self.rand, self.now, way, true, &reply);
        }
        if was_good {
            self.record_arrival(datagram);
        }
    }

    fn record_arrival(&mut self, datagram: &Datagram) {
        let bytes = &datagram.bytes;
        if !self.watch || !matches!(bytes[1], 1 | 2 | PIECE) {
            return;
        }
        let (seen, seq) = (self.seen.entry((datagram.from, word(bytes, 8))).or_default(), word(bytes, 12));
        if bytes[1] == PIECE {
            let unit = u16::from_le_bytes([bytes[30], bytes[31]]);
            let (total, at) = (word(bytes, 32), word(bytes, 36));
            let have = seen.pieces.entry((seq, unit)).or_default();
            have.insert(at);
            if have.len() < total.div_ceil(unit.into()) as usize {
                return;
            }
        }
        seen.arrived.insert(seq);
    }

    /// Time of the world at which a node has something to do at the latest.
    fn due(&self, n: usize) -> Option<u64> {
        let node = &self.nodes[n];
        node.module.next_due().map(|due| node.clock.when(due))
    }

    /// Earliest time at which something happens.
    fn next(&self) -> Option<u64> {
        let asleep = |n: usize| self.nodes[n].asleep;
        let nodes = (0..self.nodes.len()).filter_map(|n| Some(self.due(n)?.max(asleep(n))));
        let held = self.held.iter().map(|held| held.due);
        nodes.chain(held).chain(self.network.next_due()).min()
    }

    /// Goes to the next event before `end`. Returns whether there was one.
    pub fn step(&mut self, end: u64) -> bool {
        let Some(next) = self.next().filter(|next| *next < end) else {
            self.now = self.now.max(end);
            return false;
        };
        self.now = self.now.max(next);
        for at in (0..self.held.len()).rev() {
            if self.held[at].due <= self.now {
                let held = self.held.swap_remove(at);
                self.transmit(held.node, &held.posted);
                self.pump(held.node);
            }
        }
        let mut waiting = Vec::new();
        while let Some(datagram) = self.network.pop(self.now) {
            if self.nodes[datagram.to].asleep <= self.now {
                self.arrive(&datagram);
            } else {
                waiting.push(datagram);
            }
        }
        // What arrives at a node that sleeps waits in its socket.
        for mut datagram in waiting {
            datagram.due = self.nodes[datagram.to].asleep;
            self.network.put_back(datagram);
        }
        for n in 0..self.nodes.len() {
            if self.nodes[n].asleep <= self.now {
                let node = &mut self.nodes[n];
                node.module.on_time(node.clock.at(self.now), &mut node.received);
                self.pump(n);
            }
        }
        self.check();
        true
    }

    /// Checks the obligations of every module, and that what was freed has arrived.
    pub fn check(&mut self) {
        for (n, node) in self.nodes.iter().enumerate() {
            node.module.check().unwrap_or_else(|why| panic!("node {n} at {} ns: {why}", self.now));
        }
        let nodes = &self.nodes;
        for ((n, ep), seen) in &mut self.seen {
            let Some(ep) = (0..nodes.len()).find_map(|peer| {
                let found = nodes[*n].module.find(peer as u64)?;
                (found.as_u32() == *ep).then_some(found)
            }) else {
                continue;
            };
            seen.open.retain(|seq| {
                nodes[*n].module.holds(ep, *seq) || {
                    assert!(
                        seen.arrived.contains(seq),
                        "segment {seq} of node {n} was freed and never arrived"
                    );
                    false
                }
            });
        }
    }
}

fn node_completed(node: &mut Node, posted: &Posted) {
    node.module.completed(posted);
}
