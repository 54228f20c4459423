//! Which protocol an operation takes: a pure function of operation, size, memory, wire, peer and configuration, worked out once
//! into small tables. Used by `api` on every operation and printed by tools. Never touches a transport.
//!
//! `rules` and `rma` say what is legal, and what a user wants; `cost` what it costs; `table` takes the cheapest.

pub mod atomic;
pub mod cost;
pub mod explain;
pub mod explain_rma;
pub mod key;
pub mod rivals;
pub mod rma;
pub mod rules;
pub mod spread;
pub mod table;
#[cfg(test)]
mod tests;

pub use crate::rdm::features::ReqHdr;
pub use crate::rdm::protocol::{Kind, Protocol, Sync};
pub use atomic::{AtomicVerdict, explain_atomic};
pub use cost::{Costs, Line, Place};
pub use explain::{Candidate, Verdict, explain};
pub use explain_rma::{Known, RmaCandidate, RmaKey, RmaVerdict, RmaWay, RmaWays, explain_rma};
pub use key::{CqData, Key, MemKind, PeerCaps, Reads, Takes, WireCaps};
pub use rma::{ByDevice, Mover, RmaOp, RmaTables, RmaWire};
pub use rules::Thresholds;
pub use spread::{Bound, Spread};
pub use table::{Range, Table};
