//! Put, get and atomic operations on memory of peers, and remote keys.

pub(crate) mod atomic;
pub(crate) mod atomic_iov;
pub(crate) mod atomic_params;
pub(crate) mod atomic_type;
pub(crate) mod deferred;
pub(crate) mod fetch;
pub(crate) mod list;
pub(crate) mod many;
pub(crate) mod now;
pub(crate) mod packed_rkey;
pub(crate) mod params;
pub(crate) mod pieces;
pub(crate) mod put_get;
pub(crate) mod query;
pub(crate) mod rkey;
pub(crate) mod start;
