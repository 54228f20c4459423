//! Atomics: WRITE_RTA, acknowledged by nobody, DC_WRITE_RTA, acknowledged by RECEIPT, FETCH_RTA and COMPARE_RTA,
//! answered by ATOMRSP with the old values. They take their turn in the order of messages, and each fits one packet
//! (RDM v4, wire facts 6).

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::amo::{self, Elements, Form};
use crate::rdm::ask::OpError;
use crate::rdm::event::Reason;
use crate::rdm::io::{PeerId, Refused, TxToken, Wire};
use crate::rdm::mem::{Access, Spans};
use crate::rdm::op::one::{Ack, Atomic, Job, One, OneState};
use crate::rdm::order::Share;
use crate::rdm::peer::Ctl;
use crate::rdm::rma::RmaRow;
use crate::rdm::room::{Arrival, PktRow, Push, Room};
use crate::wire::ctl::AtomRsp;
use crate::wire::rta::{Rta, RtaKind};
use crate::wire::{AtomicOp, Datatype, Packet, PktType, header_len};

pub(in crate::rdm) const ROWS: [PktRow; 5] = [
    rta(PktType::WRITE_RTA),
    rta(PktType::DC_WRITE_RTA),
    rta(PktType::FETCH_RTA),
    rta(PktType::COMPARE_RTA),
    PktRow { ty: PktType::ATOMRSP, room: Room::Atomic, order: None },
];

const fn rta(ty: PktType) -> PktRow {
    // [M9.5]
    PktRow { ty, room: Room::Atomic, order: Some(Share::Alone) }
}

/// Sends the request at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> Push {
    let Some(one) = e.one.get(id) else { return Push::Out };
    let Job::Atomic(what) = &one.job else { return Push::Out };
    let to = one.peer;
    let (kind, ty) = match (one.row, one.ack) {
        (RmaRow::FetchAtomic, _) => (RtaKind::Fetch { recv_id: id.raw() }, PktType::FETCH_RTA),
        (RmaRow::CompareAtomic, _) => (RtaKind::Compare { recv_id: id.raw() }, PktType::COMPARE_RTA),
        (_, Ack::No) => (RtaKind::Write, PktType::WRITE_RTA),
        _ => (RtaKind::DcWrite { send_id: id.raw() }, PktType::DC_WRITE_RTA),
    };
    let msg_id = e.peers[to].next_tx;
    let opts = e.opts(&e.peers[to], None);
    let (datatype, op) = (what.ty.into(), what.op.into());
    let hdr = Rta { kind, msg_id, rma_iov: one.remote, datatype, op, opts };
    let max = header_len(ty, one.remote.count(), &opts) + what.operands.len();
    let answer = AtomRsp::LEN as u64 + one.len;
    if max > w.mtu(to) || answer >= w.mtu(to) as u64 {
        return Push::Fail(OpError::Invalid);
    }
    let sent = w.send(to, max, TxToken::NONE, |slot| {
        let at = hdr.write(slot);
        // [M9.1]
        at + what.operands.copy_to(&mut slot[at..])
    });
    if let Err(refused) = e.posted(to, ty, sent) {
        return refused.into();
    }
    e.peers[to].next_tx = msg_id.wrapping_add(1);
    e.one_out(id);
    Push::Out
}

/// Any packet of this room.
pub(in crate::rdm) fn on_recv<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) {
    match a.packet {
        Packet::Rta(rta, payload) => on_request(e, w, a, rta, payload),
        Packet::AtomRsp(hdr, payload) => on_answer(e, a, hdr, payload),
        _ => {}
    }
}

/// A peer asks us to compute. Its turn in the order is over, whatever comes of it.
fn on_request<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>, rta: &Rta, payload: &[u8]) {
    let (form, row) = match rta.kind {
        RtaKind::Write | RtaKind::DcWrite { .. } => (Form::Write, RmaRow::WriteAtomic),
        RtaKind::Fetch { .. } => (Form::Fetch, RmaRow::FetchAtomic),
        RtaKind::Compare { .. } => (Form::Compare, RmaRow::CompareAtomic),
    };
    let (Some(op), Some(ty)) = (rta.op(), rta.datatype()) else {
        return e.refuse_request(w, a, Reason::Unsupported);
    };
    // [M9.4]
    if !amo::has_form(op, form) || !amo::has_type(op, ty) {
        return e.refuse_request(w, a, Reason::Unsupported);
    }
    let Some(spans) = e.reach(w, a, &rta.rma_iov, Access::ATOMIC) else { return };
    let (len, answer) = (spans.len(), AtomRsp::LEN as u64 + spans.len());
    let sound = match form {
        _ if op == AtomicOp::Read => true,
        Form::Write | Form::Fetch => payload.len() as u64 == len,
        Form::Compare => len.checked_mul(2) == Some(payload.len() as u64),
    };
    // [M9.2]
    let whole = spans.lens().all(|piece| piece.is_multiple_of(ty.size()));
    if !sound || !whole || (form != Form::Write && answer > w.mtu(a.peer) as u64) {
        return e.refuse_request(w, a, Reason::BadAccess);
    }
    let work = Work { op, ty, spans: &spans, payload };
    match rta.kind {
        RtaKind::Write => {
            work.compute(&mut []);
            e.written(w, a.peer, row, len, None, None);
        }
        RtaKind::DcWrite { send_id } => {
            work.compute(&mut []);
            e.written(w, a.peer, row, len, None, Some(send_id));
        }
        RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => {
            compute_and_answer(e, w, a, recv_id, row, &work);
        }
    }
}

