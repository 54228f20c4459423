//! The cores of `-c`, in the given order, which decides the core of each side and thread.

use std::fmt;

use rustix::thread::{CpuSet as Mask, sched_setaffinity};
use ucs::config::is_first_report;
use ucs::sys::{CpuError, CpuSet};

use crate::fail::TOOL;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl CpuList {
    /// Parses `0,2` or `4-7,1`.
    pub fn parse(text: &str) -> Result<CpuList, String> {
        let all = CpuSet::parse(text).map_err(|e| e.to_string())?;
        let mut list = Vec::with_capacity(all.len());
        for item in text.split(',') {
            let some = CpuSet::parse(item).map_err(|e| e.to_string())?;
            list.extend(
                some.as_slice().iter().copied().filter(|cpu| !list.contains(cpu)).collect::<Vec<_>>(),
            );
        }
        if list.is_empty() { Err("an empty list".into()) } else { Ok(CpuList(list)) }
    }

    pub fn one(cpu: usize) -> CpuList {
        CpuList(vec![cpu])
    }

    pub fn allowed() -> Result<CpuList, CpuError> {
        CpuSet::allowed().map(|set| CpuList(set.as_slice().to_vec()))
    }

    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// The server's half and the client's; a single core is for both.
    pub fn halves(&self) -> (CpuList, CpuList) {
        match self.0.split_at(self.0.len() / 2) {
            ([], all) => (CpuList(all.to_vec()), CpuList(all.to_vec())),
            (server, client) => (CpuList(server.to_vec()), CpuList(client.to_vec())),
        }
    }

    /// Restricts this thread, and threads it starts later, to these cores.
    pub fn confine(&self) -> Result<(), CpuError> {
        let allowed = CpuSet::allowed()?;
        if let Some(cpu) = self.0.iter().copied().find(|cpu| !allowed.contains(*cpu)) {
            return Err(CpuError::NotAllowed { cpu, allowed });
        }
        set(&self.0)
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&all.join(","))
    }
}

/// The cores that this process may choose from, or `None`, with a note, where the system lets it choose none.
pub fn cores_to_choose_from() -> Option<CpuList> {
    let allowed = CpuList::allowed();
    // Setting what is set already shows whether it may be set.
    let tried = allowed.and_then(|cores| set(&cores.0).map(|()| cores));
    if let Err(e) = &tried
        && is_first_report("cores")
    {
        ucs::stderr_line!("{TOOL}: note: the sides are not pinned to cores ({e})");
    }
    tried.ok()
}

fn set(cpus: &[usize]) -> Result<(), CpuError> {
    let mut mask = Mask::new();
    cpus.iter().for_each(|cpu| mask.set(*cpu));
    sched_setaffinity(None, &mask).map_err(|e| CpuError::Os { op: "sched_setaffinity", errno: e.into() })
}

/// Restores the affinity of this thread when dropped.
pub struct AffinityGuard(Option<CpuList>);

impl AffinityGuard {
    pub fn save() -> AffinityGuard {
        AffinityGuard(CpuList::allowed().ok())
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        if let Some(CpuList(before)) = &self.0 {
            // Cores may have been taken away meanwhile: the thread stays where it is.
            let _ = set(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_keep_their_order() {
        let of = |text: &str| CpuList::parse(text).map(|cpus| cpus.to_string());
        assert_eq!(of("3,0-2,1,7"), Ok("3,0,1,2,7".into()));
        assert_eq!(of("1,0"), Ok("1,0".into()));
        assert!(of("1,x").unwrap_err().starts_with("bad cpu list \"1,x\""));
        assert_eq!(of(""), Err("an empty list".into()));
        let halves = |text: &str| {
            let (server, client) = CpuList::parse(text).unwrap().halves();
            (server.to_string(), client.to_string())
        };
        assert_eq!(halves("1,0"), ("1".into(), "0".into()));
        assert_eq!(halves("5"), ("5".into(), "5".into()));
        assert_eq!(halves("0-4"), ("0,1".into(), "2,3,4".into()));
    }

    #[test]
    fn affinity_is_restored() {
        std::thread::spawn(|| {
            let before = CpuList::allowed().unwrap();
            let back = AffinityGuard::save();
            let one = CpuList(vec![before.as_slice()[0]]);
            one.confine().unwrap();
            assert_eq!(CpuList::allowed().unwrap(), one);
            drop(back);
            assert_eq!(CpuList::allowed().unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
