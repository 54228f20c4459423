//! The socket: batches of datagrams in and out, a system call for each batch.
//!
//! Where the kernel cuts and joins datagrams, many of them go through it as one: see `runs`.
//!
//! Each channel has a socket, of one address: see `channels`. Each flow of the data channel but the first has
//! a socket more, for sending only: networks with several ways choose one by the ports.

#![allow(unsafe_code)]

mod channels;
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
use usnic::{ChannelId, MAX_FLOWS};

/// Datagrams of a batch to send, at most.
pub(super) const BATCH: usize = 64;

/// Bytes that the kernel is asked to hold of what leaves. Without privileges it grants what
/// `net.core.wmem_max` allows.
const SEND_BUFFER: libc::c_int = 4 << 20;
/// Batches after which a kernel that has refused a run is asked again: the path may have changed.
const ASK_AGAIN: u32 = 4096;

const SOL_UDP: libc::c_int = libc::IPPROTO_UDP;
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;
const SO_BUSY_POLL: libc::c_int = 46;
const SO_ATTACH_REUSEPORT_CBPF: libc::c_int = 51;
/// Bytes that arrive at a socket that only sends: the least that the kernel has.
const NO_ARRIVALS: libc::c_int = 0;

/// Settings of a socket.
#[derive(Clone, Copy)]
pub(super) struct SocketConfig {
    /// Longest datagram, bytes.
    pub longest: usize,
    /// Whether the kernel cuts and joins datagrams, if it can.
    pub offload: bool,
    /// Whether each channel has a socket, if the kernel can.
    pub channels: bool,
    /// Sockets of the data channel to send from.
    pub flows: u8,
    /// Time for which the kernel looks for arrivals in the network card's queue, µs; 0: it does not.
    pub busy_poll: u32,
    /// Bytes that the kernel is asked to hold of what arrives at a channel. Without privileges it grants what
    /// `net.core.rmem_max` allows.
    pub arrivals: usize,
}

/// Datagram sockets of one address, which never block.
pub(super) struct Socket {
    /// That of the data channel.
    udp: UdpSocket,
    /// That of the priority channel; `None`: it shares the other one.
    priority: Option<UdpSocket>,
    /// Sockets of the flows behind the first.
    flows: Vec<UdpSocket>,
    addr: SocketAddr,
    /// Bytes that the kernel holds for arrivals, as it counts them.
    holds: usize,
    arrivals: Arrivals,
    /// Batches until runs are handed over; `None`: never.
    joins_in: Cell<Option<u32>>,
    counts: Counts,
    /// Channels that take nothing.
    #[cfg(test)]
    pub full: Cell<[bool; 2]>,
}

/// Counts of what the kernel took and gave.
#[derive(Default)]
struct Counts {
    sends: Cell<u64>,
    runs_sent: Cell<u64>,
    datagrams_sent: Cell<u64>,
    /// Those of the flows behind the first.
    of_other_flows: Cell<u64>,
    /// Those of the priority channel.
    of_priority: Cell<u64>,
    full: Cell<u64>,
    receives: u64,
    runs_received: u64,
    datagrams_received: u64,
    /// Those that came to the priority channel's socket.
    priority_received: u64,
}

fn sys(call: &'static str, errno: impl Into<Errno>) -> OpenError {
    OpenError::Op(Error::Sys { call, errno: errno.into() })
}

impl Socket {
    /// Binds a socket, and those of further flows.
    pub fn bind(addr: SocketAddr, config: SocketConfig) -> Result<Socket, OpenError> {
        let arrivals = libc::c_int::try_from(config.arrivals).unwrap_or(libc::c_int::MAX / 2);
        let udp = open(addr, arrivals)?;
        let priority = if config.channels { with_priority(&udp, arrivals) } else { None };
        let any_port = SocketAddr::new(addr.ip(), 0);
        let flows = (1..config.flows).map(|_| open(any_port, NO_ARRIVALS)).collect::<Result<_, _>>()?;
        let cuts = config.offload && set_option(&udp, SOL_UDP, UDP_SEGMENT, 0);
        let mut joined = false;
        for socket in [Some(&udp), priority.as_ref()].into_iter().flatten() {
            joined |= config.offload && set_option(socket, SOL_UDP, UDP_GRO, 1);
            if config.busy_poll != 0
                && let Some(why) = refusal(socket, SO_BUSY_POLL, config.busy_poll)
            {
                tracing::warn!("SOFTEFA_UDP_BUSY_POLL={} has no effect: {why}", config.busy_poll);
            }
        }
        let port = udp.local_addr().map_err(|e| sys("getsockname", e))?.port();
        Ok(Socket {
            addr: SocketAddr::new(addr.ip(), port),
            holds: option_of(&udp, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0),
            udp,
            priority,
            flows,
            arrivals: Arrivals::new(config.longest, joined),
            joins_in: Cell::new(cuts.then_some(0)),
            counts: Counts::default(),
            #[cfg(test)]
            full: Cell::default(),
        })
    }

    /// Address, with the port that the kernel has chosen.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Ports of the flows behind the first; 0 where there is none.
    pub fn flow_ports(&self) -> [u16; MAX_FLOWS - 1] {
        let mut ports = [0; MAX_FLOWS - 1];
        for (port, flow) in ports.iter_mut().zip(&self.flows) {
            *port = flow.local_addr().map_or(0, |addr| addr.port());
        }
        ports
    }

