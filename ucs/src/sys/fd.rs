//! Wake-up descriptors: eventfd and epoll set. Blocks only in `Epoll::wait`.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};

use super::thread::spawn_masked;
use crate::Errno;

/// A counter behind a descriptor: readable while not zero. Non-blocking, closed on exec.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// At zero.
    pub fn new() -> Result<EventFd, Errno> {
        Ok(EventFd { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Uses a descriptor got from another process. It must be an eventfd for `signal` and `clear` to work.
    pub fn from_fd(fd: OwnedFd) -> EventFd {
        EventFd { fd }
    }

    /// Adds one: pollers wake up.
    pub fn signal(&self) -> Result<(), Errno> {
        loop {
            return match rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {
                // AGAIN: the counter is at its maximum, so it is readable anyway.
                Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Back to zero; says how often it was signalled since the last time.
    pub fn clear(&self) -> Result<u64, Errno> {
        let mut count = [0; 8];
        loop {
            return match rustix::io::read(&self.fd, &mut count) {
                Ok(_) => Ok(u64::from_ne_bytes(count)),
                Err(rustix::io::Errno::AGAIN) => Ok(0),
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => Err(e.into()),
            };
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Threads of [`close_elsewhere`] at a time. What comes then stays open.
const MAX_CLOSERS: usize = 64;

/// Closes descriptors that somebody else has passed, without waiting for it: a TCP connection may linger, and
/// a file system of a user may never answer. A thread does that.
#[cold]
pub fn close_elsewhere(fds: Vec<OwnedFd>) {
    static CLOSERS: AtomicUsize = AtomicUsize::new(0);
    // What no thread takes is not dropped.
    let fds = ManuallyDrop::new(fds);
    if fds.is_empty() {
        return;
    }
    if CLOSERS.fetch_add(1, Ordering::Relaxed) < MAX_CLOSERS {
        let close = move || {
            drop(ManuallyDrop::into_inner(fds));
            CLOSERS.fetch_sub(1, Ordering::Relaxed);
        };
        match spawn_masked("ucs-close", 64 << 10, close) {
            Ok(_) => return,
            Err(errno) => {
                tracing::warn!(%errno, "leaked descriptors of a peer: cannot start the thread that closes them")
            }
        }
    } else {
        tracing::warn!("leaked descriptors of a peer: too many closes are pending");
    }
    CLOSERS.fetch_sub(1, Ordering::Relaxed);
}

/// Events for which a descriptor is waited for. Errors and hang-ups are reported in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Something to read.
    Read,
    /// Room to write; the end of connecting.
    Write,
    /// Either.
    ReadWrite,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
            Interest::ReadWrite => EventFlags::IN | EventFlags::OUT,
        }
    }
}

/// A set of descriptors to wait on, each with a token. Itself a descriptor.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// Empty.
    pub fn new() -> Result<Epoll, Errno> {
        Ok(Epoll { fd: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Watches `fd` for reading (level triggered); `wait` reports it as `token`.
    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        self.add_for(fd, token, Interest::Read)
    }

    /// Watches `fd` (level triggered); `wait` reports it as `token`.
    pub fn add_for(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        Ok(epoll::add(&self.fd, fd, EventData::new_u64(token), interest.flags())?)
    }

    /// Changes what a watched descriptor is waited for.
    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<(), Errno> {
        Ok(epoll::modify(&self.fd, fd, EventData::new_u64(token), interest.flags())?)
    }

    /// Watches `fd` no longer.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Errno> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits for ready descriptors; appends at most 32 tokens, answers their number: 0 after a signal.
    pub fn wait(&self, tokens: &mut Vec<u64>, timeout: Option<Duration>) -> Result<usize, Errno> {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 32];
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        match epoll::wait(&self.fd, &mut events[..], timeout.as_ref()) {
            Ok(n) => {
                tokens.extend(events[..n].iter().map(|e| { e.data }.u64()));
                Ok(n)
            }
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until one of a few descriptors is readable. False at the timeout, and after a signal.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn a_lingering_connection_is_closed_elsewhere() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingers = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        lingers.set_nonblocking(true).unwrap();
        // Nobody reads it.
        while std::io::Write::write(&mut lingers, &[0; 1 << 16]).is_ok() {}
        let long = Duration::from_secs(5);
        rustix::net::sockopt::set_socket_linger(&lingers, Some(long)).unwrap();
        let start = std::time::Instant::now();
        close_elsewhere(vec![lingers.into()]);
        assert!(start.elapsed() < long, "{:?}", start.elapsed());
    }

    #[test]
    fn signals_add_up_and_clear() {
        let event = EventFd::new().unwrap();
        assert_eq!(event.clear(), Ok(0));
        event.signal().unwrap();
        event.signal().unwrap();
        assert_eq!((event.clear(), event.clear()), (Ok(2), Ok(0)));
    }

    #[test]
    fn waits_for_one_of_several() {
        let (one, two) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let both = [one.as_fd(), two.as_fd()];
        assert_eq!(wait_readable(&both, NOW), Ok(false));
        two.signal().unwrap();
        assert_eq!(wait_readable(&both, None), Ok(true));
    }

    #[test]
    fn epoll_names_the_readable_ones() {
        let (a, b) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let (inner, outer) = (Epoll::new().unwrap(), Epoll::new().unwrap());
        inner.add(&a, 1).unwrap();
        inner.add(&b, 2).unwrap();
        outer.add(&inner, 7).unwrap();
        let mut tokens = Vec::new();
        assert_eq!(outer.wait(&mut tokens, NOW), Ok(0));
        b.signal().unwrap();
        assert_eq!(outer.wait(&mut tokens, None), Ok(1));
        assert_eq!(inner.wait(&mut tokens, NOW), Ok(1));
        assert_eq!(tokens, [7, 2]);
        inner.remove(&b).unwrap();
        assert_eq!(outer.wait(&mut tokens, NOW), Ok(0));
    }

    #[test]
    fn epoll_waits_for_what_it_is_asked() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.add_for(&one, 1, Interest::Write).unwrap();
        let mut tokens = Vec::new();
        assert_eq!(epoll.wait(&mut tokens, NOW), Ok(1), "a socket has room");
        epoll.modify(&one, 2, Interest::Read).unwrap();
        assert_eq!(epoll.wait(&mut tokens, NOW), Ok(0), "and nothing to read");
        epoll.modify(&one, 2, Interest::ReadWrite).unwrap();
        assert_eq!((epoll.wait(&mut tokens, NOW), tokens), (Ok(1), vec![1, 2]));
    }

    #[test]
    fn wakes_another_thread() {
        let event = EventFd::new().unwrap();
        let epoll = Epoll::new().unwrap();
        epoll.add(&event, 3).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| event.signal().unwrap());
            let mut tokens = Vec::new();
            while epoll.wait(&mut tokens, None).unwrap() == 0 {}
            assert_eq!(tokens, [3]);
        });
    }
}
