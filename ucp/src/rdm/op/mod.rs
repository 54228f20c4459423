//! Operations: what the user asked for and is not yet complete. `tx` and `rx` are their states, `table` names them
//! with ids that may travel, `buf` is the only way to user memory (`pieces` makes lists of it), `cover` knows which
//! bytes have arrived, `one` is the state of one-sided operations and `ones` their table, `stripes` spreads long ones over rails.

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
