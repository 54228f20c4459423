//! Errors of the data path, sorted by blame, and errors of opening, with text for people.

use super::Op;
use ucs::mem::MemError;
use ucs::{Blame, Errno, Status};

/// An error of a communication call or completion. Small and `Copy`: it travels on the hot path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// This interface cannot do that; its attributes say so.
    #[error("{0} is not supported by this interface")]
    Unsupported(Op),
    /// An argument breaks the call's rules.
    #[error("invalid parameter: {0}")]
    InvalidParam(&'static str),
    /// The data do not fit the limit in the attributes.
    #[error("{len} bytes do not fit the limit of {max}")]
    TooLong {
        /// Length asked for, bytes.
        len: usize,
        /// The attribute's limit, bytes.
        max: usize,
    },
    /// The local memory is not registered for this use, or the range leaves the registration.
    #[error("local memory is not registered for this range or access")]
    BadLocalKey,
    /// The operation was still in the device's queue when that was closed or failed.
    #[error("cancelled")]
    Cancelled,
    /// The endpoint was made by [`super::Iface::create_ep`] and is not joined to another yet.
    #[error("endpoint is not connected yet")]
    NotConnected,
    /// The peer's address cannot be reached over this interface.
    #[error("peer is not reachable over this interface")]
    Unreachable,
    /// The peer was heard before and answers no more: its host is cut off or down, or its process hangs.
    #[error("peer no longer answers")]
    Unresponsive,
    /// The peer's process or queue is gone.
    #[error("peer is gone")]
    PeerDead,
    /// Memory that processes share holds a word that no correct process writes: one has overwritten it. The
    /// peer and its process may be well.
    #[error("shared memory is corrupt: a process has overwritten what is not its own")]
    Corrupt,
    /// The remote key does not cover this address, length or access.
    #[error("remote key does not allow this access")]
    RemoteAccess,
    /// The peer has no posted receive and the retries allowed are used up.
    #[error("peer has no receive buffers posted")]
    NotReady,
    /// The peer's receive buffer is too small for the message.
    #[error("message is longer than the peer's receive buffer")]
    RemoteLength,
    /// The device reported a completion status that has no better name here (EFA status code).
    #[error("device completion status {0}")]
    Device(u8),
    /// Memory could not be had.
    #[error("out of memory (free some, use smaller sizes, or raise the container's or user's limit)")]
    NoMemory,
    /// This process, or the system, has no file descriptor left.
    #[error("no file descriptor left (raise the limit, see `ulimit -n`)")]
    NoDescriptor,
    /// A finite kind of object is used up (queue pairs, address handles, keys).
    #[error("no more {0}")]
    Exhausted(&'static str),
    /// A system call failed.
    #[error("{call}: {errno}{}", limit_of(.errno))]
    Sys {
        /// The call's name.
        call: &'static str,
        /// Error number.
        errno: Errno,
    },
}

/// The limit that made a system call fail, for its message; empty where it is none, or not known.
fn limit_of(errno: &Errno) -> &'static str {
    match errno.0 {
        libc::EMFILE | libc::ENFILE => " (raise the limit, see `ulimit -n`)",
        _ => "",
    }
}

impl Error {
    /// Party that has to act.
    pub fn blame(self) -> Blame {
        use Error::*;
        match self {
            Unsupported(_) | InvalidParam(_) | TooLong { .. } | BadLocalKey | Cancelled | NotConnected => {
                Blame::Caller
            }
            Unreachable | Unresponsive | PeerDead | Corrupt | RemoteAccess | NotReady | RemoteLength => {
                Blame::Peer
            }
            Device(_) => Blame::Device,
            NoMemory | NoDescriptor | Exhausted(_) | Sys { .. } => Blame::Resource,
        }
    }

    /// The status code of the C API.
    pub fn status(self) -> Status {
        use Error::*;
        match self {
            Unsupported(_) => Status::Unsupported,
            InvalidParam(_) | BadLocalKey => Status::InvalidParam,
            TooLong { .. } => Status::ExceedsLimit,
            Cancelled => Status::Canceled,
            NotConnected => Status::NotConnected,
            Unreachable => Status::Unreachable,
            Unresponsive => Status::EndpointTimeout,
            PeerDead | Corrupt => Status::ConnectionReset,
            RemoteAccess => Status::Rejected,
            NotReady => Status::TimedOut,
            RemoteLength => Status::MessageTruncated,
            Device(_) | Sys { .. } => Status::IoError,
            NoMemory | NoDescriptor | Exhausted(_) => Status::NoMemory,
        }
    }
}

/// Why a component, domain, worker, interface or endpoint could not be opened: one line that says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No transport of that name.
    #[error("unknown transport '{name}' (there are: {known})")]
    UnknownTransport {
        /// Name asked for.
        name: String,
        /// The names there are, comma separated.
        known: String,
    },
    /// The transport has no such device.
    #[error("transport '{transport}' has no device '{name}' (there are: {known})")]
    UnknownDevice {
        /// Transport asked.
        transport: String,
        /// Name asked for.
        name: String,
        /// The names there are, comma separated.
        known: String,
    },
    /// A configuration value is bad; the text names key, value and what was expected.
    #[error("{0}")]
    Config(String),
    /// The machine lacks what this needs; the text says what and how to get it.
    #[error("{0}")]
    Environment(String),
    /// The machine has no more of something; the text says of what and how to get more.
    #[error("{why}")]
    Exhausted {
        /// One line for people.
        why: String,
        /// Error number of the system.
        errno: Errno,
    },
    /// A data-path style error while opening.
    #[error(transparent)]
    Op(#[from] Error),
}

impl OpenError {
    pub(crate) fn memory(what: impl std::fmt::Display, e: &MemError) -> OpenError {
        let why = format!("{what}: {e}");
        match e.errno() {
            Some(errno) if e.blame() == Blame::Resource => OpenError::Exhausted { why, errno },
            _ => OpenError::Environment(why),
        }
    }

    /// The status code of the C API.
    pub fn status(&self) -> Status {
        match self {
            OpenError::UnknownTransport { .. } | OpenError::UnknownDevice { .. } => Status::NoDevice,
            OpenError::Config(_) => Status::InvalidParam,
            OpenError::Environment(_) => Status::IoError,
            OpenError::Exhausted { .. } => Status::NoMemory,
            OpenError::Op(e) => e.status(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_descriptor_names_the_limit() {
        let error = |errno| Error::Sys { call: "eventfd", errno: Errno(errno) }.to_string();
        assert_eq!(
            error(libc::EMFILE),
            "eventfd: EMFILE: Too many open files (raise the limit, see `ulimit -n`)"
        );
        assert_eq!(error(libc::EACCES), "eventfd: EACCES: Permission denied");
    }
}
