//! One benchmark on two libraries: UCX's `ucx_perftest` with this library underneath, and with UCX's own.

use super::cases::Case;
use super::run::{Error, Ours, Theirs, Ucx};
use std::path::{Path, PathBuf};

pub struct Stock {
    ucx: Ucx,
    /// UCX's program on this library.
    ours: Ucx,
    prefix: PathBuf,
}

impl Stock {
    /// `prefix`: where `tools/install` has put this library.
    pub fn find(ucx: Ucx, prefix: &Path) -> Result<Self, Error> {
        let ours = ucx.on_library(&prefix.join("lib"))?;
        Ok(Stock { ucx, ours, prefix: prefix.to_owned() })
    }
}

impl Theirs for Stock {
    fn name(&self) -> String {
        self.ucx.name()
    }

    fn describe(&self) -> String {
        let (program, prefix) = (self.ucx.name(), self.prefix.display());
        format!(
            "ucx_perftest of {program} on both sides, with LD_LIBRARY_PATH={prefix}/lib for ours; {}",
            self.ucx.describe()
        )
    }

    fn run(&self, case: &Case, scale: u64) -> Result<f64, Error> {
        self.ucx.run(case, scale)
    }

    fn ours(&self, _: &Ours, case: &Case, scale: u64) -> Result<f64, Error> {
        self.ours.run(case, scale)
    }
}
