//! Interop with libfabric: a matrix of operations and scenarios, each end played once by `ucp` and once by
//! libfabric's EFA provider, checked at both ends and on the wire. `tests/interop` has the C end.

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
