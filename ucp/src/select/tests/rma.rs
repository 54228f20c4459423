//! Puts and gets: the method chosen by costs and settings, and the verdicts on the others.

use super::*;

fn device(put: Line, get: Line) -> RmaWire {
    let mut costs = Costs { window: Some(32), shared: false, ..Costs::default() };
    (costs.put, costs.get) = ([Line::new(50.0, 0.02), put], [Line::new(50.0, 0.02), get]);
    RmaWire {
        mtu: MTU,
        rdma: Rdma { read: 1 << 30, write: 1 << 30, write_imm: true },
        order: PacketOrder::None,
        emulation: Emulation::Allowed,
        costs,
        kernel: None,
    }
}

/// A device that uses the kernel for memory that is not mapped, as the software device does.
fn by_kernel() -> RmaWire {
    device(Line::new(2000.0, 0.06), Line::new(2000.0, 0.06))
}

const ALSO: DeviceRdma = DeviceRdma::Also(RemoteMem::Registered);

#[test]
fn short_puts_use_packets_where_the_device_starts_slowly() {
    let (wire, auto) = (by_kernel(), Thresholds::default());
    let tables = RmaTables::new(&wire, &auto);
    for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
        assert_eq!(tables.put(ALSO, sync, 8), RmaProtocol::EagerWrite);
        assert_eq!(tables.put(ALSO, sync, 1 << 20), RmaProtocol::DirectWrite);
        let border =
            (1..1 << 20).find(|len| tables.put(ALSO, sync, *len) == RmaProtocol::DirectWrite).unwrap();
        assert!((1..border).all(|len| tables.put(ALSO, sync, len) == RmaProtocol::EagerWrite), "{border}");
        // The border is where packets stop being faster by a quarter.
        let key = |len| explain_rma(&rma_key(&wire, RmaOp::Put, sync), &tables, len);
        let at =
            |len| key(len).into_iter().filter_map(|c| Some((c.choice.name(), c.ns?))).collect::<Vec<_>>();
        let cost = |len, name| at(len).into_iter().find(|(choice, _)| *choice == name).unwrap().1 as f64;
        let ratio = cost(border, "direct_write") / cost(border, "longcts_write");
        assert!((1.32..=1.34).contains(&ratio), "{ratio} at {border}");
    }
    assert_eq!(
        (tables.get(ALSO, 8), tables.get(ALSO, 1 << 20)),
        (RmaProtocol::ShortRead, RmaProtocol::DirectRead)
    );
    assert_eq!(
        tables.put(DeviceRdma::Also(RemoteMem::Allocated), DeliveryComplete::No, 8),
        RmaProtocol::DirectWrite
    );
    assert_eq!(tables.put(DeviceRdma::Only, DeliveryComplete::No, 8), RmaProtocol::DirectWrite);
    let quick = RmaTables::new(&device(Line::new(60.0, 0.02), Line::new(60.0, 0.02)), &auto);
    assert_eq!(
        (quick.put(ALSO, DeliveryComplete::No, 8), quick.get(ALSO, 8)),
        (RmaProtocol::DirectWrite, RmaProtocol::DirectRead)
    );
    // Strict mode asks no processor.
    let strict = RmaTables::new(&RmaWire { emulation: Emulation::Refused, ..wire }, &auto);
    assert_eq!(
        (strict.put(ALSO, DeliveryComplete::Yes, 8), strict.get(ALSO, 8)),
        (RmaProtocol::DirectWrite, RmaProtocol::DirectRead)
    );
}

#[test]
fn registration_cost_counts() {
    let mut wire = device(Line::new(300.0, 0.02), Line::new(300.0, 0.02));
    wire.costs.register = Line::new(20_000.0, 0.0);
    let tables = RmaTables::new(&wire, &Thresholds::default());
    assert_eq!(tables.put(ALSO, DeliveryComplete::No, 8), RmaProtocol::EagerWrite);
    wire.costs.overhead = 500.0;
    let tables = RmaTables::new(&wire, &Thresholds::default());
    assert_eq!(tables.put(ALSO, DeliveryComplete::No, 8), RmaProtocol::DirectWrite);
    assert_eq!(tables.put(ALSO, DeliveryComplete::Yes, 8), RmaProtocol::EagerWrite);
}

