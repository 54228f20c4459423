//! Interop with libfabric: a matrix of messages, one-sided operations and situations, each end played once by `ucp` and
//! once by libfabric's EFA provider, judged by what both ends saw and by what was on the wire.
//!
//! `interop` (the binary) runs it; `tests/interop` has the C end and the language both ends speak.

pub mod capture;
pub mod control;
pub mod matrix;
pub mod messages;
pub mod native;
pub mod native_rma;
pub mod onesided;
pub mod pair;
pub mod process;
pub mod release_table;
pub mod report;
pub mod run;
pub mod scenarios;
pub mod verify;
