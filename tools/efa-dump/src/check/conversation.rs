//! The state of two ends as one of them sees it, by which packets are checked.

use std::collections::{HashMap, HashSet};

use ucp::wire::ctl::{CtsFor, ErrorRef};
use ucp::wire::rta::{Rta, RtaKind};
use ucp::wire::rtm::{Rtm, RtmBody};
use ucp::wire::rtr::{ReadKind, Rtr};
use ucp::wire::rtw::{Rtw, RtwBody};
use ucp::wire::{Cause, Features, Packet, PktType, ReqFlags, table};
use uct::efa::dev::soft::capture::Direction;

use super::Finding;
use super::msg_ids::MsgIds;
use super::window::Window;
use crate::record::Record;

#[derive(Default)]
struct EndState {
    connid: Option<u32>,
    features: Option<Features>,
    ids: MsgIds,
    /// Windowed transfers that it sends, by send_id: length, and bytes that need no window.
    sends: HashMap<u32, (u64, u64)>,
    /// Windowed transfers that it receives, by recv_id.
    windows: HashMap<u32, Window>,
    /// Reads that it answers, by send_id.
    responses: HashSet<u32>,
    /// Memory that it offers for reading, by send_id: bytes that travel in packets.
    reads: HashMap<u32, u64>,
    /// Refused reads, as `reads`.
    nacked: HashMap<u32, u64>,
    /// Receipts that it waits for, by send_id.
    receipts: HashSet<u32>,
    /// Results of atomics that it waits for, by recv_id.
    results: HashSet<u32>,
}

#[derive(Default)]
pub struct Conversation {
    here: EndState,
    there: EndState,
}

impl Conversation {
    pub fn on_packet(&mut self, record: &Record, packet: &Packet<'_>, found: &mut Vec<Finding>) {
        self.check_flags(record, packet, found);
        if !record.arrived() {
            if let (Some(id), Direction::Out) = (packet.msg_id(), record.direction) {
                self.here.ids.skip(id);
            }
            return;
        }
        if let Some(connid) = packet.sender_connid() {
            let known = self.ends(record.direction).0.connid;
            if known.is_some_and(|known| known != connid) {
                // A new connid is a new queue pair: forget the state of the old one.
                *self = Conversation::default();
            }
            self.ends(record.direction).0.connid = Some(connid);
        }
        self.check_before_handshake(record, packet, found);
        let (from, to) = self.ends(record.direction);
        let needs = table::info(PktType(record.bytes[0])).needs;
        if let Some(missing) = to.features.map(|f| needs - f).filter(|missing| !missing.is_empty()) {
            found.push(Finding::Unannounced(missing));
        }
        apply(from, to, packet, found);
    }

    /// Reports missing message ids of both directions.
    pub fn at_end(&self, here: &str, there: &str, found: &mut Vec<Finding>) {
        for (end, from, to) in [(&self.here, here, there), (&self.there, there, here)] {
            for (first, last) in end.ids.gaps() {
                found.push(Finding::Gap { from: from.into(), to: to.into(), first, last });
            }
        }
    }

    /// Sender and receiver of a packet.
    fn ends(&mut self, direction: Direction) -> (&mut EndState, &mut EndState) {
        match direction {
            Direction::Out => (&mut self.here, &mut self.there),
            Direction::In => (&mut self.there, &mut self.here),
        }
    }

