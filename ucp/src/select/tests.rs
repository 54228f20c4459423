//! Tables against the cost model: golden borders, crossings, settings, and legal tables for any attributes.

use proptest::prelude::*;

use super::rma::{RmaWire, one_packet};
use super::thresholds::PUSH_MAX;
use super::*;
use crate::rdm::io::Rdma;
use crate::rdm::rma::{PacketOrder, RmaProtocol};
use crate::rdm::{Emulation, features};
use crate::wire::Features;

mod rma;

use self::rma::{rma_key, taken};

const MTU: usize = 8900;

fn wire(reads: ReadSupport) -> WireCaps {
    WireCaps { mtu: 1000, reads, reads_allocated: reads, kernel: None, costs: Costs::default() }
}

fn key(sync: DeliveryComplete, reads: ReadSupport, peer: ReadSupport) -> SelectKey {
    SelectKey::new(Kind::Tagged, sync, wire(reads), PeerCaps { reads: peer, ..PeerCaps::default() })
}

fn ranges_of(key: &SelectKey, limits: &Thresholds) -> Vec<(usize, Protocol)> {
    let table = Table::new(key, limits);
    for range in table.ranges() {
        assert_eq!((table.pick(range.from), table.pick(range.to)), (range.protocol, range.protocol));
    }
    table.ranges().map(|r| (r.from, r.protocol)).collect()
}

#[test]
fn borders_of_the_wire() {
    use Kind::{Tagged, Untagged};
    use ReqHdr::{Bare, Connid, RawAddr};
    let golden = [
        (Untagged, DeliveryComplete::No, RawAddr, MTU - 48),
        (Tagged, DeliveryComplete::No, RawAddr, MTU - 56),
        (Untagged, DeliveryComplete::No, Connid, MTU - 12),
        (Tagged, DeliveryComplete::No, Connid, MTU - 20),
        (Untagged, DeliveryComplete::Yes, Connid, MTU - 20),
        (Tagged, DeliveryComplete::Yes, Connid, MTU - 28),
        (Untagged, DeliveryComplete::No, Bare, MTU - 8),
        (Tagged, DeliveryComplete::Yes, Bare, MTU - 24),
    ];
    for (kind, sync, hdr, eager_max) in golden {
        let wire = WireCaps { mtu: MTU, ..wire(ReadSupport::No) };
        let key = SelectKey::new(kind, sync, wire, PeerCaps { hdr, ..PeerCaps::default() });
        let want = [
            (0, Protocol::Eager.with(sync)),
            (eager_max + 1, Protocol::Medium.with(sync)),
            (PUSH_MAX + 1, Protocol::LongCts.with(sync)),
        ];
        assert_eq!(ranges_of(&key, &Thresholds::default()), want, "{kind:?} {sync:?} {hdr:?}");
        assert_eq!(Table::new(&key, &Thresholds::default()).eager_max(), eager_max);
    }
}

#[test]
fn cq_data_takes_eight_bytes() {
    let mut key = key(DeliveryComplete::No, ReadSupport::No, ReadSupport::No);
    let without = Table::new(&key, &Thresholds::default()).eager_max();
    key.cq_data = CqData::Yes;
    assert_eq!(Table::new(&key, &Thresholds::default()).eager_max(), without - 8);
}

#[test]
fn read_threshold_is_where_the_costs_cross() {
    // 150 ns are the overhead of a read.
    let read = Line::new(9850.0, 0.0);
    let costs = Costs {
        overhead: 0.0,
        latency: 0.0,
        wire: 1.0,
        shared: false,
        copy: 0.0,
        copy_uncached: 0.0,
        register: Line::default(),
        get: [read; 2],
        ..Costs::default()
    };
    let mut key = key(DeliveryComplete::No, ReadSupport::Yes, ReadSupport::Yes);
    key.wire.costs = costs;
    // At 10 000 bytes both take the same, and the first one named is taken.
    let auto = Thresholds::default();
    assert_eq!(
        ranges_of(&key, &auto),
        [(0, Protocol::Eager), (945, Protocol::Medium), (10_001, Protocol::LongRead)]
    );
    let slower = explain(&key, &auto, 9000);
    assert_eq!(slower[3].verdict, Verdict::Slower { ns: 10_000, best: 9000 });
    assert_eq!(slower[3].verdict.to_string(), "slower: 10000 ns, 9000 ns best");
    assert_eq!(explain(&key, &auto, 20_000)[1].verdict, Verdict::Slower { ns: 20_000, best: 10_000 });
    // Registration and uncached memory shift the border.
    key.wire.costs.register = Line::new(2500.0, 0.0);
    assert_eq!(ranges_of(&key, &auto)[2], (15_001, Protocol::LongRead));
    let costs = &mut key.wire.costs;
    (costs.register, costs.cache, costs.copy_uncached) = (Line::default(), 4000, 1.0);
    assert_eq!(ranges_of(&key, &auto)[2], (7001, Protocol::LongRead));
    key.peer.reads = ReadSupport::No;
    assert!(ranges_of(&key, &auto).iter().all(|(_, protocol)| *protocol != Protocol::LongRead));
}

