//! Comparisons with libfabric: `perf/fabric/bench.c`, compiled on the spot, runs on the software EFA device
//! under `softefa run`, and `ucp_bench` has the same loops with `ucp`. Measures time, or instructions by
//! callgrind.

use std::path::PathBuf;
use std::process::Command;

use super::cases::{Case, Harness};
use super::run::{BUILD, Error, Ours, Theirs, compile, counted, iters, json_result, sibling_program};

pub struct Libfabric {
    bench: PathBuf,
    cores: (u32, u32),
    version: String,
}

impl Libfabric {
    /// Compiles the benchmark into the folder of this program.
    pub fn find(cores: (u32, u32)) -> Result<Self, Error> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/fabric/bench.c");
        let bench = sibling_program("versus-fabric");
        compile(source, &bench, &["-lfabric".into()], "Debian package libfabric-dev")?;
        let info = Command::new("fi_info").arg("--version").output();
        let text =
            info.map_or_else(|_| String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned());
        let version = text.lines().find_map(|l| l.strip_prefix("libfabric:")).unwrap_or("of unknown version");
        Ok(Libfabric { bench, cores, version: version.trim().to_owned() })
    }

    fn args(&self, cmd: &mut Command, case: &Case, scale: u64) {
        let (server, client) = (self.cores.0.to_string(), self.cores.1.to_string());
        cmd.args([case.test, &case.size.to_string(), &iters(case, scale).to_string(), &server, &client]);
    }
}

/// Starts a program on the software device, in a folder where a backtrace of it does no harm.
fn on_softefa() -> Command {
    let mut cmd = Command::new(sibling_program("softefa"));
    cmd.current_dir(std::env::temp_dir());
    cmd.args(["run", "--"]).env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    cmd
}

impl Theirs for Libfabric {
    fn name(&self) -> String {
        format!("libfabric {}", self.version)
    }

    fn describe(&self) -> String {
        "both on the software EFA device".into()
    }

    fn run(&self, case: &Case, scale: u64) -> Result<f64, Error> {
        if case.harness == Harness::Count {
            return counted(
                case,
                scale,
                on_softefa,
                &self.bench,
                &["self", case.test, &case.size.to_string()],
            );
        }
        let mut cmd = on_softefa();
        cmd.arg(&self.bench);
        self.args(&mut cmd, case, scale);
        json_result(&mut cmd, case.metric, BUILD)
    }

    fn ours(&self, _: &Ours, case: &Case, scale: u64) -> Result<f64, Error> {
        if case.harness == Harness::Count {
            let env = || {
                let mut cmd = Command::new("env");
                cmd.arg(format!("UCX_TLS={}", case.tls));
                cmd
            };
            return counted(
                case,
                scale,
                env,
                &sibling_program("ucp_bench"),
                &["self", case.test, &case.size.to_string()],
            );
        }
        let mut cmd = Command::new(sibling_program("ucp_bench"));
        cmd.env("UCX_TLS", case.tls);
        self.args(&mut cmd, case, scale);
        json_result(&mut cmd, case.metric, BUILD)
    }
}