/// What a peer asks us to compute, checked.
struct Work<'a> {
    op: AtomicOp,
    ty: Datatype,
    spans: &'a Spans,
    /// An operand for each element, then perhaps a compare value for each.
    payload: &'a [u8],
}

impl Work<'_> {
    /// Computes on every element, in order; as many old values as fit go to `old`. // HOT
    fn compute(&self, old: &mut [u8]) {
        struct On<'a>(&'a Spans, (&'a [u8], &'a [u8]), &'a mut [u8]);
        impl Elements for On<'_> {
            #[inline]
            fn replace<const N: usize>(self, change: impl Fn([u8; N], [u8; N], [u8; N]) -> Option<[u8; N]>) {
                let On(spans, (operands, compares), old) = self;
                spans.update(operands, compares, old, change);
            }
        }
        let split = (self.spans.len() as usize).min(self.payload.len());
        amo::run(self.op, self.ty, On(self.spans, self.payload.split_at(split), old));
    }
}

/// Computes, and answers the old values: straight into the packet, if it can go at once. // HOT
fn compute_and_answer<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    a: &Arrival<'_>,
    recv_id: u32,
    row: RmaRow,
    work: &Work<'_>,
) {
    let len = work.spans.len();
    let sent =
        if e.may_control(a.peer) { send_answer(e, w, a.peer, recv_id, work) } else { Err(Refused::Full) };
    match sent {
        Ok(()) => {}
        Err(Refused::Fault(fault)) => return e.fail_peer(w, a.peer, fault),
        Err(Refused::Full) => {
            // Nothing is computed that could not be answered.
            let mut one = One::new(a.peer, Job::Answer(Default::default()), row, len);
            one.theirs = Some(recv_id);
            let Some(id) = e.serve(w, a, one) else { return };
            let mut old = std::mem::take(&mut e.old);
            old.clear();
            old.resize(len as usize, 0);
            work.compute(&mut old);
            let held = e.hold.keep(&old);
            e.old = old;
            if let Some(one) = e.one.get_mut(id) {
                one.job = Job::Answer(held);
            }
            e.control(w, a.peer, Ctl::AtomRsp(id));
        }
    }
    e.stats.count_served(row, len);
    e.by_peer.served(a.peer, row, len);
}

/// Computes while the answer is written. A wire that has no room says so before. // HOT
// [M9.3]
fn send_answer<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    recv_id: u32,
    work: &Work<'_>,
) -> Result<(), Refused> {
    let len = work.spans.len();
    let hdr = AtomRsp { recv_id, seg_length: len, connid: Some(e.own(&e.peers[to]).connid) };
    let sent = w.send(to, AtomRsp::LEN + len as usize, TxToken::NONE, |slot| {
        let at = hdr.write(slot);
        let end = at + len as usize;
        work.compute(&mut slot[at..end]);
        end
    });
    e.posted(to, PktType::ATOMRSP, sent)
}

/// Sends old values.
pub(in crate::rdm) fn push_answer<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    id: SlotId,
) -> Result<(), Refused> {
    let Some(One { job: Job::Answer(old), theirs, .. }) = e.one.get(id) else { return Ok(()) };
    let connid = Some(e.own(&e.peers[to]).connid);
    let hdr = AtomRsp { recv_id: theirs.unwrap_or(0), seg_length: old.bytes().len() as u64, connid };
    let sent = w.send(to, AtomRsp::LEN + old.bytes().len(), TxToken::NONE, |slot| {
        let at = hdr.write(slot);
        let end = at + old.bytes().len();
        slot[at..end].copy_from_slice(old.bytes());
        end
    });
    e.posted(to, PktType::ATOMRSP, sent)?;
    e.drop_answer(id);
    Ok(())
}

/// Old values for an atomic of ours.
fn on_answer(e: &mut Engine, a: &Arrival<'_>, hdr: &AtomRsp, payload: &[u8]) {
    let id = SlotId::from_raw(hdr.recv_id);
    let one = match e.one.get_mut(id) {
        Some(one) if one.peer == a.peer && one.state == OneState::AllOut => one,
        _ => return e.drop_packet(a, Reason::BadId),
    };
    let Job::Atomic(Atomic { result: Some(result), .. }) = &mut one.job else {
        return e.drop_packet(a, Reason::BadId);
    };
    if payload.len() as u64 != one.len {
        return e.drop_packet(a, Reason::BadSegment);
    }
    result.put(0, payload);
    e.finish_one(id, Ok(()));
}
