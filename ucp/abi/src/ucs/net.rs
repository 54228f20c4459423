//! Functions of sockets.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ::ucs::Status;

use crate::entry::CStatus;

/// Address and port of a socket address of the caller. `None`: of another family.
unsafe fn parts(address: *const libc::sockaddr) -> Option<(IpAddr, u16)> {
    // SAFETY: an address has the size of its family.
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
