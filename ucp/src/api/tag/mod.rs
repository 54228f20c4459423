//! Tagged and untagged messages: receives, probes, several pieces, several messages.

pub(crate) mod multi_recv;
pub(crate) mod recv;
pub(crate) mod recv_iov;
pub(crate) mod send_iov;
