//! `-e`: which protocol each size takes between two workers of this machine, and why each other one was not taken.
//! Makes two workers, connects them as two processes would be connected, and asks the endpoint. Sends nothing.

use serde::Serialize;
use std::fmt::Write as _;
use tools_common::units::short_bytes;
use ucp::select::{Kind, Sync, Verdict};
use ucp::{Address, Context, Ep, EpParams};
use ucs::config::Source;

/// What one set of transports gives.
#[derive(Serialize)]
pub struct Endpoint {
    /// What leads to the peer, in the order in which it is preferred.
    transports: Vec<&'static str>,
    device: String,
    operations: Vec<Operation>,
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
    for resource in context.resources() {
        let mut only = source.clone().with("UCX_TLS", resource.tl);
        if resource.kind == uct::api::DevKind::Net {
            only.set("UCX_NET_DEVICES", &resource.dev);
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
    Ok(Endpoint { transports: ep.transports(), device: device.into(), operations })
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
