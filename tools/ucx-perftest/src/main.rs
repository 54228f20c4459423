//! ucx-perftest: measures transports and protocols between two processes, with the habits of `ucx_perftest`.
//! A server waits, a client names it and says what to measure; `--local` is both at once.
//!
//! | Module | What |
//! |---|---|
//! | `cli`, `batch`, `spec` | what to measure |
//! | `link`, `local`, `group`, `session` | two sides or more, and the plan between them |
//! | `tests_uct`, `tests_ucp` | the measured loops |
//! | `pattern`, `patience` | bytes that are checked; what a loop does while nothing happens |
//! | `report`, `tour`, `plot`, `fail` | what is printed and drawn |

mod batch;
mod cli;
mod fail;
mod group;
mod link;
mod local;
mod patience;
mod pattern;
mod plot;
mod pulse;
mod report;
mod session;
mod spec;
mod tests_ucp;
mod tests_uct;
mod tour;

use std::process::ExitCode;

use cli::Cli;
use fail::Failure;
use group::{Partner, Place};
use link::{Link, Side};
use local::TOOL;
use report::Report;
use session::{Banner, Plan};
use spec::Pattern;
use tools_common::boot::{Boot, Listener};
use tools_common::pmix::Pmix;
use ucs::config::Source;

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
        // What went wrong has been told to the parent, which prints it.
        return peer(cli, port, &source).map_err(|e| std::process::exit(e.status().into()));
    }
    let mut report = Report::new(cli);
    let Some(file) = &cli.plot else { return measure(cli, &source, &mut report) };
    let nothing = cli.test.test.is_none() && cli.batch.is_empty();
    if !nothing {
        measure(cli, &source, &mut report)?;
        if report.results().is_empty() {
            // A process that does not print: another one draws.
            return Ok(());
        }
    } else if cli.local || cli.loopback || cli.host.is_some() {
        return Err(Failure::Usage("--plot draws what -t or -b measures, and what --with names".into()));
    }
    plot::draw(file, &cli.with, report.results())
}

fn measure(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    if cli.local {
        return local(cli, source, report);
    }
    let alone = cli.host.is_none() && !cli.loopback;
    if alone && cli.launcher.map_or_else(Pmix::is_there, |launcher| launcher == 1) {
        return launched(cli, source, report);
    }
    if alone && cli.launcher != Some(0) && Slurm::is_alone_there() {
        return Err(Failure::Usage(Slurm::HOW.into()));
    }
    if cli.loopback {
        return loopback(cli, source, report);
    }
    pin(cli)?;
    match &cli.host {
        Some(host) => client(cli, host, source, report),
        None => server(cli, source, report),
    }
}

/// `srun` without PMIx: it starts processes that know nothing of one another.
struct Slurm;

impl Slurm {
    const HOW: &str =
        "srun has started several of these without PMIx: srun --mpi=pmix, or -P 0 for a server of its own";

    fn is_alone_there() -> bool {
        let tasks = std::env::var("SLURM_STEP_NUM_TASKS").ok();
        tasks.and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n > 1)
    }
}

fn plan(cli: &Cli) -> Result<Plan, Failure> {
    Ok(Plan { specs: batch::specs(&cli.test, &cli.batch)?, threads: cli.threads })
}

/// This process with itself, or each of its threads with itself.
fn loopback(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    let plan = plan(cli)?;
    if plan.specs.iter().any(|spec| spec.pattern != Pattern::Pairs) {
        return Err(Failure::Usage("--pattern: with -l everybody sends to itself".into()));
    }
    if plan.threads == 1 {
        pin(cli)?;
        let mut link = Link::loopback();
        return session::drive(&plan.specs, source, &mut link, report, Banner::Here, drop);
    }
    let (place, hub) = local::loopbacks(plan.threads, cli.cpus.as_ref())?;
    group::run(&place, Some(&plan.specs), source, report, drop)?;
    hub.finish();
    Ok(())
}

/// Both sides, or all processes, from here.
fn local(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    if cli.test.test.is_none() && cli.batch.is_empty() {
        return tour::run(cli, source);
    }
    let plan = plan(cli)?;
    if plan.is_for_group() || cli.procs.is_some() {
        let procs = cli.procs.unwrap_or(2);
        plan.fits(procs, cli.threads)?;
        let (place, hub, _peers) = local::start_group(procs, cli.threads, cli.cpus.as_ref())?;
        group::run(&place, Some(&plan.specs), source, report, drop)?;
        hub.finish();
        return Ok(());
    }
    let (mut link, _peer) = local::start(cli.cpus.as_ref())?;
    link.send(&plan)?;
    session::drive(&plan.specs, source, &mut link, report, Banner::Here, drop)
}

