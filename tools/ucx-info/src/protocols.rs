//! `-e`: the protocol of each size between two workers of this process, and why the others were not selected.
//! Connects the workers as two processes would, lets them exchange handshakes, and queries the endpoint.

use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tools_common::units::short_bytes;
use ucp::select::{
    AtomicVerdict, Candidate, DeliveryComplete, Kind, MemKind, RemoteAccess, RmaCandidates, RmaChoice, RmaOp,
    RmaVerdict, Verdict,
};
use ucp::{Address, AtomicOp, Context, Datatype, Ep, EpParams, Rkey, TransferKind, Worker};
use ucs::config::Source;

use crate::cli::{Features, PeerLocation};

#[derive(Serialize)]
pub struct Endpoint {
    /// In order of preference.
    transports: Vec<&'static str>,
    device: String,
    /// NICs that long transfers are striped over, if there are several.
    nics: Vec<String>,
    /// Sizes from which transfers use more NICs.
    spread: Vec<StripingThreshold>,
    operations: Vec<Operation>,
    /// Puts and gets, by keys that differ in what they reach.
    rma: Vec<Operation>,
    atomics: Vec<Atomic>,
}

#[derive(Serialize)]
struct Atomic {
    name: String,
    types: Vec<AtomicMethod>,
}

#[derive(Serialize)]
struct AtomicMethod {
    ty: String,
    /// `None`: it fails.
    way: Option<&'static str>,
    emulated: bool,
    rejected: Vec<Rejected>,
}

/// `rails` NICs from `from` bytes on.
#[derive(Serialize)]
struct StripingThreshold {
    of: &'static str,
    from: u64,
    rails: usize,
}

#[derive(Serialize)]
struct Operation {
    name: &'static str,
    /// Costs measured while messages are sent decide from here on; the ranges are the start.
    measured_from: Option<usize>,
    ranges: Vec<Range>,
}

/// Sizes `from..=to` (`None`: without end).
#[derive(Serialize)]
struct Range {
    from: usize,
    to: Option<usize>,
    protocol: &'static str,
    nsec: Option<u64>,
    /// The peer's processor does it.
    emulated: bool,
    rejected: Vec<Rejected>,
}

#[derive(Serialize)]
struct Rejected {
    protocol: &'static str,
    /// Estimated time, if it could carry the size.
    nsec: Option<u64>,
    reason: String,
}

const STRIPED_RMA: &str = "puts and gets";

/// Names for memory of any kind, allocated by a transport, and copied by the kernel.
const OPERATIONS: [([&str; 3], Kind, DeliveryComplete); 4] = [
    (["tag_send", "tag_send, alloc", "tag_send, kernel"], Kind::Tagged, DeliveryComplete::No),
    (["tag_send_sync", "tag_send_sync, alloc", "tag_send_sync, kernel"], Kind::Tagged, DeliveryComplete::Yes),
    (["msg_send", "msg_send, alloc", "msg_send, kernel"], Kind::Untagged, DeliveryComplete::No),
    (
        ["msg_send_sync", "msg_send_sync, alloc", "msg_send_sync, kernel"],
        Kind::Untagged,
        DeliveryComplete::Yes,
    ),
];

/// One endpoint for each configured transport.
pub fn find(
    source: &Source,
    features: Features,
    location: Option<PeerLocation>,
) -> Result<Vec<Endpoint>, String> {
    let context = Context::configured(source.clone()).map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for resource in context.resources() {
        // All NICs of a transport belong to one endpoint.
        if seen.contains(&resource.tl) {
            continue;
        }
        seen.push(resource.tl);
        if location.is_some_and(|location| !location.is_reached_by(resource.kind)) {
            continue;
        }
        // Shared memory has RMA-only transports beside it.
        let beside = context.rma_only_resources().iter().filter(|_| resource.kind == uct::api::DevKind::Shm);
        let tls: Vec<&str> = [resource.tl].into_iter().chain(beside.map(|r| r.tl)).collect();
        let mut only = source.clone().with("UCX_TLS", &tls.join(","));
        if resource.kind == uct::api::DevKind::Net {
            let nics = context.resources().iter().filter(|r| r.tl == resource.tl);
            only.set("UCX_NET_DEVICES", &nics.map(|r| &*r.dev).collect::<Vec<_>>().join(","));
        }
        let mut endpoint = connect_pair(only, &resource.dev)?;
        endpoint.keep(features);
        all.push(endpoint);
    }
    match all.is_empty() {
        true => Err(format!(
            "-P: none of the transports that are left leads there (they are: {})",
            seen.join(", ")
        )),
        false => Ok(all),
    }
}

