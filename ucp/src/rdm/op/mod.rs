//! Operations that are not complete: states (`tx`, `rx`, `rma_op`), tables with ids that may travel (`table`,
//! `rma_ops`), user memory (`send_buf`, `recv_buf`, `piece`, `pieces`, `generic`), received bytes
//! (`received_ranges`).

pub mod generic;
pub mod piece;
pub mod pieces;
pub mod received_ranges;
pub mod recv_buf;
pub mod rma_op;
pub mod rma_ops;
pub mod rma_read;
pub mod rx;
pub mod send_buf;
pub mod staged;
pub mod table;
pub mod tx;

pub use generic::{GenericData, GenericOps, PACK_PANICKED, UNPACK_PANICKED, in_callback};
pub use piece::Piece;
pub use pieces::{Gather, Scatter};
pub use recv_buf::{RecvBuf, RecvList};
pub use send_buf::{ContigBuf, Payload, SendBuf};
