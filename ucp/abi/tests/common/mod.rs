//! Parts that the test programs of this crate share: the library under UCX's names, and runs that end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Folder of the library that was built with this test, under UCX's names. Made once, for all threads.
pub fn library_folder() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(make_library_folder).clone()
}

fn make_library_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let deps = exe.parent().expect("it is in a folder");
    let candidates = [deps.join("libucp_abi.so"), deps.join("../libucp_abi.so")];
    let built = candidates.iter().find(|path| path.exists()).expect("the library is built with its tests");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
    std::fs::create_dir_all(&folder).expect("a folder for the library");
    link(built, &folder.join("libucp.so.0"));
    for name in ["ucs", "ucm", "uct"] {
        let stub = folder.join(format!("lib{name}.so.0"));
        if !stub.exists() {
            make_stub(name, &folder, &stub);
        }
    }
    folder
}

/// Whether there is a C compiler. If not, the test that asks is skipped.
#[allow(dead_code)]
pub fn has_compiler() -> bool {
    let found = Command::new("gcc").arg("--version").output().is_ok();
    if !found {
        ucs::testing::not_installed("C headers and programs", "no gcc");
    }
    found
}

/// Makes a link, or replaces the one that is there. Other test programs do the same at the same time.
fn link(to: &Path, at: &Path) {
    let temporary = at.with_extension(std::process::id().to_string());
    _ = std::fs::remove_file(&temporary);
    std::os::unix::fs::symlink(to, &temporary).expect("a link to the library");
    std::fs::rename(&temporary, at).expect("the link gets its name");
}

/// Makes a library that holds nothing and needs `libucp.so.0`, as `tools/install` does.
fn make_stub(name: &str, folder: &Path, at: &Path) {
    let temporary = at.with_extension(std::process::id().to_string());
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-x", "c", "-"]).arg("-o").arg(&temporary);
    gcc.arg(format!("-Wl,-soname,lib{name}.so.0")).arg("-Wl,--no-as-needed");
    gcc.arg(format!("-L{}", folder.display())).arg("-l:libucp.so.0").stdin(Stdio::null());
    // Without a compiler no test of this crate needs the library.
    if gcc.status().is_ok_and(|status| status.success()) {
        std::fs::rename(&temporary, at).expect("the library gets its name");
    }
}

/// Runs a command to its end, which must come within a time in seconds. Output goes to pipes.
#[allow(dead_code)]
pub fn output_within(mut command: Command, seconds: u64) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let until = Instant::now() + Duration::from_secs(seconds);
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let status = loop {
        if let Some(status) = child.try_wait().expect("the program is a child") {
            break status;
        }
        if Instant::now() > until {
            // Launchers end their processes when they are terminated.
            _ = Command::new("kill").arg(child.id().to_string()).status();
            std::thread::sleep(Duration::from_secs(3));
            _ = child.kill();
            let (out, err) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            panic!("{command:?} did not end within {seconds} s\n{}\n{}", text(&out), text(&err));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let join = |reader: std::thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    Output { status, stdout: join(stdout), stderr: join(stderr) }
}

/// Reads a pipe to its end, beside the program that fills it.
fn reader<R: Read + Send + 'static>(pipe: Option<R>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        _ = pipe.expect("piped").read_to_end(&mut all);
        all
    })
}
