//! How puts and gets go: tables by length for memory that the device knows and for memory that only packets name, worked out
//! once for a wire from what each way costs. Used by `api` for every put and get; `explain_rma` says why.
//!
//! What the kernel can copy between two processes is a choice before these: the kernel or packets, by what each takes.
//!
//! Tables are made before the peer has said anything. What it then turns out not to do is asked for at each operation
//! ([`RmaTables::put`]), or the engine goes on by packets.

use crate::rdm::Emulation;
use crate::rdm::features::ReqHdr;
use crate::rdm::io::Rdma;
use crate::rdm::protocol::Sync;
use crate::rdm::rma::RmaProtocol;
use crate::rdm::rma::{MAX_COPY, PacketOrder};
use crate::wire::ctl::ReadRsp;
use crate::wire::{Features, Opts, PktType, RmaIov, header_len};

use super::cost::{self, Costs, Curve, ExtraPacket, Line, LocalMem, RemoteMem, RmaStep, copied, one_line};
use super::table::{AllowedProtocol, Table, TargetCpu};
use super::thresholds::Thresholds;

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RmaOp {
    /// Write.
    Put,
    /// Read.
    Get,
}

/// What a choice depends on that is the same for all puts and gets over a wire.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmaWire {
    /// Longest packet, bytes.
    pub mtu: usize,
    /// What the wire's device can do.
    pub rdma: Rdma,
    /// Whether it keeps order: where it does not, writes by packets are acknowledged one by one.
    pub order: PacketOrder,
    /// Whether the peer's processor may be asked.
    pub emulation: Emulation,
    /// What it costs.
    pub costs: Costs,
    /// What the kernel takes to write memory of another process, and to read it, if this worker may ask it to.
    pub kernel: Option<[Line; 2]>,
}

/// Who moves the bytes where the kernel reaches the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaBackend {
    /// The kernel, within the call.
    Kernel,
    /// The engine, by packets.
    Engine,
}

/// Protocols of puts and gets by length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RmaTables {
    /// Where the device could do it: by place, and by when it is complete.
    put: [[Table<RmaProtocol>; 2]; 2],
    put_packets: Table<RmaProtocol>,
    get: [Table<RmaProtocol>; 2],
    /// Where the kernel could do it: puts, by when they are complete, and gets.
    kernel_put: [Table<RmaBackend>; 2],
    kernel_get: Table<RmaBackend>,
}

/// Whether the device carries an operation, as far as device, key and peer are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceRdma {
    /// It cannot.
    No,
    /// It can, and shall: the peer has not said that it acknowledges packets, or the target is to be told something.
    Only,
    /// It can; so can packets.
    Also(RemoteMem),
}

impl RmaTables {
    /// Works out the tables for a wire.
    pub fn new(wire: &RmaWire, limits: &Thresholds) -> RmaTables {
        let put = |place, sync| {
            let offers = allowed_protocols(wire, limits, RmaOp::Put, Some(place), sync);
            Table::cheapest(&offers, RmaProtocol::DirectWrite)
        };
        let puts = |place| [Sync::No, Sync::Yes].map(|sync| put(place, sync));
        let get = |place| {
            Table::cheapest(
                &allowed_protocols(wire, limits, RmaOp::Get, Some(place), Sync::No),
                RmaProtocol::DirectRead,
            )
        };
        let packets = allowed_protocols(wire, limits, RmaOp::Put, None, Sync::No);
        let backend = |op, sync| Table::cheapest(&backends(wire, limits, op, sync), RmaBackend::Kernel);
        RmaTables {
            put: [puts(RemoteMem::Allocated), puts(RemoteMem::Registered)],
            put_packets: Table::cheapest(&packets, RmaProtocol::EagerWrite),
            get: [get(RemoteMem::Allocated), get(RemoteMem::Registered)],
            kernel_put: [Sync::No, Sync::Yes].map(|sync| backend(RmaOp::Put, sync)),
            kernel_get: backend(RmaOp::Get, Sync::No),
        }
    }

    /// Who does an operation on `len` bytes of memory that the kernel reaches. // HOT
    #[inline]
    pub const fn backend(&self, op: RmaOp, sync: Sync, len: usize) -> RmaBackend {
        match op {
            RmaOp::Put => self.kernel_put[sync as usize].pick(len),
            RmaOp::Get => self.kernel_get.pick(len),
        }
    }

