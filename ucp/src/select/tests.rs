//! Tables against the model they come from: golden borders, crossings, what a user has said, and that any attributes at all
//! give legal tables.

use proptest::prelude::*;

use super::rma::{RmaWire, one_packet};
use super::rules::UNASKED_MAX;
use super::*;
use crate::rdm::io::Rdma;
use crate::rdm::rma::{Order, RmaRow};
use crate::rdm::{Emulation, quirks};
use crate::wire::Features;

const MTU: usize = 8900;

fn wire(reads: Reads) -> WireCaps {
    WireCaps { mtu: 1000, reads, reads_own: reads, kernel: None, costs: Costs::default() }
}

fn key(sync: Sync, reads: Reads, peer: Reads) -> Key {
    Key::new(Kind::Tagged, sync, wire(reads), PeerCaps { reads: peer, ..PeerCaps::default() })
}

fn rows(key: &Key, limits: &Thresholds) -> Vec<(usize, Row)> {
    let table = Table::new(key, limits);
    for range in table.ranges() {
        assert_eq!((table.pick(range.from), table.pick(range.to)), (range.row, range.row));
    }
    table.ranges().map(|r| (r.from, r.row)).collect()
}

/// Golden: the limits of RDM v4 for a packet of 8900 bytes (wire facts 5.2) and the limit of what is sent unasked.
#[test]
fn borders_of_the_wire() {
    use Kind::{Tagged, Untagged};
    use ReqHdr::{Bare, Connid, RawAddr};
    let golden = [
        (Untagged, Sync::No, RawAddr, MTU - 48),
        (Tagged, Sync::No, RawAddr, MTU - 56),
        (Untagged, Sync::No, Connid, MTU - 12),
        (Tagged, Sync::No, Connid, MTU - 20),
        (Untagged, Sync::Yes, Connid, MTU - 20),
        (Tagged, Sync::Yes, Connid, MTU - 28),
        (Untagged, Sync::No, Bare, MTU - 8),
        (Tagged, Sync::Yes, Bare, MTU - 24),
    ];
    for (kind, sync, hdr, eager_max) in golden {
        let wire = WireCaps { mtu: MTU, ..wire(Reads::No) };
        let key = Key::new(kind, sync, wire, PeerCaps { hdr, ..PeerCaps::default() });
        let want = [
            (0, Row::Eager.with(sync)),
            (eager_max + 1, Row::Medium.with(sync)),
            (UNASKED_MAX + 1, Row::LongCts.with(sync)),
        ];
        assert_eq!(rows(&key, &Thresholds::default()), want, "{kind:?} {sync:?} {hdr:?}");
        assert_eq!(Table::new(&key, &Thresholds::default()).eager_max(), eager_max);
    }
}

#[test]
fn cq_data_takes_eight_bytes() {
    let mut key = key(Sync::No, Reads::No, Reads::No);
    let without = Table::new(&key, &Thresholds::default()).eager_max();
    key.cq_data = CqData::Yes;
    assert_eq!(Table::new(&key, &Thresholds::default()).eager_max(), without - 8);
}

/// A wire on which reading costs 10 000 ns and then nothing a byte, and packets 1 ns a byte: worked out by hand.
#[test]
fn reading_begins_where_its_line_crosses_the_other() {
    // 150 ns are what both ends do besides.
    let read = Line::new(9850.0, 0.0);
    let costs = Costs {
        overhead: 0.0,
        latency: 0.0,
        wire: 1.0,
        shared: false,
        copy: 0.0,
        copy_far: 0.0,
        register: Line::default(),
        get: [read; 2],
        ..Costs::default()
    };
    let mut key = key(Sync::No, Reads::Yes, Reads::Yes);
    key.wire.costs = costs;
    // At 10 000 bytes both take the same, and the first one named is taken.
    let auto = Thresholds::default();
    assert_eq!(rows(&key, &auto), [(0, Row::Eager), (945, Row::Medium), (10_001, Row::LongRead)]);
    let slower = explain(&key, &auto, 9000);
    assert_eq!(slower[3].verdict, Verdict::Slower { ns: 10_000, best: 9000 });
    assert_eq!(slower[3].verdict.to_string(), "slower: 10000 ns, 9000 ns best");
    assert_eq!(explain(&key, &auto, 20_000)[1].verdict, Verdict::Slower { ns: 20_000, best: 10_000 });
    // Registration at both ends shifts it, and memory that the cache does not hold.
    key.wire.costs.register = Line::new(2500.0, 0.0);
    assert_eq!(rows(&key, &auto)[2], (15_001, Row::LongRead));
    let costs = &mut key.wire.costs;
    (costs.register, costs.cache, costs.copy_far) = (Line::default(), 4000, 1.0);
    assert_eq!(rows(&key, &auto)[2], (7001, Row::LongRead));
    // A peer that does not read is sent everything.
    key.peer.reads = Reads::No;
    assert!(rows(&key, &auto).iter().all(|(_, row)| *row != Row::LongRead));
}