#[test]
fn read_threshold_without_a_device() {
    let costs = Costs {
        overhead: 0.0,
        latency: 0.0,
        wire: 1.0,
        shared: false,
        copy: 0.0,
        // 150 ns are the overhead of a read.
        get: [Line::new(350.0, 0.0); 2],
        ..Costs::default()
    };
    let wire = WireCaps { reads: ReadSupport::No, costs, ..wire(ReadSupport::Yes) };
    let host = SelectKey::new(
        Kind::Tagged,
        DeliveryComplete::No,
        wire,
        PeerCaps { reads: ReadSupport::Yes, ..PeerCaps::default() },
    );
    let allocated = SelectKey { mem: MemKind::Allocated, ..host };
    let auto = Thresholds::default();
    assert_eq!(ranges_of(&allocated, &auto), [(0, Protocol::Eager), (501, Protocol::LongRead)]);
    assert_eq!(explain(&allocated, &auto, 400)[3].verdict, Verdict::Slower { ns: 500, best: 400 });
    assert_eq!(explain(&allocated, &auto, 600)[0].verdict, Verdict::Slower { ns: 600, best: 500 });
    let shared = WireCaps { costs: Costs { shared: true, ..costs }, ..wire };
    assert_eq!(ranges_of(&SelectKey { wire: shared, ..allocated }, &auto)[1], (251, Protocol::LongRead));
    // Of other memory, and of what a device reads, a packet takes what it can.
    assert_eq!(ranges_of(&host, &auto)[1], (945, Protocol::Medium));
    let with_kernel = |fixed| WireCaps { kernel: Some(Line::new(fixed - 150.0, 0.0)), ..wire };
    let process = SelectKey { mem: MemKind::Process, wire: with_kernel(700.0), ..host };
    assert_eq!(ranges_of(&process, &auto), [(0, Protocol::Eager), (701, Protocol::LongRead)]);
    assert_eq!(explain(&process, &auto, 600)[3].verdict, Verdict::Slower { ns: 700, best: 600 });
    let slow_kernel = SelectKey { wire: with_kernel(2000.0), ..process };
    assert_eq!(
        ranges_of(&slow_kernel, &auto),
        [(0, Protocol::Eager), (945, Protocol::Medium), (2001, Protocol::LongRead)]
    );
    assert_eq!(ranges_of(&SelectKey { mem: MemKind::Host, ..process }, &auto)[1], (945, Protocol::Medium));
    assert_eq!(ranges_of(&SelectKey { wire, ..process }, &auto)[1], (945, Protocol::Medium), "no kernel");
    let device = WireCaps { reads: ReadSupport::Yes, ..wire };
    assert_eq!(ranges_of(&SelectKey { wire: device, ..allocated }, &auto)[1], (945, Protocol::LongRead));
    // A peer that does not read, and what a user says.
    let no_read = SelectKey { peer: PeerCaps { reads: ReadSupport::No, ..allocated.peer }, ..allocated };
    assert_eq!(ranges_of(&no_read, &auto)[1], (945, Protocol::Medium));
    let read = |from| ranges_of(&allocated, &Thresholds { min_read: Some(from), ..auto });
    assert_eq!(read(0), [(0, Protocol::Eager), (1, Protocol::LongRead)]);
    assert_eq!(read(2000), [(0, Protocol::Eager), (945, Protocol::Medium), (2000, Protocol::LongRead)]);
    let asked = Thresholds { rndv_thresh: Some(600), ..auto };
    assert_eq!(ranges_of(&allocated, &asked), [(0, Protocol::Eager), (600, Protocol::LongRead)]);
    assert_eq!(explain(&allocated, &asked, 600)[0].verdict, Verdict::Setting("UCX_RNDV_THRESH"));
    assert_eq!(
        ranges_of(&allocated, &Thresholds { medium_max: Some(5000), ..auto })[..2],
        [(0, Protocol::Eager), (945, Protocol::Medium)]
    );
}

