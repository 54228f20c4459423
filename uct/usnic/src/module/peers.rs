//! Connections, from the request to the death. The document has none: its peers know each other from the
//! start. Here the two sides name the connection, agree on window, MTU and flows, and tell a peer from an
//! earlier one at its address.

use super::core::{Control, Core, Timer, blank_header, write_header};
use super::endpoint::{Endpoint, Incarnation, State};
use super::{CloseReason, EpId, Module, Sink};
use crate::channel::ChannelId;
use crate::config::MAX_HELLO_DOUBLINGS;
use crate::fragment::Fragment;
use crate::header::{
    FRAG_HEADER, HEADER, HELLO, Header, HelloBody, HelloMore, LONG_HELLO, MAX_ACK, feature, kind,
    parse_hello, parse_more, seal, whole_len,
};
use crate::path::PathSearch;
use crate::recv_window::RecvWindow;
use crate::segment::{SegId, SegState, Size};
use crate::seq::Seq;
use std::collections::VecDeque;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Timers of an endpoint.
const ALL_TIMERS: [Timer; 7] =
    [Timer::Ack, Timer::Pace, Timer::Reorder, Timer::Keepalive, Timer::Hello, Timer::Left, Timer::Path];
/// Bits of this module's own.
const FEATURES: u16 =
    feature::SPURIOUS | feature::PADDING | feature::PATH | feature::CHANNELS | feature::PIECES;
/// Datagrams without a number that wait, at most. Others are not sent: whoever needs one asks again.
const MAX_CONTROL: usize = 4096;
/// Shortest MTU of a peer: what any network carries, less its own headers.
pub(super) const MIN_MTU: u32 = 512;

impl Module {
    /// Returns the connection to a node, asking for one if there is none. `None`: too many peers.
    pub fn connect(&mut self, now: u64, node: u64) -> Option<EpId> {
        if let Some(ep) = self.find(node) {
            return Some(ep);
        }
        let index = self.new_endpoint(node)?;
        let endpoint = self.endpoints[index].as_deref_mut()?;
        endpoint.send_hello(&mut self.core, now);
        Some(endpoint.id)
    }

    /// Ends a connection here. The peer learns of it with its next send.
    pub fn disconnect(&mut self, ep: EpId, sink: &mut impl Sink) {
        if let Some(index) = self.index(ep) {
            self.kill(index, CloseReason::Disconnected, sink);
        }
    }

    /// Goodbye to a peer, for an owner that leaves: to be sent behind everything else, once. The peer's
    /// operations end with it. If it is lost, the peer learns by silence. `None`: there is no connection.
    pub fn goodbye(&self, ep: EpId) -> Option<[u8; HEADER]> {
        let endpoint = self.endpoint(ep).filter(|endpoint| endpoint.state == State::Open)?;
        let mut header = blank_header(kind::BYE, 0);
        header.dst.set(endpoint.remote);
        header.src.set(endpoint.id.0);
        header.seq.set(endpoint.window.next().0);
        header.ack.set(endpoint.recv.last_in_order().0);
        header.spurious.set(endpoint.spurious_to_report());
        let mut datagram = [0; HEADER];
        datagram.copy_from_slice(header.as_bytes());
        seal(&mut datagram);
        Some(datagram)
    }

    /// Asks for a connection again, as the first time, if this node's is still being asked for: the owner has
    /// a way to the node only now, and has lost what was sent before.
    pub fn ask_again(&mut self, now: u64, node: u64) {
        let Some(&index) = self.by_node.get(&node) else { return };
        if let Some(endpoint) = self.endpoints[index as usize].as_deref_mut()
            && endpoint.state == State::Connecting
        {
            endpoint.stop_timer(&mut self.core, Timer::Hello);
            endpoint.hellos = 0;
            endpoint.send_hello(&mut self.core, now);
        }
    }

