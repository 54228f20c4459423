//! What can go wrong between the two sides before anything is measured. Each is one line that says what to do.

use std::net::SocketAddr;

/// An error of the out-of-band line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    /// Nobody listens there.
    #[error("no server at {host}:{port} ({why}): start `{tool}` there first, with the same -p")]
    NoServer {
        /// Tool that should be started.
        tool: &'static str,
        /// Host asked for.
        host: String,
        /// Port asked for.
        port: u16,
        /// What the system said.
        why: String,
    },
    /// The name means nothing.
    #[error("cannot find host '{host}': {why}")]
    UnknownHost {
        /// Host asked for.
        host: String,
        /// What the resolver said.
        why: String,
    },
    /// Somebody else listens on the port.
    #[error("TCP port {port} is taken: choose another with -p on both sides")]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on TCP port {port}: {why}")]
    Listen {
        /// The port.
        port: u16,
        /// What the system said.
        why: String,
    },
    /// Somebody answers, but it is not one of us.
    #[error("{peer} does not speak the protocol of {tool}: is another program there?")]
    UnknownProtocol {
        /// Who answered.
        peer: SocketAddr,
        /// This tool.
        tool: &'static str,
    },
    /// One of us, but of another age.
    #[error(
        "the other side is {theirs} (protocol {theirs_protocol}), this is {ours} (protocol {ours_protocol}): \
         run the same version on both sides"
    )]
    Version {
        /// The other side's tool and version.
        theirs: String,
        /// Its protocol.
        theirs_protocol: u32,
        /// This side's tool and version.
        ours: String,
        /// Our protocol.
        ours_protocol: u32,
    },
    /// It said nothing.
    #[error("{peer} says nothing")]
    Timeout {
        /// Who.
        peer: SocketAddr,
    },
    /// It said something that makes no sense here.
    #[error("the other side broke the protocol: {}", one_line(why))]
    Malformed {
        /// What was wrong.
        why: String,
    },
    /// What is to be said is more than the other side takes.
    #[error("a line of {len} bytes for the other side, which takes {most}: ask for less at once")]
    TooLong {
        /// Its length.
        len: usize,
        /// The most there may be.
        most: usize,
    },
    /// It ended.
    #[error("the other side went away")]
    Closed,
    /// It gave up and said why.
    #[error("the other side gave up: {}", one_line(why))]
    PeerAborted {
        /// Its words.
        why: String,
    },
    /// The connection failed.
    #[error("the connection to the other side failed: {why}")]
    Io {
        /// What the system said.
        why: String,
    },
}

/// Words of the other side, as they may be shown: on one line, without control characters, of bounded length.
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
            _ => BootError::Io { why: super::io_text(&e) },
        }
    }
}
