//! Everything that endpoints share: pool, hotel, channels, re-send list, queue of those ready to send.

use super::EpId;
use crate::channel::{Channel, ChannelId};
use crate::config::Config;
use crate::header::{Header, VERSION, seal};
use crate::hotel::Hotel;
use crate::ready::ReadyQueue;
use crate::resend::ReSendList;
use crate::segment::{SegId, SegState, SegmentPool};
use crate::stats::Stats;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Tick of the hotel's wheel, ns.
const TICK: u64 = 8_192;
/// Slots of the wheel.
const SLOTS: usize = 4096;

/// Timers of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Timer {
    /// An acknowledgement is due.
    Ack,
    /// The next segment may be sent.
    Pace,
    /// A segment may be lost.
    Reorder,
    /// The peer is to be probed.
    Keepalive,
    /// The request to connect is to be repeated.
    Hello,
    /// The path is to be probed.
    Path,
    /// A peer that has said goodbye is gone, whatever is missing.
    Left,
}

/// Guests of the hotel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guest {
    /// A segment that waits for its acknowledgement.
    Segment(SegId),
    /// A timer of an endpoint, by index.
    Timer(u32, Timer),
}

/// A datagram to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a posted datagram is to be sent, and then completed"]
pub struct Posted {
    /// Peer that it goes to.
    pub ep: Option<EpId>,
    /// Channel that it takes.
    pub channel: ChannelId,
    /// Flow that it takes.
    pub flow: u8,
    /// Whether it is tiny and was sent within the call: the document's INLINE.
    pub inline: bool,
    /// Whether it tries what the path carries: routers must not cut it.
    pub is_ping: bool,
    pub(super) credited: bool,
    pub(super) seg: u32,
}

/// By channel: whether the owner takes datagrams of it now.
pub(super) type Open = [bool; 2];

/// A datagram without a number that waits to be sent.
#[derive(Clone, Copy)]
pub(super) struct Control {
    pub seg: SegId,
    pub ep: EpId,
    /// See [`Posted::is_ping`].
    pub is_ping: bool,
}

/// Everything that the endpoints of a module share.
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) segments: SegmentPool,
    pub(super) hotel: Hotel<Guest>,
    pub(super) resend: ReSendList,
    pub(super) ready: ReadyQueue,
    channels: [Channel; 2],
    /// Requests to connect, answers, probes, by the channel that they take.
    pub(super) control: [VecDeque<Control>; 2],
    /// Tiny fragments that wait in the queues of all endpoints.
    pub(super) tiny_queued: usize,
    /// Endpoints that owe an explicit acknowledgement now.
    pub(super) acks_due: VecDeque<u32>,
    pub(super) stats: Stats,
}

impl Core {
    pub(super) fn new(config: Config, now: u64) -> Core {
        Core {
            segments: SegmentPool::new(config.priority.mtu, config.data.mtu),
            hotel: Hotel::new(TICK, SLOTS, now),
            resend: ReSendList::new(),
            ready: ReadyQueue::default(),
            channels: [Channel::new(config.priority), Channel::new(config.data)],
            control: [VecDeque::new(), VecDeque::new()],
            tiny_queued: 0,
            acks_due: VecDeque::new(),
            stats: Stats::default(),
            config,
        }
    }

    #[inline]
    pub(super) fn channel(&self, channel: ChannelId) -> &Channel {
        &self.channels[channel as usize]
    }

    /// Whether a datagram may be posted on a channel, as far as its entries and the owner allow.
    #[inline]
    pub(super) fn takes(&self, open: Open, channel: ChannelId) -> bool {
        open[channel as usize] && self.channel(channel).has_room()
    }

    /// Posts a segment that is complete but for its checksum.
    #[inline]
    pub(super) fn post(
        &mut self,
        ep: EpId,
        seg: SegId,
        channel: ChannelId,
        flow: u8,
        credited: bool,
    ) -> Posted {
        let segment = &mut self.segments[seg];
        segment.posted += 1;
        seal(&mut segment.buf[..segment.len as usize]);
        self.channels[channel as usize].on_posted();
        Posted { ep: Some(ep), channel, flow, inline: false, is_ping: false, credited, seg: seg.0 }
    }

    pub(super) fn completed(&mut self, posted: &Posted) {
        self.channels[posted.channel as usize].on_completed();
        let id = SegId(posted.seg);
        let segment = &mut self.segments[id];
        segment.posted -= 1;
        if segment.posted == 0 && segment.state == SegState::Posted {
            self.segments.free(id);
        }
    }

    /// Frees a segment, now or when the channel has sent it.
    #[inline]
    pub(super) fn release(&mut self, id: SegId) {
        if self.segments[id].posted == 0 {
            self.segments.free(id);
        } else {
            self.segments[id].state = SegState::Posted;
        }
    }
}

/// Writes a header at the start of a segment's memory.
#[inline]
pub(super) fn write_header(buf: &mut [u8], header: &Header) {
    buf[..size_of::<Header>()].copy_from_slice(header.as_bytes());
}

/// Creates a header of which only the type and the length are set.
pub(super) fn blank_header(kind: u8, len: usize) -> Header {
    debug_assert!(u16::try_from(len).is_ok());
    Header {
        version: VERSION,
        kind,
        flags: 0,
        words_or_flow: 0,
        dst: 0.into(),
        src: 0.into(),
        seq: 0.into(),
        ack: 0.into(),
        len: (len as u16).into(),
        spurious: 0.into(),
        check: 0.into(),
    }
}
