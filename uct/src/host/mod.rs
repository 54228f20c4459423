//! What the shared-memory transports of one host have in common: `posix` and `cma` build on it, it knows neither.
//!
//! | File | Contents |
//! |---|---|
//! | `fd_server/` | the thread that passes descriptors to other processes and notifies of their deaths |
//! | `remote_segment.rs` | memory of other processes, mapped here |
//! | `md.rs` | the memory domain: memory files that other processes map, and their keys |

pub mod fd_server;
mod md;
mod remote_segment;

pub use md::{Md, Mem, Rkey};
pub use remote_segment::RemoteSegment;
#[cfg(test)]
pub use remote_segment::{MAX_CACHED, RemoteSegments};
