//! Socket addresses as C has them: `struct sockaddr_in` and `struct sockaddr_in6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::abi::flags;

/// Bytes of `struct sockaddr_in`.
const IN_LEN: usize = size_of::<libc::sockaddr_in>();
/// Bytes of `struct sockaddr_in6`.
const IN6_LEN: usize = size_of::<libc::sockaddr_in6>();

/// The address format of libfabric.
pub(crate) fn format(addr: SocketAddr) -> u32 {
    if addr.is_ipv4() { flags::SOCKADDR_IN } else { flags::SOCKADDR_IN6 }
}

/// Reads an address, at the beginning of `bytes`.
pub(crate) fn read(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
    match family {
        libc::AF_INET if bytes.len() >= IN_LEN => {
            let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
        }
        libc::AF_INET6 if bytes.len() >= IN6_LEN => {
            let flow = u32::from_ne_bytes(bytes[4..8].try_into().ok()?);
            let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
            let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        _ => None,
    }
}

/// The bytes of an address.
pub(crate) fn write(addr: SocketAddr) -> Vec<u8> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = (family as u16).to_ne_bytes().to_vec();
    bytes.extend(addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => bytes.extend(v4.ip().octets()),
        SocketAddr::V6(v6) => {
            bytes.extend(v6.flowinfo().to_ne_bytes());
            bytes.extend(v6.ip().octets());
            bytes.extend(v6.scope_id().to_ne_bytes());
        }
    }
    bytes.resize(if addr.is_ipv4() { IN_LEN } else { IN6_LEN }, 0);
    bytes
}

/// Reads an address of a caller.
/// # Safety
/// `at` is null or a whole `struct sockaddr` of the family that it begins with.
pub(crate) unsafe fn of_caller(at: *const std::ffi::c_void) -> Option<SocketAddr> {
    // SAFETY: this function's contract.
    let family = unsafe { at.cast::<u16>().as_ref() }?;
    let len = match i32::from(*family) {
        libc::AF_INET => IN_LEN,
        libc::AF_INET6 => IN6_LEN,
        _ => return None,
    };
    // SAFETY: as above.
    read(unsafe { std::slice::from_raw_parts(at.cast(), len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_short_ones_are_refused() {
        for text in ["1.2.3.4:5678", "[fe80::1]:9", "[::1]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            let bytes = write(addr);
            assert_eq!(read(&bytes), Some(addr));
            // SAFETY: a whole address.
            assert_eq!(unsafe { of_caller(bytes.as_ptr().cast()) }, Some(addr));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), None, "{text} cut at {cut}");
            }
        }
        assert_eq!(read(&[0xff; 64]), None);
    }
}
