//! The socket: batches of datagrams in and out, a system call for each batch.

#![allow(unsafe_code)]

use crate::api::{Error, OpenError};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use ucs::Errno;

/// Datagrams of a batch, at most.
pub(super) const BATCH: usize = 32;

/// Bytes that the kernel is asked to hold for a socket, each way. It grants what `net.core.rmem_max` allows.
const BUFFER: libc::c_int = 4 << 20;

/// A datagram socket that never blocks.
pub(super) struct Socket {
    udp: UdpSocket,
    addr: SocketAddrV4,
    /// Longest datagram.
    mtu: usize,
    bytes: Box<[u8]>,
    from: [(SocketAddrV4, usize); BATCH],
    counts: Counts,
}

/// Counts of what the kernel took and gave.
#[derive(Default)]
struct Counts {
    sends: Cell<u64>,
    datagrams_sent: Cell<u64>,
    full: Cell<u64>,
    receives: u64,
    datagrams_received: u64,
}

const NOWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

fn sys(call: &'static str, errno: impl Into<Errno>) -> OpenError {
    OpenError::Op(Error::Sys { call, errno: errno.into() })
}

impl Socket {
    /// Binds a socket for datagrams of up to `mtu` bytes.
    pub fn bind(addr: SocketAddrV4, mtu: usize) -> Result<Socket, OpenError> {
        let udp = UdpSocket::bind(addr).map_err(|e| {
            let errno = Errno::from(e);
            OpenError::Environment(format!("the software EFA device cannot use UDP address {addr}: {errno}"))
        })?;
        udp.set_nonblocking(true).map_err(|e| sys("fcntl", e))?;
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            set_option(&udp, libc::SOL_SOCKET, option, BUFFER);
        }
        // No "do not fragment": a path that carries less cuts the datagram instead of losing it.
        set_option(&udp, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT);
        let port = udp.local_addr().map_err(|e| sys("getsockname", e))?.port();
        let addr = SocketAddrV4::new(*addr.ip(), port);
        let bytes = vec![0; BATCH * mtu].into_boxed_slice();
        Ok(Socket { udp, addr, mtu, bytes, from: [(NOWHERE, 0); BATCH], counts: Counts::default() })
    }

    /// Address, with the port that the kernel has chosen.
    pub fn addr(&self) -> SocketAddrV4 {
        self.addr
    }

    /// Counters by name. Receives that found nothing are not counted.
    pub fn counts(&self) -> [(&'static str, u64); 5] {
        let counts = &self.counts;
        [
            ("send calls", counts.sends.get()),
            ("datagrams sent", counts.datagrams_sent.get()),
            ("send buffer full", counts.full.get()),
            ("receive calls", counts.receives),
            ("datagrams received", counts.datagrams_received),
        ]
    }

    /// Takes a batch of datagrams that have arrived; returns their number.
    pub fn recv(&mut self) -> usize {
        let mut names = [EMPTY_NAME; BATCH];
        let mut iovecs = [const { MaybeUninit::<libc::iovec>::zeroed() }; BATCH];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::zeroed() }; BATCH];
        for (at, place) in self.bytes.chunks_exact_mut(self.mtu).enumerate() {
            iovecs[at].write(libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() });
            fill(&mut headers[at], &mut names[at], iovecs[at].as_mut_ptr());
        }
        let fd = self.udp.as_raw_fd();
        let (list, count) = (headers.as_mut_ptr().cast(), BATCH as libc::c_uint);
        // SAFETY: `count` headers are initialised; each names a buffer of ours of its length, exclusively
        // borrowed, and an address of ours.
        let n = unsafe { libc::recvmmsg(fd, list, count, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
        let n = usize::try_from(n).unwrap_or(0);
        for at in 0..n {
            // SAFETY: initialised above; the kernel has filled in the first `n`.
            let header = unsafe { headers[at].assume_init_ref() };
            // A datagram that was cut is none of ours.
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            self.from[at] = (address(&names[at]), if whole { header.msg_len as usize } else { 0 });
        }
        self.counts.receives += u64::from(n > 0);
        self.counts.datagrams_received += n as u64;
        n
    }

    /// A datagram of the last batch, and where it came from. It may be decrypted in place.
    pub fn datagram(&mut self, at: usize) -> (SocketAddrV4, &mut [u8]) {
        let (from, len) = self.from[at];
        (from, &mut self.bytes[at * self.mtu..][..len.min(self.mtu)])
    }

    /// Sends up to [`BATCH`] datagrams. Returns how many the kernel took; one that it refuses for itself, and
    /// not for want of room, counts as taken: it is lost.
    pub fn send(&self, batch: &[(SocketAddrV4, &[u8])]) -> usize {
        let mut names = [EMPTY_NAME; BATCH];
        let mut iovecs = [const { MaybeUninit::<libc::iovec>::zeroed() }; BATCH];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::zeroed() }; BATCH];
        let count = batch.len().min(BATCH);
        for (at, (to, bytes)) in batch[..count].iter().enumerate() {
            names[at] = name(to);
            iovecs[at]
                .write(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
            fill(&mut headers[at], &mut names[at], iovecs[at].as_mut_ptr());
        }
        let (fd, list) = (self.udp.as_raw_fd(), headers.as_mut_ptr().cast());
        // SAFETY: `count` headers are initialised; each names bytes that are borrowed during the call, which
        // the kernel only reads, and an address of ours.
        let n = unsafe { libc::sendmmsg(fd, list, count as libc::c_uint, libc::MSG_DONTWAIT) };
        let count_in = |counter: &Cell<u64>, n: usize| counter.set(counter.get() + n as u64);
        count_in(&self.counts.sends, 1);
        match usize::try_from(n) {
            Ok(n) => {
                count_in(&self.counts.datagrams_sent, n);
                n
            }
            Err(_) if matches!(Errno::last_os().0, libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => {
                count_in(&self.counts.full, 1);
                0
            }
            Err(_) => 1.min(count),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }
}

const EMPTY_NAME: libc::sockaddr_in =
    libc::sockaddr_in { sin_family: 0, sin_port: 0, sin_addr: libc::in_addr { s_addr: 0 }, sin_zero: [0; 8] };

fn name(addr: &SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: addr.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
        sin_zero: [0; 8],
    }
}

