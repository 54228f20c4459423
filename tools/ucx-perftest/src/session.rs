//! A run of the program: the list of measurements goes from client to server, or from one seat of a group to all, then
//! everybody works through it. Called by `main` and `group` with an open line. Owns nothing that outlives a measurement.

use tools_common::boot::BootError;
use ucs::config::Source;

use crate::fail::Failure;
use crate::link::{Link, Side};
use crate::report::{GroupResult, MemberInfo, MemberResult, Report, TestResult};
use crate::spec::{Layer, Pattern, Spec};
use crate::{tests_ucp, tests_uct};

/// Measurements that go over the line at once: a line is bounded, a batch is not.
const PLAN_CHUNK: usize = 64;
/// Most measurements of a run; more are not taken from the other side.
pub const MAX_TESTS: usize = 1 << 16;

/// What the active side wants done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The measurements.
    pub specs: Vec<Spec>,
}

/// Whether it takes a group: more than one thread of each side, or a pattern that is not pairs.
pub fn needs_group(spec: &Spec) -> bool {
    spec.threads > 1 || spec.pattern != Pattern::Pairs
}

/// Whether a test with these threads in so many processes can be.
pub fn check_group_size(spec: &Spec, procs: u32) -> Result<(), Failure> {
    let (pairs, threads) = (spec.pattern == Pattern::Pairs, spec.threads);
    match procs.saturating_mul(threads) {
        0 | 1 => Err(Failure::Usage("a test needs two sides: more processes, or --local".into())),
        odd if pairs && odd % 2 == 1 => {
            Err(Failure::Usage(format!("--procs {procs}: pairs need an even number")))
        }
        1025.. => Err(Failure::Usage(format!("{procs} processes of {threads} threads: at most 1024 in all"))),
        _ => Ok(()),
    }
}

impl Plan {
    /// Tells the other side of two: some at a time, then none.
    pub fn send(&self, link: &mut Link) -> Result<(), BootError> {
        let end: &[Spec] = &[];
        self.specs.chunks(PLAN_CHUNK).chain([end]).try_for_each(|some| link.send(&some))
    }

    /// What the other side of two tells; there is none otherwise.
    pub fn recv(link: &mut Link) -> Result<Option<Plan>, BootError> {
        let mut specs = Vec::new();
        for _ in 0..=MAX_TESTS / PLAN_CHUNK {
            match link.recv::<Vec<Spec>>()? {
                None => return Ok(None),
                Some(some) if some.is_empty() => return Ok(Some(Plan { specs })),
                Some(some) => specs.extend(some),
            }
        }
        Err(too_many())
    }

    /// The measurements from number `at` on that the same sides can do.
    pub fn part(&self, at: usize) -> &[Spec] {
        let rest = self.specs.get(at..).unwrap_or_default();
        let same = |a: &Spec, b: &Spec| (a.threads, needs_group(a)) == (b.threads, needs_group(b));
        rest.chunk_by(same).next().unwrap_or_default()
    }

    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = &[Spec]> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let part = self.part(at);
            at += part.len();
            (!part.is_empty()).then_some(part)
        })
    }
}

fn too_many() -> BootError {
    BootError::Malformed { why: format!("more than {MAX_TESTS} tests") }
}

/// Gives all members what one of them has, some at a time.
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

/// The active side of two: measures, hands each result to `each`.
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

/// The passive side of two: does what the plan says. Prints banners only.
pub fn run_passive(
    specs: &[Spec],
    source: &Source,
    link: &mut Link,
    report: &mut Report,
) -> Result<(), Failure> {
    debug_assert_eq!(link.side(), Side::Server);
    let result = specs.iter().try_for_each(|spec| {
        // What a client asks for is a claim.
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

/// One seat of a group. The results of all members are put together.
pub fn run_member(
    plan: Option<&[Spec]>,
    source: &Source,
    link: &mut Link,
    report: &mut Report,
    mut on_result: impl FnMut(TestResult),
) -> Result<(), Failure> {
    let specs = broadcast_plan(plan, link)?;
    specs.iter().try_for_each(|spec| {
        // What another seat asks for is a claim.
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
