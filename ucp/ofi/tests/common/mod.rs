//! Parts that the test programs of this crate share: the provider under its name, and programs that end.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

const HEADER: &str = "/usr/include/rdma/fabric.h";

/// Folder of the provider that was built with this test. Made once, for all threads.
pub fn provider_folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let exe = std::env::current_exe().expect("a test has a path");
            let deps = exe.parent().expect("it is in a folder");
            let candidates = [deps.join("libucp_ofi.so"), deps.join("../libucp_ofi.so")];
            let built =
                candidates.iter().find(|path| path.exists()).expect("the library is built with its tests");
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("provider");
            std::fs::create_dir_all(&folder).expect("a folder for the provider");
            // Other test programs do the same at the same time.
            let temporary = folder.join(format!("{}.new", std::process::id()));
            _ = std::fs::remove_file(&temporary);
            std::os::unix::fs::symlink(built, &temporary).expect("a link to the library");
            std::fs::rename(&temporary, folder.join("libefa4-fi.so")).expect("the link gets its name");
            folder
        })
        .clone()
}

/// Whether a program of libfabric is installed (Debian: libfabric-bin).
pub fn has_program(name: &str) -> bool {
    let found = Command::new(name).arg("-h").output().is_ok();
    if !found {
        ucs::testing::not_installed("programs of libfabric", format!("no {name} (libfabric-bin)"));
    }
    found
}

/// A program with the provider on these transports.
pub fn command(program: impl AsRef<OsStr>, tls: &str) -> Command {
    let mut command = Command::new(program);
    command.env("FI_PROVIDER_PATH", provider_folder()).env("UCX_TLS", tls).env_remove("UCX_OFI_NAME");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Compiles a C program of this crate against libfabric; `None` without a compiler or headers (Debian:
/// gcc, libfabric-dev).
pub fn compiled(name: &str) -> Option<PathBuf> {
    if !Path::new(HEADER).exists() || Command::new("gcc").arg("--version").output().is_err() {
        ucs::testing::not_installed("C programs", format!("no gcc or no {HEADER} (libfabric-dev)"));
        return None;
    }
    static PROGRAMS: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut programs = PROGRAMS.lock().expect("no test panics while it compiles");
    let program = programs.entry(name.to_owned()).or_insert_with(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let stem = source.file_stem().expect("a program has a name");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(stem);
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-o"]).arg(&program).arg(source);
        let output = gcc.args(["-lfabric", "-lpthread"]).output().expect("gcc runs");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        program
    });
    Some(program.clone())
}

/// Compiles an MPI program of `ucp/abi` for Open MPI; `None` where that is not installed (Debian:
/// openmpi-bin, libopenmpi-dev).
pub fn compiled_for_mpi(name: &str) -> Option<PathBuf> {
    const COMPILER: &str = "mpicc.openmpi";
    if [COMPILER, "mpirun.openmpi"].iter().any(|tool| Command::new(tool).arg("--version").output().is_err()) {
        ucs::testing::not_installed("Open MPI", "no compiler or launcher (openmpi-bin, libopenmpi-dev)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../abi/tests/c").join(name);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-openmpi"));
    let mut compile = Command::new(COMPILER);
    compile.args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source);
    let output = compile.output().expect("the compiler runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("mpi.h: No such file") {
        ucs::testing::not_installed("Open MPI", "no headers (libopenmpi-dev)");
        return None;
    }
    assert!(output.status.success(), "{name}: {errors}");
    Some(program)
}

/// Waits for the end of a program, which must come within a time in seconds.
pub fn end_of(mut child: Child, seconds: u64) -> Output {
    let until = Instant::now() + Duration::from_secs(seconds);
    while child.try_wait().expect("the program is a child").is_none() {
        if Instant::now() > until {
            _ = child.kill();
            let output = child.wait_with_output().expect("its output is there");
            panic!("a program did not end within {seconds} s:\n{}", text(&output));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("its output is there")
}

/// Text that a program has printed.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
