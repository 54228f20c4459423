//! Thin safe calls to the operating system, for open and slow paths.

pub mod cpu;
pub mod fd;
pub mod fork;
pub mod host;
pub mod pmix;
pub mod proc;
pub mod thread;
pub mod timer_fd;
pub mod topo;
pub mod wake;
pub mod wake_socket;
pub mod wakeup;

pub use cpu::{CpuError, CpuSet};
pub use fd::{Epoll, EventFd, Interest};
pub use proc::{PeerCred, PidFd, ProcId};
pub use timer_fd::TimerFd;
pub use wake::{WakePipe, Waker};
pub use wake_socket::{WakeSender, WakeSocket};
pub use wakeup::{Sleeper, Wakeup};
