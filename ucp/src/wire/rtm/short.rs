//! EAGER_TAGRTM with a connid only: the fast path of short tagged messages.
//!
//! Used by the eager protocol. A test compares it with [`super::Eager`] and [`crate::wire::parse`].

use super::hdr::{EagerHdr, WithTag};
use crate::wire::base::{MsgClass, PktType, ReqFlags};
use crate::wire::short::{self, Fixed, Read};
use zerocopy::little_endian::U64;

type Tagged = WithTag<EagerHdr>;

impl Fixed for Tagged {
    const TY: PktType = PktType::EAGER_TAGRTM;
}

/// The headers of a short tagged message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Short {
    /// Sequence number of the message.
    pub msg_id: u32,
    /// Tag of the message.
    pub tag: u64,
    /// Connection id of the sender.
    pub connid: u32,
    /// Message class.
    pub class: MsgClass,
}

impl Short {
    /// Bytes of the headers.
    #[inline(always)]
    pub const fn wire_len() -> usize {
        short::wire_len::<Tagged>()
    }

    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    // HOT
    #[inline(always)]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let own = ReqFlags::MSG.union(ReqFlags::TAGGED).union(self.class.flags());
        let hdr = EagerHdr { base: short::base::<Tagged>(own), msg_id: self.msg_id.into() };
        short::write(buf, WithTag { hdr, tag: U64::new(self.tag) }, self.connid)
    }

    /// Reads headers and payload; `None` for any other packet.
    // HOT
    #[inline(always)]
    pub fn read(packet: &[u8]) -> Option<(Short, &[u8])> {
        let Read { fixed, flags, connid, payload } = short::read::<Tagged>(packet)?;
        let (msg_id, tag, class) = (fixed.hdr.msg_id.get(), fixed.tag.get(), MsgClass::of(flags));
        Some((Short { msg_id, tag, connid, class }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::base::VERSION;
    use crate::wire::rtm::{Eager, Rtm, RtmBody};
    use crate::wire::{Opts, Packet, parse};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn writes_like_the_general_builder(msg_id: u32, tag: u64, connid: u32, class in 0u16..4) {
            let class = MsgClass::of(ReqFlags::from_bits_retain(class << 8));
            let short = Short { msg_id, tag, connid, class };
            let opts = Opts { connid: Some(connid), class, ..Opts::NONE };
            let eager = Eager { msg_id, tag: Some(tag), receipt: None, opts };
            let (mut ours, mut theirs) = ([0; 24], [0; 24]);
            prop_assert_eq!(short.write(&mut ours), eager.write(&mut theirs));
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn reads_like_the_general_parser(
            mut packet in prop::collection::vec(any::<u8>(), 0..40),
            valid_base in prop::bool::weighted(0.9),
            flags in prop::sample::select(vec![0x0008u16, 0x000c, 0x0108, 0x8008, 0x0009, 0x000a]),
        ) {
            if valid_base && packet.len() >= 4 {
                packet[..2].copy_from_slice(&[PktType::EAGER_TAGRTM.0, VERSION]);
                packet[2..4].copy_from_slice(&flags.to_le_bytes());
            }
            if let Some((short, payload)) = Short::read(&packet) {
                let Ok(Packet::Rtm(rtm)) = parse(&packet) else { panic!("the general parser rejects it") };
                let opts = Opts { connid: Some(short.connid), class: short.class, ..Opts::NONE };
                let Rtm { ty, msg_id, tag, receipt, body, .. } = rtm;
                prop_assert_eq!((ty, msg_id, tag), (PktType::EAGER_TAGRTM, short.msg_id, Some(short.tag)));
                prop_assert_eq!((receipt, body, rtm.opts, rtm.payload), (None, RtmBody::Eager, opts, payload));
            }
        }
    }

    #[test]
    fn reads_what_it_writes() {
        let connid = 7;
        let short = Short { msg_id: 3, tag: 9, connid, class: MsgClass::Message };
        let mut packet = [0xaa; 28];
        let at = short.write(&mut packet);
        assert_eq!((at, Short::read(&packet)), (Short::wire_len(), Some((short, &[0xaa; 28][at..]))));
        assert_eq!(Short::read(&packet[..at - 1]), None);
    }
}
