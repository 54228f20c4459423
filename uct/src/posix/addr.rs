//! Addresses of `posix`: the host and socket namespace, and the interface of a process there. An address is
//! unverified until the segment behind it has been attached.

use crate::api::{AddrBuf, ConnectError};
use crate::host::fd_server::{Name, SocketNamespace};

pub fn pack(name: Name) -> AddrBuf {
    name.0.to_le_bytes().into_iter().collect()
}

pub fn unpack(iface: &[u8]) -> Result<Name, ConnectError> {
    let bytes = iface.try_into().map_err(|_| ConnectError::Malformed)?;
    let name = Name(u64::from_le_bytes(bytes));
    if name.owner().0 == 0 { Err(ConnectError::Malformed) } else { Ok(name) }
}

pub fn pack_device(namespace: &SocketNamespace) -> AddrBuf {
    namespace.device_id().to_le_bytes().into_iter().collect()
}

/// Checks that a device address is of our host and socket namespace.
pub fn check_device(device: &[u8], here: &SocketNamespace) -> Result<(), ConnectError> {
    let bytes = device.try_into().map_err(|_| ConnectError::Malformed)?;
    here.check_reachable(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_addresses_are_rejected() {
        let name = Name(0x1234_5678_9abc_def0);
        assert_eq!(unpack(&pack(name)), Ok(name));
        assert_eq!(unpack(&[0; 8]), Err(ConnectError::Malformed));
        assert_eq!(unpack(&[1; 7]), Err(ConnectError::Malformed));
        let here = SocketNamespace::new("").unwrap();
        assert_eq!(check_device(&pack_device(&here), &here), Ok(()));
        assert_eq!(check_device(&[], &here), Err(ConnectError::Malformed));
    }
}
