//! Works through a plan: the list of tests goes from client to server, or from one member of a group to all,
//! then each side runs them in order. Called by `main` and `group`.

use std::time::{Duration, Instant};

use tools_common::boot::{BootError, Connection};
use ucs::config::Source;

use crate::fail::Failure;
use crate::link::{Link, Side};
use crate::report::{GroupResult, MemberInfo, MemberResult, Report, TestResult};
use crate::spec::{Layer, Pattern, Spec};
use crate::{tests_ucp, tests_uct};

/// Tests per message of the out-of-band connection, whose lines are bounded.
const PLAN_CHUNK: usize = 64;
/// Most tests of a run; the other side may not ask for more.
pub const MAX_TESTS: usize = 1 << 16;

/// Longest wait for all of a client's plan.
const PLAN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Plan {
    pub specs: Vec<Spec>,
}

/// Whether the test needs a group: several threads per process, or another pattern than pairs.
pub fn needs_group(spec: &Spec) -> bool {
    spec.threads > 1 || spec.pattern != Pattern::Pairs
}

/// `procs` is what `--procs` says, or a launcher.
pub fn check_group_size(spec: &Spec, procs: u32, launched: bool) -> Result<(), Failure> {
    let (pairs, threads) = (spec.pattern == Pattern::Pairs, spec.threads);
    match procs.saturating_mul(threads) {
        0 | 1 => Err(Failure::Usage("a test needs two sides: more processes, or --local".into())),
        odd if pairs && odd % 2 == 1 => {
            let given = if launched {
                format!("the launcher has started {procs} processes")
            } else {
                format!("--procs {procs}")
            };
            Err(Failure::Usage(format!(
                "{given}: pairs need an even number; --pattern incast and alltoall take any"
            )))
        }
        1025.. => Err(Failure::Usage(format!("{procs} processes of {threads} threads: at most 1024 in all"))),
        _ => Ok(()),
    }
}

impl Plan {
    /// Sends the plan to the other side in chunks; an empty chunk ends it.
    pub fn send(&self, link: &mut Link) -> Result<(), BootError> {
        let end: &[Spec] = &[];
        self.specs.chunks(PLAN_CHUNK).chain([end]).try_for_each(|some| link.send(&some))
    }

    /// Receives a plan; `None` for a link without another side or with a group.
    pub fn recv(link: &mut Link) -> Result<Option<Plan>, BootError> {
        let Some(first) = link.recv::<Vec<Spec>>()? else { return Ok(None) };
        Plan::collect(first, || Ok(link.recv::<Vec<Spec>>()?.unwrap_or_default())).map(Some)
    }

    /// Receives the rest of a client's plan after its `first` chunk, which the client sends at once, and
    /// checks it: a client's input is not trusted.
    pub fn recv_rest(first: Vec<Spec>, client: &mut Connection) -> Result<Plan, Failure> {
        let deadline = Instant::now() + PLAN_TIMEOUT;
        let rest = || client.recv_within(deadline.saturating_duration_since(Instant::now()));
        let plan = Plan::collect(first, rest)?;
        let available = available_memory();
        plan.specs.iter().try_for_each(|spec| {
            spec.check()?;
            spec.check_asked_of_server(available)
        })?;
        Ok(plan)
    }

    fn collect(
        first: Vec<Spec>,
        mut next: impl FnMut() -> Result<Vec<Spec>, BootError>,
    ) -> Result<Plan, BootError> {
        let mut specs = first;
        let mut chunk = specs.len();
        while chunk > 0 {
            if chunk > PLAN_CHUNK || specs.len() > MAX_TESTS {
                return Err(too_many());
            }
            let some = next()?;
            chunk = some.len();
            specs.extend(some);
        }
        Ok(Plan { specs })
    }

    /// The tests from number `at` on that the same group can run.
    pub fn part(&self, at: usize) -> &[Spec] {
        let rest = self.specs.get(at..).unwrap_or_default();
        let same = |a: &Spec, b: &Spec| (a.threads, needs_group(a)) == (b.threads, needs_group(b));
        rest.chunk_by(same).next().unwrap_or_default()
    }

