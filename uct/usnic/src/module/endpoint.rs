//! One peer: its windows, its timers, its queue of fragments.

use super::EpId;
use super::core::{Core, Guest, Posted, Timer, blank_header, write_header};
use crate::ack::{AckState, AckUrgency};
use crate::channel::ChannelId;
use crate::channel_order::ChannelOrder;
use crate::config::Config;
use crate::congestion::Congestion;
use crate::credits::Credits;
use crate::fragment::SendQueue;
use crate::header::{FRAG_HEADER, HEADER, Head, Header, MAX_FLOWS, flag, kind};
use crate::hotel::Room;
use crate::keepalive::Keepalive;
use crate::path::PathSearch;
use crate::pieces::Pieces;
use crate::rack::Rack;
use crate::reassembly::Reassembly;
use crate::recv_window::RecvWindow;
use crate::resend::{Lost, LostSegments};
use crate::rtt::Rtt;
use crate::segment::{BySendTime, Cause, SegId, SegState, Size};
use crate::send_window::SendWindow;
use crate::seq::Seq;
use zerocopy::FromBytes;

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Asked for, not granted yet.
    Connecting,
    /// Granted.
    Open,
}

/// Age of a peer's side of a connection: a later one has a larger one.
pub(super) type Incarnation = (u64, u32);

/// Segments that take one flow before the next one is used: a system takes them as one.
const FLOW_RUN: u32 = 16;

/// One peer.
pub(super) struct Endpoint {
    pub(super) id: EpId,
    pub(super) index: u32,
    pub(super) node: u64,
    /// The peer's name of this connection, 0 while connecting.
    pub(super) remote: u32,
    pub(super) state: State,
    pub(super) serial: u32,
    pub(super) incarnation: Incarnation,
    /// Longest datagram to it.
    pub(super) mtu: u32,
    pub(super) flows: u8,
    /// Ports that datagrams of the peer's flows behind the first come from.
    pub(super) ports: [u16; MAX_FLOWS - 1],
    /// Search for the longest datagram to it.
    pub(super) path: PathSearch,
    pub(super) sack: bool,
    /// Whether the peer takes the count of segments that were sent again for nothing.
    pub(super) reports_spurious: bool,
    /// That count, as the peer told it last.
    pub(super) spurious: u16,
    /// Whether the peer takes chunks with zeros behind them.
    pub(super) takes_padding: bool,
    /// Whether the peer takes the mark of the priority channel.
    pub(super) takes_marks: bool,
    /// Whether the peer takes segments in pieces.
    pub(super) takes_pieces: bool,
    /// Bits of the layer above the peer.
    pub(super) features: u8,
    /// Rule that made the congestion window smaller last.
    pub(super) shrunk_by: Cause,
    pub(super) window: SendWindow,
    pub(super) recv: RecvWindow,
    pub(super) acks: AckState,
    pub(super) rtt: Rtt,
    pub(super) congestion: Congestion,
    pub(super) rack: Rack,
    /// Order of what each channel carries.
    pub(super) order: ChannelOrder,
    pub(super) credits: Credits,
    pub(super) queue: SendQueue,
    pub(super) assembly: Reassembly,
    pub(super) pieces: Pieces,
    /// Segments in the hotel.
    pub(super) in_hotel: BySendTime,
    pub(super) lost: LostSegments,
    pub(super) in_ready: bool,
    pub(super) in_acks_due: bool,
    pub(super) pace: Room,
    pub(super) reorder: Room,
    pub(super) alive: Room,
    pub(super) hello: Room,
    pub(super) left: Room,
    pub(super) path_room: Room,
    /// Number behind the last segment of a peer that has said goodbye.
    pub(super) ends_at: Option<Seq>,
    pub(super) keepalive: Keepalive,
    pub(super) expecting: bool,
    pub(super) hellos: u32,
}

impl Endpoint {
    pub(super) fn new(id: EpId, index: u32, node: u64, serial: u32, config: &Config) -> Endpoint {
        let first = Seq(config.first_seq);
        Endpoint {
            id,
            index,
            node,
            remote: 0,
            state: State::Connecting,
            serial,
            incarnation: (0, 0),
            mtu: config.data.mtu,
            flows: 1,
            ports: [0; MAX_FLOWS - 1],
            path: PathSearch::default(),
            sack: false,
            reports_spurious: false,
            takes_padding: false,
            takes_marks: false,
            takes_pieces: false,
            features: 0,
            spurious: 0,
            shrunk_by: Cause::Timer,
            window: SendWindow::new(first, config.window),
            recv: RecvWindow::new(first, config.window),
            acks: AckState::default(),
            rtt: Rtt::default(),
            congestion: Congestion::new(config),
            rack: Rack::default(),
            order: ChannelOrder::default(),
            credits: Credits::new(config.credits),
            queue: SendQueue::default(),
            assembly: Reassembly::default(),
            pieces: Pieces::default(),
            in_hotel: BySendTime::default(),
            lost: LostSegments::default(),
            in_ready: false,
            in_acks_due: false,
            pace: Room::NONE,
            reorder: Room::NONE,
            alive: Room::NONE,
            hello: Room::NONE,
            left: Room::NONE,
            path_room: Room::NONE,
            ends_at: None,
            keepalive: Keepalive::default(),
            expecting: false,
            hellos: 0,
        }
    }

