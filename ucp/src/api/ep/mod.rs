//! Endpoints: making them, sending, protocol queries, multi-rail.

pub(crate) mod address_table;
pub(crate) mod close;
pub(crate) mod config;
pub(crate) mod connect;
pub(crate) mod deferred;
pub(crate) mod end_ops;
pub(crate) mod handle;
pub(crate) mod protocols;
pub(crate) mod rails;
pub(crate) mod send;
pub(crate) mod shared_list;
