//! The events that a worker waited for when a program armed its descriptor.

use ucs::time::Nanos;

/// Events of which the armed descriptor tells by itself. Others must signal the worker.
#[derive(Clone, Copy, Default)]
pub(crate) struct ArmedFor {
    /// Operations waited for resources of lanes, which are armed for them.
    pub(crate) resources: bool,
    /// The next deadline, for which its timer is set.
    pub(crate) deadline: Option<Nanos>,
}
