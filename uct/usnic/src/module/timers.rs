//! Guests that leave the hotel: *"packet will be scheduled for retrans if timer expires"* (Reliability).

use super::core::{Guest, Timer};
use super::endpoint::State;
use super::{CloseReason, EpId, Module, Sink};
use crate::ack::AckUrgency;
use crate::header::kind;
use crate::hotel::Room;
use crate::keepalive::Silence;
use crate::segment::{Cause, SegId, SegState};

impl Module {
    /// Does what has become due. Datagrams that wait are to be passed in before.
    pub fn on_time(&mut self, now: u64, sink: &mut impl Sink) {
        self.finish_deferred();
        while let Some(guest) = self.core.hotel.pop_due(now) {
            match guest {
                Guest::Segment(seg) => self.on_segment_timer(now, seg),
                Guest::Timer(index, timer) => self.on_timer(now, index as usize, timer, sink),
            }
        }
    }

    fn on_segment_timer(&mut self, now: u64, seg: SegId) {
        let segment = &mut self.core.segments[seg];
        segment.room = Room::NONE;
        let Some(endpoint) = self.endpoints[segment.endpoint as usize].as_deref_mut() else { return };
        if !endpoint.mark_lost(&mut self.core, now, seg, Cause::Timer) {
            // The channel has not sent it yet.
            let due = now + self.core.config.min_rto;
            self.core.segments[seg].room = self.core.hotel.check_in(due, Guest::Segment(seg));
        }
        endpoint.unpark(&mut self.core);
        endpoint.make_ready(&mut self.core);
    }

    /// Sends the oldest segment that a peer has not acknowledged again, whatever its timer and the congestion
    /// window say: for an owner that will not be there when the timer expires.
    pub fn resend_oldest(&mut self, now: u64, ep: EpId) {
        let Some(index) = self.index(ep) else { return };
        let Some(endpoint) = self.endpoints[index].as_deref() else { return };
        let Some(seg) = endpoint.window.get(endpoint.window.first()) else { return };
        if self.core.segments[seg].state == SegState::InHotel {
            self.core.hotel.check_out(&mut self.core.segments[seg].room);
            self.on_segment_timer(now, seg);
        }
        // Unless the channel still holds it.
        if self.core.segments[seg].state == SegState::ReSend
            && let Some(endpoint) = self.endpoints[index].as_deref_mut()
        {
            endpoint.bypass_window(&mut self.core);
        }
    }

    fn on_timer(&mut self, now: u64, index: usize, timer: Timer, sink: &mut impl Sink) {
        let core = &mut self.core;
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        *endpoint.room(timer) = Room::NONE;
        match timer {
            Timer::Ack => {
                core.stats.acks_delayed += 1;
                let need = endpoint.acks.raise(AckUrgency::Now);
                endpoint.need_ack(core, now, need);
            }
            Timer::Pace => endpoint.make_ready(core),
            Timer::Reorder => {
                endpoint.detect_losses(core, now);
                endpoint.unpark(core);
                endpoint.make_ready(core);
            }
            Timer::Keepalive => self.on_keepalive(now, index, sink),
            Timer::Hello => self.on_hello_timer(now, index, sink),
            Timer::Left => self.kill(index, CloseReason::Left, sink),
            Timer::Path => self.on_path_timer(now, index, sink),
        }
    }

    fn on_keepalive(&mut self, now: u64, index: usize, sink: &mut impl Sink) {
        let core = &mut self.core;
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        if !endpoint.awaits() {
            return;
        }
        if let Some(len) = endpoint.undelivered(core, now) {
            return self.kill(index, CloseReason::Undelivered { len }, sink);
        }
        match endpoint.keepalive.on_timer(&core.config) {
            Silence::None => {}
            Silence::Probe => {
                core.stats.probes += 1;
                endpoint.queue_control(core, kind::PROBE, &[]);
            }
            Silence::Dead => return self.kill(index, CloseReason::Unresponsive, sink),
        }
        let due = now + core.config.keepalive;
        endpoint.set_timer(core, Timer::Keepalive, due);
    }

    fn on_hello_timer(&mut self, now: u64, index: usize, sink: &mut impl Sink) {
        let core = &mut self.core;
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        if endpoint.state != State::Connecting {
            return;
        }
        if endpoint.hellos >= core.config.hellos {
            return self.kill(index, CloseReason::Unreachable, sink);
        }
        endpoint.send_hello(core, now);
    }
}
