//! Packets as JSON, one object per line. Field names are those of the wire; opaque values are hexadecimal
//! text.

use serde_json::{Map, Value, json};
use std::net::Ipv6Addr;
use tools_common::out;
use ucp::wire::items;
use uct::efa::dev::soft::capture::{Direction, WireOp};

use crate::check::Report;
use crate::record::{End, Record};

/// Prints packets, then an object with counts and with violations that belong to no packet.
pub fn print(records: &[Record], report: &Report, bad: bool) {
    for (nth, record) in records.iter().enumerate() {
        let violations: Vec<String> = report.of(nth).iter().map(ToString::to_string).collect();
        if bad && violations.is_empty() {
            continue;
        }
        let mut all = json!({
            "nth": nth + 1,
            "file": record.file,
            "time_ns": record.time,
            "seen": match record.direction { Direction::Out => "out", Direction::In => "in" },
            "from": end(&record.from),
            "to": end(&record.to),
            "type": record.name(),
            "length": record.len,
            "status": record.status,
            "violations": violations,
        });
        if let Some(imm) = record.imm {
            all["imm"] = imm.into();
        }
        match record.op {
            WireOp::Send if record.packet().is_some() => all["fields"] = fields(&record.bytes),
            WireOp::Send => {}
            WireOp::Read | WireOp::Write => {
                all["raddr"] = format!("{:#x}", record.remote.0).into();
                all["rkey"] = format!("{:#x}", record.remote.1).into();
            }
        }
        out::line(all.to_string());
    }
    let at_end: Vec<String> = report.at_end().iter().map(ToString::to_string).collect();
    out::line(json!({"packets": records.len(), "violations": report.count(), "at_end": at_end}).to_string());
}

fn end(end: &End) -> Value {
    json!({"gid": Ipv6Addr::from(end.gid).to_string(), "qpn": end.qpn})
}

/// A packet without the device's header.
pub fn packet(bytes: &[u8]) -> Value {
    let name = bytes.first().map_or_else(String::new, |ty| ucp::wire::PktType(*ty).to_string());
    json!({"type": name, "length": bytes.len(), "fields": fields(bytes)})
}

/// Fields that may repeat are lists.
pub fn fields(bytes: &[u8]) -> Value {
    let mut all = Map::new();
    for item in items(bytes) {
        let value = match item.value.parse::<u64>() {
            Ok(number) => number.into(),
            Err(_) => Value::from(item.value.trim_matches('"')),
        };
        match item.name {
            "rma_iov" | "read_iov" | "extra" => {
                let list = all.entry(item.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    list.push(value);
                }
            }
            name => {
                all.insert(name.into(), value);
            }
        }
    }
    all.into()
}
