//! Operations that wait for room.

/// Result of a pending operation's attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Sent, or failed and reported; remove it.
    Done,
    /// Still no resource; keep it at the head.
    NoResource,
}

/// An operation that waits: called from progress when there may be room, until it says [`Retry::Done`].
pub type Pending = Box<dyn FnMut() -> Retry>;

/// Result of `pending_add`.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum PendingQueued {
    /// Queued behind whatever waits on this endpoint.
    Queued,
    /// There is room right now and nothing waits: do it yourself; the operation was not queued.
    Busy,
}