#[test]
fn settings_take_precedence_over_costs() {
    let all = |limits: Thresholds| {
        ranges_of(&key(DeliveryComplete::No, ReadSupport::Yes, ReadSupport::Yes), &limits)
    };
    let auto = Thresholds { min_read: Some(usize::MAX), ..Thresholds::default() };
    let rndv = |from| all(Thresholds { rndv_thresh: Some(from), ..auto });
    assert_eq!(rndv(5000)[1..3], [(945, Protocol::Medium), (5000, Protocol::LongCts)]);
    assert_eq!(rndv(0)[..2], [(0, Protocol::Eager), (945, Protocol::LongCts)]);
    assert_eq!(rndv(usize::MAX)[1], (945, Protocol::Medium));
    let medium = all(Thresholds { medium_max: Some(2000), ..auto });
    assert_eq!(medium[1..3], [(945, Protocol::Medium), (2001, Protocol::LongCts)]);
    let read = |from| all(Thresholds { min_read: Some(from), ..Thresholds::default() });
    assert_eq!(read(2000), [(0, Protocol::Eager), (945, Protocol::Medium), (2000, Protocol::LongRead)]);
    assert_eq!(read(0), [(0, Protocol::Eager), (945, Protocol::LongRead)]);
    let runts = Thresholds { runt_size: 100, min_read: Some(2000), ..Thresholds::default() };
    assert_eq!(all(runts)[2], (2000, Protocol::RuntRead));
    assert_eq!(
        ranges_of(&key(DeliveryComplete::Yes, ReadSupport::Yes, ReadSupport::Yes), &runts)[2],
        (2000, Protocol::LongRead)
    );
    let push_limit = Thresholds { medium_max: Some(1 << 40), ..Thresholds::default() };
    assert_eq!(all(push_limit)[..2], [(0, Protocol::Eager), (945, Protocol::Medium)]);
    assert_eq!(all(Thresholds { min_read: Some(3000), ..push_limit })[2], (3000, Protocol::LongRead));
}

#[test]
fn libfabric_thresholds() {
    let key = key(DeliveryComplete::No, ReadSupport::Yes, ReadSupport::Unknown);
    let want = [
        (0, Protocol::Eager),
        (945, Protocol::Medium),
        (65_537, Protocol::LongCts),
        (1 << 20, Protocol::LongRead),
    ];
    assert_eq!(ranges_of(&key, &Thresholds::LIBFABRIC), want);
}

#[test]
fn exactly_one_candidate_is_taken() {
    let mut key = key(DeliveryComplete::Yes, ReadSupport::Yes, ReadSupport::Unknown);
    key.wire.mtu = 4096;
    let limits = Thresholds { min_read: Some(1 << 20), ..Thresholds::default() };
    for len in [0, 1, 4032, 4033, 65536, 65537, 1 << 20, usize::MAX] {
        let all = explain(&key, &limits, len);
        let taken: Vec<Protocol> =
            all.iter().filter(|c| c.verdict == Verdict::Taken).map(|c| c.protocol).collect();
        assert_eq!(taken, [Table::new(&key, &limits).pick(len)], "{len}");
        assert!(all.iter().all(|c| c.verdict != Verdict::Taken || c.ns.is_some()));
    }
    let why = |len, n: usize| explain(&key, &limits, len)[n].verdict;
    assert_eq!(why(5000, 0), Verdict::TooLong { max: 4032 });
    assert_eq!(why(5, 1), Verdict::OnePacket);
    assert_eq!(why(70_000, 1), Verdict::AboveLimit { max: 65_536 });
    assert_eq!(why(70_000, 3), Verdict::BelowRead { min: 1 << 20 });
    assert_eq!(why(1 << 20, 2), Verdict::Setting("UCX_MIN_READ"));
    assert_eq!(why(1 << 20, 4), Verdict::NoRunt);
}

#[test]
fn zero_copy_receive_mode_takes_only_payload() {
    let mut key = key(DeliveryComplete::No, ReadSupport::Yes, ReadSupport::Yes);
    key.wire.mtu = 4096;
    let all =
        |key: &SelectKey, len| explain(key, &Thresholds::default(), len).map(|c| (c.protocol, c.verdict));
    assert_eq!(all(&key, 8)[5], (Protocol::UserQp, Verdict::PacketsOnly));
    key.peer.recv_mode = RecvMode::ZeroCopy;
    assert_eq!(all(&key, 8)[5].1, Verdict::NoHeaders, "a tagged one");
    key.kind = Kind::Untagged;
    assert!(all(&key, 8)[..5].iter().all(|(_, why)| *why == Verdict::ZeroCopyRecv));
    assert_eq!(all(&key, 4096)[5], (Protocol::UserQp, Verdict::Taken));
    assert_eq!(all(&key, 4097)[5].1, Verdict::TooLong { max: 4096 });
    key.sync = DeliveryComplete::Yes;
    assert_eq!(all(&key, 8)[5].1, Verdict::NoHeaders, "one that is to be confirmed");
}

