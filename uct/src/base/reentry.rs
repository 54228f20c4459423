//! Guard against delivery from within a handler, for `loopback` and `posix`.

use std::cell::Cell;

/// Messages are being taken in. Over when it is dropped, also by a handler that panics.
pub struct ReentryGuard<'a>(&'a Cell<bool>);

impl ReentryGuard<'_> {
    /// `None`: they are already.
    // HOT
    #[inline(always)]
    pub fn begin(in_handler: &Cell<bool>) -> Option<ReentryGuard<'_>> {
        // Made only where it is to be: one that is made and dropped would end the other.
        if in_handler.replace(true) { None } else { Some(ReentryGuard(in_handler)) }
    }
}

impl Drop for ReentryGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.set(false);
    }
}
