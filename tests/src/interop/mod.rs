//! Interop with libfabric: a matrix of messages, one-sided operations and scenarios, each end played once by
//! `ucp` and once by libfabric's EFA provider. Results are checked at both ends and on the wire. Run by the
//! binary `interop`; `tests/interop` has the C end and the control language.

mod capture;
mod control;
mod matrix;
mod messages;
pub mod native;
mod native_rma;
mod onesided;
mod pair;
pub mod process;
mod release_table;
pub mod report;
pub mod run;
mod scenarios;
mod verify;
