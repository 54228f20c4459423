//! Which lane leads to a peer: every lane that has its transport in common and reaches it, cheapest first.
//! Called when an endpoint is made. Looks at attributes, never at what a transport is called (a name only says
//! how an address is to be read).

use uct::api::{ConnectError as WireRefusal, DevKind, Iface as _, IfaceAttr};

use super::connect_error::ConnectError;
use crate::address::{Address, Entry};

use super::{Lane, LaneIdx, RawBytes, rdma};

/// Bytes of the message by which lanes are compared: latency counts, and bandwidth a little.
const TYPICAL: f64 = 1024.0;

/// A lane and the remote interface it leads to.
pub(crate) struct Route<'a> {
    pub lane: LaneIdx,
    pub entry: &'a Entry,
    pub raw: RawBytes,
    cost: f64,
}

/// All routes to `address` from the process `here`, cheapest first; ties go to the lane opened first.
pub(crate) fn routes<'a>(
    lanes: &[Lane],
    here: u64,
    address: &'a Address,
) -> Result<Vec<Route<'a>>, ConnectError> {
    let mut found = Vec::new();
    let mut tried: Vec<(&'static str, WireRefusal)> = Vec::new();
    for (at, lane) in lanes.iter().enumerate() {
        let attr = lane.iface.attr();
        for entry in address.entries.iter().filter(|e| e.tl() == attr.tl) {
            if attr.kind == DevKind::Loopback && address.process != here {
                tried.push((attr.tl, WireRefusal::Op(uct::api::Error::Unreachable)));
                continue;
            }
            let reach = lane
                .iface
                .reachable(&entry.device, &entry.iface)
                .and_then(|()| lane.form.raw(&entry.iface, entry.connid).ok_or(WireRefusal::Malformed));
            match reach {
                Ok(raw) => found.push(Route { lane: LaneIdx(at as u8), entry, raw, cost: cost(attr) }),
                Err(why) => tried.push((attr.tl, why)),
            }
        }
    }
    if !found.is_empty() {
        found.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        return Ok(found);
    }
    if tried.is_empty() {
        return Err(ConnectError::NoCommonTransport {
            theirs: join(address.transports()),
            ours: join(lanes.iter().map(|l| l.iface.attr().tl)),
        });
    }
    Err(ConnectError::Unreachable { tried })
}

/// The ways by further lanes that go beside `main`: the lanes of its kind that read and write memory, each with one of the
/// peer's. Both sides count from the pair of `main` on, so that they pair the same.
pub(crate) fn further<'a>(lanes: &[Lane], main: &Route<'a>, address: &'a Address) -> Vec<Route<'a>> {
    let ours = together(lanes, main.lane);
    let tl = main.entry.tl();
    let theirs: Vec<&Entry> = address.entries.iter().filter(|entry| entry.tl() == tl).collect();
    let first = |at: Option<usize>| at.unwrap_or(0);
    let here = first(ours.iter().position(|lane| *lane == main.lane));
    let there = first(theirs.iter().position(|entry| std::ptr::eq(*entry, main.entry)));
    let pair = |n: usize| {
        let at = ours[(here + n) % ours.len()];
        let entry = theirs[(there + n) % theirs.len()];
        let lane = &lanes[usize::from(at.0)];
        lane.iface.reachable(&entry.device, &entry.iface).ok()?;
        let raw = lane.form.raw(&entry.iface, entry.connid)?;
        Some(Route { lane: at, entry, raw, cost: main.cost })
    };
    (1..ours.len().min(theirs.len())).filter_map(pair).collect()
}

/// The lanes that carry long transfers together with `lane`, itself included, in the worker's order: of one transport, on a
/// network, and with RDMA.
pub(crate) fn together(lanes: &[Lane], lane: LaneIdx) -> Vec<LaneIdx> {
    let tl = lanes[usize::from(lane.0)].iface.attr().tl;
    let goes = |lane: &Lane| {
        let attr = lane.iface.attr();
        attr.tl == tl && attr.kind == DevKind::Net && rdma(&lane.iface).read > 0
    };
    let all = lanes.iter().enumerate().filter(|(_, lane)| goes(lane));
    all.map(|(at, _)| LaneIdx(at as u8)).collect()
}

/// Estimated time of a typical message, ns.
fn cost(attr: &IfaceAttr) -> f64 {
    attr.latency.fixed + 2.0 * attr.overhead + TYPICAL / attr.bandwidth.max(1.0) * 1e9
}

fn join<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    if all.is_empty() { "none".into() } else { all.join(", ") }
}
