//! Socket addresses as the kernel has them.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// No address.
pub const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// Memory for an address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    /// No address; memory for one.
    pub const EMPTY: Name = {
        // SAFETY: all fields are integers, for which zero is a value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    };

    /// Bytes of it.
    pub const LEN: libc::socklen_t = size_of::<Name>() as libc::socklen_t;

    /// The address.
    pub fn new(addr: SocketAddr) -> Name {
        match addr {
            SocketAddr::V4(addr) => Name {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(addr) => Name {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: 0,
                },
            },
        }
    }

    /// Bytes that an address of this family takes.
    pub fn len(addr: SocketAddr) -> libc::socklen_t {
        let len = match addr {
            SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
            SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
        };
        len as libc::socklen_t
    }

    /// The address, without scope and flow label.
    pub fn addr(&self) -> SocketAddr {
        // SAFETY: each variant begins with the family; all bytes are initialised.
        let family = libc::c_int::from(unsafe { self.family });
        match family {
            libc::AF_INET => {
                // SAFETY: integers, all bytes of which are initialised.
                let name = unsafe { self.v4 };
                let ip = name.sin_addr.s_addr.to_ne_bytes();
                SocketAddrV4::new(ip.into(), u16::from_be(name.sin_port)).into()
            }
            libc::AF_INET6 => {
                // SAFETY: integers, all bytes of which are initialised.
                let name = unsafe { self.v6 };
                let ip = name.sin6_addr.s6_addr;
                SocketAddrV6::new(ip.into(), u16::from_be(name.sin6_port), 0, 0).into()
            }
            _ => NOWHERE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_back_their_addresses() {
        for addr in ["10.1.2.3:40000", "[2001:db8::7]:65535", "127.0.0.1:1"] {
            let addr: SocketAddr = addr.parse().unwrap();
            assert_eq!(Name::new(addr).addr(), addr);
        }
        assert_eq!(Name::EMPTY.addr(), NOWHERE);
    }
}
