//! The order of sends. *"Send progression first posts any pending retransmissions, always using the data
//! channel"*, *"Next, progression loops sending segments to the endpoint at the top of the
//! `endpoints_with_sends` queue"*, *"Finally, any endpoints that still need ACKs whose timer has expired will
//! be sent explicit ACK packets"* (Sending).

use super::core::{Control, Core, Open, Posted, Timer, blank_header, write_header};
use super::endpoint::Endpoint;
use super::{Module, Source};
use crate::ack::AckUrgency;
use crate::channel::ChannelId;
use crate::fragment::{Fragment, LargeFrag};
use crate::header::{
    CHUNK_HEADER, ChunkHeader, HEADER, MAX_PADDING, MAX_SACK_WORDS, flag, kind, padding_flags,
};
use crate::segment::{SegId, SegState, Size};
use zerocopy::IntoBytes;

/// Outcome of an endpoint's turn.
enum Turn {
    Sent(Posted),
    /// *"exhausts its send credits or fills its send window or runs out of segments to send"* (Sending).
    Leaves,
    /// No channel takes what it has.
    Waits,
}

impl Module {
    /// Returns the next datagram to send; `None` if there is nothing to send now. Each one is to be sent, and
    /// then [completed](Self::completed), in any order.
    pub fn poll_send(&mut self, now: u64, source: &mut impl Source) -> Option<Posted> {
        self.poll_send_on(now, [true; 2], source)
    }

    /// Returns the next datagram to send of a channel that is `open`, by [`ChannelId`]: the others take
    /// nothing now. So *"ACKs and tiny fragments"* (Channels) do not wait for the data channel. The rest is
    /// as for [`poll_send`](Self::poll_send).
    pub fn poll_send_on(&mut self, now: u64, open: [bool; 2], source: &mut impl Source) -> Option<Posted> {
        self.finish_deferred();
        self.send_control(open)
            .or_else(|| self.send_resend(now, open))
            .or_else(|| self.send_ready(now, open, source))
            .or_else(|| self.send_ack(open))
    }

    fn send_control(&mut self, open: Open) -> Option<Posted> {
        let mut all = [ChannelId::Priority, ChannelId::Data].into_iter();
        let is_next = |channel: &ChannelId| {
            !self.core.control[*channel as usize].is_empty() && self.core.takes(open, *channel)
        };
        let channel = all.find(is_next)?;
        let Control { seg, ep, is_ping } = self.core.control[channel as usize].pop_front()?;
        self.core.segments[seg].state = SegState::Posted;
        Some(Posted { is_ping, ..self.core.post(ep, seg, channel, 0, false) })
    }

    fn send_resend(&mut self, now: u64, open: Open) -> Option<Posted> {
        while self.core.takes(open, ChannelId::Data) {
            let index = self.core.resend.pop_front()?;
            let Some(endpoint) = self.endpoints[index as usize].as_deref_mut() else { continue };
            if !endpoint.lost.take_bypass() && !endpoint.has_congestion_room() {
                endpoint.lost.park();
            } else if let Some(seg) = endpoint.next_lost(&self.core) {
                if endpoint.needs_pieces(&self.core, seg) {
                    endpoint.resend_in_pieces(&mut self.core, now, seg);
                    return self.send_control(open);
                }
                return Some(endpoint.resend_segment(&mut self.core, now, seg));
            }
        }
        None
    }

    /// Sends a segment of the first endpoint that has one for a channel that takes it.
    fn send_ready(&mut self, now: u64, open: Open, source: &mut impl Source) -> Option<Posted> {
        let mut at = 0;
        while let Some(index) = self.core.ready.get(at) {
            let turn = match self.endpoints[index as usize].as_deref_mut() {
                Some(endpoint) => endpoint.take_turn(&mut self.core, now, open, source),
                None => Turn::Leaves,
            };
            match turn {
                Turn::Sent(posted) => {
                    // What goes before its turn does not use it up.
                    if at == 0 {
                        self.core.ready.on_sent(self.core.config.quantum);
                    }
                    return Some(posted);
                }
                Turn::Leaves => {
                    self.core.ready.remove_at(at);
                    if let Some(endpoint) = self.endpoints[index as usize].as_deref_mut() {
                        endpoint.in_ready = false;
                    }
                }
                Turn::Waits if self.may_send_another(open) => at += 1,
                Turn::Waits => return None,
            }
        }
        None
    }

    /// Whether another endpoint may have a segment to send, where one has none for the open channels.
    fn may_send_another(&self, open: Open) -> bool {
        let takes = [ChannelId::Priority, ChannelId::Data].map(|channel| self.core.takes(open, channel));
        match takes {
            [true, false] => self.core.tiny_queued != 0,
            [of_priority, of_data] => of_data && !of_priority,
        }
    }

    fn send_ack(&mut self, open: Open) -> Option<Posted> {
        while self.core.takes(open, ChannelId::Priority) {
            let index = self.core.acks_due.pop_front()?;
            let Some(endpoint) = self.endpoints[index as usize].as_deref_mut() else { continue };
            endpoint.in_acks_due = false;
            if endpoint.acks.need == AckUrgency::Now {
                return Some(endpoint.send_ack(&mut self.core));
            }
        }
        None
    }
}

