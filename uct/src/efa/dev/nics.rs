//! EFA NICs as sysfs shows them, and why one cannot be used. Needs no library and opens no device.

use super::Problem;
use crate::api::{Locality, ResourcePerf};
use std::path::{Path, PathBuf};
use ucs::sys::CpuSet;

const AMAZON: u32 = 0x1d0f;
const EFA_PARTS: std::ops::RangeInclusive<u32> = 0xefa0..=0xefaf;

/// Latency of a short message, ns: the order of published figures.
pub(super) const LATENCY: f64 = 7000.0;
/// CPU time for a message, ns.
pub(super) const OVERHEAD: f64 = 150.0;
/// Link speed where sysfs does not tell it, bits per second.
const DEFAULT_BPS: f64 = 100e9;

/// An EFA function on the PCI bus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nic {
    /// PCI address, such as `0000:00:1f.0`.
    pub pci: String,
    /// PCI device: 0xefa0 to 0xefa4 so far.
    pub part_id: u32,
    /// Name of its RDMA device, such as `rdmap0s31`, if a driver made one.
    pub rdma: Option<String>,
    /// Reason why this process cannot use it; `None`: none that the kernel shows.
    pub problem: Option<Problem>,
}

fn number(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Whether the `vendor` and `device` files of a PCI function name an EFA.
pub(super) fn is_efa(vendor: &str, device: &str) -> bool {
    number(vendor) == Some(AMAZON) && number(device).is_some_and(|part| EFA_PARTS.contains(&part))
}

fn is_usable(node: &Path) -> bool {
    rustix::fs::access(node, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK).is_ok()
}

/// EFA functions of this machine, by PCI address.
pub fn list() -> Vec<Nic> {
    scan(Path::new("/sys"), Path::new("/dev"))
}

/// EFA functions shown by the given sysfs and /dev.
pub fn scan(sys: &Path, dev: &Path) -> Vec<Nic> {
    let Ok(entries) = std::fs::read_dir(sys.join("bus/pci/devices")) else { return Vec::new() };
    let mut all: Vec<Nic> = entries.flatten().filter_map(|e| probe_function(&e.path(), dev)).collect();
    all.sort_by(|a, b| a.pci.cmp(&b.pci));
    all
}

/// Estimates for an RDMA device, such as `rdmap0s31`, and where it is. Opens nothing.
pub fn describe(rdma: &str) -> (ResourcePerf, Locality) {
    describe_in(Path::new("/sys"), rdma)
}

fn describe_in(sys: &Path, rdma: &str) -> (ResourcePerf, Locality) {
    let dir = sys.join("class/infiniband").join(rdma);
    let read = |file| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
    // Such as `100 Gb/sec (4X EDR)`.
    let rate = read("ports/1/rate");
    let gigabits =
        rate.split(' ').next().and_then(|rate| rate.parse::<f64>().ok()).filter(|rate| *rate > 0.0);
    let bandwidth = gigabits.map_or(DEFAULT_BPS, |rate| rate * 1e9) / 8.0;
    let cpus = CpuSet::parse(&read("device/local_cpulist")).ok().filter(|cpus| !cpus.is_empty());
    // -1: the machine has no nodes.
    let locality = Locality { numa_node: read("device/numa_node").trim().parse().ok(), cpus };
    (ResourcePerf::new(LATENCY, OVERHEAD, bandwidth), locality)
}

fn first_entry(dir: PathBuf) -> Option<String> {
    let names = std::fs::read_dir(dir).ok()?.flatten();
    names.filter_map(|e| e.file_name().into_string().ok()).min()
}

fn probe_function(function: &Path, dev: &Path) -> Option<Nic> {
    let read = |file| std::fs::read_to_string(function.join(file)).unwrap_or_default();
    let (vendor, device) = (read("vendor"), read("device"));
    if !is_efa(&vendor, &device) {
        return None;
    }
    let rdma = first_entry(function.join("infiniband"));
    let problem = if !function.join("driver").exists() {
        Some(("no driver is bound to it".into(), "load the `efa` kernel module"))
    } else if rdma.is_none() {
        Some(("its driver made no RDMA device".into(), "see the kernel's log"))
    } else if let Some(node) = first_entry(function.join("infiniband_verbs")) {
        let node = dev.join("infiniband").join(node);
        match (node.exists(), is_usable(&node)) {
            (false, _) => {
                Some((format!("{} is missing", node.display()), "in a container, pass the device in"))
            }
            (_, false) => {
                let what = format!("{} may not be opened by this user", node.display());
                Some((what, "see its owner, group and mode"))
            }
            _ => None,
        }
    } else {
        Some(("user space cannot reach it".into(), "load the `ib_uverbs` kernel module"))
    };
    let problem = problem.map(|(what, remedy)| Problem { what, remedy });
    let pci = function.file_name()?.to_str()?.to_owned();
    Some(Nic { pci, part_id: number(&device)?, rdma, problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct FakeSysfs(PathBuf);

    impl FakeSysfs {
        fn new(name: &str) -> FakeSysfs {
            let root = std::env::temp_dir().join(format!("efa-nics-{}-{name}", std::process::id()));
            fs::create_dir_all(root.join("sys/bus/pci/devices")).unwrap();
            FakeSysfs(root)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn scan(&self) -> Vec<Nic> {
            scan(&self.0.join("sys"), &self.0.join("dev"))
        }
    }

    impl Drop for FakeSysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_missing_step_is_named() {
        let sysfs = FakeSysfs::new("steps");
        assert_eq!(sysfs.scan(), []);
        let pci = "sys/bus/pci/devices/0000:00:1f.0";
        sysfs.put("sys/bus/pci/devices/0000:00:05.0/vendor", "0x1d0f\n");
        sysfs.put("sys/bus/pci/devices/0000:00:05.0/device", "0xec20\n");
        sysfs.put(&format!("{pci}/vendor"), "0x1d0f\n");
        sysfs.put(&format!("{pci}/device"), "0xefa2\n");
        let problem = |has: &str| {
            let [nic] = &sysfs.scan()[..] else { panic!("one EFA, and a card that is none") };
            assert_eq!((&*nic.pci, nic.part_id), ("0000:00:1f.0", 0xefa2));
            assert!(nic.problem.as_ref().is_some_and(|o| o.to_string().contains(has)), "{nic:?}");
        };
        problem("`efa` kernel module");
        sysfs.put(&format!("{pci}/driver/x"), "");
        problem("no RDMA device");
        sysfs.put(&format!("{pci}/infiniband/rdmap0s31/x"), "");
        problem("`ib_uverbs` kernel module");
        sysfs.put(&format!("{pci}/infiniband_verbs/uverbs0/x"), "");
        problem("uverbs0 is missing");
        sysfs.put("dev/infiniband/uverbs0", "");
        let [nic] = &sysfs.scan()[..] else { panic!("one EFA") };
        assert_eq!((nic.rdma.as_deref(), &nic.problem), (Some("rdmap0s31"), &None));
    }

    #[test]
    fn speed_and_place_are_read_from_sysfs() {
        let sysfs = FakeSysfs::new("place");
        let device = "sys/class/infiniband/rdmap0s31";
        sysfs.put(&format!("{device}/ports/1/rate"), "200 Gb/sec (4X HDR)\n");
        sysfs.put(&format!("{device}/device/numa_node"), "1\n");
        sysfs.put(&format!("{device}/device/local_cpulist"), "4-7,12\n");
        let (perf, locality) = describe_in(&sysfs.0.join("sys"), "rdmap0s31");
        assert_eq!((perf.bandwidth, perf.latency), (25e9, LATENCY));
        assert_eq!(locality, Locality { numa_node: Some(1), cpus: CpuSet::parse("4-7,12").ok() });
        sysfs.put(&format!("{device}/device/numa_node"), "-1\n");
        assert_eq!(describe_in(&sysfs.0.join("sys"), "rdmap0s31").1.numa_node, None);
        assert_eq!(describe_in(&sysfs.0.join("sys"), "mlx5_0").1, Locality::default());
    }

    #[test]
    fn a_machine_without_pci_has_none() {
        assert_eq!(scan(Path::new("/nonexistent"), Path::new("/nonexistent")), []);
        assert!(!is_efa("0x15b3", "0xefa0") && !is_efa("", "") && is_efa("0x1d0f\n", "0xefa0"));
    }
}
