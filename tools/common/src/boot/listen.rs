//! The listening side. Clients are received side by side: one that is silent, or speaks something else,
//! delays nobody.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde::de::DeserializeOwned;

use super::{BootError, Connection, Family, HANDSHAKE_TIMEOUT, Message, io_text, readable, timespec};

/// Time of connecting to this very process.
const LOOPBACK_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Clients that are received at a time. One more makes the oldest leave.
const MAX_WAITING: usize = 64;

/// A listening socket.
pub struct Listener {
    socket: TcpListener,
    tool: &'static str,
}

/// Clients of a listener whose first message has not come yet.
pub struct Reception<'a> {
    listener: &'a Listener,
    waiting: Vec<Candidate>,
    pub(super) timeout: Duration,
}

struct Candidate {
    connection: Connection,
    greeted: bool,
    deadline: Instant,
}

/// Whether a candidate has sent all that is asked for.
enum Progress<T> {
    Waiting,
    Ready(T),
}

impl Candidate {
    /// Takes what has arrived, and the handshake if that is complete.
    fn read(&mut self) -> Result<(), BootError> {
        let connection = &mut self.connection;
        let ended = match readable(&connection.stream, Some(Duration::ZERO)) {
            true => connection.read_available().err(),
            false => None,
        };
        if !self.greeted
            && let Some(greeting) = connection.take_message().transpose()
        {
            connection.check_greeting(greeting)?;
            self.greeted = true;
        }
        match ended {
            // A last message before the end still counts.
            Some(e) if !connection.received.contains(&b'\n') => Err(e),
            _ if Instant::now() < self.deadline => Ok(()),
            _ => {
                let late = BootError::Timeout { peer: connection.peer, tool: connection.tool };
                if self.greeted { Err(late) } else { connection.check_greeting(Err(late)) }
            }
        }
    }
}

impl Listener {
    /// Listens on all addresses of this host.
    pub fn any(tool: &'static str, family: Family, port: u16) -> Result<Listener, BootError> {
        let host = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Listener::at(tool, SocketAddr::new(host, port))
    }

    /// Listens on one address of this host, or on all if it is unspecified.
    pub fn at(tool: &'static str, at: SocketAddr) -> Result<Listener, BootError> {
        Listener::bind(tool, at)
    }

    /// Listens on a free port of the loopback address.
    pub fn local(tool: &'static str) -> Result<Listener, BootError> {
        let at = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        match Listener::bind(tool, at) {
            Err(BootError::Listen { why, .. }) => Err(BootError::NoLoopback { at, why }),
            other => other,
        }
    }

    fn bind(tool: &'static str, at: SocketAddr) -> Result<Listener, BootError> {
        match TcpListener::bind(at) {
            Ok(socket) => Ok(Listener { socket, tool }),
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Err(BootError::PortInUse(at.port())),
            Err(e) => Err(BootError::Listen { port: at.port(), why: io_text(&e) }),
        }
    }

    /// Port of the socket.
    pub fn port(&self) -> u16 {
        self.socket.local_addr().map_or(0, |a| a.port())
    }

    /// Waits for one client that speaks as `tool` does. Calls `keep_waiting` ten times a second; its error
    /// ends the wait. Other programs that connect are turned away.
    pub fn accept(
        &self,
        keep_waiting: impl FnMut() -> Result<(), BootError>,
    ) -> Result<Connection, BootError> {
        self.reception().next(keep_waiting, |_, _| {})
    }

    /// A reception of clients.
    pub fn reception(&self) -> Reception<'_> {
        Reception { listener: self, waiting: Vec::new(), timeout: HANDSHAKE_TIMEOUT }
    }

    /// The error of a process of this host that ended before it connected: the loopback interface's, if that
    /// is the reason.
    pub fn cause_of_absence(&self) -> BootError {
        let Ok(at) = self.socket.local_addr() else { return BootError::Closed };
        match TcpStream::connect_timeout(&at, LOOPBACK_TIMEOUT) {
            Ok(_) => BootError::Closed,
            Err(e) => BootError::NoLoopback { at, why: io_text(&e) },
        }
    }
}

