//! Blame for errors, and operating-system error numbers. Each crate has an error enum of its own.

use std::{fmt, io};

/// Party that has to act for an error to go away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Blame {
    /// The program that made the call: an argument, an order of calls, a configuration value.
    Caller,
    /// The process at the other end: it died, sent nonsense, or refused.
    Peer,
    /// The device or the operating system below us.
    Device,
    /// Something is used up: memory, descriptors, queue entries. May succeed later.
    Resource,
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Blame::Caller => "caller",
            Blame::Peer => "peer",
            Blame::Device => "device",
            Blame::Resource => "resource",
        })
    }
}

/// An operating-system error number. Small, copyable, comparable; prints its name and text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($name:ident)*) => {
        /// Symbolic name of the number, when it is one that this stack meets.
        pub const fn name(self) -> Option<&'static str> {
            match self.0 {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

impl Errno {
    names! {
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV
        ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE ENAMETOOLONG
        ENOSYS ELOOP EPROTO EOVERFLOW EMSGSIZE EPROTONOSUPPORT EOPNOTSUPP EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL
        ENETDOWN ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN
        EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ECANCELED EREMOTEIO
    }

    /// The calling thread's last error (`errno`).
    pub fn last_os() -> Errno {
        Errno::from(io::Error::last_os_error())
    }

    /// True when the cause is used-up memory, space, descriptors or lock limit.
    pub const fn is_resource(self) -> bool {
        matches!(
            self.0,
            libc::ENOMEM
                | libc::ENOSPC
                | libc::EMFILE
                | libc::ENFILE
                | libc::EAGAIN
                | libc::ENOBUFS
                | libc::EDQUOT
        )
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or_default();
        match self.name() {
            Some(name) => write!(f, "{name}: {text}"),
            None => write!(f, "errno {}: {text}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({self})")
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(e: rustix::io::Errno) -> Self {
        Errno(e.raw_os_error())
    }
}

impl From<io::Error> for Errno {
    /// Errors made by the standard library itself, without a number, become `EIO`.
    fn from(e: io::Error) -> Self {
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for io::Error {
    fn from(e: Errno) -> Self {
        io::Error::from_raw_os_error(e.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_name_and_text() {
        assert_eq!(Errno(libc::ENOMEM).to_string(), "ENOMEM: Cannot allocate memory");
        assert!(Errno(9999).to_string().starts_with("errno 9999"));
        assert_eq!(Errno::from(rustix::io::Errno::NOENT), Errno(libc::ENOENT));
    }

    #[test]
    fn last_os_is_the_threads_errno() {
        assert!(std::fs::File::open("/no/such/file").is_err());
        assert_eq!(Errno::last_os(), Errno(libc::ENOENT));
    }

    #[test]
    fn resource_errors_are_recognised() {
        assert!(Errno(libc::ENOSPC).is_resource());
        assert!(!Errno(libc::EINVAL).is_resource());
    }
}
