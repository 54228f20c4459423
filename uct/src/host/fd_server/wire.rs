//! Request and reply: some names, and one result for each, with descriptors. Both sides check what they read.
//! Used by `client.rs` and `server.rs`; does no I/O.

use super::{Capability, Name};
use arrayvec::ArrayVec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the layout of both, and of what the descriptors lead to.
pub const VERSION: u32 = 7;
pub const MAX_NAMES: usize = 16;
/// Most descriptors in a reply. The system passes 253 at a time.
pub const MAX_FDS: usize = 2 * MAX_NAMES;
const MAGIC: u32 = u32::from_le_bytes(*b"uctP");

/// Header of requests and replies, equal in every version.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct MsgHeader {
    magic: U32,
    version: U32,
}

const HEADER: MsgHeader = MsgHeader { magic: U32::new(MAGIC), version: U32::new(VERSION) };

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Request {
    head: MsgHeader,
    keep_open: U32,
    count: U32,
    names: [U64; MAX_NAMES],
    nonces: [U64; MAX_NAMES],
}

pub type PerName<T> = ArrayVec<T, MAX_NAMES>;

/// Whether the client keeps the connection. If so the server does too, as its end notifies of the death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepOpen {
    No,
    Yes,
}

/// A status for each name of the request, in order.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Reply {
    head: MsgHeader,
    statuses: [u8; MAX_NAMES],
    ranges: [MemRange; MAX_NAMES],
}

/// Memory of a process, by its own addresses, and what others may do to it.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug, Default,
)]
#[repr(C)]
pub struct MemRange {
    pub addr: U64,
    pub len: U64,
    pub access: U32,
    reserved: U32,
}

impl MemRange {
    pub fn new(addr: u64, len: u64, access: u32) -> MemRange {
        MemRange { addr: addr.into(), len: len.into(), access: access.into(), reserved: 0.into() }
    }
}

/// Length of a receive buffer: a byte more than the longest message, to detect longer ones.
pub const BUF_LEN: usize = size_of::<Reply>() + 1;
const _: () = assert!(size_of::<Request>() < BUF_LEN);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// One descriptor follows: memory at this range in its owner.
    Memory(MemRange),
    /// Two descriptors follow: an interface's segment and the socket that wakes it.
    Iface,
    /// There is no such export (any more).
    NotFound,
    Denied,
    /// The export exists, but cannot be passed now.
    RetryLater,
}

impl Status {
    const fn to_byte(self) -> u8 {
        match self {
            Status::Memory(_) => 0,
            Status::Iface => 1,
            Status::NotFound => 2,
            Status::Denied => 3,
            Status::RetryLater => 4,
        }
    }

    const fn from_byte(byte: u8, range: MemRange) -> Option<Status> {
        match byte {
            0 => Some(Status::Memory(range)),
            1 => Some(Status::Iface),
            2 => Some(Status::NotFound),
            3 => Some(Status::Denied),
            4 => Some(Status::RetryLater),
            _ => None,
        }
    }
}

impl Request {
    /// A request for what is `wanted`, of which the first [`MAX_NAMES`] count.
    pub fn new(wanted: &[Capability], keep_open: KeepOpen) -> Request {
        let count = wanted.len().min(MAX_NAMES);
        let (mut names, mut nonces) = ([U64::ZERO; MAX_NAMES], [U64::ZERO; MAX_NAMES]);
        names.iter_mut().zip(wanted).for_each(|(to, it)| *to = it.name.0.into());
        nonces.iter_mut().zip(wanted).for_each(|(to, it)| *to = it.nonce.into());
        let keep_open = u32::from(keep_open == KeepOpen::Yes).into();
        Request { head: HEADER, keep_open, count: (count as u32).into(), names, nonces }
    }

