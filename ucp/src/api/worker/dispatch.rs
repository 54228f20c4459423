//! The part of progress that runs user code: callbacks, wakers and handlers of what has ended or arrived.

use crate::api::am::recv::{handle_ams, recv_large_ams};
use crate::api::cm::progress::handle_cm_events;
use crate::api::core::poll::PollWork;
use crate::api::worker::handle::Worker;

/// Runs the callbacks and wakers of requests that are ready. Returns their number.
// HOT
#[inline(never)]
pub(crate) fn run_ready(worker: &Worker) -> usize {
    // One that ends with a call of `CallAt::End` leaves nothing to run, and is an event.
    let least = usize::from(worker.core_keep_idle().reqs.has_ready());
    let mut count = 0;
    loop {
        count += run_calls(worker);
        let Some(action) = worker.core_keep_idle().reqs.next_ready() else { return count.max(least) };
        worker.inner.run(action);
        count += 1;
    }
}

/// Calls the callbacks of the first requests that are ready and have ended well. Returns their number.
// HOT
#[inline(always)]
fn run_calls(worker: &Worker) -> usize {
    let mut count = 0;
    loop {
        let Some((call, id, message)) = worker.core_keep_idle().reqs.next_call() else { return count };
        call.run(id, Ok(message));
        count += 1;
    }
}

/// Completes a progress call after a fast poll that left work.
#[inline(never)]
pub(crate) fn progress_full(worker: &Worker, work: PollWork) -> usize {
    let mut core = worker.inner.core_in_progress();
    let events = core.poll(work, &worker.inner.am_handlers.queue);
    let (is_done, is_armed) = (core.has_no_notifications(), core.is_armed);
    drop(core);
    // Delivered active messages precede engine events.
    handle_ams(worker);
    let events = if is_done { events } else { events + dispatch_events(worker) };
    if is_armed {
        // Not the task that sleeps on the descriptor: what is left is for that one.
        drop(worker.core());
    }
    events
}

/// Completes operations and receives announced active messages. Returns the number of events.
#[inline(never)]
fn dispatch_events(worker: &Worker) -> usize {
    let core = worker.core_keep_idle();
    let (has_events, has_ready) = (core.engine.pending().has_events(), core.reqs.has_ready());
    drop(core);
    let mut events = usize::from(has_events) + run_calls(worker);
    let mut core = worker.inner.core_in_progress();
    while let Some(action) = core.next_action() {
        drop(core);
        worker.inner.run(action);
        events += 1;
        core = worker.inner.core_in_progress();
    }
    // One that ends with a call of `CallAt::End` leaves nothing to run, and is an event.
    events = events.max(usize::from(has_ready));
    let (flushes, has_cm_events) = (!core.flushes.is_empty(), core.cm.has_events());
    drop(core);
    if flushes {
        events += end_flushes(worker);
    }
    if has_cm_events {
        events += handle_cm_events(worker);
    }
    events + recv_large_ams(worker)
}

#[cold]
fn end_flushes(worker: &Worker) -> usize {
    let mut events = 0;
    loop {
        let Some(action) = worker.inner.core_in_progress().next_flush_action() else { return events };
        events += 1;
        if let Some(action) = action {
            worker.inner.run(action);
        }
    }
}