    /// How a put of `len` bytes is asked for. The engine goes by one packet if an eager one fits, else as granted; and by
    /// packets if it turns out that the peer does not read. // HOT
    #[inline]
    pub const fn put(&self, device: DeviceRdma, sync: Sync, len: usize) -> RmaProtocol {
        match device {
            DeviceRdma::No => self.put_packets.pick(len),
            DeviceRdma::Only => RmaProtocol::DirectWrite,
            DeviceRdma::Also(place) => self.put[place as usize][sync as usize].pick(len),
        }
    }

    /// How a get of `len` bytes is asked for. // HOT
    #[inline]
    pub const fn get(&self, device: DeviceRdma, len: usize) -> RmaProtocol {
        match device {
            DeviceRdma::No => RmaProtocol::ShortRead,
            DeviceRdma::Only => RmaProtocol::DirectRead,
            DeviceRdma::Also(place) => self.get[place as usize].pick(len),
        }
    }
}

/// Whether a peer acknowledges packets, so that a put may go by them as well as by the device. // HOT
#[inline]
pub const fn acknowledges(features: Option<Features>) -> bool {
    match features {
        Some(features) => features.contains(Features::DELIVERY_COMPLETE),
        None => false,
    }
}

/// Most bytes that go in one packet: of the request for a put, of the answer for a get.
pub(super) fn one_packet(op: RmaOp, mtu: usize, order: PacketOrder, hdr: ReqHdr, cq_data: bool) -> usize {
    match op {
        RmaOp::Get => mtu.saturating_sub(ReadRsp::LEN + 1),
        RmaOp::Put => {
            let ty = if order == PacketOrder::Kept { PktType::EAGER_RTW } else { PktType::DC_EAGER_RTW };
            let header = header_len(ty, 1, &Opts::default()) + hdr.wire_len() + if cq_data { 8 } else { 0 };
            debug_assert!(header > RmaIov::LEN);
            mtu.saturating_sub(header)
        }
    }
}

/// What a way costs for any length that it could carry.
pub(super) fn curve(wire: &RmaWire, row: RmaProtocol, place: RemoteMem, sync: Sync, one: usize) -> Curve {
    let costs = wire.costs.sanitized();
    let acked =
        if wire.order == PacketOrder::Kept && sync == Sync::No { ExtraPacket::No } else { ExtraPacket::Yes };
    let line = |step, turn| cost::rma(&costs, step, one, turn);
    match row {
        RmaProtocol::EagerWrite => copied(&costs, line(RmaStep::Packet, acked), 0, one),
        RmaProtocol::ShortRead => copied(&costs, line(RmaStep::Packet, ExtraPacket::Yes), 0, one),
        RmaProtocol::LongCtsWrite => {
            copied(&costs, line(RmaStep::Granted, acked), one.saturating_add(1), usize::MAX)
        }
        // The grant goes to the target, whose answer to the request goes before it.
        RmaProtocol::LongCtsRead => {
            copied(&costs, line(RmaStep::Granted, ExtraPacket::Yes), one.saturating_add(1), usize::MAX)
        }
        RmaProtocol::LongReadWrite => {
            one_line(line(RmaStep::Read, ExtraPacket::No), one.saturating_add(1), usize::MAX)
        }
        RmaProtocol::DirectWrite if sync == Sync::Yes => {
            one_line(line(RmaStep::PutDirect(place, LocalMem::Registered), ExtraPacket::No), 0, usize::MAX)
        }
        RmaProtocol::DirectWrite => direct(line, |local| RmaStep::PutDirect(place, local)),
        RmaProtocol::DirectRead => direct(line, |local| RmaStep::GetDirect(place, local)),
        RmaProtocol::WriteAtomic | RmaProtocol::FetchAtomic | RmaProtocol::CompareAtomic => Curve::new(),
    }
}

/// By the device, through its own buffers as long as they suffice.
fn direct(line: impl Fn(RmaStep, ExtraPacket) -> cost::Line, step: impl Fn(LocalMem) -> RmaStep) -> Curve {
    let mut all = one_line(line(step(LocalMem::Copied), ExtraPacket::No), 0, MAX_COPY);
    all.extend(one_line(line(step(LocalMem::Registered), ExtraPacket::No), MAX_COPY + 1, usize::MAX));
    all
}

