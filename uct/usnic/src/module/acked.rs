//! Acknowledgements and losses. *"duplicate ACK triggers immediate retrans if one is not pending for that
//! segment"*, *"old ACKs are simply ignored"* (Reliability, Reordering).

use super::core::{Core, Timer};
use super::endpoint::Endpoint;
use super::peers::MIN_MTU;
use crate::channel::ChannelId;
use crate::congestion::Loss;
use crate::header::{Header, flag};
use crate::resend::Lost;
use crate::segment::{Cause, SegId, SegState};
use crate::send_window::AckRange;
use crate::seq::Seq;

const CHANNELS: [ChannelId; 2] = [ChannelId::Priority, ChannelId::Data];

/// Segments that one acknowledgement frees.
#[derive(Default)]
struct Freed {
    segments: u32,
    /// Send time of the newest one that was sent once.
    newest: Option<u64>,
    /// Whether one was sent again: by Karn's rule the round trip is not known.
    resent: bool,
}

impl Endpoint {
    /// Takes the acknowledgement of a datagram, with the words of the selective one. Returns `false` if the
    /// peer acknowledges what was never sent.
    pub(super) fn on_ack(&mut self, core: &mut Core, now: u64, header: &Header, sack: &[u8]) -> bool {
        let ack = Seq(header.ack.get());
        let in_flight = self.in_hotel.len();
        let mut freed = Freed::default();
        let range = self.window.judge(ack);
        match range {
            AckRange::Unsent => {
                core.stats.violations += 1;
                return false;
            }
            AckRange::Old => {
                core.stats.acks_old += 1;
                return true;
            }
            AckRange::New | AckRange::Same => {}
        }
        // The number behind the last in order has not arrived.
        if self.sack && sack.first().is_some_and(|bits| bits & 1 != 0) {
            core.stats.violations += 1;
            return false;
        }
        while let Some(id) = self.window.pop_up_to(ack) {
            self.free(core, now, id, &mut freed);
        }
        if freed.resent {
            freed.newest = None;
        }
        if self.sack && !sack.is_empty() {
            self.on_selective(core, now, ack, sack, &mut freed);
        }
        if self.sack && header.flags & flag::REPEATED != 0 {
            self.rack.on_repeated();
        }
        if let Some(rtt) = freed.newest.and_then(|sent| now.checked_sub(sent)) {
            self.rtt.sample(rtt, now, &core.config);
            core.stats.count_rtt(rtt);
        }
        if freed.segments != 0 {
            self.congestion.on_acked(freed.segments, in_flight, self.window.first());
        }
        self.on_spurious(core, header.spurious.get());
        let due = header.flags & flag::ACK_DUE != 0;
        if self.sack {
            self.detect_losses(core, now);
        } else if range == AckRange::Same && due && !self.window.is_empty() {
            self.on_duplicate(core, now);
        }
        self.unpark(core);
        self.make_ready(core);
        true
    }

    fn on_selective(&mut self, core: &mut Core, now: u64, ack: Seq, sack: &[u8], freed: &mut Freed) {
        let mut of_sack = Freed::default();
        for (n, word) in sack.as_chunks::<8>().0.iter().enumerate() {
            let mut word = u64::from_le_bytes(*word);
            while word != 0 {
                let bit = word.trailing_zeros();
                word &= word - 1;
                if let Some(id) = self.window.take(ack.add(1 + 64 * n as u32 + bit)) {
                    self.free(core, now, id, &mut of_sack);
                }
            }
        }
        freed.segments += of_sack.segments;
        freed.newest = freed.newest.max(of_sack.newest);
    }

    /// Frees an acknowledged segment.
    fn free(&mut self, core: &mut Core, now: u64, id: SegId, freed: &mut Freed) {
        let segment = &mut core.segments[id];
        let (sent, again) = (segment.sent, segment.tries > 1);
        let (channel, place) = (segment.channel, segment.place);
        if self.path.confirms(segment.len, sent) {
            self.path.confirm();
        }
        freed.segments += 1;
        freed.resent |= again;
        if !again {
            freed.newest = freed.newest.max(Some(sent));
            self.order.on_arrived(channel, place);
        }
        if segment.state == SegState::InHotel {
            core.hotel.check_out(&mut segment.room);
            self.in_hotel.remove(&mut core.segments, id);
        }
        self.rack.on_delivered(now, sent, again, self.rtt.min());
        core.release(id);
    }

    /// Length of the oldest segment, if it was sent so often that the path must drop what is as long.
    pub(super) fn undelivered(&self, core: &Core, now: u64) -> Option<u32> {
        let segment = &core.segments[self.window.get(self.window.first())?];
        let config = &core.config;
        let is_late =
            now.saturating_sub(segment.first_sent) >= config.keepalive * u64::from(config.probes + 2);
        // A search ends it otherwise, also if the clock jumps meanwhile. It does not end a segment that is
        // lost while others of its length arrive.
        let is_searched =
            self.takes_pieces && !self.path.was_unanswered() && segment.tries <= 32 * config.resends;
        // One that any network carries is lost by chance.
        (is_late && !is_searched && segment.tries > config.resends && segment.len > MIN_MTU)
            .then_some(segment.len)
    }

