//! The `softefa` launcher in tests: built once, started without other settings of ours, killed with the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Limit for a client.
pub const TIMEOUT: Duration = Duration::from_secs(90);

/// Limit for what takes a moment.
pub const SHORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds the launcher and the library; answers the launcher's path.
pub fn softefa() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        // This program is TARGET/PROFILE/deps/NAME.
        let me = std::env::current_exe().unwrap();
        let profile = me.ancestors().nth(2).unwrap();
        let mut cargo = crate::cargo::command();
        // The library is not built with a program.
        cargo.current_dir(root).args(crate::cargo::build(profile, "--bin", "softefa")).arg("--lib");
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        let built = cargo.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        profile.join("softefa")
    })
}

/// Working directory below the target folder for programs under test, which may leave backtraces and cores.
pub fn scratch() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    let dir = me.ancestors().nth(3).unwrap().join("tmp").join("scratch");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A process that is killed when dropped.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `softefa run OPTIONS -- COMMAND` without other settings of ours.
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

/// Waits for the process to end; answers its output.
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

/// Output of a process as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits for a successful end; answers the standard output.
pub fn expect_success(running: Running, what: &str) -> String {
    let out = finish(running, what);
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{what}: {:?}\n{stdout}\n{stderr}", out.status);
    stdout
}

/// Sysfs trees of the run whose process is or was `pid`.
pub fn trees_of(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|e| e.path());
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("softefa-sys.") && name.split('.').nth(3) == Some(&pid.to_string())
    };
    entries.filter(ours).collect()
}

/// Waits for the watcher to remove the tree, a moment after the program's end.
pub fn assert_no_tree(pid: u32) {
    let until = Instant::now() + SHORT_TIMEOUT;
    while !trees_of(pid).is_empty() {
        assert!(Instant::now() < until, "left: {:?}", trees_of(pid));
        std::thread::sleep(Duration::from_millis(5));
    }
}
