//! ucx-perftest: measures transports and protocols between two processes, with the options and output of
//! `ucx_perftest`. A server waits, a client names it and says what to measure; `--local` starts both.
//!
//! | Module | Contents |
//! |---|---|
//! | `cli`, `batch`, `spec` | what to measure |
//! | `link`, `local`, `group`, `cpu_list`, `session` | the sides, where they run, and their plan |
//! | `tests_uct`, `tests_ucp` | the measured loops |
//! | `payload`, `backoff` | bytes that are checked; what a loop does while nothing happens |
//! | `report`, `sweep`, `plot`, `fail` | what is printed and drawn |

mod backoff;
mod batch;
mod cli;
mod cpu_list;
mod fail;
mod group;
mod iteration_counter;
mod link;
mod local;
mod page_buffer;
mod payload;
mod plot;
mod report;
mod session;
mod spec;
mod sweep;
mod tests_ucp;
mod tests_uct;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use cli::{Cli, TestEntry, Threads};
use cpu_list::{AffinityGuard, CpuList};
use fail::{Failure, TOOL};
use group::{GroupConfig, Partner, Pins};
use link::{CoreSharing, Link, Side};
use report::{Output, Report};
use session::Plan;
use spec::{Histogram, Pattern, Spec};
use tools_common::boot::{Connection, Listener, PeerWatch};
use tools_common::out::printable;
use ucs::config::Source;
use ucs::sys::host::HostKey;
use ucs::sys::pmix::Pmix;
use ucs::trace::RateLimit;
use uct::efa::dev::soft::with_job_secret;

/// Lines a second about clients that are turned away.
const STRANGERS_PER_SECOND: u32 = 5;

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
    ucs::stderr_line!("{TOOL}: {}", printable(&e.to_string()));
    ExitCode::from(e.status())
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let source = tools_common::settings::load()?;
    if let Some(port) = cli.peer_of {
        // The parent prints the error.
        return peer(cli, port, &source).map_err(|e| std::process::exit(e.status().into()));
    }
    let mut report = Report::new(cli);
    let Some(file) = &cli.plot else { return measure(cli, &source, &mut report) };
    let nothing = cli.test.test.is_none() && cli.batch.is_empty();
    if !nothing {
        // What cannot be written is told before a long measurement. Of a launcher's processes one draws.
        let place = if cli.is_launched() { None } else { Some(plot::Place::open(file)?) };
        measure(cli, &source, &mut report)?;
        drop(place);
        if report.results().is_empty() {
            // Another process of the launcher prints and draws.
            return Ok(());
        }
    } else if cli.local || cli.loopback || cli.host.is_some() {
        return Err(Failure::Usage("--plot draws what -t or -b measures, and what --with names".into()));
    }
    plot::draw(file, &cli.with, report.results())
}

fn measure(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    run_as(cli, source, report)?;
    report.outcome()
}

fn run_as(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    if cli.local {
        return local(cli, source, report);
    }
    if cli.is_launched() {
        return launched(cli, source, report);
    }
    let alone = cli.host.is_none() && !cli.loopback;
    if alone && cli.launcher != Some(0) && Slurm::is_alone_there() {
        return Err(Failure::Usage(Slurm::HOW.into()));
    }
    if cli.loopback {
        return loopback(cli, source, report);
    }
    confine(cli)?;
    match &cli.host {
        Some(host) => client(cli, host, source, report),
        None => server(cli, source, report),
    }
}

/// `srun` without PMIx starts processes that do not know of one another.
struct Slurm;

impl Slurm {
    const HOW: &str =
        "srun has started several of these without PMIx: srun --mpi=pmix, or -P 0 for a server of its own";

    fn is_alone_there() -> bool {
        let tasks = std::env::var("SLURM_STEP_NUM_TASKS").ok();
        tasks.and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n > 1)
    }
}

