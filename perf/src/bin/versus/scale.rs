//! Threads and endpoints beside UCX: `ucx_perftest -T` of both, and `perf/ucx/scale.c`, compiled on the spot,
//! beside our `scale`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cases::{Case, Harness, Metric};
use super::run::{
    BUILD, Error, NO_EVENTS, Ours, Theirs, Ucx, compile, counted, iters, json_result, sibling_program,
};

pub struct Scale {
    ucx: Ucx,
    program: PathBuf,
    cores: (u32, u32),
    tls: String,
}

impl Scale {
    /// Compiles the program against the UCX that `ucx` belongs to, into the folder of this program.
    pub fn find(ucx: Ucx, cores: (u32, u32), tls: String) -> Result<Self, Error> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/ucx/scale.c");
        let program = sibling_program("versus-scale");
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

    fn args(&self, cmd: &mut Command, case: &Case, scale: u64) {
        cmd.args([case.test, &case.size.to_string()]);
        if case.iters > 0 {
            cmd.arg(iters(case, scale).to_string());
        }
        cmd.args([self.cores.0.to_string(), self.cores.1.to_string()]);
    }

    /// Instructions per message of a process to itself over shared memory.
    fn count(&self, case: &Case, scale: u64, program: &Path) -> Result<f64, Error> {
        let through = || {
            let mut cmd = Command::new("env");
            cmd.arg(format!("UCX_TLS={}", case.tls));
            cmd
        };
        counted(case, scale, through, program, &[case.test, &case.size.to_string()])
    }
}

impl Theirs for Scale {
    fn name(&self) -> String {
        self.ucx.name()
    }

    fn describe(&self) -> String {
        self.ucx.describe()
    }

    fn run(&self, case: &Case, scale: u64) -> Result<f64, Error> {
        if case.harness != Harness::Scale {
            return self.ucx.run(case, scale);
        }
        if case.metric == Metric::Instructions {
            return self.count(case, scale, &self.program);
        }
        let mut cmd = Command::new(&self.program);
        cmd.env("UCX_TLS", &self.tls).env(NO_EVENTS.0, NO_EVENTS.1);
        self.args(&mut cmd, case, scale);
        json_result(&mut cmd, case.metric, "Debian package libucx-dev")
    }

    fn ours(&self, ours: &Ours, case: &Case, scale: u64) -> Result<f64, Error> {
        if case.harness != Harness::Scale {
            return ours.run(case, scale);
        }
        if case.metric == Metric::Instructions {
            return self.count(case, scale, &sibling_program("scale"));
        }
        let mut cmd = Command::new(sibling_program("scale"));
        cmd.env("UCX_TLS", case.tls);
        self.args(&mut cmd, case, scale);
        json_result(&mut cmd, case.metric, BUILD)
    }
}
