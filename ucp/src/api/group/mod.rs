//! Collective operations of a group of workers, by active messages.
//!
//! Every operation is one round: a member sends each other member the bytes that are for it, in one active
//! message, and waits for the messages that are for itself. Results are put together by the receiver.
//!
//! | File | Contents |
//! |---|---|
//! | `collective.rs` | groups, and the exchange that every operation is |
//! | `early.rs` | messages that have come before their operation |
//! | `messages.rs` | operations that wait for messages |
//! | `ops.rs` | the operations |
//! | `part.rs` | a message of an operation, and its header |
//! | `request.rs` | an operation that runs |

pub(crate) mod collective;
mod early;
mod messages;
mod ops;
mod part;
pub(crate) mod request;
