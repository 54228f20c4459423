//! DC_EAGER_RTW with one iov and a connid only: the fast path of short emulated writes.
//!
//! Used by the write protocol. A test compares it with [`super::Eager`] and [`crate::wire::parse`].

use super::hdr::DcEagerHdr;
use crate::wire::base::{PktType, ReqFlags};
use crate::wire::iov::{RmaIov, RmaIovHdr};
use crate::wire::short::{self, Fixed, Read};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OneIov {
    hdr: DcEagerHdr,
    iov: RmaIovHdr,
}

const _: () = assert!(size_of::<OneIov>() == 40 && std::mem::offset_of!(OneIov, iov) == 16);

impl Fixed for OneIov {
    const TY: PktType = PktType::DC_EAGER_RTW;
}

/// The headers of a short write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Short {
    /// The sender's id, for the RECEIPT.
    pub send_id: u32,
    /// Where to write; as long as the payload.
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

    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    // HOT
    #[inline(always)]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let base = short::base::<OneIov>(ReqFlags::empty());
        let hdr =
            DcEagerHdr { base, rma_iov_count: U32::new(1), send_id: self.send_id.into(), pad: U32::ZERO };
        short::write(buf, OneIov { hdr, iov: self.iov.into() }, self.connid)
    }

    /// Reads headers and payload; `None` for any other packet.
    // HOT
    #[inline(always)]
    pub fn read(packet: &[u8]) -> Option<(Short, &[u8])> {
        let Read { fixed, connid, payload, .. } = short::read::<OneIov>(packet)?;
        let iov = RmaIov::from(fixed.iov);
        let such = fixed.hdr.rma_iov_count.get() == 1 && payload.len() as u64 == iov.len;
        such.then_some((Short { send_id: fixed.hdr.send_id.get(), iov, connid }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::base::VERSION;
    use crate::wire::rtw::{Eager, RtwBody};
    use crate::wire::{Iovs, Opts, Packet, parse};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writes_like_the_general_builder(send_id: u32, addr: u64, len: u64, key: u64, connid: u32) {
            let iov = RmaIov { addr, len, key };
            let opts = Opts { connid: Some(connid), ..Opts::NONE };
            let eager = Eager { rma_iov: Iovs::one(iov), receipt: Some(send_id), opts };
            let (mut ours, mut theirs) = ([0; 48], [0; 48]);
            prop_assert_eq!(Short { send_id, iov, connid }.write(&mut ours), eager.write(&mut theirs));
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn reads_like_the_general_parser(
            mut packet in prop::collection::vec(any::<u8>(), 0..80),
            valid_base in prop::bool::weighted(0.9),
            flags in prop::sample::select(vec![0x0000u16, 0x8000, 0x0010, 0x8004, 0x0001, 0x0002]),
            pieces in 0u32..3,
            fits in prop::bool::weighted(0.9),
        ) {
            if valid_base && packet.len() >= 40 {
                packet[..2].copy_from_slice(&[PktType::DC_EAGER_RTW.0, VERSION]);
                packet[2..4].copy_from_slice(&flags.to_le_bytes());
                packet[4..8].copy_from_slice(&pieces.to_le_bytes());
                if fits {
                    let connid = if flags & 0x8000 == 0 { 0 } else { 4 };
                    let len = (packet.len() - 40).saturating_sub(connid) as u64;
                    packet[24..32].copy_from_slice(&len.to_le_bytes());
                }
            }
            if let Some((short, payload)) = Short::read(&packet) {
                let Ok(Packet::Rtw(rtw)) = parse(&packet) else { panic!("the general parser rejects it") };
                prop_assert_eq!((rtw.ty, rtw.rma_iov), (PktType::DC_EAGER_RTW, Iovs::one(short.iov)));
                prop_assert_eq!((rtw.receipt, rtw.opts.connid), (Some(short.send_id), Some(short.connid)));
                prop_assert_eq!((rtw.opts.raw_addr, rtw.opts.cq_data), (None, None));
                prop_assert_eq!((rtw.body, rtw.payload), (RtwBody::Eager, payload));
            }
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let connid = 7;
        let short = Short { send_id: 3, iov: RmaIov { addr: 1, len: 8, key: 2 }, connid };
        let mut packet = [0xaa; 60];
        let at = short.write(&mut packet);
        assert_eq!((at, Short::read(&packet[..at + 8])), (Short::wire_len(), Some((short, &[0xaa; 8][..]))));
        assert_eq!(Short::read(&packet[..at + 7]), None);
        assert_eq!(Short::read(&packet[..at - 1]), None);
    }
}
