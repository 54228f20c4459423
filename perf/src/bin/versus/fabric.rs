//! Both sides of the comparison with libfabric: our C benchmark (`perf/fabric/bench.c`), compiled on the spot, on the
//! software EFA device under `softefa run`, and `tagged`, the same loops with `ucp`. Called by `main` through [`Theirs`].
//! Never changes a setting of libfabric but its shared memory.

use std::path::PathBuf;
use std::process::Command;

use super::rows::Row;
use super::run::{Error, Ours, Theirs, beside, json_result};

/// libfabric's EFA provider under our benchmark.
pub struct Libfabric {
    bench: PathBuf,
    softefa: PathBuf,
    cores: (u32, u32),
    version: String,
}

impl Libfabric {
    /// Compiles the benchmark.
    pub fn find(cores: (u32, u32)) -> Result<Self, Error> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/fabric/bench.c");
        let bench = std::env::temp_dir().join(format!("versus-fabric.{}", std::process::id()));
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut cc = Command::new(&compiler);
        cc.args(["-std=gnu11", "-O2", "-g", "-o"]).arg(&bench).arg(source).arg("-lfabric");
        let program = compiler.to_string_lossy().into_owned();
        let out =
            cc.output().map_err(|source| Error::Start { program, source, hint: "Debian package gcc" })?;
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr);
            return Err(Error::Compile(format!(
                "{source} does not compile (Debian package libfabric-dev):\n{why}"
            )));
        }
        let info = Command::new("fi_info").arg("--version").output();
        let text =
            info.map_or_else(|_| String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned());
        let version = text.lines().find_map(|l| l.strip_prefix("libfabric:")).unwrap_or("of unknown version");
        let version = version.trim().to_owned();
        Ok(Libfabric { bench, softefa: beside("softefa"), cores, version })
    }
}

impl Drop for Libfabric {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.bench);
    }
}

impl Theirs for Libfabric {
    fn name(&self) -> &'static str {
        "libfabric"
    }

    fn describe(&self) -> String {
        format!("libfabric {}, both on the software EFA device", self.version)
    }

    fn run(&self, row: &Row, scale: u64) -> Result<f64, Error> {
        let mut cmd = Command::new(&self.softefa);
        cmd.args(["run", "--"]).arg(&self.bench).env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
        self.args(&mut cmd, row, scale);
        json_result(&mut cmd, row.metric, "cargo build --release --bins")
    }

    fn ours(&self, _: &Ours, row: &Row, scale: u64) -> Result<f64, Error> {
        let mut cmd = Command::new(beside("tagged"));
        cmd.env("UCX_TLS", row.tls);
        self.args(&mut cmd, row, scale);
        json_result(&mut cmd, row.metric, "cargo build --release --bins")
    }
}

impl Libfabric {
    fn args(&self, cmd: &mut Command, row: &Row, scale: u64) {
        let kind = if row.test == "tag_lat" { "lat" } else { "bw" };
        let iters = (row.iters / scale).max(1000).to_string();
        let (server, client) = (self.cores.0.to_string(), self.cores.1.to_string());
        cmd.args([kind, row.size, &iters, &server, &client]);
    }
}
