//! Which protocol a message takes: a pure function of operation, size, wire, peer and configuration, worked out once
//! into a small table. Used by `api` on every send and printed by tools. Never touches a transport.

pub mod explain;
pub mod key;
pub mod rma;
pub mod rules;
pub mod spread;
pub mod table;

pub use crate::rdm::quirks::ReqHdr;
pub use crate::rdm::room::{Kind, Row, Sync};
pub use explain::{Candidate, Verdict, explain};
pub use key::{CqData, Key, MemKind, PeerCaps, Reads, WireCaps};
pub use rma::{
    AtomicVerdict, Known, RmaKey, RmaOp, RmaVerdict, RmaWay, RmaWays, explain_atomic, explain_rma, put_row,
};
pub use rules::Thresholds;
pub use spread::{Bound, Spread};
pub use table::{Range, Table};
