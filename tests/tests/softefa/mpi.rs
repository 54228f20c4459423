//! MPI libraries from PyPI under `softefa run`: tests/c/mpi_check.c on Open MPI (libfabric's `efa`, UCX's
//! `srd`) and MPICH (`ch4:ofi`, `ch4:ucx`). The packages are installed once, by pip, below the target folder.
//! Where pip reaches no index, these tests pass with a note.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use suites::clients::{c_source, folder};
use suites::launcher::{expect_success, start, text};
use ucs::testing::skipped;

/// An MPI library, and its test program.
struct Mpi {
    mpirun: String,
    program: String,
}

/// Installs a package; answers its prefix. Kept for later runs of any test program.
fn install(name: &str, version: &str) -> Option<PathBuf> {
    let me = std::env::current_exe().unwrap();
    // This program is TARGET/PROFILE/deps/NAME.
    let all = me.ancestors().nth(3).unwrap().join("mpi");
    let place = all.join(format!("{name}-{version}"));
    if place.is_dir() {
        return Some(place);
    }
    let fresh = all.join(format!("{name}-{version}.{}", std::process::id()));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--retries", "1", "--timeout", "20"]);
    pip.arg("--disable-pip-version-check").arg("--prefix").arg(&fresh).arg(format!("{name}=={version}"));
    let what = format!("{name} {version}");
    match pip.output() {
        Err(e) => skipped(&what, format!("no python3: {e}")),
        Ok(out) if !out.status.success() => {
            let _ = std::fs::remove_dir_all(&fresh);
            skipped(&what, format!("pip cannot install it: {}", text(&out.stderr)));
        }
        // Another process may have been faster.
        Ok(_) if std::fs::rename(&fresh, &place).is_err() => {
            let _ = std::fs::remove_dir_all(&fresh);
        }
        Ok(_) => {}
    }
    place.is_dir().then_some(place)
}

fn build(name: &str, version: &str) -> Option<Mpi> {
    let bin = install(name, version)?.join("bin");
    let program = folder(env!("CARGO_TARGET_TMPDIR")).join(format!("mpi_check-{name}"));
    let source = c_source("mpi_check.c");
    let compile = |mpicc: &Path| Command::new(mpicc).arg("-O1").arg("-o").arg(&program).arg(&source).output();
    let built = compile(&bin.join("mpicc")).unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    Some(Mpi { mpirun: path(bin.join("mpirun")), program: path(program) })
}

fn mpich() -> Option<&'static Mpi> {
    static BUILT: OnceLock<Option<Mpi>> = OnceLock::new();
    BUILT.get_or_init(|| build("mpich", "5.0.2")).as_ref()
}

fn open_mpi() -> Option<&'static Mpi> {
    static BUILT: OnceLock<Option<Mpi>> = OnceLock::new();
    BUILT.get_or_init(|| build("openmpi", "5.0.11")).as_ref()
}

/// Runs the program under `softefa run OPTIONS -- env VARIABLES mpirun ARGUMENTS`.
fn check(options: &[&str], variables: &[&str], mpi: &Mpi, arguments: &[&str], ranks: &str) {
    let program = ["-n", ranks, mpi.program.as_str()];
    let mpirun = [&["env"][..], variables, &[mpi.mpirun.as_str()], arguments, &program].concat();
    let out = expect_success(start(options, &mpirun), &mpirun.join(" "));
    assert!(out.contains(&format!("all is well on {ranks} ranks")), "{out}");
}

const ROUGH: [&str; 6] = ["--seed", "7", "--reorder", "0.1", "--rnr", "0.02"];

#[test]
fn mpich_over_libfabric() {
    let Some(mpi) = mpich() else { return };
    let variables = [
        "MPIR_CVAR_CH4_NETMOD=ofi",
        "MPIR_CVAR_NOLOCAL=1",
        "FI_PROVIDER=efa",
        "FI_EFA_ENABLE_SHM_TRANSFER=0",
    ];
    check(&[], &variables, mpi, &[], "2");
    check(&ROUGH, &variables, mpi, &[], "3");
}

#[test]
fn mpich_over_ucx() {
    let Some(mpi) = mpich() else { return };
    let variables = ["MPIR_CVAR_CH4_NETMOD=ucx", "MPIR_CVAR_NOLOCAL=1", "UCX_TLS=srd,self"];
    check(&[], &variables, mpi, &[], "2");
    check(&ROUGH, &variables, mpi, &[], "3");
}

/// Variables without which Open MPI does not run for root, as in a container.
const AS_ROOT: [&str; 2] = ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"];

#[test]
fn open_mpi_over_libfabric() {
    let Some(mpi) = open_mpi() else { return };
    let variables = [&AS_ROOT[..], &["FI_PROVIDER=efa", "FI_EFA_ENABLE_SHM_TRANSFER=0"]].concat();
    let arguments = ["--oversubscribe", "--mca", "pml", "cm", "--mca", "mtl", "ofi"];
    check(&[], &variables, mpi, &arguments, "2");
    check(&ROUGH, &variables, mpi, &arguments, "3");
}

#[test]
fn open_mpi_over_ucx() {
    let Some(mpi) = open_mpi() else { return };
    let variables = [&AS_ROOT[..], &["UCX_TLS=srd,self"]].concat();
    let any = ["--mca", "opal_common_ucx_tls", "any", "--mca", "opal_common_ucx_devices", "any"];
    let arguments = [&["--oversubscribe", "--mca", "pml", "ucx"][..], &any].concat();
    check(&[], &variables, mpi, &arguments, "2");
    check(&ROUGH, &variables, mpi, &arguments, "3");
}
