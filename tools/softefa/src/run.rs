//! `softefa run`: sets up the sysfs tree and the environment, then becomes the program, whose signals,
//! terminal and exit status are its own. The cleanup process removes the tree.

use crate::cleanup;
use crate::loader::LoadedLibs;
use crate::program::{self, Preload};
use crate::sysfs_tree::SysfsTree;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use uct::efa::dev::soft::permissions;

/// Keys of hwloc: a topology to take for the machine's, and that it is.
const HWLOC_XMLFILE: &str = "HWLOC_XMLFILE";
const HWLOC_THISSYSTEM: &str = "HWLOC_THISSYSTEM";

pub const LIBRARY: &str = "libsoftefa.so";
/// Exit status for a failure of softefa itself, as of `env` and `nice`.
const OWN_FAULT: u8 = 125;
/// Exit status for a missing program, as of a shell.
const NOT_FOUND: u8 = 127;
/// Exit status for a program that cannot be run.
const NOT_RUN: u8 = 126;

pub struct RunError {
    pub code: u8,
    pub text: String,
}

impl From<String> for RunError {
    fn from(text: String) -> RunError {
        RunError { code: OWN_FAULT, text }
    }
}

/// The library, beside this program or in ../lib.
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

fn preload(library: PathBuf) -> OsString {
    let mut all = library.into_os_string();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        all.push(OsStr::new(":"));
        all.push(before);
    }
    all
}

/// Becomes `command` with `devices`; returns only on failure.
pub fn run(
    keys: &[(&'static str, String)],
    devices: &[String],
    command: &[OsString],
) -> Result<Infallible, RunError> {
    let library = library()?;
    let Some((name, arguments)) = command.split_first() else {
        return Err(RunError::from("no program given".to_owned()));
    };
    let fail =
        |code, why: String| RunError { code, text: format!("{} cannot be run: {why}", name.display()) };
    let path = program::find(name).map_err(|e| fail(NOT_FOUND, e))?;
    let binary = program::binary(&path);
    match Preload::of(&binary) {
        Preload::Works => {}
        Preload::Ignored(why) => ucs::stderr_line!(
            "softefa: note: {} does not find the device ({why}); other programs that it starts do",
            name.display()
        ),
        Preload::Blocked(why) => {
            return Err(fail(NOT_RUN, format!("{why}, so the system preloads nothing into it")));
        }
    }
    if let Some(loaded) = LoadedLibs::of(&binary) {
        loaded.missing.iter().for_each(|line| ucs::stderr_line!("softefa: note: it will not start: {line}"));
        if !loaded.missing.is_empty() {
            ucs::stderr_line!("softefa: note: see `softefa doctor {}`", name.display());
        }
    }
    for refused in permissions::refused_calls() {
        ucs::stderr_line!("softefa: note: programs may not reach each other: {refused}");
    }
    let made = |e| format!("the device tree cannot be made in {}: {e}", std::env::temp_dir().display());
    let tree = SysfsTree::make(devices).map_err(made)?;
    let tree_path = tree.path().to_path_buf();
    let topology = tree.topology().filter(|_| std::env::var_os(HWLOC_XMLFILE).is_none());
    cleanup::start(tree)
        .map_err(|e| format!("nobody could remove {} afterwards: {e}", tree_path.display()))?;
    let error = Command::new(&path)
        .arg0(name)
        .args(arguments)
        .env("LD_PRELOAD", preload(library))
        .env("SYSFS_PATH", tree_path)
        .envs(keys.iter().map(|(key, value)| (key, value)))
        .envs(topology.iter().map(|path| (HWLOC_XMLFILE, path.as_os_str())))
        .envs(topology.iter().map(|_| (HWLOC_THISSYSTEM, OsStr::new("1"))))
        .exec();
    Err(fail(NOT_RUN, error.to_string()))
}
