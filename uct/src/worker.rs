//! A worker groups interfaces: one call progresses all, one descriptor wakes for all. One thread. `ucp` polls
//! its interfaces directly.

use crate::api::{ArmStatus, Error, Events, Iface};
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;
use std::cell::{OnceCell, RefCell};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucs::sys::fd::Epoll;

/// Member of a worker. Every [`Iface`] is one.
pub trait Progress {
    /// Takes in up to `max` events with the registered handlers; answers how many there were.
    fn progress(&self, max: usize) -> usize;
    /// The member's event descriptor.
    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error>;
    /// Arms it for one wake-up; false: something is there already.
    fn arm(&self, events: Events) -> Result<bool, Error>;
    /// Arms it for a sleep of limited time.
    fn arm_for(&self, events: Events) -> Result<ArmStatus, Error>;
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

    fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        Iface::arm_for(self, events)
    }
}

/// Names one member of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberId {
    at: usize,
    /// How many have had the place before.
    earlier: u32,
}

/// A group of interfaces, progressed by one thread.
#[derive(Default)]
pub struct Worker {
    members: RefCell<Vec<Place>>,
    epoll: OnceCell<Epoll>,
}

#[derive(Default)]
struct Place {
    member: Option<Rc<dyn Progress>>,
    earlier: u32,
}

impl Worker {
    /// Without members.
    pub fn new() -> Self {
        Worker::default()
    }

    /// Adds a member; the worker keeps it alive until [`Worker::remove`].
    pub fn add(&self, member: Rc<dyn Progress>) -> Result<MemberId, Error> {
        let mut members = self.members.borrow_mut();
        let free = members.iter().position(|place| place.member.is_none());
        let at = free.unwrap_or(members.len());
        if let Some(epoll) = self.epoll.get() {
            watch(epoll, &*member, at)?;
        }
        if free.is_none() {
            members.push(Place::default());
        }
        members[at].member = Some(member);
        Ok(MemberId { at, earlier: members[at].earlier })
    }

    /// Gives a member back. `None` if it was removed before.
    pub fn remove(&self, id: MemberId) -> Option<Rc<dyn Progress>> {
        let member = {
            let mut members = self.members.borrow_mut();
            let place = members.get_mut(id.at).filter(|place| place.earlier == id.earlier)?;
            let member = place.member.take()?;
            place.earlier = place.earlier.wrapping_add(1);
            member
        };
        if let (Some(epoll), Ok(fd)) = (self.epoll.get(), member.event_fd()) {
            let _ = epoll.remove(fd);
        }
        Some(member)
    }

    /// Progresses each member once, with at most `max` events each; answers the events of all.
    // HOT
    pub fn progress(&self, max: usize) -> usize {
        let mut events = 0;
        let mut at = 0;
        // By index and without a borrow held: a handler may add or remove members.
        loop {
            let member = match self.members.borrow().get(at) {
                Some(place) => place.member.clone(),
                None => return events,
            };
            if let Some(member) = member {
                events += member.progress(max);
            }
            at += 1;
        }
    }