fn any_ns() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..5000.0,
        0.0..0.2,
        0.0..1e12,
        any::<f64>(),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0)
    ]
}

fn any_line() -> impl Strategy<Value = Line> {
    (any_ns(), any_ns()).prop_map(|(fixed, per_byte)| Line::new(fixed, per_byte))
}

fn any_costs() -> impl Strategy<Value = Costs> {
    let line = any_line;
    let four = (any_ns(), any_ns(), any_ns(), any_ns(), any_ns());
    let cache = prop_oneof![0..1usize << 24, any::<usize>()];
    let candidates =
        (line(), [line(), line()], [line(), line()], proptest::option::of(0..100u32), any::<bool>());
    (four, cache, candidates).prop_map(
        |((overhead, latency, wire, copy, copy_uncached), cache, candidates)| {
            let (register, put, get, window, shared) = candidates;
            Costs { overhead, latency, wire, shared, copy, copy_uncached, cache, register, put, get, window }
        },
    )
}

fn any_size() -> impl Strategy<Value = Option<usize>> {
    proptest::option::of(prop_oneof![0..100_000usize, any::<usize>()])
}

fn any_limits() -> impl Strategy<Value = Thresholds> {
    let six = (any_size(), any_size(), any_size(), any_size(), any_size(), any_size());
    (six, prop_oneof![Just(0), 0..100_000usize]).prop_map(|(sizes, runt_size)| Thresholds {
        medium_max: sizes.0,
        rndv_thresh: sizes.1,
        rndv_thresh_inter: None,
        min_read: sizes.2,
        min_read_write: sizes.3,
        min_rdma_put: sizes.4,
        min_rdma_get: sizes.5,
        runt_size,
    })
}

