//! A program on the C interface and one on libfabric's own EFA provider exchange tagged messages both ways,
//! on the software device. Skipped without libfabric's headers (Debian: libfabric-dev) or the launcher
//! `softefa`, which `cargo build -p softefa` makes.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::library_folder;
use ucs::testing::{not_installed, skipped};

fn compile(name: &str, arguments: &[String]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-Werror", "-Wno-unused-function", "-o"]).arg(&program).arg(source);
    let output = gcc.args(arguments).output().expect("gcc runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A program that is running. It is killed when dropped.
struct Peer {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(name: &'static str, mut command: Command) -> Peer {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Peer { name, child, input, output: BufReader::new(output) }
    }

    /// The next line. Programs end by themselves if nothing comes.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "{} has ended: {:?}", self.name, self.child.wait());
        line
    }

    fn tell(&mut self, line: &str) {
        self.input.as_mut().expect("open").write_all(line.as_bytes()).expect("it reads");
    }

    fn end(mut self) {
        self.input = None;
        let until = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < until, "{} does not end", self.name);
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{}: {status}", self.name);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The launcher of programs on the software device, beside the tests.
fn launcher() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let path = exe.parent()?.parent()?.join("softefa");
    path.exists().then_some(path)
}

#[test]
fn tagged_messages_with_libfabric() {
    if !Path::new("/usr/include/rdma/fabric.h").exists()
        || Command::new("gcc").arg("--version").output().is_err()
    {
        return not_installed("libfabric", "no gcc or no rdma/fabric.h (libfabric-dev)");
    }
    let Some(softefa) = launcher() else { return skipped("libfabric", "no softefa: cargo build -p softefa") };
    let folder = library_folder();
    let ours = compile(
        "libfabric_ucp",
        &[
            concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include").to_owned(),
            format!("-L{}", folder.display()),
            "-l:libucp.so.0".to_owned(),
        ],
    );
    let theirs = compile("libfabric_peer", &["-lfabric".to_owned()]);
    let mut command = Command::new(&ours);
    command.env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", "efa");
    let mut ours = Peer::start("libfabric_ucp", command);
    let mut command = Command::new(softefa);
    command.args(["run", "--"]).arg(theirs);
    let mut theirs = Peer::start("libfabric_peer", command);
    let (our_address, their_address) = (ours.line(), theirs.line());
    ours.tell(&their_address);
    theirs.tell(&our_address);
    // Libfabric's end has received and checked all before it says so; ours closes meanwhile.
    assert_eq!(theirs.line(), "done\n");
    assert_eq!(ours.line(), "done\n");
    ours.end();
    theirs.end();
}
