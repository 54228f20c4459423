//! The socket: batches of datagrams in and out, a system call for each batch.
//!
//! Where the kernel cuts and joins datagrams, many of them go through it as one: see `runs`.

#![allow(unsafe_code)]

mod name;
mod recv;
mod runs;
mod send;
#[cfg(test)]
mod tests;

pub(super) use name::NOWHERE;

use crate::api::{Error, OpenError};
use recv::Arrivals;
use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use ucs::Errno;

/// Datagrams of a batch to send, at most.
pub(super) const BATCH: usize = 64;

/// Bytes that the kernel is asked to hold for a socket, each way. Without privileges it grants what
/// `net.core.rmem_max` allows.
const BUFFER: libc::c_int = 4 << 20;
/// Batches after which a kernel that has refused a run is asked again: the path may have changed.
const ASK_AGAIN: u32 = 4096;

const SOL_UDP: libc::c_int = libc::IPPROTO_UDP;
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// A datagram socket that never blocks.
pub(super) struct Socket {
    udp: UdpSocket,
    addr: SocketAddr,
    /// Bytes that the kernel holds for arrivals, as it counts them.
    holds: usize,
    arrivals: Arrivals,
    /// Batches until runs are handed over; `None`: never.
    joins_in: Cell<Option<u32>>,
    counts: Counts,
}

/// Counts of what the kernel took and gave.
#[derive(Default)]
struct Counts {
    sends: Cell<u64>,
    runs_sent: Cell<u64>,
    datagrams_sent: Cell<u64>,
    full: Cell<u64>,
    receives: u64,
    runs_received: u64,
    datagrams_received: u64,
}

fn sys(call: &'static str, errno: impl Into<Errno>) -> OpenError {
    OpenError::Op(Error::Sys { call, errno: errno.into() })
}

impl Socket {
    /// Binds a socket for datagrams of up to `longest` bytes. With `offload` the kernel cuts and joins them,
    /// if it can.
    pub fn bind(addr: SocketAddr, longest: usize, offload: bool) -> Result<Socket, OpenError> {
        let udp = UdpSocket::bind(addr).map_err(|e| {
            let errno = Errno::from(e);
            OpenError::Environment(format!("the software EFA device cannot use UDP address {addr}: {errno}"))
        })?;
        udp.set_nonblocking(true).map_err(|e| sys("fcntl", e))?;
        for (forced, option) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            if !set_option(&udp, libc::SOL_SOCKET, forced, BUFFER) {
                set_option(&udp, libc::SOL_SOCKET, option, BUFFER);
            }
        }
        // No "do not fragment": a path that carries less cuts the datagram instead of losing it.
        match addr {
            SocketAddr::V4(_) => {
                set_option(&udp, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)
            }
            SocketAddr::V6(_) => {
                set_option(&udp, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT)
            }
        };
        let cuts = offload && set_option(&udp, SOL_UDP, UDP_SEGMENT, 0);
        let joined = offload && set_option(&udp, SOL_UDP, UDP_GRO, 1);
        let port = udp.local_addr().map_err(|e| sys("getsockname", e))?.port();
        Ok(Socket {
            addr: SocketAddr::new(addr.ip(), port),
            holds: option_of(&udp, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0),
            udp,
            arrivals: Arrivals::new(longest, joined),
            joins_in: Cell::new(cuts.then_some(0)),
            counts: Counts::default(),
        })
    }

    /// Address, with the port that the kernel has chosen.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Bytes that the kernel holds for arrivals, as it counts them: more than those of the datagrams.
    pub fn holds(&self) -> usize {
        self.holds
    }

    /// Counters by name. Receives that found nothing are not counted.
    pub fn counts(&self) -> [(&'static str, u64); 7] {
        let counts = &self.counts;
        [
            ("send calls", counts.sends.get()),
            ("runs sent", counts.runs_sent.get()),
            ("datagrams sent", counts.datagrams_sent.get()),
            ("send buffer full", counts.full.get()),
            ("receive calls", counts.receives),
            ("runs received", counts.runs_received),
            ("datagrams received", counts.datagrams_received),
        ]
    }

    /// Whether the next batch may have runs.
    fn joins(&self) -> bool {
        let left = self.joins_in.get();
        self.joins_in.set(left.map(|left| left.saturating_sub(1)));
        left == Some(0)
    }

    /// Takes the refusal of a run.
    #[cold]
    fn stop_joining(&self) {
        tracing::debug!("the kernel does not cut UDP datagrams here: {}", Errno::last_os());
        self.joins_in.set(Some(ASK_AGAIN));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.udp.as_fd()
    }
}

/// Sets an option of numbers. One that the kernel refuses is left as it is, and the answer is `false`.
fn set_option(udp: &UdpSocket, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> bool {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an integer of ours, read during the call.
    let set = unsafe { libc::setsockopt(udp.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    set == 0
}

fn option_of(udp: &UdpSocket, level: libc::c_int, option: libc::c_int) -> Option<usize> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (to, fd) = ((&raw mut value).cast(), udp.as_raw_fd());
    // SAFETY: value and length are integers of ours, written during the call.
    let got = unsafe { libc::getsockopt(fd, level, option, to, &raw mut len) };
    (got == 0).then(|| usize::try_from(value).ok()).flatten()
}
