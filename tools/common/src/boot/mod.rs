//! The out-of-band connection between the sides of a tool: TCP with one JSON value per line. Carries
//! addresses, keys, test plans and barriers, never measured data. Input is not trusted: lines are bounded,
//! the handshake is checked first, and a peer that is silent, gone or of another version is a one-line error.

mod err;
mod group;
mod handshake;
mod listen;

pub use err::{BootError, one_line};
pub use group::{GatherServer, Member};
pub use handshake::{Handshake, PROTOCOL};
pub use listen::{Listener, Reception};

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest line taken from a peer, bytes.
const MAX_LINE: usize = 1 << 20;
/// Longest line of a group's server, bytes.
const MAX_GROUP_LINE: usize = 16 << 20;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls of `progress` between two polls of the socket.
const PROGRESS_PER_POLL: u32 = 512;
/// Polls without an event before the loop sleeps between them. Until then requests of the other side are
/// answered at once, as a measured operation may wait for the answer.
const POLLS_BEFORE_WAIT: u32 = 64;
const MIN_WAIT: Duration = Duration::from_micros(20);
const MAX_WAIT: Duration = Duration::from_millis(1);

/// Conduct of a wait while nothing happens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Idle {
    /// Sleeps.
    Sleep,
    /// Lets other threads of its core go first.
    Yield,
}

/// Internet protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    #[serde(rename = "hello")]
    Handshake(Handshake),
    Value(serde_json::Value),
    Barrier(u32),
    Abort(String),
}

/// A connection to the other side.
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    tool: &'static str,
    received: Vec<u8>,
    /// Bytes at the start of `received` that hold no line end.
    scanned: usize,
    barriers: u32,
    /// Longest line taken from the other side, and longest that it takes, bytes.
    max_recv: usize,
    max_send: usize,
}

/// Tells another thread whether the other side of a connection is still there.
pub struct PeerWatch(TcpStream);

impl PeerWatch {
    /// Returns [`BootError::Closed`] if the other side has closed the connection, even with unread messages.
    pub fn check_alive(&self) -> Result<(), BootError> {
        let mut fds = [PollFd::new(&self.0, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&timespec(Duration::ZERO))) {
            Ok(n) if n > 0 => Err(BootError::Closed),
            _ => Ok(()),
        }
    }
}

impl Connection {
    /// Connects to a server.
    pub fn connect(tool: &'static str, host: &str, port: u16) -> Result<Connection, BootError> {
        Connection::connect_within(tool, host, port, HANDSHAKE_TIMEOUT)
    }

    fn connect_within(
        tool: &'static str,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> Result<Connection, BootError> {
        let unknown = |why: String| BootError::UnknownHost { host: host.to_owned(), why };
        let all: Vec<SocketAddr> =
            (host, port).to_socket_addrs().map_err(|e| unknown(io_text(&e)))?.collect();
        let mut last = None;
        for at in all {
            match TcpStream::connect_timeout(&at, timeout) {
                Ok(stream) => return Connection::handshake(stream, at, tool, timeout),
                Err(e) => last = Some((at, e)),
            }
        }
        match last {
            Some((at, e)) if at.ip().is_loopback() && is_unreachable(&e) => {
                Err(BootError::NoLoopback { at, why: io_text(&e) })
            }
            Some((_, e)) => Err(BootError::NoServer { tool, host: host.to_owned(), port, why: io_text(&e) }),
            None => Err(unknown("it has no address".into())),
        }
    }

    fn handshake(
        stream: TcpStream,
        peer: SocketAddr,
        tool: &'static str,
        timeout: Duration,
    ) -> Result<Connection, BootError> {
        let mut connection = Connection::shake_hands(stream, peer, tool)?;
        let greeting = connection.next_message(Some(Instant::now() + timeout), Idle::Sleep, || 0);
        connection.check_greeting(greeting)?;
        Ok(connection)
    }

