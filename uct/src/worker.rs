//! A worker groups interfaces: one call progresses all, one descriptor wakes for all.
//! Used by programs that drive `uct` themselves and by the tools; `ucp` polls its interfaces directly. Belongs to one
//! thread. Never polls an interface from within a poll.

use crate::api::{Error, Events, Iface};
use std::cell::{OnceCell, RefCell};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use ucs::sys::fd::Epoll;

/// What a worker asks of its members. Every [`Iface`] has it.
pub trait Progress {
    /// Takes in up to `max` events with the registered handlers; answers how many there were.
    fn progress(&self, max: usize) -> usize;
    /// The member's event descriptor.
    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error>;
    /// Arms it for one wake-up; false: something is there already.
    fn arm(&self, events: Events) -> Result<bool, Error>;
}

impl<I: Iface> Progress for I {
    fn progress(&self, max: usize) -> usize {
        Iface::progress(self, max)
    }

    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Iface::event_fd(self)
    }

    fn arm(&self, events: Events) -> Result<bool, Error> {
        Iface::arm(self, events)
    }
}

/// Names one member of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberId(usize);

/// A group of interfaces, progressed by one thread.
#[derive(Default)]
pub struct Worker {
    members: RefCell<Vec<Option<Rc<dyn Progress>>>>,
    epoll: OnceCell<Epoll>,
}

impl Worker {
    /// Without members.
    pub fn new() -> Self {
        Worker::default()
    }

    /// Adds a member; the worker keeps it alive until [`Worker::remove`].
    pub fn add(&self, member: Rc<dyn Progress>) -> Result<MemberId, Error> {
        let mut members = self.members.borrow_mut();
        if let Some(epoll) = self.epoll.get() {
            watch(epoll, &*member, members.len())?;
        }
        members.push(Some(member));
        Ok(MemberId(members.len() - 1))
    }

    /// Gives a member back. `None` if it was removed before.
    pub fn remove(&self, id: MemberId) -> Option<Rc<dyn Progress>> {
        let member = self.members.borrow_mut().get_mut(id.0)?.take()?;
        if let (Some(epoll), Ok(fd)) = (self.epoll.get(), member.event_fd()) {
            // It may never have been watched: a member without a descriptor.
            let _ = epoll.remove(fd);
        }
        Some(member)
    }

    /// Progresses each member once, with at most `max` events each; answers the events of all. // HOT
    pub fn progress(&self, max: usize) -> usize {
        let mut events = 0;
        let mut at = 0;
        // By index and without a borrow held: a handler may add or remove members.
        loop {
            let member = match self.members.borrow().get(at) {
                Some(member) => member.clone(),
                None => return events,
            };
            if let Some(member) = member {
                events += member.progress(max);
            }
            at += 1;
        }
    }

    /// A descriptor that is readable when a member's is. Made at the first call, over the members that have one.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        if self.epoll.get().is_none() {
            let epoll = Epoll::new().map_err(|errno| Error::Sys { call: "epoll_create", errno })?;
            for (at, member) in self.members.borrow().iter().enumerate() {
                if let Some(member) = member {
                    watch(&epoll, &**member, at)?;
                }
            }
            let _ = self.epoll.set(epoll);
        }
        self.epoll.get().map(AsFd::as_fd).ok_or(Error::NoMemory)
    }

    /// Arms every member for one wake-up. `Ok(false)`: something is there already, progress first. A member that
    /// cannot wake anybody answers [`Error::Unsupported`]: the caller must poll.
    pub fn arm(&self, events: Events) -> Result<bool, Error> {
        for member in self.members.borrow().iter().flatten() {
            if !member.arm(events)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn watch(epoll: &Epoll, member: &dyn Progress, token: usize) -> Result<(), Error> {
    match member.event_fd() {
        Ok(fd) => epoll.add(fd, token as u64).map_err(|errno| Error::Sys { call: "epoll_ctl", errno }),
        Err(Error::Unsupported(_)) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::api::{Ep as _, Sent};
    use crate::loopback;
    use std::time::Duration;

    #[test]
    fn one_descriptor_for_all_members() {
        let worker = Worker::new();
        let one = loopback::Iface::open(&Default::default()).unwrap();
        let two = loopback::Iface::open(&Default::default()).unwrap();
        let first = worker.add(Rc::new(one.clone())).unwrap();
        let outer = Epoll::new().unwrap();
        outer.add(worker.event_fd().unwrap(), 0).unwrap();
        worker.add(Rc::new(two.clone())).unwrap();
        let mut woken = Vec::new();
        let ep = one.connect(&[], &two.iface_addr()).unwrap();
        assert_eq!(worker.arm(Events::RECV), Ok(true));
        assert_eq!(outer.wait(&mut woken, Some(Duration::ZERO)), Ok(0));
        assert_eq!(ep.am_short(1, 2, &[]), Ok(Sent::Done));
        assert_eq!(outer.wait(&mut woken, None), Ok(1));
        assert_eq!(worker.arm(Events::RECV), Ok(false));
        assert_eq!((worker.progress(8), worker.progress(8)), (1, 0));
        assert_eq!(worker.arm(Events::RECV), Ok(true));
        assert_eq!(outer.wait(&mut woken, Some(Duration::ZERO)), Ok(0));
        assert!(worker.remove(first).is_some());
        assert!(worker.remove(first).is_none());
        assert_eq!(worker.progress(8), 0);
    }
}