#[test]
fn settings_move_the_borders_of_the_device() {
    let wire = by_kernel();
    let limits = Thresholds { min_rdma_put: Some(0), min_rdma_get: Some(5000), ..Thresholds::default() };
    let tables = RmaTables::new(&wire, &limits);
    assert_eq!(tables.put(ALSO, DeliveryComplete::Yes, 0), RmaProtocol::DirectWrite);
    let get = |len| tables.get(ALSO, len);
    assert_eq!((get(4999), get(5000)), (RmaProtocol::ShortRead, RmaProtocol::DirectRead));
    let key = RmaKey { limits, ..rma_key(&wire, RmaOp::Get, DeliveryComplete::No) };
    assert_eq!(explain_rma(&key, &tables, 4999)[1].verdict, RmaVerdict::Setting("UCX_MIN_RDMA_GET"));
    let never = Thresholds { min_rdma_put: Some(usize::MAX), ..limits };
    assert_eq!(
        RmaTables::new(&wire, &never).put(ALSO, DeliveryComplete::No, 1 << 40),
        RmaProtocol::EagerWrite
    );
    let from = |from| {
        let limits = Thresholds { min_read_write: Some(from), ..Thresholds::default() };
        let tables = RmaTables::new(&wire, &limits);
        move |len| tables.put(DeviceRdma::No, DeliveryComplete::No, len)
    };
    assert_eq!(
        (from(65_536)(65_535), from(65_536)(65_536)),
        (RmaProtocol::EagerWrite, RmaProtocol::LongReadWrite)
    );
    assert_eq!((from(0)(8800), from(0)(8900)), (RmaProtocol::EagerWrite, RmaProtocol::LongReadWrite));
}

pub(super) fn rma_key(wire: &RmaWire, op: RmaOp, sync: DeliveryComplete) -> RmaKey {
    RmaKey {
        op,
        sync,
        access: RemoteAccess::Device(RemoteMem::Registered),
        cq_data: None,
        wire: *wire,
        limits: Thresholds::default(),
        hdr: ReqHdr::FIRST,
        features: Some(features::ours(wire.rdma)),
    }
}

pub(super) fn taken(key: &RmaKey, len: usize) -> Option<RmaChoice> {
    let candidates = explain_rma(key, &RmaTables::new(&key.wire, &key.limits), len);
    let taken: Vec<RmaChoice> =
        candidates.iter().filter(|c| c.verdict == RmaVerdict::Taken).map(|c| c.choice).collect();
    assert!(taken.len() <= 1, "{candidates:?}");
    taken.first().copied()
}

fn verdict(key: &RmaKey, len: usize, protocol: RmaProtocol) -> RmaVerdict {
    let candidates = explain_rma(key, &RmaTables::new(&key.wire, &key.limits), len);
    candidates.iter().find(|c| c.choice == RmaChoice::Protocol(protocol)).unwrap().verdict
}

#[test]
fn libfabric_thresholds_take_the_first_possible_method() {
    use RmaProtocol::*;
    let protocol = |protocol| Some(RmaChoice::Protocol(protocol));
    let limits = Thresholds::LIBFABRIC;
    let key = RmaKey {
        access: RemoteAccess::PacketsOnly,
        limits,
        ..rma_key(&by_kernel(), RmaOp::Put, DeliveryComplete::No)
    };
    let one = one_packet(RmaOp::Put, MTU, PacketOrder::None, ReqHdr::FIRST, false);
    assert_eq!((taken(&key, one), taken(&key, one + 1)), (protocol(EagerWrite), protocol(LongCtsWrite)));
    assert_eq!((taken(&key, 65_535), taken(&key, 65_536)), (protocol(LongCtsWrite), protocol(LongReadWrite)));
    assert_eq!(verdict(&key, 65_535, LongReadWrite), RmaVerdict::BelowRead { min: 65_536 });
    assert_eq!(verdict(&key, one + 1, EagerWrite), RmaVerdict::TooLong { max: one });
    let deaf = RmaKey { features: Some(Features::empty()), ..key };
    assert_eq!(taken(&deaf, 65_536), protocol(LongCtsWrite));
    assert_eq!(verdict(&deaf, 65_536, LongReadWrite), RmaVerdict::PeerNoRdmaRead);
    let none = RmaKey { wire: RmaWire { rdma: Rdma::NONE, ..key.wire }, ..key };
    assert_eq!(verdict(&none, 65_536, LongReadWrite), RmaVerdict::NoRdmaRead);
    let get = RmaKey { op: RmaOp::Get, ..key };
    assert_eq!((taken(&get, 8875), taken(&get, 8876)), (protocol(ShortRead), protocol(LongCtsRead)));
    let device = RmaKey { access: RemoteAccess::Device(RemoteMem::Registered), ..key };
    assert_eq!(taken(&device, 1), protocol(DirectWrite));
    assert_eq!(verdict(&device, 1, EagerWrite), RmaVerdict::Setting("UCX_MIN_RDMA_PUT"));
    assert_eq!(taken(&RmaKey { wire: none.wire, ..device }, 1), protocol(EagerWrite));
    // One that does not acknowledge packets, though they would be faster.
    let auto = RmaKey { limits: Thresholds::default(), ..device };
    assert_eq!(taken(&auto, 1), protocol(EagerWrite));
    let old = RmaKey { features: Some(Features::RDMA_WRITE.union(Features::RDMA_READ)), ..auto };
    assert_eq!((taken(&old, 1), verdict(&old, 1, EagerWrite)), (protocol(DirectWrite), RmaVerdict::NoAck));
    let word = RmaKey { cq_data: Some(u32::MAX.into()), ..device };
    assert_eq!((taken(&word, one - 8), taken(&word, one - 7)), (protocol(EagerWrite), protocol(DirectWrite)));
    let long = RmaKey { cq_data: Some(1 << 32), ..device };
    assert_eq!(taken(&long, one), protocol(LongCtsWrite));
    assert_eq!(verdict(&long, one, DirectWrite), RmaVerdict::CqData);
    let deaf = RmaKey { features: Some(Features::RDMA_READ), ..device };
    assert_eq!(
        (taken(&deaf, 70_000), verdict(&deaf, 1, DirectWrite)),
        (protocol(LongReadWrite), RmaVerdict::PeerNoRdma)
    );
    let mapped = RmaKey { access: RemoteAccess::Mapped, ..get };
    assert_eq!(taken(&mapped, 1 << 40), Some(RmaChoice::Mapped));
    let copied = RmaKey { access: RemoteAccess::Kernel, ..key };
    assert_eq!(taken(&copied, 1), Some(RmaChoice::Kernel));
    assert_eq!(taken(&RmaKey { cq_data: Some(1), ..copied }, 1), protocol(EagerWrite));
    let wire = RmaWire { emulation: Emulation::Refused, ..key.wire };
    let strict = RmaKey { wire, ..key };
    assert_eq!((taken(&strict, 1), verdict(&strict, 1, EagerWrite)), (None, RmaVerdict::EmulationOff));
    assert_eq!(taken(&RmaKey { wire, ..device }, 1), protocol(DirectWrite));
}

