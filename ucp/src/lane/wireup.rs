//! Which lane leads to a peer: every lane that has its transport in common and reaches it, cheapest first.
//! Called when an endpoint is made. Looks at attributes, never at what a transport is called (a name only says
//! how an address is to be read).

use uct::api::{ConnectError as WireRefusal, DevKind, Iface as _, IfaceAttr};

use crate::api::{Address, ConnectError, Entry, process};

use super::{Lane, LaneIdx, RawBytes};

/// Bytes of the message by which lanes are compared: latency counts, and bandwidth a little.
const TYPICAL: f64 = 1024.0;

/// A lane and the remote interface it leads to.
pub(crate) struct Route<'a> {
    pub lane: LaneIdx,
    pub entry: &'a Entry,
    pub raw: RawBytes,
    cost: f64,
}

/// All routes to `address`, cheapest first; ties go to the lane opened first.
pub(crate) fn routes<'a>(lanes: &[Lane], address: &'a Address) -> Result<Vec<Route<'a>>, ConnectError> {
    let mut found = Vec::new();
    let mut tried: Vec<(&'static str, WireRefusal)> = Vec::new();
    let here = process();
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
