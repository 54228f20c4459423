//! Whole jobs in one thread: real workers on real interfaces on software devices of one in-process fabric, everything
//! that can differ drawn from one seed: order, delay, RNR, queue depths, what devices can do, refuse and announce, who is
//! progressed when, what is sent, received, written, read, computed, probed, cancelled and closed, and who dies.
//! Used by the binary `sim` and by `tests/sim.rs`.
//!
//! A run passes when every message was matched as the rules of [`model`] allow, every byte was right, nothing is
//! left and the number of steps was bounded. The same seed is the same run: its digest says so.

mod active_messages;
mod atomic_lists;
mod atomics;
mod completions;
pub mod coverage;
mod forms;
mod job;
pub mod job_params;
pub mod model;
mod multi_recv;
mod peer_failure;
mod probe;
mod revoked_memory;
mod rma;
mod sim_worker;
mod step;
mod streams;
pub mod trace;
mod zcopy_recv;

pub use coverage::{Coverage, FAULTS};
pub use job_params::{JobParams, Limits, Scope};
pub use trace::{Trace, Verbosity};

/// What a run was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Of everything that happened, in order.
    pub digest: u64,
    /// Actions and rounds.
    pub steps: u64,
    /// Messages sent, and not withdrawn.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Receives cancelled.
    pub cancelled: u64,
    /// Receives of many filled.
    pub multi_recv_filled: u64,
    /// Receives of many cancelled.
    pub multi_recv_cancelled: u64,
    /// Sends withdrawn.
    pub withdrawn: u64,
    /// Receives that were too short.
    pub truncated: u64,
    /// Messages that came before their receive.
    pub unexpected: u64,
    /// Packets that came before their turn.
    pub out_of_order: u64,
    /// Sends that found a queue full.
    pub queue_full: u64,
    /// Workers.
    pub workers: u64,
    /// Active messages sent.
    pub ams: u64,
    /// Bytes sent to streams.
    pub streamed: u64,
    /// One-sided operations started, atomics included.
    pub rma_ops: u64,
    /// Atomics on slots among them.
    pub atomics: u64,
    /// Endpoints closed.
    pub closed: u64,
    /// Claimed messages that were discarded.
    pub discarded: u64,
    /// Messages that could not be read and were sent after all.
    pub nacked: u64,
    /// Operations that ended since a worker had died.
    pub peer_failed: u64,
    /// Workers that died.
    pub died: u64,
    /// Pairs of workers that lost each other, dead ones not counted.
    pub disconnected: u64,
    /// Endpoints closed by force.
    pub force_closed: u64,
    /// Flushes and closes that took longer than they were given.
    pub timed_out: u64,
    /// Packets and writes that found no receive, as often as a device tried.
    pub not_ready: u64,
    /// Registrations refused.
    pub registrations_refused: u64,
    /// PEER_ERROR packets understood.
    pub peer_errors: u64,
    /// Puts and gets cancelled before they began.
    pub rma_cancelled: u64,
    /// Memory taken back while somebody used it.
    pub revoked_in_use: u64,
    /// Sends of several pieces, or without a request.
    pub other_forms: u64,
    /// Receives into several pieces, of messages, active messages and streams.
    pub scattered: u64,
    /// Sends of active messages and to streams, and receives of either, that were cancelled.
    pub am_or_stream_cancelled: u64,
    /// Messages thrown away that nobody had asked for.
    pub discarded_unclaimed: u64,
    /// Flushes and closes that nobody waited for any more.
    pub flush_cancelled: u64,
    /// Sends whose end nobody waited for.
    pub detached: u64,
    /// Active messages that came when their handler had been taken away.
    pub unhandled_ams: u64,
    /// Bytes of streams taken in memory of the library's.
    pub stream_data: u64,
    /// Messages that a device has put where a receive was, without a header.
    pub zcopy_received: u64,
    /// Those that came in packets, and were passed on so.
    pub passed_on: u64,
    /// Receives of zero-copy receive mode that were too short.
    pub zcopy_truncated: u64,
    /// Sends that a peer in that mode, or what was known of it, refused.
    pub zcopy_rejected: u64,
    /// Atomics on lists.
    pub lists: u64,
    /// NICs that went down.
    pub nic_down: u64,
    /// Transfers over several NICs.
    pub striped: u64,
    /// Packets of long messages, puts and gets that went over a further NIC.
    pub cts_striped: u64,
    /// Peers that went on over another NIC.
    pub failed_over: u64,
    /// Packets that came back and were sent over another NIC.
    pub resent_on_other_nic: u64,
    /// Operations that ended since nobody could say whether they had arrived.
    pub uncertain: u64,
    /// Operations refused since the memory had been taken back.
    pub access_denied: u64,
    /// Packets received, by type.
    pub coverage: Coverage,
    /// Virtual time, ns.
    pub virtual_ns: u64,
}

/// A run that did not pass. Everything to repeat it is in the seed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, step {step}: {what}\n{state}")]
pub struct Failed {
    /// Names the run.
    pub seed: u64,
    /// Where in the run.
    pub step: u64,
    /// What is wrong.
    pub what: String,
    /// What every worker had at that moment.
    pub state: String,
}

/// Runs the job of `seed`.
pub fn run(seed: u64, limits: Limits, verbosity: Verbosity) -> Result<Outcome, Failed> {
    job::Job::new(seed, limits, verbosity)?.run()
}
