//! Thin safe calls to the operating system: cpus, topology, processes, wake-up descriptors, host identity.
//! Used at open and on slow paths. Never on a hot path, except arming a wake-up descriptor.

pub mod cpu;
pub mod fd;
pub mod host;
pub mod proc;
pub mod thread;
pub mod topo;
pub mod wake;

pub use cpu::{CpuError, CpuSet};
pub use fd::{Epoll, EventFd};
pub use proc::{PeerCred, PidFd, ProcId};
pub use wake::{WakePipe, Waker};
