//! Dispatches a packet to the handler of its type. Packets of failed or closed peers are refused, or received
//! as far as they need no answer.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::operations::Operations;
use crate::rdm::peers::Peers;
use crate::rdm::peers::conversation;
use crate::rdm::peers::peer::PartialMsg;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind};
use crate::rdm::protocols::{
    atomic, close, eager, handshake, longcts, longread, medium, note, peer_error, read, read_nack, receipt,
    write, write_read, zcopy_recv,
};
use crate::rdm::status::PeerError;
use crate::rdm::trace::DropReason;
use crate::wire::Packet;

/// Handles a packet of a failed peer: receives data that completes without an answer, drops the rest.
#[cold]
fn recv_from_failed<W: Wire>(
    ops: &mut Operations,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
) -> Next {
    let peer = &peers.table[a.peer];
    let follows = |msg_id| match peer.queue.as_ref().and_then(|queue| queue.partial_msgs.get(msg_id)) {
        Some(&PartialMsg::Rx(rx)) => ops.recvs.table.get(rx).is_some(),
        _ => false,
    };
    match a.packet {
        // The peer lives, and waits for an answer.
        Packet::Rtm(_) | Packet::Rtw(_) | Packet::Rtr(_) | Packet::Rta(..) if peer.state.is_drained() => {
            drop_and_notify(peers, w, a)
        }
        _ if peer.state.is_drained() => peers.drop_of_failed(a),
        Packet::CtsData(hdr, _) if ops.recvs.table.get(SlotId::from_raw(hdr.recv_id)).is_some() => {
            longcts::on_recv(&mut ops.sends, &mut ops.recvs, &mut ops.rma_ops, peers, pending, a)
        }
        Packet::Rtm(rtm) if a.handler.kind == HandlerKind::LongRead && follows(&rtm.msg_id) => {
            longread::on_rtm(&mut ops.recvs, &mut ops.reads, peers, pending, w, a, rtm)
        }
        Packet::Rtm(_) | Packet::Rtw(_) | Packet::Rtr(_) | Packet::Rta(..) => drop_and_notify(peers, w, a),
        _ => peers.drop_of_failed(a),
    }
}

/// Drops a packet of a peer that failed here but is alive, and notifies it.
// [M11.19]
#[cold]
pub(in crate::rdm) fn drop_and_notify<W: Wire>(peers: &mut Peers, w: &mut W, a: &Arrival<'_>) -> Next {
    peer_error::notify_lost(peers, w, a.peer);
    peers.drop_of_failed(a)
}

/// Refuses a request of a closed peer. A peer that had failed before is notified of that; one over its limit
/// is not, since every refusal says so.
fn refuse<W: Wire>(peers: &mut Peers, pending: &mut Pending, w: &mut W, a: &Arrival<'_>) -> Next {
    if peers.table[a.peer].fault != Some(PeerError::OverLimit) {
        peer_error::notify_lost(peers, w, a.peer);
    }
    peers.refuse_closed(pending, a);
    Next::Nothing
}

/// Handles a packet of a peer that was closed by force, or of a conversation that is over.
// [M10.7] [M11.16] [M11.18]
#[cold]
#[inline(never)]
fn handle_refused<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) -> Next {
    let peer = &e.peers.table[a.peer];
    let (is_up, is_orderly) = (peer.state.is_up(), peer.keeps_order());
    match a.packet {
        Packet::Handshake(_) if !is_up => {
            e.peers.refuse_closed(&mut e.pending, a);
            conversation::knows_closes(&mut e.peers, a.peer);
            Next::Drive
        }
        packet if close::is_close(packet) && is_orderly => close::on_recv(&mut e.peers, &mut e.pending, a),
        Packet::Receipt(_) if is_orderly => {
            receipt::on_recv(&mut e.ops.sends, &mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, a)
        }
        Packet::PeerError(_) if is_orderly => {
            peer_error::on_recv(&mut e.ops, &mut e.peers, &mut e.pending, w, a)
        }
        Packet::Rtw(rtw) if rtw.is_trigger() => match is_up {
            true => take(e, w, a),
            false => refuse(&mut e.peers, &mut e.pending, w, a),
        },
        packet if close::is_close(packet) && !is_up => {
            peer_error::notify_lost(&mut e.peers, w, a.peer);
            e.peers.drop_packet(a, DropReason::PeerFailed)
        }
        Packet::Rtm(_) | Packet::Rtw(_) | Packet::Rtr(_) | Packet::Rta(..) => {
            if peer.may_be_reopened_by_peer() {
                conversation::reopen(
                    &mut e.ops.recvs,
                    &mut e.ops.reads,
                    &mut e.peers,
                    &mut e.pending,
                    w,
                    a.peer,
                );
                return take(e, w, a);
            }
            match peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) && is_orderly {
                // The peer has ended the operation, or will when our close arrives.
                true => e.peers.drop_packet(a, DropReason::PeerFailed),
                false => refuse(&mut e.peers, &mut e.pending, w, a),
            }
        }
        _ if is_up => take(e, w, a),
        _ => {
            e.peers.refuse_closed(&mut e.pending, a);
            Next::Nothing
        }
    }
}

