//! The `softefa` launcher as tests use it: built once, started with nothing else of ours set, ended with the test.
//! Used by the tests of programs on the software device. Not part of any suite of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A client that takes longer than this hangs.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// What is to be over in a moment.
pub const SHORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds the launcher and the library; answers the launcher.
pub fn softefa() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        // This program is TARGET/PROFILE/deps/NAME.
        let me = std::env::current_exe().unwrap();
        let profile = me.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        // The library too, of which no program is made.
        cargo.current_dir(root).args(crate::cargo::build(profile, "--bin", "softefa")).arg("--lib");
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        let built = cargo.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        profile.join("softefa")
    })
}

/// A folder below this program's target directory: where programs under test run, so that what they drop when they die
/// (libfabric's backtraces, cores) does not lie among the sources.
pub fn scratch() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    let dir = me.ancestors().nth(3).unwrap().join("tmp").join("scratch");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A process that is ended when the test ends.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `softefa run OPTIONS -- COMMAND` with nothing else of ours set.
pub fn start(options: &[&str], command: &[&str]) -> Running {
    let mut run = Command::new(softefa());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["UCX_", "SOFTEFA_", "FI_"].iter().any(|p| text.starts_with(p)) {
            run.env_remove(&name);
        }
    }
    run.current_dir(scratch());
    run.arg("run").args(options).arg("--").args(command);
    Running(run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for its end and answers what it printed.
pub fn finish(mut running: Running, what: &str) -> Output {
    use std::io::Read;
    let (stdout, stderr) = (running.0.stdout.take(), running.0.stderr.take());
    let drain = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            from.into_iter().for_each(|mut from| {
                let _ = from.read_to_end(&mut all);
            });
            all
        })
    };
    let out = drain(stdout.map(|s| Box::new(s) as Box<dyn Read + Send>));
    let err = drain(stderr.map(|s| Box::new(s) as Box<dyn Read + Send>));
    let until = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "{what} hangs");
        std::thread::sleep(Duration::from_millis(5));
    };
    Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
}

/// What a process printed, as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a run printed, if it went well.
pub fn expect_success(running: Running, what: &str) -> String {
    let out = finish(running, what);
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{what}: {:?}\n{stdout}\n{stderr}", out.status);
    stdout
}

/// Trees of the run whose process is or was `pid`.
pub fn trees_of(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|e| e.path());
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("softefa-sys.") && name.split('.').nth(2) == Some(&pid.to_string())
    };
    entries.filter(ours).collect()
}

/// The watcher removes the tree a moment after the program's end.
pub fn assert_no_tree(pid: u32) {
    let until = Instant::now() + SHORT_TIMEOUT;
    while !trees_of(pid).is_empty() {
        assert!(Instant::now() < until, "left: {:?}", trees_of(pid));
        std::thread::sleep(Duration::from_millis(5));
    }
}
