//! The interop matrix against libfabric's EFA provider: compiles the C end, plays cells and scenarios, prints
//! tables. `--only WORDS` plays a part; `--write docs/interop.md` writes the tables into that page.

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use suites::interop::process::{EndProcess, Programs, Stack};
use suites::interop::report::{Libfabric, Report};
use suites::interop::run::{Notification, Plan};
use suites::interop::{native, report};

/// Plays EFA RDM v4 against libfabric's EFA provider on the software device.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Only cells and scenarios whose name contains this ("ours MEDIUM_TAGRTM after RNR", "peek").
    #[arg(long)]
    only: Option<String>,
    /// Seed of the device's random numbers.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Write the tables into this page.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print each result as it comes.
    #[arg(long, short)]
    verbose: bool,
    /// Name of libfabric in the page, if it is not the system's ("2.6, commit af8ddbe9").
    #[arg(long, value_name = "TEXT", requires = "peer")]
    name: Option<String>,
    /// Play our end by the C program, too, with the libfabric provider in this folder.
    #[arg(long, value_name = "FOLDER")]
    provider: Option<PathBuf>,
    /// The C program to use instead of compiling tests/interop/*.c.
    #[arg(long, value_name = "PROGRAM")]
    peer: Option<PathBuf>,
    /// Command that starts libfabric's end, such as `ip netns exec NAME`; words are separated by spaces.
    #[arg(long, value_name = "COMMAND", default_value = "")]
    launcher: String,
    /// Setting of both ends, beside those of the matrix.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[derive(Subcommand, Debug)]
enum Role {
    /// Plays the native end of a script on standard input.
    Play,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.role {
        Some(Role::Play) => native::play().map(|()| true).map_err(|e| e.to_string()),
        None => run(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("interop: {why}");
            ExitCode::from(2)
        }
    }
}

fn beside(name: &str) -> Result<PathBuf, String> {
    let me = std::env::current_exe().map_err(|e| e.to_string())?;
    let path = me.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("no {}: build it with `cargo build --release --bins -p softefa -p efa-dump`", path.display()))
}

fn compile(dir: &Path) -> Result<PathBuf, String> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/interop");
    let files = std::fs::read_dir(sources).map_err(|e| format!("{sources}: {e}"))?;
    let files =
        files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "c"));
    let program = dir.join("peer");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut cc = Command::new(&compiler);
    cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    let out = cc.args(files).arg("-lfabric").output();
    let out = out.map_err(|e| format!("{}: {e}", compiler.to_string_lossy()))?;
    if out.status.success() {
        return Ok(program);
    }
    let why = String::from_utf8_lossy(&out.stderr);
    let hint = if why.contains("rdma/fabric.h") || why.contains("-lfabric") {
        " (libfabric's headers are missing: Debian package libfabric-dev)"
    } else {
        ""
    };
    Err(format!("{sources}/*.c do not compile{hint}:\n{why}"))
}

fn run(args: &Args) -> Result<bool, String> {
    let start = Instant::now();
    let dir = std::env::temp_dir().join(format!("interop.{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let programs = Programs {
        native: std::env::current_exe().map_err(|e| e.to_string())?,
        softefa: beside("softefa")?,
        peer: match &args.peer {
            Some(peer) => std::fs::canonicalize(peer).map_err(|e| format!("{}: {e}", peer.display()))?,
            None => compile(&dir)?,
        },
        provider: args.provider.as_ref().map(std::fs::canonicalize).transpose().map_err(|e| e.to_string())?,
        scratch: dir.clone(),
        launcher: args.launcher.split_whitespace().map(str::to_owned).collect(),
        settings: args.settings.clone(),
    };
    let name = version(&programs)?;
    let plan = Plan {
        programs,
        efa_dump: beside("efa-dump")?,
        dir: dir.clone(),
        only: args.only.clone(),
        seed: args.seed,
    };
    let mut report = Report::default();
    let record = |notification| {
        if args.verbose {
            match &notification {
                Notification::Cell(cell, outcome) => println!("{cell}: {outcome:?}"),
                Notification::Scenario(scenario, who, result) => {
                    println!("{}, {} receives: {result:?}", scenario.name, who.name());
                }
            }
        }
        match notification {
            Notification::Cell(cell, outcome) => report.cell(&cell, &outcome),
            Notification::Scenario(scenario, who, result) => report.scenario(scenario, who, &result),
        }
    };
    plan.all(record).map_err(|e| e.to_string())?;
    let failures = report.failures();
    let (played, messages) = report.counts();
    println!("{}", report.tables());
    for failure in &failures {
        println!("FAILED {failure}");
    }
    println!(
        "{played} played, {} failed, {messages} messages, {:.0} s",
        failures.len(),
        start.elapsed().as_secs_f64()
    );
    if let Some(page) = &args.write {
        let whose = match (&args.peer, &args.name) {
            (None, _) => Libfabric::System(name),
            (Some(_), given) => Libfabric::Other(given.clone().unwrap_or(name)),
        };
        report::write(page, &whose, &report)?;
    }
    if failures.is_empty() {
        let _ = std::fs::remove_dir_all(&dir);
    } else {
        println!("captures of what failed are in {}", dir.display());
    }
    Ok(failures.is_empty() && played > 0)
}

/// libfabric's release, from the end that runs it.
fn version(programs: &Programs) -> Result<String, String> {
    let mut end = EndProcess::start(Stack::Libfabric, programs, &[]).map_err(|e| e.to_string())?;
    let line = end.step("version").map_err(|e| e.to_string())?;
    end.quit().map_err(|e| e.to_string())?;
    Ok(line.text().trim_start_matches("ok ").to_owned())
}
