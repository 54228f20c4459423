//! Flow control: the windows of long-CTS, and back-off when a receiver is not ready (RNR).

pub(super) mod backoff;
pub(super) mod retry;
pub(super) mod window;
