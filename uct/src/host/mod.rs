//! Shared-memory transports of one host: the parts that `posix` and `cma` have in common. Knows neither of
//! them.
//!
//! | File | Contents |
//! |---|---|
//! | `fd_server/` | the thread that passes descriptors to other processes and notifies of deaths |
//! | `remote_segment.rs`, `recent_segments.rs` | memory of other processes, mapped here |
//! | `md.rs`, `allocations.rs` | the memory domain: memory files that other processes map, and their keys |

mod allocations;
pub mod fd_server;
mod md;
mod recent_segments;
mod remote_segment;

pub use md::{Md, Mem, Rkey};
#[cfg(test)]
pub use remote_segment::{MAX_CACHED, RemoteSegments};
pub use remote_segment::{RemoteSegment, Watch};