    /// Sends the handshake.
    fn shake_hands(stream: TcpStream, peer: SocketAddr, tool: &'static str) -> Result<Connection, BootError> {
        // Small lines leave at once; without the option they are only slower.
        let _ = stream.set_nodelay(true);
        let (received, max_recv, max_send) = (Vec::new(), MAX_LINE, MAX_LINE);
        let mut connection =
            Connection { stream, peer, tool, received, scanned: 0, barriers: 0, max_recv, max_send };
        connection.send_message(&Message::Handshake(Handshake::new(tool)))?;
        Ok(connection)
    }

    /// Checks what came as the other side's handshake.
    fn check_greeting(&self, greeting: Result<Message, BootError>) -> Result<(), BootError> {
        let stranger = BootError::UnknownProtocol { peer: self.peer, tool: self.tool };
        match greeting {
            Ok(Message::Handshake(theirs)) => Handshake::new(self.tool).agrees(&theirs),
            Err(BootError::Timeout { .. }) if !self.received.is_empty() => Err(stranger),
            Ok(_) | Err(BootError::Malformed(..)) => Err(stranger),
            Err(e) => Err(e),
        }
    }

    /// Address of the other side.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// A watch for another thread.
    pub fn watch(&self) -> Result<PeerWatch, BootError> {
        self.stream.try_clone().map(PeerWatch).map_err(|e| BootError::Io(io_text(&e)))
    }

