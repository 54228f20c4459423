//! Selection of put and get protocols: tables by length for memory that the device knows and for memory
//! reached by packets only, computed once for a wire from costs. Used by `api` for every put and get;
//! `explain_rma` says why.
//!
//! Between two processes of one host, the choice of kernel or packets comes first. Tables are made before the
//! peer's handshake; what it turns out not to support is checked at each operation ([`RmaTables::put`]), or
//! the engine falls back to packets.

use crate::rdm::Emulation;
use crate::rdm::features::ReqHdr;
use crate::rdm::io::Rdma;
use crate::rdm::protocol::DeliveryComplete;
use crate::rdm::rma::RmaProtocol;
use crate::rdm::rma::{MAX_COPY, PacketOrder};
use crate::wire::ctl::ReadRsp;
use crate::wire::{Features, Opts, PktType, RmaIov, header_len};

use super::cost::{self, Costs, Curve, ExtraPacket, Line, LocalMem, RemoteMem, RmaStep, copied, one_line};
use super::table::{AllowedProtocol, Table, TargetCpu};
use super::thresholds::Thresholds;

/// Kind of RMA operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RmaOp {
    /// Remote write.
    Put,
    /// Remote read.
    Get,
}

/// Inputs of the selection that all puts and gets over a wire share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmaWire {
    /// Longest packet, bytes.
    pub mtu: usize,
    /// RDMA capabilities of the wire's device.
    pub rdma: Rdma,
    /// Whether it keeps packet order: without order, each write by packets is acknowledged.
    pub order: PacketOrder,
    /// Whether the peer's processor may be used.
    pub emulation: Emulation,
    /// Cost model.
    pub costs: Costs,
    /// Costs of a kernel write and read of another process's memory, if this worker may use them.
    pub kernel: Option<[Line; 2]>,
}

/// Mover of the bytes of memory that the kernel can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaBackend {
    /// The kernel, within the call.
    Kernel,
    /// The engine, by packets.
    Engine,
}

/// Put and get protocols by length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RmaTables {
    /// Device-capable memory: by [`RemoteMem`] and completion.
    put: [[Table<RmaProtocol>; 2]; 2],
    put_packets: Table<RmaProtocol>,
    get: [Table<RmaProtocol>; 2],
    /// Kernel-capable memory: puts by completion, and gets.
    kernel_put: [Table<RmaBackend>; 2],
    kernel_get: Table<RmaBackend>,
}

/// Whether the device can carry an operation, given device, key and peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceRdma {
    /// No.
    No,
    /// Yes, and nothing else may: the peer has not announced acknowledgements, or the write carries data for
    /// the target.
    Only,
    /// Yes, and packets can as well.
    Also(RemoteMem),
}

impl RmaTables {
    /// Computes the tables for a wire.
    pub fn new(wire: &RmaWire, limits: &Thresholds) -> RmaTables {
        let put = |remote_mem, sync| {
            let allowed = allowed_protocols(wire, limits, RmaOp::Put, Some(remote_mem), sync);
            Table::cheapest(&allowed, RmaProtocol::DirectWrite)
        };
        let puts =
            |remote_mem| [DeliveryComplete::No, DeliveryComplete::Yes].map(|sync| put(remote_mem, sync));
        let get = |remote_mem| {
            Table::cheapest(
                &allowed_protocols(wire, limits, RmaOp::Get, Some(remote_mem), DeliveryComplete::No),
                RmaProtocol::DirectRead,
            )
        };
        let packets = allowed_protocols(wire, limits, RmaOp::Put, None, DeliveryComplete::No);
        let backend = |op, sync| Table::cheapest(&backends(wire, limits, op, sync), RmaBackend::Kernel);
        RmaTables {
            put: [puts(RemoteMem::Allocated), puts(RemoteMem::Registered)],
            put_packets: Table::cheapest(&packets, RmaProtocol::EagerWrite),
            get: [get(RemoteMem::Allocated), get(RemoteMem::Registered)],
            kernel_put: [DeliveryComplete::No, DeliveryComplete::Yes].map(|sync| backend(RmaOp::Put, sync)),
            kernel_get: backend(RmaOp::Get, DeliveryComplete::No),
        }
    }

