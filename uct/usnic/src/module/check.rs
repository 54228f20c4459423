//! The obligations, checked: for tests, which call it after each step.

use super::Module;
use super::core::Core;
use super::endpoint::{Endpoint, State};
use crate::resend::Lost;
use crate::segment::SegState;

impl Module {
    /// Segments in use, in words: for the report of a failed test.
    pub fn describe(&self) -> String {
        let mut out = String::new();
        for (id, segment) in self.core.segments.iter().filter(|(_, segment)| segment.state != SegState::Free)
        {
            let (kind, len, posted, tries) = (segment.buf.get(1), segment.len, segment.posted, segment.tries);
            out += &format!(
                "{id:?} of endpoint {}: {:?}, number {:?}, type {kind:?}, {len} bytes, posted {posted}, tries {tries}\n",
                segment.endpoint, segment.state, segment.seq
            );
        }
        out
    }

    /// Checks what must always hold: the window is within its limit, each segment that is not acknowledged
    /// has a running timer or is on the re-send list, and each endpoint that has something to send and is
    /// not ready has a timer running, or sends in the hands of a channel. Takes time with all of them.
    pub fn check(&self) -> Result<(), String> {
        let mut in_hotel = vec![0; self.endpoints.len()];
        for (id, segment) in self.core.segments.iter() {
            if segment.state == SegState::InHotel {
                in_hotel[segment.endpoint as usize] += 1;
            }
            let alive = self.endpoints.get(segment.endpoint as usize).and_then(Option::as_deref);
            let held = alive.and_then(|endpoint| endpoint.window.get(segment.seq)) == Some(id);
            let is_it = |lost: &Lost| lost.id == id && lost.uses == segment.uses;
            let good = match segment.state {
                SegState::Free | SegState::ToSend | SegState::Posted => segment.room.is_none(),
                SegState::InHotel => held && !segment.room.is_none(),
                SegState::ReSend => {
                    let listed = alive.is_some_and(|endpoint| endpoint.lost.iter().any(is_it));
                    held && segment.room.is_none() && listed
                }
            };
            if !good {
                return Err(format!("segment {id:?}, number {:?}, is {:?}", segment.seq, segment.state));
            }
        }
        let tiny: usize = self.endpoints.iter().flatten().map(|endpoint| endpoint.queue.tiny()).sum();
        if tiny != self.core.tiny_queued {
            return Err(format!(
                "{} tiny fragments are counted, and there are {tiny}",
                self.core.tiny_queued
            ));
        }
        for endpoint in self.endpoints.iter().flatten() {
            let (counted, there) = (endpoint.in_hotel.len(), in_hotel[endpoint.index as usize]);
            if counted != there {
                return Err(format!("{there} segments are in the hotel, and {counted} are counted"));
            }
            endpoint.check(&self.core)?;
        }
        Ok(())
    }
}

impl Endpoint {
    fn check(&self, core: &Core) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("endpoint {:?} to {}: {what}", self.id, self.node));
        if self.window.len() > self.window.limit() {
            return wrong("the send window is beyond its limit");
        }
        if !self.window.is_empty() && self.window.get(self.window.first()).is_none() {
            return wrong("the oldest number that is not acknowledged has no segment");
        }
        if self.state == State::Connecting {
            return if self.hello.is_none() { wrong("nobody repeats the request") } else { Ok(()) };
        }
        if self.awaits() && self.alive.is_none() {
            return wrong("nobody watches the peer");
        }
        let is_lost = |lost: &&Lost| {
            let segment = &core.segments[lost.id];
            segment.uses == lost.uses && segment.state == SegState::ReSend
        };
        let (lost, listed) = (self.lost.iter().filter(is_lost).count(), core.resend.contains(&self.index));
        if lost > 0 && !listed && (self.lost.parked() == 0 || self.in_hotel.len() == 0) {
            return wrong("lost segments are not on the re-send list");
        }
        let stalled = !self.queue.is_empty() && !self.in_ready;
        let waits = !self.pace.is_none() || !self.window.is_empty() || self.credits.used() > 0;
        if stalled && !waits { wrong("stalled without a timer") } else { Ok(()) }
    }
}
