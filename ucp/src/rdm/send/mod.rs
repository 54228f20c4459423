//! Sends: starting and cancelling them, the queue of each peer, and messages to this worker itself.

pub(super) mod self_send;
pub(super) mod sends;
