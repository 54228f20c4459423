//! Groups packets into exchanges by msg_id, send_id and recv_id.

use std::collections::{HashMap, HashSet};

use tools_common::out;
use ucp::wire::ctl::{CtsFor, ErrorRef};
use ucp::wire::rta::RtaKind;
use ucp::wire::rtm::RtmBody;
use ucp::wire::rtw::RtwBody;
use ucp::wire::{Iovs, Packet};
use uct::efa::dev::soft::capture::{Direction, WireOp};

use crate::check::Report;
use crate::line::{Detail, line, print_legend, print_summary};
use crate::record::{End, Names, Record};

struct Flow {
    from: End,
    to: End,
    title: String,
    packets: Vec<usize>,
}

/// An id that the first end gave to the second.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Msg(End, End, u32),
    Send(End, End, u32),
    Recv(End, End, u32),
}

/// Indices of packets, without the sender's view of those that the receiver's view has too.
pub fn without_duplicates(records: &[Record]) -> impl Iterator<Item = usize> {
    let local: HashSet<End> =
        records.iter().filter(|r| r.direction == Direction::Out).map(|r| r.from).collect();
    let seen_by_both = move |r: &Record| r.direction == Direction::In && local.contains(&r.from);
    records.iter().enumerate().filter(move |(_, r)| !seen_by_both(r)).map(|(nth, _)| nth)
}

pub fn print(records: &[Record], names: &Names, report: &Report) {
    print_legend(names);
    let mut flows = Flows::default();
    for nth in without_duplicates(records) {
        flows.add(nth, &records[nth]);
    }
    let start = records.first().map_or(0, |r| r.time);
    for flow in &flows.all {
        let time = |nth: Option<&usize>| nth.map_or(0, |nth| records[*nth].time);
        let lasted = time(flow.packets.last()).saturating_sub(time(flow.packets.first()));
        let (from, to) = (names.name(&flow.from), names.name(&flow.to));
        let (title, n) = (&flow.title, flow.packets.len());
        out::line(format!("{from} > {to}  {title}  {n} packets, {:.3} us", lasted as f64 / 1e3));
        for nth in &flow.packets {
            out::line(format!("  {:>6} {}", nth + 1, line(&records[*nth], start, names, Detail::Line)));
            for finding in report.of(*nth) {
                out::line(format!("         ! {finding}"));
            }
        }
    }
    out::line(format!("# {} exchanges", flows.all.len()));
    print_summary(records.len(), report);
}

#[derive(Default)]
struct Flows {
    all: Vec<Flow>,
    open: HashMap<Key, usize>,
    /// Memory offered for reading: owner, first address, length, key, exchange.
    offers: Vec<(End, u64, u64, u64, usize)>,
}

impl Flows {
    /// Adds a packet to its exchange, or begins one.
    fn add(&mut self, nth: usize, record: &Record) {
        let at = self.find(record).unwrap_or_else(|| {
            let title = title(record);
            self.all.push(Flow { from: record.from, to: record.to, title, packets: Vec::new() });
            self.all.len() - 1
        });
        self.all[at].packets.push(nth);
        self.record_ids(record, at);
    }

    fn find(&self, record: &Record) -> Option<usize> {
        let (x, y) = (record.from, record.to);
        let open = |key| self.open.get(&key).copied();
        let Some(Ok(packet)) = record.packet() else {
            let (addr, key) = record.remote;
            let offered = |offer: &&(End, u64, u64, u64, usize)| {
                offer.0 == y && u64::from(key) == offer.3 && (offer.1..offer.1 + offer.2).contains(&addr)
            };
            return self.offers.iter().rev().find(offered).filter(|_| record.op == WireOp::Read).map(|o| o.4);
        };
        match packet {
            Packet::Rtm(rtm) => open(Key::Msg(x, y, rtm.msg_id)),
            Packet::Rta(rta, _) => open(Key::Msg(x, y, rta.msg_id)),
            Packet::Rtw(_) | Packet::Rtr(_) | Packet::Handshake(_) => None,
            Packet::Cts(cts) if cts.of == CtsFor::Send => open(Key::Send(y, x, cts.send_id)),
            Packet::Cts(cts) => open(Key::Recv(x, y, cts.recv_id)),
            Packet::CtsData(data, _) => open(Key::Recv(y, x, data.recv_id)),
            Packet::ReadRsp(rsp, _) => open(Key::Recv(y, x, rsp.recv_id)),
            Packet::AtomRsp(rsp, _) => open(Key::Recv(y, x, rsp.recv_id)),
            Packet::Eor(eor) => open(Key::Send(y, x, eor.send_id)),
            Packet::Receipt(receipt) => open(Key::Send(y, x, receipt.send_id)),
            Packet::ReadNack(nack) => open(Key::Send(y, x, nack.send_id)),
            Packet::PeerError(error) => match error.what {
                ErrorRef::Op(id) => open(Key::Send(y, x, id)).or_else(|| open(Key::Recv(y, x, id))),
                ErrorRef::Msg(id) | ErrorRef::Skip(id) => open(Key::Msg(x, y, id)),
            },
        }
    }

