//! Operations: what the user asked for and is not yet complete. `tx` and `rx` are their states, `table` names them
//! with ids that may travel, `buf` is the only way to user memory, `cover` knows which bytes have arrived.

pub mod buf;
pub mod cover;
pub mod rx;
pub mod table;
pub mod tx;

pub use buf::{RecvBuf, SendBuf};
pub use table::OpId;
