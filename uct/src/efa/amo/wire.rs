//! Packets between an interface and the thread that carries out its atomics. Byte 0 is a reserved id.

use crate::api::{AtomicOp, Error};
use std::ops::RangeInclusive;
use ucs::sync::copy_once;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian as le};

/// Active message ids that the transport keeps for emulated atomics: the last three. No packet type of EFA
/// RDM v4 is among them.
pub const RESERVED_AM_IDS: RangeInclusive<u8> = REQUEST..=PROBE;

const REQUEST: u8 = 253;
const RESPONSE: u8 = 254;
const PROBE: u8 = 255;

/// Layout version of a request; another one is refused.
const VERSION: u8 = 1;

/// A packet that asks a domain's thread for nothing: if it is delivered, the thread lives.
pub(super) const PROBE_PACKET: [u8; 1] = [PROBE];

/// Longest packet, bytes.
pub(in crate::efa) const MAX_LEN: usize = size_of::<RequestLayout>();

/// Effect of a request on the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::efa) enum AmoKind {
    Op(AtomicOp),
    Cswap,
}

/// An atomic operation to be carried out by the owner of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) kind: AmoKind,
    /// Bytes of the word.
    pub(super) width: usize,
    pub(super) id: OpId,
    /// Q-key of the queue pair that waits for the response.
    pub(super) qkey: u32,
    /// Remote key of the region.
    pub(super) key: u32,
    pub(super) remote: u64,
    pub(super) value: u64,
    pub(super) compare: u64,
}

