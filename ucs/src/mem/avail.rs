//! Upper bound of the memory available now. Asked before filling a large shared segment: memory files have no
//! limit of their own, so overfilling ends in the OOM killer.

use std::fs;
use std::path::Path;

/// Bytes that machine and control groups (version 2) could still give; `None` when unknown.
pub fn available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| machine(&text));
    let group = group_path(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
        .and_then(|path| groups(Path::new("/sys/fs/cgroup"), &path));
    [machine, group].into_iter().flatten().min()
}

fn machine(meminfo: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(field("MemAvailable")? + field("SwapFree").unwrap_or(0))
}

fn group_path(text: &str) -> Option<String> {
    Some(text.lines().find_map(|l| l.strip_prefix("0::/"))?.to_owned())
}

/// Least headroom of the group and its ancestors; file cache that can be dropped counts as room.
fn groups(mount: &Path, group: &str) -> Option<u64> {
    let room = |dir: &Path| {
        let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cache = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")?.parse().ok()).unwrap_or(0);
        Some((number("memory.max")? + cache).saturating_sub(number("memory.current")?))
    };
    let dir = mount.join(group);
    dir.ancestors().take_while(|d| d.starts_with(mount)).filter_map(room).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_meminfo() {
        let text = "MemTotal: 100 kB\nMemAvailable:   7 kB\nSwapFree: 1 kB\n";
        assert_eq!(machine(text), Some(8192));
        assert_eq!(machine("MemTotal: 100 kB\n"), None);
        assert!(available().unwrap() > 1 << 20);
    }

    #[test]
    fn the_tightest_group_counts() {
        assert_eq!(group_path("1:cpu:/x\n0::/a/b\n").as_deref(), Some("a/b"));
        let mount = std::env::temp_dir().join(format!("ucs-avail-{}", std::process::id()));
        let dir = mount.join("a/b");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("memory.max"), "max\n").unwrap();
        fs::write(mount.join("a/memory.max"), "1000\n").unwrap();
        fs::write(mount.join("a/memory.current"), "900\n").unwrap();
        fs::write(mount.join("a/memory.stat"), "anon 5\ninactive_file 50\n").unwrap();
        let room = groups(&mount, "a/b");
        fs::remove_dir_all(&mount).unwrap();
        assert_eq!(room, Some(150));
    }
}
