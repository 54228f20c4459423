//! What the loops for active messages and streams need of either: sending one message, counting those that arrived.
//! Implemented in `am` and `stream`, used by `am_loop` and `group_messages`.

use ucp::Started;

use super::window::Message;
use crate::fail::Failure;

/// How messages go.
pub trait MessageIo {
    /// Gets ready for `count` messages; none has come.
    fn expect(&mut self, count: u64) -> Result<(), Failure>;
    /// Sends one. HOT
    ///
    /// # Safety
    /// Its bytes stay as they are until the send has ended.
    unsafe fn send(&mut self, message: Message<'_>) -> Result<Started<()>, ucp::Error>;
    /// How many have come since [`MessageIo::expect`], all of them checked if they are to be. Makes no progress. HOT
    fn received(&mut self) -> Result<u64, Failure>;
}