    /// Takes the peer's count of segments that were sent again for nothing. If all of a recovery were,
    /// nothing was lost: the peer, or this side, was not scheduled for a while. Then the window is as before.
    fn on_spurious(&mut self, core: &mut Core, count: u16) {
        let more = count.wrapping_sub(self.spurious);
        if more == 0 || more > i16::MAX as u16 {
            return;
        }
        self.spurious = count;
        core.stats.resent_spuriously += u64::from(more);
        if self.congestion.on_spurious(more.into()) {
            core.stats.window_restored += 1;
            if self.shrunk_by == Cause::Timer {
                self.rtt.on_spurious();
            }
        }
    }

    fn on_duplicate(&mut self, core: &mut Core, now: u64) {
        core.stats.acks_duplicate += 1;
        let Some(id) = self.window.get(self.window.first()) else { return };
        let segment = &core.segments[id];
        // What was sent less than a round trip ago cannot be meant.
        if segment.state == SegState::InHotel && now.saturating_sub(segment.sent) >= self.rtt.min() {
            self.mark_lost(core, now, id, Cause::DuplicateAck);
        }
    }

    /// Holds for lost what the rules say: with one flow the order of a channel, always time.
    pub(super) fn detect_losses(&mut self, core: &mut Core, now: u64) {
        // Where the network has reordered lately, only time tells.
        if self.flows == 1 && !self.rack.was_wrong() {
            self.detect_losses_by_order(core, now);
        }
        // The retransmit timer would be faster than a wider one.
        let most = self.rtt.smoothed().unwrap_or(0).max(core.config.min_rto * 2 / 3);
        let window = self.rack.window(self.rtt.min(), core.config.ack_delay, most);
        let of_channels = CHANNELS.map(|channel| self.detect_losses_by_rack(core, now, channel, window));
        self.stop_timer(core, Timer::Reorder);
        if let Some(time) = of_channels.into_iter().flatten().min() {
            self.set_timer(core, Timer::Reorder, time);
        }
    }

    /// Holds for lost what others have overtaken that were sent later on the same channel.
    fn detect_losses_by_order(&mut self, core: &mut Core, now: u64) {
        let mut lost = 0;
        for channel in CHANNELS {
            while let Some(id) = self.in_hotel.oldest(channel)
                && self.order.is_overtaken(channel, core.segments[id].place)
                && self.mark_lost(core, now, id, Cause::DuplicateAck)
            {
                lost += 1;
            }
        }
        core.stats.acks_duplicate += u64::from(lost != 0);
    }

    /// Holds for lost what RACK's rule says of a channel. Returns when it will say more.
    fn detect_losses_by_rack(
        &mut self,
        core: &mut Core,
        now: u64,
        channel: ChannelId,
        window: u64,
    ) -> Option<u64> {
        while let Some(id) = self.in_hotel.oldest(channel) {
            let time = self.rack.lost_at(core.segments[id].sent, window)?;
            if time > now {
                return Some(time);
            }
            if !self.mark_lost(core, now, id, Cause::Time) {
                break;
            }
        }
        None
    }

    /// Moves a segment from the hotel to the re-send list: *"Any time a segment is posted to the NIC for
    /// retransmit, it is checked out of the hotel"* (Reliability). One that the channel still holds is not
    /// lost; then the answer is `false`.
    pub(super) fn mark_lost(&mut self, core: &mut Core, now: u64, id: SegId, cause: Cause) -> bool {
        let segment = &mut core.segments[id];
        if segment.posted != 0 {
            return false;
        }
        core.hotel.check_out(&mut segment.room);
        (segment.state, segment.lost_by) = (SegState::ReSend, cause);
        segment.timeouts += u32::from(cause == Cause::Timer);
        let (seq, uses, again) = (segment.seq, segment.uses, segment.tries > 1);
        self.in_hotel.remove(&mut core.segments, id);
        self.lost.push(Lost { seq, id, uses });
        core.resend.push_back(self.index);
        self.suspect_black_hole(core, now, id);
        let (next, by_timer) = (self.window.next(), cause == Cause::Timer);
        let (rtt, min_rtt) = (self.rtt.smoothed().unwrap_or(core.config.initial_rto), self.rtt.min());
        if self.congestion.on_loss(Loss { seq, next, again, by_timer, now, rtt, min_rtt }) {
            core.stats.recoveries += 1;
            self.shrunk_by = cause;
            self.rack.on_recovery();
            if by_timer {
                self.rtt.back_off();
            }
        }
        true
    }

    /// Takes turns of the re-send list again for which the congestion window has room.
    pub(super) fn unpark(&mut self, core: &mut Core) {
        let room = self.congestion.window().saturating_sub(self.in_hotel.len()) as usize;
        let turns = self.lost.unpark(room);
        core.resend.extend(std::iter::repeat_n(self.index, turns));
    }

    /// Has the oldest lost segment sent without room in the congestion window.
    pub(super) fn bypass_window(&mut self, core: &mut Core) {
        let turns = self.lost.bypass_window();
        core.resend.extend(std::iter::repeat_n(self.index, turns));
    }
}
