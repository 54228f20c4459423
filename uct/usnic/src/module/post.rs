//! The order of sends. *"Send progression first posts any pending retransmissions, always using the data
//! channel"*, *"Next, progression loops sending segments to the endpoint at the top of the
//! `endpoints_with_sends` queue"*, *"Finally, any endpoints that still need ACKs whose timer has expired will
//! be sent explicit ACK packets"* (Sending).

use super::core::{Control, Core, Posted, Timer, blank_header, write_header};
use super::endpoint::Endpoint;
use super::{Module, Source};
use crate::ack::Need;
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
    /// The channel is full.
    Waits,
}

impl Module {
    /// Returns the next datagram to send; `None` if there is nothing to send now. Each one is to be sent, and
    /// then [completed](Self::completed), in any order.
    pub fn poll_send(&mut self, now: u64, source: &mut impl Source) -> Option<Posted> {
        self.finish_deferred();
        self.send_control()
            .or_else(|| self.send_resend(now))
            .or_else(|| self.send_ready(now, source))
            .or_else(|| self.send_ack())
    }

    fn send_control(&mut self) -> Option<Posted> {
        let Control { seg, ep, is_ping } = *self.core.control.front()?;
        // A long one does not fit the priority channel.
        let channel = if is_ping { ChannelId::Data } else { ChannelId::Priority };
        if !self.core.channel(channel).has_room() {
            return None;
        }
        self.core.control.pop_front();
        self.core.segments[seg].state = SegState::Posted;
        Some(Posted { is_ping, ..self.core.post(ep, seg, channel, 0, false) })
    }

    fn send_resend(&mut self, now: u64) -> Option<Posted> {
        while self.core.channel(ChannelId::Data).has_room() {
            let index = self.core.resend.pop_front()?;
            let Some(endpoint) = self.endpoints[index as usize].as_deref_mut() else { continue };
            if !endpoint.has_congestion_room() {
                endpoint.lost.park();
            } else if let Some(seg) = endpoint.next_lost(&self.core) {
                return Some(endpoint.resend_segment(&mut self.core, now, seg));
            }
        }
        None
    }

    fn send_ready(&mut self, now: u64, source: &mut impl Source) -> Option<Posted> {
        while let Some(index) = self.core.ready.first() {
            let turn = match self.endpoints[index as usize].as_deref_mut() {
                Some(endpoint) => endpoint.take_turn(&mut self.core, now, source),
                None => Turn::Leaves,
            };
            match turn {
                Turn::Sent(posted) => {
                    self.core.ready.on_sent(self.core.config.quantum);
                    return Some(posted);
                }
                Turn::Leaves => {
                    self.core.ready.pop();
                    if let Some(endpoint) = self.endpoints[index as usize].as_deref_mut() {
                        endpoint.in_ready = false;
                    }
                }
                Turn::Waits => return None,
            }
        }
        None
    }

    fn send_ack(&mut self) -> Option<Posted> {
        while self.core.channel(ChannelId::Priority).has_room() {
            let index = self.core.acks_due.pop_front()?;
            let Some(endpoint) = self.endpoints[index as usize].as_deref_mut() else { continue };
            endpoint.in_acks_due = false;
            if endpoint.acks.need == Need::Now {
                return Some(endpoint.send_ack(&mut self.core));
            }
        }
        None
    }
}

impl Endpoint {
    fn take_turn(&mut self, core: &mut Core, now: u64, source: &mut impl Source) -> Turn {
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
        match self.next_segment(core, source) {
            Some((seg, channel)) => Turn::Sent(self.send_segment(core, now, seg, channel, false)),
            None => Turn::Waits,
        }
    }

    /// Next segment, and its channel; `None` if the channel is full.
    fn next_segment(&mut self, core: &mut Core, source: &mut impl Source) -> Option<(SegId, ChannelId)> {
        let open = [ChannelId::Priority, ChannelId::Data].map(|channel| core.channel(channel).has_room());
        if let Some(seg) = self.queue.next_priority() {
            let channel = match open {
                [true, _] => ChannelId::Priority,
                [_, true] => ChannelId::Data,
                _ => return None,
            };
            self.queue.priority().pop_front();
            return Some((seg, channel));
        }
        if !open[1] {
            return None;
        }
        let seg = match *self.queue.next_data()? {
            Fragment::Small(seg) => {
                self.queue.data().pop_front();
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
        header.needless.set(self.needless_to_tell());
        let segment = &mut core.segments[seg];
        write_header(&mut segment.buf, &header);
        let to = segment.buf[HEADER..].chunks_exact_mut(8);
        to.zip(&words[..count]).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        segment.len = (HEADER + 8 * count) as u32;
        segment.state = SegState::Posted;
        core.post(self.id, seg, ChannelId::Priority, 0, false)
    }
}