fn address(name: &libc::sockaddr_in) -> SocketAddrV4 {
    SocketAddrV4::new(name.sin_addr.s_addr.to_ne_bytes().into(), u16::from_be(name.sin_port))
}

/// Fills in a header with one piece and an address.
fn fill(header: &mut MaybeUninit<libc::mmsghdr>, name: &mut libc::sockaddr_in, iovec: *mut libc::iovec) {
    // SAFETY: all fields are integers and pointers, for which zero is a value; the arrays begin as zero.
    let header = unsafe { header.assume_init_mut() };
    header.msg_hdr.msg_name = (&raw mut *name).cast();
    header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    header.msg_hdr.msg_iov = iovec;
    header.msg_hdr.msg_iovlen = 1;
}

/// Sets an option of numbers. One that the kernel refuses is left as it is.
fn set_option(udp: &UdpSocket, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an integer of ours, read during the call.
    unsafe { libc::setsockopt(udp.as_raw_fd(), level, option, (&raw const value).cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_go_and_come() {
        let bind = || Socket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), 100).unwrap();
        let (a, mut b) = (bind(), bind());
        assert_eq!(b.recv(), 0);
        let all: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; usize::from(n) + 70]).collect();
        let batch: Vec<_> = all.iter().map(|bytes| (b.addr(), &bytes[..])).collect();
        assert_eq!((a.send(&batch), a.send(&batch[BATCH..]), a.send(&[])), (BATCH, 8, 0));
        let mut seen = 0;
        while seen < 40 {
            let n = b.recv();
            for at in 0..n {
                let (from, bytes) = b.datagram(at);
                // Those that are too long are cut, and count as empty.
                let want: &[u8] = if seen <= 30 { &all[seen] } else { &[] };
                assert!(from == a.addr() && bytes == want, "{seen}: {}", bytes.len());
                seen += 1;
            }
        }
        // Nobody has this port: the kernel says so at the next send, which is lost, and goes on.
        drop(b);
        assert_eq!(a.send(&batch[..1]), 1);
    }
}
