//! `-d`: transports, devices, and the attributes of an interface on each. Opens one interface per device and
//! closes it.

use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use tools_common::units::{is_unlimited, short_bytes};
use ucs::config::Source;
use uct::api::{
    AtomicCaps, AtomicOps, Caps, Iface as _, IfaceAttr, Md as _, MdAttr, OpenError, OrderKind, RmaLimits,
    TlResource,
};

#[derive(Serialize)]
pub struct TransportInfo {
    transport: &'static str,
    device: String,
    about: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    unusable: Option<String>,
    /// In the order of output.
    #[serde(serialize_with = "object")]
    memory: Vec<Attribute>,
    #[serde(serialize_with = "object")]
    capabilities: Vec<Attribute>,
}

/// A name, and its value for people and for programs: bytes, nanoseconds, bytes per second; null is no limit.
pub struct Attribute {
    name: &'static str,
    text: String,
    value: Value,
}

fn attribute(name: &'static str, text: impl Into<String>, value: Value) -> Attribute {
    Attribute { name, text: text.into(), value }
}

fn object<S: serde::Serializer>(attributes: &[Attribute], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(attributes.iter().map(|attribute| (attribute.name.replace(' ', "_"), &attribute.value)))
}

fn limit_value(n: usize) -> Value {
    if is_unlimited(n) { Value::Null } else { n.into() }
}

/// All transports, or `only` one.
pub fn find(source: &Source, only: Option<&str>) -> Result<Vec<TransportInfo>, String> {
    let all = uct::any::resources(source).map_err(|e| e.to_string())?;
    // UCX's name.
    let only = only.map(|name| if name == "srd" { "efa" } else { name });
    if let Some(name) = only.filter(|name| all.iter().all(|r| r.tl != *name)) {
        let mut known: Vec<&str> = all.iter().map(|r| r.tl).collect();
        known.dedup();
        let unknown = OpenError::UnknownTransport { name: name.into(), known: known.join(", ") };
        return Err(unknown.to_string());
    }
    let wanted = |r: &TlResource| only.is_none_or(|name| r.tl == name);
    let usable = all.into_iter().filter(wanted);
    let unusable = uct::any::unusable().into_iter().filter(|(r, _)| wanted(r));
    Ok(usable
        .map(|r| {
            let mut found = unopened(&r);
            match uct::any::open(r.tl, &r.dev, source) {
                Ok(iface) => {
                    found.memory = memory(iface.md().attr(), iface.attr());
                    found.capabilities = capabilities(iface.attr());
                    found.capabilities.splice(3..3, estimates(&r));
                }
                Err(e) => found.unusable = Some(e.to_string()),
            }
            found
        })
        .chain(unusable.map(|(r, why)| TransportInfo { unusable: Some(why), ..unopened(&r) }))
        .collect())
}

fn unopened(r: &TlResource) -> TransportInfo {
    TransportInfo {
        transport: r.tl,
        device: r.dev.clone(),
        about: r.description.clone(),
        kind: r.kind.to_string(),
        unusable: None,
        memory: Vec::new(),
        capabilities: Vec::new(),
    }
}

/// Estimates for a resource, known before it is opened.
fn estimates(r: &TlResource) -> [Attribute; 2] {
    let (rate, near) = (r.perf.message_rate, &r.locality);
    let cpus = near.cpus.as_ref().map(ToString::to_string);
    let node = near.numa_node.map(|node| format!(" (NUMA node {node})")).unwrap_or_default();
    let text = format!("{}{node}", cpus.as_deref().unwrap_or("no CPU is nearer than another"));
    [
        attribute("message rate", format!("{:.2} M/sec", rate / 1e6), rate.into()),
        attribute("near CPUs", text, json!({"cpus": cpus, "numa_node": near.numa_node})),
    ]
}