impl Endpoint {
    fn keep(&mut self, features: Features) {
        let is_tagged = |op: &Operation| op.name.starts_with("tag_");
        self.operations.retain(|op| if is_tagged(op) { features.tags } else { features.messages });
        self.spread
            .retain(|s| if s.of == STRIPED_RMA { features.rma } else { features.tags || features.messages });
        if !features.rma {
            self.rma.clear();
        }
        if !features.atomics {
            self.atomics.clear();
        }
    }
}

fn connect_pair(source: Source, device: &str) -> Result<Endpoint, String> {
    let context = Context::configured(source).map_err(|e| e.to_string())?;
    let mine = context.worker().map_err(|e| e.to_string())?;
    let peer = context.worker().map_err(|e| e.to_string())?;
    // The packed form is what a peer would get.
    let address = Address::unpack(&peer.address().pack()).map_err(|e| e.to_string())?;
    let ep = mine.connect(&address, EpParams::default()).map_err(|e| e.to_string())?;
    let of = |mem: MemKind, names: usize| {
        let each = OPERATIONS.iter().map(move |(name, kind, sync)| (name[names], mem, *kind, *sync));
        each.map(|(name, mem, kind, sync)| operation(&ep, name, mem, (kind, sync)))
    };
    let mut operations: Vec<Operation> = of(MemKind::Host, 0).collect();
    // Tables that depend on the kind of memory.
    for (mem, names) in [(MemKind::Allocated, 1), (MemKind::Process, 2)] {
        let table = |mem| ep.protocols().table_from(mem, Kind::Tagged, DeliveryComplete::No);
        let open = mem == MemKind::Process
            && ep.protocols().kernel_copy_from(Kind::Tagged, DeliveryComplete::No).is_some();
        if open || table(mem) != table(MemKind::Host) {
            operations.extend(of(mem, names));
        }
    }
    exchange_handshakes(&mine, &peer, &ep)?;
    let mem = peer.mem_alloc(1 << 16, ucp::Access::all()).map_err(|e| e.to_string())?;
    let named = ep.unpack_rkey(&mem.pack_rkey()).map_err(|e| e.to_string())?;
    let plain = Rkey::from_key(mem.key());
    // Memory that is registered but not mapped.
    let registered =
        ep.protocols().transports().first().and_then(|tl| mem.device_key(tl)).map(Rkey::from_device_key);
    let by_key = |rkey: &Rkey, put, get| {
        let ways = |op, len| ep.protocols().explain_rma(rkey, op, None, len);
        [rma(put, |len| ways(RmaOp::Put, len)), rma(get, |len| ways(RmaOp::Get, len))]
    };
    let mut all = Vec::from(by_key(&named, "put", "get"));
    all.extend(registered.iter().flat_map(|key| by_key(key, "put, registered", "get, registered")));
    // Within one process the kernel never copies: ask for another process's memory.
    let of_program = |op, len| {
        ep.protocols().explain_rma_access(RemoteAccess::Kernel, (op, DeliveryComplete::No), None, len)
    };
    if of_program(RmaOp::Put, 1).iter().any(|c| c.choice == RmaChoice::Kernel && c.ns.is_some()) {
        all.push(rma("put, other process's", |len| of_program(RmaOp::Put, len)));
        all.push(rma("get, other process's", |len| of_program(RmaOp::Get, len)));
    }
    all.extend(by_key(&plain, "put, packet key", "get, packet key"));
    let atomics = (0u32..32).filter_map(|n| atomic(&ep, &named, AtomicOp::try_from(n).ok()?)).collect();
    let transports = ep.protocols().transports().into_iter().take(1).collect();
    let nics: Vec<String> = ep.protocols().rails().into_iter().map(|rail| rail.device).collect();
    let several = nics.len() > 1;
    Ok(Endpoint {
        transports,
        device: device.into(),
        nics: if several { nics } else { Vec::new() },
        spread: if several { spread(&ep) } else { Vec::new() },
        operations,
        rma: all,
        atomics,
    })
}

