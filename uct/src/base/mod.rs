//! Parts shared by transports: handler table, pending queue, endpoint table, allocation, iov lists, receive
//! descriptors, operations on mapped memory; and for users, operation handles and a registration cache.

pub mod alloc;
pub mod am;
mod atomic128;
pub mod check;
pub mod direct;
pub mod ep_table;
pub mod hold_time;
pub mod inline_closure;
pub mod iov;
pub mod mem_ptr;
pub mod op_pool;
pub mod pending;
pub mod rcache;
pub mod recv_desc;
pub mod reentry;
pub mod retry_sleep;
pub mod thread_bound;
pub mod word;
