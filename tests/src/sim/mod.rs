//! Whole jobs in one thread: real workers on real interfaces on software devices of one in-process fabric, everything
//! that can differ drawn from one seed: order, delay, RNR, queue depths, what devices can do, refuse and announce, who is
//! progressed when, what is sent, received, written, read, computed, probed, cancelled and closed, and who dies.
//! Used by the binary `sim` and by `tests/sim.rs`.
//!
//! A run passes when every message was matched as the rules of [`ledger`] allow, every byte was right, nothing is
//! left and the number of steps was bounded. The same seed is the same run: its digest says so.

mod act;
mod amo;
mod brook;
pub mod coverage;
mod death;
mod forms;
mod inplace;
pub mod knobs;
pub mod ledger;
mod letters;
mod lists;
mod loans;
mod many;
mod node;
mod probe;
mod rma;
mod settle;
pub mod trace;
mod world;

pub use coverage::{Coverage, FAULTS};
pub use knobs::{Knobs, Limits, Scope};
pub use trace::{Trace, Voice};

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
    pub filled: u64,
    /// Receives of many cancelled.
    pub many_cancelled: u64,
    /// Sends withdrawn.
    pub withdrawn: u64,
    /// Receives that were too short.
    pub truncated: u64,
    /// Messages that came before their receive.
    pub unexpected: u64,
    /// Packets that came before their turn.
    pub out_of_order: u64,
    /// Sends that found a queue full.
    pub full: u64,
    /// Workers.
    pub workers: u64,
    /// Active messages sent.
    pub letters: u64,
    /// Bytes sent to streams.
    pub streamed: u64,
    /// One-sided operations started, atomics included.
    pub reached: u64,
    /// Atomics on slots among them.
    pub atomics: u64,
    /// Endpoints closed.
    pub closed: u64,
    /// Claimed messages that were discarded.
    pub discarded: u64,
    /// Messages that could not be read and were sent after all.
    pub nacked: u64,
    /// Operations that ended since a worker had died.
    pub bereaved: u64,
    /// Workers that died.
    pub died: u64,
    /// Pairs of workers that lost each other, dead ones not counted.
    pub severed: u64,
    /// Endpoints closed by force.
    pub forced: u64,
    /// Flushes and closes that took longer than they were given.
    pub timed_out: u64,
    /// Packets and writes that found no receive, as often as a device tried.
    pub not_ready: u64,
    /// Registrations refused.
    pub refused: u64,
    /// PEER_ERROR packets understood.
    pub told: u64,
    /// Puts and gets cancelled before they began.
    pub called_off: u64,
    /// Memory taken back while somebody used it.
    pub taken_back: u64,
    /// Sends of several pieces, or without a request.
    pub formed: u64,
    /// Receives into several pieces, of messages, active messages and streams.
    pub scattered: u64,
    /// Sends of active messages and to streams, and receives of either, that were cancelled.
    pub hushed: u64,
    /// Messages thrown away that nobody had asked for.
    pub unread: u64,
    /// Flushes and closes that nobody waited for any more.
    pub waits_ended: u64,
    /// Sends whose end nobody waited for.
    pub let_go: u64,
    /// Active messages that came when their handler had been taken away.
    pub unheard: u64,
    /// Bytes of streams taken in memory of the library's.
    pub scooped: u64,
    /// Messages that a device has put where a receive was, without a header.
    pub placed: u64,
    /// Those that came in packets, and were passed on so.
    pub passed_on: u64,
    /// Receives of zero-copy receive mode that were too short.
    pub cut_in_place: u64,
    /// Sends that a peer in that mode, or what was known of it, refused.
    pub unplaced: u64,
    /// Atomics on lists.
    pub lists: u64,
    /// NICs that went down.
    pub unplugged: u64,
    /// Transfers over several NICs.
    pub striped: u64,
    /// Packets of long messages, puts and gets that went over a further NIC.
    pub abreast: u64,
    /// Peers that went on over another NIC.
    pub moved: u64,
    /// Packets that came back and were sent over another NIC.
    pub sent_elsewhere: u64,
    /// Operations that ended since nobody could say whether they had arrived.
    pub unsure: u64,
    /// Operations refused since the memory had been taken back.
    pub denied: u64,
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
pub fn run(seed: u64, limits: Limits, voice: Voice) -> Result<Outcome, Failed> {
    world::World::new(seed, limits, voice)?.run()
}
