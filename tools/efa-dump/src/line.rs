//! Packets as text: one line each, or one line per field, with violations below.

use tools_common::out;
use ucp::wire::Print;
use uct::efa::dev::soft::capture::{Direction, WireOp};

use crate::check::Report;
use crate::record::{Names, Record};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    Line,
    Fields,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    All,
    Bad,
}

pub fn print(records: &[Record], names: &Names, report: &Report, detail: Detail, filter: Filter) {
    print_legend(names);
    let start = records.first().map_or(0, |r| r.time);
    for (nth, record) in records.iter().enumerate() {
        let findings = report.of(nth);
        if filter == Filter::Bad && findings.is_empty() {
            continue;
        }
        out::line(format!("{:>6} {}", nth + 1, line(record, start, names, detail)));
        for finding in findings {
            out::line(format!("       ! {finding}"));
        }
    }
    print_summary(records.len(), report);
}

/// Prints the letters that stand for queue pairs.
pub fn print_legend(names: &Names) {
    for (end, name) in names.iter() {
        out::line(format!("# {name} = {end}"));
    }
}

/// Prints violations that belong to no packet, and the count of all.
pub fn print_summary(packets: usize, report: &Report) {
    for finding in report.at_end() {
        out::line(format!("       ! {finding}"));
    }
    out::line(format!("# {packets} packets, {} violations", report.count()));
}

pub fn line(record: &Record, start: u64, names: &Names, detail: Detail) -> String {
    let time = record.time.saturating_sub(start);
    let (from, to) = (names.name(&record.from), names.name(&record.to));
    let seen = match record.direction {
        Direction::Out => "out",
        Direction::In => "in ",
    };
    let what = match (record.packet(), detail) {
        (Some(_), Detail::Line) => Print(&record.bytes).to_string(),
        (Some(_), Detail::Fields) => format!("{:#}", Print(&record.bytes)),
        (None, _) if record.headerless => format!("{}, {} bytes", record.name(), record.len),
        (None, _) => match record.op {
            WireOp::Send => format!("{} of {} bytes, not captured", record.name(), record.len),
            WireOp::Read | WireOp::Write => {
                let (addr, key) = record.remote;
                format!("{} {} bytes at {addr:#x} key={key:#x}", record.name(), record.len)
            }
        },
    };
    let imm = record.imm.map(|imm| format!(" imm={imm:#x}")).unwrap_or_default();
    let status = if record.arrived() { String::new() } else { format!(" FAILED: {}", record.status_name()) };
    format!(
        "{:>4}.{:09} {seen} {from} > {to}  {what}{imm}{status}",
        time / 1_000_000_000,
        time % 1_000_000_000
    )
}