/// What a processor reads where it lies is read below the length of a packet too: worked out by hand.
#[test]
fn in_place_reading_begins_where_it_is_faster() {
    let costs = Costs {
        overhead: 0.0,
        latency: 0.0,
        wire: 1.0,
        shared: false,
        copy: 0.0,
        // 150 ns are what both ends do besides.
        get: [Line::new(350.0, 0.0); 2],
        ..Costs::default()
    };
    let wire = WireCaps { reads: Reads::No, costs, ..wire(Reads::Yes) };
    let host = Key::new(Kind::Tagged, Sync::No, wire, PeerCaps { reads: Reads::Yes, ..PeerCaps::default() });
    let own = Key { mem: MemKind::Own, ..host };
    let auto = Thresholds::default();
    assert_eq!(rows(&own, &auto), [(0, Row::Eager), (501, Row::LongRead)]);
    assert_eq!(explain(&own, &auto, 400)[3].verdict, Verdict::Slower { ns: 500, best: 400 });
    assert_eq!(explain(&own, &auto, 600)[0].verdict, Verdict::Slower { ns: 600, best: 500 });
    // Where a packet's room has to come back before it is written, packets cost as much more.
    let shared = WireCaps { costs: Costs { shared: true, ..costs }, ..wire };
    assert_eq!(rows(&Key { wire: shared, ..own }, &auto)[1], (251, Row::LongRead));
    // Of other memory, which needs the kernel, and of what a device reads, a packet takes what it can.
    assert_eq!(rows(&host, &auto)[1], (945, Row::Medium));
    let asks = |fixed| WireCaps { kernel: Some(Line::new(fixed - 150.0, 0.0)), ..wire };
    let process = Key { mem: MemKind::Process, wire: asks(700.0), ..host };
    assert_eq!(rows(&process, &auto), [(0, Row::Eager), (945, Row::LongRead)]);
    let dear = Key { wire: asks(2000.0), ..process };
    assert_eq!(rows(&dear, &auto), [(0, Row::Eager), (945, Row::Medium), (2001, Row::LongRead)]);
    assert_eq!(rows(&Key { mem: MemKind::Host, ..process }, &auto)[1], (945, Row::Medium));
    assert_eq!(rows(&Key { wire, ..process }, &auto)[1], (945, Row::Medium), "no kernel");
    let device = WireCaps { reads: Reads::Yes, ..wire };
    assert_eq!(rows(&Key { wire: device, ..own }, &auto)[1], (945, Row::LongRead));
    // A peer that does not read, and what a user says.
    let deaf = Key { peer: PeerCaps { reads: Reads::No, ..own.peer }, ..own };
    assert_eq!(rows(&deaf, &auto)[1], (945, Row::Medium));
    let read = |from| rows(&own, &Thresholds { min_read: Some(from), ..auto });
    assert_eq!(read(0), [(0, Row::Eager), (1, Row::LongRead)]);
    assert_eq!(read(2000), [(0, Row::Eager), (945, Row::Medium), (2000, Row::LongRead)]);
    let asked = Thresholds { rndv_thresh: Some(600), ..auto };
    assert_eq!(rows(&own, &asked), [(0, Row::Eager), (600, Row::LongRead)]);
    assert_eq!(explain(&own, &asked, 600)[0].verdict, Verdict::Setting("UCX_RNDV_THRESH"));
    assert_eq!(
        rows(&own, &Thresholds { medium_max: Some(5000), ..auto })[..2],
        [(0, Row::Eager), (945, Row::Medium)]
    );
}

