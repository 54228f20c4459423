//! EAGER_TAGRTM with a connid only: the parser of the fast path of short tagged messages.
//!
//! Used by the eager protocol. Tests compare it with what [`super::Eager`] writes and with what
//! [`crate::wire::parse`] reads.

use super::hdr::{EagerHdr, WithTag};
use crate::wire::base::{MsgClass, PktType};
use crate::wire::short::{self, Fixed, Read};

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
    use crate::wire::base::{ReqFlags, VERSION};
    use crate::wire::rtm::{Eager, Rtm, RtmBody};
    use crate::wire::{Opts, Packet, parse};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_what_the_builder_writes(msg_id: u32, tag: u64, connid: u32, class in 0u16..4) {
            let class = MsgClass::of(ReqFlags::from_bits_retain(class << 8));
            let short = Short { msg_id, tag, connid, class };
            let opts = Opts::connid(connid).of_class(class);
            let mut packet = [0xaa; 28];
            let at = Eager { msg_id, tag: Some(tag), receipt: None, opts }.write(&mut packet);
            prop_assert_eq!((at, Short::read(&packet)), (Short::wire_len(), Some((short, &[0xaa; 28][at..]))));
            prop_assert_eq!(Short::read(&packet[..at - 1]), None);
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
}
