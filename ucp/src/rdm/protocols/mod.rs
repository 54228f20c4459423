//! Protocols: one file or folder per sub-protocol, with all that its packet types mean at both ends. They
//! never import each other; shared code is in `recv`, `send`, `rma`, `flow` and `rails`.

pub(super) mod atomic;
pub(super) mod close;
pub(super) mod direct;
pub(super) mod eager;
pub(super) mod handshake;
pub(super) mod longcts;
pub(super) mod longread;
pub(super) mod medium;
pub(super) mod note;
pub(super) mod peer_error;
pub(super) mod read;
pub(super) mod read_nack;
pub(super) mod receipt;
pub(super) mod user_qp_send;
pub(super) mod write;
pub(super) mod write_read;
pub(super) mod zcopy_recv;
