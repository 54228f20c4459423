//! LONGREAD and RUNTREAD: the receiver reads the sender's memory. The first bytes of a RUNTREAD, its head,
//! come in packets. EOR ends both, and also writes that the target reads (`write_read`).
//!
//! | step | side | file |
//! |---|---|---|
//! | name the memory | sender | `announce` |
//! | match the message, take in its head | receiver | `arrive` |
//! | read, over the wire, over rails or over the RMA-only lane | receiver | `read` |
//! | end with EOR, READ_NACK or an error | receiver | `finish` |
//! | complete the send | sender | `announce` |

mod announce;
mod arrive;
mod finish;
mod read;

pub(in crate::rdm) use announce::{on_eor, push};
pub(in crate::rdm) use arrive::on_rtm;
pub(in crate::rdm) use finish::{on_read, push_eor};
pub(in crate::rdm) use read::push_rma_read;

use crate::rdm::protocol::{HandlerKind, PacketHandler};
use crate::rdm::recv::sequence::MsgIdUse;
use crate::wire::PktType;

pub(in crate::rdm) const HANDLERS: [PacketHandler; 5] = [
    handler(PktType::LONGREAD_MSGRTM, Some(MsgIdUse::Single)),
    handler(PktType::LONGREAD_TAGRTM, Some(MsgIdUse::Single)),
    handler(PktType::RUNTREAD_MSGRTM, Some(MsgIdUse::Segments)),
    handler(PktType::RUNTREAD_TAGRTM, Some(MsgIdUse::Segments)),
    handler(PktType::EOR, None),
];

const fn handler(ty: PktType, id_use: Option<MsgIdUse>) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::LongRead, id_use }
}