    /// Records ids that a packet defines.
    fn record_ids(&mut self, record: &Record, at: usize) {
        let (x, y) = (record.from, record.to);
        let Some(Ok(packet)) = record.packet() else { return };
        if let Some(id) = packet.msg_id() {
            self.open.insert(Key::Msg(x, y, id), at);
        }
        let mut open = |key| {
            self.open.insert(key, at);
        };
        match packet {
            Packet::Rtm(rtm) => {
                rtm.receipt.into_iter().for_each(|id| open(Key::Send(x, y, id)));
                match rtm.body {
                    RtmBody::LongCts { send_id, .. } => open(Key::Send(x, y, send_id)),
                    RtmBody::LongRead { send_id, read_iov, .. }
                    | RtmBody::RuntRead { send_id, read_iov, .. } => {
                        open(Key::Send(x, y, send_id));
                        self.offer(x, &read_iov, at);
                    }
                    RtmBody::Eager | RtmBody::Medium { .. } => {}
                }
            }
            Packet::Rtw(rtw) => {
                rtw.receipt.into_iter().for_each(|id| open(Key::Send(x, y, id)));
                match rtw.body {
                    RtwBody::LongCts { send_id, .. } => open(Key::Send(x, y, send_id)),
                    RtwBody::LongRead { send_id, read_iov, .. } => {
                        open(Key::Send(x, y, send_id));
                        self.offer(x, &read_iov, at);
                    }
                    RtwBody::Eager => {}
                }
            }
            Packet::Rtr(rtr) => open(Key::Recv(x, y, rtr.recv_id)),
            Packet::Rta(rta, _) => match rta.kind {
                RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => open(Key::Recv(x, y, recv_id)),
                RtaKind::DcWrite { send_id } => open(Key::Send(x, y, send_id)),
                RtaKind::Write => {}
            },
            Packet::Cts(cts) => open(Key::Recv(x, y, cts.recv_id)),
            Packet::ReadRsp(rsp, _) => open(Key::Send(x, y, rsp.send_id)),
            _ => {}
        }
    }

    fn offer(&mut self, owner: End, iovs: &Iovs, at: usize) {
        self.offers.extend(iovs.as_slice().iter().map(|iov| (owner, iov.addr, iov.len, iov.key, at)));
    }
}

fn title(record: &Record) -> String {
    let name = record.name();
    match record.packet() {
        Some(Ok(Packet::Rtm(rtm))) => {
            let tag = rtm.tag.map(|tag| format!(" tag {tag:#x}")).unwrap_or_default();
            format!("message {}{tag}: {name}, {} bytes", rtm.msg_id, rtm.msg_length())
        }
        Some(Ok(Packet::Rta(rta, _))) => format!("atomic {}: {name}", rta.msg_id),
        Some(Ok(Packet::Rtw(rtw))) if rtw.is_trigger() => format!("call for a HANDSHAKE: {name}"),
        Some(Ok(Packet::Rtw(rtw))) => format!("write: {name}, {} bytes", rtw.rma_iov.total().unwrap_or(0)),
        Some(Ok(Packet::Rtr(rtr))) => format!("read: {name}, {} bytes", rtr.msg_length),
        _ => name,
    }
}
