//! UCX's C interface on this engine: a library that programs built for UCX load in place of `libucp.so.0`.
//!
//! Each exported function checks what a C caller passes, calls the raw operation of [`ucp`] that does the
//! work, and translates its result. Nothing of a protocol is here.
//!
//! | Module | Functions |
//! |---|---|
//! | `config`, `context` | `ucp_config_*`, `ucp_init_version`, `ucp_context_*`, versions |
//! | `worker`, `wakeup` | workers, their addresses, progress, sleep |
//! | `ep` | endpoints: creation, close, queries |
//! | `arg`, `entry` | arguments that point to memory of the caller; how results and panics reach it |
//! | `check` | what `UCX_CHECK=y` checks |
//! | `live`, `packed` | addresses of the handles and of the packed bytes that programs hold |
//! | `request` | requests: status, user memory, cancel |
//! | `tag`, `am`, `stream` | two-sided operations |
//! | `mem`, `rkey`, `rma`, `sgl`, `atomic`, `flush` | one-sided operations |
//! | `listener` | client-server |
//! | `device` | communication that a GPU starts, which is refused |
//! | `datatype` | contiguous, iov and generic data |
//! | `info` | functions that print |
//! | `ucs`, `ucm` | functions and data of UCX's lower libraries that consumers use |
//! | `uct` | the lower interface: `uct_*` |
//!
//! Layouts and values are those of UCX's public headers, API 1.23 (`types`). A structure may be shorter than
//! here, as callers built against an older release have it: only fields whose bit is set in its mask are
//! touched.

// One contract covers a block: the caller's, of the function that it calls.
#![allow(clippy::multiple_unsafe_ops_per_block)]

#[macro_use]
mod arg;
#[macro_use]
mod entry;
#[cfg(test)]
mod layout;

mod am;
mod atomic;
mod check;
mod config;
mod context;
mod datatype;
mod device;
mod ep;
mod flush;
mod handle;
mod info;
mod listener;
mod live;
mod log;
mod mem;
mod op;
mod packed;
mod request;
mod rkey;
mod rma;
mod sgl;
mod stream;
mod tag;
mod types;
mod ucm;
mod ucs;
mod uct;
mod wakeup;
mod worker;