    /// Sends a value.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), BootError> {
        let value = serde_json::to_value(value).expect("values of tools are plain data");
        self.send_message(&Message::Value(value))
    }

    /// Waits for a value. Calls `progress` meanwhile, which returns the number of events it found.
    pub fn recv<T: DeserializeOwned>(&mut self, progress: impl FnMut() -> usize) -> Result<T, BootError> {
        self.recv_until(None, progress)
    }

    /// Waits for a value, at most `timeout`.
    pub fn recv_within<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<T, BootError> {
        self.recv_until(Some(Instant::now() + timeout), || 0)
    }

    fn recv_until<T: DeserializeOwned>(
        &mut self,
        deadline: Option<Instant>,
        progress: impl FnMut() -> usize,
    ) -> Result<T, BootError> {
        match self.next_message(deadline, Idle::Sleep, progress)? {
            Message::Value(value) => {
                serde_json::from_value(value).map_err(|e| BootError::Malformed(e.to_string()))
            }
            _ => Err(BootError::Malformed("a value was expected".into())),
        }
    }

    /// Sends `mine`, then waits for a value as [`recv`](Self::recv) does.
    pub fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        progress: impl FnMut() -> usize,
    ) -> Result<T, BootError> {
        self.send(mine)?;
        self.recv(progress)
    }

    /// Waits until both sides have called this, with progress meanwhile. Sleeps between calls of `progress`
    /// that find no events.
    pub fn barrier(&mut self, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        self.barrier_by(Idle::Sleep, progress)
    }

    /// As [`barrier`](Self::barrier), but calls `progress` all the time and never sleeps.
    pub fn busy_barrier(&mut self, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        self.barrier_by(Idle::Yield, progress)
    }

    fn barrier_by(&mut self, idle: Idle, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        self.barriers += 1;
        self.send_message(&Message::Barrier(self.barriers))?;
        match self.next_message(None, idle, progress)? {
            Message::Barrier(n) if n == self.barriers => Ok(()),
            _ => Err(BootError::Malformed(format!("barrier {} was expected", self.barriers))),
        }
    }

    /// Tells the other side why this one gives up. Lost if the other side is gone.
    pub fn abort(&mut self, why: &str) {
        let _ = self.send_message(&Message::Abort(why.to_owned()));
    }

    /// Returns an error if the other side has left or given up. Does not wait; takes about a microsecond.
    pub fn check_alive(&mut self) -> Result<(), BootError> {
        let ended = match readable(&self.stream, Some(Duration::ZERO)) {
            true => self.read_available().err(),
            false => None,
        };
        // The last message before the end says why. Others stay for the call that expects them.
        for raw in self.received.split(|b| *b == b'\n') {
            if let Ok(Message::Abort(why)) = serde_json::from_slice(raw) {
                return Err(BootError::PeerAborted(why));
            }
        }
        ended.map_or(Ok(()), Err)
    }

    fn send_message(&mut self, line: &Message) -> Result<(), BootError> {
        let mut bytes = serde_json::to_vec(line).expect("lines are plain data");
        bytes.push(b'\n');
        if bytes.len() > self.max_send {
            return Err(BootError::TooLong { len: bytes.len(), most: self.max_send });
        }
        if let Err(e) = self.stream.write_all(&bytes) {
            // A last message may say why the other side left.
            return Err(self.check_alive().err().unwrap_or_else(|| BootError::from_io(e)));
        }
        Ok(())
    }

    fn next_message(
        &mut self,
        deadline: Option<Instant>,
        when_idle: Idle,
        mut progress: impl FnMut() -> usize,
    ) -> Result<Message, BootError> {
        let (mut wait_time, mut idle) = (MIN_WAIT, 0u32);
        loop {
            if let Some(line) = self.take_message()? {
                return Ok(line);
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Err(BootError::Timeout { peer: self.peer, tool: self.tool });
            }
            let events: usize = (0..PROGRESS_PER_POLL).map(|_| progress()).sum();
            idle = if events > 0 { 0 } else { idle.saturating_add(1) };
            let wait = match idle {
                0..POLLS_BEFORE_WAIT => {
                    wait_time = MIN_WAIT;
                    Duration::ZERO
                }
                _ if when_idle == Idle::Yield => {
                    std::thread::yield_now();
                    Duration::ZERO
                }
                // Sleeping longer while nothing happens leaves the core to other threads.
                _ => {
                    wait_time = (wait_time * 2).min(MAX_WAIT);
                    wait_time
                }
            };
            if readable(&self.stream, Some(wait)) {
                self.read_available()?;
            }
        }
    }

    fn take_message(&mut self) -> Result<Option<Message>, BootError> {
        let Some(end) = self.received[self.scanned..].iter().position(|b| *b == b'\n') else {
            self.scanned = self.received.len();
            return match self.received.len() < self.max_recv {
                true => Ok(None),
                false => Err(BootError::Malformed(format!("a line longer than {} bytes", self.max_recv))),
            };
        };
        let raw: Vec<u8> = self.received.drain(..=self.scanned + end).collect();
        self.scanned = 0;
        match serde_json::from_slice(&raw) {
            Ok(Message::Abort(why)) => Err(BootError::PeerAborted(why)),
            Ok(line) => Ok(Some(line)),
            Err(e) => Err(BootError::Malformed(e.to_string())),
        }
    }

    fn read_available(&mut self) -> Result<(), BootError> {
        let mut buf = [0; 4096];
        match self.stream.read(&mut buf) {
            Ok(0) => Err(BootError::Closed),
            Ok(n) => {
                self.received.extend_from_slice(&buf[..n]);
                Ok(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(e) => Err(BootError::from_io(e)),
        }
    }
}

/// Whether something can be read or accepted within `time`; `None` waits for ever.
fn readable(fd: &impl std::os::fd::AsFd, time: Option<Duration>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let time = time.map(timespec);
    matches!(poll(&mut fds, time.as_ref()), Ok(n) if n > 0)
}

fn timespec(t: Duration) -> Timespec {
    Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() }
}

/// Whether no interface leads to the address.
fn is_unreachable(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(e.kind(), AddrNotAvailable | HostUnreachable | NetworkDown | NetworkUnreachable)
}

/// Text of an error without "(os error N)".
fn io_text(e: &std::io::Error) -> String {
    let text = e.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

/// Bytes, written as a hexadecimal string in JSON.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HexBytes(pub Vec<u8>);

impl fmt::Debug for HexBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{self:?}"))
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<HexBytes, D::Error> {
        let text = String::deserialize(d)?;
        let pairs = text.as_bytes().chunks(2);
        let byte = |p: &[u8]| {
            let digit = |c: u8| char::from(c).to_digit(16);
            match p {
                [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
                _ => None,
            }
        };
        pairs
            .map(byte)
            .collect::<Option<Vec<u8>>>()
            .map(HexBytes)
            .ok_or_else(|| serde::de::Error::custom("bytes as hexadecimal digits were expected"))
    }
}

#[cfg(test)]
mod tests;
