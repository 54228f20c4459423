//! Cost model: nanoseconds as piecewise linear functions of the length, from a wire's attributes. Used by
//! `thresholds` and `rma`, which know what is legal. Pure and total: any attributes give a finite cost.
//!
//! A cost is the time of one operation with nothing else in flight until both ends are done: overheads, round
//! trips, bytes, copies, registrations. Constants that all methods share are left out.

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
    /// Line with these two parts.
    pub const fn new(fixed: f64, per_byte: f64) -> Line {
        Line { fixed, per_byte }
    }

    /// The time for `len` bytes, ns.
    pub fn at(self, len: usize) -> f64 {
        self.fixed + self.per_byte * len as f64
    }

    /// Replaces NaN and negative parts by numbers.
    pub(super) fn sanitized(self) -> Line {
        Line::new(sanitized(self.fixed), sanitized_per_byte(self.per_byte))
    }

    fn plus(self, other: Line) -> Line {
        Line::new(self.fixed + other.fixed, self.per_byte + other.per_byte)
    }

    fn plus_fixed(self, ns: f64) -> Line {
        Line::new(self.fixed + ns, self.per_byte)
    }

    /// Adds `more` ns for each byte beyond `from`.
    fn steeper(self, more: f64, from: usize) -> Line {
        Line::new(self.fixed - more * from as f64, self.per_byte + more)
    }
}

/// Kind of remote memory, as far as the device treats it differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum RemoteMem {
    /// Allocated by the transport: a software device has it mapped.
    Allocated,
    /// Registered by the program: a software device uses the kernel.
    #[default]
    Registered,
}

/// Costs of a wire: an interface's attributes, or calibration in their place.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs {
    /// Processor time of a packet at either end, ns.
    pub overhead: f64,
    /// One-way latency of a packet, ns.
    pub latency: f64,
    /// Transfer time of the wire, ns per byte; for shared memory, fetching cache lines that another processor
    /// wrote.
    pub wire: f64,
    /// Whether the wire is shared memory: a packet buffer returns to the sender's cache before it is written
    /// again.
    pub shared: bool,
    /// Copy within the cache, ns per byte.
    pub copy: f64,
    /// Copy of uncached memory, ns per byte.
    pub copy_uncached: f64,
    /// Longest message whose copies stay within the cache, bytes.
    pub cache: usize,
    /// Registration of memory.
    pub register: Line,
    /// Put by the device, from post to completion, by [`RemoteMem`].
    pub put: [Line; 2],
    /// Get by the device, by [`RemoteMem`].
    pub get: [Line; 2],
    /// Packets granted at a time by a receiver (long-CTS); `None`: all at once.
    pub window: Option<u32>,
}

impl Default for Costs {
    /// Costs of memory shared by two processors.
    fn default() -> Self {
        let copy = Line::new(20.0, 0.08);
        Costs {
            overhead: 20.0,
            latency: 60.0,
            wire: 0.04,
            shared: true,
            copy: 0.015,
            copy_uncached: 0.07,
            cache: 1 << 19,
            register: Line::new(250.0, 0.0),
            put: [copy; 2],
            get: [copy; 2],
            window: None,
        }
    }
}

/// Bookkeeping of both ends for a read, ns.
const READ_OVERHEAD: f64 = 150.0;

/// Upper limit of any cost, ns.
const MAX_NS: f64 = 1e18;

fn sanitized(ns: f64) -> f64 {
    if ns.is_nan() { 0.0 } else { ns.clamp(0.0, MAX_NS) }
}

fn sanitized_per_byte(ns: f64) -> f64 {
    sanitized(ns).min(1e9)
}

impl Costs {
    /// Replaces NaN and negative costs by numbers.
    pub fn sanitized(self) -> Costs {
        Costs {
            overhead: sanitized(self.overhead),
            latency: sanitized(self.latency),
            wire: sanitized_per_byte(self.wire),
            shared: self.shared,
            copy: sanitized_per_byte(self.copy),
            copy_uncached: sanitized_per_byte(self.copy_uncached),
            cache: self.cache,
            register: self.register.sanitized(),
            put: self.put.map(Line::sanitized),
            get: self.get.map(Line::sanitized),
            window: self.window,
        }
    }

    /// Costs for memory that the transport allocated: it is registered already, and mapped.
    pub fn for_allocated(self) -> Costs {
        let allocated = RemoteMem::Allocated as usize;
        Costs {
            register: Line::default(),
            put: [self.put[allocated]; 2],
            get: [self.get[allocated]; 2],
            ..self
        }
    }

    /// Cost of a packet without data.
    fn control(&self) -> f64 {
        2.0 * self.overhead + self.latency
    }

    /// Return of a packet buffer to its sender, ns per byte.
    fn buffer_return(&self) -> f64 {
        if self.shared { self.wire } else { 0.0 }
    }

    /// One packet with data: copied in, transferred, copied out.
    fn packet(&self) -> Line {
        Line::new(self.control(), self.buffer_return() + self.wire + 2.0 * self.copy)
    }

    /// Consecutive packets of `payload` bytes: both ends work at the same time, so only the last packet is
    /// waited for.
    fn packets(&self, payload: usize) -> Line {
        let payload = payload.max(1) as f64;
        let each = self.overhead / payload + self.copy + self.wire;
        Line::new(self.control() + payload * (self.buffer_return() + self.copy), each)
    }