    /// Room of a timer.
    pub(super) fn room(&mut self, timer: Timer) -> &mut Room {
        match timer {
            Timer::Ack => &mut self.acks.room,
            Timer::Pace => &mut self.pace,
            Timer::Reorder => &mut self.reorder,
            Timer::Keepalive => &mut self.alive,
            Timer::Hello => &mut self.hello,
            Timer::Left => &mut self.left,
            Timer::Path => &mut self.path_room,
        }
    }

    /// Sets a timer, if it is not set.
    pub(super) fn set_timer(&mut self, core: &mut Core, timer: Timer, due: u64) {
        let guest = Guest::Timer(self.index, timer);
        let room = self.room(timer);
        if room.is_none() {
            *room = core.hotel.check_in(due, guest);
        }
    }

    /// Stops a timer.
    pub(super) fn stop_timer(&mut self, core: &mut Core, timer: Timer) {
        core.hotel.check_out(self.room(timer));
    }

    /// Whether anything is awaited from the peer.
    pub(super) fn awaits(&self) -> bool {
        self.expecting || !self.window.is_empty() || !self.queue.is_empty()
    }

    /// Whether the peer has said goodbye, and all that it had sent before has arrived.
    pub(super) fn has_left(&self) -> bool {
        self.ends_at.is_some_and(|end| end == self.recv.last_in_order().add(1))
    }

    /// Begins to watch the peer: something is awaited from it.
    pub(super) fn await_peer(&mut self, core: &mut Core, now: u64) {
        if self.alive.is_none() && self.state == State::Open {
            self.keepalive.begin();
            let due = now + core.config.keepalive;
            self.set_timer(core, Timer::Keepalive, due);
        }
    }

    /// Segments that may be on their way now.
    #[inline]
    pub(super) fn has_congestion_room(&self) -> bool {
        self.in_hotel.len() < self.congestion.window()
    }

    /// Makes the endpoint ready to send, if it is: *"An endpoint is ready to send if all of the following are
    /// met"* (Sending).
    pub(super) fn make_ready(&mut self, core: &mut Core) {
        let ready = self.state == State::Open
            && !self.queue.is_empty()
            && self.credits.has()
            && self.window.is_open()
            && self.has_congestion_room()
            && self.pace.is_none();
        if ready && !self.in_ready {
            self.in_ready = true;
            core.ready.push(self.index);
        }
    }

    /// Whether a tiny fragment may go before the module's next turn.
    #[inline]
    pub(super) fn may_send_at_once(&self, core: &Core, now: u64) -> bool {
        self.state == State::Open
            && self.queue.is_empty()
            && self.credits.has()
            && self.window.is_open()
            && self.has_congestion_room()
            && self.congestion.send_time().is_none_or(|time| time <= now)
            && core.channel(ChannelId::Priority).has_room()
    }

    /// Takes a segment and copies head and payload of a fragment into it.
    pub(super) fn new_frag(
        &mut self,
        core: &mut Core,
        head: &Head,
        parts: [&[u8]; 2],
        is_tiny: bool,
    ) -> SegId {
        let len = parts[0].len() + parts[1].len();
        let id = core.segments.alloc(if is_tiny { Size::Priority } else { Size::Data }, self.index);
        let segment = &mut core.segments[id];
        write_header(&mut segment.buf, &blank_header(kind::FRAG, len));
        let body = &mut segment.buf[HEADER..FRAG_HEADER + len];
        let (to_head, body) = body.split_at_mut(head.len());
        to_head.copy_from_slice(head);
        let (one, two) = body.split_at_mut(parts[0].len());
        one.copy_from_slice(parts[0]);
        two.copy_from_slice(parts[1]);
        segment.len = (FRAG_HEADER + len) as u32;
        id
    }

    /// Takes the acknowledgement along: *"Any pending ACKs will be picked up and piggy-backed on these
    /// sends"* (Sending). Where segments are missing and the peer understands a selective one, that one is
    /// still sent. Returns the flags.
    fn take_ack(&mut self, core: &mut Core) -> u8 {
        if self.acks.need == AckUrgency::None || (self.sack && self.recv.has_holes()) {
            return 0;
        }
        core.stats.acks_piggybacked += 1;
        self.end_ack(core)
    }

    /// Ends the need of an acknowledgement, which is being sent. Returns its flags.
    pub(super) fn end_ack(&mut self, core: &mut Core) -> u8 {
        self.acks.need = AckUrgency::None;
        self.stop_timer(core, Timer::Ack);
        let repeated = std::mem::take(&mut self.acks.repeated);
        flag::ACK_DUE | if repeated { flag::REPEATED } else { 0 }
    }

    /// Count of segments that the peer has sent again for nothing, if it takes it.
    pub(super) fn spurious_to_report(&self) -> u16 {
        if self.reports_spurious { self.acks.spurious } else { 0 }
    }