    /// Whether a flow of a peer's says to come from this port.
    pub fn has_flow_port(&self, ep: EpId, port: u16) -> bool {
        port != 0 && self.endpoint(ep).is_some_and(|endpoint| endpoint.ports.contains(&port))
    }

    fn new_endpoint(&mut self, node: u64) -> Option<usize> {
        if self.by_node.len() >= self.core.config.max_peers {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.endpoints.push(None);
            self.generations.push(self.core.config.salt as u16);
            self.endpoints.len() as u32 - 1
        });
        let generation = &mut self.generations[index as usize];
        *generation = (*generation + 1) & 0xfff;
        self.serial += 1;
        let id = EpId::new(index, u32::from(*generation));
        let endpoint = Endpoint::new(id, index, node, self.serial, &self.core.config);
        self.endpoints[index as usize] = Some(Box::new(endpoint));
        self.by_node.insert(node, index);
        Some(index as usize)
    }

    pub(super) fn on_hello(&mut self, now: u64, header: &Header, rest: &[u8], sink: &mut impl Sink) {
        let Some(body) = parse_hello(rest).filter(|body| is_sound(body)) else {
            self.core.stats.malformed += 1;
            return;
        };
        let (node, incarnation, remote) = (body.node.get(), incarnation(body), header.src.get());
        let request = Request { remote, body, more: parse_more(rest), len: (HEADER + rest.len()) as u32 };
        if let Some(&index) = self.by_node.get(&node) {
            let index = index as usize;
            let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
            if endpoint.state == State::Connecting {
                endpoint.open(&mut self.core, now, &request);
                return endpoint.answer_hello(&mut self.core, &request);
            }
            if endpoint.remote == remote && endpoint.incarnation == incarnation {
                // The answer was lost.
                return endpoint.answer_hello(&mut self.core, &request);
            }
            if incarnation <= endpoint.incarnation {
                // Of an earlier connection and late; or of a process that started after the clock was set
                // back. That one answers a probe of the connection by a reset, and asks again.
                return endpoint.queue_control(&mut self.core, kind::PROBE, &[]);
            }
            self.kill(index, CloseReason::Restarted, sink);
        }
        let Some(index) = self.new_endpoint(node) else { return };
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        endpoint.open(&mut self.core, now, &request);
        endpoint.answer_hello(&mut self.core, &request);
        sink.on_accept(endpoint.id, node);
    }

    pub(super) fn on_hello_ack(&mut self, now: u64, header: &Header, rest: &[u8]) {
        let Some(body) = parse_hello(rest).filter(|body| is_sound(body)) else {
            self.core.stats.malformed += 1;
            return;
        };
        let Some(index) = self.index(EpId(header.dst.get())) else { return };
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        if endpoint.node != body.node.get() {
            return;
        }
        let (remote, len) = (header.src.get(), (HEADER + rest.len()) as u32);
        let answer = Request { remote, body, more: parse_more(rest), len };
        if endpoint.state == State::Connecting {
            endpoint.open(&mut self.core, now, &answer);
        }
        if let Some(more) = answer.more.filter(|_| endpoint.remote == remote) {
            if len > LONG_HELLO as u32 {
                endpoint.queue_control(&mut self.core, kind::PATH_OK, &U32::new(len).to_bytes());
            }
            endpoint.on_path(more.heard.get());
            endpoint.search_path(&mut self.core, now);
        }
    }

    /// Ends a connection: releases its segments and timers, aborts what was incomplete, and says so.
    pub(super) fn kill(&mut self, index: usize, why: CloseReason, sink: &mut impl Sink) {
        let Some(mut endpoint) = self.endpoints[index].take() else { return };
        self.by_node.remove(&endpoint.node);
        self.free.push(index as u32);
        let core = &mut self.core;
        core.stats.deaths += 1;
        for timer in ALL_TIMERS {
            endpoint.stop_timer(core, timer);
        }
        for id in endpoint.window.drain() {
            core.hotel.check_out(&mut core.segments[id].room);
            core.release(id);
        }
        core.tiny_queued -= endpoint.queue.priority().len();
        endpoint.queue.priority().drain(..).for_each(|id| core.release(id));
        for fragment in endpoint.queue.data().drain(..) {
            if let Fragment::Small(id) = fragment {
                core.release(id);
            }
        }
        core.ready.remove(endpoint.index);
        core.resend.retain(|index| *index != endpoint.index);
        core.acks_due.retain(|due| *due != endpoint.index);
        for channel in 0..core.control.len() {
            while let Some(at) = core.control[channel].iter().position(|control| control.ep == endpoint.id) {
                if let Some(Control { seg, .. }) = core.control[channel].remove(at) {
                    core.release(seg);
                }
            }
        }
        for assembly in endpoint.assembly.drain() {
            if let Some(target) = assembly.target {
                sink.on_last_chunk(endpoint.id, target, &assembly.head, false);
            }
        }
        sink.on_dead(endpoint.id, endpoint.node, why);
    }
}

