//! A wake-up descriptor that is passed to peers which are not trusted: a pair of connected sockets. The
//! sleeper polls one end, which it passes to nobody; peers get the other. Each call says itself that it does
//! not block, because whoever holds an open file may change its flags for all. Never blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::proc::refuse_descriptors;
use crate::Errno;
use crate::mem::MemError;

/// Reads of a call of [`WakeSocket::clear`]. Honest peers never leave as much as one takes.
const MAX_READS: u32 = 16;

/// Both ends, in the process that sleeps. Readable after a wake-up.
///
/// A peer that shuts its end down leaves it readable for ever: the sleeper then no longer sleeps, and misses
/// nothing.
#[derive(Debug)]
pub struct WakeSocket {
    near: OwnedFd,
    far: OwnedFd,
}

impl WakeSocket {
    /// A new one, not signalled.
    pub fn new() -> Result<WakeSocket, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        refuse_descriptors(&near);
        Ok(WakeSocket { near, far })
    }

    /// The end to pass to peers, for [`WakeSender::from_peer`].
    pub fn far_end(&self) -> BorrowedFd<'_> {
        self.far.as_fd()
    }

    /// Wakes ourselves.
    pub fn signal(&self) -> Result<(), Errno> {
        signal(&self.far)
    }

    /// Drops all wake-ups so far. Check for work after this and before sleeping. A peer that sends more than
    /// honest ones leaves some: the sleeper then does not sleep, and misses nothing.
    pub fn clear(&self) -> Result<(), Errno> {
        let mut bytes = [0; 512];
        for _ in 0..MAX_READS {
            match rustix::net::recv(&self.near, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, len)) if len < bytes.len() => return Ok(()),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for WakeSocket {
    /// The end to poll for reading.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.near.as_fd()
    }
}

/// A peer's end: wakes the sleeper.
#[derive(Debug)]
pub struct WakeSender {
    fd: OwnedFd,
}

impl WakeSender {
    /// Takes a descriptor got from another process if it is a connected pair's end, as far as can be seen.
    pub fn from_peer(fd: OwnedFd) -> Result<WakeSender, MemError> {
        let is_one = sockopt::socket_domain(&fd) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&fd) == Ok(SocketType::STREAM);
        match is_one {
            true => Ok(WakeSender { fd }),
            false => Err(MemError::Refused { why: "its wake-up descriptor is not a socket" }),
        }
    }

    /// Wakes the sleeper; one system call. A dead sleeper is no error.
    pub fn signal(&self) -> Result<(), Errno> {
        signal(&self.fd)
    }
}

fn signal(fd: &OwnedFd) -> Result<(), Errno> {
    use rustix::io::Errno as E;
    loop {
        return match rustix::net::send(fd, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            // AGAIN: it holds all it can, so it is readable anyway.
            Ok(_) | Err(E::AGAIN | E::PIPE | E::CONNRESET) => Ok(()),
            Err(E::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd::wait_readable;
    use std::time::Duration;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn is_readable(socket: &WakeSocket) -> bool {
        wait_readable(&[socket.as_fd()], NOW).unwrap()
    }

    fn peer_of(socket: &WakeSocket) -> WakeSender {
        WakeSender::from_peer(socket.far_end().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn signals_are_seen_until_cleared() {
        let socket = WakeSocket::new().unwrap();
        let peer = peer_of(&socket);
        assert!(!is_readable(&socket));
        socket.signal().unwrap();
        peer.signal().unwrap();
        assert!(is_readable(&socket));
        socket.clear().unwrap();
        assert!(!is_readable(&socket));
        drop(socket);
        peer.signal().unwrap();
    }

    /// The flags belong to the open file, which every peer of an interface shares.
    #[test]
    fn a_peer_that_makes_the_file_block_blocks_nobody() {
        let socket = WakeSocket::new().unwrap();
        let (hostile, honest) = (peer_of(&socket), peer_of(&socket));
        rustix::io::ioctl_fionbio(&hostile.fd, false).unwrap();
        // More than the socket holds.
        for _ in 0..100_000 {
            honest.signal().unwrap();
        }
        assert!(is_readable(&socket));
        for _ in 0..2 {
            socket.clear().unwrap();
            assert!(!is_readable(&socket));
        }
        honest.signal().unwrap();
        assert!(is_readable(&socket));
        // Nobody takes a wake-up away from the sleeper.
        let mut bytes = [0; 8];
        assert!(rustix::net::recv(&hostile.fd, &mut bytes[..], RecvFlags::DONTWAIT).is_err());
        assert!(is_readable(&socket));
    }

    #[test]
    fn a_peer_that_shuts_its_end_down_loses_no_wake_up() {
        let socket = WakeSocket::new().unwrap();
        let (hostile, honest) = (peer_of(&socket), peer_of(&socket));
        rustix::net::shutdown(&hostile.fd, rustix::net::Shutdown::Both).unwrap();
        honest.signal().unwrap();
        socket.clear().unwrap();
        assert!(is_readable(&socket));
    }

    #[test]
    fn a_peer_that_sends_without_end_holds_nobody() {
        let socket = WakeSocket::new().unwrap();
        let hostile = peer_of(&socket);
        // As many bytes as the socket holds, and more at each read.
        let send = || rustix::net::send(&hostile.fd, &[0; 4096], SendFlags::DONTWAIT).is_ok();
        while send() {}
        let mut reads = 0;
        while is_readable(&socket) && reads < 10_000 {
            socket.clear().unwrap();
            reads += 1;
        }
        assert!((2..10_000).contains(&reads), "all at once, or never: {reads}");
    }

    /// Closing waits for a TCP connection that lingers, and whoever receives a descriptor without taking it
    /// closes it.
    #[test]
    fn a_peer_that_passes_a_lingering_socket_holds_nobody() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
        let socket = WakeSocket::new().unwrap();
        if !refuse_descriptors(&socket.near) {
            return crate::testing::skipped("a lingering socket", "Linux before 6.16");
        }
        let hostile = peer_of(&socket);
        let lingers = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        let fds = [lingers.as_fd()];
        with.push(SendAncillaryMessage::ScmRights(&fds));
        let sent = sendmsg(&hostile.fd, &[std::io::IoSlice::new(&[1])], &mut with, SendFlags::DONTWAIT);
        assert_eq!(sent, Err(rustix::io::Errno::PERM));
        hostile.signal().unwrap();
        assert!(is_readable(&socket), "wake-ups without one arrive");
    }

    #[test]
    fn only_a_socket_is_taken_from_a_peer() {
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for fd in [pipe, datagrams.into(), file.into()] {
            assert!(matches!(WakeSender::from_peer(fd), Err(MemError::Refused { .. })));
        }
    }
}