/// Sends one message so that both sides have the other's handshake.
fn exchange_handshakes(mine: &Worker, peer: &Worker, ep: &Ep) -> Result<(), String> {
    let sent = ep.tag_send(0, "hello");
    let end = Instant::now() + Duration::from_secs(5);
    while ep.peer_view().is_none_or(|view| view.features.is_none()) {
        mine.progress();
        peer.progress();
        if Instant::now() > end {
            return Err("two workers of this process do not reach each other".into());
        }
    }
    sent.detach();
    Ok(())
}

/// Finds the sizes at which the method changes by bisection: each method has one range of sizes.
fn rma(name: &'static str, ways: impl Fn(usize) -> RmaCandidates) -> Operation {
    const LONGEST: usize = 1 << 40;
    let taken = |len: usize| ways(len).into_iter().find(|c| c.verdict == RmaVerdict::Taken);
    let mut ranges = Vec::new();
    let mut from = 1;
    loop {
        let first = taken(from);
        let way = first.map(|c| c.choice);
        let taken = |len: usize| taken(len).map(|c| c.choice);
        let (mut same, mut other) = (from, LONGEST);
        while taken(other) != way && other - same > 1 {
            let mid = same + (other - same) / 2;
            if taken(mid) == way { same = mid } else { other = mid }
        }
        let last = taken(other) == way;
        let rejected = ways(from).into_iter().filter(|c| c.verdict != RmaVerdict::Taken);
        ranges.push(Range {
            from,
            to: (!last).then_some(same),
            protocol: way.map_or("refused", RmaChoice::name),
            nsec: first.and_then(|c| c.ns),
            emulated: matches!(way, Some(RmaChoice::Protocol(row)) if row.is_emulated()),
            rejected: rejected
                .map(|c| Rejected { protocol: c.choice.name(), nsec: c.ns, reason: c.verdict.to_string() })
                .collect(),
        });
        if last {
            return Operation { name, measured_from: None, ranges };
        }
        from = other;
    }
}

fn atomic(ep: &Ep, rkey: &Rkey, op: AtomicOp) -> Option<Atomic> {
    const WAYS: [&str; 3] = ["mapped", "device", "packets"];
    let way = |ty: &Datatype| {
        let verdicts = ep.protocols().explain_atomic(rkey, op, *ty)?;
        let of =
            |taken: bool| WAYS.iter().zip(verdicts).filter(move |w| (w.1 == AtomicVerdict::Taken) == taken);
        let way = of(true).map(|(name, _)| *name).next();
        Some(AtomicMethod {
            ty: format!("{ty:?}").to_lowercase(),
            way,
            emulated: way == Some(WAYS[2]),
            rejected: of(false)
                .map(|(n, v)| Rejected { protocol: n, nsec: None, reason: v.to_string() })
                .collect(),
        })
    };
    let types: Vec<AtomicMethod> = (0u32..32).filter_map(|n| way(&Datatype::try_from(n).ok()?)).collect();
    (!types.is_empty()).then(|| Atomic { name: format!("{op:?}"), types })
}

fn spread(ep: &Ep) -> Vec<StripingThreshold> {
    let kinds = [("messages, read or longcts", TransferKind::Messages), (STRIPED_RMA, TransferKind::Rma)];
    let mut all = Vec::new();
    for (of, kind) in kinds {
        let spread = ep.protocols().rail_plan(kind);
        all.extend(
            (1..).map_while(|rails| Some(StripingThreshold { of, from: spread.min_len(rails)?, rails })),
        );
    }
    all
}

fn operation(ep: &Ep, name: &'static str, mem: MemKind, (kind, sync): (Kind, DeliveryComplete)) -> Operation {
    let range = |r: ucp::select::Range| {
        let (taken, others): (Vec<Candidate>, Vec<Candidate>) = ep
            .protocols()
            .explain_from(mem, kind, sync, r.from)
            .into_iter()
            .partition(|c| c.verdict == Verdict::Taken);
        let rejected = |c: &Candidate| Rejected {
            protocol: c.protocol.name(),
            nsec: c.ns,
            reason: c.verdict.to_string(),
        };
        Range {
            from: r.from,
            to: (r.to < usize::MAX).then_some(r.to),
            protocol: taken.first().map_or("none", |c| c.protocol.name()),
            nsec: taken.first().and_then(|c| c.ns),
            emulated: false,
            rejected: others.iter().map(rejected).collect(),
        }
    };
    let measured_from = ep.protocols().kernel_copy_from(kind, sync).filter(|_| mem == MemKind::Process);
    Operation {
        name,
        measured_from,
        ranges: ep.protocols().table_from(mem, kind, sync).ranges().map(range).collect(),
    }
}

