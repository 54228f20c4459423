//! State of a NIC: peers, requests, arrivals, responses. The engine calls it with what has come
//! ([`usnic::Sink`], in `arrive`) and for what is to go ([`usnic::Source`], in `serve`).

use super::super::TryOutcome;
use super::head::Response;
use super::locals::Locals;
use super::node_of;
use super::requests::{Arrival, Bytes, ReadService, Request};
use super::socket::NOWHERE;
use crate::efa::dev::DevStatus;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use ucs::coll::slots::{LOWER, SlotId, Slots, UPPER};
use usnic::EpId;
use usnic::addr::{Node, NodeTable};

/// Devices whose addresses are kept, where their numbers do not tell them.
const MAX_NODES: usize = 1 << 16;
/// Responses that wait for one peer, at most: as many requests as a device has open.
const MAX_RESPONSES: usize = 1 << 20;
/// Staging buffers that are kept for reuse.
const KEPT_BUFFERS: usize = 256;

/// Time for which a session outlives its connection: the last datagrams of the peer are answered, ns.
const SESSION_GRACE: u64 = 1_000_000_000;

/// A peer.
pub(super) struct Peer {
    pub iid: u64,
    pub addr: SocketAddr,
    /// Requests that wait for its response.
    pub outstanding: u32,
    /// Whether the engine was told that some do.
    pub expecting: bool,
    /// Responses for it, not sent yet.
    pub responses: Vec<Response>,
    /// Reads that it has asked for, not begun yet.
    pub to_serve: VecDeque<SlotId>,
    /// Reads that it has asked for, begun or not.
    pub serving: u32,
    /// It was told goodbye, and segments to it are on their way.
    pub was_left: bool,
    /// Listed in [`State::held_replies`].
    pub is_held: bool,
    /// Listed in [`State::dirty`].
    dirty: bool,
}

/// State of a NIC.
pub(super) struct State {
    /// Interface id of the device.
    pub me: u64,
    /// Address that it listens at.
    pub ip: IpAddr,
    /// Whether datagrams are sealed.
    pub is_sealed: bool,
    /// Time of the present call.
    pub now: u64,
    /// Where the present datagram came from.
    pub from: SocketAddr,
    /// Longest message.
    pub mtu: u32,
    /// Time between two attempts at a receiver that is not ready, ns.
    pub rnr_interval: u64,
    pub locals: Locals,
    /// Queue pairs of this process.
    pub qps: u32,
    /// Addresses of devices.
    pub nodes: NodeTable,
    /// Device that spoke last, and from where.
    last_sender: (u64, SocketAddr),
    pub peers: FxHashMap<EpId, Peer>,
    pub by_iid: FxHashMap<u64, EpId>,
    pub requests: Slots<Request, 20, LOWER>,
    pub services: Slots<ReadService, 20, UPPER>,
    pub arrivals: Slots<Arrival>,
    /// By local queue pair: outcomes that it has not taken.
    outcomes: FxHashMap<u16, VecDeque<(u32, TryOutcome)>>,
    /// Outcomes that are told later: the receiver was not ready.
    held: VecDeque<(u64, u16, u32, TryOutcome)>,
    /// Nodes whose connection has ended, and when their sessions may be forgotten.
    pub gone: VecDeque<(u64, u64)>,
    /// Peers for which something is to be sent.
    pub dirty: Vec<EpId>,
    /// Peers for which there are responses.
    pub with_responses: Vec<EpId>,
    /// Peers whose responses and reads wait until the engine takes more replies to them.
    pub held_replies: VecDeque<EpId>,
    /// Responses that wait for a peer, at most.
    pub max_responses: usize,
    /// Peers for which more would wait.
    pub over_limit: Vec<EpId>,
    buffers: Vec<Vec<u8>>,
}

