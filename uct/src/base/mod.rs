//! What transports share: the handler table, the pending queue, local buffers for zcopy, and put/get/atomics on
//! memory that this process maps itself.
//! Used by the transports of this crate. Never chooses a transport and never makes a system call.

pub mod alloc;
pub mod am;
pub mod check;
pub mod direct;
pub mod gate;
pub mod iov;
pub mod lent;
pub mod pending;
pub mod rcache;
pub mod thunk;
mod wide;