/// Name of an operation at its initiator. A generation is used once, so a late response finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// End of an operation, and what the word held before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Response {
    pub(super) id: OpId,
    pub(super) result: Result<u64, Error>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestLayout {
    id: u8,
    op: u8,
    width: u8,
    version: u8,
    slot: le::U32,
    generation: le::U32,
    qkey: le::U32,
    key: le::U32,
    reserved: le::U32,
    remote: le::U64,
    value: le::U64,
    compare: le::U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ResponseLayout {
    id: u8,
    status: u8,
    reserved: [u8; 2],
    slot: le::U32,
    generation: le::U32,
    reserved2: le::U32,
    old: le::U64,
}

const _: () = assert!(size_of::<RequestLayout>() == 48 && size_of::<ResponseLayout>() == 24);

const KINDS: [AmoKind; 6] = [
    AmoKind::Op(AtomicOp::Add),
    AmoKind::Op(AtomicOp::And),
    AmoKind::Op(AtomicOp::Or),
    AmoKind::Op(AtomicOp::Xor),
    AmoKind::Op(AtomicOp::Swap),
    AmoKind::Cswap,
];

/// Statuses of a response, by number.
const ERRORS: [Error; 6] = [
    Error::RemoteAccess,
    Error::InvalidParam("the target does not know this atomic operation"),
    Error::PeerDead,
    Error::Unreachable,
    Error::Cancelled,
    Error::Unresponsive,
];

/// A copy of a packet, which its sender may be changing, if it has the length of a `T`.
fn copy<T: FromBytes + IntoBytes>(packet: &[u8]) -> Option<T> {
    let mut copy = T::new_zeroed();
    if packet.len() != size_of::<T>() {
        return None;
    }
    copy_once(packet, copy.as_mut_bytes());
    Some(copy)
}

impl Request {
    pub(super) fn write(&self, to: &mut [u8]) -> usize {
        let op = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default();
        let packet = RequestLayout {
            id: REQUEST,
            op: op as u8,
            width: self.width as u8,
            version: VERSION,
            slot: self.id.slot.into(),
            generation: self.id.generation.into(),
            qkey: self.qkey.into(),
            key: self.key.into(),
            reserved: 0.into(),
            remote: self.remote.into(),
            value: self.value.into(),
            compare: self.compare.into(),
        };
        to[..size_of::<RequestLayout>()].copy_from_slice(packet.as_bytes());
        size_of::<RequestLayout>()
    }

    /// The request in a packet. `Err`: one that cannot be understood, and the response to it.
    pub(super) fn read(packet: &[u8]) -> Option<Result<(Request, u32), (Response, u32)>> {
        let p = copy::<RequestLayout>(packet).filter(|p| p.id == REQUEST)?;
        let id = OpId { slot: p.slot.get(), generation: p.generation.get() };
        let (width, kind) = (usize::from(p.width), KINDS.get(usize::from(p.op)));
        let qkey = p.qkey.get();
        let (Some(&kind), VERSION, 4 | 8) = (kind, p.version, width) else {
            return Some(Err((Response { id, result: Err(ERRORS[1]) }, qkey)));
        };
        let (key, remote) = (p.key.get(), p.remote.get());
        let (value, compare) = (p.value.get(), p.compare.get());
        Some(Ok((Request { kind, width, id, qkey, key, remote, value, compare }, qkey)))
    }
}

impl Response {
    pub(super) fn write(&self, to: &mut [u8]) -> usize {
        let status = match self.result {
            Ok(_) => 0,
            Err(e) => 1 + ERRORS.iter().position(|known| *known == e).unwrap_or(1),
        };
        let packet = ResponseLayout {
            id: RESPONSE,
            status: status as u8,
            reserved: [0; 2],
            slot: self.id.slot.into(),
            generation: self.id.generation.into(),
            reserved2: 0.into(),
            old: self.result.unwrap_or_default().into(),
        };
        to[..size_of::<ResponseLayout>()].copy_from_slice(packet.as_bytes());
        size_of::<ResponseLayout>()
    }

    pub(super) fn read(packet: &[u8]) -> Option<Response> {
        let p = copy::<ResponseLayout>(packet).filter(|p| p.id == RESPONSE)?;
        let id = OpId { slot: p.slot.get(), generation: p.generation.get() };
        let result = match usize::from(p.status).checked_sub(1) {
            None => Ok(p.old.get()),
            Some(status) => Err(*ERRORS.get(status)?),
        };
        Some(Response { id, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: AmoKind) -> Request {
        let id = OpId { slot: 7, generation: 0x0102_0304 };
        Request { kind, width: 8, id, qkey: 5, key: 6, remote: 0x1122, value: 1 << 63, compare: 3 }
    }

    #[test]
    fn golden_request() {
        let mut packet = [0xffu8; MAX_LEN];
        assert_eq!(request(AmoKind::Cswap).write(&mut packet), 48);
        let want = "fd05080107000000040302010500000006000000000000002211000000000000\
                    00000000000000800300000000000000";
        assert_eq!(packet.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), want);
    }

    #[test]
    fn packets_round_trip() {
        for kind in KINDS {
            let mut packet = [0u8; MAX_LEN];
            let len = request(kind).write(&mut packet);
            assert_eq!(Request::read(&packet[..len]), Some(Ok((request(kind), 5))));
            assert_eq!((Request::read(&packet[1..]), Response::read(&packet)), (None, None));
        }
        let id = OpId { slot: 1, generation: 2 };
        for result in ERRORS.map(Err).into_iter().chain([Ok(u64::MAX)]) {
            let mut packet = [0u8; MAX_LEN];
            let len = Response { id, result }.write(&mut packet);
            assert_eq!(Response::read(&packet[..len]), Some(Response { id, result }));
        }
    }

    #[test]
    fn unknown_requests_are_answered() {
        for (at, byte) in [(1, 6), (2, 3), (3, 9)] {
            let mut packet = [0u8; MAX_LEN];
            request(AmoKind::Cswap).write(&mut packet);
            packet[at] = byte;
            let refused = Request::read(&packet).unwrap().unwrap_err();
            assert!(matches!(refused.0.result, Err(Error::InvalidParam(_))) && refused.1 == 5);
        }
    }
}
