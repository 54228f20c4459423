//! What transports share: the handler table, the pending queue, endpoints by peer, allocation, lists of pieces, lent buffers, and
//! put/get/atomics on memory that this process maps itself; and what their users may want: operation handles, a
//! registration cache.
//! Used by the transports of this crate. Never chooses a transport.

pub mod alloc;
pub mod am;
pub mod check;
pub mod direct;
pub mod eps;
pub mod gate;
pub mod iov;
pub mod lent;
pub mod nap;
pub mod ops;
pub mod pending;
pub mod rcache;
pub mod taking;
pub mod thunk;
mod wide;