/// The tests that can be run; failures of the others are reported.
fn plan(cli: &Cli, report: &mut Report) -> Result<Plan, Failure> {
    let rows = batch::entries(&cli.test, &cli.batch, cli.loopback)?;
    if rows.len() > session::MAX_TESTS {
        return Err(Failure::Usage(format!(
            "-b: {} tests, of at most {} in a run",
            rows.len(),
            session::MAX_TESTS
        )));
    }
    report.expect_tests(rows.len());
    report.set_size_column(rows.iter().any(|row| row.spec.as_ref().is_ok_and(|spec| spec.in_size_range)));
    let mut specs = Vec::with_capacity(rows.len());
    for TestEntry { label, spec } in rows {
        match spec {
            Ok(spec) => {
                let hist = if cli.hist { Histogram::Yes } else { Histogram::No };
                specs.push(Spec { hist, ..spec });
            }
            Err(e) => report.failed(label.as_deref(), e),
        }
    }
    Ok(Plan { specs })
}

/// Runs each part by `run`, which starts the sides anew, and goes on behind a test that fails.
fn each_part(
    plan: &Plan,
    report: &mut Report,
    mut run: impl FnMut(&[Spec], &mut Report) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut at = 0;
    while let part @ [_, ..] = plan.part(at) {
        let before = report.started();
        let ended = run(part, report);
        let begun = report.started() - before;
        match ended {
            Ok(()) => at += part.len(),
            Err(e) if begun == 0 || plan.specs.len() == 1 => return Err(e),
            Err(e) => {
                report.failed(part[begun - 1].label().as_deref(), e);
                at += begun;
            }
        }
    }
    Ok(())
}

fn loopback(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    let plan = plan(cli, report)?;
    if plan.specs.iter().any(|spec| spec.pattern != Pattern::Pairs) {
        return Err(Failure::Usage("--pattern: with -l everybody sends to itself".into()));
    }
    each_part(&plan, report, |part, report| match part[0].threads {
        1 => {
            let _back = AffinityGuard::save();
            confine(cli)?;
            session::run_active(part, source, &mut Link::loopback(), report, drop)
        }
        threads => {
            let (group, server) = local::loopback_group(threads, cli.cpus.as_ref())?;
            server.finish(group::run(&group, Some(part), source, report, drop))
        }
    })
}

fn local(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    if cli.test.test.is_none() && cli.batch.is_empty() {
        return sweep::run(cli, source);
    }
    let plan = plan(cli, report)?;
    let procs = cli.procs.unwrap_or(2);
    plan.specs.iter().try_for_each(|spec| session::check_group_size(spec, procs, false))?;
    each_part(&plan, report, |part, report| {
        if session::needs_group(&part[0]) || cli.procs.is_some() {
            let (group, server, _peers) = local::start_group(procs, part[0].threads, cli.cpus.as_ref())?;
            return server.finish(group::run(&group, Some(part), source, report, drop));
        }
        let _back = AffinityGuard::save();
        let (mut link, _peer) = local::start(cli.cpus.as_ref())?;
        Plan { specs: part.to_vec() }.send(&mut link)?;
        session::run_active(part, source, &mut link, report, drop)
    })
}

const CORES: &str = "ucx-perftest.cores";

/// Whether members of the launcher's processes on this host share cores.
fn launched_cores(cli: &Cli, pmix: &Pmix, procs: u32, threads: u32) -> Result<CoreSharing, Failure> {
    if let Some(list) = &cli.cpus {
        // One core per member, by rank.
        return Ok(group::compare_cores(list.as_slice().len(), procs * threads));
    }
    let host = HostKey::current().0.to_string();
    let mut all = Vec::new();
    for rank in 0..procs {
        let said = pmix.get(rank, CORES)?;
        match said.split_once(' ').map(|(of, cores)| (of == host, CpuList::parse(cores))) {
            Some((true, Ok(cores))) => all.push(cores),
            Some((false, _)) => {}
            _ => return Err(Failure::Run("the launcher's answer makes no sense".into())),
        }
    }
    Ok(group::core_sharing_of(&all, threads))
}

/// Runs one of the processes that a launcher started alike. The first has the group's server.
fn launched(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    let pmix = Pmix::init()?;
    let (proc, procs) = (pmix.rank(), pmix.size()?);
    if let Some(asked) = cli.procs.filter(|asked| *asked != procs) {
        return Err(Failure::Usage(format!("--procs {asked}: the launcher has started {procs}")));
    }
    let source = &with_job_secret(source);
    let here = CpuList::allowed()?;
    pmix.put(CORES, &format!("{} {here}", HostKey::current().0))?;
    let prints = proc + 1 == procs;
    let mut silent = Report::silent();
    let report = if prints { report } else { &mut silent };
    let plan = plan(cli, report)?;
    plan.specs.iter().try_for_each(|spec| session::check_group_size(spec, procs, true))?;
    let done =
        plan.parts().enumerate().try_for_each(|(n, part)| launched_part(cli, &pmix, n, part, source, report));
    match done.and_then(|()| report.outcome()) {
        // The printing process reports it too; a status now would make the launcher kill it before.
        Err(Failure::Agreed(_) | Failure::SomeTests { .. }) if !prints => Ok(()),
        // The side at fault, or the one that prints, reports the error.
        Err(e) if !prints && e.known_to_peer() => {
            drop(pmix);
            std::process::exit(e.status().into())
        }
        other => other,
    }
}