fn processes(copy: f64, kernel: Line) -> RmaWire {
    let costs = Costs { copy, copy_uncached: copy, window: None, ..Costs::default() };
    let kernel = Some([kernel; 2]);
    RmaWire { rdma: Rdma::NONE, order: PacketOrder::Kept, costs, kernel, ..by_kernel() }
}

#[test]
fn kernel_copies_where_it_is_faster() {
    let slow_call = processes(0.02, Line::new(1600.0, 0.06));
    let slow_copies = processes(0.5, Line::new(1600.0, 0.06));
    let quick_call = processes(0.02, Line::new(30.0, 0.02));
    for op in [RmaOp::Put, RmaOp::Get] {
        let border = |wire: &RmaWire| {
            let tables = RmaTables::new(wire, &Thresholds::default());
            let by_kernel =
                |len: &usize| tables.backend(op, DeliveryComplete::No, *len) == RmaBackend::Kernel;
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
        let key = RmaKey { access: RemoteAccess::Kernel, ..rma_key(&slow_call, op, DeliveryComplete::No) };
        let (short, long) = match op {
            RmaOp::Put => (RmaProtocol::EagerWrite, RmaProtocol::LongCtsWrite),
            RmaOp::Get => (RmaProtocol::ShortRead, RmaProtocol::LongCtsRead),
        };
        let tables = RmaTables::new(&key.wire, &key.limits);
        let [small, large] = [8, 1 << 20].map(|len| explain_rma(&key, &tables, len));
        assert_eq!(
            (taken(&key, 8), taken(&key, 1 << 20)),
            (Some(RmaChoice::Protocol(short)), Some(RmaChoice::Kernel))
        );
        let RmaVerdict::Slower { ns: 1600, best } = small[1].verdict else { panic!("{:?}", small[1]) };
        assert!(small[1].choice == RmaChoice::Kernel && best < 400, "{best}");
        assert_eq!((large[1].ns, large[1].verdict), (Some(1600 + 62_914), RmaVerdict::Taken));
        let RmaVerdict::TargetCpuNotWorthIt { ns, best } = verdict(&key, late, long) else {
            panic!("{op:?} {late}")
        };
        assert!(ns < best && best * 3 < ns * 4 + 4, "{ns} {best}");
        // What the user says counts for more; what asks the peer may be refused.
        let all = Thresholds { min_rdma_put: Some(0), min_rdma_get: Some(0), ..Thresholds::default() };
        let set = RmaKey { limits: all, ..key };
        assert_eq!(taken(&set, 8), Some(RmaChoice::Kernel));
        assert!(
            matches!(verdict(&set, 8, short), RmaVerdict::Setting(name) if name.starts_with("UCX_MIN_RDMA_"))
        );
        let never = Thresholds { min_rdma_put: Some(usize::MAX), min_rdma_get: Some(usize::MAX), ..all };
        assert_eq!(taken(&RmaKey { limits: never, ..key }, 1 << 30), Some(RmaChoice::Protocol(long)));
        let strict = RmaKey { wire: RmaWire { emulation: Emulation::Refused, ..key.wire }, ..key };
        assert_eq!(
            (taken(&strict, 8), verdict(&strict, 8, short)),
            (Some(RmaChoice::Kernel), RmaVerdict::EmulationOff)
        );
        let of = |access| explain_rma(&RmaKey { access, ..key }, &tables, 1 << 20)[1].verdict;
        assert_eq!(
            (of(RemoteAccess::Mapped), of(RemoteAccess::PacketsOnly)),
            (RmaVerdict::NotNeeded, RmaVerdict::KernelDenied)
        );
    }
}
