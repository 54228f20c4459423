//! The checks of `--doctor`: each returns what it found, and what to do about it.

use tools_common::units::short_bytes;
use ucs::config::Source;
use ucs::mem::SharedMem;
use ucs::mem::watch::Watch;
use ucs::sys::{cpu, topo};
use uct::efa::dev::nics::{self, Nic};
use uct::efa::dev::soft::permissions;

use super::Finding;
use super::machine::Machine;

/// Checks the machine and the limits of this process.
pub fn machine(m: &Machine) -> Vec<Finding> {
    let all = [
        build,
        cores,
        governor,
        clock,
        load,
        numa,
        kernel,
        memory,
        memory_files,
        file_size,
        descriptors,
        memlock,
        huge_pages,
        dev_shm,
        ptrace,
        system_calls,
        copies,
        unmapped_memory,
        pinning,
        hardware,
        launcher,
    ];
    all.iter().filter_map(|check| check(m)).collect()
}

fn build(m: &Machine) -> Option<Finding> {
    Some(match m.is_debug {
        false => Finding::good("build", "release"),
        true => Finding::slow("build", "debug", "measure with a release build: cargo build --release"),
    })
}

fn cores(m: &Machine) -> Option<Finding> {
    let found = format!("this process may run on {} ({})", m.cpus.len(), m.cpus);
    let cpus = m.cpus.as_slice();
    let apart = cpus.iter().skip(1).any(|cpu| !topo::same_core(cpus[0], *cpu));
    Some(match (cpus.len(), apart) {
        (0 | 1, _) => Finding::slow(
            "cores",
            found,
            "two processes that poll share one core: allow two (taskset, --cpus of the container)",
        ),
        (_, false) => Finding::slow(
            "cores",
            format!("{found}, threads of one core"),
            "measure on a machine with two cores",
        ),
        _ => Finding::good("cores", found),
    })
}