    /// Packets that the receiver grants window by window.
    fn windowed(&self, payload: usize) -> Line {
        let round_trip = self.control() + self.latency + self.overhead;
        let grants = match self.window {
            None => 0.0,
            Some(packets) => round_trip / (f64::from(packets.max(1)) * payload.max(1) as f64),
        };
        self.packets(payload).plus_fixed(round_trip).plus(Line::new(0.0, grants))
    }

    /// Read of registered memory, with a request and an answer packet.
    fn read(&self) -> Line {
        let registered = self.register.plus(self.register);
        registered
            .plus(self.get[RemoteMem::Registered as usize])
            .plus_fixed(2.0 * self.control() + READ_OVERHEAD)
    }
}

/// A range of lengths, and the cost there.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Segment {
    /// Shortest, bytes.
    pub from: usize,
    /// Longest, bytes.
    pub to: usize,
    /// The cost.
    pub line: Line,
}

/// Cost of a method over the lengths it is allowed for; empty if for none.
pub type Curve = ArrayVec<Segment, 4>;

pub(super) fn one_line(line: Line, from: usize, to: usize) -> Curve {
    (from <= to).then_some(Segment { from, to, line }).into_iter().collect()
}

/// Curve of a copy: steeper beyond the cache.
pub(super) fn copied(costs: &Costs, line: Line, from: usize, to: usize) -> Curve {
    let uncached = (costs.copy_uncached - costs.copy).max(0.0);
    let mut curve = one_line(line, from, to.min(costs.cache));
    let beyond = from.max(costs.cache.saturating_add(1));
    if costs.cache < usize::MAX {
        curve.extend(one_line(line.steeper(uncached, costs.cache), beyond, to));
    }
    curve
}

/// Cost of `len` bytes, ns; `None` outside the curve.
pub(super) fn at(curve: &Curve, len: usize) -> Option<f64> {
    let segment = curve.iter().find(|segment| (segment.from..=segment.to).contains(&len))?;
    Some(segment.line.at(len))
}

/// Cost of a message by `protocol` in packets that carry `payload` bytes each, `runt` bytes ahead of a read.
pub(super) fn message(costs: &Costs, protocol: Protocol, payload: usize, runt: usize) -> Line {
    let acked = match protocol {
        Protocol::DcEager | Protocol::DcMedium | Protocol::DcLongCts => costs.control(),
        _ => 0.0,
    };
    let line = match protocol.plain() {
        Protocol::Medium => costs.packets(payload),
        Protocol::LongCts => costs.windowed(payload),
        Protocol::LongRead => costs.read(),
        // The head is sent while memory is registered.
        Protocol::RuntRead => {
            let read = costs.read();
            let head = costs.packets(payload).at(runt) - costs.register.fixed;
            read.plus_fixed(head.max(0.0) - read.per_byte * runt as f64)
        }
        _ => costs.packet(),
    };
    line.plus_fixed(acked)
}

/// Transfer step of a put or get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RmaStep {
    Packet,
    Granted,
    /// Read by the other end.
    Read,
    /// By the device.
    PutDirect(RemoteMem, LocalMem),
    GetDirect(RemoteMem, LocalMem),
}

/// Use of local memory by the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LocalMem {
    Registered,
    Copied,
}

/// Cost of a put or get; `extra`: with a further packet, a request or acknowledgement.
pub(super) fn rma(costs: &Costs, step: RmaStep, payload: usize, extra: ExtraPacket) -> Line {
    let line = match step {
        RmaStep::Packet => costs.packet(),
        RmaStep::Granted => costs.windowed(payload),
        // The target's memory is registered already.
        RmaStep::Read => costs.read().plus_fixed(-costs.register.fixed),
        RmaStep::PutDirect(remote_mem, local) => {
            local_cost(costs, local).plus(costs.put[remote_mem as usize])
        }
        RmaStep::GetDirect(remote_mem, local) => {
            local_cost(costs, local).plus(costs.get[remote_mem as usize])
        }
    };
    match extra {
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

/// Whether a packet is needed besides those with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExtraPacket {
    No,
    Yes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_bend_at_the_cache_size_without_a_jump() {
        let costs = Costs { cache: 1000, copy: 0.5, copy_uncached: 2.0, ..Costs::default() };
        let curve = copied(&costs, Line::new(10.0, 1.0), 5, 9000);
        assert_eq!((at(&curve, 4), at(&curve, 9001)), (None, None));
        assert_eq!((at(&curve, 5), at(&curve, 1000)), (Some(15.0), Some(1010.0)));
        assert_eq!(at(&curve, 1001), Some(1010.0 + 2.5));
        assert_eq!(at(&copied(&costs, Line::new(10.0, 1.0), 2000, 9000), 2000), Some(1010.0 + 2500.0));
        assert!(copied(&costs, Line::default(), 7, 6).is_empty());
    }

    #[test]
    fn more_round_trips_cost_more() {
        let costs = Costs { window: Some(32), ..Costs::default() };
        let of = |protocol| message(&costs, protocol, 8000, 0).at(40_000);
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
    fn invalid_costs_are_sanitized() {
        let invalid =
            Costs { overhead: f64::NAN, latency: -1.0, wire: f64::INFINITY, ..Costs::default() }.sanitized();
        assert_eq!((invalid.overhead, invalid.latency, invalid.wire), (0.0, 0.0, 1e9));
        assert!(message(&invalid, Protocol::LongCts, 0, 0).at(usize::MAX).is_finite());
    }
}