/// The stretch of `curve` between two lengths.
fn within(curve: Curve, first: usize, last: usize) -> Curve {
    let cut = curve.into_iter().map(|p| cost::Segment { from: p.from.max(first), to: p.to.min(last), ..p });
    cut.filter(|p| p.from <= p.to).collect()
}

/// Every way of asking for an operation, where it may be taken, and for what it costs there. `device`: where the memory is, if
/// the device knows it.
fn allowed_protocols(
    wire: &RmaWire,
    limits: &Thresholds,
    op: RmaOp,
    device: Option<RemoteMem>,
    sync: Sync,
) -> Vec<AllowedProtocol<RmaProtocol>> {
    let (direct, short, long, most, set) = match op {
        RmaOp::Put => {
            let rows = (RmaProtocol::DirectWrite, RmaProtocol::EagerWrite, RmaProtocol::LongCtsWrite);
            (rows.0, rows.1, rows.2, wire.rdma.write, limits.min_rdma_put)
        }
        RmaOp::Get => {
            let rows = (RmaProtocol::DirectRead, RmaProtocol::ShortRead, RmaProtocol::LongCtsRead);
            (rows.0, rows.1, rows.2, wire.rdma.read, limits.min_rdma_get)
        }
    };
    // The header before the handshake is the longest: what fits behind it always fits.
    let one = one_packet(op, wire.mtu, wire.order, ReqHdr::FIRST, false);
    let of = |row| curve(wire, row, device.unwrap_or_default(), sync, one);
    let by_device = device.filter(|_| most > 0);
    let (from, packets_to) = match set {
        _ if by_device.is_some() && wire.emulation == Emulation::Refused => (0, None),
        Some(from) => (from, from.checked_sub(1)),
        None => (0, Some(usize::MAX)),
    };
    let mut all = Vec::new();
    if by_device.is_some() {
        all.push(AllowedProtocol {
            row: direct,
            curve: within(of(direct), from, usize::MAX),
            target_cpu: TargetCpu::Unused,
        });
    }
    let to = if by_device.is_some() { packets_to } else { Some(usize::MAX) };
    let Some(to) = to else { return all };
    let target_cpu = if by_device.is_some() { TargetCpu::Used } else { TargetCpu::Unused };
    let read_from = limits.min_read_write.map(|from| from.max(one.saturating_add(1)));
    // Where our device writes by itself, its target need not read.
    let read = op == RmaOp::Put && by_device.is_none() && wire.rdma.read > 0;
    let unread = read_from.filter(|_| read).map_or(usize::MAX, |from| from.saturating_sub(1));
    let mut packets = of(short);
    packets.extend(of(long));
    all.push(AllowedProtocol { row: short, curve: within(packets, 0, to.min(unread)), target_cpu });
    if read {
        let row = RmaProtocol::LongReadWrite;
        all.push(AllowedProtocol { row, curve: within(of(row), read_from.unwrap_or(0), to), target_cpu });
    }
    all
}

/// The kernel and the engine, where each may be taken, and for what it costs there. What a user has said of devices counts for
/// the kernel too: neither asks the peer's processor.
fn backends(wire: &RmaWire, limits: &Thresholds, op: RmaOp, sync: Sync) -> Vec<AllowedProtocol<RmaBackend>> {
    let Some(kernel) = kernel(wire, op) else { return Vec::new() };
    let set = match op {
        RmaOp::Put => limits.min_rdma_put,
        RmaOp::Get => limits.min_rdma_get,
    };
    let (from, packets_to) = match set {
        _ if wire.emulation == Emulation::Refused => (0, None),
        Some(from) => (from, from.checked_sub(1)),
        None => (0, Some(usize::MAX)),
    };
    let mut all = vec![AllowedProtocol {
        row: RmaBackend::Kernel,
        curve: one_line(kernel, from, usize::MAX),
        target_cpu: TargetCpu::Unused,
    }];
    if let Some(to) = packets_to {
        all.extend(allowed_protocols(wire, limits, op, None, sync).into_iter().map(|packets| {
            AllowedProtocol {
                row: RmaBackend::Engine,
                curve: within(packets.curve, 0, to),
                target_cpu: TargetCpu::Used,
            }
        }));
    }
    all
}

/// What the kernel takes.
pub(super) fn kernel(wire: &RmaWire, op: RmaOp) -> Option<Line> {
    let [put, get] = wire.kernel?;
    Some(if op == RmaOp::Put { put } else { get }.sanitized())
}
