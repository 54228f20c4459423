//! Periodic work of a worker. Few calls of progress read the clock.

use ucs::time::{Clock as _, Nanos};

use crate::api::core::flushes::Flush;
use crate::api::core::notes::send_unsent_notes;
use crate::api::core::sink::CompletionSink;
use crate::api::core::worker_core::{CLOCK_EVERY, WorkerCore};
use crate::lane::{Bound, IfaceIdx};
use crate::rdm::{has_unknown_peers, remove_unknown_peers};

/// As [`CLOCK_EVERY`], of a worker with an RMA-only lane, which is polled then. Peers offer parts of long
/// copies there: a part waits about a microsecond, of copies that take 10 or more.
const RMA_ONLY_EVERY: u32 = 64;

impl WorkerCore {
    /// Reads the clock if it is due, and then does the periodic work: exchanges of addresses, memory of past
    /// bursts, unknown peers, statistics, handshakes and keepalive. Returns the time of the last reading,
    /// which is exact only while the engine has a deadline.
    ///
    /// # Panics
    /// In a forked child.
    #[inline]
    pub(super) fn run_timers(&mut self) -> Nanos {
        if self.calls_to_clock == 0 || self.engine.pending().needs_time() {
            self.now = self.clock.now();
            if self.calls_to_clock == 0 {
                self.calls_to_clock = if self.rma_only.is_some() { RMA_ONLY_EVERY } else { CLOCK_EVERY };
                refuse_forked_child(self.forks);
                self.cm.poll(self.now);
                if !self.unsent_notes.is_empty() {
                    send_unsent_notes(self);
                }
                self.engine.receives().trim();
                if has_unknown_peers(self.engine.peers()) {
                    remove_absent(self);
                }
            }
            if let Some(dump) = self.stats_dump.as_ref().filter(|dump| dump.is_signalled()) {
                dump.write(&self.report());
            }
            if self.keepalive.is_due(self.now) {
                self.request_handshakes(self.now);
                self.check_due_peers(self.now);
            }
        }
        self.now
    }

    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Makes the next progress look at the clock and the exchanges of addresses.
    pub(crate) fn on_wakeup(&mut self) {
        self.calls_to_clock = 1;
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let closes = self.flushes.iter().map(Flush::deadline).filter(|at| *at != Nanos::NEVER);
        let check = self.keepalive.next_check().filter(|_| self.peer_eps.slots() > 0);
        let request = self.engine.awaited_handshakes().next().map(|_| self.keepalive.next_request());
        closes
            .chain(self.engine.pending().next_deadline(self.engine.peers()))
            .chain(check)
            .chain(request)
            .chain(self.cm.next_deadline())
            .min()
    }
}

/// Panics in a child that has inherited a worker, whose memory and devices are its parent's. `forks` is their
/// number before the worker was made.
fn refuse_forked_child(forks: u32) {
    if ucs::sys::fork::generation() != forks {
        let me = std::process::id();
        panic!("process {me} uses the worker of the process that forked it: open one of its own");
    }
}

/// Removes senders that have introduced themselves and are not there.
#[cold]
fn remove_absent(core: &mut WorkerCore) {
    let mut wire: Bound<'_, CompletionSink<'_>> = Bound {
        ifaces: &core.ifaces,
        peer_eps: &mut core.peer_eps,
        regs: &mut core.regs,
        rma_only: core.rma_only.as_ref(),
        sink: None,
        receiving: IfaceIdx(0),
    };
    let streams = &core.streams;
    let reaped = remove_unknown_peers(&mut core.engine, &mut wire, core.now, |peer| streams.has(peer));
    for lane in reaped {
        core.peer_eps.forget_lane(lane);
        if let Some((peer, rma_only)) = lane.first_of().zip(core.rma_only.as_ref()) {
            rma_only.remove_peer(peer);
        }
    }
}