#[test]
fn what_a_user_says_counts_more_than_costs() {
    let all = |limits: Thresholds| rows(&key(Sync::No, Reads::Yes, Reads::Yes), &limits);
    let auto = Thresholds { min_read: Some(usize::MAX), ..Thresholds::default() };
    let rndv = |from| all(Thresholds { rndv_thresh: Some(from), ..auto });
    assert_eq!(rndv(5000)[1..3], [(945, Row::Medium), (5000, Row::LongCts)]);
    assert_eq!(rndv(0)[..2], [(0, Row::Eager), (945, Row::LongCts)]);
    assert_eq!(rndv(usize::MAX)[1], (945, Row::Medium));
    let medium = all(Thresholds { medium_max: Some(2000), ..auto });
    assert_eq!(medium[1..3], [(945, Row::Medium), (2001, Row::LongCts)]);
    let read = |from| all(Thresholds { min_read: Some(from), ..Thresholds::default() });
    assert_eq!(read(2000), [(0, Row::Eager), (945, Row::Medium), (2000, Row::LongRead)]);
    assert_eq!(read(0), [(0, Row::Eager), (945, Row::LongRead)]);
    let runts = Thresholds { runt_size: 100, min_read: Some(2000), ..Thresholds::default() };
    assert_eq!(all(runts)[2], (2000, Row::RuntRead));
    assert_eq!(rows(&key(Sync::Yes, Reads::Yes, Reads::Yes), &runts)[2], (2000, Row::LongRead));
    // Pushed, if that is said, however long; read only if that is said too.
    let pushed = Thresholds { medium_max: Some(1 << 40), ..Thresholds::default() };
    assert_eq!(all(pushed)[..2], [(0, Row::Eager), (945, Row::Medium)]);
    assert_eq!(all(Thresholds { min_read: Some(3000), ..pushed })[2], (3000, Row::LongRead));
}

/// libfabric's own defaults, by name.
#[test]
fn libfabrics_borders() {
    let key = key(Sync::No, Reads::Yes, Reads::Unknown);
    let want = [(0, Row::Eager), (945, Row::Medium), (65_537, Row::LongCts), (1 << 20, Row::LongRead)];
    assert_eq!(rows(&key, &Thresholds::LIBFABRIC), want);
}

