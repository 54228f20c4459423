//! Flow control of long-CTS: how many bytes a CTS grants and how many a CTSDATA carries (RDM v4, wire facts 5.5).
//! A grant is a number of packets, or all that is missing on a wire that makes senders wait by itself.
//! One grant at a time per message, the next when the last is used up exactly.

use ucs::coll::slots::SlotId;

use super::Engine;
use super::ask::Grant;
use super::io::{PeerId, Refused, Wire};
use crate::wire::PktType;
use crate::wire::ctl::{Cts, CtsData, CtsFor};

/// Bytes of a CTSDATA: room for its connid header is left whether or not it is sent, as libfabric counts.
#[inline]
pub(super) const fn data_per_packet(mtu: usize) -> usize {
    mtu.saturating_sub(CtsData::header_len(Some(0)))
}

/// Packets of a granted message sent in a row while others are granted too.
const TURN: usize = 32;

/// Whether, with `sent` bytes out, it is the turn of the next granted message.
pub(super) const fn ends_turn(sent: usize, mtu: usize) -> bool {
    match data_per_packet(mtu) {
        0 => true,
        each => (sent / each).is_multiple_of(TURN),
    }
}

/// Sends the grant that receive `id` owes its sender; nothing if the receive is gone.
pub(super) fn push_cts<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, id: SlotId) -> Result<(), Refused> {
    let credits = u64::from(e.cfg.cts_credits.max(1));
    let how = e.wires[usize::from(e.peers[to].wire.0)].grant;
    let inflow = match e.inflow(id) {
        Some((_, inflow)) if inflow.envelope.from == to && inflow.window == 0 => inflow,
        _ => return Ok(()),
    };
    let missing = inflow.envelope.len - inflow.cover.arrived();
    let grant = match how {
        Grant::Window => missing.min(credits * data_per_packet(w.mtu(to)).max(1) as u64),
        Grant::Whole => missing,
    };
    let send_id = inflow.envelope.send_id;
    let hdr = Cts {
        of: CtsFor::Send,
        send_id,
        recv_id: id.raw(),
        recv_length: grant,
        connid: Some(e.own(&e.peers[to]).connid),
    };
    e.post(w, to, PktType::CTS, Cts::LEN, |slot| hdr.write(slot))?;
    if let Some((_, inflow)) = e.inflow(id) {
        inflow.window = grant;
    }
    Ok(())
}
