//! `softefa run`: the tree, the environment, the program, and its exit status. Waits for the program, so that the tree
//! goes when it ends; hands on the signals that would end the launcher.

use crate::tree::Tree;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

/// The library's file name.
pub const LIBRARY: &str = "libsoftefa.so";
/// Exit status for a program that is not there, as of a shell.
const NOT_FOUND: u8 = 127;
/// And for one that cannot be run.
const NOT_RUN: u8 = 126;

/// The library, which lies beside this program.
pub fn library() -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|e| format!("where this program is cannot be found: {e}"))?;
    let dir = me.parent().unwrap_or(&me);
    let found = [dir.join(LIBRARY), dir.join("../lib").join(LIBRARY)].into_iter().find(|p| p.is_file());
    let found = found.ok_or_else(|| {
        format!(
            "no {LIBRARY} in {} (nor in ../lib): build it with `cargo build --release -p softefa`",
            dir.display()
        )
    })?;
    let found = found.canonicalize().map_err(|e| format!("{}: {e}", found.display()))?;
    if found.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b' ' | b':')) {
        let text = "cannot be preloaded: its path has a space or a colon in it; move it";
        return Err(format!("{} {text}", found.display()));
    }
    Ok(found)
}

/// The program that signals are handed on to.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn hand_on(signal: i32) {
    let pid = CHILD.load(Ordering::Relaxed);
    if pid > 0 {
        // SAFETY: kill may be called in a signal handler and takes no memory.
        unsafe { libc::kill(pid, signal) };
    }
}

/// A terminal sends its signals to the program too.
extern "C" fn nothing(_signal: i32) {}

fn catch(signal: i32, handler: extern "C" fn(i32)) {
    // SAFETY: all-zero is a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is whole, and the handlers do only what handlers may.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}

fn exit_code(status: ExitStatus) -> ExitCode {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitCode::from(code as u8),
        (_, Some(signal)) => ExitCode::from(128u8.wrapping_add(signal as u8)),
        _ => ExitCode::FAILURE,
    }
}

fn preload(library: PathBuf) -> OsString {
    let mut all = library.into_os_string();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(before);
    }
    all
}

/// Runs `command` with `devices` in it; answers its exit status.
pub fn run(
    keys: &[(&'static str, String)],
    devices: &[String],
    command: &[OsString],
) -> Result<ExitCode, String> {
    let library = library()?;
    let tree = Tree::make(devices)
        .map_err(|e| format!("the device tree cannot be made in {}: {e}", std::env::temp_dir().display()))?;
    let Some((program, arguments)) = command.split_first() else { return Err("no program given".into()) };
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        catch(signal, nothing);
    }
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        catch(signal, hand_on);
    }
    let spawned = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preload(library))
        .env("SYSFS_PATH", tree.path())
        .envs(keys.iter().map(|(key, value)| (key, value)))
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => {
            eprintln!("softefa: {} cannot be run: {e}", program.display());
            let missing = e.kind() == std::io::ErrorKind::NotFound;
            return Ok(ExitCode::from(if missing { NOT_FOUND } else { NOT_RUN }));
        }
    };
    CHILD.store(child.id() as i32, Ordering::Relaxed);
    let status = child.wait().map_err(|e| format!("{}: {e}", program.display()))?;
    // Its number may be another's from now on.
    CHILD.store(0, Ordering::Relaxed);
    Ok(exit_code(status))
}
