//! Results of a communication call ([`Outcome`]). [`Refused::status`] maps onto [`ucs::Status`] one to one.

use super::Error;

/// Success of a communication call.
#[must_use = "InProgress means the buffer is still in use"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Locally complete: the buffer may be reused and no completion will fire (`UCS_OK`).
    Done,
    /// Started: the completion, if one was given, fires exactly once from progress (`UCS_INPROGRESS`).
    InProgress,
}

/// Why a communication call did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// A finite queue is full right now. Nothing happened. Progress and retry, or use the pending queue.
    #[error("no resource: a queue is full now; progress and try again")]
    NoResource,
    /// It cannot succeed by retrying.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// The answer of a communication call. `bcopy` calls answer with the number of bytes packed.
pub type Outcome<T = Sent> = Result<T, Refused>;

impl Refused {
    /// The status code of the C API.
    pub fn status(self) -> ucs::Status {
        match self {
            Refused::NoResource => ucs::Status::NoResource,
            Refused::Failed(e) => e.status(),
        }
    }
}
