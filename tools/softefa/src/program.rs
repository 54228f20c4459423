//! Checks of a program before it runs: where it is, and whether the loader would ignore a preloaded library.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const ELF: &[u8] = b"\x7fELF";
/// Sizes of an ELF header and of a program header.
const ELF_HDR: usize = 64;
const PROGRAM_HDR: usize = 56;
/// The entry that names the dynamic loader.
const PT_INTERP: u32 = 3;
const CLASS_64: u8 = 2;
const MACHINE: u16 = 62;
/// Nested script interpreters that the kernel follows.
const MAX_SCRIPTS: u32 = 5;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// File that a shell would run for `name`.
pub fn find(name: &OsStr) -> Result<PathBuf, String> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.exists() { Ok(path) } else { Err("no such file".into()) };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runs = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(runs);
    found.ok_or_else(|| match package(&name.to_string_lossy()) {
        Some(package) => format!("there is no such program in PATH (Debian: apt-get install {package})"),
        None => "there is no such program in PATH".into(),
    })
}

/// Debian package of a client program.
fn package(name: &str) -> Option<&'static str> {
    const ALL: [(&str, &str); 3] =
        [("fi_", "libfabric-bin"), ("ucx_", "ucx-utils"), ("ibv_", "ibverbs-utils")];
    ALL.iter().find(|(start, _)| name.starts_with(start)).map(|(_, package)| *package)
}

/// Effect of a library preloaded into a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preload {
    Works,
    /// Ignored, for this reason; child programs may load it.
    Ignored(&'static str),
    /// The preload setting is removed, for this reason.
    Blocked(&'static str),
}

fn read_head(path: &Path) -> Option<(File, Vec<u8>)> {
    let mut file = File::open(path).ok()?;
    let mut head = Vec::new();
    // Unreadable counts as empty.
    let _ = file.by_ref().take(1 << 16).read_to_end(&mut head);
    Some((file, head))
}

/// Program that runs for `path`: itself, or the interpreter of a script.
pub fn binary(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_SCRIPTS {
        let Some((_, head)) = read_head(&path) else { break };
        let Some(line) = head.strip_prefix(b"#!") else { break };
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default().trim_ascii();
        let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
        path = PathBuf::from(String::from_utf8_lossy(&line[..end]).into_owned());
    }
    path
}

impl Preload {
    /// Checks a program that is no script ([`binary`]).
    pub fn of(path: &Path) -> Preload {
        read_head(path).map_or(Preload::Works, |(file, head)| inspect(&file, &head))
    }
}

fn inspect(file: &File, head: &[u8]) -> Preload {
    if !head.starts_with(ELF) {
        return Preload::Works;
    }
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let changes = |m: &Metadata| {
        (m.mode() & SET_UID != 0 && m.uid() != uid) || (m.mode() & SET_GID != 0 && m.gid() != gid)
    };
    if file.metadata().is_ok_and(|m| changes(&m)) {
        return Preload::Blocked("it is setuid or setgid");
    }
    if head.get(4) != Some(&CLASS_64) {
        return Preload::Ignored("it is a 32-bit program");
    }
    if head.get(18..20) != Some(&MACHINE.to_le_bytes()) {
        return Preload::Ignored("it is for another processor");
    }
    if is_static(head) {
        return Preload::Ignored("it is statically linked");
    }
    Preload::Works
}

fn is_static(head: &[u8]) -> bool {
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = head.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)))
    };
    let entry = |i: usize| number(32, 8)?.checked_add(i.checked_mul(PROGRAM_HDR)?);
    let Some(count) = number(56, 2).filter(|_| head.len() >= ELF_HDR) else { return false };
    // A table beyond what was read is unusual: leave it to the loader.
    let kinds: Option<Vec<usize>> = (0..count).map(|i| entry(i).and_then(|at| number(at, 4))).collect();
    kinds.is_some_and(|kinds| !kinds.contains(&(PT_INTERP as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A little-endian 64-bit ELF file with program headers of these kinds.
    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut file = vec![0; ELF_HDR + kinds.len() * PROGRAM_HDR];
        file[..4].copy_from_slice(ELF);
        file[4] = CLASS_64;
        file[32] = ELF_HDR as u8;
        file[56] = kinds.len() as u8;
        for (i, kind) in kinds.iter().enumerate() {
            file[ELF_HDR + i * PROGRAM_HDR] = *kind as u8;
        }
        file
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        assert!(is_static(&elf(&[1, 1, 2])));
        assert!(!is_static(&elf(&[6, PT_INTERP, 1])));
        assert!(!is_static(ELF), "too short to know");
        let mut beyond = elf(&[1]);
        beyond[56] = 200;
        assert!(!is_static(&beyond));
    }

    #[test]
    fn this_program_is_found_and_can_be_preloaded() {
        let me = std::env::current_exe().unwrap();
        assert_eq!(Preload::of(&me), Preload::Works);
        assert_eq!(binary(&me), me);
        assert_eq!(find(me.as_os_str()), Ok(me));
        assert!(find(OsStr::new("sh")).is_ok_and(|p| Preload::of(&p) == Preload::Works));
        let error = find(OsStr::new("no-such-program-here")).unwrap_err();
        assert!(!error.contains("apt-get"), "{error}");
        let error = find(OsStr::new("fi_no_such_program")).unwrap_err();
        assert!(error.contains("apt-get install libfabric-bin"), "{error}");
    }
}
