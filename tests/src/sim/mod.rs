//! Simulated jobs: real workers and interfaces on software devices of one in-process fabric, in one thread.
//! One seed draws everything: order, delay, RNR, queue depths, device features, operations, cancels, closes
//! and deaths. Used by the binary `sim` and by `tests/sim.rs`.
//!
//! A run passes when messages were matched as the rules of `model` allow, every byte was right, nothing is
//! left and the number of steps was bounded. The same seed gives the same run, as the digest shows.

mod active_messages;
mod atomic_lists;
mod atomics;
mod completions;
mod coverage;
mod forms;
mod job;
mod job_params;
mod model;
mod multi_recv;
mod peer_failure;
mod probe;
mod revoked_memory;
mod rma;
mod sim_worker;
mod step;
mod streams;
mod trace;
mod zcopy_recv;

pub use coverage::{Coverage, FAULTS};
pub use job_params::{Limits, Scope};
pub use trace::{Trace, Verbosity};

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Digest of all events in order.
    pub digest: u64,
    /// Steps and progress calls.
    pub steps: u64,
    /// Messages sent and not withdrawn.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Receives cancelled.
    pub cancelled: u64,
    /// Multi-receives filled.
    pub multi_recv_filled: u64,
    /// Multi-receives cancelled.
    pub multi_recv_cancelled: u64,
    /// Sends withdrawn.
    pub withdrawn: u64,
    /// Receives truncated.
    pub truncated: u64,
    /// Unexpected messages.
    pub unexpected: u64,
    /// Packets out of order.
    pub out_of_order: u64,
    /// Sends that found a full queue.
    pub queue_full: u64,
    /// Workers.
    pub workers: u64,
    /// Active messages sent.
    pub ams: u64,
    /// Bytes sent to streams.
    pub streamed: u64,
    /// One-sided operations started, atomics included.
    pub rma_ops: u64,
    /// Atomics on slots.
    pub atomics: u64,
    /// Endpoints closed.
    pub closed: u64,
    /// Claimed messages discarded.
    pub discarded: u64,
    /// Messages sent after a READ_NACK.
    pub nacked: u64,
    /// Operations ended by a peer's failure.
    pub peer_failed: u64,
    /// Workers that died.
    pub died: u64,
    /// Pairs of living workers that lost each other.
    pub disconnected: u64,
    /// Endpoints closed by force.
    pub force_closed: u64,
    /// Flushes and closes that timed out.
    pub timed_out: u64,
    /// Packets and writes returned as receiver not ready.
    pub not_ready: u64,
    /// Registrations refused.
    pub registrations_refused: u64,
    /// PEER_ERROR packets handled.
    pub peer_errors: u64,
    /// Puts and gets cancelled before they began.
    pub rma_cancelled: u64,
    /// Memory revoked while in use.
    pub revoked_in_use: u64,
    /// Sends of several pieces, or without a request.
    pub other_forms: u64,
    /// Receives into several pieces.
    pub scattered: u64,
    /// Active messages and stream operations cancelled.
    pub am_or_stream_cancelled: u64,
    /// Unclaimed messages discarded.
    pub discarded_unclaimed: u64,
    /// Flushes and closes cancelled.
    pub flush_cancelled: u64,
    /// Detached sends.
    pub detached: u64,
    /// Active messages that arrived without a handler.
    pub unhandled_ams: u64,
    /// Bytes of streams received in the library's memory.
    pub stream_data: u64,
    /// Messages received by a device without a copy.
    pub zcopy_received: u64,
    /// Messages of zero-copy receive mode that came in packets.
    pub passed_on: u64,
    /// Receives of zero-copy receive mode that were too short.
    pub zcopy_truncated: u64,
    /// Sends rejected by a peer in zero-copy receive mode.
    pub zcopy_rejected: u64,
    /// Atomics on lists.
    pub lists: u64,
    /// NICs that failed.
    pub nic_down: u64,
    /// Transfers over several NICs.
    pub striped: u64,
    /// CTSDATA packets sent over a further NIC.
    pub cts_striped: u64,
    /// Peers that failed over to another NIC.
    pub failed_over: u64,
    /// Packets resent over another NIC.
    pub resent_on_other_nic: u64,
    /// Operations that ended without knowing whether they arrived.
    pub uncertain: u64,
    /// Operations refused after memory was revoked.
    pub access_denied: u64,
    /// Workers that share a context with another one.
    pub of_one_context: u64,
    /// Workers that threads may share.
    pub shared: u64,
    /// Packets received, by type.
    pub coverage: Coverage,
    /// Virtual time, ns.
    pub virtual_ns: u64,
}

/// A failed run. The seed repeats it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, step {step}: {what}\n{state}")]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// The step at which it failed.
    pub step: u64,
    /// The violation.
    pub what: String,
    /// The state of all workers.
    pub state: String,
}

/// Runs the job of `seed`.
pub fn run(seed: u64, limits: Limits, verbosity: Verbosity) -> Result<Outcome, Failed> {
    job::Job::new(seed, limits, verbosity)?.run()
}