fn memory(md: &MdAttr, attr: &IfaceAttr) -> Vec<Attribute> {
    let mut attributes = vec![attribute("Component", md.component, md.component.into())];
    if md.can_alloc {
        attributes.push(attribute("allocate", "unlimited", Value::Null));
    }
    if md.can_register {
        let (fixed, byte) = attr.reg_cost;
        let growth = if byte > 0.0 { format!(" + {byte:.3} nsec/byte") } else { String::new() };
        let most = md.max_reg.map_or("unlimited".into(), |n| format!("{n} regions"));
        let value = json!({"regions": md.max_reg, "nsec": fixed, "nsec_per_byte": byte});
        attributes.push(attribute("register", format!("{most}, cost: {fixed:.0} nsec{growth}"), value));
    }
    if md.has_rkey {
        attributes.push(bytes("remote key", md.rkey_len));
    }
    attributes
}

fn capabilities(attr: &IfaceAttr) -> Vec<Attribute> {
    let mut attributes = vec![
        attribute("bandwidth", format!("{:.2} MB/sec", attr.bandwidth / 1048576.0), attr.bandwidth.into()),
        attribute(
            "latency",
            match attr.latency.per_ep {
                per if per > 0.0 => format!("{:.0} nsec + {per:.3} * N", attr.latency.fixed),
                _ => format!("{:.0} nsec", attr.latency.fixed),
            },
            json!({"nsec": attr.latency.fixed, "nsec_per_ep": attr.latency.per_ep}),
        ),
        attribute("overhead", format!("{:.0} nsec", attr.overhead), attr.overhead.into()),
    ];
    let mut limit = |cap: Caps, name, (text, value): (String, Value)| {
        if attr.has(cap) {
            attributes.push(attribute(name, text, value));
        }
    };
    rma(
        &mut limit,
        attr.put,
        [Caps::PUT_SHORT, Caps::PUT_BCOPY, Caps::PUT_ZCOPY],
        ["put_short", "put_bcopy", "put_zcopy"],
    );
    rma(
        &mut limit,
        attr.get,
        [Caps::GET_SHORT, Caps::GET_BCOPY, Caps::GET_ZCOPY],
        ["get_short", "get_bcopy", "get_zcopy"],
    );
    limit(Caps::AM_SHORT, "am_short", up_to(attr.am.max_short));
    limit(Caps::AM_BCOPY, "am_bcopy", up_to(attr.am.max_bcopy));
    limit(Caps::AM_ZCOPY, "am_zcopy", pieces((0, attr.am.max_zcopy), attr.am.max_iov));
    limit(Caps::AM_ZCOPY, "am header", up_to(attr.am.max_hdr));
    atomics(&mut attributes, attr);
    attributes.push(attribute(
        "order",
        match attr.order {
            OrderKind::Ordered => "messages of an endpoint arrive as sent",
            OrderKind::Unordered => "none",
        },
        (attr.order == OrderKind::Ordered).into(),
    ));
    let has_source = attr.has(Caps::AM_SOURCE);
    attributes.push(attribute("am tells source", if has_source { "yes" } else { "no" }, has_source.into()));
    let ways = [(Caps::CONNECT_TO_EP, "to ep"), (Caps::CONNECT_TO_IFACE, "to iface")];
    attributes.push(names("connection", attr, &ways));
    attributes.push(attribute(
        "tx queue",
        attr.tx_depth.map_or("unlimited".into(), |n| n.to_string()),
        json!(attr.tx_depth),
    ));
    attributes.push(bytes("device address", attr.device_addr_len));
    attributes.push(bytes("iface address", attr.iface_addr_len));
    if attr.ep_addr_len > 0 {
        attributes.push(bytes("ep address", attr.ep_addr_len));
    }
    let events = [(Caps::EVENT_RECV, "arrivals"), (Caps::EVENT_SEND, "completions")];
    attributes.push(names("event fd", attr, &events));
    let errors = [(Caps::PEER_FAILURE, "peer failure"), (Caps::EP_CHECK, "ep_check")];
    attributes.push(names("error handling", attr, &errors));
    attributes
}

