//! `softefa doctor`: checks what a run needs, and what keeps a program from the device, with remedies.

use crate::loader::{self, LoadedLibs};
use crate::pci;
use crate::program::{self, Preload};
use crate::run;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use tools_common::out;
use ucs::config::Source;
use uct::efa::dev::Problem;
use uct::efa::dev::soft::{self, permissions};

mod host;
mod listen;
mod probe;

pub use listen::listen;

enum Finding {
    Good(String),
    /// Works with a limitation.
    Note(String),
    Bad(String),
}

fn library() -> Finding {
    match run::library() {
        Ok(path) => Finding::Good(format!("library: {}", path.display())),
        Err(e) => Finding::Bad(format!("library: {e}")),
    }
}

fn device() -> Finding {
    let source = Source::from_env().map_err(|e| e.to_string());
    let opened = source.and_then(|s| soft::open(&s, "softefa0").map_err(|e| e.to_string()));
    match opened {
        Ok(_) => Finding::Good("device: softefa0 opens".into()),
        Err(e) => Finding::Bad(format!("device: {e}")),
    }
}

fn memory() -> Finding {
    match permissions::peer_memory() {
        Some(o) => Finding::Note(format!(
            "memory of other processes: barred ({}), so the device has no RDMA, and long messages go in packets (fix: {})",
            o.what, o.remedy
        )),
        None => Finding::Good("memory of other processes: may be read and written".into()),
    }
}

fn process() -> Finding {
    match permissions::own_process() {
        Some(o) => {
            Finding::Bad(format!("reach: other processes cannot send here: {} ({})", o.what, o.remedy))
        }
        None => Finding::Good("reach: processes of this user find each other".into()),
    }
}

/// Tries the system calls that messages need.
fn system_calls() -> Vec<Finding> {
    let refused = permissions::refused_calls();
    if refused.is_empty() {
        return vec![Finding::Good("system calls: none is refused".into())];
    }
    let bad = |p: Problem| Finding::Bad(format!("system calls: {} (fix: {})", p.what, p.remedy));
    refused.into_iter().map(bad).collect()
}

/// Whether MPI libraries find the NIC's PCI address.
fn pci_address() -> Finding {
    if pci::has_first(Path::new(pci::FUNCTIONS)) {
        Finding::Good(format!("PCI: the device stands at {} of this machine", pci::FIRST))
    } else {
        Finding::Note(format!(
            "PCI: no {} here, which MPI libraries look up; `softefa run` sets HWLOC_XMLFILE to a topology that has it, with \
             every CPU as a core of one package (to keep the machine's own: set HWLOC_XMLFILE yourself)",
            pci::FIRST
        ))
    }
}

fn descriptors() -> Finding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.current {
        Some(n) if n < 1024 => {
            Finding::Note(format!("descriptors: {n}; large jobs need more (fix: ulimit -n 4096)"))
        }
        Some(n) => Finding::Good(format!("descriptors: {n}")),
        None => Finding::Good("descriptors: no limit".into()),
    }
}

fn client(program: &str, package: &str) -> Finding {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| Path::new(&dir).join(program).is_file());
    if found {
        Finding::Good(format!("client: {program}"))
    } else {
        Finding::Note(format!("client: no {program} (to try it: apt-get install {package})"))
    }
}

fn program(name: &OsStr) -> Vec<Finding> {
    let shown = name.display();
    let path = match program::find(name) {
        Ok(path) => path,
        Err(e) => return vec![Finding::Bad(format!("program: {shown}: {e}"))],
    };
    let binary = program::binary(&path);
    let by = if binary == path { String::new() } else { format!(", which {} runs", binary.display()) };
    let mut all = vec![match Preload::of(&binary) {
        Preload::Works => Finding::Good(format!("program: {}{by}", path.display())),
        Preload::Ignored(why) => Finding::Bad(format!(
            "program: {}{by}: {why}, so nothing can be preloaded into it (fix: build it for 64-bit x86, linked dynamically; \
             programs that it starts may find the device)",
            path.display()
        )),
        Preload::Blocked(why) => Finding::Bad(format!(
            "program: {}{by}: {why}, so the system preloads nothing into it (fix: use a copy without that bit)",
            path.display()
        )),
    }];
    if let (Some(loaded), Ok(library)) = (LoadedLibs::of(&binary), run::library()) {
        all.extend(
            loaded.missing.iter().map(|line| Finding::Bad(format!("start: {line} ({})", remedy(line)))),
        );
        all.push(verbs(&loaded));
        let unsupported = loaded.unsupported_calls(&binary, &library);
        if !unsupported.is_empty() {
            all.push(Finding::Bad(format!(
                "calls: {} (they would reach the real libibverbs, which knows nothing of this device; fix: use a build of the \
                 program for {LATEST_KNOWN} or earlier)",
                unsupported.join(", ")
            )));
        }
    }
    all
}

fn remedy(line: &str) -> &'static str {
    if line.contains("IBVERBS_") || line.contains("EFA_1") {
        "the program was built for a later rdma-core than is here; fix: install that, or name its directory in LD_LIBRARY_PATH"
    } else if line.contains("libibverbs") || line.contains("libefa") {
        "fix: apt-get install libibverbs1 ibverbs-providers"
    } else {
        "fix: install the package that has it, or name its directory in LD_LIBRARY_PATH"
    }
}

fn verbs(loaded: &LoadedLibs) -> Finding {
    let Some(libibverbs) = loaded.library("libibverbs.so") else {
        return Finding::Note(
            "verbs: it is not linked with libibverbs; unless it loads that later, as UCX does, it looks for no device".into(),
        );
    };
    let version = loader::rdma_core(libibverbs).map_or(String::new(), |v| format!(" of rdma-core {v}"));
    let efa = match loaded.library("libefa.so") {
        Some(libefa) => format!(", {}", libefa.display()),
        None => String::new(),
    };
    Finding::Good(format!("verbs: {}{version}{efa}; softefa answers in their place", libibverbs.display()))
}

/// Latest rdma-core whose calls are all implemented.
const LATEST_KNOWN: &str = "rdma-core 65";

/// Prints all findings about this machine, a program, or the way to another host; fails if something needed
/// is missing.
pub fn doctor(name: Option<&OsStr>, source: &Source) -> ExitCode {
    if let Some((host, port)) = name.and_then(host::parse) {
        return print(&host::checks(host, port, source));
    }
    let mut all = vec![library(), device(), memory(), process()];
    all.extend(system_calls());
    all.extend([pci_address(), descriptors()]);
    match name {
        Some(name) => all.extend(program(name)),
        None => all.extend(["fi_info", "fi_pingpong"].map(|name| client(name, "libfabric-bin"))),
    }
    print(&all)
}

fn print(all: &[Finding]) -> ExitCode {
    let mut bad = false;
    for found in all {
        match found {
            Finding::Good(text) => out::line(format!("ok       {text}")),
            Finding::Note(text) => out::line(format!("note     {text}")),
            Finding::Bad(text) => {
                bad = true;
                out::line(format!("MISSING  {text}"));
            }
        }
    }
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
