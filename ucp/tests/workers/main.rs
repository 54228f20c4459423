//! Workers, contexts and requests: connecting, addresses, waiting, threads, futures, counters, processes.
//! One binary, as each would link the whole engine.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod address;
mod address_table;
mod armed;
mod completion_queue;
mod exec;
mod fairness;
mod fd_exhaustion;
mod fork;
mod futures;
mod handler_cycles;
mod listener;
mod pending_ep;
mod processes;
mod request_types;
mod requests;
mod signal;
mod stats;
mod worker_thread;