/// One of the processes that a launcher has started, all with the same command line. The first has the hub.
fn launched(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    const KEY: &str = "ucx-perftest.hub";
    let plan = plan(cli)?;
    let pmix = Pmix::init()?;
    let (proc, procs, here) = (pmix.rank(), pmix.size()?, pmix.local_size()?);
    let seats = procs.saturating_mul(cli.threads);
    plan.fits(procs, cli.threads)?;
    let mut hub = None;
    if proc == 0 {
        let listener = Listener::any(TOOL, cli.family(), 0)?;
        let host = match (here == procs, cli.ipv6) {
            (false, _) => ucs::sys::host::hostname(),
            (true, false) => "127.0.0.1".into(),
            (true, true) => "::1".into(),
        };
        pmix.put(KEY, &format!("{} {host}", listener.port()))?;
        hub = Some(group::hub(listener, seats, || Ok(()))?);
    }
    pmix.fence()?;
    let at = pmix.get(0, KEY)?;
    let found = at.split_once(' ').and_then(|(port, host)| Some((port.parse().ok()?, host)));
    let (port, host) = found.ok_or_else(|| Failure::Run("the launcher's answer makes no sense".into()))?;
    let pins = cli.cpus.as_ref().map_or_else(Vec::new, |set| set.as_slice().to_vec());
    let cores = group::share(here * cli.threads);
    let (host, threads, partner) = (host.into(), cli.threads, Partner::Other);
    let place = Place { host, port, proc, procs, threads, pins, cores, partner };
    let prints = proc + 1 == procs;
    let result = group::run(&place, prints.then_some(&plan.specs[..]), source, report, drop);
    match result {
        // The one whose fault it is says why, or the one that prints.
        Err(e) if e.known_to_peer() && !prints => {
            drop(pmix);
            std::process::exit(e.status().into())
        }
        Err(e) => Err(e),
        Ok(()) => {
            hub.into_iter().for_each(group::Working::finish);
            Ok(())
        }
    }
}

/// A process that `local` started.
fn peer(cli: &Cli, port: u16, source: &Source) -> Result<(), Failure> {
    if let Some(place) = cli.proc {
        let pins = cli.cpus.clone().unwrap_or_default();
        let place = local::join_group(port, place, cli.threads, &pins);
        return group::run(&place, None, source, &mut Report::silent(), drop);
    }
    pin(cli)?;
    let mut link = local::join(port)?;
    match link.recv::<Plan>()? {
        Some(plan) => session::serve(&plan, source, &mut link, &mut Report::silent()),
        None => Ok(()),
    }
}

fn client(cli: &Cli, host: &str, source: &Source, report: &mut Report) -> Result<(), Failure> {
    let plan = plan(cli)?;
    let mut link = Link::new(Side::Client, Boot::connect(TOOL, host, cli.port)?);
    link.send(&plan)?;
    if !plan.is_for_group() {
        return session::drive(&plan.specs, source, &mut link, report, Banner::Server, drop);
    }
    // The server's hub is at a port that it chooses.
    let Some(port) = link.recv::<u16>()? else { return Ok(()) };
    let place = Place {
        host: host.into(),
        port,
        proc: 1,
        procs: 2,
        threads: cli.threads,
        pins: Vec::new(),
        cores: group::share(2 * cli.threads),
        partner: Partner::Other,
    };
    group::run(&place, Some(&plan.specs), source, report, drop)
}

/// Most threads that a client may ask for.
const MAX_THREADS: u32 = 64;

fn server(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    let listener = Listener::any(TOOL, cli.family(), cli.port)?;
    report.say("Waiting for connection...");
    let boot = listener.accept(|| Ok(()))?;
    drop(listener);
    report.say(&format!("Accepted connection from {}", boot.peer()));
    let mut link = Link::new(Side::Server, boot);
    let Some(plan) = link.recv::<Plan>()? else { return Ok(()) };
    if !plan.is_for_group() {
        return session::serve(&plan, source, &mut link, report);
    }
    let threads = plan.threads.clamp(1, MAX_THREADS);
    let listener = Listener::any(TOOL, cli.family(), 0)?;
    let (port, host) = (listener.port(), if cli.ipv6 { "::1" } else { "127.0.0.1" });
    let cores = group::share(2 * threads);
    let hub = group::hub(listener, 2 * threads, || Ok(()))?;
    link.send(&port)?;
    let (host, partner) = (host.into(), Partner::Other);
    let place = Place { host, port, proc: 0, procs: 2, threads, pins: Vec::new(), cores, partner };
    group::run(&place, None, source, &mut Report::silent(), drop)?;
    hub.finish();
    Ok(())
}

/// Keeps this process on the cores of `-c`.
fn pin(cli: &Cli) -> Result<(), Failure> {
    match cli.cpus.as_ref().map(ucs::sys::CpuSet::as_slice) {
        None => Ok(()),
        Some([one]) => Ok(ucs::sys::cpu::pin(*one)?),
        Some(_) => Err(Failure::Usage("-c: one core for one process; two with --local".into())),
    }
}
