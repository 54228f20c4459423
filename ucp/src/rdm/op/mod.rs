//! Operations that are not complete: states (`tx`, `rx`, `rma_op`), tables with ids that may travel (`table`,
//! `rma_ops`), user memory (`buf`, `piece`, `pieces`, `generic`), received bytes (`received_ranges`).

pub mod buf;
pub mod generic;
pub mod piece;
pub mod pieces;
pub mod received_ranges;
pub mod rma_op;
pub mod rma_ops;
pub mod rma_read;
pub mod rx;
pub mod staged;
pub mod table;
pub mod tx;

pub use buf::{ContigBuf, Payload, RecvBuf, RecvList, SendBuf};
pub use generic::{GenericData, GenericOps, PACK_PANICKED, UNPACK_PANICKED, in_callback};
pub use piece::Piece;
pub use pieces::{Gather, Scatter};
