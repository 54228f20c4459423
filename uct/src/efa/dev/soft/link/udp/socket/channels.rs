//! A socket per channel. *"A channel is a queue pair with an associated completion queue"* (Channels).
//!
//! Both sockets have one address and port, so peers, firewalls and networks that translate addresses know of
//! one. The kernel gives each datagram that arrives to one of them, as a filter says that looks at its mark
//! ([`usnic::channel_of`]). Where the kernel has no such filter, both channels share the first socket.

use super::{prepare, set_filter};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use ucs::Errno;

/// Bytes of a datagram that the filter looks at, and what it looks for.
mod at {
    /// First byte: the version of the module's format, else the type of the sealed one.
    pub const FIRST: u32 = 0;
    pub const PLAIN: u32 = 1;
    /// Second byte of a plain one: its type.
    pub const KIND: u32 = 1;
    pub const CHUNK: u32 = 2;
    /// Third byte: flags of a plain one, mark of a sealed one.
    pub const MARK: u32 = 2;
    pub const PLAIN_SHIFT: u32 = 4;
}

const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Returns the place of the socket in the order of binding: 0 for data, 1 for priority. A datagram that is
/// too short for a load goes to the first one.
static FILTER: [libc::sock_filter; 12] = {
    use libc::{BPF_A, BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_RSH};
    let load = BPF_LD | BPF_B | BPF_ABS;
    let (is, and) = (BPF_JMP | BPF_JEQ | BPF_K, BPF_ALU | BPF_AND | BPF_K);
    [
        op(load, 0, 0, at::FIRST),
        op(is, 3, 0, at::PLAIN),
        op(load, 0, 0, at::MARK),
        op(and, 0, 0, 1),
        op(BPF_RET | BPF_A, 0, 0, 0),
        op(load, 0, 0, at::KIND),
        op(is, 0, 1, at::CHUNK),
        op(BPF_RET | BPF_K, 0, 0, 0),
        op(load, 0, 0, at::MARK),
        op(BPF_ALU | BPF_RSH | BPF_K, 0, 0, at::PLAIN_SHIFT),
        op(and, 0, 0, 1),
        op(BPF_RET | BPF_A, 0, 0, 0),
    ]
};

/// Opens the socket of the priority channel beside a bound one. The error is the call that the kernel
/// refuses.
pub(super) fn open_beside(
    data: &UdpSocket,
    arrivals: libc::c_int,
) -> Result<UdpSocket, (&'static str, Errno)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let addr = data.local_addr().map_err(|e| ("getsockname", e.into()))?;
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let failed = |call| move |e: rustix::io::Errno| (call, Errno(e.raw_os_error()));
    let fd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).map_err(failed("socket"))?;
    // The first socket was bound without this option: so the port was nobody else's. From now on another
    // socket of this user could share it, which has the option when it is bound. Those of other devices do
    // not.
    for socket in [data.as_fd(), fd.as_fd()] {
        sockopt::set_socket_reuseport(socket, true).map_err(failed("SO_REUSEPORT"))?;
    }
    bind(&fd, &addr).map_err(failed("bind"))?;
    let priority = UdpSocket::from(fd);
    set_filter(data, &FILTER).map_err(|errno| ("SO_ATTACH_REUSEPORT_CBPF", errno))?;
    prepare(&priority, addr, arrivals).map_err(|e| ("fcntl", e))?;
    Ok(priority)
}