    /// Picks what moves `len` bytes of memory that the kernel reaches.
    // HOT
    #[inline]
    pub const fn backend(&self, op: RmaOp, sync: DeliveryComplete, len: usize) -> RmaBackend {
        match op {
            RmaOp::Put => self.kernel_put[sync as usize].pick(len),
            RmaOp::Get => self.kernel_get.pick(len),
        }
    }

    /// Picks the protocol of a put. The engine replaces EAGER by LONGCTS beyond one packet, and a read by
    /// packets if the peer does not read.
    // HOT
    #[inline]
    pub const fn put(&self, device: DeviceRdma, sync: DeliveryComplete, len: usize) -> RmaProtocol {
        match device {
            DeviceRdma::No => self.put_packets.pick(len),
            DeviceRdma::Only => RmaProtocol::DirectWrite,
            DeviceRdma::Also(remote_mem) => self.put[remote_mem as usize][sync as usize].pick(len),
        }
    }

    /// Picks the protocol of a get.
    // HOT
    #[inline]
    pub const fn get(&self, device: DeviceRdma, len: usize) -> RmaProtocol {
        match device {
            DeviceRdma::No => RmaProtocol::ShortRead,
            DeviceRdma::Only => RmaProtocol::DirectRead,
            DeviceRdma::Also(remote_mem) => self.get[remote_mem as usize].pick(len),
        }
    }
}

/// Whether a peer acknowledges packets, so that a put may use them as well as the device.
// HOT
#[inline]
pub const fn acknowledges(features: Option<Features>) -> bool {
    match features {
        Some(features) => features.contains(Features::DELIVERY_COMPLETE),
        None => false,
    }
}

/// Payload of one packet: of a put's request, or of a get's response.
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

/// Cost of a protocol for any length it could carry.
pub(super) fn curve(
    wire: &RmaWire,
    protocol: RmaProtocol,
    remote_mem: RemoteMem,
    sync: DeliveryComplete,
    max_payload: usize,
) -> Curve {
    let costs = wire.costs.sanitized();
    let acked = if wire.order == PacketOrder::Kept && sync == DeliveryComplete::No {
        ExtraPacket::No
    } else {
        ExtraPacket::Yes
    };
    let line = |step, extra| cost::rma(&costs, step, max_payload, extra);
    match protocol {
        RmaProtocol::EagerWrite => copied(&costs, line(RmaStep::Packet, acked), 0, max_payload),
        RmaProtocol::ShortRead => copied(&costs, line(RmaStep::Packet, ExtraPacket::Yes), 0, max_payload),
        RmaProtocol::LongCtsWrite => {
            copied(&costs, line(RmaStep::Granted, acked), max_payload.saturating_add(1), usize::MAX)
        }
        // The grant goes to the target; its response precedes it.
        RmaProtocol::LongCtsRead => copied(
            &costs,
            line(RmaStep::Granted, ExtraPacket::Yes),
            max_payload.saturating_add(1),
            usize::MAX,
        ),
        RmaProtocol::LongReadWrite => {
            one_line(line(RmaStep::Read, ExtraPacket::No), max_payload.saturating_add(1), usize::MAX)
        }
        RmaProtocol::DirectWrite if sync == DeliveryComplete::Yes => one_line(
            line(RmaStep::PutDirect(remote_mem, LocalMem::Registered), ExtraPacket::No),
            0,
            usize::MAX,
        ),
        RmaProtocol::DirectWrite => direct(line, |local| RmaStep::PutDirect(remote_mem, local)),
        RmaProtocol::DirectRead => direct(line, |local| RmaStep::GetDirect(remote_mem, local)),
        RmaProtocol::WriteAtomic | RmaProtocol::FetchAtomic | RmaProtocol::CompareAtomic => Curve::new(),
    }
}

/// Cost by the device, through its bounce buffers up to their size.
fn direct(line: impl Fn(RmaStep, ExtraPacket) -> cost::Line, step: impl Fn(LocalMem) -> RmaStep) -> Curve {
    let mut all = one_line(line(step(LocalMem::Copied), ExtraPacket::No), 0, MAX_COPY);
    all.extend(one_line(line(step(LocalMem::Registered), ExtraPacket::No), MAX_COPY + 1, usize::MAX));
    all
}

fn clip(curve: Curve, first: usize, last: usize) -> Curve {
    let cut = curve.into_iter().map(|p| cost::Segment { from: p.from.max(first), to: p.to.min(last), ..p });
    cut.filter(|p| p.from <= p.to).collect()
}

