//! `-e`: which protocol each size takes between two workers of this machine, and why each other one was not taken.
//! Makes two workers, connects them as two processes would be connected, and asks the endpoint. Sends nothing.

use serde::Serialize;
use std::fmt::Write as _;
use tools_common::units::short_bytes;
use ucp::select::{Kind, Sync, Verdict};
use ucp::{Address, Context, Ep, EpParams, RailsOf};
use ucs::config::Source;

/// What one set of transports gives.
#[derive(Serialize)]
pub struct Endpoint {
    /// What leads to the peer, in the order in which it is preferred.
    transports: Vec<&'static str>,
    device: String,
    /// The NICs that long transfers go over side by side, if there are several.
    nics: Vec<String>,
    /// Long transfers and over how many NICs they go from which size on.
    spread: Vec<Spread>,
    operations: Vec<Operation>,
}

/// Over how many NICs one kind of transfer goes: `rails` from `from` bytes on.
#[derive(Serialize)]
struct Spread {
    of: &'static str,
    from: u64,
    rails: usize,
}

/// Protocol by size of one kind of message.
#[derive(Serialize)]
struct Operation {
    name: &'static str,
    ranges: Vec<Range>,
}

/// Sizes `from..=to` (`None`: without end) go by `protocol`.
#[derive(Serialize)]
struct Range {
    from: usize,
    to: Option<usize>,
    protocol: &'static str,
    rejected: Vec<Rejected>,
}

/// A protocol that the smallest size of the range does not take.
#[derive(Serialize)]
struct Rejected {
    protocol: &'static str,
    reason: String,
}

const OPERATIONS: [(&str, Kind, Sync); 4] = [
    ("tag_send", Kind::Tagged, Sync::No),
    ("tag_send_sync", Kind::Tagged, Sync::Yes),
    ("msg_send", Kind::Untagged, Sync::No),
    ("msg_send_sync", Kind::Untagged, Sync::Yes),
];

/// One endpoint for each transport between processes that the configuration leaves.
pub fn find(source: &Source) -> Result<Vec<Endpoint>, String> {
    let context = Context::configured(source.clone()).map_err(|e| e.to_string())?;
    let mut all = Vec::new();
    let mut done: Vec<&str> = Vec::new();
    for resource in context.resources() {
        // All NICs of a transport belong to one endpoint.
        if done.contains(&resource.tl) {
            continue;
        }
        done.push(resource.tl);
        let mut only = source.clone().with("UCX_TLS", resource.tl);
        if resource.kind == uct::api::DevKind::Net {
            let nics = context.resources().iter().filter(|r| r.tl == resource.tl);
            only.set("UCX_NET_DEVICES", &nics.map(|r| &*r.dev).collect::<Vec<_>>().join(","));
        }
        all.push(one(only, &resource.dev)?);
    }
    Ok(all)
}

fn one(source: Source, device: &str) -> Result<Endpoint, String> {
    let context = Context::configured(source).map_err(|e| e.to_string())?;
    let mine = context.worker().map_err(|e| e.to_string())?;
    let peer = context.worker().map_err(|e| e.to_string())?;
    // Through the packed form: what a peer would really get.
    let address = Address::unpack(&peer.address().pack()).map_err(|e| e.to_string())?;
    let ep = mine.connect(&address, EpParams::default()).map_err(|e| e.to_string())?;
    let operations = OPERATIONS.iter().map(|(name, kind, sync)| operation(&ep, name, *kind, *sync)).collect();
    let transports = ep.transports().into_iter().take(1).collect();
    let nics: Vec<String> = ep.rails().into_iter().map(|rail| rail.device).collect();
    let several = nics.len() > 1;
    Ok(Endpoint {
        transports,
        device: device.into(),
        nics: if several { nics } else { Vec::new() },
        spread: if several { spread(&ep) } else { Vec::new() },
        operations,
    })
}

