//! Lane selection: every lane that shares a transport with the peer and reaches it, cheapest first. Called
//! when an endpoint is created. Decides by attributes; a transport's name only says how to parse an address.

use uct::api::{ConnectError as WireRefusal, DevKind, Iface as _, IfaceAttr};

use super::connect_error::ConnectError;
use crate::address::{Address, Entry};

use super::{IfaceIdx, RawBytes, WorkerIface, rdma};

/// Message size by which lanes are compared, bytes: latency dominates, bandwidth counts a little.
const TYPICAL_MSG_LEN: f64 = 1024.0;

pub(crate) struct Route<'a> {
    pub lane: IfaceIdx,
    pub entry: &'a Entry,
    pub raw: RawBytes,
    cost: f64,
}

/// Returns all routes to `address` from the process `here`, cheapest first; ties go to the lane opened first.
pub(crate) fn routes<'a>(
    ifaces: &[WorkerIface],
    here: u32,
    address: &'a Address,
) -> Result<Vec<Route<'a>>, ConnectError> {
    let mut found = Vec::new();
    let mut tried: Vec<(&'static str, WireRefusal)> = Vec::new();
    for (at, lane) in ifaces.iter().enumerate() {
        let attr = lane.iface.attr();
        for entry in address.entries.iter().filter(|e| e.tl() == attr.tl) {
            if attr.kind == DevKind::Loopback && address.id.process != here {
                tried.push((attr.tl, WireRefusal::Op(uct::api::Error::Unreachable)));
                continue;
            }
            let raw = lane
                .iface
                .reachable(&entry.device, &entry.iface)
                .and_then(|()| lane.form.raw(&entry.iface, entry.connid).ok_or(WireRefusal::Malformed));
            match raw {
                Ok(raw) => found.push(Route { lane: IfaceIdx(at as u8), entry, raw, cost: cost(attr) }),
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
            ours: join(ifaces.iter().map(|l| l.iface.attr().tl)),
        });
    }
    Err(ConnectError::Unreachable { tried })
}

/// Returns the routes of multi-rail after `main`: RDMA lanes of its kind, paired with the peer's in an order
/// that both sides share.
pub(crate) fn further_routes<'a>(
    ifaces: &[WorkerIface],
    main: &Route<'a>,
    address: &'a Address,
) -> Vec<Route<'a>> {
    let ours = rail_lanes(ifaces, main.lane);
    let tl = main.entry.tl();
    let theirs: Vec<&Entry> = address.entries.iter().filter(|entry| entry.tl() == tl).collect();
    let first = |at: Option<usize>| at.unwrap_or(0);
    let here = first(ours.iter().position(|lane| *lane == main.lane));
    let there = first(theirs.iter().position(|entry| std::ptr::eq(*entry, main.entry)));
    let pair = |n: usize| {
        let at = ours[(here + n) % ours.len()];
        let entry = theirs[(there + n) % theirs.len()];
        let lane = &ifaces[usize::from(at.0)];
        lane.iface.reachable(&entry.device, &entry.iface).ok()?;
        let raw = lane.form.raw(&entry.iface, entry.connid)?;
        Some(Route { lane: at, entry, raw, cost: main.cost })
    };
    (1..ours.len().min(theirs.len())).filter_map(pair).collect()
}

/// Returns the RDMA network lanes of the transport of `lane`, itself included, in the worker's order.
pub(crate) fn rail_lanes(ifaces: &[WorkerIface], lane: IfaceIdx) -> Vec<IfaceIdx> {
    let tl = ifaces[usize::from(lane.0)].iface.attr().tl;
    let is_rail = |lane: &WorkerIface| {
        let attr = lane.iface.attr();
        attr.tl == tl && attr.kind == DevKind::Net && rdma(&lane.iface).read > 0
    };
    let all = ifaces.iter().enumerate().filter(|(_, lane)| is_rail(lane));
    all.map(|(at, _)| IfaceIdx(at as u8)).collect()
}

fn cost(attr: &IfaceAttr) -> f64 {
    attr.latency.fixed + 2.0 * attr.overhead + TYPICAL_MSG_LEN / attr.bandwidth.max(1.0) * 1e9
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
