//! A thread that progresses interfaces while the program computes; sleeps on their descriptors when idle.

use super::iface::Progressor;
use super::sleep::sleep;
use super::{Iface, ThreadMode};
use crate::api::{Error, OpenError};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, ThreadId};
use ucs::sys::fd::EventFd;
use ucs::sys::proc;
use ucs::sys::thread::spawn_masked;

const BATCH: usize = 64;
const SPIN: u32 = 200;
/// Handlers of the program run on it: as much as threads have by default.
const STACK: usize = 2 << 20;

/// A progress thread, ended and joined on drop, except when dropped inside one of its interfaces.
#[derive(Debug)]
pub struct ProgressThread {
    stop: Arc<Stop>,
    id: ThreadId,
    thread: Option<JoinHandle<()>>,
    ifaces: Vec<Iface>,
    /// Process that has the thread.
    pid: u32,
}

#[derive(Debug)]
struct Stop {
    now: AtomicBool,
    wake: EventFd,
}

impl ProgressThread {
    /// Starts a thread that progresses some interfaces; [`ThreadMode::Multi`] only.
    pub fn spawn<'a>(ifaces: impl IntoIterator<Item = &'a Iface>) -> Result<ProgressThread, OpenError> {
        let ifaces: Vec<Iface> = ifaces.into_iter().cloned().collect();
        if ifaces.iter().any(|iface| iface.mode() != ThreadMode::Multi) {
            return Err(OpenError::Config("a progress thread needs thread mode multi".into()));
        }
        for iface in &ifaces {
            iface.event_fd()?;
        }
        let failed = |errno| OpenError::Op(Error::Sys { call: "eventfd", errno });
        let stop = Stop { now: AtomicBool::new(false), wake: EventFd::new().map_err(failed)? };
        let stop = Arc::new(stop);
        let (served, until) = (ifaces.clone(), stop.clone());
        let body = move || {
            if let Err(error) = serve(&served, &until) {
                tracing::warn!(%error, "a progress thread ends early");
            }
        };
        let thread = spawn_masked("uct-progress", STACK, body)
            .map_err(|errno| OpenError::Op(Error::Sys { call: "thread", errno }))?;
        let id = thread.thread().id();
        Ok(ProgressThread { stop, id, thread: Some(thread), ifaces, pid: proc::pid() })
    }

    /// Whether it still serves: not after a panic of a handler or an error of an interface.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Iface {
    /// Starts a thread that progresses this interface: [`ProgressThread::spawn`] for one.
    pub fn spawn_progress(&self) -> Result<ProgressThread, OpenError> {
        ProgressThread::spawn([self])
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        if self.pid != proc::pid() {
            // A forked child has no such thread, and shares the descriptor with its parent.
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop.now.store(true, Ordering::Relaxed);
        // It can only fail for want of the descriptor, which we hold.
        let _ = self.stop.wake.signal();
        // A handler of its own, or one that is inside where it may have to go.
        if std::thread::current().id() == self.id || self.ifaces.iter().any(Iface::is_held_here) {
            return;
        }
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::warn!("a handler panicked in the progress thread");
        }
    }
}

fn serve(ifaces: &[Iface], stop: &Stop) -> Result<(), Error> {
    let mut idle = 0;
    while !stop.now.load(Ordering::Relaxed) {
        let mut events = 0;
        for iface in ifaces {
            events += iface.progress_from(BATCH, Progressor::ProgressThread)?;
        }
        if events > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < SPIN {
            std::thread::yield_now();
            continue;
        }
        idle = 0;
        let mut plans = Vec::with_capacity(ifaces.len());
        for iface in ifaces {
            plans.extend(iface.plan_thread_sleep()?);
        }
        if plans.len() == ifaces.len() {
            sleep(&plans, Some(stop.wake.as_fd()))?;
        }
    }
    Ok(())
}
