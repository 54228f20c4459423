//! Protocol selection: a pure function of operation, size, memory, wire, peer and configuration, worked out
//! once into small tables. Used by `api` on every operation and printed by tools. Never touches a transport.
//!
//! `thresholds` and `rma` say what is allowed, `cost` estimates time, `table` takes the cheapest.

pub mod atomic;
pub mod copy_method;
pub mod cost;
pub mod explain;
pub mod explain_rma;
pub mod key;
pub mod rma;
pub mod striping;
pub mod table;
#[cfg(test)]
mod tests;
pub mod thresholds;

pub use crate::rdm::features::ReqHdr;
pub use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol};
pub use atomic::{AtomicVerdict, explain_atomic};
pub use cost::{Costs, Line, RemoteMem};
pub use explain::{Candidate, Verdict, explain};
pub use explain_rma::{
    RemoteAccess, RmaCandidate, RmaCandidates, RmaChoice, RmaKey, RmaVerdict, explain_rma,
};
pub use key::{CqData, MemKind, PeerCaps, ReadSupport, RecvMode, SelectKey, WireCaps};
pub use rma::{DeviceRdma, RmaBackend, RmaOp, RmaTables, RmaWire};
pub use striping::{Striping, StripingLimit};
pub use table::{Range, Table};
pub use thresholds::{RndvThresh, Thresholds};
