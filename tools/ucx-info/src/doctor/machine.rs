//! Where the doctor looks: files below a root, so that tests can show it other machines, and limits of this process.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};
use ucs::sys::CpuSet;

/// A machine, and this process on it.
pub struct Machine {
    /// What stands for `/`.
    pub root: PathBuf,
    /// Cpus that this process may use.
    pub cpus: CpuSet,
    /// Soft limit of open files; `None` is no limit.
    pub files: Option<u64>,
    /// Soft limit of locked memory, bytes.
    pub memlock: Option<u64>,
    /// Soft limit of a file's size, bytes.
    pub file_size: Option<u64>,
    /// Memory that could be had, bytes.
    pub memory: Option<u64>,
    /// Free bytes of /dev/shm.
    pub dev_shm: Option<u64>,
    /// Whether this is a build without optimisation.
    pub is_debug: bool,
}

impl Machine {
    /// This one.
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

    /// The text of a file, trimmed; `None` if there is none.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(path.trim_start_matches('/'))).ok()?;
        Some(text.trim().to_owned())
    }

    /// The number in a file.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Names in a directory, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries =
            fs::read_dir(self.root.join(path.trim_start_matches('/'))).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A field of /proc/meminfo, as it stands there without its unit (kB where it has one).
    pub fn meminfo(&self, field: &str) -> Option<u64> {
        let text = self.text("/proc/meminfo")?;
        let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }
}
