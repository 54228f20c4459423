//! Errors of the out-of-band connection. Each is one line that says what to do.

use std::net::SocketAddr;

/// An error of the out-of-band connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    /// Nobody listens at the address.
    #[error("no server at {host}:{port} ({why}): start `{tool}` there first, with the same -p")]
    NoServer {
        /// Tool that should be started there.
        tool: &'static str,
        /// Host asked for.
        host: String,
        /// Port asked for.
        port: u16,
        /// Text of the system.
        why: String,
    },
    /// The host name does not resolve.
    #[error("cannot find host '{host}': {why}")]
    UnknownHost {
        /// Host asked for.
        host: String,
        /// Text of the resolver.
        why: String,
    },
    /// Another process listens on the port.
    #[error("TCP port {0} is taken: choose another with -p on both sides")]
    PortInUse(u16),
    /// The port cannot be listened on.
    #[error("cannot listen on TCP port {port}: {why}")]
    Listen {
        /// The port.
        port: u16,
        /// Text of the system.
        why: String,
    },
    /// The other side speaks another protocol.
    #[error("{peer} does not speak the protocol of {tool}: is another program there?")]
    UnknownProtocol {
        /// Address of the other side.
        peer: SocketAddr,
        /// This tool.
        tool: &'static str,
    },
    /// The other side is this tool in an incompatible version.
    #[error(
        "the other side is {theirs} (protocol {theirs_protocol}), this is {ours} (protocol {ours_protocol}): \
         run the same version on both sides"
    )]
    Version {
        /// Tool and version of the other side.
        theirs: String,
        /// Protocol number of the other side.
        theirs_protocol: u32,
        /// This side's tool and version.
        ours: String,
        /// This side's protocol number.
        ours_protocol: u32,
    },
    /// The other side sent nothing, or not enough, in time.
    #[error("{peer} is connected and says nothing: is {tool} stopped there, or is another program there?")]
    Timeout {
        /// Address of the other side.
        peer: SocketAddr,
        /// This tool.
        tool: &'static str,
    },
    /// A process of this host could not connect to another.
    #[error(
        "a process of this host cannot connect to another by {at} ({why}): is the loopback interface up?"
    )]
    NoLoopback {
        /// Address tried.
        at: SocketAddr,
        /// Text of the system.
        why: String,
    },
    /// The other side sent a message that does not parse or is not expected now.
    #[error("the other side broke the protocol: {}", one_line(.0))]
    Malformed(String),
    /// A message is longer than the other side takes.
    #[error("a line of {len} bytes for the other side, which takes {most}: ask for less at once")]
    TooLong {
        /// Length of the message, bytes.
        len: usize,
        /// Longest that is taken, bytes.
        most: usize,
    },
    /// The other side closed the connection.
    #[error("the other side went away")]
    Closed,
    /// The other side gave up and said why.
    #[error("the other side gave up: {}", one_line(.0))]
    PeerAborted(String),
    /// The connection failed.
    #[error("the connection to the other side failed: {0}")]
    Io(String),
}

/// Makes text of the other side printable: one line, no control characters, bounded length.
pub fn one_line(words: &str) -> String {
    const LONGEST: usize = 500;
    let mut text: String =
        words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    if words.chars().nth(LONGEST).is_some() {
        text += "...";
    }
    text
}

impl BootError {
    pub(super) fn from_io(e: std::io::Error) -> BootError {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        match e.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset => BootError::Closed,
            _ => BootError::Io(super::io_text(&e)),
        }
    }
}
