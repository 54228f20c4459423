//! What a way to move bytes costs: nanoseconds as pieces of straight lines over the length, from a wire's attributes. Used by
//! `message.rs` and `rma.rs`, which know what is legal; says nothing of that. Pure, and total: whatever a transport claims of
//! itself, a cost is a number.
//!
//! A cost is the time of one operation with nothing else under way, until both ends are done with it: overheads, turns
//! of the wire, bytes over it, copies, registrations. Constants that all ways have in common are left out.

use arrayvec::ArrayVec;

use crate::rdm::protocol::Protocol;

/// A time that grows with the number of bytes: `fixed + per_byte * bytes`, ns.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Line {
    /// Fixed part, ns.
    pub fixed: f64,
    /// Growth, ns per byte.
    pub per_byte: f64,
}

impl Line {
    /// From its two parts.
    pub const fn new(fixed: f64, per_byte: f64) -> Line {
        Line { fixed, per_byte }
    }

    /// The time for `len` bytes, ns.
    pub fn at(self, len: usize) -> f64 {
        self.fixed + self.per_byte * len as f64
    }

    /// With a number for whatever is none, or below zero.
    pub(super) fn sanitized(self) -> Line {
        Line::new(sanitized(self.fixed), sanitized_per_byte(self.per_byte))
    }

    fn plus(self, other: Line) -> Line {
        Line::new(self.fixed + other.fixed, self.per_byte + other.per_byte)
    }

    fn plus_fixed(self, ns: f64) -> Line {
        Line::new(self.fixed + ns, self.per_byte)
    }

    /// With `more` ns for each byte beyond `from`.
    fn steeper(self, more: f64, from: usize) -> Line {
        Line::new(self.fixed - more * from as f64, self.per_byte + more)
    }
}

/// Which memory of a peer's, as far as its device's work with it differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum RemoteMem {
    /// The device's transport allocated it: a software device has it mapped.
    Allocated,
    /// The program's, registered: a software device asks the kernel.
    #[default]
    Registered,
}

/// What a wire costs: an interface's attributes, or what calibration measured in their place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Work of a processor for a packet, at either end, ns.
    pub overhead: f64,
    /// One way of a packet, ns.
    pub latency: f64,
    /// The wire itself, ns per byte: between processors that share memory, fetching what the other has written.
    pub wire: f64,
    /// The wire is memory in both processors' caches: a packet's room has to come back from who has read it before it is
    /// written again.
    pub shared: bool,
    /// A copy within the cache, ns per byte.
    pub copy: f64,
    /// A copy of what no cache holds, ns per byte.
    pub copy_far: f64,
    /// Longest run of bytes whose copies stay within the cache, bytes.
    pub cache: usize,
    /// Registration of memory.
    pub register: Line,
    /// Put by the device, from post to completion: memory of its own, and other.
    pub put: [Line; 2],
    /// Get by the device.
    pub get: [Line; 2],
    /// Packets granted at a time by a receiver (long-CTS); `None`: all at once.
    pub window: Option<u32>,
}

impl Default for Costs {
    /// Of memory shared by two processors.
    fn default() -> Self {
        let copy = Line::new(20.0, 0.08);
        Costs {
            overhead: 20.0,
            latency: 60.0,
            wire: 0.04,
            shared: true,
            copy: 0.015,
            copy_far: 0.07,
            cache: 1 << 19,
            register: Line::new(250.0, 0.0),
            put: [copy; 2],
            get: [copy; 2],
            window: None,
        }
    }
}

/// What both ends do for a read besides packets and copies, ns: places in tables, a queue, two ends.
const READ_OVERHEAD: f64 = 150.0;

/// Nothing here takes longer, ns: some thirty years.
const MAX_NS: f64 = 1e18;

/// A number that a cost may be.
fn sanitized(ns: f64) -> f64 {
    if ns.is_nan() { 0.0 } else { ns.clamp(0.0, MAX_NS) }
}

/// The same of a cost for each byte.
fn sanitized_per_byte(ns: f64) -> f64 {
    sanitized(ns).min(1e9)
}