    /// Checks that need no state.
    fn check_flags(&self, record: &Record, packet: &Packet<'_>, found: &mut Vec<Finding>) {
        let flags = ReqFlags::from_bits_retain(u16::from_le_bytes([record.bytes[2], record.bytes[3]]));
        let info = table::info(PktType(record.bytes[0]));
        match info.family {
            table::PktFamily::Rtm if !flags.contains(ReqFlags::MSG) => {
                found.push(Finding::Flags("MSG is missing"));
            }
            table::PktFamily::Rta if !flags.contains(ReqFlags::ATOMIC) => {
                found.push(Finding::Flags("ATOMIC is missing"));
            }
            _ => {}
        }
        if info.family == table::PktFamily::Rtm && flags.contains(ReqFlags::TAGGED) != info.tagged {
            found.push(Finding::Flags(match info.tagged {
                true => "TAGGED is missing",
                false => "TAGGED is set on an untagged message",
            }));
        }
        let Some(opts) = packet.opts() else { return };
        if opts.raw_addr.is_some() && opts.connid.is_some() {
            found.push(Finding::TwoConnids);
        }
        let wrong = |addr: ucp::wire::RawAddr| addr.gid != record.from.gid || addr.qpn != record.from.qpn;
        if opts.raw_addr.is_some_and(wrong) {
            found.push(Finding::WrongRawAddr);
        }
    }

    /// Checks the order of the sender's own view: nothing but REQ packets with a raw address before the
    /// peer's HANDSHAKE.
    fn check_before_handshake(&self, record: &Record, packet: &Packet<'_>, found: &mut Vec<Finding>) {
        if record.direction == Direction::In || self.there.features.is_some() {
            return;
        }
        if packet.opts().is_some_and(|opts| opts.raw_addr.is_none()) {
            found.push(Finding::NoRawAddr);
        }
        if matches!(packet, Packet::CtsData(..)) {
            found.push(Finding::DataBeforeHandshake);
        }
    }
}

/// Applies a packet to the state of both ends.
fn apply(from: &mut EndState, to: &mut EndState, packet: &Packet<'_>, found: &mut Vec<Finding>) {
    let unknown = |packet, field, id| Finding::Unknown { packet, field, id };
    match packet {
        Packet::Rtm(rtm) => rtm_seen(from, rtm, found),
        Packet::Rtw(rtw) => rtw_seen(from, rtw),
        Packet::Rtr(rtr) => rtr_seen(from, rtr),
        Packet::Rta(rta, _) => rta_seen(from, rta, found),
        Packet::Cts(cts) if cts.of == CtsFor::Send => match to.sends.get(&cts.send_id) {
            Some(&(total, first)) => {
                let fresh = || Window::new(Some(cts.send_id), total, first, first);
                from.windows.entry(cts.recv_id).or_insert_with(fresh).grant(cts.recv_length, found);
            }
            None => found.push(unknown("CTS", "send_id", cts.send_id)),
        },
        Packet::Cts(cts) => match from.windows.get_mut(&cts.recv_id) {
            Some(window) if to.responses.contains(&cts.send_id) => window.grant(cts.recv_length, found),
            Some(_) => found.push(unknown("CTS", "send_id", cts.send_id)),
            None => found.push(unknown("CTS", "recv_id", cts.recv_id)),
        },
        Packet::CtsData(data, _) => match to.windows.get_mut(&data.recv_id) {
            Some(window) => {
                window.data(data.seg_offset, data.seg_length, found);
                finish(from, to, data.recv_id);
            }
            None => found.push(unknown("CTSDATA", "recv_id", data.recv_id)),
        },
        Packet::ReadRsp(rsp, _) => match to.windows.get_mut(&rsp.recv_id) {
            Some(window) => {
                window.send_id = Some(rsp.send_id);
                window.data(0, rsp.seg_length, found);
                from.responses.insert(rsp.send_id);
                finish(from, to, rsp.recv_id);
            }
            None => found.push(unknown("READRSP", "recv_id", rsp.recv_id)),
        },
        Packet::Eor(eor) => {
            if to.reads.remove(&eor.send_id).is_none() {
                found.push(unknown("EOR", "send_id", eor.send_id));
            }
        }
        Packet::ReadNack(nack) => match to.reads.remove(&nack.send_id) {
            Some(in_packets) => {
                to.nacked.insert(nack.send_id, in_packets);
            }
            None => found.push(unknown("READ_NACK", "send_id", nack.send_id)),
        },
        Packet::Receipt(receipt) => {
            if !to.receipts.remove(&receipt.send_id) {
                found.push(unknown("RECEIPT", "send_id", receipt.send_id));
            }
        }
        Packet::AtomRsp(rsp, _) => {
            if !to.results.remove(&rsp.recv_id) {
                found.push(unknown("ATOMRSP", "recv_id", rsp.recv_id));
            }
        }
        Packet::Handshake(shake) => {
            if from.features.replace(shake.features()).is_some() {
                found.push(Finding::HandshakeTwice);
            }
        }
        Packet::PeerError(error) => match error.what {
            ErrorRef::Skip(id) => from.ids.skip(id),
            ErrorRef::Msg(id) if !from.ids.has(id) => found.push(unknown("PEER_ERROR", "msg_id", id)),
            ErrorRef::Msg(_) | ErrorRef::Op(_) => {}
        },
    }
}