impl State {
    pub fn new(me: u64, ip: IpAddr, mtu: u32, rnr_interval: u64) -> State {
        State {
            me,
            ip,
            is_sealed: false,
            now: 0,
            from: NOWHERE,
            mtu,
            rnr_interval,
            locals: Locals::default(),
            qps: 0,
            nodes: NodeTable::new(ip, MAX_NODES),
            last_sender: (0, NOWHERE),
            peers: FxHashMap::default(),
            by_iid: FxHashMap::default(),
            requests: Slots::new(),
            services: Slots::new(),
            arrivals: Slots::new(),
            outcomes: FxHashMap::default(),
            held: VecDeque::new(),
            gone: VecDeque::new(),
            dirty: Vec::new(),
            with_responses: Vec::new(),
            held_replies: VecDeque::new(),
            max_responses: MAX_RESPONSES,
            over_limit: Vec::new(),
            buffers: Vec::new(),
        }
    }

    /// Address of a device, as far as it is known.
    pub fn addr_of(&self, iid: u64) -> Option<SocketAddr> {
        self.nodes.socket_addr(node_of(iid)?)
    }

    /// Address of a device, for a line in the log.
    pub fn name_of(&self, iid: u64) -> String {
        self.addr_of(iid).map_or_else(|| format!("fe80::{iid:x}"), |addr| addr.ip().to_string())
    }

    /// Takes the sender of an authentic message: a network in between may have changed its address, and
    /// answers go there. Returns `false` if another device has this number.
    #[inline]
    pub fn follow(&mut self, iid: u64, from: SocketAddr) -> bool {
        self.last_sender == (iid, from) || self.follow_new(iid, from)
    }

    fn follow_new(&mut self, iid: u64, from: SocketAddr) -> bool {
        let Some(node) = node_of(iid) else { return false };
        if let Err(why) = self.nodes.learn(node, from) {
            tracing::warn!("datagrams of a peer device are dropped: {why}");
            return false;
        }
        self.last_sender = (iid, from);
        if let Some(peer) = self.by_iid.get(&iid).and_then(|ep| self.peers.get_mut(ep)) {
            peer.addr = from;
        }
        true
    }

    /// Whether a device of that number may be at an address, as no network in between has changed it; and
    /// whether no other is known by the number.
    pub fn may_be_at(&self, iid: u64, addr: SocketAddr) -> bool {
        let Some(node) = node_of(iid) else { return false };
        let known = self.by_iid.get(&iid).and_then(|ep| self.peers.get(ep));
        Node::new(node.device(), addr) == node && known.is_none_or(|peer| peer.addr == addr)
    }

    /// Adds a peer whose connection was made or asked for.
    pub fn add_peer(&mut self, ep: EpId, iid: u64, addr: SocketAddr) {
        let peer = Peer {
            iid,
            addr,
            outstanding: 0,
            expecting: false,
            responses: Vec::new(),
            to_serve: VecDeque::new(),
            serving: 0,
            was_left: false,
            is_held: false,
            dirty: false,
        };
        self.peers.insert(ep, peer);
        self.by_iid.insert(iid, ep);
    }

    /// Notes that there is something to send to a peer.
    pub fn mark_dirty(&mut self, ep: EpId) {
        if let Some(peer) = self.peers.get_mut(&ep)
            && !std::mem::replace(&mut peer.dirty, true)
        {
            self.dirty.push(ep);
        }
    }

    /// Takes a peer for which there is something to send.
    pub fn next_dirty(&mut self) -> Option<EpId> {
        loop {
            let ep = self.dirty.pop()?;
            if let Some(peer) = self.peers.get_mut(&ep) {
                peer.dirty = false;
                return Some(ep);
            }
        }
    }

