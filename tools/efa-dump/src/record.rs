//! A captured packet with the device's header. `ucp::wire` decodes the packet itself.

use std::collections::HashSet;
use std::fmt;
use std::net::Ipv6Addr;

use ucp::wire::{Packet, ParseError, parse};
use uct::efa::dev::DevStatus;
use uct::efa::dev::soft::capture::{CaptureHdr, Direction, WireOp};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct End {
    pub gid: [u8; 16],
    pub qpn: u16,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}", Ipv6Addr::from(self.gid), self.qpn)
    }
}

#[derive(Clone, Debug)]
pub struct Record {
    pub file: usize,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// At which end it was seen.
    pub direction: Direction,
    pub op: WireOp,
    /// Status code of the device.
    pub status: u8,
    pub from: End,
    pub to: End,
    /// Bytes of the message or RDMA operation.
    pub len: u32,
    pub imm: Option<u32>,
    pub remote: (u64, u32),
    pub bytes: Vec<u8>,
    /// Set by [`mark_headerless`].
    pub headerless: bool,
}

impl Record {
    /// `None` if the record is not of the software device.
    pub fn parse(file: usize, time: u64, record: &[u8]) -> Option<Record> {
        let (hdr, bytes) = CaptureHdr::split(record)?;
        Some(Record {
            file,
            time,
            direction: Direction::try_from(hdr.direction).ok()?,
            op: WireOp::try_from(hdr.op).ok()?,
            status: hdr.status,
            from: End { gid: hdr.src_gid, qpn: hdr.src_qpn.get() },
            to: End { gid: hdr.dst_gid, qpn: hdr.dst_qpn.get() },
            len: hdr.len.get(),
            imm: (hdr.flags & CaptureHdr::HAS_IMM != 0).then(|| hdr.imm.get()),
            remote: (hdr.raddr.get(), hdr.rkey.get()),
            bytes: bytes.to_vec(),
            headerless: false,
        })
    }

    /// The end at which it was seen, and the other one.
    pub fn ends(&self) -> (End, End) {
        match self.direction {
            Direction::Out => (self.from, self.to),
            Direction::In => (self.to, self.from),
        }
    }

    pub fn arrived(&self) -> bool {
        self.status == 0
    }

    pub fn status_name(&self) -> String {
        match DevStatus::try_from(self.status) {
            Ok(status) => format!("{status:?}"),
            Err(_) => format!("status {}", self.status),
        }
    }

    /// The packet, if this is a message whose bytes were captured.
    pub fn packet(&self) -> Option<Result<Packet<'_>, ParseError>> {
        let there = self.op == WireOp::Send
            && !self.headerless
            && self.bytes.len() == self.len as usize
            && self.len > 0;
        there.then(|| parse(&self.bytes))
    }

    /// Name of the packet type or RDMA operation.
    pub fn name(&self) -> String {
        match (self.op, self.bytes.first()) {
            (WireOp::Send, _) if self.headerless => "HEADERLESS".into(),
            (WireOp::Send, Some(ty)) => ucp::wire::PktType(*ty).to_string(),
            (WireOp::Send, None) => "SEND".into(),
            (WireOp::Read, _) => "RDMA_READ".into(),
            (WireOp::Write, _) => "RDMA_WRITE".into(),
        }
    }
}

/// Marks messages without headers: those to a queue pair that its owner's HANDSHAKE named for them. `records`
/// are in order of time.
pub fn mark_headerless(records: &mut [Record]) {
    let mut named: HashSet<End> = HashSet::new();
    for record in records {
        record.headerless = record.op == WireOp::Send && named.contains(&record.to);
        if let Some(Ok(Packet::Handshake(shake))) = record.packet()
            && let Some(qp) = shake.user_recv_qp
            && let Ok(qpn) = u16::try_from(qp.qpn)
        {
            named.insert(End { gid: record.from.gid, qpn });
        }
    }
}

/// Names of queue pairs in order of appearance: `A`, `B`, ... `Z`, `A1`, ...
#[derive(Default)]
pub struct Names(Vec<End>);

impl Names {
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> Names {
        let mut names = Names::default();
        for record in records {
            for end in [record.from, record.to] {
                if !names.0.contains(&end) {
                    names.0.push(end);
                }
            }
        }
        names
    }

    pub fn name(&self, end: &End) -> String {
        let Some(at) = self.0.iter().position(|e| e == end) else { return end.to_string() };
        let letter = char::from(b'A' + (at % 26) as u8);
        if at < 26 { letter.to_string() } else { format!("{letter}{}", at / 26) }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&End, String)> {
        self.0.iter().map(|end| (end, self.name(end)))
    }
}