    /// A descriptor that is readable when a member's is. Made at the first call.
    pub fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        if self.epoll.get().is_none() {
            let epoll = Epoll::new().map_err(|errno| Error::Sys { call: "epoll_create", errno })?;
            for (at, place) in self.members.borrow().iter().enumerate() {
                if let Some(member) = &place.member {
                    watch(&epoll, &**member, at)?;
                }
            }
            let _ = self.epoll.set(epoll);
        }
        self.epoll.get().map(AsFd::as_fd).ok_or(Error::NoMemory)
    }

    /// Arms every member for one wake-up. `Ok(false)`: progress first. [`Error::Unsupported`]: the caller
    /// must poll.
    pub fn arm(&self, events: Events) -> Result<bool, Error> {
        for member in self.members.borrow().iter().filter_map(|place| place.member.as_ref()) {
            if !member.arm(events)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// [`Worker::arm`] for a sleep of limited time, which pending operations need not prevent.
    pub fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        let mut all = ArmStatus::Armed;
        for member in self.members.borrow().iter().filter_map(|place| place.member.as_ref()) {
            all = all.and(member.arm_for(events)?);
            if all == ArmStatus::Busy {
                break;
            }
        }
        Ok(all)
    }

    /// Progresses until events come, for at most `timeout`: up to `spin` empty rounds, then asleep. Answers
    /// the round's events, 0 at the timeout. Looks at least once a millisecond for pending operations that no
    /// descriptor reports; polls if a member cannot wake.
    pub fn wait(&self, max: usize, spin: u32, timeout: Option<Duration>) -> Result<usize, Error> {
        // A time that no clock reaches is no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            for _ in 0..=spin {
                let events = self.progress(max);
                if events > 0 {
                    return Ok(events);
                }
                std::hint::spin_loop();
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(0);
            }
            // The descriptor first: a member is armed only if it can be heard.
            let fd = self.event_fd()?;
            let armed = match self.arm_for(Events::all()) {
                Err(Error::Unsupported(_)) => ArmStatus::Busy,
                armed => armed?,
            };
            if let Some(time) = armed.sleep_time(left) {
                let time = time.and_then(|time| Timespec::try_from(time).ok());
                let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                match rustix::event::poll(&mut fds, time.as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(Error::Sys { call: "poll", errno: e.into() }),
                }
            }
        }
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
    use crate::api::{Ep as _, PendingQueued, Retry, Sent};
    use crate::{any, loopback};
    use ucs::config::Source;

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

    #[test]
    fn the_place_of_a_removed_member_is_used_again() {
        let worker = Worker::new();
        let open = || Rc::new(loopback::Iface::open(&Default::default()).unwrap());
        let (first, last) = (worker.add(open()).unwrap(), worker.add(open()).unwrap());
        assert!(worker.remove(first).is_some());
        for _ in 0..100 {
            let again = worker.add(open()).unwrap();
            assert!(again != first && worker.remove(first).is_none(), "the earlier member is gone");
            assert_eq!(worker.members.borrow().len(), 2);
            assert!(worker.remove(again).is_some());
        }
        assert!(worker.remove(last).is_some());
    }

    #[test]
    fn waiting_sleeps_and_wakes_for_any_member() {
        let worker = Worker::new();
        let posix = || any::open("posix", "memory", &Source::empty()).unwrap();
        let (near, far) = (loopback::Iface::open(&Default::default()).unwrap(), Rc::new(posix()));
        worker.add(Rc::new(near.clone())).unwrap();
        worker.add(far.clone()).unwrap();
        let start = Instant::now();
        assert_eq!(worker.wait(8, 3, Some(Duration::from_millis(20))), Ok(0));
        assert!(start.elapsed() >= Duration::from_millis(20), "woke without a reason");
        let ep = near.connect(&[], &near.iface_addr()).unwrap();
        assert_eq!(ep.am_short(1, 2, &[]), Ok(Sent::Done));
        assert_eq!(worker.wait(8, 0, None), Ok(1));
        let (device, addr) = (far.device_addr().to_vec(), far.iface_addr().to_vec());
        let sender = std::thread::spawn(move || {
            let from = posix();
            let ep = from.connect(&device, &addr).unwrap();
            ep.ensure_connected().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(ep.am_short(1, 2, &[]), Ok(Sent::Done));
        });
        assert_eq!(worker.wait(8, 0, None), Ok(1));
        sender.join().unwrap();
    }

    #[test]
    fn a_time_beyond_every_clock_is_no_limit() {
        let worker = Worker::new();
        let iface = loopback::Iface::open(&Default::default()).unwrap();
        worker.add(Rc::new(iface.clone())).unwrap();
        let ep = iface.connect(&[], &iface.iface_addr()).unwrap();
        assert_eq!(ep.am_short(1, 2, &[]), Ok(Sent::Done));
        assert_eq!(worker.wait(8, 0, Some(Duration::MAX)), Ok(1));
    }

    fn all() -> Vec<Rc<any::Iface>> {
        let open = |(tl, dev)| Rc::new(any::open(tl, dev, &Source::empty()).unwrap());
        [("self", "memory"), ("posix", "memory"), ("cma", "memory"), ("efa", "softefa0")].map(open).into()
    }

    fn cpu() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    #[test]
    fn one_of_each_transport_sleeps_and_wakes() {
        let (worker, members) = (Worker::new(), all());
        for member in &members {
            worker.add(member.clone()).unwrap();
        }
        worker.wait(8, 100, Some(Duration::from_millis(20))).unwrap();
        let (start, before) = (Instant::now(), cpu());
        assert_eq!(worker.wait(8, 3, Some(Duration::from_millis(300))), Ok(0));
        assert!(start.elapsed() >= Duration::from_millis(300), "woke without a reason");
        assert!(cpu() - before < Duration::from_millis(100), "did not sleep");
        assert_eq!(worker.arm_for(Events::all()), Ok(ArmStatus::Armed));
        for at in [1, 3] {
            let (device, addr) = (members[at].device_addr().to_vec(), members[at].iface_addr().to_vec());
            let sender = std::thread::spawn(move || {
                let from = all().swap_remove(at);
                let ep = from.connect(&device, &addr).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                while ep.am_bcopy(1, |_| 8).is_err() {
                    Iface::progress(&*from, 8);
                }
                (0..1000).for_each(|_| _ = Iface::progress(&*from, 8));
            });
            assert_eq!(worker.wait(8, 0, Some(Duration::from_secs(20))), Ok(1), "{}", members[at].attr().tl);
            sender.join().unwrap();
        }
    }

    #[test]
    fn a_worker_sleeps_while_operations_are_pending() {
        for tl in ["self", "posix"] {
            let open = || any::open(tl, "memory", &Source::empty()).unwrap();
            let (worker, from, to) = (Worker::new(), Rc::new(open()), open());
            worker.add(from.clone()).unwrap();
            let ep = Rc::new(from.connect(&to.device_addr(), &to.iface_addr()).unwrap());
            ep.ensure_connected().unwrap();
            while ep.am_short(1, 2, &[]).is_ok() {}
            let again = ep.clone();
            let op = Box::new(move || match again.am_short(1, 2, &[]) {
                Ok(_) => Retry::Done,
                Err(_) => Retry::NoResource,
            });
            assert_eq!(ep.pending_add(op), Ok(PendingQueued::Queued));
            assert_eq!(worker.arm(Events::all()), Ok(false));
            let before = cpu();
            assert_eq!(worker.wait(8, 0, Some(Duration::from_millis(200))), Ok(0), "{tl}");
            assert!(cpu() - before < Duration::from_millis(100), "{tl} did not sleep");
            while Iface::progress(&to, 64) > 0 {}
            let start = Instant::now();
            assert_eq!(worker.wait(8, 0, None), Ok(1), "{tl}");
            assert!(start.elapsed() < Duration::from_secs(20));
            assert_eq!(Iface::progress(&to, 8), 1);
            assert_eq!(worker.arm_for(Events::all()), Ok(ArmStatus::Armed));
        }
    }
}
