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

#[cfg(test)]
mod tests {
    use super::*;
    use ucp::rdm::LocalError;
    use ucp::wire::EfaStatus;
    use ucp::{DatatypeError, PeerId};
    use ucs::InternedStr;

    /// `PAGE=write` writes the table of `docs/ucp.md`.
    #[test]
    fn the_page_lists_errors_with_their_numbers() {
        let peer = PeerId(7);
        let all = [
            Error::Truncated { len: 100, room: 8 },
            Error::Cancelled,
            Error::Invalid,
            Error::OutsideMem { len: 100, mem: 64 },
            Error::TooManyPieces { max: 4 },
            Error::AtomicTooLong { len: 10_000, max: 8000 },
            Error::EmulationDisabled,
            Error::HeaderTooLong { len: 70_000, max: 4000 },
            Error::NotConnected,
            Error::ConnectFailed(ucp::ConnectFailure::Refused),
            Error::Thread(ucp::LockError::WrongThread),
            Error::Closed,
            Error::NoMessage,
            Error::PeerGone(peer),
            Error::Reset(peer),
            Error::Corrupt(peer),
            Error::Unreachable(peer),
            Error::Unresponsive(peer),
            Error::TimedOut(Some(peer)),
            Error::RemoteAccess(peer),
            Error::Aborted(peer, 4127),
            Error::TooLong { len: 10_000, max: 8000 },
            Error::Unsupported,
            Error::Exhausted,
            Error::QueueFull(64),
            Error::NoDescriptor(peer),
            Error::OverLimit(peer),
            Error::NoMemory(peer),
            Error::NoMore(peer, InternedStr::new("queue pairs")),
            Error::Local(Some(peer), LocalError::NotConnected),
            Error::Device(Some(peer), EfaStatus::from(15)),
            Error::Datatype(DatatypeError::Pack),
        ];
        let errnos = [
            (Errno::TRUNC, "FI_ETRUNC"),
            (Errno::CANCELED, "FI_ECANCELED"),
            (Errno::INVAL, "FI_EINVAL"),
            (Errno::MSGSIZE, "FI_EMSGSIZE"),
            (Errno::NOMEM, "FI_ENOMEM"),
            (Errno::AGAIN, "FI_EAGAIN"),
            (Errno::OPNOTSUPP, "FI_EOPNOTSUPP"),
            (Errno::SHUTDOWN, "FI_ESHUTDOWN"),
            (Errno::CONNRESET, "FI_ECONNRESET"),
            (Errno::HOSTUNREACH, "FI_EHOSTUNREACH"),
            (Errno::TIMEDOUT, "FI_ETIMEDOUT"),
            (Errno::ACCES, "FI_EACCES"),
            (Errno::NOMSG, "FI_ENOMSG"),
            (Errno::BUSY, "FI_EBUSY"),
            (Errno::IO, "FI_EIO"),
        ];
        let mut must = String::from("| `Error` | message | status in C | libfabric |\n|---|---|---|---|\n");
        for error in all {
            let name = format!("{error:?}");
            let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            // UCS_ERR_NO_MEMORY of NoMemory.
            let status =
                format!("{:?}", error.status()).chars().fold(String::from("UCS_ERR"), |mut text, c| {
                    if c.is_uppercase() {
                        text.push('_');
                    }
                    text.push(c.to_ascii_uppercase());
                    text
                });
            let errno = Errno::from(error);
            let errno = errnos.iter().find(|(known, _)| *known == errno).expect("its name is known").1;
            must += &format!("| `{name}` | {error} | `{status}` | `{errno}` |\n");
        }
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ucp.md");
        ucs::testing::page_has(&page, ("<!-- errors -->\n", "<!-- /errors -->\n"), &must);
    }
}