/// Text in the layout of `ucx_info -e`, with the reasons below.
pub fn text(all: &[Endpoint]) -> String {
    let mut out = String::new();
    for endpoint in all {
        // Writing to a string cannot fail.
        let _ = write_one(&mut out, endpoint);
    }
    out
}

fn write_one(out: &mut String, endpoint: &Endpoint) -> std::fmt::Result {
    writeln!(out, "#\n# UCP endpoint\n#")?;
    for (lane, tl) in endpoint.transports.iter().enumerate() {
        writeln!(out, "#                 lane[{lane}]: {tl}/{}", endpoint.device)?;
    }
    for (rail, nic) in endpoint.nics.iter().enumerate() {
        writeln!(out, "#                 rail[{rail}]: {nic}")?;
    }
    for kind in endpoint.spread.chunk_by(|a, b| a.of == b.of) {
        let borders: Vec<String> = kind.iter().map(|s| format!("{}..<{}>", s.from, s.rails)).collect();
        writeln!(out, "# {:>26}, rails: {}..(inf)", kind[0].of, borders.join(".."))?;
    }
    writeln!(out, "#")?;
    for op in endpoint.operations.iter().chain(&endpoint.rma) {
        let mut line = op.ranges[0].from.to_string();
        for range in &op.ranges {
            let to = range.to.map_or("(inf)".into(), |to| to.saturating_add(1).to_string());
            write!(line, "..<{}>..{to}", range.protocol)?;
        }
        writeln!(out, "# {:>21}: {line}", op.name)?;
    }
    for op in &endpoint.atomics {
        for types in op.types.chunk_by(|a, b| a.way == b.way) {
            let names: Vec<&str> = types.iter().map(|way| &*way.ty).collect();
            writeln!(out, "# {:>21}: {} ({})", op.name, types[0].way.unwrap_or("refused"), names.join(" "))?;
        }
    }
    writeln!(out, "#\n# why, from the smallest size of each range:")?;
    for op in endpoint.operations.iter().chain(&endpoint.rma) {
        for range in &op.ranges {
            let to = range.to.map_or("inf".into(), short_bytes);
            let how = if range.emulated { ", by the peer's processor" } else { "" };
            let cost = range.nsec.map_or(String::new(), |nsec| format!(", {nsec} ns"));
            let (from, name) = (range.from, range.protocol);
            writeln!(out, "# {:>21}: {from}..{to} bytes: {name} taken{how}{cost}", op.name)?;
            for r in &range.rejected {
                writeln!(out, "# {:>21}  {:>10}: {}", "", r.protocol, r.reason)?;
            }
        }
        if let Some(from) = op.measured_from {
            writeln!(
                out,
                "# {:>21}: from {from} bytes on the kernel or packets, as measured of late",
                op.name
            )?;
        }
    }
    let mut printed: Vec<(&str, &str)> = Vec::new();
    for way in endpoint.atomics.iter().flat_map(|op| &op.types) {
        for r in &way.rejected {
            let reason = (r.protocol, &*r.reason);
            if !printed.contains(&reason) {
                printed.push(reason);
                writeln!(out, "# {:>21}  {:>10}: {}", "atomics", reason.0, reason.1)?;
            }
        }
    }
    writeln!(out, "#\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(source: &Source) -> Result<Vec<Endpoint>, String> {
        find(source, Features::ALL, None)
    }

    #[test]
    fn each_size_has_one_protocol_and_reasons_for_the_others() {
        let all = all(&Source::empty().with("UCX_TLS", "self,posix")).unwrap();
        assert_eq!(all.len(), 2);
        for op in all.iter().flat_map(|e| &e.operations) {
            assert_eq!((op.ranges[0].from, op.ranges.last().unwrap().to), (0, None), "{}", op.name);
            assert!(op.ranges.windows(2).all(|w| w[0].to.map(|to| to + 1) == Some(w[1].from)));
            assert!(op.ranges.iter().all(|r| r.rejected.len() == 5));
        }
        let text = text(&all);
        assert!(text.contains("lane[0]: posix/memory"), "{text}");
        assert!(text.contains("tag_send: 0..<eager>.."), "{text}");
        assert!(text.contains("eager: one packet carries at most "), "{text}");
    }

    #[test]
    fn methods_of_one_sided_operations_are_reported() {
        let find = |tls: &str, emulation: &str| {
            let source = Source::empty().with("UCX_TLS", tls).with("UCX_EMULATION", emulation);
            text(&all(&source).unwrap())
        };
        let posix = find("posix", "y");
        assert!(posix.contains("put: 1..<mapped>..(inf)"), "{posix}");
        assert!(posix.contains("Sum: mapped (int32 uint32 int64 uint64)"), "{posix}");
        assert!(posix.contains("packets: possible, but asks more of the target"), "{posix}");
        let efa = find("efa", "y");
        assert!(efa.contains("put: 1..<direct_write>..(inf)"), "{efa}");
        assert!(efa.contains("put, registered: 1..<eager_write>.."), "{efa}");
        assert!(efa.contains("..<direct_write>..(inf)\n"), "{efa}");
        assert!(efa.contains("direct_write: slower: "), "{efa}");
        assert!(efa.contains("put, packet key: 1..<eager_write>.."), "{efa}");
        assert!(efa.contains(" taken, by the peer's processor"), "{efa}");
        assert!(efa.contains("device: no device of this transport computes"), "{efa}");
        if uct::cma::unavailable_reason().is_none() {
            let both = find("posix,cma", "y");
            assert!(both.contains("put: 1..<mapped>..(inf)"), "{both}");
            assert!(both.contains("put, other process's: 1..<eager_write>.."), "{both}");
            assert!(both.contains("..<copied>..(inf)\n"), "{both}");
            assert!(both.contains("copied: slower: "), "{both}");
            assert!(both.contains("tag_send, kernel: from 16"), "{both}");
            assert!(both.contains(" bytes on the kernel or packets, as measured of late\n"), "{both}");
            let strict = find("posix,cma", "n");
            assert!(strict.contains("get, other process's: 1..<copied>..(inf)"), "{strict}");
        }
        let strict = find("efa", "n");
        assert!(strict.contains("put: 1..<direct_write>..(inf)"), "{strict}");
        assert!(strict.contains("put, packet key: 1..<refused>..(inf)"), "{strict}");
        assert!(strict.contains("Sum: refused ("), "{strict}");
        assert!(strict.contains("asks the peer's processor (UCX_EMULATION=n)"), "{strict}");
    }

    #[test]
    fn several_nics_are_one_endpoint() {
        let source = Source::empty().with("UCX_TLS", "efa").with("SOFTEFA_DEVICES", "3");
        let all = all(&source.with("UCX_MIN_RNDV_CHUNK_SIZE", "1m").with("UCX_MAX_RMA_RAILS", "2")).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].nics, ["softefa0", "softefa1", "softefa2"]);
        let text = text(&all);
        assert!(text.contains("rail[2]: softefa2"), "{text}");
        assert!(
            text.contains("messages, read or longcts, rails: 0..<1>..2097152..<2>..3145728..<3>..(inf)"),
            "{text}"
        );
        assert!(text.contains("puts and gets, rails: 0..<1>..262144..<2>..(inf)"), "{text}");
    }

    #[test]
    fn threshold_may_differ_on_other_hosts() {
        let source = Source::empty().with("UCX_RNDV_THRESH", "intra:20000,inter:30000");
        let switch = |tl: &str| {
            let text = text(&all(&source.clone().with("UCX_TLS", tl)).unwrap());
            [20000, 20001, 30000, 30001].into_iter().find(|n| text.contains(&format!("<medium>..{n}..<long")))
        };
        assert!(matches!(switch("posix"), Some(20000 | 20001)));
        assert!(matches!(switch("efa"), Some(30000 | 30001)));
    }

    #[test]
    fn threshold_moves_protocol_switch() {
        let source = Source::empty().with("UCX_TLS", "posix").with("UCX_RNDV_THRESH", "20000");
        let text = text(&all(&source).unwrap());
        assert!(
            text.contains("<medium>..20000..<longcts>..(inf)")
                || text.contains("<medium>..20001..<longcts>..(inf)"),
            "{text}"
        );
    }
}
