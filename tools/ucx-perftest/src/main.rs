//! ucx-perftest: measures transports and protocols between two processes, with the habits of `ucx_perftest`.
//! A server waits, a client names it and says what to measure; `--local` is both at once.
//!
//! | Module | What |
//! |---|---|
//! | `cli`, `batch`, `spec` | what to measure |
//! | `link`, `local`, `session` | two sides, and the plan between them |
//! | `tests_uct`, `tests_ucp` | the measured loops |
//! | `pattern`, `patience` | bytes that are checked; what a loop does while nothing happens |
//! | `report`, `tour`, `fail` | what is printed |

mod batch;
mod cli;
mod fail;
mod link;
mod local;
mod patience;
mod pattern;
mod report;
mod session;
mod spec;
mod tests_ucp;
mod tests_uct;
mod tour;

use std::process::ExitCode;

use cli::Cli;
use fail::Failure;
use link::{Link, Side};
use local::TOOL;
use report::Report;
use session::Banner;
use tools_common::boot::{Boot, Listener};

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(None) => return ExitCode::SUCCESS,
        Err(Some(e)) => return refuse(&e),
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => refuse(&e),
    }
}

fn refuse(e: &Failure) -> ExitCode {
    eprintln!("{TOOL}: {e}");
    ExitCode::from(e.status())
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let source = tools_common::settings::load()?;
    if let Some(port) = cli.peer_of {
        pin(cli)?;
        let mut link = local::join(port)?;
        // What went wrong has been told to the parent, which prints it.
        return session::serve(&source, &mut link, &mut Report::silent())
            .map_err(|e| std::process::exit(e.status().into()));
    }
    let mut report = Report::new(cli);
    if cli.local && cli.test.test.is_none() && cli.batch.is_empty() {
        return tour::run(cli, &source);
    }
    if cli.local {
        let specs = batch::specs(&cli.test, &cli.batch)?;
        let (mut link, _peer) = local::start(cli.cpus.as_ref())?;
        return session::drive(&specs, &source, &mut link, &mut report, Banner::Here, drop);
    }
    pin(cli)?;
    if cli.loopback {
        let specs = batch::specs(&cli.test, &cli.batch)?;
        return session::drive(&specs, &source, &mut Link::loopback(), &mut report, Banner::Here, drop);
    }
    if let Some(host) = &cli.host {
        let specs = batch::specs(&cli.test, &cli.batch)?;
        let mut link = Link::new(Side::Client, Boot::connect(TOOL, host, cli.port)?);
        return session::drive(&specs, &source, &mut link, &mut report, Banner::Server, drop);
    }
    let listener = Listener::any(TOOL, cli.family(), cli.port)?;
    report.say("Waiting for connection...");
    let boot = listener.accept(|| Ok(()))?;
    report.say(&format!("Accepted connection from {}", boot.peer()));
    session::serve(&source, &mut Link::new(Side::Server, boot), &mut report)
}

/// Keeps this process on the cores of `-c`.
fn pin(cli: &Cli) -> Result<(), Failure> {
    match cli.cpus.as_ref().map(ucs::sys::CpuSet::as_slice) {
        None => Ok(()),
        Some([one]) => Ok(ucs::sys::cpu::pin(*one)?),
        Some(_) => Err(Failure::Usage("-c: one core for one process; two with --local".into())),
    }
}
