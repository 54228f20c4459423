//! Completion status of an EFA device, carried in errors of the engine and of the public interface.

use num_enum::{FromPrimitive, IntoPrimitive};
use std::fmt;

/// Completion status of an EFA device: `efa_io_comp_status`, which verbs report as `vendor_err`.
///
/// Printed as its number. A number without a name survives as [`EfaStatus::Unknown`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, FromPrimitive, IntoPrimitive)]
#[repr(u8)]
#[non_exhaustive]
pub enum EfaStatus {
    /// Success.
    Ok = 0,
    /// Flushed: the queue pair went to the error state or was destroyed.
    Flushed = 1,
    /// Internal error of the local queue pair.
    QpInternal = 2,
    /// The queue pair or the device does not support the operation.
    UnsupportedOp = 3,
    /// Invalid address handle.
    InvalidAh = 4,
    /// The local key does not cover the range or the access.
    InvalidLkey = 5,
    /// Local length error: above the MTU or the RDMA limit; of a receive: shorter than the message.
    BadLength = 6,
    /// The remote key does not cover the range or the access.
    RemoteBadAddress = 7,
    /// The remote side reset the connection.
    RemoteAbort = 8,
    /// No such queue pair at the destination: it was destroyed, its process died, or the qkey is wrong.
    BadDestQpn = 9,
    /// Receiver not ready: no receive was posted at the destination and the retries are used up.
    Rnr = 10,
    /// The receive buffer at the destination is too short.
    RemoteBadLength = 11,
    /// The destination's response has an invalid status.
    BadStatus = 12,
    /// The peer answered before and no longer does.
    Unresponsive = 13,
    /// The destination has no address handle of this device and refuses RDMA.
    UnknownPeer = 14,
    /// The peer has never answered.
    Unreachable = 15,
    /// The features of the two devices do not match.
    FeatureMismatch = 18,
    /// A status that has no name here.
    #[num_enum(catch_all)]
    Unknown(u8),
}

impl fmt::Display for EfaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        u8::from(*self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_numbers_round_trip() {
        for number in 0..=u8::MAX {
            let status = EfaStatus::from(number);
            assert_eq!(u8::from(status), number);
            assert_eq!(status.to_string(), number.to_string());
            let named = number <= 15 || number == 18;
            assert_eq!(matches!(status, EfaStatus::Unknown(_)), !named, "{status:?}");
        }
    }
}
