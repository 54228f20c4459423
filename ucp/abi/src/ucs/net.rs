//! Functions of sockets.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::ucs::Status;

use crate::arg::{OutPtr, StrPtr};
use crate::entry::CStatus;

/// Address and port of a socket address of the caller. `None`: of another family.
/// # Safety
/// An address of its family can be read there.
unsafe fn parts(address: *const libc::sockaddr) -> Option<(IpAddr, u16)> {
    // SAFETY: this function's contract.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some((Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some((Ipv6Addr::from(v6.sin6_addr.s6_addr).into(), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}

/// Sets family and address.
/// # Safety
/// There is room for an address of this family.
unsafe fn set_ip(address: *mut libc::sockaddr, ip: IpAddr) {
    // SAFETY: this function's contract.
    unsafe {
        match ip {
            IpAddr::V4(ip) => {
                let v4 = address.cast::<libc::sockaddr_in>();
                (&raw mut (*v4).sin_family).write_unaligned(libc::AF_INET as libc::sa_family_t);
                (&raw mut (*v4).sin_addr.s_addr).write_unaligned(u32::from(ip).to_be());
            }
            IpAddr::V6(ip) => {
                let v6 = address.cast::<libc::sockaddr_in6>();
                (&raw mut (*v6).sin6_family).write_unaligned(libc::AF_INET6 as libc::sa_family_t);
                (&raw mut (*v6).sin6_addr.s6_addr).write_unaligned(ip.octets());
            }
        }
    }
}

entry! {
    /// Closes a descriptor and sets it to -1; does nothing if it is -1.
    fn ucs_close_fd(fd: *mut c_int) {
        // SAFETY: the descriptor is the caller's, or null.
        let fd = unsafe { fd.as_mut() }.ok_or(Status::InvalidParam)?;
        if *fd == -1 {
            return Ok(());
        }
        // SAFETY: the descriptor is the caller's to close.
        if unsafe { libc::close(*fd) } < 0 {
            tracing::warn!("cannot close descriptor {fd}: {}", std::io::Error::last_os_error());
            return Err(Status::IoError);
        }
        *fd = -1;
        Ok(())
    }

    /// Sets an option of a socket.
    fn ucs_socket_setopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: libc::socklen_t,
    ) -> CStatus {
        // SAFETY: the caller passes `length` bytes.
        if unsafe { libc::setsockopt(fd, level, name, value, length) } < 0 {
            let error = std::io::Error::last_os_error();
            tracing::error!("cannot set option {name} of level {level} of descriptor {fd}: {error}");
            return Err(Status::IoError);
        }
        Ok(())
    }

    /// Makes an address of its text; the port stays as it is.
    fn ucs_sock_ipstr_to_sockaddr(text: StrPtr, address: *mut libc::sockaddr_storage) -> CStatus {
        if text.get().is_none() || address.is_null() {
            return Err(Status::InvalidParam);
        }
        let ip = text.text().parse().map_err(|_| {
            tracing::error!("invalid address {}", text.text());
            Status::InvalidAddr
        })?;
        // SAFETY: the caller passes room for the address of every family.
        unsafe { set_ip(address.cast(), ip) };
        Ok(())
    }

    /// Stores the port of an address.
    fn ucs_sockaddr_get_port(address: *const libc::sockaddr, port: OutPtr<u16>) -> CStatus {
        if address.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: the caller passes an address.
        let (_, found) = unsafe { parts(address) }.ok_or(Status::InvalidParam)?;
        port.store(found)
    }

    /// Sets the port of an address.
    fn ucs_sockaddr_set_port(address: *mut libc::sockaddr, port: u16) -> CStatus {
        if address.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: the caller passes an address. Both families have the port at the same place.
        unsafe {
            parts(address).ok_or(Status::InvalidParam)?;
            (&raw mut (*address.cast::<libc::sockaddr_in>()).sin_port).write_unaligned(port.to_be());
        }
        Ok(())
    }

    /// Makes an address that of every interface; its family stays as it is.
    fn ucs_sockaddr_set_inaddr_any(address: *mut libc::sockaddr, family: libc::sa_family_t) -> CStatus {
        if address.is_null() {
            return Err(Status::InvalidParam);
        }
        let any: IpAddr = match c_int::from(family) {
            libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return Err(Status::InvalidParam),
        };
        // SAFETY: the caller passes room for an address of this family.
        unsafe {
            let before = (&raw const (*address).sa_family).read_unaligned();
            set_ip(address, any);
            (&raw mut (*address).sa_family).write_unaligned(before);
        }
        Ok(())
    }

    /// Prints an address, as `ADDRESS:PORT`. Returns the buffer.
    fn ucs_sockaddr_str(address: *const libc::sockaddr, buffer: *mut c_char, size: usize) -> *mut c_char {
        if buffer.is_null() || size == 0 {
            return Err(Status::InvalidParam);
        }
        let text = if address.is_null() {
            "<null>".to_owned()
        } else {
            // SAFETY: the caller passes an address.
            unsafe { parts(address) }
                .map_or_else(|| "<invalid address family>".to_owned(), |(ip, port)| format!("{ip}:{port}"))
        };
        let length = text.len().min(size - 1);
        // SAFETY: the caller passes `size` bytes.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
            buffer.add(length).write(0);
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn printed(address: *const libc::sockaddr, size: usize) -> String {
        let mut buffer = [1 as c_char; 64];
        // SAFETY: the address is of this test, or null.
        unsafe {
            let text = ucs_sockaddr_str(address, buffer.as_mut_ptr(), size);
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }

    #[test]
    fn addresses_are_made_of_text() {
        // SAFETY: all zeros are a value of the type, and the address is of this test.
        unsafe {
            let mut address: libc::sockaddr_storage = std::mem::zeroed();
            let at: *mut libc::sockaddr = (&raw mut address).cast();
            for (text, printed_as) in [(c"10.1.2.3", "10.1.2.3:77"), (c"fe80::7", "fe80::7:77")] {
                assert_eq!(ucs_sock_ipstr_to_sockaddr(text.into(), &mut address), CStatus(0));
                assert_eq!(ucs_sockaddr_set_port(at, 77), CStatus(0));
                let mut port = 0;
                assert_eq!((ucs_sockaddr_get_port(at, (&mut port).into()), port), (CStatus(0), 77));
                assert_eq!(printed(at, 64), printed_as);
                assert_eq!(ucs_sockaddr_set_inaddr_any(at, (*at).sa_family), CStatus(0));
            }
            assert_eq!(printed(at, 64), ":::77");
            let bad = ucs_sock_ipstr_to_sockaddr(c"here".into(), &mut address);
            assert_eq!(bad, Status::InvalidAddr.into());
            assert_eq!(ucs_sockaddr_set_inaddr_any(at, 99), Status::InvalidParam.into());
        }
    }

    #[test]
    fn addresses_are_printed() {
        // SAFETY: all zeros are values of the types.
        let (mut v4, mut v6): (libc::sockaddr_in, libc::sockaddr_in6) = unsafe { std::mem::zeroed() };
        v4.sin_family = libc::AF_INET as u16;
        v4.sin_port = 13337u16.to_be();
        v4.sin_addr.s_addr = u32::from(Ipv4Addr::LOCALHOST).to_be();
        assert_eq!(printed((&raw const v4).cast(), 64), "127.0.0.1:13337");
        assert_eq!(printed((&raw const v4).cast(), 6), "127.0");
        v6.sin6_family = libc::AF_INET6 as u16;
        v6.sin6_addr.s6_addr[15] = 1;
        assert_eq!(printed((&raw const v6).cast(), 64), "::1:0");
        v4.sin_family = libc::AF_UNIX as u16;
        assert_eq!(printed((&raw const v4).cast(), 64), "<invalid address family>");
        assert_eq!(printed(std::ptr::null(), 64), "<null>");
    }
}
