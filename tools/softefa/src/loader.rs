//! Reports what the loader finds for a program: libraries, missing ones, verbs that we lack. Runs nothing.

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VERBS: [&str; 3] = ["ibv_", "_ibv_", "efadv_"];
/// Calls between the parts of rdma-core.
const INTERNAL: &str = "ibv_cmd_";

#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoadedLibs {
    pub found: Vec<PathBuf>,
    /// Missing libraries and symbol versions, in the loader's words.
    pub missing: Vec<String>,
}

impl LoadedLibs {
    /// Libraries of a program that is no script; `None` without the system's loader.
    pub fn of(program: &Path) -> Option<LoadedLibs> {
        let interpreter = with_elf(program, elf_interpreter)??;
        let system = interpreter.file_name()?.to_str()?.starts_with("ld-linux");
        if !system {
            return None;
        }
        let listed =
            Command::new(interpreter).arg("--list").arg(program).stdin(Stdio::null()).output().ok()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(parse(&(text(&listed.stdout) + &text(&listed.stderr))))
    }

    pub fn library(&self, name: &str) -> Option<&Path> {
        let named = |p: &&PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(name));
        self.found.iter().find(named).map(PathBuf::as_path)
    }

    /// Verbs that the program or its libraries call and `ours` lacks.
    pub fn unsupported_calls(&self, program: &Path, ours: &Path) -> Vec<String> {
        let has = with_elf(ours, |elf| names(elf, true)).unwrap_or_default();
        let part_of_rdma_core = |p: &Path| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            ["libibverbs.so", "libefa.so", "libmlx", "libmana.so"].iter().any(|n| name.starts_with(n))
        };
        let users =
            self.found.iter().map(PathBuf::as_path).filter(|p| !part_of_rdma_core(p)).chain([program]);
        let used = users.filter_map(|p| with_elf(p, |elf| names(elf, false))).flatten();
        let all: BTreeSet<String> = used.filter(|name| !has.contains(name)).collect();
        all.into_iter().collect()
    }
}

/// Version of rdma-core in the file name of libibverbs: `libibverbs.so.1.14.44.0` is of 44.0.
pub fn rdma_core(libibverbs: &Path) -> Option<String> {
    let real = fs::canonicalize(libibverbs).ok()?;
    version_in(real.file_name()?.to_str()?)
}

fn version_in(name: &str) -> Option<String> {
    let numbers = name.strip_prefix("libibverbs.so.1.")?.split_once('.')?.1;
    numbers.starts_with(|c: char| c.is_ascii_digit()).then(|| numbers.to_owned())
}

fn parse(listed: &str) -> LoadedLibs {
    let mut all = LoadedLibs::default();
    for line in listed.lines().map(str::trim) {
        if line.contains("not found") || line.contains("error while loading") || line.contains("cannot open")
        {
            all.missing.push(line.to_owned());
        } else if let Some(path) = line.split_once(" => ").map(|(_, path)| path) {
            let path = path.rsplit_once(" (0x").map_or(path, |(path, _)| path);
            all.found.push(PathBuf::from(path));
        }
    }
    all
}

fn with_elf<T>(path: &Path, f: impl FnOnce(&ElfFile64<'_, Endianness>) -> T) -> Option<T> {
    let bytes = fs::read(path).ok()?;
    ElfFile64::parse(&*bytes).ok().map(|elf| f(&elf))
}

fn elf_interpreter(elf: &ElfFile64<'_, Endianness>) -> Option<PathBuf> {
    use object::read::elf::ProgramHeader;
    use std::os::unix::ffi::OsStrExt;
    let path =
        elf.elf_program_headers().iter().find_map(|h| h.interpreter(elf.endian(), elf.data()).ok()?)?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

/// Verbs that a file defines (`has`), or calls.
fn names(elf: &ElfFile64<'_, Endianness>, has: bool) -> BTreeSet<String> {
    let all = elf.dynamic_symbols().filter(|s| s.is_undefined() != has);
    let named = all.filter_map(|s| s.name().ok().map(str::to_owned));
    named.filter(|n| VERBS.iter().any(|v| n.starts_with(v)) && !n.starts_with(INTERNAL)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_is_parsed() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibibverbs.so.1 => /lib/x/libibverbs.so.1 (0x00007f)\n\
                      \tlibother.so.2 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\
                      ./user: /lib/x/libibverbs.so.1: version `IBVERBS_9.9' not found (required by ./user)\n";
        let all = parse(listed);
        assert_eq!(all.found, [PathBuf::from("/lib/x/libibverbs.so.1")]);
        assert_eq!(all.missing.len(), 2);
        assert_eq!(all.library("libibverbs.so"), Some(Path::new("/lib/x/libibverbs.so.1")));
        assert_eq!(all.library("libefa.so"), None);
    }

    #[test]
    fn versions_are_in_file_names() {
        assert_eq!(version_in("libibverbs.so.1.14.44.0").as_deref(), Some("44.0"));
        assert_eq!(version_in("libibverbs.so.1.15.62.0").as_deref(), Some("62.0"));
        assert_eq!(version_in("libibverbs.so.1"), None);
        assert_eq!(version_in("libefa.so.1.2.44.0"), None);
    }

    #[test]
    fn this_program_starts() {
        let me = std::env::current_exe().unwrap();
        let all = LoadedLibs::of(&me).unwrap();
        assert_eq!(all.missing, Vec::<String>::new());
        assert!(all.library("libc.so").is_some());
        assert_eq!(all.unsupported_calls(std::path::Path::new("/bin/sh"), &me), Vec::<String>::new());
    }
}
