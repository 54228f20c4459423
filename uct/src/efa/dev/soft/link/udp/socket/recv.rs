//! Datagrams in: a system call for each batch of what has arrived, which is cut into datagrams.

use super::name::{NOWHERE, Name};
use super::runs::split;
use super::{SOL_UDP, Socket, UDP_GRO};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use usnic::ChannelId;

/// Arrivals that one system call takes, at most, where the kernel joins datagrams; each may be 64 KiB long.
const JOINED: usize = 8;
/// Arrivals that one system call takes, at most, where it does not.
const SINGLE: usize = 32;
/// Bytes of the longest arrival of joined datagrams.
const LONGEST_JOINED: usize = 65_536;

/// Control message in which the kernel tells the length of joined datagrams. Room for others, too.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    segment: libc::c_int,
    more: [u64; 4],
}

/// Datagrams that have arrived.
pub struct Arrivals {
    bytes: Box<[u8]>,
    /// Bytes for each arrival.
    room: usize,
    /// Sender of each datagram, its place and its length.
    datagrams: Vec<(SocketAddr, usize, usize)>,
}

impl Arrivals {
    /// Room for a batch of datagrams of up to `longest` bytes, or of what the kernel has joined.
    pub fn new(longest: usize, joined: bool) -> Arrivals {
        let (count, room) = if joined { (JOINED, LONGEST_JOINED) } else { (SINGLE, longest) };
        Arrivals { bytes: vec![0; count * room].into(), room, datagrams: Vec::with_capacity(512) }
    }
}

/// Length of the datagrams of an arrival, 0 if it is one.
fn segment_of(header: &libc::msghdr, control: &Control) -> usize {
    let told = header.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<libc::c_int>()
        && (control.header.cmsg_level, control.header.cmsg_type) == (SOL_UDP, UDP_GRO);
    if told { usize::try_from(control.segment).unwrap_or(0) } else { 0 }
}

impl Socket {
    /// Takes a batch of datagrams that have arrived at the socket of a channel. Returns their number, and
    /// whether there may be more.
    pub fn recv(&mut self, channel: ChannelId) -> (usize, bool) {
        let fd = match (channel, &self.priority) {
            (ChannelId::Data, _) => self.udp.as_raw_fd(),
            (ChannelId::Priority, Some(priority)) => priority.as_raw_fd(),
            (ChannelId::Priority, None) => return (0, false),
        };
        let mut names = [Name::EMPTY; SINGLE];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; SINGLE];
        let mut iovecs = [const { MaybeUninit::<libc::iovec>::uninit() }; SINGLE];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; SINGLE];
        let arrivals = &mut self.arrivals;
        arrivals.datagrams.clear();
        let mut count = 0;
        for (at, place) in arrivals.bytes.chunks_exact_mut(arrivals.room).enumerate() {
            let to = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
            let iovec: *mut libc::iovec = iovecs[at].write(to);
            let control = Control {
                header: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 },
                segment: 0,
                more: [0; 4],
            };
            let control: *mut Control = controls[at].write(control);
            // SAFETY: all fields are integers and pointers, for which zero is a value.
            let mut header: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            header.msg_hdr.msg_name = (&raw mut names[at]).cast();
            header.msg_hdr.msg_namelen = Name::LEN;
            header.msg_hdr.msg_iov = iovec;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
            headers[at].write(header);
            count = at + 1;
        }
        let list = headers.as_mut_ptr().cast();
        let (flags, timeout) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: `count` headers are initialised; each names a buffer of ours of its length, exclusively
        // borrowed, and an address and a control message of ours.
        let n = unsafe { libc::recvmmsg(fd, list, count as libc::c_uint, flags, timeout) };
        let n = usize::try_from(n).unwrap_or(0);
        for at in 0..n {
            // SAFETY: initialised above; the kernel has filled in the first `n`.
            let header = unsafe { headers[at].assume_init_ref() };
            // SAFETY: initialised above.
            let control = unsafe { controls[at].assume_init_ref() };
            // What was cut is none of ours.
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let len = if whole { (header.msg_len as usize).min(arrivals.room) } else { 0 };
            let (from, start) = (names[at].addr(), at * arrivals.room);
            let before = arrivals.datagrams.len();
            let places = split(len, segment_of(&header.msg_hdr, control));
            arrivals.datagrams.extend(places.map(|place| (from, start + place.start, place.len())));
            self.counts.runs_received += u64::from(arrivals.datagrams.len() - before > 1);
        }
        let datagrams = arrivals.datagrams.len();
        self.counts.receives += u64::from(n > 0);
        self.counts.datagrams_received += datagrams as u64;
        self.counts.priority_received += if channel == ChannelId::Priority { datagrams as u64 } else { 0 };
        (datagrams, n == count)
    }

    /// A datagram of the last batch, and where it came from. It may be decrypted in place.
    pub fn datagram(&mut self, at: usize) -> (SocketAddr, &mut [u8]) {
        let Some(&(from, start, len)) = self.arrivals.datagrams.get(at) else { return (NOWHERE, &mut []) };
        (from, &mut self.arrivals.bytes[start..start + len])
    }
}
