//! Collective operations of a group of workers, by active messages.
//!
//! Every operation is one round: a member sends each other member the bytes that are for it, in one active
//! message, and waits for the messages that are for itself. Results are put together by the receiver.
//!
//! | File | Contents |
//! |---|---|
//! | `collective.rs` | groups, and the exchange that every operation is |
//! | `messages.rs` | messages that have come before their operation, and operations that wait for messages |
//! | `ops.rs` | the operations |
//! | `request.rs` | an operation that runs |

pub(crate) mod collective;
mod messages;
mod ops;
pub(crate) mod request;
