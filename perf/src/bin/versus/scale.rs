//! Threads and endpoints beside UCX: `ucx_perftest -T` of both, and `perf/ucx/scale.c`, compiled on the spot, beside our
//! `scale`. Called by `main` through [`Theirs`].

use std::path::{Path, PathBuf};
use std::process::Command;

use super::rows::{By, Metric, Row};
use super::run::{BUILD, Error, NO_EVENTS, Ours, Theirs, Ucx, beside, compile, counted, iters, json_result};

/// UCX's libraries under our program.
pub struct Scale {
    ucx: Ucx,
    program: PathBuf,
    cores: (u32, u32),
    tls: String,
}

impl Scale {
    /// Compiles the program, which stays beside ours, against the UCX that `ucx` belongs to.
    pub fn find(ucx: Ucx, cores: (u32, u32), tls: String) -> Result<Self, Error> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/ucx/scale.c");
        let program = beside("versus-scale");
        let mut flags = Vec::new();
        if let Some(prefix) = ucx.prefix().map(|p| p.display().to_string()) {
            flags.push(format!("-I{prefix}/include"));
            flags.push(format!("-L{prefix}/lib"));
            flags.push(format!("-Wl,-rpath,{prefix}/lib"));
        }
        flags.extend(["-lucp", "-luct", "-lucs", "-pthread"].map(str::to_owned));
        compile(source, &program, &flags, "Debian package libucx-dev")?;
        Ok(Scale { ucx, program, cores, tls })
    }

    fn args(&self, cmd: &mut Command, row: &Row, scale: u64) {
        cmd.args([row.test, &row.size.to_string()]);
        if row.iters > 0 {
            cmd.arg(iters(row, scale).to_string());
        }
        cmd.args([self.cores.0.to_string(), self.cores.1.to_string()]);
    }

    /// Instructions of a message of a process to itself, in windows of the row's size, through the memory that two share.
    fn count(&self, row: &Row, scale: u64, program: &Path) -> Result<f64, Error> {
        let through = || {
            let mut cmd = Command::new("env");
            cmd.arg(format!("UCX_TLS={}", row.tls));
            cmd
        };
        counted(row, scale, through, program, &[row.test, &row.size.to_string()])
    }
}

impl Theirs for Scale {
    fn name(&self) -> String {
        self.ucx.name()
    }

    fn describe(&self) -> String {
        self.ucx.describe()
    }

    fn run(&self, row: &Row, scale: u64) -> Result<f64, Error> {
        if row.by != By::Scale {
            return self.ucx.run(row, scale);
        }
        if row.metric == Metric::Instructions {
            return self.count(row, scale, &self.program);
        }
        let mut cmd = Command::new(&self.program);
        cmd.env("UCX_TLS", &self.tls).env(NO_EVENTS.0, NO_EVENTS.1);
        self.args(&mut cmd, row, scale);
        json_result(&mut cmd, row.metric, "Debian package libucx-dev")
    }

    fn ours(&self, ours: &Ours, row: &Row, scale: u64) -> Result<f64, Error> {
        if row.by != By::Scale {
            return ours.run(row, scale);
        }
        if row.metric == Metric::Instructions {
            return self.count(row, scale, &beside("scale"));
        }
        let mut cmd = Command::new(beside("scale"));
        cmd.env("UCX_TLS", row.tls);
        self.args(&mut cmd, row, scale);
        json_result(&mut cmd, row.metric, BUILD)
    }
}
