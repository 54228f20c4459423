//! Connections, from the request to the death. The document has none: its peers know each other from the
//! start. Here the two sides name the connection, agree on window, MTU and flows, and tell a peer from an
//! earlier one at its address.

use super::core::{Core, Timer, blank_header, write_header};
use super::endpoint::{Birth, Endpoint, State};
use super::{Death, EpId, Module, Sink};
use crate::fragment::Fragment;
use crate::header::{FRAG_HEADER, HEADER, HELLO, Header, HelloBody, feature, kind, parse_hello, seal};
use crate::recv_window::RecvWindow;
use crate::segment::{SegState, Size};
use crate::seq::Seq;
use zerocopy::IntoBytes;

/// Timers of an endpoint.
const ALL_TIMERS: [Timer; 6] =
    [Timer::Ack, Timer::Pace, Timer::Reorder, Timer::Keepalive, Timer::Hello, Timer::Left];
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
            self.kill(index, Death::Disconnected, sink);
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
        header.needless.set(endpoint.needless_to_tell());
        let mut datagram = [0; HEADER];
        datagram.copy_from_slice(header.as_bytes());
        seal(&mut datagram);
        Some(datagram)
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
        let (node, birth, remote) = (body.node.get(), birth(body), header.src.get());
        if let Some(&index) = self.by_node.get(&node) {
            let index = index as usize;
            let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
            if endpoint.state == State::Connecting {
                endpoint.open(&mut self.core, now, remote, body);
                return endpoint.queue_hello(&mut self.core, kind::HELLO_ACK);
            }
            if endpoint.remote == remote && endpoint.birth == birth {
                // The answer was lost.
                return endpoint.queue_hello(&mut self.core, kind::HELLO_ACK);
            }
            if birth <= endpoint.birth {
                // Of an earlier connection and late; or of a process that started after the clock was set
                // back. That one answers a probe of the connection by a reset, and asks again.
                return endpoint.queue_control(&mut self.core, kind::PROBE);
            }
            self.kill(index, Death::Restarted, sink);
        }
        let Some(index) = self.new_endpoint(node) else { return };
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        endpoint.open(&mut self.core, now, remote, body);
        endpoint.queue_hello(&mut self.core, kind::HELLO_ACK);
        sink.on_accept(endpoint.id, node);
    }

    pub(super) fn on_hello_ack(&mut self, now: u64, header: &Header, rest: &[u8]) {
        let Some(body) = parse_hello(rest).filter(|body| is_sound(body)) else {
            self.core.stats.malformed += 1;
            return;
        };
        let Some(index) = self.index(EpId(header.dst.get())) else { return };
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        if endpoint.state == State::Connecting && endpoint.node == body.node.get() {
            endpoint.open(&mut self.core, now, header.src.get(), body);
        }
    }

    /// Ends a connection: releases its segments and timers, aborts what was incomplete, and says so.
    pub(super) fn kill(&mut self, index: usize, why: Death, sink: &mut impl Sink) {
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
        endpoint.queue.priority().drain(..).for_each(|id| core.release(id));
        for fragment in endpoint.queue.data().drain(..) {
            if let Fragment::Small(id) = fragment {
                core.release(id);
            }
        }
        core.ready.remove(endpoint.index);
        core.resend.retain(|index| *index != endpoint.index);
        core.acks_due.retain(|due| *due != endpoint.index);
        let is_of_it = |ep: EpId| ep == endpoint.id;
        while let Some(at) = core.control.iter().position(|(_, ep)| is_of_it(*ep)) {
            if let Some((seg, _)) = core.control.remove(at) {
                core.release(seg);
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

fn is_sound(body: &HelloBody) -> bool {
    let window = body.window.get();
    window.is_power_of_two() && window >= 64 && body.mtu.get() >= MIN_MTU && body.flows > 0
}

fn birth(body: &HelloBody) -> Birth {
    (body.epoch.get(), body.serial.get())
}

impl Endpoint {
    /// Opens the connection with what both sides agree on.
    fn open(&mut self, core: &mut Core, now: u64, remote: u32, body: &HelloBody) {
        let config = &core.config;
        let window = config.window.min(body.window.get());
        self.state = State::Open;
        self.remote = remote;
        self.birth = birth(body);
        self.mtu = config.data.mtu.min(body.mtu.get()).max(FRAG_HEADER as u32 + 1);
        self.flows = config.flows.min(body.flows);
        self.sack = config.sack && body.sack != 0;
        self.counts_needless = body.features.get() & feature::NEEDLESS != 0;
        self.takes_padding = body.features.get() & feature::PADDING != 0;
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
        self.queue_hello(core, kind::HELLO);
        let due = now + (core.config.hello_interval << self.hellos.min(6));
        self.hellos += 1;
        self.set_timer(core, Timer::Hello, due);
    }

    fn queue_hello(&mut self, core: &mut Core, kind: u8) {
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
            features: (feature::NEEDLESS | feature::PADDING | u16::from(config.features) << feature::ABOVE)
                .into(),
        };
        self.queue_datagram(core, kind, body.as_bytes());
    }

    /// Queues a datagram without a number.
    pub(super) fn queue_control(&mut self, core: &mut Core, kind: u8) {
        self.queue_datagram(core, kind, &[]);
    }

    fn queue_datagram(&mut self, core: &mut Core, kind: u8, body: &[u8]) {
        debug_assert!(HEADER + body.len() <= HELLO);
        let seg = core.segments.alloc(Size::Ack, self.index);
        let mut header = blank_header(kind, 0);
        header.dst.set(self.remote);
        header.src.set(self.id.0);
        header.seq.set(self.window.next().0);
        header.ack.set(self.recv.last_in_order().0);
        header.needless.set(self.needless_to_tell());
        let segment = &mut core.segments[seg];
        write_header(&mut segment.buf, &header);
        segment.buf[HEADER..HEADER + body.len()].copy_from_slice(body);
        segment.len = (HEADER + body.len()) as u32;
        segment.state = SegState::Posted;
        core.control.push_back((seg, self.id));
    }
}
