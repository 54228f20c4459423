//! Peers: how a packet's source is resolved to one, its state and queues, how it comes, fails and goes, its
//! counters.

pub(super) mod aliases;
pub(super) mod counters;
pub(super) mod lifecycle;
pub(super) mod lookup;
pub(super) mod peer;