    /// Sockets at which datagrams arrive, for a sleep.
    pub fn arriving(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(&self.udp), self.priority.as_ref()].into_iter().flatten().map(AsFd::as_fd)
    }

    /// Socket that datagrams of a channel and flow leave from.
    fn leaving(&self, channel: ChannelId, flow: u8) -> &UdpSocket {
        match (channel, &self.priority) {
            (ChannelId::Priority, Some(priority)) => priority,
            _ => usize::from(flow).checked_sub(1).and_then(|at| self.flows.get(at)).unwrap_or(&self.udp),
        }
    }

    /// Sends datagrams of a flow that routers must not cut. What the interface does not take whole is lost.
    #[cold]
    pub fn ping(&self, flow: u8, batch: &[(SocketAddr, &[u8])]) -> usize {
        let udp = self.leaving(ChannelId::Data, flow);
        set_fragmenting(udp, self.addr, false);
        let sent = self.send(ChannelId::Data, flow, batch);
        set_fragmenting(udp, self.addr, true);
        sent
    }

    /// Bytes that the kernel holds for arrivals, as it counts them: more than those of the datagrams.
    pub fn holds(&self) -> usize {
        self.holds
    }

    /// Counters by name. Receives that found nothing are not counted.
    pub fn counts(&self) -> [(&'static str, u64); 11] {
        let counts = &self.counts;
        [
            ("send calls", counts.sends.get()),
            ("runs sent", counts.runs_sent.get()),
            ("datagrams sent", counts.datagrams_sent.get()),
            ("other flows", counts.of_other_flows.get()),
            ("priority sockets", self.priority.iter().count() as u64),
            ("priority sent", counts.of_priority.get()),
            ("priority received", counts.priority_received),
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

/// Opens the socket of the priority channel beside that of the data channel, if the kernel can.
fn with_priority(data: &UdpSocket, arrivals: libc::c_int) -> Option<UdpSocket> {
    match channels::open_beside(data, arrivals) {
        Ok(priority) => Some(priority),
        Err((call, errno)) => {
            tracing::warn!(
                "both channels of the UDP link share a socket: the kernel refuses {call}: {errno}"
            );
            None
        }
    }
}

/// Opens a socket that never blocks, with room for so many bytes of arrivals.
fn open(addr: SocketAddr, arrivals: libc::c_int) -> Result<UdpSocket, OpenError> {
    let udp = UdpSocket::bind(addr).map_err(|e| {
        let errno = Errno::from(e);
        OpenError::Environment(format!("the software EFA device cannot use UDP address {addr}: {errno}"))
    })?;
    prepare(&udp, addr, arrivals).map_err(|e| sys("fcntl", e))?;
    Ok(udp)
}

/// Makes a socket one that never blocks, with room for so many bytes of arrivals.
fn prepare(udp: &UdpSocket, addr: SocketAddr, arrivals: libc::c_int) -> Result<(), Errno> {
    udp.set_nonblocking(true).map_err(Errno::from)?;
    for (forced, option, bytes) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, arrivals),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SEND_BUFFER),
    ] {
        if !set_option(udp, libc::SOL_SOCKET, forced, bytes) {
            set_option(udp, libc::SOL_SOCKET, option, bytes);
        }
    }
    set_fragmenting(udp, addr, true);
    Ok(())
}

/// Sets whether a path that carries less cuts datagrams, or drops them. The kernel's own idea of what the
/// path carries is not asked for either.
fn set_fragmenting(udp: &UdpSocket, addr: SocketAddr, may_cut: bool) {
    match addr {
        SocketAddr::V4(_) => {
            let how = if may_cut { libc::IP_PMTUDISC_DONT } else { libc::IP_PMTUDISC_PROBE };
            set_option(udp, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, how)
        }
        SocketAddr::V6(_) => {
            let how = if may_cut { libc::IPV6_PMTUDISC_DONT } else { libc::IPV6_PMTUDISC_PROBE };
            set_option(udp, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, how)
        }
    };
}

/// Sets an option of the socket. Returns why not, if the kernel refuses it.
fn refusal(udp: &UdpSocket, option: libc::c_int, value: u32) -> Option<String> {
    let value = libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX);
    if set_option(udp, libc::SOL_SOCKET, option, value) {
        return None;
    }
    let why = match Errno::last_os() {
        Errno(libc::EPERM) => "it needs CAP_NET_ADMIN".into(),
        Errno(libc::ENOPROTOOPT) => "the kernel is built without it".into(),
        other => other.to_string(),
    };
    Some(format!("the kernel refuses it: {why}"))
}

/// Sets an option of numbers. One that the kernel refuses is left as it is, and the answer is `false`.
fn set_option(udp: &UdpSocket, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> bool {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an integer of ours, read during the call.
    let set = unsafe { libc::setsockopt(udp.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    set == 0
}

/// Lets a filter choose between the sockets of a port.
fn set_filter(udp: &UdpSocket, filter: &'static [libc::sock_filter]) -> Result<(), Errno> {
    let filter = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (fd, filter) = (udp.as_raw_fd(), (&raw const filter).cast());
    // SAFETY: the program has the length told; the kernel only reads it, during the call.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, filter, len) };
    if set == 0 { Ok(()) } else { Err(Errno::last_os()) }
}

fn option_of(udp: &UdpSocket, level: libc::c_int, option: libc::c_int) -> Option<usize> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (to, fd) = ((&raw mut value).cast(), udp.as_raw_fd());
    // SAFETY: value and length are integers of ours, written during the call.
    let got = unsafe { libc::getsockopt(fd, level, option, to, &raw mut len) };
    (got == 0).then(|| usize::try_from(value).ok()).flatten()
}
