//! A thread that progresses an interface while the program computes: what the wire does in software, and handlers that
//! any thread may run. It sleeps on the interface's descriptor when nothing comes.

use super::iface::Origin;
use super::{Iface, ThreadMode};
use crate::api::{Error, OpenError};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use ucs::sys::fd::EventFd;

/// Events taken at a time, so that callers get in between.
const BATCH: usize = 64;
/// Empty polls before it sleeps.
const SPIN: u32 = 200;

/// A progress thread; it ends when this is dropped.
#[derive(Debug)]
pub struct ProgressThread {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Iface {
    /// Starts a thread that progresses this interface. In mode [`ThreadMode::Multi`] only: it comes at any time.
    pub fn spawn_progress(&self) -> Result<ProgressThread, OpenError> {
        if self.mode() != ThreadMode::Multi {
            return Err(OpenError::Config("a progress thread needs thread mode multi".into()));
        }
        // So that an interface that cannot wake anybody says so here.
        self.event_fd()?;
        let failed = |errno| OpenError::Op(Error::Sys { call: "eventfd", errno });
        let stop = Arc::new(EventFd::new().map_err(failed)?);
        let (iface, until) = (self.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("uct-progress".into())
            .spawn(move || serve(&iface, &until))
            .map_err(|e| OpenError::Op(Error::Sys { call: "thread", errno: e.into() }))?;
        Ok(ProgressThread { stop, thread: Some(thread) })
    }

    /// Progresses until something has come, at most for `timeout` (`None`: however long it takes): `spin` empty polls
    /// first, then asleep. Answers the events taken in, 0 at the timeout.
    pub fn wait(&self, spin: u32, timeout: Option<Duration>) -> Result<usize, Error> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            for _ in 0..=spin {
                let events = self.progress(BATCH)?;
                if events > 0 {
                    return Ok(events);
                }
                std::hint::spin_loop();
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(0);
            }
            if let Some(time) = self.arm_for(crate::api::Events::all())?.within(left) {
                sleep(&[self.event_fd()?], time)?;
            }
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        // It can only fail for want of the descriptor, which we hold.
        let _ = self.stop.signal();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => tracing::warn!(%error, "progress thread ended early"),
            Some(Err(_)) => tracing::warn!("a handler panicked in the progress thread"),
            _ => {}
        }
    }
}

/// Waits until one of the descriptors is readable.
fn sleep(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<u32, Error> {
    let mut polled: arrayvec::ArrayVec<PollFd<'_>, 2> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|t| rustix::time::Timespec::try_from(t).ok());
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(Error::Sys { call: "poll", errno: e.into() }),
    }
    Ok(polled.iter().enumerate().fold(0, |ready, (n, fd)| ready | u32::from(!fd.revents().is_empty()) << n))
}

fn serve(iface: &Iface, stop: &EventFd) -> Result<(), Error> {
    let mut idle = 0;
    loop {
        if iface.progress_from(BATCH, Origin::ProgressThread)? > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < SPIN {
            std::thread::yield_now();
            continue;
        }
        idle = 0;
        if let Some(time) = iface.arm_thread()?.within(None)
            && sleep(&[iface.event_fd()?, stop.as_fd()], time)? & 2 != 0
        {
            return Ok(());
        }
        if sleep(&[stop.as_fd()], Some(Duration::ZERO))? != 0 {
            return Ok(());
        }
    }
}