impl Costs {
    /// With numbers for whatever is none, or below zero.
    pub fn sanitized(self) -> Costs {
        Costs {
            overhead: sanitized(self.overhead),
            latency: sanitized(self.latency),
            wire: sanitized_per_byte(self.wire),
            shared: self.shared,
            copy: sanitized_per_byte(self.copy),
            copy_far: sanitized_per_byte(self.copy_far),
            cache: self.cache,
            register: self.register.sanitized(),
            put: self.put.map(Line::sanitized),
            get: self.get.map(Line::sanitized),
            window: self.window,
        }
    }

    /// The same where memory is the transport's own: it is registered already, and mapped.
    pub fn for_allocated(self) -> Costs {
        let own = RemoteMem::Allocated as usize;
        Costs { register: Line::default(), put: [self.put[own]; 2], get: [self.get[own]; 2], ..self }
    }

    /// A packet without data: both processors' work, and one way.
    fn control(&self) -> f64 {
        2.0 * self.overhead + self.latency
    }

    /// The way back of a packet's room to its sender, ns per byte.
    fn buffer_return(&self) -> f64 {
        if self.shared { self.wire } else { 0.0 }
    }

    /// One packet with data: copied into it, carried, copied out of it.
    fn packet(&self) -> Line {
        Line::new(self.control(), self.buffer_return() + self.wire + 2.0 * self.copy)
    }

    /// Packets of `room` bytes one behind the other: the two ends work at the same time, so that the last packet alone is
    /// waited for at the receiver.
    fn packets(&self, room: usize) -> Line {
        let room = room.max(1) as f64;
        let each = self.overhead / room + self.copy + self.wire;
        Line::new(self.control() + room * (self.buffer_return() + self.copy), each)
    }

    /// The same, as the receiver grants them.
    fn windowed(&self, room: usize) -> Line {
        let turn = self.control() + self.latency + self.overhead;
        let turns = match self.window {
            None => 0.0,
            Some(packets) => turn / (f64::from(packets.max(1)) * room.max(1) as f64),
        };
        self.packets(room).plus_fixed(turn).plus(Line::new(0.0, turns))
    }

    /// A read of registered memory, asked for by one packet and answered by another.
    fn read(&self) -> Line {
        let registered = self.register.plus(self.register);
        registered
            .plus(self.get[RemoteMem::Registered as usize])
            .plus_fixed(2.0 * self.control() + READ_OVERHEAD)
    }
}

/// A stretch of lengths, and the cost there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Segment {
    /// Shortest, bytes.
    pub from: usize,
    /// Longest, bytes.
    pub to: usize,
    /// The cost.
    pub line: Line,
}

/// The cost of one way over the lengths that it may be taken for: no piece, no way.
pub type Curve = ArrayVec<Segment, 4>;

/// A curve of one piece.
pub(super) fn one_line(line: Line, from: usize, to: usize) -> Curve {
    (from <= to).then_some(Segment { from, to, line }).into_iter().collect()
}

/// One whose bytes are copied: steeper where they do not stay within the cache.
pub(super) fn copied(costs: &Costs, line: Line, from: usize, to: usize) -> Curve {
    let far = (costs.copy_far - costs.copy).max(0.0);
    let mut curve = one_line(line, from, to.min(costs.cache));
    let beyond = from.max(costs.cache.saturating_add(1));
    if costs.cache < usize::MAX {
        curve.extend(one_line(line.steeper(far, costs.cache), beyond, to));
    }
    curve
}

/// The cost of `len` bytes, ns; `None`: not this way.
pub(super) fn at(curve: &Curve, len: usize) -> Option<f64> {
    let piece = curve.iter().find(|piece| (piece.from..=piece.to).contains(&len))?;
    Some(piece.line.at(len))
}

