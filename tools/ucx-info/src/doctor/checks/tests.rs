use super::super::Verdict;
use super::*;
use std::fs;
use ucs::sys::CpuSet;

struct FakeMachine(Machine);

impl FakeMachine {
    fn new(name: &str, files: &[(&str, &str)]) -> FakeMachine {
        let root = std::env::temp_dir().join(format!("ucx-info-doctor-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        let m = Machine {
            root,
            cpus: CpuSet::parse("0-3").unwrap(),
            files: Some(1024),
            memlock: None,
            file_size: None,
            memory: Some(1 << 34),
            dev_shm: Some(1 << 30),
            is_debug: false,
        };
        FakeMachine(m)
    }

    fn find(&self, check: &str) -> Finding {
        let all = machine(&self.0);
        all.into_iter().find(|f| f.check == check).unwrap_or_else(|| panic!("no check of {check}"))
    }

    fn expect(&self, check: &str, verdict: Verdict, words: &str) {
        let f = self.find(check);
        assert_eq!(f.verdict, verdict, "{f:?}");
        assert!(f.found.contains(words) || f.advice.contains(words), "{f:?}");
        assert_eq!(f.advice.is_empty(), verdict == Verdict::Good, "{f:?}");
    }
}

impl Drop for FakeMachine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0.root);
    }
}

#[test]
fn good_machine_passes_all_checks() {
    let m = FakeMachine::new(
        "good",
        &[
            ("proc/sys/kernel/osrelease", "6.1.0-18-amd64"),
            ("proc/sys/kernel/yama/ptrace_scope", "0"),
            ("proc/loadavg", "0.10 0.2 0.3 1/100 42"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
        ],
    );
    for f in machine(&m.0) {
        // These two depend on the machine that runs the test.
        if f.check != "cores" && f.check != "memory files" {
            assert_eq!((f.verdict, f.advice.as_str()), (Verdict::Good, ""), "{f:?}");
        }
    }
}

#[test]
fn slow_features_have_a_remedy() {
    let mut m = FakeMachine::new(
        "slow",
        &[
            ("proc/sys/kernel/yama/ptrace_scope", "2"),
            ("proc/sys/kernel/numa_balancing", "1"),
            ("proc/loadavg", "7.50 0 0 1/1 1"),
            ("proc/meminfo", "HugePages_Free:        0\nHugepagesize:       2048 kB"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
            ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave"),
            ("sys/devices/system/node/node0/cpulist", "0-1"),
            ("sys/devices/system/node/node1/cpulist", "2-3"),
            ("sys/devices/system/node/possible", "0-1"),
        ],
    );
    m.0.files = Some(256);
    m.0.memlock = Some(65536);
    m.0.is_debug = true;
    m.expect("ptrace scope", Verdict::Slow, "ptrace_scope=1");
    m.expect("numa", Verdict::Slow, "2 nodes, balancing on");
    m.expect("load", Verdict::Slow, "7.5 processes");
    m.expect("huge pages", Verdict::Slow, "0 of 2M reserved and free; transparent: never");
    m.expect("clock", Verdict::Slow, "hpet");
    m.expect("cpu governor", Verdict::Slow, "powersave");
    m.expect("descriptors", Verdict::Slow, "ulimit -n");
    m.expect("locked memory", Verdict::Slow, "up to 64K");
    m.expect("build", Verdict::Slow, "--release");
    m.0.cpus = CpuSet::parse("0").unwrap();
    m.expect("cores", Verdict::Slow, "this process may run on 1 (0)");
}

#[test]
fn missing_features_fail() {
    let mut m = FakeMachine::new(
        "bad",
        &[
            ("proc/sys/kernel/osrelease", "4.18.0-305.el8"),
            ("sys/bus/pci/devices/0000:00:06.0/vendor", "0x1d0f"),
            ("sys/bus/pci/devices/0000:00:06.0/device", "0xefa1"),
            ("sys/bus/pci/devices/0000:00:06.0/driver/module", ""),
            ("sys/bus/pci/devices/0000:00:06.0/infiniband/rdmap0s6/node_guid", "0"),
            ("sys/bus/pci/devices/0000:00:06.0/infiniband_verbs/uverbs0/dev", "231:192"),
        ],
    );
    m.0.memory = Some(100 << 20);
    m.0.file_size = Some(51200);
    m.expect("kernel", Verdict::Bad, "Linux 5.3");
    m.expect("memory", Verdict::Bad, "100M available");
    m.expect("file size", Verdict::Bad, "ulimit -f");
    m.expect("EFA hardware", Verdict::Bad, "dev/infiniband/uverbs0 is missing");
}

#[test]
fn transport_that_does_not_open_has_a_reason() {
    let all = transports(&Source::empty().with("UCX_POSIX_FIFO_SIZE", "lots"));
    let posix = all.iter().find(|f| f.found.starts_with("posix/memory")).unwrap();
    assert_eq!(posix.verdict, Verdict::Bad);
    assert!(posix.found.contains("UCX_POSIX_FIFO_SIZE=lots"), "{posix:?}");
    assert!(all.iter().any(|f| f.found == "self/memory opens" && f.verdict == Verdict::Good));
}

#[test]
fn sizes_are_short() {
    assert_eq!([0, 100, 65536, 65537, (5 << 30) + 17].map(short), ["0", "100", "64K", "64K", "5G"]);
}
