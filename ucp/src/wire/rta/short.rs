//! FETCH_RTA with one iov and a connid only: the fast path of fetching atomics.
//!
//! Used by the atomic protocol. A test compares it with [`super::Rta`] and [`crate::wire::parse`].

use super::hdr::RtaHdr;
use super::ops::{AtomicOp, Datatype};
use crate::wire::base::{PktType, ReqFlags};
use crate::wire::iov::{RmaIov, RmaIovHdr};
use crate::wire::short::{self, Fixed, Read};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OneIov {
    hdr: RtaHdr,
    iov: RmaIovHdr,
}

const _: () = assert!(size_of::<OneIov>() == 48 && std::mem::offset_of!(OneIov, iov) == 24);

impl Fixed for OneIov {
    const TY: PktType = PktType::FETCH_RTA;
}

/// The headers of a short fetching atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    /// Sequence number of the message.
    pub msg_id: u32,
    /// The requester's id.
    pub recv_id: u32,
    /// Type of the elements.
    pub datatype: Datatype,
    /// Operation.
    pub op: AtomicOp,
    /// The elements.
    pub iov: RmaIov,
    /// Connection id of the sender.
    pub connid: u32,
}

impl Short {
    /// Bytes of the headers.
    #[inline(always)]
    pub const fn wire_len() -> usize {
        short::wire_len::<OneIov>()
    }

    /// Writes the headers to `buf` and returns the offset of the operands. Panics if `buf` is too short.
    // HOT
    #[inline(always)]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let hdr = RtaHdr {
            base: short::base::<OneIov>(ReqFlags::ATOMIC),
            msg_id: self.msg_id.into(),
            rma_iov_count: U32::new(1),
            datatype: u32::from(self.datatype).into(),
            op: u32::from(self.op).into(),
            id: self.recv_id.into(),
        };
        short::write(buf, OneIov { hdr, iov: self.iov.into() }, self.connid)
    }

    /// Reads headers and operands; `None` for any other packet, or an unknown type or operation.
    // HOT
    #[inline(always)]
    pub fn read(packet: &[u8]) -> Option<(Short, &[u8])> {
        let Read { fixed: OneIov { hdr, iov }, connid, payload: operands, .. } =
            short::read::<OneIov>(packet)?;
        if hdr.rma_iov_count.get() != 1 {
            return None;
        }
        let datatype = Datatype::try_from(hdr.datatype.get()).ok()?;
        let op = AtomicOp::try_from(hdr.op.get()).ok()?;
        let (msg_id, recv_id) = (hdr.msg_id.get(), hdr.id.get());
        Some((Short { msg_id, recv_id, datatype, op, iov: iov.into(), connid }, operands))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::base::VERSION;
    use crate::wire::rta::{Rta, RtaKind};
    use crate::wire::{Iovs, Opts, Packet, parse};
    use proptest::prelude::*;

    fn general(short: &Short) -> Rta {
        let kind = RtaKind::Fetch { recv_id: short.recv_id };
        let opts = Opts { connid: Some(short.connid), ..Opts::NONE };
        let (datatype, op) = (short.datatype.into(), short.op.into());
        Rta { kind, msg_id: short.msg_id, rma_iov: Iovs::one(short.iov), datatype, op, opts }
    }

    proptest! {
        #[test]
        fn writes_like_the_general_builder(
            ids: (u32, u32),
            place: (u64, u64, u64),
            datatype in 0u32..20,
            op in 0u32..20,
            connid: u32,
        ) {
            let (addr, len, key) = place;
            let (datatype, op) = (Datatype::try_from(datatype).unwrap(), AtomicOp::try_from(op).unwrap());
            let iov = RmaIov { addr, len, key };
            let short = Short { msg_id: ids.0, recv_id: ids.1, datatype, op, iov, connid };
            let (mut ours, mut theirs) = ([0; 60], [0; 60]);
            prop_assert_eq!(short.write(&mut ours), general(&short).write(&mut theirs));
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn reads_like_the_general_parser(
            mut packet in prop::collection::vec(any::<u8>(), 0..90),
            valid_base in prop::bool::weighted(0.9),
            flags in prop::sample::select(vec![0x0020u16, 0x8020, 0x0000, 0x8024, 0x0021, 0x0022]),
            numbers in (0u32..3, 0u32..22, 0u32..22),
        ) {
            if valid_base && packet.len() >= 48 {
                packet[..2].copy_from_slice(&[PktType::FETCH_RTA.0, VERSION]);
                packet[2..4].copy_from_slice(&flags.to_le_bytes());
                for (at, number) in [(8, numbers.0), (12, numbers.1), (16, numbers.2)] {
                    packet[at..at + 4].copy_from_slice(&number.to_le_bytes());
                }
            }
            if let Some((short, operands)) = Short::read(&packet) {
                let Ok(Packet::Rta(rta, payload)) = parse(&packet) else { panic!("the general parser rejects it") };
                let want = general(&short);
                prop_assert_eq!((rta.opts.raw_addr, rta.opts.cq_data), (None, None));
                prop_assert_eq!((Rta { opts: want.opts, ..rta }, rta.opts.connid), (want, Some(short.connid)));
                prop_assert_eq!(payload, operands);
            }
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let connid = 7;
        let iov = RmaIov { addr: 1, len: 8, key: 2 };
        let (datatype, op) = (Datatype::Uint64, AtomicOp::Sum);
        let short = Short { msg_id: 4, recv_id: 3, datatype, op, iov, connid };
        let mut packet = [0xaa; 60];
        let at = short.write(&mut packet);
        assert_eq!((at, Short::read(&packet)), (Short::wire_len(), Some((short, &[0xaa; 60][at..]))));
        assert_eq!(Short::read(&packet[..at - 1]), None);
    }
}