/// All allowed protocols with ranges and costs. `device`: kind of memory, if the device knows it.
fn allowed_protocols(
    wire: &RmaWire,
    limits: &Thresholds,
    op: RmaOp,
    device: Option<RemoteMem>,
    sync: DeliveryComplete,
) -> Vec<AllowedProtocol<RmaProtocol>> {
    let (direct, short, long, max_rdma, threshold) = match op {
        RmaOp::Put => {
            let protocols = (RmaProtocol::DirectWrite, RmaProtocol::EagerWrite, RmaProtocol::LongCtsWrite);
            (protocols.0, protocols.1, protocols.2, wire.rdma.write, limits.min_rdma_put)
        }
        RmaOp::Get => {
            let protocols = (RmaProtocol::DirectRead, RmaProtocol::ShortRead, RmaProtocol::LongCtsRead);
            (protocols.0, protocols.1, protocols.2, wire.rdma.read, limits.min_rdma_get)
        }
    };
    // The header before the handshake is the longest.
    let one = one_packet(op, wire.mtu, wire.order, ReqHdr::FIRST, false);
    let of = |protocol| curve(wire, protocol, device.unwrap_or_default(), sync, one);
    let by_device = device.filter(|_| max_rdma > 0);
    let (from, packets_to) = match threshold {
        _ if by_device.is_some() && wire.emulation == Emulation::Refused => (0, None),
        Some(from) => (from, from.checked_sub(1)),
        None => (0, Some(usize::MAX)),
    };
    let mut all = Vec::new();
    if by_device.is_some() {
        all.push(AllowedProtocol {
            protocol: direct,
            curve: clip(of(direct), from, usize::MAX),
            target_cpu: TargetCpu::Unused,
        });
    }
    let to = if by_device.is_some() { packets_to } else { Some(usize::MAX) };
    let Some(to) = to else { return all };
    let target_cpu = if by_device.is_some() { TargetCpu::Used } else { TargetCpu::Unused };
    let read_from = limits.min_read_write.map(|from| from.max(one.saturating_add(1)));
    // Where our device writes by itself, its target need not read.
    let read = op == RmaOp::Put && by_device.is_none() && wire.rdma.read > 0;
    let packets_max = read_from.filter(|_| read).map_or(usize::MAX, |from| from.saturating_sub(1));
    let mut packets = of(short);
    packets.extend(of(long));
    all.push(AllowedProtocol { protocol: short, curve: clip(packets, 0, to.min(packets_max)), target_cpu });
    if read {
        let protocol = RmaProtocol::LongReadWrite;
        all.push(AllowedProtocol {
            protocol,
            curve: clip(of(protocol), read_from.unwrap_or(0), to),
            target_cpu,
        });
    }
    all
}

/// Kernel and engine with ranges and costs. Settings for devices apply to the kernel too: neither uses the
/// peer's processor.
fn backends(
    wire: &RmaWire,
    limits: &Thresholds,
    op: RmaOp,
    sync: DeliveryComplete,
) -> Vec<AllowedProtocol<RmaBackend>> {
    let Some(kernel) = kernel(wire, op) else { return Vec::new() };
    let threshold = match op {
        RmaOp::Put => limits.min_rdma_put,
        RmaOp::Get => limits.min_rdma_get,
    };
    let (from, packets_to) = match threshold {
        _ if wire.emulation == Emulation::Refused => (0, None),
        Some(from) => (from, from.checked_sub(1)),
        None => (0, Some(usize::MAX)),
    };
    let mut all = vec![AllowedProtocol {
        protocol: RmaBackend::Kernel,
        curve: one_line(kernel, from, usize::MAX),
        target_cpu: TargetCpu::Unused,
    }];
    if let Some(to) = packets_to {
        all.extend(allowed_protocols(wire, limits, op, None, sync).into_iter().map(|packets| {
            AllowedProtocol {
                protocol: RmaBackend::Engine,
                curve: clip(packets.curve, 0, to),
                target_cpu: TargetCpu::Used,
            }
        }));
    }
    all
}

/// Cost of a kernel copy.
pub(super) fn kernel(wire: &RmaWire, op: RmaOp) -> Option<Line> {
    let [put, get] = wire.kernel?;
    Some(if op == RmaOp::Put { put } else { get }.sanitized())
}