fn launched_part(
    cli: &Cli,
    pmix: &Pmix,
    number: usize,
    part: &[Spec],
    source: &Source,
    report: &mut Report,
) -> Result<(), Failure> {
    let key = format!("ucx-perftest.group.{number}");
    let (proc, procs, here, threads) = (pmix.rank(), pmix.size()?, pmix.local_size()?, part[0].threads);
    let mut server = None;
    if proc == 0 {
        let (at, host) = group_address(cli.bind_addr(), here == procs);
        let listener = Listener::at(TOOL, SocketAddr::new(at, 0))?;
        pmix.put(&key, &format!("{} {host}", listener.port()))?;
        server = Some(group::start_server(Arc::new(listener), procs.saturating_mul(threads), || Ok(()))?);
    }
    pmix.fence()?;
    let at = pmix.get(0, &key)?;
    let found = at.split_once(' ').and_then(|(port, host)| Some((port.parse().ok()?, host)));
    let (port, host) = found.ok_or_else(|| Failure::Run("the launcher's answer makes no sense".into()))?;
    let pins = cli.cpus.as_ref().map_or(Pins::None, |list| Pins::Group(list.as_slice().to_vec()));
    let cores = launched_cores(cli, pmix, procs, threads)?;
    let (host, partner) = (host.into(), Partner::Other);
    let group = GroupConfig { host, port, proc, procs, threads, pins, cores, partner };
    let prints = proc + 1 == procs;
    let ended = group::run(&group, prints.then_some(part), source, report, drop);
    match server {
        Some(server) => server.finish(ended),
        None => ended,
    }
}

/// Where a launcher's group listens, and where its members find it. `bound`: what `--bind` says, or all
/// addresses.
fn group_address(bound: IpAddr, one_host: bool) -> (IpAddr, String) {
    match (bound.is_unspecified(), one_host) {
        (false, _) => (bound, bound.to_string()),
        (true, false) => (bound, ucs::sys::host::hostname()),
        (true, true) => {
            let at: IpAddr =
                if bound.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            (at, at.to_string())
        }
    }
}

fn peer(cli: &Cli, port: u16, source: &Source) -> Result<(), Failure> {
    if let Some(group) = cli.proc {
        let threads = cli.test.threads.map_or(Ok(1), Threads::count).map_err(Failure::Usage)?;
        let group = local::join_group(port, group, threads, cli.cpus.as_ref());
        return group::run(&group, None, source, &mut Report::silent(), drop);
    }
    confine(cli)?;
    let mut link = local::join(port)?;
    match Plan::recv(&mut link)? {
        Some(plan) => session::run_passive(&plan.specs, source, &mut link, &mut Report::silent()),
        None => Ok(()),
    }
}

fn client(cli: &Cli, host: &str, source: &Source, report: &mut Report) -> Result<(), Failure> {
    let plan = plan(cli, report)?;
    if plan.specs.is_empty() {
        return Ok(());
    }
    report.set_output(Output::Results);
    let mut link = Link::pair(Side::Client, Connection::connect(TOOL, host, cli.port)?);
    plan.send(&mut link)?;
    plan.parts().try_for_each(|part| {
        if !session::needs_group(&part[0]) {
            return session::run_active(part, source, &mut link, report, drop);
        }
        // The server announces the port of the group's server.
        let Some(port) = link.recv::<u16>()? else { return Ok(()) };
        let threads = part[0].threads;
        let group = GroupConfig {
            host: host.into(),
            port,
            proc: 1,
            procs: 2,
            threads,
            pins: own_pins(cli),
            cores: own_cores(cli, threads),
            partner: Partner::Other,
        };
        group::run(&group, Some(part), source, report, drop).map_err(|e| link.cause_of(e))
    })
}

