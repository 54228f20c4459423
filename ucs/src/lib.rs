//! Services used by every layer. Never knows a transport, a packet or a peer. Programs that use `ucp` or
//! `uct` reach this crate as `ucp::ucs` or `uct::ucs`, and need it among their dependencies only for itself:
//! ```toml
//! [dependencies]
//! ucs = { path = "PATH OF THIS REPOSITORY/ucs" }      # or { git = "URL OF THIS REPOSITORY" }
//! ```
//!
//! | Module | Contents |
//! |---|---|
//! | [`Status`], [`Blame`], [`Errno`] | result codes of `ucs_status_t`, and whose fault an error is |
//! | [`InternedStr`] | a static text in two bytes, for errors |
//! | [`config`] | one declaration per key; environment, file and overrides; errors that say what to write |
//! | [`coll`] | slots with generation ids, ring, intrusive list, sequence window |
//! | [`mem`] | pages, private and shared mappings, pools of fixed slots, long copies |
//! | [`stats`] | counters and histograms of one worker |
//! | [`sync`] | atomics: std, or loom under `--cfg loom` |
//! | [`sys`] | cpus, topology, processes, wake-up descriptors, host identity |
//! | [`time`] | clocks: real and virtual |
//! | [`trace`] | text logging with UCX's levels |

#![deny(unsafe_code)]

// The macros name this crate as their users do.
extern crate self as ucs;

pub mod coll;
pub mod config;
pub mod err;
pub mod mem;
mod static_text;
pub mod stats;
mod status;
pub mod sync;
pub mod sys;
#[doc(hidden)]
pub mod testing;
pub mod time;
pub mod trace;

pub use err::{Blame, Errno};
pub use static_text::InternedStr;
pub use status::Status;
