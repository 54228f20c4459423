//! High-level tests: tag matching over whatever transports `UCX_TLS` leaves.
//! Called by `session` on both sides with the same [`Spec`].

use ucs::config::Source;

use crate::fail::Failure;
use crate::link::Link;
use crate::report::{Done, Report};
use crate::spec::Spec;

/// Runs one test.
pub fn run(spec: &Spec, _: &Source, link: &mut Link, _: &Report) -> Result<Done, Failure> {
    let why = Failure::Cannot(format!("{}: the protocol layer is not in this build", spec.test.name()));
    link.exchange_result::<()>(Err(why)).and(Err(Failure::Run("nothing to run".into())))
}