/// How a message goes by `row`, in packets with room for `room` bytes, of which `runt` bytes go ahead of a read.
pub(super) fn message(costs: &Costs, row: Protocol, room: usize, runt: usize) -> Line {
    let acked = match row {
        Protocol::DcEager | Protocol::DcMedium | Protocol::DcLongCts => costs.control(),
        _ => 0.0,
    };
    let line = match row.plain() {
        Protocol::Medium => costs.packets(room),
        Protocol::LongCts => costs.windowed(room),
        Protocol::LongRead => costs.read(),
        // The head goes while memory is registered.
        Protocol::RuntRead => {
            let read = costs.read();
            let head = costs.packets(room).at(runt) - costs.register.fixed;
            read.plus_fixed(head.max(0.0) - read.per_byte * runt as f64)
        }
        _ => costs.packet(),
    };
    line.plus_fixed(acked)
}

/// Ways of a put or a get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RmaStep {
    /// One packet there.
    Packet,
    /// Packets as granted.
    Granted,
    /// Read by the other end.
    Read,
    /// The device, from memory that is registered or copied into its buffers.
    PutDirect(RemoteMem, LocalMem),
    /// The same of a get.
    GetDirect(RemoteMem, LocalMem),
}

/// What the device needs of our own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LocalMem {
    /// To be registered.
    Registered,
    /// To be copied.
    Copied,
}

/// The cost of one way of a put or get: with the packet before it that asks, or the one behind it that acknowledges, if `turn`.
pub(super) fn rma(costs: &Costs, step: RmaStep, room: usize, turn: ExtraPacket) -> Line {
    let line = match step {
        RmaStep::Packet => costs.packet(),
        RmaStep::Granted => costs.windowed(room),
        // The target's memory is registered already.
        RmaStep::Read => costs.read().plus_fixed(-costs.register.fixed),
        RmaStep::PutDirect(place, local) => local_cost(costs, local).plus(costs.put[place as usize]),
        RmaStep::GetDirect(place, local) => local_cost(costs, local).plus(costs.get[place as usize]),
    };
    match turn {
        ExtraPacket::No => line,
        ExtraPacket::Yes => line.plus_fixed(costs.control()),
    }
}

fn local_cost(costs: &Costs, local: LocalMem) -> Line {
    match local {
        LocalMem::Registered => costs.register,
        LocalMem::Copied => Line::new(0.0, costs.copy),
    }
}

/// Whether a packet more is needed than those with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExtraPacket {
    /// No.
    No,
    /// Yes.
    Yes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_bends_where_the_cache_ends_and_does_not_jump() {
        let costs = Costs { cache: 1000, copy: 0.5, copy_far: 2.0, ..Costs::default() };
        let curve = copied(&costs, Line::new(10.0, 1.0), 5, 9000);
        assert_eq!((at(&curve, 4), at(&curve, 9001)), (None, None));
        assert_eq!((at(&curve, 5), at(&curve, 1000)), (Some(15.0), Some(1010.0)));
        assert_eq!(at(&curve, 1001), Some(1010.0 + 2.5));
        assert_eq!(at(&copied(&costs, Line::new(10.0, 1.0), 2000, 9000), 2000), Some(1010.0 + 2500.0));
        assert!(copied(&costs, Line::default(), 7, 6).is_empty());
    }

    #[test]
    fn more_turns_cost_more() {
        let costs = Costs { window: Some(32), ..Costs::default() };
        let of = |row| message(&costs, row, 8000, 0).at(40_000);
        assert!(of(Protocol::Medium) < of(Protocol::LongCts));
        assert!(
            of(Protocol::Medium) < of(Protocol::DcMedium) && of(Protocol::LongCts) < of(Protocol::DcLongCts)
        );
        let free = Costs { window: None, ..costs };
        assert!(
            message(&free, Protocol::LongCts, 8000, 0).per_byte
                < message(&costs, Protocol::LongCts, 8000, 0).per_byte
        );
    }

    #[test]
    fn what_is_no_number_is_made_one() {
        let wild =
            Costs { overhead: f64::NAN, latency: -1.0, wire: f64::INFINITY, ..Costs::default() }.sanitized();
        assert_eq!((wild.overhead, wild.latency, wild.wire), (0.0, 0.0, 1e9));
        assert!(message(&wild, Protocol::LongCts, 0, 0).at(usize::MAX).is_finite());
    }
}
