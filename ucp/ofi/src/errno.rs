//! Error numbers of libfabric: those of the system, and its own from 256.

use std::ffi::c_int;

use ucp::Error;
use ucs::Status;

/// An error number, positive as in `fi_errno.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub c_int);

impl Errno {
    pub(crate) const NOENT: Errno = Errno(libc::ENOENT);
    pub(crate) const IO: Errno = Errno(libc::EIO);
    pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
    pub(crate) const NOMEM: Errno = Errno(libc::ENOMEM);
    pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
    pub(crate) const INVAL: Errno = Errno(libc::EINVAL);
    pub(crate) const NOSYS: Errno = Errno(libc::ENOSYS);
    pub(crate) const NODATA: Errno = Errno(libc::ENODATA);
    pub(crate) const MSGSIZE: Errno = Errno(libc::EMSGSIZE);
    pub(crate) const NOPROTOOPT: Errno = Errno(libc::ENOPROTOOPT);
    pub(crate) const OPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub(crate) const CONNRESET: Errno = Errno(libc::ECONNRESET);
    pub(crate) const TIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    pub(crate) const NOTCONN: Errno = Errno(libc::ENOTCONN);
    pub(crate) const CONNREFUSED: Errno = Errno(libc::ECONNREFUSED);
    pub(crate) const ADDRNOTAVAIL: Errno = Errno(libc::EADDRNOTAVAIL);
    pub(crate) const HOSTUNREACH: Errno = Errno(libc::EHOSTUNREACH);
    pub(crate) const ACCES: Errno = Errno(libc::EACCES);
    pub(crate) const CANCELED: Errno = Errno(libc::ECANCELED);
    pub(crate) const NOMSG: Errno = Errno(libc::ENOMSG);
    pub(crate) const SHUTDOWN: Errno = Errno(libc::ESHUTDOWN);
    pub(crate) const TOOSMALL: Errno = Errno(257);
    pub(crate) const OPBADSTATE: Errno = Errno(258);
    pub(crate) const AVAIL: Errno = Errno(259);
    pub(crate) const BADFLAGS: Errno = Errno(260);
    pub(crate) const NOEQ: Errno = Errno(261);
    pub(crate) const NOCQ: Errno = Errno(263);
    pub(crate) const TRUNC: Errno = Errno(265);
    pub(crate) const NOKEY: Errno = Errno(266);
    pub(crate) const NOAV: Errno = Errno(267);

    /// The error number of an error of the engine.
    pub(crate) fn of_status(status: Status) -> Errno {
        match status {
            Status::MessageTruncated => Errno::TRUNC,
            Status::Canceled => Errno::CANCELED,
            Status::InvalidParam | Status::InvalidAddr | Status::OutOfRange => Errno::INVAL,
            Status::ExceedsLimit => Errno::MSGSIZE,
            Status::NoMemory => Errno::NOMEM,
            Status::NoResource => Errno::AGAIN,
            Status::Unsupported | Status::NotImplemented => Errno::OPNOTSUPP,
            Status::NotConnected => Errno::SHUTDOWN,
            Status::ConnectionReset => Errno::CONNRESET,
            Status::Unreachable => Errno::HOSTUNREACH,
            Status::EndpointTimeout | Status::TimedOut => Errno::TIMEDOUT,
            Status::Rejected => Errno::ACCES,
            Status::NoMessage => Errno::NOMSG,
            Status::Busy => Errno::BUSY,
            _ => Errno::IO,
        }
    }
}

impl From<Error> for Errno {
    #[cold]
    fn from(error: Error) -> Errno {
        match error {
            // Operations of the engine that have ended make room.
            Error::Exhausted => Errno::AGAIN,
            error => Errno::of_status(error.status()),
        }
    }
}
