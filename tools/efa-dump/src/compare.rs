//! Compares the packets of two captures, direction by direction, without times, ids, addresses and keys.

use std::collections::{BTreeMap, BTreeSet};

use similar::{ChangeTag, TextDiff};
use tools_common::out;
use ucp::wire::items;

use crate::flow::without_duplicates;
use crate::record::{Names, Record};

/// Fields that differ between any two runs.
const IDS: &[&str] = &["send_id", "recv_id", "op_id", "connid", "raw_addr", "host_id", "pad", "reserved"];

/// Prints the differences; returns whether there are none. Ends are matched by order of appearance.
pub fn print(a: &[Record], b: &[Record]) -> bool {
    let (a, b) = (directions(a), directions(b));
    let both: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let (mut same, mut packets) = (true, 0);
    for direction in both {
        let none = Vec::new();
        let (a, b) = (a.get(direction).unwrap_or(&none), b.get(direction).unwrap_or(&none));
        packets += a.len().max(b.len());
        if a == b {
            continue;
        }
        same = false;
        out::line(format!("# {direction}: {} and {} packets", a.len(), b.len()));
        let a: Vec<&str> = a.iter().map(String::as_str).collect();
        let b: Vec<&str> = b.iter().map(String::as_str).collect();
        for change in TextDiff::from_slices(&a, &b).iter_all_changes() {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => continue,
            };
            out::line(format!("{sign} {}", change.value()));
        }
    }
    if same {
        out::line(format!("# no difference in {packets} packets"));
    }
    same
}

/// Packets of each direction, as text.
fn directions(records: &[Record]) -> BTreeMap<String, Vec<String>> {
    let names = Names::of(records);
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for record in without_duplicates(records).map(|nth| &records[nth]).filter(|r| r.arrived()) {
        let direction = format!("{} > {}", names.name(&record.from), names.name(&record.to));
        all.entry(direction).or_default().push(plain(record));
    }
    all
}

/// A packet without fields that differ between any two runs.
fn plain(record: &Record) -> String {
    let mut text = record.name();
    if record.packet().is_none() {
        return format!("{text} {} bytes", record.len);
    }
    for item in items(&record.bytes) {
        match item.name {
            name if IDS.contains(&name) => {}
            // Address, length and key: "0x10+5@0x7".
            "rma_iov" | "read_iov" => {
                let len = item.value.split(['+', '@']).nth(1).unwrap_or_default();
                text += &format!(" {}={len} bytes", item.name);
            }
            name => text += &format!(" {name}={}", item.value),
        }
    }
    text
}
