//! State of a worker below its public handles: request table, endpoint state and configuration, errors.

pub(crate) mod armed;
pub(crate) mod clock;
pub(crate) mod cm;
pub(crate) mod deferred;
pub(crate) mod ended;
pub(crate) mod ep_config;
pub(crate) mod ep_state;
pub(crate) mod error;
mod events;
pub(crate) mod flushes;
pub(crate) mod groups;
pub(crate) mod keepalive;
pub(crate) mod multi_recvs;
pub(crate) mod notes;
pub(crate) mod poll;
pub(crate) mod process;
pub(crate) mod report;
pub(crate) mod requests;
pub(crate) mod sink;
pub(crate) mod staging;
mod timers;
pub(crate) mod worker_core;