/// Forgets a complete transfer: its ids may be used again.
fn finish(from: &mut EndState, to: &mut EndState, recv_id: u32) {
    if to.windows.get(&recv_id).is_some_and(Window::is_full)
        && let Some(window) = to.windows.remove(&recv_id)
        && let Some(send_id) = window.send_id
    {
        from.sends.remove(&send_id);
        from.responses.remove(&send_id);
    }
}

fn rtm_seen(from: &mut EndState, rtm: &Rtm<'_>, found: &mut Vec<Finding>) {
    from.receipts.extend(rtm.receipt);
    match rtm.body {
        RtmBody::Eager => from.ids.single(rtm.msg_id, found),
        RtmBody::Medium { seg_offset, .. } => from.ids.part(rtm, seg_offset, found),
        RtmBody::LongCts { msg_length, send_id, cause: Cause::Fresh, .. } => {
            from.ids.single(rtm.msg_id, found);
            from.sends.insert(send_id, (msg_length, rtm.payload.len() as u64));
        }
        RtmBody::LongCts { msg_length, send_id, .. } => {
            if !rtm.payload.is_empty() {
                found.push(Finding::NackWithData);
            }
            match from.nacked.remove(&send_id) {
                Some(in_packets) => {
                    from.sends.insert(send_id, (msg_length, in_packets));
                }
                None => {
                    found.push(Finding::Unknown {
                        packet: "LONGCTS after READ_NACK",
                        field: "send_id",
                        id: send_id,
                    });
                }
            }
        }
        RtmBody::LongRead { send_id, .. } => {
            from.ids.single(rtm.msg_id, found);
            from.reads.insert(send_id, 0);
        }
        RtmBody::RuntRead { msg_length, send_id, seg_offset, runt_length, .. } => {
            from.ids.part(rtm, seg_offset, found);
            if runt_length < msg_length {
                from.reads.insert(send_id, runt_length);
            }
        }
    }
}

fn rtw_seen(from: &mut EndState, rtw: &Rtw<'_>) {
    from.receipts.extend(rtw.receipt);
    match rtw.body {
        RtwBody::Eager => {}
        RtwBody::LongCts { msg_length, send_id, .. } => {
            from.sends.insert(send_id, (msg_length, rtw.payload.len() as u64));
        }
        RtwBody::LongRead { send_id, .. } => {
            from.reads.insert(send_id, 0);
        }
    }
}

fn rtr_seen(from: &mut EndState, rtr: &Rtr) {
    let granted = match rtr.kind {
        ReadKind::Short => rtr.msg_length,
        ReadKind::LongCts => rtr.recv_length.into(),
    };
    from.windows.insert(rtr.recv_id, Window::new(None, rtr.msg_length, granted, 0));
}

fn rta_seen(from: &mut EndState, rta: &Rta, found: &mut Vec<Finding>) {
    from.ids.single(rta.msg_id, found);
    match rta.kind {
        RtaKind::Write => {}
        RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => {
            from.results.insert(recv_id);
        }
        RtaKind::DcWrite { send_id } => {
            from.receipts.insert(send_id);
        }
    }
}
