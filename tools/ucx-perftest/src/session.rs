//! A run of the program: the list of measurements goes from client to server, or from one seat of a group to all, then
//! everybody works through it. Called by `main` and `group` with an open line. Owns nothing that outlives a measurement.

use tools_common::boot::BootError;
use ucs::config::Source;

use crate::fail::Failure;
use crate::link::{Link, Side};
use crate::report::{Done, Report, Share, Total, Where};
use crate::spec::{Layer, Pattern, Spec};
use crate::{tests_ucp, tests_uct};

/// Measurements that go over the line at once: a line is bounded, a batch is not.
const AT_ONCE: usize = 64;
/// Most measurements of a run; more are not taken from the other side.
pub const MOST: usize = 1 << 16;

/// What the active side wants done.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The measurements.
    pub specs: Vec<Spec>,
}

/// Whether it takes a group: more than one thread of each side, or a pattern that is not pairs.
pub fn is_for_group(spec: &Spec) -> bool {
    spec.threads > 1 || spec.pattern != Pattern::Pairs
}

/// Whether a test with these threads in so many processes can be.
pub fn fits(spec: &Spec, procs: u32) -> Result<(), Failure> {
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
        self.specs.chunks(AT_ONCE).chain([end]).try_for_each(|some| link.send(&some))
    }

    /// What the other side of two tells; there is none otherwise.
    pub fn recv(link: &mut Link) -> Result<Option<Plan>, BootError> {
        let mut specs = Vec::new();
        for _ in 0..=MOST / AT_ONCE {
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
        let same = |a: &Spec, b: &Spec| (a.threads, is_for_group(a)) == (b.threads, is_for_group(b));
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
    BootError::Garbage { why: format!("more than {MOST} tests") }
}

/// Gives all seats what one of them has, some at a time.
fn share(plan: Option<&[Spec]>, link: &mut Link) -> Result<Vec<Spec>, BootError> {
    let mut left = plan.map(|specs| specs.chunks(AT_ONCE));
    let mut specs = Vec::new();
    for _ in 0..=MOST / AT_ONCE {
        let mine: Option<Vec<Spec>> = left.as_mut().map(|left| left.next().unwrap_or_default().to_vec());
        let some = link.gather(&mine, || 0)?.into_iter().flatten().next().unwrap_or_default();
        if some.is_empty() {
            return Ok(specs);
        }
        specs.extend(some);
    }
    Err(too_many())
}

/// The active side of two: measures, hands each result to `each`.
pub fn drive(
    specs: &[Spec],
    source: &Source,
    link: &mut Link,
    report: &mut Report,
    mut each: impl FnMut(Done),
) -> Result<(), Failure> {
    let result = specs.iter().try_for_each(|spec| {
        report.begin(spec);
        match run(spec, source, link, report) {
            Ok(mut done) => {
                done.seats = link.gather(&Where::here(spec, source, link.cores()), || 0)?;
                report.done(&done);
                each(done);
                Ok(())
            }
            Err(e) => report.next_after(spec, e),
        }
    });
    if let Err(e) = &result {
        link.give_up(e);
    }
    result
}

/// The passive side of two: does what the plan says. Prints banners only.
pub fn serve(specs: &[Spec], source: &Source, link: &mut Link, report: &mut Report) -> Result<(), Failure> {
    debug_assert_eq!(link.side(), Side::Server);
    let result = specs.iter().try_for_each(|spec| {
        // What a client asks for is a claim.
        spec.check()?;
        report.begin(spec);
        match run(spec, source, link, report) {
            Ok(_) => Ok(link.gather(&Where::here(spec, source, link.cores()), || 0).map(drop)?),
            Err(e) => report.next_after(spec, e),
        }
    });
    if let Err(e) = &result {
        link.give_up(e);
    }
    result
}

/// One seat of a group. The results of all seats are put together.
pub fn group(
    plan: Option<&[Spec]>,
    source: &Source,
    link: &mut Link,
    report: &mut Report,
    mut each: impl FnMut(Done),
) -> Result<(), Failure> {
    let specs = share(plan, link)?;
    specs.iter().try_for_each(|spec| {
        // What another seat asks for is a claim.
        spec.check()?;
        report.begin(spec);
        let mut done = match run(spec, source, link, report) {
            Ok(done) => done,
            Err(e) => return report.next_after(spec, e),
        };
        let active = spec.pattern != Pattern::Pairs || link.side().is_active();
        let mine = (Share::of(&done, active), Where::here(spec, source, link.cores()));
        let (shares, seats) = link.gather(&mine, || 0)?.into_iter().unzip();
        done.seats = seats;
        let total = Total::new(spec.pattern, shares);
        done.hist = total.hist.clone();
        done.total = Some(total);
        report.done(&done);
        each(done);
        Ok(())
    })
}

fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<Done, Failure> {
    match spec.test.layer() {
        Layer::Uct => tests_uct::run(spec, source, link, report),
        Layer::Ucp => tests_ucp::run(spec, source, link, report),
    }
}
