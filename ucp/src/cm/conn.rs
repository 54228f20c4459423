//! One end of one exchange: a non-blocking socket, the frame being read, and the bytes to be written.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use ucs::config::is_first_report;

use super::failure::ConnectFailure;
use super::frame::{Frame, FrameReader};

/// Most bytes read in one system call.
const CHUNK: usize = 4096;
/// Connections that the system keeps for a listener that makes no progress. It may permit fewer.
const BACKLOG: i32 = 1024;

pub(crate) struct Conn {
    pub(super) stream: TcpStream,
    reader: FrameReader,
    unsent: Vec<u8>,
    /// The address that it connects to.
    to: Option<SocketAddr>,
}

/// A non-blocking socket that listens at `addr`.
pub(crate) fn start_listen(addr: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = socket(addr)?;
    // A server may listen again while connections of its predecessor linger.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &addr)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn socket(of: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Starts to connect to `to`, from `from` if that is given. Returns before the connection is made.
pub(crate) fn start_connect(to: SocketAddr, from: Option<SocketAddr>) -> std::io::Result<Conn> {
    let socket = socket(to)?;
    if let Some(from) = from {
        rustix::net::bind(&socket, &from)?;
    }
    match rustix::net::connect(&socket, &to) {
        // A refusal may be known at once; it is reported like one that comes later.
        Ok(()) | Err(Errno::INPROGRESS | Errno::CONNREFUSED) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Conn { to: Some(to), ..Conn::new(socket.into()) })
}

impl Conn {
    pub(super) fn new(stream: TcpStream) -> Conn {
        // Frames are short, and each is waited for.
        let _ = stream.set_nodelay(true);
        Conn { stream, reader: FrameReader::default(), unsent: Vec::new(), to: None }
    }

    /// Address of this end, once the system has chosen it.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok().filter(|addr| addr.port() != 0)
    }

    /// Result of a connection that was being made. A refusal is logged: its status in the C interface is that
    /// of a rejection.
    pub(super) fn finish_connect(&self) -> Result<(), ConnectFailure> {
        let ended = self.connected();
        if let (Err(ConnectFailure::Refused), Some(to)) = (ended, self.to)
            && is_first_report(&format!("nobody listens at {to}"))
        {
            tracing::warn!("nobody listens at {to}");
        }
        ended
    }

    fn connected(&self) -> Result<(), ConnectFailure> {
        match self.stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Err(ConnectFailure::of_io(&error)),
        }
        let of_io = |error| ConnectFailure::of_io(&error);
        // TCP connects a socket to itself if it is given the port that it asks for.
        match (self.stream.local_addr().map_err(of_io)?, self.stream.peer_addr()) {
            (local, Ok(peer)) if local == peer => Err(ConnectFailure::Refused),
            (_, Ok(_)) => Ok(()),
            (_, Err(error)) if error.kind() == ErrorKind::NotConnected => Err(ConnectFailure::Refused),
            (_, Err(error)) => Err(of_io(error)),
        }
    }

    /// Queues a frame; [`Conn::send`] writes it.
    pub(super) fn queue(&mut self, frame: &Frame) {
        self.unsent.extend(frame.pack());
    }

    /// Writes what is queued, as far as the socket takes it.
    pub(super) fn send(&mut self) -> Result<(), ConnectFailure> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(ConnectFailure::Reset),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ConnectFailure::of_io(&error)),
            }
        }
        Ok(())
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Reads until a frame is complete or nothing is there.
    pub(super) fn read(&mut self) -> Result<Option<Frame>, ConnectFailure> {
        let mut chunk = [0; CHUNK];
        loop {
            let missing = self.reader.missing()?;
            match self.stream.read(&mut chunk[..missing.min(CHUNK)]) {
                Ok(0) => return Err(ConnectFailure::Reset),
                Ok(n) => self.reader.add(&chunk[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ConnectFailure::of_io(&error)),
            }
            if let Some(frame) = self.reader.take()? {
                return Ok(Some(frame));
            }
        }
    }
}
