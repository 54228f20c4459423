//! Tagged and untagged messages: receives, probes, several pieces, several messages, several workers.

pub(crate) mod multi_recv;
pub(crate) mod recv;
pub(crate) mod recv_iov;
pub(crate) mod send_iov;
pub(crate) mod shared_recvs;
