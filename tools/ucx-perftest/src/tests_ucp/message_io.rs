//! Sending and counting messages: implemented by active messages (`am`) and streams (`stream`).

use ucp::OpStatus;

use super::window::Message;
use crate::fail::Failure;

pub trait MessageIo {
    /// Prepares for `count` messages and resets the count.
    fn expect(&mut self, count: u64) -> Result<(), Failure>;
    /// Sends one message.
    /// # Safety
    /// The bytes stay unchanged until the send has ended.
    // HOT
    unsafe fn send(&mut self, message: Message<'_>) -> Result<OpStatus<()>, ucp::Error>;
    /// Number of messages since [`MessageIo::expect`], checked if the test validates. Makes no progress.
    // HOT
    fn received(&mut self) -> Result<u64, Failure>;
}
