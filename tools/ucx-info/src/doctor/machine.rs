//! Files of the system below a root, which tests can replace, and limits of this process.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};
use ucs::sys::CpuSet;

pub struct Machine {
    /// Replaces `/`.
    pub root: PathBuf,
    pub cpus: CpuSet,
    /// Limit of open files; `None` is no limit.
    pub files: Option<u64>,
    /// Limit of locked memory, bytes.
    pub memlock: Option<u64>,
    /// Limit of a file's size, bytes.
    pub file_size: Option<u64>,
    pub memory: Option<u64>,
    pub dev_shm: Option<u64>,
    pub is_debug: bool,
}

impl Machine {
    pub fn here() -> Machine {
        let shm = rustix::fs::statvfs("/dev/shm").ok();
        Machine {
            root: "/".into(),
            cpus: CpuSet::allowed().unwrap_or_default(),
            files: getrlimit(Resource::Nofile).current,
            memlock: getrlimit(Resource::Memlock).current,
            file_size: getrlimit(Resource::Fsize).current,
            memory: ucs::mem::avail::available(),
            dev_shm: shm.map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize)),
            is_debug: cfg!(debug_assertions),
        }
    }

    pub fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        Some(text.trim().to_owned())
    }

    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let entries =
            fs::read_dir(self.root.join(path.trim_start_matches('/'))).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A field of /proc/meminfo, mostly in kB.
    pub fn meminfo(&self, field: &str) -> Option<u64> {
        let text = self.text("/proc/meminfo")?;
        let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }
}
