//! Conformance, scenario, simulation and multi-process suites: `traffic` is two processes, `sim` many workers
//! in one thread.

pub mod cargo;
pub mod clients;
pub mod conform;
pub mod interop;
pub mod launcher;
pub mod leftovers;
pub mod partner;
pub mod pattern;
pub mod rng;
pub mod sched_delay;
pub mod sim;
pub mod sizes;
pub mod steps;
pub mod traffic;
#[cfg(feature = "verbs")]
pub mod verbs;
