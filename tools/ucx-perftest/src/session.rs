//! A run of the program: the list of measurements goes from client to server, then both work through it.
//! Called by `main` with an open line. Owns nothing that outlives a measurement.

use ucs::config::Source;

use crate::fail::Failure;
use crate::link::{Link, Side};
use crate::report::{Done, Report};
use crate::spec::{Layer, Spec};
use crate::{tests_ucp, tests_uct};

/// Whether the measuring side prints the banner as well (there is no server's terminal to look at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Banner {
    /// The server prints it.
    Server,
    /// Printed here.
    Here,
}

/// The active side: sends the plan, measures, hands each result to `each`.
pub fn drive(
    specs: &[Spec],
    source: &Source,
    link: &mut Link,
    report: &mut Report,
    banner: Banner,
    mut each: impl FnMut(Done),
) -> Result<(), Failure> {
    let told = link.send(&specs.to_vec());
    let result = told.map_err(Failure::from).and_then(|()| {
        for spec in specs {
            if banner == Banner::Here {
                report.banner(spec);
            }
            report.start(spec);
            let done = run(spec, source, link, report)?;
            report.done(&done);
            each(done);
        }
        Ok(())
    });
    if let Err(e) = &result {
        link.give_up(e);
    }
    result
}

/// The passive side: does what the plan says. Prints banners only.
pub fn serve(source: &Source, link: &mut Link, report: &mut Report) -> Result<(), Failure> {
    debug_assert_eq!(link.side(), Side::Server);
    let Some(specs) = link.recv::<Vec<Spec>>()? else { return Ok(()) };
    let result = specs.iter().try_for_each(|spec| {
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

fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<Done, Failure> {
    match spec.test.layer() {
        Layer::Uct => tests_uct::run(spec, source, link, report),
        Layer::Ucp => tests_ucp::run(spec, source, link, report),
    }
}
