//! Messages, active messages, streams and one-sided operations on every lane, and the forms of memory that
//! they take. One binary, as each would link the whole engine.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod am_alignment;
mod am_exhausted;
mod am_stream;
mod atomic_lists;
mod context_memory;
mod datatypes;
mod direct_read;
mod flood;
mod groups;
mod iov;
mod lists;
mod mapped_now;
mod memory_handles;
mod messages;
mod multi;
mod onesided;
mod own_memory;
mod rails;
mod recv_iov;
mod shared_recvs;
mod strict;
mod to_self;
mod user_recv_qp;
mod zcopy_recv;
