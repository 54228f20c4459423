//! Maps errors of transports to the engine's errors of peers.

use ucs::InternedStr;
use uct::api::Error;

use crate::rdm::LocalError;
use crate::rdm::io::{NotPosted, PeerError};
use crate::wire::EfaStatus;

/// Whether an error is a shortage of this host, which may pass.
pub(super) fn is_shortage(e: &Error) -> bool {
    matches!(e, Error::NoDescriptor | Error::NoMemory | Error::Exhausted(_))
}

/// The engine's answer to a call that a transport has refused.
#[cold]
pub(super) fn refused(e: Error) -> NotPosted {
    NotPosted::Peer(fault_of(e))
}

/// Maps a transport's error to the engine's error of a peer.
#[cold]
pub(crate) fn fault_of(e: Error) -> PeerError {
    match e {
        Error::PeerDead => PeerError::Gone,
        Error::Corrupt => PeerError::Corrupt,
        Error::Unreachable => PeerError::Unreachable,
        Error::Unresponsive => PeerError::Unresponsive,
        Error::NoDescriptor => PeerError::NoDescriptor,
        Error::NoMemory => PeerError::NoMemory,
        Error::Exhausted(what) => PeerError::Exhausted(InternedStr::new(what)),
        Error::Device(code) => PeerError::Device(code.into()),
        // The remaining errors have a completion status of the EFA device too.
        Error::RemoteAccess => PeerError::Device(EfaStatus::RemoteBadAddress),
        Error::NotReady => PeerError::Device(EfaStatus::Rnr),
        Error::RemoteLength => PeerError::Device(EfaStatus::RemoteBadLength),
        Error::BadLocalKey => PeerError::Device(EfaStatus::InvalidLkey),
        Error::Cancelled => PeerError::Device(EfaStatus::Flushed),
        // Mistakes at this end: the lane and the peer are well.
        Error::Unsupported(op) => PeerError::Local(LocalError::Unsupported(InternedStr::new(op.name()))),
        Error::InvalidParam(why) => PeerError::Local(LocalError::InvalidParam(InternedStr::new(why))),
        Error::TooLong { max, .. } => {
            let why = InternedStr::kept(&format!("more than the {max} bytes that the transport takes"));
            PeerError::Local(LocalError::TooLong(why))
        }
        Error::NotConnected => PeerError::Local(LocalError::NotConnected),
        Error::Sys { .. } => PeerError::Local(LocalError::System(InternedStr::kept(&e.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_errors_are_no_lane_failures() {
        let sys = Error::Sys { call: "test", errno: ucs::Errno(22) };
        let unsupported = Error::Unsupported(uct::api::Op::AmShort);
        let too_long = Error::TooLong { len: 9, max: 8 };
        for error in [unsupported, Error::InvalidParam("test"), sys, too_long, Error::NotConnected] {
            let fault = fault_of(error);
            assert!(fault.is_local() && !fault.is_local_lane() && !fault.is_lane_failure(), "{fault}");
            assert!(!fault.is_peer_failure(), "{fault}");
        }
        assert!(fault_of(Error::Device(2)).is_local_lane());
        for (error, text) in [
            (unsupported, "am_short"),
            (Error::InvalidParam("a reason"), "a reason"),
            (sys, "test: EINVAL"),
            (too_long, "8 bytes"),
            (Error::Exhausted("writers"), "no more writers"),
        ] {
            let told = fault_of(error).to_string();
            assert!(told.contains(text), "{told}");
        }
    }
}
