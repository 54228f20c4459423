//! Emulated atomics: the wire has none, so a thread of the target's memory domain carries them out.
//!
//! An operation is one request to the thread's queue pair and one response to a queue pair of the initiator.
//! The request names the region by its remote key; the thread checks key, range and alignment, and applies
//! the operation with the CPU's atomics. The target's program need not progress. SRD delivers a packet once,
//! in any order, so an operation takes effect once.
//!
//! At the initiator an operation is a work-request group of two slots: one for the request, one until the
//! response. Flush, fence, reservations and dropped endpoints therefore treat it as they treat a put.
//!
//! Queue pairs and threads are made by the first key that grants atomics, and by the first operation.
//!
//! | file | what it holds |
//! |---|---|
//! | `wire` | packets |
//! | `domain` | regions that peers may change, operations under way, the thread's handle |
//! | `server` | the thread: carries out requests, and asks whether silent targets live |
//! | `client` | the initiator's side |

mod client;
mod domain;
mod server;
mod wire;

pub(super) use client::AmoClient;
pub(super) use domain::{AmoAddr, AmoDomain, AmoRegion};
pub(super) use wire::MAX_LEN;
pub use wire::RESERVED_AM_IDS;
