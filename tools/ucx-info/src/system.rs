//! `-s`: processor, caches, memory, nodes, kernel, and how fast memory is copied, which takes a tenth of a
//! second.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::Serialize;
use tools_common::units::short_bytes;
use ucs::sys::topo::{self, Cache};
use ucs::sys::{CpuSet, cpu, host};
use ucs::time::ticks;

#[derive(Serialize)]
pub struct System {
    host: String,
    kernel: String,
    cpu_model: String,
    cpus: String,
    /// Counts per second of the cheapest clock.
    timer_hz: f64,
    page_size: usize,
    memory_available: Option<u64>,
    caches: Vec<Cache>,
    numa_nodes: Vec<Node>,
    copies: Copies,
}

#[derive(Serialize)]
struct Node {
    node: u32,
    cpus: String,
}

/// Copies of one size, from and to the caches that hold it.
#[derive(Serialize)]
struct Copy {
    bytes: usize,
    /// 2^20 bytes per second.
    mb_per_sec: f64,
}

#[derive(Serialize)]
pub struct Topology {
    cpus: String,
    caches: Vec<Cache>,
    numa_nodes: Vec<Node>,
}

pub fn topology() -> Topology {
    let numa_nodes = topo::numa_nodes().into_iter();
    Topology {
        cpus: CpuSet::allowed().unwrap_or_default().to_string(),
        caches: topo::caches(cpu::current()),
        numa_nodes: numa_nodes.map(|(node, cpus)| Node { node, cpus: cpus.to_string() }).collect(),
    }
}

#[derive(Serialize)]
#[serde(transparent)]
pub struct Copies(Vec<Copy>);

pub fn copies() -> Copies {
    Copies([4 << 10, 64 << 10, 1 << 20, 16 << 20].map(copy).into())
}

pub fn query() -> System {
    let Topology { cpus, caches, numa_nodes } = topology();
    System {
        host: host::hostname(),
        kernel: host::kernel(),
        cpu_model: topo::cpu_model(),
        cpus,
        timer_hz: timer(),
        page_size: rustix::param::page_size(),
        memory_available: ucs::mem::avail::available(),
        caches,
        numa_nodes,
        copies: copies(),
    }
}

fn timer() -> f64 {
    let (begun, counts) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(10));
    let counts = ticks().wrapping_sub(counts);
    counts as f64 / begun.elapsed().as_secs_f64()
}

/// The best of several rounds: interruptions are not the memory's.
fn copy(bytes: usize) -> Copy {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    let rounds = ((16 << 20) / bytes).max(1);
    let best = (0..4)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..rounds {
                black_box(&mut to).copy_from_slice(black_box(&from));
            }
            begun.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    Copy { bytes, mb_per_sec: (bytes * rounds) as f64 / best / 1048576.0 }
}

impl std::fmt::Display for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::new();
        writeln!(out, "# Host: {}", self.host)?;
        writeln!(out, "# Kernel: {}", self.kernel)?;
        writeln!(out, "# CPU model: {}", self.cpu_model)?;
        writeln!(out, "# CPUs of this process: {}", self.cpus)?;
        writeln!(out, "# Timer frequency: {:.3} MHz", self.timer_hz / 1e6)?;
        writeln!(out, "# Page size: {}", size(self.page_size as u64))?;
        if let Some(free) = self.memory_available {
            writeln!(out, "# Memory available: {}M", free >> 20)?;
        }
        write_topology(&mut out, &self.caches, &self.numa_nodes)?;
        write!(out, "{}", self.copies)?;
        f.write_str(&out)
    }
}

fn size(n: u64) -> String {
    short_bytes(usize::try_from(n).unwrap_or(usize::MAX))
}

fn write_topology(out: &mut impl Write, caches: &[Cache], nodes: &[Node]) -> std::fmt::Result {
    for c in caches {
        writeln!(out, "# Cache: level {} {} {}, cpus {}", c.level, c.kind, size(c.bytes), c.shared_by)?;
    }
    nodes.iter().try_for_each(|n| writeln!(out, "# NUMA node {}: cpus {}", n.node, n.cpus))
}

impl std::fmt::Display for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "# CPUs of this process: {}", self.cpus)?;
        write_topology(f, &self.caches, &self.numa_nodes)
    }
}

impl std::fmt::Display for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "# Memory copy bandwidth:")?;
        self.0
            .iter()
            .try_for_each(|c| writeln!(f, "# {:>12}: {:.2} MB/sec", short_bytes(c.bytes), c.mb_per_sec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_name_and_value() {
        let system = query();
        assert!(system.timer_hz > 1e6 && system.copies.0.iter().all(|c| c.mb_per_sec > 1.0));
        let text = system.to_string();
        assert!(text.lines().all(|l| l.starts_with("# ") && l.contains(':')), "{text}");
        assert!(text.contains("# CPUs of this process: "), "{text}");
    }
}