fn spread(ep: &Ep) -> Vec<Spread> {
    let kinds =
        [("messages that are read", RailsOf::Messages), ("puts and gets by the device", RailsOf::Rma)];
    let mut all = Vec::new();
    for (of, kind) in kinds {
        let spread = ep.spread(kind);
        all.extend((1..).map_while(|rails| Some(Spread { of, from: spread.from(rails)?, rails })));
    }
    all
}

fn operation(ep: &Ep, name: &'static str, kind: Kind, sync: Sync) -> Operation {
    let range = |r: ucp::select::Range| Range {
        from: r.from,
        to: (r.to < usize::MAX).then_some(r.to),
        protocol: r.row.name(),
        rejected: ep
            .explain(kind, sync, r.from)
            .iter()
            .filter(|c| c.verdict != Verdict::Taken)
            .map(|c| Rejected { protocol: c.row.name(), reason: c.verdict.to_string() })
            .collect(),
    };
    Operation { name, ranges: ep.table(kind, sync).ranges().map(range).collect() }
}

/// The list as text, in the manner of `ucx_info -e`, with the reasons below each line.
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
    for op in &endpoint.operations {
        let mut line = String::from("0");
        for range in &op.ranges {
            let to = range.to.map_or("(inf)".into(), |to| to.saturating_add(1).to_string());
            write!(line, "..<{}>..{to}", range.protocol)?;
        }
        writeln!(out, "# {:>21}: {line}", op.name)?;
    }
    writeln!(out, "#\n# why, from the smallest size of each range:")?;
    for op in &endpoint.operations {
        for range in &op.ranges {
            let to = range.to.map_or("inf".into(), short_bytes);
            writeln!(out, "# {:>21}: {}..{to} bytes: {} taken", op.name, range.from, range.protocol)?;
            for r in &range.rejected {
                writeln!(out, "# {:>21}  {:>10}: {}", "", r.protocol, r.reason)?;
            }
        }
    }
    writeln!(out, "#\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_one_protocol_and_the_others_a_reason() {
        let all = find(&Source::empty().with("UCX_TLS", "self,posix")).unwrap();
        assert_eq!(all.len(), 2);
        for op in all.iter().flat_map(|e| &e.operations) {
            assert_eq!((op.ranges[0].from, op.ranges.last().unwrap().to), (0, None), "{}", op.name);
            assert!(op.ranges.windows(2).all(|w| w[0].to.map(|to| to + 1) == Some(w[1].from)));
            assert!(op.ranges.iter().all(|r| r.rejected.len() == 4));
        }
        let text = text(&all);
        assert!(text.contains("lane[0]: posix/memory"), "{text}");
        assert!(text.contains("tag_send: 0..<eager>.."), "{text}");
        assert!(text.contains("eager: one packet carries at most "), "{text}");
    }

    #[test]
    fn several_nics_are_one_endpoint() {
        let source = Source::empty().with("UCX_TLS", "efa").with("SOFTEFA_DEVICES", "3");
        let all = find(&source.with("UCX_MIN_RNDV_CHUNK_SIZE", "1m").with("UCX_MAX_RMA_RAILS", "2")).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].nics, ["softefa0", "softefa1", "softefa2"]);
        let text = text(&all);
        assert!(text.contains("rail[2]: softefa2"), "{text}");
        assert!(
            text.contains("messages that are read, rails: 0..<1>..2097152..<2>..3145728..<3>..(inf)"),
            "{text}"
        );
        assert!(text.contains("puts and gets by the device, rails: 0..<1>..262144..<2>..(inf)"), "{text}");
    }

    #[test]
    fn a_threshold_moves_the_border() {
        let source = Source::empty().with("UCX_TLS", "posix").with("UCX_RNDV_THRESH", "20000");
        let text = text(&find(&source).unwrap());
        assert!(
            text.contains("<medium>..20000..<longcts>..(inf)")
                || text.contains("<medium>..20001..<longcts>..(inf)"),
            "{text}"
        );
    }
}