/// A request to connect, or its answer.
struct Request<'a> {
    /// The peer's name of the connection.
    remote: u32,
    body: &'a HelloBody,
    more: Option<&'a HelloMore>,
    /// Bytes of the datagram.
    len: u32,
}

fn is_sound(body: &HelloBody) -> bool {
    let window = body.window.get();
    window.is_power_of_two() && window >= 64 && body.mtu.get() >= MIN_MTU && body.flows > 0
}

fn incarnation(body: &HelloBody) -> Incarnation {
    (body.epoch.get(), body.serial.get())
}

impl Endpoint {
    /// Opens the connection with what both sides agree on.
    fn open(&mut self, core: &mut Core, now: u64, request: &Request<'_>) {
        let (config, body) = (&core.config, request.body);
        let window = config.window.min(body.window.get());
        self.state = State::Open;
        self.remote = request.remote;
        self.incarnation = incarnation(body);
        self.mtu = config.data.mtu.min(body.mtu.get()).max(FRAG_HEADER as u32 + 1);
        if let Some(more) = request.more {
            self.ports = more.ports.map(|port| port.get());
            self.path = PathSearch::begin(self.mtu);
            // Until it is known that the path carries more.
            self.mtu = self.mtu.min(MIN_MTU);
        }
        self.flows = config.flows.min(body.flows);
        self.sack = config.sack && body.sack != 0;
        self.reports_spurious = body.features.get() & feature::SPURIOUS != 0;
        self.takes_padding = body.features.get() & feature::PADDING != 0;
        self.takes_pieces = body.features.get() & feature::PIECES != 0;
        self.takes_marks = body.features.get() & feature::CHANNELS != 0;
        self.features = (body.features.get() >> feature::ABOVE) as u8;
        self.window.set_limit(window);
        self.recv = RecvWindow::new(Seq(body.first_seq.get()), window);
        self.stop_timer(core, Timer::Hello);
        if self.awaits() {
            self.await_peer(core, now);
        }
        self.make_ready(core);
    }

    /// Asks for the connection, and again when there is no answer.
    pub(super) fn send_hello(&mut self, core: &mut Core, now: u64) {
        // The first one is a ping of full length. Where it does not get through, the next one may.
        let len = if self.hellos == 0 { core.config.data.mtu as usize } else { LONG_HELLO };
        self.queue_hello(core, kind::HELLO, 0, len);
        let due = now + (core.config.hello_interval << self.hellos.min(MAX_HELLO_DOUBLINGS));
        self.hellos += 1;
        self.set_timer(core, Timer::Hello, due);
    }

    /// Answers a request to connect by as long a datagram, if this side sends any of that length.
    fn answer_hello(&mut self, core: &mut Core, request: &Request<'_>) {
        let len = request.len.min(core.config.data.mtu);
        self.queue_hello(core, kind::HELLO_ACK, request.len, len as usize);
    }