/// Waits for a client with a plan that can be done. Others are told why not, and are named on standard error.
fn receive_client(listener: &Listener) -> Result<(Connection, Plan), Failure> {
    let limit = RateLimit::new(STRANGERS_PER_SECOND);
    let turned_away = |peer: SocketAddr, why: &dyn std::fmt::Display| {
        let Some(left_out) = limit.admit() else { return };
        if left_out > 0 {
            ucs::stderr_line!("{TOOL}: {left_out} more clients were turned away");
        }
        ucs::stderr_line!("{TOOL}: turned {peer} away: {}", printable(&why.to_string()));
    };
    let mut reception = listener.reception();
    loop {
        let (mut client, first) =
            reception.next_request::<Vec<Spec>>(|| Ok(()), |peer, why| turned_away(peer, why))?;
        match Plan::recv_rest(first, &mut client) {
            Ok(plan) => return Ok((client, plan)),
            Err(why) => {
                turned_away(client.peer(), &why);
                client.abort(&why.to_string());
            }
        }
    }
}

/// Where this process reaches a server that listens at `bound`.
fn own_host(bound: IpAddr) -> String {
    match bound {
        IpAddr::V4(ip) if ip.is_unspecified() => "127.0.0.1".into(),
        IpAddr::V6(ip) if ip.is_unspecified() => "::1".into(),
        ip => ip.to_string(),
    }
}

fn server(cli: &Cli, source: &Source, report: &mut Report) -> Result<(), Failure> {
    let listener = Listener::at(TOOL, SocketAddr::new(cli.bind_addr(), cli.port))?;
    report.set_output(Output::Banners);
    report.note("Waiting for connection...");
    let (boot, plan) = receive_client(&listener)?;
    drop(listener);
    report.note(&format!("Accepted connection from {}", boot.peer()));
    let mut link = Link::pair(Side::Server, boot);
    report.expect_tests(plan.specs.len());
    plan.parts().try_for_each(|part| {
        if !session::needs_group(&part[0]) {
            return session::run_passive(part, source, &mut link, report);
        }
        let threads = part[0].threads;
        let listener = Listener::at(TOOL, SocketAddr::new(cli.bind_addr(), 0))?;
        let (port, host) = (listener.port(), own_host(cli.bind_addr()));
        let (pins, cores) = (own_pins(cli), own_cores(cli, threads));
        // A client that leaves before all members are connected ends the group.
        let watch = link.watch()?;
        let keep_waiting = move || watch.as_ref().map_or(Ok(()), PeerWatch::check_alive);
        let server = group::start_server(Arc::new(listener), 2 * threads, keep_waiting)?;
        link.send(&port)?;
        let partner = Partner::Other;
        let group = GroupConfig { host, port, proc: 0, procs: 2, threads, pins, cores, partner };
        let ended = server.finish(group::run(&group, None, source, report, drop));
        ended.map_err(|e| link.cause_of(e))
    })
}

fn confine(cli: &Cli) -> Result<(), Failure> {
    cli.cpus.as_ref().map_or(Ok(()), CpuList::confine).map_err(|e| Failure::of_given_cores(&e))
}

fn own_pins(cli: &Cli) -> Pins {
    cli.cpus.as_ref().map_or(Pins::None, |list| Pins::Process(list.as_slice().to_vec()))
}

/// Whether the threads of this process and of its peer on this host have a core each.
fn own_cores(cli: &Cli, threads: u32) -> CoreSharing {
    match &cli.cpus {
        Some(list) if list.as_slice().len() >= threads as usize => CoreSharing::Dedicated,
        Some(_) => CoreSharing::Shared,
        None => group::core_sharing(2 * threads),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_listens_where_bind_says() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        for (bound, one_host) in [("10.0.0.7", true), ("10.0.0.7", false), ("fe80::7", false)] {
            assert_eq!(group_address(at(bound), one_host), (at(bound), bound.to_owned()));
        }
        assert_eq!(group_address(at("0.0.0.0"), true), (at("127.0.0.1"), "127.0.0.1".to_owned()));
        assert_eq!(group_address(at("::"), true), (at("::1"), "::1".to_owned()));
        assert_eq!(group_address(at("0.0.0.0"), false), (at("0.0.0.0"), ucs::sys::host::hostname()));
    }
}
