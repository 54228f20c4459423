//! Operations that are not complete: states (`tx`, `rx`, `rma_op`), tables with ids that may travel (`table`,
//! `rma_ops`), access to user memory (`buf`, `pieces`), received bytes (`received_ranges`).

pub mod buf;
pub mod pieces;
pub mod received_ranges;
pub mod rma_op;
pub mod rma_ops;
pub mod rma_read;
pub mod rx;
pub mod table;
pub mod tx;

pub use buf::{ContigBuf, Payload, Piece, RecvBuf, RecvList, SendBuf};
pub use pieces::{Gather, Scatter};