    /// Queues a request to connect or its answer, of `len` bytes if it has a part that may be as long.
    fn queue_hello(&mut self, core: &mut Core, kind: u8, heard: u32, len: usize) {
        let config = &core.config;
        let body = HelloBody {
            node: config.node.into(),
            epoch: config.epoch.into(),
            serial: self.serial.into(),
            first_seq: config.first_seq.into(),
            window: config.window.into(),
            mtu: config.data.mtu.into(),
            flows: config.flows,
            sack: u8::from(config.sack),
            features: (FEATURES | u16::from(config.features) << feature::ABOVE).into(),
        };
        let more = HelloMore { heard: heard.into(), ports: config.ports.map(U16::new), reserved: 0.into() };
        let mut both = [0; LONG_HELLO - HEADER];
        let (to_body, to_more) = both.split_at_mut(size_of::<HelloBody>());
        to_body.copy_from_slice(body.as_bytes());
        to_more.copy_from_slice(more.as_bytes());
        let behind = (len.max(LONG_HELLO) - HELLO) as u16;
        self.queue_datagram(core, kind, &both, behind);
    }

    /// Queues a datagram without a number.
    pub(super) fn queue_control(&mut self, core: &mut Core, kind: u8, body: &[u8]) {
        self.queue_datagram(core, kind, body, body.len() as u16);
    }

    /// Queues a probe of the path, of `len` bytes.
    pub(super) fn queue_ping(&mut self, core: &mut Core, len: u32) {
        self.queue_datagram(core, kind::PATH, &[], len as u16 - HEADER as u16);
    }

    /// Queues a datagram whose header says that `len` bytes are behind it, the first of which are `body`.
    fn queue_datagram(&mut self, core: &mut Core, kind: u8, body: &[u8], len: u16) {
        let whole = whole_len(&blank_header(kind, len.into())).unwrap_or(HEADER);
        let is_ping = whole > MAX_ACK;
        let size = if is_ping { Size::Data } else { Size::Ack };
        let Some(seg) = self.new_datagram(core, kind, len, size) else { return };
        let (to_body, to_rest) = core.segments[seg].buf[HEADER..whole].split_at_mut(body.len());
        to_body.copy_from_slice(body);
        to_rest.fill(0);
        // A long one does not fit the priority channel.
        let channel = if is_ping { ChannelId::Data } else { ChannelId::Priority };
        self.queue_posted(core, seg, channel, is_ping);
    }

    /// Takes a segment for a datagram without a number, and writes the header, with which `len` bytes go.
    /// `None`: too many of them wait.
    pub(super) fn new_datagram(&mut self, core: &mut Core, kind: u8, len: u16, size: Size) -> Option<SegId> {
        if core.control.iter().map(VecDeque::len).sum::<usize>() >= MAX_CONTROL {
            return None;
        }
        let mut header = blank_header(kind, len.into());
        let channel = if size == Size::Data { ChannelId::Data } else { ChannelId::Priority };
        let seg = core.segments.alloc(size, self.index);
        header.flags = self.mark(channel);
        header.dst.set(self.remote);
        header.src.set(self.id.0);
        header.seq.set(self.window.next().0);
        header.ack.set(self.recv.last_in_order().0);
        header.spurious.set(self.spurious_to_report());
        let segment = &mut core.segments[seg];
        write_header(&mut segment.buf, &header);
        segment.len = whole_len(&header).unwrap_or(HEADER) as u32;
        segment.state = SegState::Posted;
        Some(seg)
    }

    /// Queues what [`new_datagram`](Self::new_datagram) has returned, complete but for its checksum.
    pub(super) fn queue_posted(&mut self, core: &mut Core, seg: SegId, channel: ChannelId, is_ping: bool) {
        core.control[channel as usize].push_back(Control { seg, ep: self.id, is_ping });
    }
}