    pub fn parts(&self) -> impl Iterator<Item = &[Spec]> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let part = self.part(at);
            at += part.len();
            (!part.is_empty()).then_some(part)
        })
    }
}

/// Bytes of memory that this host can give; as many as there may be if that is not known.
fn available_memory() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    kib.map_or(usize::MAX, |kib| kib << 10)
}

fn too_many() -> BootError {
    BootError::Malformed(format!("more than {MAX_TESTS} tests"))
}

/// Sends the plan of the one member that has it to all.
fn broadcast_plan(plan: Option<&[Spec]>, link: &mut Link) -> Result<Vec<Spec>, BootError> {
    let mut left = plan.map(|specs| specs.chunks(PLAN_CHUNK));
    let mut specs = Vec::new();
    for _ in 0..=MAX_TESTS / PLAN_CHUNK {
        let mine: Option<Vec<Spec>> = left.as_mut().map(|left| left.next().unwrap_or_default().to_vec());
        let some = link.allgather(&mine, || 0)?.into_iter().flatten().next().unwrap_or_default();
        if some.is_empty() {
            return Ok(specs);
        }
        specs.extend(some);
    }
    Err(too_many())
}

/// Runs the active side of two, and passes each result to `on_result`.
pub fn run_active(
    specs: &[Spec],
    source: &Source,
    link: &mut Link,
    report: &mut Report,
    mut on_result: impl FnMut(TestResult),
) -> Result<(), Failure> {
    let result = specs.iter().try_for_each(|spec| {
        report.begin_test(spec);
        match run(spec, source, link, report) {
            Ok(mut done) => {
                done.members = link.allgather(&MemberInfo::here(spec, source, link.cores()), || 0)?;
                report.result(&done);
                on_result(done);
                Ok(())
            }
            Err(e) => report.continue_after(spec, e),
        }
    });
    if let Err(e) = &result {
        link.abort(e);
    }
    result
}

pub fn run_passive(
    specs: &[Spec],
    source: &Source,
    link: &mut Link,
    report: &mut Report,
) -> Result<(), Failure> {
    debug_assert_eq!(link.side(), Side::Server);
    let result = specs.iter().try_for_each(|spec| {
        // The client's input is not trusted.
        spec.check()?;
        report.begin_test(spec);
        match run(spec, source, link, report) {
            Ok(_) => Ok(link.allgather(&MemberInfo::here(spec, source, link.cores()), || 0).map(drop)?),
            Err(e) => report.continue_after(spec, e),
        }
    });
    if let Err(e) = &result {
        link.abort(e);
    }
    result
}

/// Runs one member of a group, and combines the results of all.
pub fn run_member(
    plan: Option<&[Spec]>,
    source: &Source,
    link: &mut Link,
    report: &mut Report,
    mut on_result: impl FnMut(TestResult),
) -> Result<(), Failure> {
    let specs = broadcast_plan(plan, link)?;
    specs.iter().try_for_each(|spec| {
        // Another member's input is not trusted.
        spec.check()?;
        report.begin_test(spec);
        let mut done = match run(spec, source, link, report) {
            Ok(done) => done,
            Err(e) => return report.continue_after(spec, e),
        };
        let active = spec.pattern != Pattern::Pairs || link.side().is_active();
        let mine = (MemberResult::of(&done, active), MemberInfo::here(spec, source, link.cores()));
        let (results, members) = link.allgather(&mine, || 0)?.into_iter().unzip();
        done.members = members;
        let total = GroupResult::new(spec.pattern, results);
        done.hist = total.hist.clone();
        done.group = Some(total);
        report.result(&done);
        on_result(done);
        Ok(())
    })
}

fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<TestResult, Failure> {
    match spec.test.layer() {
        Layer::Uct => tests_uct::run(spec, source, link, report),
        Layer::Ucp => tests_ucp::run(spec, source, link, report),
    }
}