/// Passes a packet to its handler, unless it is refused.
#[inline]
pub(in crate::rdm) fn handle<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) -> Next {
    match e.peers.table[a.peer].state.refuses_packets() {
        true => handle_refused(e, w, a),
        false => take(e, w, a),
    }
}

/// Passes a packet to its handler, with the parts of the engine that it needs.
#[inline]
fn take<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) -> Next {
    match a.handler.kind {
        HandlerKind::Close if close::is_close(a.packet) => match e.peers.table[a.peer].state.is_up() {
            true => close::on_recv(&mut e.peers, &mut e.pending, a),
            false => drop_and_notify(&mut e.peers, w, a),
        },
        HandlerKind::Note if note::is_note(a.packet) => match e.peers.table[a.peer].state.is_up() {
            true => note::on_recv(&mut e.ops.recvs, &mut e.ops.reads, &mut e.peers, &mut e.pending, w, a),
            false => drop_and_notify(&mut e.peers, w, a),
        },
        // Packets about our own messages (CTS, CTSDATA, EOR) are handled as in normal mode.
        HandlerKind::Eager
        | HandlerKind::Close
        | HandlerKind::Note
        | HandlerKind::Medium
        | HandlerKind::LongCts
        | HandlerKind::LongRead
            if e.zcopy_recv.is_some() && matches!(a.packet, Packet::Rtm(_)) =>
        {
            zcopy_recv::on_packet(e, w, a)
        }
        // Whole messages of a failed peer are received; others would never end.
        HandlerKind::Eager | HandlerKind::Close | HandlerKind::Note => {
            eager::on_recv(&mut e.ops.recvs, &mut e.peers, &mut e.pending, a)
        }
        HandlerKind::Medium if !e.peers.table[a.peer].state.is_drained() => {
            medium::on_recv(&mut e.ops.recvs, &mut e.peers, &mut e.pending, a)
        }
        _ if e.peers.table[a.peer].state.is_failed() => {
            recv_from_failed(&mut e.ops, &mut e.peers, &mut e.pending, w, a)
        }
        HandlerKind::Medium => medium::on_recv(&mut e.ops.recvs, &mut e.peers, &mut e.pending, a),
        HandlerKind::LongCts => longcts::on_recv(
            &mut e.ops.sends,
            &mut e.ops.recvs,
            &mut e.ops.rma_ops,
            &mut e.peers,
            &mut e.pending,
            a,
        ),
        HandlerKind::LongRead => match a.packet {
            Packet::Rtm(rtm) => {
                longread::on_rtm(&mut e.ops.recvs, &mut e.ops.reads, &mut e.peers, &mut e.pending, w, a, rtm)
            }
            Packet::Eor(eor) => longread::on_eor(
                &mut e.ops.sends,
                &mut e.ops.rma_ops,
                &mut e.peers,
                &mut e.pending,
                w,
                a,
                eor,
            ),
            _ => Next::Nothing,
        },
        HandlerKind::ReadNack => {
            read_nack::on_recv(&mut e.ops.sends, &mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, a)
        }
        HandlerKind::PeerError => peer_error::on_recv(&mut e.ops, &mut e.peers, &mut e.pending, w, a),
        HandlerKind::Handshake => handshake::on_recv(&mut e.ops.sends, &mut e.peers, &mut e.pending, w, a),
        HandlerKind::Receipt => {
            receipt::on_recv(&mut e.ops.sends, &mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, a)
        }
        HandlerKind::Write => write::on_recv(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, a),
        HandlerKind::WriteRead => write_read::on_recv(&mut e.ops.rma_ops, &mut e.ops.reads, &mut e.peers, a),
        HandlerKind::Read => read::on_recv(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, a),
        HandlerKind::Atomic => atomic::on_recv(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, w, a),
        HandlerKind::None => e.peers.drop_packet(a, DropReason::Unsupported),
    }
}
