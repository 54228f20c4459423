//! The worker of a test, in the thread mode of `-M`. As in `ucx_perftest` each thread has its own, whose
//! calls take its lock in the modes that have one.

use std::ops::Deref;

use ucp::mt::{SharedWorker, ThreadMode};
use ucp::{Context, Worker};

use crate::fail::Failure;
use crate::spec::Level;

/// A worker that one thread uses, though others might. Dereferences to the plain worker, for what is not
/// measured.
#[derive(Clone)]
pub struct TestWorker {
    worker: Worker,
    /// The worker with its lock, except in mode single.
    shared: Option<SharedWorker>,
}

impl TestWorker {
    pub fn open(context: &Context, level: Level) -> Result<TestWorker, Failure> {
        let mode = match level {
            Level::Single => return Ok(TestWorker { worker: context.worker()?, shared: None }),
            Level::Serialized => ThreadMode::Serialized,
            Level::Multi => ThreadMode::Multi,
        };
        let shared = context.shared_worker(mode)?;
        // SAFETY: neither is given to another thread: `Worker` is not `Send`.
        let worker = unsafe { shared.with(Worker::clone) }.map_err(|e| Failure::Run(e.to_string()))?;
        Ok(TestWorker { worker, shared: Some(shared) })
    }

    /// Makes a call of the worker, or of an endpoint of it, inside the worker's lock if it has one.
    // HOT
    #[inline(always)]
    pub fn call<R>(&self, call: impl FnOnce(&Worker) -> R) -> R {
        match &self.shared {
            None => call(&self.worker),
            Some(shared) => call_locked(shared, call),
        }
    }
}

/// Not inlined, so that the loops of mode single stay as short as without it.
// HOT
#[inline(never)]
fn call_locked<R>(shared: &SharedWorker, call: impl FnOnce(&Worker) -> R) -> R {
    // SAFETY: the calls leave plain objects to this thread only.
    unsafe { shared.with(call) }.expect("this thread alone uses the worker")
}

impl Deref for TestWorker {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucp::EpParams;
    use ucs::config::Source;

    #[test]
    fn calls_go_inside_the_lock_of_the_mode() {
        let context = Context::configured(Source::empty().with("UCX_TLS", "self")).unwrap();
        for level in [Level::Single, Level::Serialized, Level::Multi] {
            let worker = TestWorker::open(&context, level).unwrap();
            let mode = worker.shared.as_ref().map(SharedWorker::mode);
            let wanted = match level {
                Level::Single => None,
                Level::Serialized => Some(ThreadMode::Serialized),
                Level::Multi => Some(ThreadMode::Multi),
            };
            assert_eq!(mode, wanted);
            let ep = worker.connect(&worker.address(), EpParams::default()).unwrap();
            worker.call(|_| ep.tag_send_blocking(1, &[7])).unwrap();
            let mut got = [0];
            worker.call(|plain| plain.tag_recv_blocking(1, !0, &mut got)).unwrap();
            assert_eq!(got, [7]);
        }
    }
}