fn rma(
    limit: &mut impl FnMut(Caps, &'static str, (String, Value)),
    l: RmaLimits,
    caps: [Caps; 3],
    names: [&'static str; 3],
) {
    limit(caps[0], names[0], up_to(l.max_short));
    limit(caps[1], names[1], up_to(l.max_bcopy));
    limit(caps[2], names[2], pieces((l.min_zcopy, l.max_zcopy), l.max_iov));
}

fn atomics(attributes: &mut Vec<Attribute>, attr: &IfaceAttr) {
    if !attr.has(Caps::ATOMIC) {
        return;
    }
    let a = attr.atomics;
    let widths = |of: &dyn Fn(usize) -> AtomicOps, op| {
        let has = AtomicCaps::WIDTHS.into_iter().filter(|bytes| of(*bytes).contains(op));
        has.map(|bytes| 8 * bytes).collect::<Vec<usize>>()
    };
    let ops = [
        ("atomic_add", "atomic_fadd", AtomicOps::ADD),
        ("atomic_and", "atomic_fand", AtomicOps::AND),
        ("atomic_or", "atomic_for", AtomicOps::OR),
        ("atomic_xor", "atomic_fxor", AtomicOps::XOR),
        ("", "atomic_swap", AtomicOps::SWAP),
        ("", "atomic_cswap", AtomicOps::CSWAP),
    ];
    if attr.has(Caps::ATOMIC_EMULATED) {
        attributes.push(attribute("atomics", "by a thread of the target", "emulated".into()));
    }
    let post = ops.iter().map(|(name, _, op)| (*name, widths(&|bytes| a.post(bytes), *op)));
    let fetch = ops.iter().map(|(_, name, op)| (*name, widths(&|bytes| a.fetch(bytes), *op)));
    let all = post.chain(fetch).filter(|(name, bits)| !name.is_empty() && !bits.is_empty());
    attributes.extend(all.map(|(name, bits)| {
        let words: Vec<String> = bits.iter().map(usize::to_string).collect();
        attribute(name, format!("{} bit", words.join(", ")), json!(bits))
    }));
}

fn limit_text(n: usize) -> String {
    if is_unlimited(n) { "unlimited".into() } else { format!("<= {}", short_bytes(n)) }
}

fn up_to(n: usize) -> (String, Value) {
    (limit_text(n), json!({"max": limit_value(n)}))
}

fn pieces((min, max): (usize, usize), iov: usize) -> (String, Value) {
    let low = if min > 1 { format!(">= {}, ", short_bytes(min)) } else { String::new() };
    let most = if is_unlimited(iov) { "any number of".into() } else { format!("up to {iov}") };
    (
        format!("{low}{}, {most} iov", limit_text(max)),
        json!({"min": min, "max": limit_value(max), "iov": limit_value(iov)}),
    )
}

fn bytes(name: &'static str, n: usize) -> Attribute {
    attribute(name, format!("{n} bytes"), n.into())
}

fn names(name: &'static str, attr: &IfaceAttr, all: &[(Caps, &str)]) -> Attribute {
    let has: Vec<&str> = all.iter().filter(|(cap, _)| attr.has(*cap)).map(|(_, name)| *name).collect();
    attribute(name, if has.is_empty() { "none".into() } else { has.join(", ") }, json!(has))
}

/// Text in the layout of `ucx_info -d`.
pub fn text(all: &[TransportInfo]) -> String {
    let mut out = String::new();
    for found in all {
        // Writing to a string cannot fail.
        let _ = write_one(&mut out, found);
    }
    out
}

fn write_one(out: &mut String, found: &TransportInfo) -> std::fmt::Result {
    writeln!(out, "#\n# Memory domain: {}", found.transport)?;
    for f in &found.memory {
        let width = if f.name == "Component" { 13 } else { 20 };
        writeln!(out, "# {:>width$}: {}", f.name, f.text)?;
    }
    writeln!(out, "#")?;
    for (name, value) in [("Transport", found.transport), ("Device", &found.device), ("Type", &found.kind)] {
        writeln!(out, "# {name:>14}: {value}")?;
    }
    writeln!(out, "# {:>14}: {}", "About", found.about)?;
    if let Some(why) = &found.unusable {
        return writeln!(out, "# {:>14}: {why}\n#\n", "Cannot be used");
    }
    writeln!(out, "#\n#      capabilities:")?;
    for f in &found.capabilities {
        writeln!(out, "# {:>20}: {}", f.name, f.text)?;
    }
    writeln!(out, "#\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_equals_that_of_ucx_info() {
        let found = find(&Source::empty(), Some("self")).unwrap();
        let text = text(&found);
        let start = "\
#
# Memory domain: self
#     Component: self
";
        assert!(text.starts_with(start), "{text}");
        for line in [
            "#      Transport: self",
            "#         Device: memory",
            "#           Type: loopback",
            "#      capabilities:",
            "#           atomic_add: 8, 16, 32, 64, 128 bit",
            "#         atomic_cswap: 8, 16, 32, 64, 128 bit",
            "#           connection: to iface",
            "#        iface address: 8 bytes",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn json_has_numbers_and_lists() {
        let found = find(&Source::empty(), None).unwrap();
        let all = serde_json::to_value(&found).unwrap();
        for device in all.as_array().unwrap() {
            let can = &device["capabilities"];
            assert!(can["bandwidth"].as_f64().unwrap() > 1e6, "{device}");
            assert!(can["latency"]["nsec"].is_number() && can["overhead"].is_number(), "{device}");
            assert!(can["error_handling"].is_array() && can["am_tells_source"].is_boolean(), "{device}");
            for (name, value) in can.as_object().unwrap() {
                assert!(!value.is_string() || name == "atomics", "{name}: {value}");
                // A limit that no memory reaches is null, not the largest number.
                for key in ["max", "min", "iov"] {
                    assert!(value[key].as_u64().is_none_or(|n| n < 1 << 62), "{name}: {value}");
                }
            }
        }
        let cma = all.as_array().unwrap().iter().find(|d| d["transport"] == "cma").unwrap();
        assert_eq!(cma["capabilities"]["put_zcopy"]["max"], Value::Null, "{cma}");
        let text = text(&found);
        assert!(text.contains("put_zcopy: unlimited, ") && !text.contains("922337203685477"), "{text}");
        let posix = all.as_array().unwrap().iter().find(|d| d["transport"] == "posix").unwrap();
        assert!(posix["capabilities"]["am_short"]["max"].as_u64().unwrap() > 64, "{posix}");
        assert_eq!(posix["capabilities"]["atomic_add"], json!([8, 16, 32, 64, 128]));
        assert!(posix["memory"]["remote_key"].as_u64().unwrap() > 0, "{posix}");
    }

    #[test]
    fn unusable_device_has_a_reason() {
        let r = TlResource {
            tl: "efa",
            dev: "rdmap0s31:1".into(),
            kind: uct::api::DevKind::Net,
            description: "EFA NIC (0xefa2) at 0000:00:1f.0".into(),
            has_am: true,
            perf: Default::default(),
            locality: Default::default(),
            is_software: false,
        };
        let text =
            text(&[TransportInfo { unusable: Some("no driver is bound to it".into()), ..unopened(&r) }]);
        for line in [
            "#         Device: rdmap0s31:1",
            "#          About: EFA NIC (0xefa2) at 0000:00:1f.0",
            "# Cannot be used: no driver is bound to it",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains("capabilities"), "{text}");
    }

    #[test]
    fn srd_is_efa() {
        let found = find(&Source::empty(), Some("srd")).unwrap();
        assert!(!found.is_empty() && found.iter().all(|f| f.transport == "efa"));
    }

    #[test]
    fn unknown_transport_is_refused() {
        let text = find(&Source::empty(), Some("tcp")).err().unwrap();
        assert!(text.starts_with("unknown transport 'tcp' (there are: self, posix"), "{text}");
    }
}