proptest! {
    /// For any attributes: ranges ascend without a gap, exactly what fits goes in one packet, only a peer
    /// that can read does, and no push beyond the limit.
    #[test]
    fn any_attributes_give_a_legal_table(
        costs in any_costs(),
        limits in any_limits(),
        mtu in 64..20_000usize,
        (ours, ours_other, theirs) in (0..2usize, 0..2usize, 0..3usize),
        sync: bool,
        mem_kind in 0..3usize,
        kernel in proptest::option::of(any_line()),
        lens in proptest::collection::vec(any_size(), 1..20),
    ) {
        let reads = [ReadSupport::No, ReadSupport::Yes, ReadSupport::Unknown];
        let peer = PeerCaps { reads: reads[theirs], ..PeerCaps::default() };
        let sync = if sync { DeliveryComplete::Yes } else { DeliveryComplete::No };
        let (mem, host, of_allocated) = match mem_kind {
            0 => (MemKind::Host, ours, ours_other),
            1 => (MemKind::Process, ours, ours_other),
            _ => (MemKind::Allocated, ours_other, ours),
        };
        let wire = WireCaps { mtu, reads: reads[host], reads_allocated: reads[of_allocated], kernel, costs };
        let key = SelectKey { mem, ..SelectKey::new(Kind::Tagged, sync, wire, peer) };
        let table = Table::new(&key, &limits);
        let eager = Protocol::Eager.with(sync).capacity(Kind::Tagged, peer.hdr, false, mtu);
        let by_host = key.is_read_by_host() && reads[theirs] != ReadSupport::No;
        let one = table.eager_max();
        prop_assert!(one == eager || by_host && one < eager);
        let readable = reads[ours] == ReadSupport::Yes || mem == MemKind::Process && kernel.is_some();
        let mut from = 0;
        let ranges: Vec<Range> = table.ranges().collect();
        for range in &ranges {
            prop_assert_eq!(range.from, from);
            prop_assert!(range.from <= range.to);
            from = range.to.wrapping_add(1);
        }
        prop_assert_eq!(from, 0, "up to the last length");
        let borders = ranges.iter().flat_map(|r| [r.from, r.to]);
        for len in borders.chain(lens.into_iter().flatten()) {
            let protocol = table.pick(len);
            prop_assert!(len <= eager || protocol.plain() != Protocol::Eager, "{} bytes", len);
            if len <= eager && protocol.plain() != Protocol::Eager {
                prop_assert!(by_host && len > 0 && matches!(protocol, Protocol::LongRead | Protocol::RuntRead));
            }
            prop_assert_eq!(protocol, protocol.with(sync));
            if matches!(protocol, Protocol::LongRead | Protocol::RuntRead) {
                prop_assert!(readable && reads[theirs] != ReadSupport::No);
                prop_assert!(limits.min_read.is_none_or(|min| len >= min));
                prop_assert_eq!(protocol == Protocol::RuntRead, limits.runt_size > 0 && sync == DeliveryComplete::No);
            }
            if protocol.plain() == Protocol::Medium {
                let most = limits.rndv_thresh.map(|n| n.saturating_sub(1)).or(limits.medium_max);
                prop_assert!(len <= most.unwrap_or(PUSH_MAX));
            }
            let taken: Vec<Candidate> =
                explain(&key, &limits, len).into_iter().filter(|c| c.verdict == Verdict::Taken).collect();
            prop_assert_eq!(taken.len(), 1);
            prop_assert_eq!(taken[0].protocol, protocol);
            // No possible candidate is cheaper, but for rounding.
            for c in explain(&key, &limits, len) {
                if let Verdict::Slower { ns, best } = c.verdict {
                    prop_assert!(ns as f64 >= best as f64 * 0.999_999 - 1.0, "{:?} {}", c, len);
                }
            }
        }
    }

    #[test]
    fn any_attributes_give_legal_puts_and_gets(
        costs in any_costs(),
        limits in any_limits(),
        mtu in 128..20_000usize,
        (read, write) in (0..2u64, 0..2u64),
        (ordered, refused, own) in any::<(bool, bool, bool)>(),
        kernel in proptest::option::of([any_line(), any_line()]),
        lens in proptest::collection::vec(any_size(), 1..20),
    ) {
        let wire = RmaWire {
            mtu,
            rdma: Rdma { read: read << 30, write: write << 30, write_imm: write > 0 },
            order: if ordered { PacketOrder::Kept } else { PacketOrder::None },
            emulation: if refused { Emulation::Refused } else { Emulation::Allowed },
            costs,
            kernel,
        };
        let tables = RmaTables::new(&wire, &limits);
        let remote_mem = if own { RemoteMem::Allocated } else { RemoteMem::Registered };
        let one = one_packet(RmaOp::Put, mtu, wire.order, ReqHdr::FIRST, false);
        for len in lens.into_iter().flatten().chain([0, 1, one, one + 1]) {
            for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
                let put = tables.put(DeviceRdma::Also(remote_mem), sync, len);
                if refused && write > 0 {
                    prop_assert_eq!(put, RmaProtocol::DirectWrite);
                }
                if write > 0 && let (Some(min), false) = (limits.min_rdma_put, refused) {
                    prop_assert_eq!(put == RmaProtocol::DirectWrite, len >= min);
                }
                prop_assert!(put != RmaProtocol::DirectWrite || write > 0);
                let by_packets = tables.put(DeviceRdma::No, sync, len);
                prop_assert!(matches!(by_packets, RmaProtocol::EagerWrite | RmaProtocol::LongReadWrite));
                if by_packets == RmaProtocol::LongReadWrite {
                    prop_assert!(read > 0 && len > one);
                    prop_assert!(limits.min_read_write.is_none_or(|min| len >= min));
                }
                for op in [RmaOp::Put, RmaOp::Get] {
                    let copied = RmaKey { limits, access: RemoteAccess::Kernel, ..rma_key(&wire, op, sync) };
                    let by_kernel = taken(&copied, len) == Some(RmaChoice::Kernel);
                    prop_assert_eq!(by_kernel, tables.backend(op, sync, len) == RmaBackend::Kernel);
                    let set = if op == RmaOp::Put { limits.min_rdma_put } else { limits.min_rdma_get };
                    if refused || kernel.is_none() {
                        prop_assert!(by_kernel);
                    } else if let Some(min) = set {
                        prop_assert_eq!(by_kernel, len >= min);
                    }
                    let key = RmaKey { limits, access: RemoteAccess::Device(remote_mem), ..rma_key(&wire, op, sync) };
                    let emulated = |choice| matches!(choice, Some(RmaChoice::Protocol(protocol)) if protocol.is_emulated());
                    let taken = taken(&key, len);
                    prop_assert!(taken.is_some() || refused);
                    prop_assert!(!(refused && len > 0 && emulated(taken)));
                }
            }
            let get = tables.get(DeviceRdma::Also(remote_mem), len);
            prop_assert!(get == RmaProtocol::ShortRead || (get == RmaProtocol::DirectRead && read > 0));
        }
    }
}
