//! A run of the program: the list of measurements goes from client to server, or from one seat of a group to all, then
//! everybody works through it. Called by `main` and `group` with an open line. Owns nothing that outlives a measurement.

use serde::{Deserialize, Serialize};
use ucs::config::Source;

use crate::fail::Failure;
use crate::link::{Link, Side};
use crate::report::{Done, Report, Share, Total};
use crate::spec::{Layer, Pattern, Spec};
use crate::{tests_ucp, tests_uct};

/// Whether the measuring side prints the banner as well (there is no server's terminal to look at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Banner {
    /// The server prints it.
    Server,
    /// Printed here.
    Here,
}

/// What the active side wants done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The measurements.
    pub specs: Vec<Spec>,
    /// Threads of each side; more than one, or a pattern that is not pairs, makes a group of the two sides.
    pub threads: u32,
}

impl Plan {
    /// Whether so many processes and threads can do it.
    pub fn fits(&self, procs: u32, threads: u32) -> Result<(), Failure> {
        let pairs = self.specs.iter().any(|s| s.pattern == Pattern::Pairs);
        match procs.saturating_mul(threads) {
            0 | 1 => Err(Failure::Usage("a test needs two sides: more processes, or --local".into())),
            odd if pairs && odd % 2 == 1 => {
                Err(Failure::Usage(format!("--procs {procs}: pairs need an even number")))
            }
            1025.. => {
                Err(Failure::Usage(format!("{procs} processes of {threads} threads: at most 1024 in all")))
            }
            _ => Ok(()),
        }
    }

    /// Whether it takes a group.
    pub fn is_for_group(&self) -> bool {
        self.threads > 1 || self.specs.iter().any(|s| s.pattern != Pattern::Pairs)
    }
}

/// The active side of two: measures, hands each result to `each`.
pub fn drive(
    specs: &[Spec],
    source: &Source,
    link: &mut Link,
    report: &mut Report,
    banner: Banner,
    mut each: impl FnMut(Done),
) -> Result<(), Failure> {
    let result = specs.iter().try_for_each(|spec| {
        if banner == Banner::Here {
            report.banner(spec);
        }
        report.start(spec);
        let done = run(spec, source, link, report)?;
        report.done(&done);
        each(done);
        Ok(())
    });
    if let Err(e) = &result {
        link.give_up(e);
    }
    result
}

/// The passive side of two: does what the plan says. Prints banners only.
pub fn serve(plan: &Plan, source: &Source, link: &mut Link, report: &mut Report) -> Result<(), Failure> {
    debug_assert_eq!(link.side(), Side::Server);
    let result = plan.specs.iter().try_for_each(|spec| {
        // What a client asks for is a claim.
        spec.check()?;
        report.banner(spec);
        report.end_banner();
        run(spec, source, link, report).map(drop)
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
    let plans: Vec<Option<Vec<Spec>>> = link.gather(&plan.map(<[Spec]>::to_vec), || 0)?;
    let specs = plans.into_iter().flatten().next().unwrap_or_default();
    specs.iter().try_for_each(|spec| {
        // What another seat asks for is a claim.
        spec.check()?;
        report.banner(spec);
        report.start(spec);
        let mut done = run(spec, source, link, report)?;
        let active = spec.pattern != Pattern::Pairs || link.side().is_active();
        let shares: Vec<Share> = link.gather(&Share::of(&done, active), || 0)?;
        done.total = Some(Total::new(spec.pattern, shares));
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
