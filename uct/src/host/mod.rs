//! Transports of one host: the parts that `posix`, `cma` and the software EFA device have in common. Knows
//! none of them.
//!
//! | File | Contents |
//! |---|---|
//! | `fd_server/` | the thread that passes descriptors to other processes and notifies of deaths |
//! | `remote_segment.rs`, `recent_segments.rs` | memory of other processes, mapped here |
//! | `md.rs`, `allocations.rs` | the memory domain: memory files that other processes map, and their keys |
//! | `joint.rs` | synchronisation of copies that two processes carry out together; models in `loom.rs` |

mod allocations;
pub mod fd_server;
pub mod joint;
mod md;
mod recent_segments;
mod remote_segment;

pub use md::{Md, Mem, Rkey};
#[cfg(test)]
pub use remote_segment::MAX_CACHED;
pub use remote_segment::{RemoteSegment, RemoteSegments, Watch};