impl Endpoint {
    fn take_turn(&mut self, core: &mut Core, now: u64, open: Open, source: &mut impl Source) -> Turn {
        if self.queue.is_empty() {
            return Turn::Leaves;
        }
        if !self.credits.has() {
            core.stats.credit_stalls += 1;
            return Turn::Leaves;
        }
        if !self.window.is_open() {
            core.stats.window_stalls += 1;
            return Turn::Leaves;
        }
        if !self.has_congestion_room() {
            core.stats.congestion_stalls += 1;
            return Turn::Leaves;
        }
        if self.congestion.send_time().is_some_and(|time| time > now) {
            core.stats.pace_stalls += 1;
            let time = self.congestion.hold(self.rtt.smoothed());
            self.set_timer(core, Timer::Pace, time);
            return Turn::Leaves;
        }
        match self.next_segment(core, open, source) {
            Some((seg, channel)) => Turn::Sent(self.send_segment(core, now, seg, channel, false)),
            None => Turn::Waits,
        }
    }

    /// Next segment, and its channel; `None` if no channel takes one that there is.
    fn next_segment(
        &mut self,
        core: &mut Core,
        open: Open,
        source: &mut impl Source,
    ) -> Option<(SegId, ChannelId)> {
        let [to_priority, to_data] =
            [ChannelId::Priority, ChannelId::Data].map(|channel| core.takes(open, channel));
        if let Some(seg) = self.queue.next_priority() {
            // One that finds all entries of its channel in use takes the other one.
            let channel = match core.channel(ChannelId::Priority).has_room() {
                true if to_priority => Some(ChannelId::Priority),
                false if to_data => Some(ChannelId::Data),
                _ => None,
            };
            if let Some(channel) = channel {
                self.queue.priority().pop_front();
                core.tiny_queued -= 1;
                self.queue.replies -= u32::from(core.segments[seg].is_reply);
                return Some((seg, channel));
            }
        }
        if !to_data {
            return None;
        }
        let seg = match *self.queue.next_data()? {
            Fragment::Small(seg) => {
                self.queue.data().pop_front();
                self.queue.replies -= u32::from(core.segments[seg].is_reply);
                seg
            }
            Fragment::Large(frag) => self.next_chunk(core, source, frag),
        };
        Some((seg, ChannelId::Data))
    }

    /// *"A segment gets allocated, next blob of data is copied into this segment"* (Fragment sending). The
    /// blobs of a fragment have one length, with a few zeros behind the last one: a shorter datagram ends the
    /// run that the kernel takes as one.
    fn next_chunk(&mut self, core: &mut Core, source: &mut impl Source, mut frag: LargeFrag) -> SegId {
        let number = frag.id.unwrap_or_else(|| self.queue.new_id());
        frag.id = Some(number);
        let most = self.mtu - CHUNK_HEADER as u32;
        let step = frag.total.div_ceil(frag.total.div_ceil(most).max(1));
        let len = step.min(frag.total - frag.offset);
        let seg = core.segments.alloc(Size::Data, self.index);
        let segment = &mut core.segments[seg];
        let payload = &mut segment.buf[CHUNK_HEADER..CHUNK_HEADER + len as usize];
        let is_there = source.fetch(frag.token, frag.offset, payload);
        let (len, padding) = match is_there {
            true if self.takes_padding && step - len <= MAX_PADDING => (len, step - len),
            true => (len, 0),
            false => (0, 0),
        };
        let mut header = blank_header(kind::CHUNK, len as usize);
        header.flags = if is_there { padding_flags(padding) } else { flag::ABORT };
        write_header(&mut segment.buf, &header);
        segment.buf[CHUNK_HEADER + len as usize..][..padding as usize].fill(0);
        let chunk = ChunkHeader { frag: number.into(), total: frag.total.into(), offset: frag.offset.into() };
        let (to_chunk, to_head) = segment.buf[HEADER..CHUNK_HEADER].split_at_mut(size_of::<ChunkHeader>());
        to_chunk.copy_from_slice(chunk.as_bytes());
        to_head.copy_from_slice(&frag.head);
        segment.len = CHUNK_HEADER as u32 + len + padding;
        frag.offset += len;
        if !is_there || frag.offset == frag.total {
            self.queue.data().pop_front();
            source.on_copied(frag.token);
        } else if let Some(front) = self.queue.data().front_mut() {
            *front = Fragment::Large(frag);
        }
        seg
    }

    /// Sends an explicit acknowledgement, with the selective one if the peer understands it.
    fn send_ack(&mut self, core: &mut Core) -> Posted {
        let seg = core.segments.alloc(Size::Ack, self.index);
        let mut words = [0u64; MAX_SACK_WORDS];
        let count = if self.sack { self.recv.selective(&mut words) } else { 0 };
        let mut header = blank_header(kind::ACK, 0);
        header.words_or_flow = count as u8;
        header.flags = self.end_ack(core) | self.mark(ChannelId::Priority);
        header.dst.set(self.remote);
        header.src.set(self.id.0);
        header.seq.set(self.window.next().0);
        header.ack.set(self.recv.last_in_order().0);
        header.spurious.set(self.spurious_to_report());
        let segment = &mut core.segments[seg];
        write_header(&mut segment.buf, &header);
        let to = segment.buf[HEADER..].chunks_exact_mut(8);
        to.zip(&words[..count]).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        segment.len = (HEADER + 8 * count) as u32;
        segment.state = SegState::Posted;
        core.post(self.id, seg, ChannelId::Priority, 0, false)
    }
}
