//! The program as users start it: two processes, groups, batches, environments, and what it refuses.
//! One binary: tests that wait let others run.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod batches;
mod environment;
mod groups;
mod options;
mod reported_settings;
mod restricted;
mod two_processes;
