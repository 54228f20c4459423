//! Debian's MPI libraries and OpenSHMEM, which were built for UCX, on this library: nothing of theirs is
//! compiled again. The programs are `c/mpi.c`, `c/mpi_spawn.c` and `c/shmem.c`. They check that the library
//! loaded is the one built with this test.
//!
//! Skipped where the packages are missing (Debian: gcc, openmpi-bin, libopenmpi-dev, mpich, libmpich-dev).

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use common::{library_folder, output_within};
use ucs::testing::not_installed;

/// Two jobs at once take the processors from each other, and share the program.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// An MPI library of the system: its compiler, its launcher, and the arguments for a number of processes.
struct Mpi {
    compiler: &'static str,
    launcher: &'static str,
    source: &'static str,
}

const OPEN_MPI: Mpi = Mpi { compiler: "mpicc.openmpi", launcher: "mpirun.openmpi", source: "mpi.c" };
const OPEN_SHMEM: Mpi = Mpi { compiler: "oshcc", launcher: "oshrun", source: "shmem.c" };
const SPAWN: Mpi = Mpi { compiler: "mpicc.openmpi", launcher: "mpirun.openmpi", source: "mpi_spawn.c" };
const MPICH: Mpi = Mpi { compiler: "mpicc.mpich", launcher: "mpiexec.hydra", source: "mpi.c" };

impl Mpi {
    fn is_open_mpi(&self) -> bool {
        self.launcher != MPICH.launcher
    }

    /// The test program, or `None` where this MPI library is not installed.
    fn program(&self) -> Option<PathBuf> {
        for tool in [self.compiler, self.launcher] {
            let path = std::env::var_os("PATH").unwrap_or_default();
            if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
                not_installed(self.compiler, format!("{tool} is not installed"));
                return None;
            }
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(self.source);
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", self.source, self.compiler));
        let mut compile = Command::new(self.compiler);
        compile.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source);
        let built = compile.output().expect("the compiler runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(program)
    }

    /// Runs the program, or some of its tests, with `processes` over `tls`, and checks that it said so.
    fn run(&self, processes: usize, tls: &str, tests: &[&str]) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(program) = self.program() else { return };
        let mut job = self.launch(processes);
        if self.is_open_mpi() {
            // Open MPI has a list of transports with which it takes UCX. OpenSHMEM crashes at its end on UCX
            // 1.13.1 without `osc ucx`: it is not given here.
            let windows = if self.source == "shmem.c" { "spml" } else { "osc" };
            job.args(["--mca", "pml", "ucx", "--mca", windows, "ucx"]);
            job.args(["--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"]);
        }
        job.arg(program).args(tests);
        job.env("LD_LIBRARY_PATH", library_folder()).env("UCX_TLS", tls).env("UCX_LOG_LEVEL", "warn");
        // Not its own shared memory within the host.
        job.env("MPIR_CVAR_NOLOCAL", "1").env("EXPECT_LIBRARY", "libucp_abi.so");
        let what = format!("{} on {processes} processes over {tls}", self.compiler);
        let said = said_all_is_well(job, &what);
        // Whatever carried them, the messages are the same.
        if self.is_open_mpi() && self.source == "mpi.c" && processes == 2 {
            let without = self.without_ucx();
            let (ours, others) = (received(&said), received(&without));
            assert_eq!(others.len(), WITHOUT_UCX.len(), "{without}");
            for line in others {
                assert!(ours.contains(&line), "{what}: {ours:#?}, over pml ob1 {line}");
            }
        }
    }

    /// Launcher of a number of processes.
    fn launch(&self, processes: usize) -> Command {
        let mut job = Command::new(self.launcher);
        job.args(["-n", &processes.to_string()]);
        if self.is_open_mpi() {
            job.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        }
        job
    }

    /// Output of the program on two processes over Open MPI's own transports. It runs once.
    fn without_ucx(&self) -> String {
        static SAID: OnceLock<String> = OnceLock::new();
        SAID.get_or_init(|| {
            let mut job = self.launch(2);
            job.args(["--mca", "pml", "ob1", "--mca", "osc", "^ucx", "--mca", "btl", "self,vader"]);
            job.args(self.program()).args(WITHOUT_UCX);
            said_all_is_well(job, "Open MPI without UCX")
        })
        .clone()
    }
}

/// Output of a job that must end well.
fn said_all_is_well(job: Command, what: &str) -> String {
    let output = output_within(job, 90);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && stdout.contains("all is well"),
        "{what}: {}\n{stdout}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

/// Lines of the tests of `mpi.c`, each with the number for what all processes have received in it.
fn received(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.starts_with("passed: ")).collect()
}

/// Tests of `mpi.c` that four processes run: those that depend on their number.
const WITH_FOUR: &[&str] =
    &["library", "lengths", "collectives", "reductions", "accumulate", "locks", "shared-locks"];

/// Tests of `mpi.c` that also run without UCX. Open MPI's shared memory crashes in `accumulate` and `fetches`
/// when it compares and swaps, and its results in `accumulate-operations` are wrong at times.
const WITHOUT_UCX: &[&str] = &[
    "lengths",
    "forms",
    "datatypes",
    "basic-types",
    "derived-types",
    "reductions",
    "operations",
    "collectives",
    "collective-forms",
    "nonblocking",
    "neighbors",
    "persistent",
    "threads",
    "fence",
    "locks",
    "pscw",
    "requests",
    "shared-locks",
    "dynamic",
];

#[test]
fn open_mpi_over_shared_memory() {
    OPEN_MPI.run(2, "posix,cma", &[]);
    OPEN_MPI.run(4, "posix,cma", WITH_FOUR);
}

#[test]
fn open_mpi_over_the_network() {
    OPEN_MPI.run(2, "efa", &[]);
    OPEN_MPI.run(4, "efa", WITH_FOUR);
}

/// Debian's MPICH starts no processes by `MPI_Comm_spawn`, whatever carries its messages.
#[test]
fn open_mpi_starts_processes() {
    SPAWN.run(2, "posix,cma", &[]);
    SPAWN.run(1, "efa", &[]);
}

#[test]
fn mpich_over_shared_memory() {
    MPICH.run(2, "posix,cma", &[]);
    MPICH.run(4, "posix,cma", WITH_FOUR);
}

#[test]
fn mpich_over_the_network() {
    MPICH.run(2, "efa", &[]);
    MPICH.run(4, "efa", WITH_FOUR);
}

#[test]
fn open_shmem() {
    OPEN_SHMEM.run(2, "posix,cma", &[]);
    OPEN_SHMEM.run(4, "posix,cma", &[]);
    OPEN_SHMEM.run(2, "efa", &[]);
}
