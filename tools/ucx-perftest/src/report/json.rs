//! A result as a JSON object: figures and settings, so that it can be reproduced. Fields may be added; none
//! changes its name or meaning.

use serde::Serialize;

use super::TestResult;
use crate::spec::{Arrival, Layout, Memory, Pages, Passive, TagMatch, Target, Validate};

#[derive(Serialize)]
pub struct Object<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    test: &'static str,
    transport: &'a str,
    device: &'a str,
    data_path: &'a str,
    size: usize,
    iterations: u64,
    window: u32,
    validated: bool,
    latency_us: LatencyUs,
    bandwidth_mbs: f64,
    msg_rate: f64,
    /// Groups: traffic pattern, number of members, figures of each that sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "seats")]
    members: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    each: Vec<Each>,
    /// Upper bound, microseconds, and count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    histogram_us: Vec<(f64, u64)>,
    version: &'static str,
    percentile: Percentile,
    run: Run<'a>,
}

#[derive(Serialize)]
struct Percentile {
    rank: f64,
    us: f64,
}

/// Settings of the run.
#[derive(Serialize)]
struct Run<'a> {
    warmup: u64,
    /// As asked for; `data_path` is what was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recv_layout: Option<&'static str>,
    pieces: &'a [usize],
    stride: usize,
    header: usize,
    credits: u32,
    processes: usize,
    threads: u32,
    thread_mode: &'static str,
    /// By rank.
    cores: Vec<&'a str>,
    /// Waiting sides yield their core soon: there are fewer cores than sides.
    yields: bool,
    tls: &'a str,
    devices: &'a str,
    wait: &'static str,
    receive: &'static str,
    wildcard: bool,
    unexpected: bool,
    peer_errors: bool,
    idle_passive: bool,
    lazy_pages: bool,
    memory: &'static str,
    target: &'static str,
    copies: bool,
}

impl<'a> Run<'a> {
    fn of(done: &'a TestResult) -> Run<'a> {
        let spec = &done.spec;
        let here = done.members.last();
        Run {
            warmup: spec.warmup,
            layout: spec.layout.map(Layout::name),
            recv_layout: spec.recv_layout.map(Layout::name),
            pieces: &spec.pieces,
            stride: spec.stride,
            header: if spec.test.is_am() { spec.am_header } else { 0 },
            credits: spec.credits,
            processes: (done.members.len() / spec.threads.max(1) as usize).max(1),
            threads: spec.threads,
            // A worker always has one thread.
            thread_mode: spec.level.name(),
            cores: done.members.iter().map(|member| member.cores.as_str()).collect(),
            yields: done.members.iter().any(|member| member.yields),
            tls: here.map_or("", |member| &member.tls),
            devices: here.map_or("", |member| &member.devices),
            wait: spec.waiting.name(),
            receive: spec.receive.name(),
            wildcard: spec.tag_match == TagMatch::Any,
            unexpected: spec.arrival == Arrival::Unexpected,
            peer_errors: spec.peer_errors,
            idle_passive: spec.passive == Passive::Idle,
            lazy_pages: spec.pages == Pages::Lazy,
            memory: match spec.memory {
                Memory::Plain => "own",
                Memory::Allocated => "allocated",
                Memory::Registered => "registered",
            },
            target: match spec.target {
                Target::Allocated => "allocated",
                Target::Own => "own",
            },
            copies: spec.copies,
        }
    }
}

#[derive(Serialize)]
struct Each {
    #[serde(rename = "seat")]
    rank: usize,
    iterations: u64,
    avg_us: f64,
    msg_rate: f64,
}

/// Half a round trip, or time per message, microseconds.
#[derive(Serialize)]
struct LatencyUs {
    p50: f64,
    avg: f64,
    p99_9: f64,
}

pub fn object(done: &TestResult) -> Object<'_> {
    let f = done.figures();
    // Rounds away noise below any useful difference.
    let round = |v: f64| (v * 1e4).round() / 1e4;
    let group = done.group.as_ref();
    let reading = group.map_or(done.reading, |group| group.reading);
    let each = |(rank, iterations, seconds): &(usize, u64, f64)| Each {
        rank: *rank,
        iterations: *iterations,
        avg_us: round(seconds / *iterations as f64 * 1e6),
        msg_rate: (*iterations as f64 / seconds).round(),
    };
    Object {
        label: done.spec.label(),
        test: done.spec.test.name(),
        transport: &done.path.transport,
        device: &done.path.device,
        data_path: &done.path.data_path,
        size: done.spec.size(),
        iterations: done.iters(),
        window: done.spec.window,
        validated: done.spec.validate == Validate::Yes,
        latency_us: LatencyUs {
            p50: round(reading.p50 * 1e6),
            avg: round(f.overall),
            p99_9: round(reading.p99_9 * 1e6),
        },
        bandwidth_mbs: round(f.overall_bw),
        msg_rate: f.overall_rate.round(),
        pattern: group.map(|group| group.pattern.name()),
        members: group.map(|group| group.members),
        each: group.map_or_else(Vec::new, |group| group.each.iter().map(each).collect()),
        histogram_us: done.hist.iter().map(|bin| (round(bin.upto * 1e6), bin.count)).collect(),
        version: env!("CARGO_PKG_VERSION"),
        percentile: Percentile { rank: done.spec.rank, us: round(reading.rank * 1e6) },
        run: Run::of(done),
    }
}
