//! The example programs, run as a user runs them: each does what its text says, and fails with one line that people
//! can read. Builds them with the cargo that runs this test, into the same target directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// An example that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Builds an example of `package` and answers its program.
fn build(package: &str, name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // This program is TARGET/PROFILE/deps/NAME.
    let me = std::env::current_exe().unwrap();
    let profile = me.ancestors().nth(2).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["build", "--quiet", "--package", package, "--example", name]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    profile.join("examples").join(name)
}

/// Runs it to its end with only these settings.
fn run(program: &Path, vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("UCX_") || text.starts_with("SOFTEFA_") {
            command.env_remove(&name);
        }
    }
    command.envs(vars.iter().copied());
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = Spawned(child.spawn().unwrap());
    let until = Instant::now() + PATIENCE;
    while child.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "{} {vars:?} hangs", program.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    std::io::Read::read_to_end(&mut child.0.stdout.take().unwrap(), &mut stdout).unwrap();
    std::io::Read::read_to_end(&mut child.0.stderr.take().unwrap(), &mut stderr).unwrap();
    Output { status: child.0.wait().unwrap(), stdout, stderr }
}

/// Ended at the latest when the test ends.
struct Spawned(std::process::Child);

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a run printed, if it went well.
fn good(program: &Path, vars: &[(&str, &str)]) -> String {
    let out = run(program, vars);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && err.is_empty(), "{}: {:?} {err}", program.display(), out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// A setting that cannot be is told in one line of the program's own, with what to do.
fn told(program: &Path) {
    let out = run(program, &[("UCX_POSIX_FIFO_SIZE", "lots")]);
    let err = String::from_utf8(out.stderr).unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.starts_with(&format!("{name}: UCX_POSIX_FIFO_SIZE=lots (environment): expected ")), "{err}");
    assert_eq!((err.lines().count(), err.matches('{').count()), (1, 0), "{err}");
}

#[test]
fn hello_tag() {
    let program = build("ucp", "hello_tag");
    for wire in ["posix", "efa"] {
        let text = good(&program, &[("UCX_TLS", wire)]);
        assert!(text.starts_with("parent got: hello from process "), "{text}");
        assert!(text.ends_with(&format!(" over {wire}\n")), "{text}");
    }
    told(&program);
    let out = run(&program, &[("UCX_TLS", "rc")]);
    let err = String::from_utf8(out.stderr).unwrap();
    assert!(err.starts_with("hello_tag: unknown transport 'rc' (there are: self, posix, efa"), "{err}");
    assert_eq!((err.lines().count(), out.status.code()), (1, Some(1)), "{err}");
}

#[test]
fn async_ping() {
    let program = build("ucp", "async_ping");
    let text = good(&program, &[]);
    assert!(text.starts_with("10000 round trips over ") && text.ends_with(" us each way\n"), "{text}");
    told(&program);
}

#[test]
fn two_transports() {
    let program = build("ucp", "two_transports");
    let text = good(&program, &[]);
    for line in ["UCX_TLS=posix:", "UCX_TLS=efa:"] {
        assert!(text.lines().any(|l| l == line), "{text}");
    }
    assert_eq!(text.matches("  1000000 bytes arrived\n").count(), 2, "{text}");
    told(&program);
}