fn governor(m: &Machine) -> Option<Finding> {
    let of = |cpu: &usize| m.text(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"));
    let mut all: Vec<String> = m.cpus.as_slice().iter().filter_map(of).collect();
    all.sort();
    all.dedup();
    Some(match all.iter().find(|g| *g != "performance") {
        _ if all.is_empty() => {
            Finding::good("cpu governor", "none to choose (virtual machine, or fixed frequency)")
        }
        None => Finding::good("cpu governor", "performance"),
        Some(_) => Finding::slow(
            "cpu governor",
            all.join(", "),
            "clocks change while you measure: cpupower frequency-set -g performance",
        ),
    })
}

fn clock(m: &Machine) -> Option<Finding> {
    let source = m.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    Some(match source.as_str() {
        "tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page" => {
            Finding::good("clock", source)
        }
        _ => Finding::slow(
            "clock",
            source,
            "reading the time is a system call: boot with clocksource=tsc if it is stable",
        ),
    })
}

fn load(m: &Machine) -> Option<Finding> {
    let text = m.text("/proc/loadavg")?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    let found = format!("{load} processes want to run");
    let room = (m.cpus.len() as f64 - 1.5).max(0.5);
    Some(if load <= room {
        Finding::good("load", found)
    } else {
        Finding::slow(
            "load",
            found,
            "others take cores away: figures scatter; compare medians of several runs",
        )
    })
}

fn numa(m: &Machine) -> Option<Finding> {
    let nodes = m.names("/sys/devices/system/node").iter().filter(|n| is_numbered(n, "node")).count();
    let balancing = m.number("/proc/sys/kernel/numa_balancing").unwrap_or(0);
    Some(match (nodes, balancing) {
        (0 | 1, _) => Finding::good("numa", "one node"),
        (n, 0) => Finding::good("numa", format!("{n} nodes, balancing off")),
        (n, _) => Finding::slow(
            "numa",
            format!("{n} nodes, balancing on"),
            "the kernel moves pages under the transports: sysctl kernel.numa_balancing=0",
        ),
    })
}

fn kernel(m: &Machine) -> Option<Finding> {
    let text = m.text("/proc/sys/kernel/osrelease")?;
    let mut numbers = text.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    Some(match version {
        (5, 3..) | (6.., _) => Finding::good("kernel", text),
        _ => {
            Finding::bad("kernel", text, "Linux 5.3 is the oldest that can watch a peer process (pidfd_open)")
        }
    })
}

fn memory(m: &Machine) -> Option<Finding> {
    let free = m.memory?;
    let found = format!("{} available", short(free));
    Some(if free >= 256 << 20 {
        Finding::good("memory", found)
    } else {
        Finding::bad(
            "memory",
            found,
            "free some, or raise the container's limit: segments of shared memory are checked against it",
        )
    })
}

fn memory_files(_: &Machine) -> Option<Finding> {
    Some(match SharedMem::create("ucx-info doctor", 4096, Default::default()) {
        Ok(_) => Finding::good("memory files", "memfd_create and sealing work"),
        Err(e) => Finding::bad("memory files", e.to_string(), "posix and the software EFA device need them"),
    })
}

fn file_size(m: &Machine) -> Option<Finding> {
    Some(match m.file_size {
        None => Finding::good("file size", "unlimited"),
        Some(n) if n >= 1 << 30 => Finding::good("file size", format!("up to {}", short(n))),
        Some(n) => Finding::bad(
            "file size",
            format!("files may have {}", short(n)),
            "it bounds shared memory too: ulimit -f unlimited",
        ),
    })
}

fn descriptors(m: &Machine) -> Option<Finding> {
    Some(match m.files {
        None => Finding::good("descriptors", "unlimited"),
        Some(n) if n >= 1024 => Finding::good("descriptors", format!("up to {n}")),
        Some(n) => Finding::slow(
            "descriptors",
            format!("up to {n}"),
            "each peer takes some: ulimit -n 65536 for many peers",
        ),
    })
}

fn memlock(m: &Machine) -> Option<Finding> {
    Some(match m.memlock {
        None => Finding::good("locked memory", "unlimited"),
        Some(n) if n >= 64 << 20 => Finding::good("locked memory", format!("up to {}", short(n))),
        Some(n) => Finding::slow(
            "locked memory",
            format!("up to {}", short(n)),
            "EFA hardware pins what is registered: ulimit -l unlimited (shared memory and the software device pin nothing)",
        ),
    })
}

fn huge_pages(m: &Machine) -> Option<Finding> {
    let size = m.meminfo("Hugepagesize").map_or(0, |kb| kb << 10);
    let free = m.meminfo("HugePages_Free").unwrap_or(0);
    let thp = m.text("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let thp = thp
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("none", |(word, _)| word)
        .to_owned();
    let found = format!("{free} of {} reserved and free; transparent: {thp}", short(size));
    Some(if free > 0 || thp == "always" || thp == "madvise" {
        Finding::good("huge pages", found)
    } else {
        let advice = "large buffers miss the TLB: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        Finding::slow("huge pages", found, advice)
    })
}

fn dev_shm(m: &Machine) -> Option<Finding> {
    // This library does not use it; others on the machine do.
    let free = m.dev_shm.map_or("not there".into(), |n| format!("{} free", short(n)));
    Some(Finding::good("/dev/shm", format!("{free}; not used by this library")))
}

fn ptrace(m: &Machine) -> Option<Finding> {
    let scope = m.number("/proc/sys/kernel/yama/ptrace_scope").unwrap_or(0);
    Some(match scope {
        0 => Finding::good("ptrace scope", "0: processes of one user may read each other's memory"),
        1 => Finding::good("ptrace scope", "1: transport cma lets its peers in (UCX_CMA_ALLOW_PEERS)"),
        n => Finding::slow(
            "ptrace scope",
            format!("{n}: a process may not read or write another's memory by system call"),
            "puts, gets and long messages in memory that is not allocated by this library go by packets: sysctl kernel.yama.ptrace_scope=1",
        ),
    })
}

/// Tries what the transports between processes call.
fn system_calls(_: &Machine) -> Option<Finding> {
    let refused = permissions::refused_calls();
    Some(match refused.first() {
        None => Finding::good("system calls", "none that messages need is refused"),
        Some(first) => {
            let all: Vec<&str> = refused.iter().map(|problem| problem.what.as_str()).collect();
            Finding::bad("system calls", all.join("; "), first.remedy)
        }
    })
}

/// Tries the copy by which `cma` and the software device reach memory that is not shared.
fn copies(_: &Machine) -> Option<Finding> {
    Some(match permissions::refused_copy() {
        None => Finding::good("copies", "process_vm_readv works"),
        Some(problem) => Finding::slow(
            "copies",
            problem.what,
            format!("memory that this library did not allocate goes by packets: {}", problem.remedy),
        ),
    })
}

/// Tries what tells the registration cache of memory that is given back.
fn unmapped_memory(_: &Machine) -> Option<Finding> {
    Some(match Watch::open() {
        Ok(_) => Finding::good("unmapped memory", "userfaultfd tells of it"),
        Err(errno) => Finding::slow(
            "unmapped memory",
            format!("userfaultfd: {errno}"),
            "long messages are registered each time, not cached: allow userfaultfd, and sysctl vm.unprivileged_userfaultfd=1",
        ),
    })
}

/// Pins a thread of its own, as perftest pins its processes.
fn pinning(m: &Machine) -> Option<Finding> {
    let cpu = *m.cpus.as_slice().first()?;
    let pinned = std::thread::spawn(move || cpu::pin(cpu)).join().ok()?;
    let advice = "processes run where the system puts them, and figures scatter: allow sched_setaffinity";
    Some(match pinned {
        Ok(()) => Finding::good("pinning", "threads may be pinned to cores"),
        Err(e) => Finding::slow("pinning", e.to_string(), advice),
    })
}

fn hardware(m: &Machine) -> Option<Finding> {
    let nics = nics::scan(&m.root.join("sys"), &m.root.join("dev"));
    let name = |nic: &Nic| nic.rdma.clone().unwrap_or_else(|| nic.pci.clone());
    let names = nics.iter().map(name).collect::<Vec<_>>().join(", ");
    let stuck = nics.iter().find_map(|nic| Some((nic, nic.problem.clone()?)));
    Some(match stuck {
        _ if nics.is_empty() => Finding::good("EFA hardware", "none; the software device stands in"),
        Some((nic, problem)) => {
            Finding::bad("EFA hardware", format!("{}: {}", name(nic), problem.what), problem.remedy)
        }
        None if !cfg!(feature = "verbs") => Finding::bad(
            "EFA hardware",
            format!("{names}; not used by this build"),
            "build with --features verbs",
        ),
        None => Finding::good("EFA hardware", names),
    })
}

fn launcher(m: &Machine) -> Option<Finding> {
    let found = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/local/lib",
    ]
    .iter()
    .find(|dir| m.names(dir).iter().any(|n| n.starts_with("libpmix.so")));
    Some(match found {
        Some(dir) => Finding::good("launcher", format!("libpmix in {dir}")),
        None => Finding::good(
            "launcher",
            "no libpmix where it usually is: mpirun and srun need it, nothing else does",
        ),
    })
}

/// Opens each transport on each device.
pub fn transports(source: &Source) -> Vec<Finding> {
    let all = match uct::any::resources(source) {
        Ok(all) => all,
        Err(e) => return vec![Finding::bad("transports", e.to_string(), "none can be used")],
    };
    all.iter()
        .map(|r| {
            let name = format!("{}/{}", r.tl, r.dev);
            match uct::any::open(r.tl, &r.dev, source) {
                Ok(_) => Finding::good("transport", format!("{name} opens")),
                Err(e) => Finding::bad(
                    "transport",
                    format!("{name}: {e}"),
                    "what the line says; UCX_TLS leaves it out",
                ),
            }
        })
        .collect()
}

fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// A size rounded down to three digits.
fn short(bytes: u64) -> String {
    let unit = bytes.checked_ilog2().map_or(0, |bits| bits / 10 * 10);
    let exact = short_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
    match unit {
        0 => exact,
        _ => short_bytes(((bytes >> unit) as usize) << unit),
    }
}

#[cfg(test)]
mod tests;
