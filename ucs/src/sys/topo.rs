//! Topology of the machine from `/proc` and `/sys`. Never fails: unknown facts are absent.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::cpu::CpuSet;

/// One cache as seen by a cpu.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1, 2, 3.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Cpus that share it, as a list.
    pub shared_by: String,
}

/// Name of the processor; empty when unknown.
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':'))
            .map(|v| v.trim().to_owned())
    };
    field("model name").or_else(|| field("CPU part")).unwrap_or_default()
}

/// Numa node of a cpu.
pub fn numa_node(cpu: usize) -> Option<u32> {
    fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}"))
        .ok()?
        .flatten()
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// Numa nodes with their cpus, ascending; empty where the kernel has no numa support.
pub fn numa_nodes() -> Vec<(u32, CpuSet)> {
    let mut nodes: Vec<(u32, CpuSet)> = fs::read_dir("/sys/devices/system/node")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            Some((node, CpuSet::parse(&cpus).ok()?))
        })
        .collect();
    nodes.sort_by_key(|(node, _)| *node);
    nodes
}

/// Caches of a cpu, innermost first.
pub fn caches(cpu: usize) -> Vec<Cache> {
    caches_in(Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}/cache")))
}

fn caches_in(dir: &Path) -> Vec<Cache> {
    let mut all: Vec<Cache> = (0..16)
        .map_while(|n| {
            let dir = dir.join(format!("index{n}"));
            let text = |name: &str| fs::read_to_string(dir.join(name)).ok().map(|s| s.trim().to_owned());
            Some(Cache {
                level: text("level")?.parse().ok()?,
                kind: text("type")?,
                bytes: crate::config::parse_size(&text("size")?)?,
                shared_by: text("shared_cpu_list").unwrap_or_default(),
            })
        })
        .collect();
    all.sort_by_key(|c| c.level);
    all
}

/// True when two cpus are threads of one core (their innermost data caches are one and the same).
pub fn same_core(a: usize, b: usize) -> bool {
    let siblings = |cpu: usize| {
        let text =
            fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        text.ok().and_then(|t| CpuSet::parse(&t).ok())
    };
    a == b || siblings(a).is_some_and(|s| s.contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_caches_innermost_first() {
        let dir = std::env::temp_dir().join(format!("ucs-topo-{}", std::process::id()));
        for (n, level, kind, size) in [(0, 2, "Unified", "1024K"), (1, 1, "Data", "48K")] {
            let dir = dir.join(format!("index{n}"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("level"), format!("{level}\n")).unwrap();
            fs::write(dir.join("type"), format!("{kind}\n")).unwrap();
            fs::write(dir.join("size"), format!("{size}\n")).unwrap();
        }
        let all = caches_in(&dir);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(all.iter().map(|c| (c.level, c.bytes)).collect::<Vec<_>>(), [(1, 49152), (2, 1 << 20)]);
    }

    #[test]
    fn absent_cpus_have_no_facts() {
        assert_eq!(numa_node(60_000), None);
        assert!(caches(60_000).is_empty());
        assert!(!same_core(60_000, 60_001) && same_core(0, 0));
        let _ = (cpu_model(), numa_nodes());
    }
}
