//! Search for what the path to a peer carries: see [`crate::path`].

use super::core::{Core, Timer};
use super::endpoint::{Endpoint, State};
use super::peers::MIN_MTU;
use super::{Module, Sink};
use crate::segment::{Cause, SegId, SegState};

/// Time from the first word of a peer that has asked for the connection to the first probe: mostly it has
/// told by then what has arrived.
const GRACE: u64 = 1_000_000;

impl Module {
    /// Probes the path again; or, when it was probed often enough, says what it carries.
    pub(super) fn on_path_timer(&mut self, now: u64, index: usize, sink: &mut impl Sink) {
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        let goal = endpoint.path.goal();
        if endpoint.path.proven() >= goal || endpoint.search_path(&mut self.core, now) {
            return;
        }
        if endpoint.path.is_black_hole_suspected() {
            let Some(carried) = endpoint.path.conclude() else { return };
            endpoint.shorten(&mut self.core, now, carried);
        }
        self.core.stats.short_paths += 1;
        sink.on_path(endpoint.id, endpoint.node, endpoint.mtu, goal);
    }
}

impl Endpoint {
    /// Takes an arrival from the peer. The first one proves its address, to which long probes may go.
    #[inline]
    pub(super) fn on_heard(&mut self, core: &mut Core, now: u64) {
        self.keepalive.on_heard();
        if self.path.is_to_begin() {
            self.set_timer(core, Timer::Path, now + GRACE);
        }
    }

    /// Takes the news that a datagram of this length has arrived.
    pub(super) fn on_path(&mut self, len: u32) {
        if self.path.on_arrived(len) && !self.path.is_black_hole_suspected() {
            self.mtu = self.path.proven().max(MIN_MTU).min(self.path.goal());
        }
    }

    /// Takes the news that a segment is lost: the path may have become short.
    #[cold]
    pub(super) fn suspect_black_hole(&mut self, core: &mut Core, now: u64, id: SegId) {
        let (len, lost) = (core.segments[id].len, core.segments[id].tries);
        if self.path.on_lost(now, len, lost, (self.mtu, MIN_MTU)) {
            self.search_path(core, now);
        }
    }

    /// Makes segments shorter from now on. Those on their way that are longer will not arrive: they are sent
    /// again, in pieces.
    #[cold]
    fn shorten(&mut self, core: &mut Core, now: u64, carried: u32) {
        self.mtu = carried.max(MIN_MTU).min(self.mtu);
        if !self.takes_pieces {
            return;
        }
        let mut seq = self.window.first();
        while seq != self.window.next() {
            if let Some(id) = self.window.get(seq)
                && core.segments[id].len > self.mtu
            {
                // As if it had been sent again once: what was lost in one piece tells nothing of the
                // pieces, and an acknowledgement may be of any copy.
                core.segments[id].tries = core.segments[id].tries.min(2);
                core.segments[id].timeouts = 0;
                if core.segments[id].state == SegState::InHotel {
                    self.mark_lost(core, now, id, Cause::Time);
                }
            }
            seq = seq.add(1);
        }
        self.unpark(core);
        self.make_ready(core);
    }

    /// Sends probes, if there is more to find. Returns `false` if the search is over.
    pub(super) fn search_path(&mut self, core: &mut Core, now: u64) -> bool {
        if self.state != State::Open || self.path.is_over() || !self.path_room.is_none() {
            return !self.path.is_over();
        }
        let Some((lengths, pause)) = self.path.next(core.config.hello_interval, MIN_MTU) else {
            return false;
        };
        core.stats.path_probes += 1;
        lengths.for_each(|len| self.queue_ping(core, len));
        self.set_timer(core, Timer::Path, now + pause);
        true
    }
}
