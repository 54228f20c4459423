//! The events that a worker waited for when a program armed its descriptor.

use ucs::time::Nanos;

/// Events that end the program's sleep by themselves: on the armed descriptor or by its timer. Others must
/// signal the worker.
#[derive(Clone, Copy, Default)]
pub(crate) struct ArmedFor {
    /// Operations waited for resources of lanes, which are armed for them.
    pub(crate) resources: bool,
    /// The next deadline, which is the program's timer.
    pub(crate) deadline: Option<Nanos>,
}
