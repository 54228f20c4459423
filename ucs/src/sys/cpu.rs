//! CPU affinity of the calling thread: reading and pinning.

use std::fmt;

use crate::{Blame, Errno};

/// Why cpus could not be set or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// Not a list such as `0-3,5`.
    #[error("bad cpu list {text:?}: expected numbers and ranges such as 0-3,5")]
    BadList {
        /// The text.
        text: String,
    },
    /// The cpu does not exist or is not ours to use.
    #[error("cpu {cpu} cannot be used here: this process may run on {allowed}")]
    NotAllowed {
        /// Cpu number.
        cpu: usize,
        /// Cpus that can be used.
        allowed: CpuSet,
    },
    /// A system error.
    #[error("{op}: {errno}")]
    Os {
        /// System call.
        op: &'static str,
        /// Error number.
        errno: Errno,
    },
}

impl CpuError {
    /// Whose fault it is.
    pub const fn blame(&self) -> Blame {
        match self {
            CpuError::BadList { .. } | CpuError::NotAllowed { .. } => Blame::Caller,
            CpuError::Os { .. } => Blame::Device,
        }
    }
}

/// A set of cpu numbers, kept ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(Vec<usize>);

/// Highest cpu number understood: more than any kernel supports, small enough that `0-N` is no trap.
const MAX_CPU: usize = 1 << 16;

impl CpuSet {
    /// Reads a list such as `0-3,5`; blanks and a trailing newline are allowed, as in `/sys`.
    pub fn parse(text: &str) -> Result<CpuSet, CpuError> {
        let bad = || CpuError::BadList { text: text.to_owned() };
        let number = |s: &str| s.trim().parse::<usize>().ok().filter(|n| *n < MAX_CPU).ok_or_else(bad);
        let mut cpus = Vec::new();
        if !text.trim().is_empty() {
            for item in text.split(',') {
                let (low, high) = item.split_once('-').unwrap_or((item, item));
                let (low, high) = (number(low)?, number(high)?);
                if low > high {
                    return Err(bad());
                }
                cpus.extend(low..=high);
            }
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuSet(cpus))
    }

    /// Cpus the calling thread may run on.
    pub fn allowed() -> Result<CpuSet, CpuError> {
        let set = rustix::thread::sched_getaffinity(None)
            .map_err(|e| CpuError::Os { op: "sched_getaffinity", errno: e.into() })?;
        Ok(CpuSet((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()))
    }

    /// The numbers, ascending.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Is this one in it?
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.binary_search(&cpu).is_ok()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            f.write_str(if n > 0 { "," } else { "" })?;
            match run {
                [one] => write!(f, "{one}")?,
                [low, .., high] => write!(f, "{low}-{high}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// Makes the calling thread run on `cpu` only.
pub fn pin(cpu: usize) -> Result<(), CpuError> {
    let allowed = CpuSet::allowed()?;
    if !allowed.contains(cpu) {
        return Err(CpuError::NotAllowed { cpu, allowed });
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| CpuError::Os { op: "sched_setaffinity", errno: e.into() })
}

/// The cpu the calling thread is on at this moment.
pub fn current() -> usize {
    rustix::thread::sched_getcpu()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_and_prints_lists() {
        let set = CpuSet::parse(" 5,0-3,2 \n").unwrap();
        assert_eq!((set.as_slice(), set.to_string()), (&[0, 1, 2, 3, 5][..], "0-3,5".to_owned()));
        assert!(CpuSet::parse("").unwrap().is_empty());
        for bad in ["x", "3-1", "1,,2", "-1", "0-99999999999", "70000"] {
            assert_eq!(CpuSet::parse(bad).unwrap_err().blame(), Blame::Caller, "{bad}");
        }
    }

    #[test]
    fn pins_this_thread() {
        let allowed = CpuSet::allowed().unwrap();
        let cpu = allowed.as_slice()[0];
        std::thread::spawn(move || {
            pin(cpu).unwrap();
            assert_eq!(current(), cpu);
            assert_eq!(CpuSet::allowed().unwrap().as_slice(), [cpu]);
        })
        .join()
        .unwrap();
        let err = pin(60_000).unwrap_err();
        assert!(err.to_string().contains(&allowed.to_string()), "{err}");
    }

    proptest! {
        #[test]
        fn print_then_parse_is_identity(cpus in prop::collection::btree_set(0usize..200, 0..40)) {
            let set = CpuSet(cpus.into_iter().collect());
            prop_assert_eq!(CpuSet::parse(&set.to_string()).unwrap(), set);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,x -]{0,12}") {
            let _ = CpuSet::parse(&text);
        }
    }
}