impl Reception<'_> {
    /// Waits for the next client that speaks as the listener's tool does. Calls `keep_waiting` ten times a
    /// second; its error ends the wait. Other clients are turned away, and `turned_away` learns why.
    pub fn next(
        &mut self,
        keep_waiting: impl FnMut() -> Result<(), BootError>,
        turned_away: impl FnMut(SocketAddr, &BootError),
    ) -> Result<Connection, BootError> {
        let greeted = |candidate: &mut Candidate| {
            Ok(if candidate.greeted { Progress::Ready(()) } else { Progress::Waiting })
        };
        self.next_that(greeted, keep_waiting, turned_away).map(|(connection, ())| connection)
    }

    /// Waits for the next client whose handshake is followed by a value of type `T`, as [`Reception::next`].
    pub fn next_request<T: DeserializeOwned>(
        &mut self,
        keep_waiting: impl FnMut() -> Result<(), BootError>,
        turned_away: impl FnMut(SocketAddr, &BootError),
    ) -> Result<(Connection, T), BootError> {
        let request = |candidate: &mut Candidate| {
            if !candidate.greeted {
                return Ok(Progress::Waiting);
            }
            match candidate.connection.take_message()? {
                None => Ok(Progress::Waiting),
                Some(Message::Value(value)) => serde_json::from_value(value)
                    .map(Progress::Ready)
                    .map_err(|e| BootError::Malformed(e.to_string())),
                Some(_) => Err(BootError::Malformed("a value was expected".into())),
            }
        };
        self.next_that(request, keep_waiting, turned_away)
    }

    fn next_that<T>(
        &mut self,
        mut ready: impl FnMut(&mut Candidate) -> Result<Progress<T>, BootError>,
        mut keep_waiting: impl FnMut() -> Result<(), BootError>,
        mut turned_away: impl FnMut(SocketAddr, &BootError),
    ) -> Result<(Connection, T), BootError> {
        loop {
            let mut at = 0;
            while let Some(candidate) = self.waiting.get_mut(at) {
                match candidate.read().and_then(|()| ready(candidate)) {
                    Ok(Progress::Ready(value)) => return Ok((self.waiting.remove(at).connection, value)),
                    Ok(Progress::Waiting) => at += 1,
                    Err(e) => self.reject(at, &e, &mut turned_away),
                }
            }
            self.wait()?;
            keep_waiting()?;
            self.admit(&mut turned_away)?;
        }
    }

    fn reject(&mut self, at: usize, why: &BootError, told: &mut impl FnMut(SocketAddr, &BootError)) {
        let mut connection = self.waiting.remove(at).connection;
        told(connection.peer, why);
        connection.abort(&why.to_string());
    }

    /// Waits until a socket is readable, or for a tenth of a second.
    fn wait(&self) -> Result<(), BootError> {
        let all = self.waiting.iter().map(|candidate| candidate.connection.stream.as_fd());
        let mut fds: Vec<PollFd<'_>> = std::iter::once(self.listener.socket.as_fd())
            .chain(all)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&timespec(POLL_INTERVAL))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(BootError::Io(io_text(&e.into()))),
        }
    }

    /// Accepts one client, if one is there.
    fn admit(&mut self, told: &mut impl FnMut(SocketAddr, &BootError)) -> Result<(), BootError> {
        use std::io::ErrorKind::{ConnectionAborted, Interrupted};
        if !readable(&self.listener.socket, Some(Duration::ZERO)) {
            return Ok(());
        }
        let (stream, peer) = match self.listener.socket.accept() {
            Ok(accepted) => accepted,
            // It left before it was accepted.
            Err(e) if matches!(e.kind(), ConnectionAborted | Interrupted) => return Ok(()),
            Err(e) => return Err(BootError::from_io(e)),
        };
        if self.waiting.len() == MAX_WAITING {
            let (peer, tool) = (self.waiting[0].connection.peer, self.listener.tool);
            self.reject(0, &BootError::Timeout { peer, tool }, told);
        }
        match Connection::shake_hands(stream, peer, self.listener.tool) {
            Ok(connection) => {
                let deadline = Instant::now() + self.timeout;
                self.waiting.push(Candidate { connection, greeted: false, deadline });
            }
            Err(e) => told(peer, &e),
        }
        Ok(())
    }
}