    /// A buffer of `len` bytes.
    pub fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < KEPT_BUFFERS {
            self.buffers.push(buffer);
        }
    }

    /// Queues a response on a request of a peer. One that has more requests open than a device can have is to
    /// be left.
    pub fn decide(&mut self, ep: EpId, token: u32, outcome: TryOutcome) {
        if let Some(peer) = self.peers.get_mut(&ep) {
            if peer.responses.is_empty() && !peer.is_held {
                self.with_responses.push(ep);
            }
            if peer.responses.len() >= self.max_responses {
                if !self.over_limit.contains(&ep) {
                    self.over_limit.push(ep);
                }
                return;
            }
            peer.responses.push(Response::new(token, outcome));
        }
    }

    /// Lets the replies to a peer wait.
    pub fn hold_replies(&mut self, ep: EpId) {
        if let Some(peer) = self.peers.get_mut(&ep)
            && !std::mem::replace(&mut peer.is_held, true)
        {
            self.held_replies.push_back(ep);
        }
    }

    /// Takes the response for a peer, if it is the only one: a message takes it along.
    pub fn take_only_response(&mut self, ep: EpId) -> Option<Response> {
        let responses = &mut self.peers.get_mut(&ep)?.responses;
        let only = if responses.len() == 1 { responses.pop() } else { None }?;
        self.with_responses.retain(|owed| *owed != ep);
        Some(only)
    }

    /// Ends a request of this process, if it is one that this peer was asked for.
    pub fn end_request(&mut self, ep: EpId, token: u32, outcome: TryOutcome) {
        let id = SlotId::from_raw(token);
        if self.requests.get(id).is_none_or(|request| request.ep != ep) {
            return;
        }
        let Some(request) = self.forget_request(id) else { return };
        let outcome = if request.lost { TryOutcome::Done(DevStatus::InvalidLkey) } else { outcome };
        match outcome {
            TryOutcome::NotReady | TryOutcome::Busy => {
                let due = self.now + self.rnr_interval;
                self.held.push_back((due, request.qpn, token, outcome));
            }
            outcome => self.push_outcome(request.qpn, token, outcome),
        }
        if let Bytes::Staged(buffer) = request.bytes {
            self.recycle(buffer);
        }
    }

    fn forget_request(&mut self, id: SlotId) -> Option<Request> {
        let request = self.requests.remove(id)?;
        if let Some(peer) = self.peers.get_mut(&request.ep) {
            peer.outstanding -= 1;
            if peer.outstanding == 0 {
                self.mark_dirty(request.ep);
            }
        }
        Some(request)
    }

    fn push_outcome(&mut self, qpn: u16, token: u32, outcome: TryOutcome) {
        self.outcomes.entry(qpn).or_default().push_back((token, outcome));
    }

    /// Takes an outcome for a local queue pair.
    pub fn next_outcome(&mut self, qpn: u16) -> Option<(u32, TryOutcome)> {
        self.outcomes.get_mut(&qpn)?.pop_front()
    }

    /// Tells outcomes whose time has come.
    pub fn push_held_outcomes(&mut self) {
        while self.held.front().is_some_and(|(due, ..)| *due <= self.now) {
            if let Some((_, qpn, token, outcome)) = self.held.pop_front() {
                self.push_outcome(qpn, token, outcome);
            }
        }
    }

    /// Time at which an outcome is to be told.
    pub fn next_due(&self) -> Option<u64> {
        self.held.front().map(|(due, ..)| *due)
    }

    /// Forgets the requests of a local queue pair, and their outcomes.
    pub fn give_up(&mut self, qpn: u16) {
        self.outcomes.remove(&qpn);
        self.held.retain(|(_, of, ..)| *of != qpn);
        for index in 0..self.requests.capacity() {
            if let Some(id) = self.requests.id_at(index)
                && self.requests.get(id).is_some_and(|request| request.qpn == qpn)
            {
                self.forget_request(id);
            }
        }
    }

    /// Ends everything that concerns a dead peer: requests with this status, reads of its, arrivals.
    pub fn end_peer(&mut self, ep: EpId, status: DevStatus) {
        for index in 0..self.requests.capacity() {
            if let Some(id) = self.requests.id_at(index)
                && self.requests.get(id).is_some_and(|request| request.ep == ep)
            {
                self.end_request(ep, id.raw(), TryOutcome::Done(status));
            }
        }
        for index in 0..self.services.capacity() {
            if let Some(id) = self.services.id_at(index)
                && self.services.get(id).is_some_and(|service| service.ep == ep)
            {
                self.services.remove(id);
            }
        }
        if let Some(peer) = self.peers.remove(&ep)
            && self.by_iid.get(&peer.iid) == Some(&ep)
        {
            self.by_iid.remove(&peer.iid);
            if self.is_sealed {
                self.gone.push_back((self.now + SESSION_GRACE, peer.iid));
            }
            self.last_sender = (0, NOWHERE);
            if let Some(node) = node_of(peer.iid) {
                self.nodes.forget(node);
            }
        }
    }
}
