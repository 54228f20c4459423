//! `softefa doctor`: each thing a run needs, whether it is there, and how to mend it. Changes nothing.

use crate::run;
use std::path::Path;
use std::process::ExitCode;
use ucs::config::Source;
use uct::efa::dev::soft::{self, reach};

/// A finding.
enum Found {
    Good(String),
    /// Works, but.
    Note(String),
    Bad(String),
}

fn library() -> Found {
    match run::library() {
        Ok(path) => Found::Good(format!("library: {}", path.display())),
        Err(e) => Found::Bad(format!("library: {e}")),
    }
}

fn device() -> Found {
    let source = Source::from_env().map_err(|e| e.to_string());
    let opened = source.and_then(|s| soft::open_shm(&s, "softefa0").map_err(|e| e.to_string()));
    match opened {
        Ok(_) => Found::Good("device: softefa0 opens".into()),
        Err(e) => Found::Bad(format!("device: {e}")),
    }
}

fn memory() -> Found {
    match reach::memory_of_others() {
        Some(o) => Found::Note(format!(
            "memory of other processes: barred ({}), so the device has no RDMA, and long messages go in packets (mend: {})",
            o.what, o.remedy
        )),
        None => Found::Good("memory of other processes: may be read and written".into()),
    }
}

fn process() -> Found {
    match reach::this_process() {
        Some(o) => Found::Bad(format!("reach: other processes cannot send here: {} ({})", o.what, o.remedy)),
        None => Found::Good("reach: processes of this user find each other".into()),
    }
}

fn descriptors() -> Found {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.current {
        Some(n) if n < 1024 => {
            Found::Note(format!("descriptors: {n}; large jobs need more (mend: ulimit -n 4096)"))
        }
        Some(n) => Found::Good(format!("descriptors: {n}")),
        None => Found::Good("descriptors: no limit".into()),
    }
}

fn client(program: &str, package: &str) -> Found {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| Path::new(&dir).join(program).is_file());
    if there {
        Found::Good(format!("client: {program}"))
    } else {
        Found::Note(format!("client: no {program} (to try it: apt-get install {package})"))
    }
}

/// Prints all findings; fails if something needed is missing.
pub fn doctor() -> ExitCode {
    let all = [
        library(),
        device(),
        memory(),
        process(),
        descriptors(),
        client("fi_info", "libfabric-bin"),
        client("fi_pingpong", "libfabric-bin"),
    ];
    let mut bad = false;
    for found in &all {
        match found {
            Found::Good(text) => println!("ok       {text}"),
            Found::Note(text) => println!("note     {text}"),
            Found::Bad(text) => {
                bad = true;
                println!("MISSING  {text}");
            }
        }
    }
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
