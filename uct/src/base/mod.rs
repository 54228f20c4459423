//! What transports share: the handler table, the pending queue, endpoints by peer, allocation, lists of pieces, lent buffers, and
//! put/get/atomics on memory that this process maps itself; and what their users may want: operation handles, a
//! registration cache.
//! Used by the transports of this crate. Never chooses a transport.

pub mod alloc;
pub mod am;
mod atomic128;
pub mod check;
pub mod direct;
pub mod ep_table;
pub mod inline_closure;
pub mod iov;
pub mod lock;
pub mod op_pool;
pub mod pending;
pub mod rcache;
pub mod recv_desc;
pub mod reentry;
pub mod retry_sleep;