    /// The exports requested; `None` if malformed or of another version.
    pub fn read(bytes: &[u8]) -> Option<(PerName<Capability>, KeepOpen)> {
        let request = Request::read_from_bytes(bytes).ok().filter(|request| request.head == HEADER)?;
        let names = request.names.get(..request.count.get() as usize)?;
        let keep_open = if request.keep_open.get() == 0 { KeepOpen::No } else { KeepOpen::Yes };
        let wanted = names.iter().zip(&request.nonces);
        let wanted = wanted.map(|(name, nonce)| Capability { name: Name(name.get()), nonce: nonce.get() });
        Some((wanted.collect(), keep_open))
    }
}

impl Reply {
    /// A reply with `statuses`, and [`Status::NotFound`] for the remaining places.
    pub fn new(statuses: impl IntoIterator<Item = Status>) -> Reply {
        let (mut bytes, mut ranges) =
            ([Status::NotFound.to_byte(); MAX_NAMES], [MemRange::default(); MAX_NAMES]);
        for (n, status) in statuses.into_iter().enumerate().take(MAX_NAMES) {
            bytes[n] = status.to_byte();
            if let Status::Memory(range) = status {
                ranges[n] = range;
            }
        }
        Reply { head: HEADER, statuses: bytes, ranges }
    }

    /// The statuses, or the version of the server if it is another; `None` if malformed.
    pub fn read(bytes: &[u8]) -> Option<Result<[Status; MAX_NAMES], u32>> {
        let (head, _) =
            MsgHeader::read_from_prefix(bytes).ok().filter(|(head, _)| head.magic == HEADER.magic)?;
        if head.version != HEADER.version {
            return Some(Err(head.version.get()));
        }
        let reply = Reply::read_from_bytes(bytes).ok()?;
        let mut statuses = [Status::NotFound; MAX_NAMES];
        for (to, (byte, range)) in statuses.iter_mut().zip(reply.statuses.into_iter().zip(reply.ranges)) {
            *to = Status::from_byte(byte, range)?;
        }
        Some(Ok(statuses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_round_trip() {
        let names: Vec<Capability> =
            (70..70 + MAX_NAMES as u64).map(|n| Capability { name: Name(n), nonce: n << 40 }).collect();
        for (count, keep_open) in [(0, KeepOpen::No), (1, KeepOpen::Yes), (MAX_NAMES, KeepOpen::No)] {
            let (names_in, kept) =
                Request::read(Request::new(&names[..count], keep_open).as_bytes()).unwrap();
            assert_eq!((names_in.as_slice(), kept), (&names[..count], keep_open));
        }
        let here = Status::Memory(MemRange::new(0x7000, 4096, 3));
        let all = [here, Status::Iface, Status::NotFound, Status::Denied, Status::RetryLater];
        let statuses = Reply::read(Reply::new(all).as_bytes()).unwrap().unwrap();
        assert_eq!(statuses[..all.len()], all);
        assert!(statuses[all.len()..].iter().all(|status| *status == Status::NotFound));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let (mut request, mut reply) =
            (Request::new(&[Name(7).into()], KeepOpen::No), Reply::new([Status::Iface]));
        assert_eq!(Request::read(&request.as_bytes()[1..]), None);
        assert_eq!(Reply::read(&[0; size_of::<Reply>()]), None);
        request.count = (MAX_NAMES as u32 + 1).into();
        assert_eq!(Request::read(request.as_bytes()), None);
        request.count = 1.into();
        request.head.version = (VERSION + 1).into();
        assert_eq!(Request::read(request.as_bytes()), None);
        reply.statuses[MAX_NAMES - 1] = 5;
        assert_eq!(Reply::read(reply.as_bytes()), None);
        assert_eq!(Reply::read(&Reply::new([]).as_bytes()[1..]), None);
    }

    #[test]
    fn other_version_is_reported_from_the_header() {
        let head = MsgHeader { version: (VERSION + 1).into(), ..HEADER };
        assert_eq!(Reply::read(head.as_bytes()), Some(Err(VERSION + 1)));
        let mut longer = head.as_bytes().to_vec();
        longer.extend([9; 100]);
        assert_eq!(Reply::read(&longer), Some(Err(VERSION + 1)));
    }
}