#[test]
fn one_is_taken_and_the_others_say_why() {
    let mut key = key(Sync::Yes, Reads::Yes, Reads::Unknown);
    key.wire.mtu = 4096;
    let limits = Thresholds { min_read: Some(1 << 20), ..Thresholds::default() };
    for len in [0, 1, 4032, 4033, 65536, 65537, 1 << 20, usize::MAX] {
        let all = explain(&key, &limits, len);
        let taken: Vec<Row> = all.iter().filter(|c| c.verdict == Verdict::Taken).map(|c| c.row).collect();
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

/// To a peer in zero-copy receive mode there is one way, for the messages it takes.
#[test]
fn bytes_alone_for_who_takes_no_packets() {
    let mut key = key(Sync::No, Reads::Yes, Reads::Yes);
    key.wire.mtu = 4096;
    let all = |key: &Key, len| explain(key, &Thresholds::default(), len).map(|c| (c.row, c.verdict));
    assert_eq!(all(&key, 8)[5], (Row::Headerless, Verdict::InPackets));
    key.peer.takes = Takes::BytesAlone;
    assert_eq!(all(&key, 8)[5].1, Verdict::NoHeaders, "a tagged one");
    key.kind = Kind::Untagged;
    assert!(all(&key, 8)[..5].iter().all(|(_, why)| *why == Verdict::BytesAlone));
    assert_eq!(all(&key, 4096)[5], (Row::Headerless, Verdict::Taken));
    assert_eq!(all(&key, 4097)[5].1, Verdict::TooLong { max: 4096 });
    key.sync = Sync::Yes;
    assert_eq!(all(&key, 8)[5].1, Verdict::NoHeaders, "one that is to be confirmed");
}

fn device(put: Line, get: Line) -> RmaWire {
    let mut costs = Costs { window: Some(32), shared: false, ..Costs::default() };
    (costs.put, costs.get) = ([Line::new(50.0, 0.02), put], [Line::new(50.0, 0.02), get]);
    RmaWire {
        mtu: MTU,
        rdma: Rdma { read: 1 << 30, write: 1 << 30, write_imm: true },
        order: Order::None,
        emulation: Emulation::Allowed,
        costs,
        kernel: None,
    }
}

/// A device that asks the kernel for memory it has not got mapped, as the software device does.
fn by_kernel() -> RmaWire {
    device(Line::new(2000.0, 0.06), Line::new(2000.0, 0.06))
}

const ALSO: ByDevice = ByDevice::Also(Place::Other);

#[test]
fn short_puts_go_by_packets_where_the_device_is_slow_to_begin() {
    let (wire, auto) = (by_kernel(), Thresholds::default());
    let tables = RmaTables::new(&wire, &auto);
    for sync in [Sync::No, Sync::Yes] {
        assert_eq!(tables.put(ALSO, sync, 8), RmaRow::EagerWrite);
        assert_eq!(tables.put(ALSO, sync, 1 << 20), RmaRow::DirectWrite);
        let border = (1..1 << 20).find(|len| tables.put(ALSO, sync, *len) == RmaRow::DirectWrite).unwrap();
        assert!((1..border).all(|len| tables.put(ALSO, sync, len) == RmaRow::EagerWrite), "{border}");
        // The border is where packets stop being faster by a quarter.
        let key = |len| explain_rma(&rma_key(&wire, RmaOp::Put, sync), &tables, len);
        let at = |len| key(len).into_iter().filter_map(|c| Some((c.way.name(), c.ns?))).collect::<Vec<_>>();
        let cost = |len, name| at(len).into_iter().find(|(way, _)| *way == name).unwrap().1 as f64;
        let ratio = cost(border, "direct_write") / cost(border, "longcts_write");
        assert!((1.32..=1.34).contains(&ratio), "{ratio} at {border}");
    }
    assert_eq!((tables.get(ALSO, 8), tables.get(ALSO, 1 << 20)), (RmaRow::ShortRead, RmaRow::DirectRead));
    // Memory that the device has mapped, a device that asks nobody, a peer that has said nothing.
    assert_eq!(tables.put(ByDevice::Also(Place::Own), Sync::No, 8), RmaRow::DirectWrite);
    assert_eq!(tables.put(ByDevice::Only, Sync::No, 8), RmaRow::DirectWrite);
    let quick = RmaTables::new(&device(Line::new(60.0, 0.02), Line::new(60.0, 0.02)), &auto);
    assert_eq!((quick.put(ALSO, Sync::No, 8), quick.get(ALSO, 8)), (RmaRow::DirectWrite, RmaRow::DirectRead));
    // Strict mode asks no processor.
    let strict = RmaTables::new(&RmaWire { emulation: Emulation::Refused, ..wire }, &auto);
    assert_eq!(
        (strict.put(ALSO, Sync::Yes, 8), strict.get(ALSO, 8)),
        (RmaRow::DirectWrite, RmaRow::DirectRead)
    );
}

/// Registration that costs more than a round of packets keeps short acknowledged puts off a device: one that is not
/// waited for goes through the device's own buffers.
#[test]
fn registration_counts() {
    let mut wire = device(Line::new(300.0, 0.02), Line::new(300.0, 0.02));
    wire.costs.register = Line::new(20_000.0, 0.0);
    let tables = RmaTables::new(&wire, &Thresholds::default());
    assert_eq!(tables.put(ALSO, Sync::No, 8), RmaRow::EagerWrite);
    wire.costs.overhead = 500.0;
    let tables = RmaTables::new(&wire, &Thresholds::default());
    assert_eq!(tables.put(ALSO, Sync::No, 8), RmaRow::DirectWrite);
    assert_eq!(tables.put(ALSO, Sync::Yes, 8), RmaRow::EagerWrite);
}

#[test]
fn settings_move_the_borders_of_the_device() {
    let wire = by_kernel();
    let limits = Thresholds { min_rdma_put: Some(0), min_rdma_get: Some(5000), ..Thresholds::default() };
    let tables = RmaTables::new(&wire, &limits);
    assert_eq!(tables.put(ALSO, Sync::Yes, 0), RmaRow::DirectWrite);
    let get = |len| tables.get(ALSO, len);
    assert_eq!((get(4999), get(5000)), (RmaRow::ShortRead, RmaRow::DirectRead));
    let key = RmaKey { limits, ..rma_key(&wire, RmaOp::Get, Sync::No) };
    assert_eq!(explain_rma(&key, &tables, 4999)[1].verdict, RmaVerdict::Setting("UCX_MIN_RDMA_GET"));
    let never = Thresholds { min_rdma_put: Some(usize::MAX), ..limits };
    assert_eq!(RmaTables::new(&wire, &never).put(ALSO, Sync::No, 1 << 40), RmaRow::EagerWrite);
    let from = |from| {
        let limits = Thresholds { min_read_write: Some(from), ..Thresholds::default() };
        let tables = RmaTables::new(&wire, &limits);
        move |len| tables.put(ByDevice::No, Sync::No, len)
    };
    assert_eq!((from(65_536)(65_535), from(65_536)(65_536)), (RmaRow::EagerWrite, RmaRow::LongReadWrite));
    assert_eq!((from(0)(8800), from(0)(8900)), (RmaRow::EagerWrite, RmaRow::LongReadWrite));
}

fn rma_key(wire: &RmaWire, op: RmaOp, sync: Sync) -> RmaKey {
    RmaKey {
        op,
        sync,
        known: Known::Device(Place::Other),
        cq_data: None,
        wire: *wire,
        limits: Thresholds::default(),
        hdr: ReqHdr::FIRST,
        features: Some(quirks::ours(wire.rdma)),
    }
}

fn taken(key: &RmaKey, len: usize) -> Option<RmaWay> {
    let ways = explain_rma(key, &RmaTables::new(&key.wire, &key.limits), len);
    let taken: Vec<RmaWay> = ways.iter().filter(|c| c.verdict == RmaVerdict::Taken).map(|c| c.way).collect();
    assert!(taken.len() <= 1, "{ways:?}");
    taken.first().copied()
}

fn verdict(key: &RmaKey, len: usize, row: RmaRow) -> RmaVerdict {
    let ways = explain_rma(key, &RmaTables::new(&key.wire, &key.limits), len);
    ways.iter().find(|c| c.way == RmaWay::Row(row)).unwrap().verdict
}

/// With libfabric's borders: everything that does not depend on costs.
#[test]
fn the_first_way_that_can_is_taken() {
    use RmaRow::*;
    let row = |row| Some(RmaWay::Row(row));
    let limits = Thresholds::LIBFABRIC;
    let key = RmaKey { known: Known::Packets, limits, ..rma_key(&by_kernel(), RmaOp::Put, Sync::No) };
    let one = one_packet(RmaOp::Put, MTU, Order::None, ReqHdr::FIRST, false);
    assert_eq!((taken(&key, one), taken(&key, one + 1)), (row(EagerWrite), row(LongCtsWrite)));
    assert_eq!((taken(&key, 65_535), taken(&key, 65_536)), (row(LongCtsWrite), row(LongReadWrite)));
    assert_eq!(verdict(&key, 65_535, LongReadWrite), RmaVerdict::BelowRead { min: 65_536 });
    assert_eq!(verdict(&key, one + 1, EagerWrite), RmaVerdict::TooLong { max: one });
    let deaf = RmaKey { features: Some(Features::empty()), ..key };
    assert_eq!(taken(&deaf, 65_536), row(LongCtsWrite));
    assert_eq!(verdict(&deaf, 65_536, LongReadWrite), RmaVerdict::NoReadThere);
    let none = RmaKey { wire: RmaWire { rdma: Rdma::NONE, ..key.wire }, ..key };
    assert_eq!(verdict(&none, 65_536, LongReadWrite), RmaVerdict::NoReadHere);
    let get = RmaKey { op: RmaOp::Get, ..key };
    assert_eq!((taken(&get, 8875), taken(&get, 8876)), (row(ShortRead), row(LongCtsRead)));
    let device = RmaKey { known: Known::Device(Place::Other), ..key };
    assert_eq!(taken(&device, 1), row(DirectWrite));
    assert_eq!(verdict(&device, 1, EagerWrite), RmaVerdict::Setting("UCX_MIN_RDMA_PUT"));
    assert_eq!(taken(&RmaKey { wire: none.wire, ..device }, 1), row(EagerWrite));
    // One that does not acknowledge packets, though they would be faster.
    let auto = RmaKey { limits: Thresholds::default(), ..device };
    assert_eq!(taken(&auto, 1), row(EagerWrite));
    let old = RmaKey { features: Some(Features::RDMA_WRITE.union(Features::RDMA_READ)), ..auto };
    assert_eq!((taken(&old, 1), verdict(&old, 1, EagerWrite)), (row(DirectWrite), RmaVerdict::NoAck));
    // A word travels with a write that is longer than a packet, 64 bits do not.
    let word = RmaKey { cq_data: Some(u32::MAX.into()), ..device };
    assert_eq!((taken(&word, one - 8), taken(&word, one - 7)), (row(EagerWrite), row(DirectWrite)));
    let long = RmaKey { cq_data: Some(1 << 32), ..device };
    assert_eq!(taken(&long, one), row(LongCtsWrite));
    assert_eq!(verdict(&long, one, DirectWrite), RmaVerdict::CqData);
    let deaf = RmaKey { features: Some(Features::RDMA_READ), ..device };
    assert_eq!(
        (taken(&deaf, 70_000), verdict(&deaf, 1, DirectWrite)),
        (row(LongReadWrite), RmaVerdict::NoRdmaThere)
    );
    let mapped = RmaKey { known: Known::Mapped, ..get };
    assert_eq!(taken(&mapped, 1 << 40), Some(RmaWay::Mapped));
    let copied = RmaKey { known: Known::Copied, ..key };
    assert_eq!(taken(&copied, 1), Some(RmaWay::Copied));
    assert_eq!(taken(&RmaKey { cq_data: Some(1), ..copied }, 1), row(EagerWrite));
    let wire = RmaWire { emulation: Emulation::Refused, ..key.wire };
    let strict = RmaKey { wire, ..key };
    assert_eq!((taken(&strict, 1), verdict(&strict, 1, EagerWrite)), (None, RmaVerdict::Refused));
    assert_eq!(taken(&RmaKey { wire, ..device }, 1), row(DirectWrite));
}

/// A wire of two processes of a host, and what the kernel takes to copy between them.
fn processes(copy: f64, kernel: Line) -> RmaWire {
    let costs = Costs { copy, copy_far: copy, window: None, ..Costs::default() };
    let kernel = Some([kernel; 2]);
    RmaWire { rdma: Rdma::NONE, order: Order::Kept, costs, kernel, ..by_kernel() }
}

/// The kernel copies once and asks nobody, but a call of it takes its time: which of the two counts for more is a matter of what
/// it costs here.
#[test]
fn the_kernel_copies_where_it_is_faster() {
    let slow_call = processes(0.02, Line::new(1600.0, 0.06));
    let slow_copies = processes(0.5, Line::new(1600.0, 0.06));
    let quick_call = processes(0.02, Line::new(30.0, 0.02));
    for op in [RmaOp::Put, RmaOp::Get] {
        let border = |wire: &RmaWire| {
            let tables = RmaTables::new(wire, &Thresholds::default());
            let by_kernel = |len: &usize| tables.mover(op, Sync::No, *len) == Mover::Kernel;
            let first = (0..1 << 24).step_by(64).find(by_kernel);
            assert!(
                (first.unwrap_or(0)..1 << 24).step_by(4096).all(|len| by_kernel(&len) || first.is_none())
            );
            first
        };
        let (late, early) = (border(&slow_call).unwrap(), border(&slow_copies).unwrap());
        assert!(8 < early && early < 4096 && 16_384 < late, "{op:?}: {early} {late}");
        assert_eq!(border(&quick_call), Some(0), "{op:?}");
        // By what the wire costs alone, and saying so.
        let key = RmaKey { known: Known::Copied, ..rma_key(&slow_call, op, Sync::No) };
        let (short, long) = match op {
            RmaOp::Put => (RmaRow::EagerWrite, RmaRow::LongCtsWrite),
            RmaOp::Get => (RmaRow::ShortRead, RmaRow::LongCtsRead),
        };
        let tables = RmaTables::new(&key.wire, &key.limits);
        let [small, large] = [8, 1 << 20].map(|len| explain_rma(&key, &tables, len));
        assert_eq!((taken(&key, 8), taken(&key, 1 << 20)), (Some(RmaWay::Row(short)), Some(RmaWay::Copied)));
        let RmaVerdict::Slower { ns: 1600, best } = small[1].verdict else { panic!("{:?}", small[1]) };
        assert!(small[1].way == RmaWay::Copied && best < 400, "{best}");
        assert_eq!((large[1].ns, large[1].verdict), (Some(1600 + 62_914), RmaVerdict::Taken));
        let RmaVerdict::AsksPeer { ns, best } = verdict(&key, late, long) else { panic!("{op:?} {late}") };
        assert!(ns < best && best * 3 < ns * 4 + 4, "{ns} {best}");
        // What the user says counts for more; what asks the peer may be refused.
        let all = Thresholds { min_rdma_put: Some(0), min_rdma_get: Some(0), ..Thresholds::default() };
        let set = RmaKey { limits: all, ..key };
        assert_eq!(taken(&set, 8), Some(RmaWay::Copied));
        assert!(
            matches!(verdict(&set, 8, short), RmaVerdict::Setting(name) if name.starts_with("UCX_MIN_RDMA_"))
        );
        let never = Thresholds { min_rdma_put: Some(usize::MAX), min_rdma_get: Some(usize::MAX), ..all };
        assert_eq!(taken(&RmaKey { limits: never, ..key }, 1 << 30), Some(RmaWay::Row(long)));
        let strict = RmaKey { wire: RmaWire { emulation: Emulation::Refused, ..key.wire }, ..key };
        assert_eq!(
            (taken(&strict, 8), verdict(&strict, 8, short)),
            (Some(RmaWay::Copied), RmaVerdict::Refused)
        );
        // Memory that is mapped needs no kernel; of what no key lets in there is nothing to choose.
        let of = |known| explain_rma(&RmaKey { known, ..key }, &tables, 1 << 20)[1].verdict;
        assert_eq!((of(Known::Mapped), of(Known::Packets)), (RmaVerdict::NotNeeded, RmaVerdict::NotLetIn));
    }
}

/// Any number a transport could claim, and some that none should.
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
    let ways = (line(), [line(), line()], [line(), line()], proptest::option::of(0..100u32), any::<bool>());
    (four, cache, ways).prop_map(|((overhead, latency, wire, copy, copy_far), cache, ways)| {
        let (register, put, get, window, shared) = ways;
        Costs { overhead, latency, wire, shared, copy, copy_far, cache, register, put, get, window }
    })
}

fn any_size() -> impl Strategy<Value = Option<usize>> {
    proptest::option::of(prop_oneof![0..100_000usize, any::<usize>()])
}

fn any_limits() -> impl Strategy<Value = Thresholds> {
    let six = (any_size(), any_size(), any_size(), any_size(), any_size(), any_size());
    (six, prop_oneof![Just(0), 0..100_000usize]).prop_map(|(sizes, runt_size)| Thresholds {
        medium_max: sizes.0,
        rndv_thresh: sizes.1,
        min_read: sizes.2,
        min_read_write: sizes.3,
        min_rdma_put: sizes.4,
        min_rdma_get: sizes.5,
        runt_size,
    })
}

proptest! {
    /// Whatever the attributes: ranges ascend without a gap, one packet goes as one and nothing longer does, only who can
    /// read does, and what a user has not asked for is not sent unasked.
    #[test]
    fn any_attributes_give_a_legal_table(
        costs in any_costs(),
        limits in any_limits(),
        mtu in 64..20_000usize,
        (ours, of_others, theirs) in (0..2usize, 0..2usize, 0..3usize),
        sync: bool,
        lies in 0..3usize,
        kernel in proptest::option::of(any_line()),
        lens in proptest::collection::vec(any_size(), 1..20),
    ) {
        let reads = [Reads::No, Reads::Yes, Reads::Unknown];
        let peer = PeerCaps { reads: reads[theirs], ..PeerCaps::default() };
        let sync = if sync { Sync::Yes } else { Sync::No };
        // What is read of the message's kind of memory counts, not of the other.
        let (mem, host, of_own) = match lies {
            0 => (MemKind::Host, ours, of_others),
            1 => (MemKind::Process, ours, of_others),
            _ => (MemKind::Own, of_others, ours),
        };
        let wire = WireCaps { mtu, reads: reads[host], reads_own: reads[of_own], kernel, costs };
        let key = Key { mem, ..Key::new(Kind::Tagged, sync, wire, peer) };
        let table = Table::new(&key, &limits);
        let eager = Row::Eager.with(sync).capacity(Kind::Tagged, peer.hdr, false, mtu);
        let in_place = key.is_read_in_place() && reads[theirs] != Reads::No;
        let one = table.eager_max();
        prop_assert!(one == eager || in_place && one < eager);
        let readable = reads[ours] == Reads::Yes || mem == MemKind::Process && kernel.is_some();
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
            let row = table.pick(len);
            prop_assert!(len <= eager || row.plain() != Row::Eager, "{} bytes", len);
            if len <= eager && row.plain() != Row::Eager {
                prop_assert!(in_place && len > 0 && matches!(row, Row::LongRead | Row::RuntRead));
            }
            prop_assert_eq!(row, row.with(sync));
            if matches!(row, Row::LongRead | Row::RuntRead) {
                prop_assert!(readable && reads[theirs] != Reads::No);
                prop_assert!(limits.min_read.is_none_or(|min| len >= min));
                prop_assert_eq!(row == Row::RuntRead, limits.runt_size > 0 && sync == Sync::No);
            }
            if row.plain() == Row::Medium {
                let most = limits.rndv_thresh.map(|n| n.saturating_sub(1)).or(limits.medium_max);
                prop_assert!(len <= most.unwrap_or(UNASKED_MAX));
            }
            let taken: Vec<Candidate> =
                explain(&key, &limits, len).into_iter().filter(|c| c.verdict == Verdict::Taken).collect();
            prop_assert_eq!(taken.len(), 1);
            prop_assert_eq!(taken[0].row, row);
            // None that could be taken for this length is cheaper, but for rounding.
            for c in explain(&key, &limits, len) {
                if let Verdict::Slower { ns, best } = c.verdict {
                    prop_assert!(ns as f64 >= best as f64 * 0.999_999 - 1.0, "{:?} {}", c, len);
                }
            }
        }
    }

    /// The same of puts and gets, by whatever the device says of itself.
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
            order: if ordered { Order::Kept } else { Order::None },
            emulation: if refused { Emulation::Refused } else { Emulation::Allowed },
            costs,
            kernel,
        };
        let tables = RmaTables::new(&wire, &limits);
        let place = if own { Place::Own } else { Place::Other };
        let one = one_packet(RmaOp::Put, mtu, wire.order, ReqHdr::FIRST, false);
        for len in lens.into_iter().flatten().chain([0, 1, one, one + 1]) {
            for sync in [Sync::No, Sync::Yes] {
                let put = tables.put(ByDevice::Also(place), sync, len);
                if refused && write > 0 {
                    prop_assert_eq!(put, RmaRow::DirectWrite);
                }
                if write > 0 && let (Some(min), false) = (limits.min_rdma_put, refused) {
                    prop_assert_eq!(put == RmaRow::DirectWrite, len >= min);
                }
                prop_assert!(put != RmaRow::DirectWrite || write > 0);
                let by_packets = tables.put(ByDevice::No, sync, len);
                prop_assert!(matches!(by_packets, RmaRow::EagerWrite | RmaRow::LongReadWrite));
                if by_packets == RmaRow::LongReadWrite {
                    prop_assert!(read > 0 && len > one);
                    prop_assert!(limits.min_read_write.is_none_or(|min| len >= min));
                }
                for op in [RmaOp::Put, RmaOp::Get] {
                    let copied = RmaKey { limits, known: Known::Copied, ..rma_key(&wire, op, sync) };
                    let by_kernel = taken(&copied, len) == Some(RmaWay::Copied);
                    prop_assert_eq!(by_kernel, tables.mover(op, sync, len) == Mover::Kernel);
                    let set = if op == RmaOp::Put { limits.min_rdma_put } else { limits.min_rdma_get };
                    if refused || kernel.is_none() {
                        prop_assert!(by_kernel);
                    } else if let Some(min) = set {
                        prop_assert_eq!(by_kernel, len >= min);
                    }
                    let key = RmaKey { limits, known: Known::Device(place), ..rma_key(&wire, op, sync) };
                    let emulated = |way| matches!(way, Some(RmaWay::Row(row)) if row.is_emulated());
                    let taken = taken(&key, len);
                    prop_assert!(taken.is_some() || refused);
                    prop_assert!(!(refused && len > 0 && emulated(taken)));
                }
            }
            let get = tables.get(ByDevice::Also(place), len);
            prop_assert!(get == RmaRow::ShortRead || (get == RmaRow::DirectRead && read > 0));
        }
    }
}
