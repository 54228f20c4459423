//! Addresses of `posix`: which host, and which memory file of which process.
//! Made by the interface, read by peers. An address is a claim until the segment behind it has been looked at.

use crate::api::{AddrBuf, ConnectError};
use std::os::fd::RawFd;
use ucs::sys::host::HostKey;

/// Bits of a process id; Linux allows no more.
const PID_BITS: u32 = 22;
/// Bits of a descriptor number.
const FD_BITS: u32 = 20;

/// Bits of the number.
const NONCE_BITS: u32 = 64 - PID_BITS - FD_BITS;

/// An interface: process id, descriptor of its segment, and a number that tells it from a later one in their place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IfaceId(pub u64);

impl IfaceId {
    /// A nonce from random or at least ever new bits.
    pub fn nonce_from(bits: u64) -> u32 {
        (bits ^ bits >> 32) as u32 & ((1 << NONCE_BITS) - 1)
    }

    /// `None` if a number is too large for its bits.
    pub fn new(pid: u32, fd: RawFd, nonce: u32) -> Option<Self> {
        let fd = u64::try_from(fd).ok()?;
        if pid >> PID_BITS != 0 || fd >> FD_BITS != 0 || nonce >> NONCE_BITS != 0 {
            return None;
        }
        Some(IfaceId(u64::from(pid) | fd << PID_BITS | u64::from(nonce) << (PID_BITS + FD_BITS)))
    }

    /// Process id.
    pub fn pid(self) -> u32 {
        self.0 as u32 & ((1 << PID_BITS) - 1)
    }

    /// Descriptor number in that process.
    pub fn fd(self) -> RawFd {
        (self.0 >> PID_BITS) as RawFd & ((1 << FD_BITS) - 1)
    }

    /// The number that tells interfaces in the same place apart.
    pub fn nonce(self) -> u32 {
        (self.0 >> (PID_BITS + FD_BITS)) as u32
    }

    /// The address as the wire carries it.
    pub fn pack(self) -> AddrBuf {
        self.0.to_le_bytes().into_iter().collect()
    }

    /// Reads a peer's address.
    pub fn unpack(iface: &[u8]) -> Result<Self, ConnectError> {
        let bytes = iface.try_into().map_err(|_| ConnectError::Malformed)?;
        let id = IfaceId(u64::from_le_bytes(bytes));
        if id.pid() == 0 { Err(ConnectError::Malformed) } else { Ok(id) }
    }
}

/// The device address: a number for this boot of this kernel and this process-id namespace.
pub fn pack_host(host: HostKey) -> AddrBuf {
    host.0.to_le_bytes().into_iter().collect()
}

/// Whether a device address is ours.
pub fn same_host(device: &[u8], here: HostKey) -> Result<(), ConnectError> {
    let bytes = device.try_into().map_err(|_| ConnectError::Malformed)?;
    if u64::from_le_bytes(bytes) == here.0 { Ok(()) } else { Err(ConnectError::OtherHost) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_parts() {
        let id = IfaceId::new((1 << 22) - 1, (1 << 20) - 1, 5).unwrap();
        assert_eq!((id.pid(), id.fd(), id.nonce()), ((1 << 22) - 1, (1 << 20) - 1, 5));
        assert_eq!(IfaceId::unpack(&id.pack()), Ok(id));
        assert_eq!(IfaceId::new(1 << 22, 0, 0), None);
        assert_eq!(IfaceId::new(1, -1, 0), None);
        assert_eq!(IfaceId::unpack(&[0; 8]), Err(ConnectError::Malformed));
        assert_eq!(IfaceId::unpack(&[1; 7]), Err(ConnectError::Malformed));
    }

    #[test]
    fn other_hosts_are_told_apart() {
        assert_eq!(same_host(&pack_host(HostKey(7)), HostKey(7)), Ok(()));
        assert_eq!(same_host(&pack_host(HostKey(7)), HostKey(8)), Err(ConnectError::OtherHost));
        assert_eq!(same_host(&[], HostKey(8)), Err(ConnectError::Malformed));
    }
}