    /// Writes connection, number and acknowledgement into the header of a segment.
    fn stamp(&mut self, core: &mut Core, id: SegId, (seq, flow): (Seq, u8), flags: u8) {
        let flags = self.take_ack(core) | flags;
        let spurious = self.spurious_to_report();
        let ack = self.recv.last_in_order();
        if let Ok((header, _)) = Header::mut_from_prefix(&mut core.segments[id].buf) {
            let kept = if header.kind == kind::CHUNK { flag::ABORT | flag::PADDING } else { 0 };
            header.flags = header.flags & kept | flags;
            header.words_or_flow = flow;
            header.dst.set(self.remote);
            header.src.set(self.id.0);
            header.seq.set(seq.0);
            header.ack.set(ack.0);
            header.spurious.set(spurious);
        }
    }

    /// *"It assigns a sequence number to a segment, checks for an ACK to piggy-back, posts the segment to the
    /// NIC, and then starts the retransmit timer by checking the segment into hotel. Send credits are
    /// consumed here"* (`opal_btl_usnic_endpoint_send_segment()`).
    pub(super) fn send_segment(
        &mut self,
        core: &mut Core,
        now: u64,
        id: SegId,
        channel: ChannelId,
        inline: bool,
    ) -> Posted {
        let seq = self.window.push(id);
        let flow = self.flow(channel, seq);
        self.stamp(core, id, (seq, flow), self.mark(channel));
        core.segments[id].seq = seq;
        self.check_in(core, now, id, channel);
        self.credits.consume();
        self.congestion.on_sent(now, self.rtt.smoothed());
        core.stats.sent += 1;
        Posted { inline, ..core.post(self.id, id, channel, flow, true) }
    }

    /// Flag of a datagram of that channel.
    #[inline]
    pub(super) fn mark(&self, channel: ChannelId) -> u8 {
        if self.takes_marks && channel == ChannelId::Priority { flag::PRIORITY } else { 0 }
    }

    /// Flow of a segment: those of the data channel are spread, some that follow each other together.
    fn flow(&self, channel: ChannelId, seq: Seq) -> u8 {
        match channel {
            ChannelId::Priority => 0,
            ChannelId::Data => (seq.0 / FLOW_RUN % u32::from(self.flows)) as u8,
        }
    }

    /// Checks a segment that is being sent into the hotel.
    pub(super) fn check_in(&mut self, core: &mut Core, now: u64, id: SegId, channel: ChannelId) {
        let tries = core.segments[id].tries + 1;
        let due = now + self.rtt.timeout(&core.config, core.segments[id].timeouts);
        let room = core.hotel.check_in(due, Guest::Segment(id));
        let segment = &mut core.segments[id];
        (segment.tries, segment.sent, segment.room) = (tries, now, room);
        if tries == 1 {
            segment.first_sent = now;
        }
        (segment.channel, segment.place) = (channel, self.order.on_sent(channel));
        segment.state = SegState::InHotel;
        self.in_hotel.push(&mut core.segments, id);
    }

    /// Next segment to send again, if any still is.
    pub(super) fn next_lost(&mut self, core: &Core) -> Option<SegId> {
        loop {
            let Lost { id, uses, .. } = self.lost.pop()?;
            let segment = &core.segments[id];
            if segment.uses == uses && segment.state == SegState::ReSend {
                return Some(id);
            }
        }
    }

    /// Sends a segment again, *"always using the data channel"* (Sending), and over another flow.
    pub(super) fn resend_segment(&mut self, core: &mut Core, now: u64, id: SegId) -> Posted {
        let (seq, tries) = (core.segments[id].seq, core.segments[id].tries);
        self.count_resent(core, id);
        let flow = self.flow(ChannelId::Data, seq.add(tries * FLOW_RUN));
        self.stamp(core, id, (seq, flow), flag::AGAIN);
        self.check_in(core, now, id, ChannelId::Data);
        core.post(self.id, id, ChannelId::Data, flow, false)
    }

    /// Counts a segment that is sent again.
    pub(super) fn count_resent(&mut self, core: &mut Core, id: SegId) {
        match core.segments[id].lost_by {
            Cause::Timer => core.stats.resent_by_timer += 1,
            Cause::DuplicateAck => core.stats.resent_by_duplicate_ack += 1,
            Cause::Time => core.stats.resent_by_time += 1,
        }
        self.rack.on_resent();
        self.congestion.on_resent();
    }

    /// Queues an acknowledgement that arrivals have made necessary.
    pub(super) fn need_ack(&mut self, core: &mut Core, now: u64, need: Option<AckUrgency>) {
        match need {
            Some(AckUrgency::Scheduled) => {
                let due = now + core.config.ack_delay;
                self.set_timer(core, Timer::Ack, due);
            }
            Some(AckUrgency::Now) => {
                self.stop_timer(core, Timer::Ack);
                if !self.in_acks_due {
                    self.in_acks_due = true;
                    core.acks_due.push_back(self.index);
                }
            }
            Some(AckUrgency::None) | None => {}
        }
    }
}
