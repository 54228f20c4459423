//! A wake-up pipe that peers open by name, through `/proc/PID/fd/N`, as eventfds cannot be. Never blocks.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::Errno;
use crate::mem::MemError;

/// The sleeper's end: readable after a wake-up.
#[derive(Debug)]
pub struct WakePipe {
    read: OwnedFd,
    /// Kept open: peers get its number, and the pipe does not look closed.
    write: OwnedFd,
}

impl WakePipe {
    /// A new one, not signalled.
    pub fn new() -> Result<WakePipe, Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(WakePipe { read, write })
    }

    /// Descriptor number to tell peers, for [`Waker::open`].
    pub fn fd(&self) -> RawFd {
        self.write.as_raw_fd()
    }

    /// Wakes ourselves.
    pub fn wake(&self) -> Result<(), Errno> {
        signal(&self.write)
    }

    /// Drops all wake-ups so far. Check for work after this and before sleeping.
    pub fn clear(&self) -> Result<(), Errno> {
        let mut bytes = [0; 512];
        loop {
            match rustix::io::read(&self.read, &mut bytes) {
                Ok(n) if n < bytes.len() => return Ok(()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl AsFd for WakePipe {
    /// The end to poll for reading.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

/// A peer's end: wakes the sleeper.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
}

impl Waker {
    /// Opens the pipe that process `pid` holds as descriptor `fd` ([`WakePipe::fd`]).
    pub fn open(pid: u32, fd: RawFd) -> Result<Waker, MemError> {
        // RDWR: a pipe that we could read ourselves never raises SIGPIPE when its owner dies.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let pipe = rustix::fs::open(format!("/proc/{pid}/fd/{fd}"), flags, Mode::empty())
            .map_err(|e| MemError::open_proc(pid, fd, e))?;
        match rustix::fs::fstat(&pipe) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo => Ok(Waker { fd: pipe }),
            Ok(_) => Err(MemError::Refused { why: "its wake-up descriptor is not a pipe" }),
            Err(e) => Err(MemError::Os { op: "fstat", errno: e.into() }),
        }
    }

    /// Wakes the sleeper; one system call. A dead sleeper is no error.
    pub fn wake(&self) -> Result<(), Errno> {
        signal(&self.fd)
    }
}

fn signal(fd: &OwnedFd) -> Result<(), Errno> {
    loop {
        return match rustix::io::write(fd, &[1]) {
            // AGAIN: the pipe is full, so it is readable anyway.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sys::Epoll;

    #[test]
    fn a_peer_wakes_the_sleeper_by_name() {
        let pipe = WakePipe::new().unwrap();
        let waker = Waker::open(std::process::id(), pipe.fd()).unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.add(&pipe, 1).unwrap();
        let readable = || epoll.wait(&mut Vec::new(), Some(Duration::ZERO)).unwrap() == 1;
        assert!(!readable());
        // More than the pipe holds: further wake-ups are dropped, not waited for.
        for _ in 0..100_000 {
            waker.wake().unwrap();
        }
        assert!(readable());
        pipe.clear().unwrap();
        assert!(!readable());
        pipe.wake().unwrap();
        assert!(readable());
    }

    #[test]
    fn waking_a_closed_pipe_is_no_error() {
        let pipe = WakePipe::new().unwrap();
        let waker = Waker::open(std::process::id(), pipe.fd()).unwrap();
        drop(pipe);
        assert_eq!(waker.wake(), Ok(()));
    }

    #[test]
    fn peer_descriptors_are_checked() {
        let memory = crate::mem::SharedMem::create("not a pipe", 1, Default::default()).unwrap();
        let me = std::process::id();
        assert!(matches!(Waker::open(me, memory.fd()), Err(MemError::Refused { .. })));
        assert!(matches!(Waker::open(me, 1 << 20), Err(MemError::Gone { .. })));
    }
}
