//! Receives: posting, matching, the reorder window of each peer, and packet bytes that have to be kept.

pub(super) mod held_bytes;
pub(super) mod held_packets;
pub mod matching;
pub(super) mod multi_recv;
pub(super) mod receives;
pub(super) mod reorder;
pub(super) mod sequence;
