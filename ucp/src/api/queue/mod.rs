//! Ends of operations in one place: queues of completions, and counters.
//!
//! Both take operations that run, and are told of their ends as soon as they happen, inside progress.
//!
//! | File | Contents |
//! |---|---|
//! | `completion.rs` | completion queues |
//! | `slots.rs` | the operations of a queue, and those that have ended |
//! | `tracked.rs` | the requests that a queue takes |
//! | `counter.rs` | counters |

pub(crate) mod completion;
pub(crate) mod counter;
mod slots;
pub(crate) mod tracked;
