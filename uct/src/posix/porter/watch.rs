//! Deaths: which processes the porter watches, and which interfaces want to know. Filled when peers are attached, read
//! by interfaces at leisure. Costs a message nothing: the kernel tells the porter, the porter raises a flag.

use super::lock;
use super::place::ProcKey;
use super::toll::{Flag, Toll};
use super::wire::Stay;
use crate::api::{ConnectError, Error};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use ucs::Errno;
use ucs::sys::proc::{WatchError, pid, start_time};
use ucs::sys::{Epoll, EventFd, PeerCred, PidFd, ProcId};

/// The processes watched, and the set the porter sleeps on.
pub struct Watches {
    book: Arc<Book>,
}

struct Book {
    /// The process that made it.
    pid: u32,
    epoll: Epoll,
    by_key: Mutex<ByKey>,
    /// Those of which no key is known.
    keyless: Mutex<Keyless>,
}

/// Processes by pid, and how many there were.
#[derive(Default)]
struct Keyless {
    by_id: HashMap<ProcId, Weak<Death>>,
    count: u64,
}

type ByKey = HashMap<ProcKey, Weak<Death>>;

/// Keys of processes that have none of their own: above those that do (40 bits), below the porter's tokens.
const KEYLESS: u64 = 1 << 48;

/// What becomes readable when a process ends.
enum Watch {
    Process(PidFd),
    /// The connection to its porter, where the system cannot say which process that is.
    Door(OwnedFd),
}

/// What there is of a process to watch.
pub enum Sight {
    /// It is watched already.
    Known(Arc<Death>),
    /// The process.
    Process(PidFd),
    /// Only the connection to its porter: both sides must keep that.
    Door,
}

impl Sight {
    /// Whether it is not known to have ended.
    pub fn may_live(&self) -> bool {
        match self {
            Sight::Known(death) => !death.look(),
            Sight::Process(process) => !process.is_dead(),
            Sight::Door => true,
        }
    }

    /// Whether the connection must stay.
    pub fn needs_door(&self) -> Stay {
        if matches!(self, Sight::Door) { Stay::Yes } else { Stay::No }
    }
}

/// The death of one process, past or to come. Watched while somebody holds it.
pub struct Death {
    key: ProcKey,
    toll: Toll<Alarm>,
    watch: Watch,
    book: Arc<Book>,
}

/// An interface's: raised when one of its peers has died.
pub struct Alarm {
    raised: Flag,
    wake: Arc<EventFd>,
}

impl Watches {
    /// None yet.
    pub fn new() -> Result<Watches, Errno> {
        Ok(Watches {
            book: Arc::new(Book {
                pid: pid(),
                epoll: Epoll::new()?,
                by_key: Mutex::default(),
                keyless: Mutex::default(),
            }),
        })
    }

    /// What the porter sleeps on.
    pub fn epoll(&self) -> &Epoll {
        &self.book.epoll
    }

    /// How the process at the other end of `door` can be watched, before it is asked anything.
    pub fn look(&self, key: ProcKey, door: &OwnedFd) -> Result<Sight, ConnectError> {
        if let Some(death) = lock(&self.book.by_key).get(&key).and_then(Weak::upgrade) {
            return Ok(Sight::Known(death));
        }
        match PidFd::of_socket(door) {
            Ok(Some(process)) => Ok(Sight::Process(process)),
            Ok(None) => Ok(by_pid(door).map_or(Sight::Door, Sight::Process)),
            Err(errno) if errno.is_resource() => Err(Error::NoDescriptor.into()),
            // It took the connection a moment ago.
            Err(_) => Err(ConnectError::Gone),
        }
    }

    /// Watches it, from now on or already. It has said all that it was asked at `door`: what comes there now is the end.
    pub fn watch(&self, key: ProcKey, sight: Sight, door: OwnedFd) -> Result<Arc<Death>, Error> {
        let watch = match sight {
            Sight::Known(death) => return Ok(death),
            Sight::Process(process) => Watch::Process(process),
            Sight::Door => Watch::Door(door),
        };
        let mut by_key = lock(&self.book.by_key);
        match by_key.get(&key).and_then(Weak::upgrade) {
            Some(death) => Ok(death),
            None => self.book.enter(&mut by_key, key, watch),
        }
    }

    /// Watches a process of which no key is known, from now on or already.
    pub fn watch_process(&self, id: ProcId) -> Result<Arc<Death>, ConnectError> {
        let mut keyless = lock(&self.book.keyless);
        if let Some(death) = keyless.by_id.get(&id).and_then(Weak::upgrade) {
            return Ok(death);
        }
        let process = PidFd::open(id).map_err(|e| match e {
            WatchError::Gone { .. } => ConnectError::Gone,
            WatchError::Os { errno, .. } if errno.is_resource() => Error::NoDescriptor.into(),
            WatchError::Os { errno, .. } => Error::Sys { call: "pidfd_open", errno }.into(),
        })?;
        let key = ProcKey(KEYLESS + keyless.count);
        keyless.count += 1;
        let death = self.book.enter(&mut lock(&self.book.by_key), key, Watch::Process(process))?;
        if keyless.by_id.len() == keyless.by_id.capacity() {
            keyless.by_id.retain(|_, death| death.strong_count() > 0);
        }
        keyless.by_id.insert(id, Arc::downgrade(&death));
        Ok(death)
    }

    /// A process, if it is watched.
    pub fn sees(&self, key: ProcKey) -> Option<Arc<Death>> {
        lock(&self.book.by_key).get(&key).and_then(Weak::upgrade)
    }

    /// Whether a process is watched and has died.
    pub fn is_dead(&self, key: ProcKey) -> bool {
        self.sees(key).is_some_and(|death| death.is_dead())
    }

    /// A process has ended: whoever wants to know is told.
    pub fn strike(&self, key: ProcKey) {
        // Otherwise nobody wants to know any more, and its last friend is just taking it off the set.
        let Some(death) = self.sees(key) else { return };
        let _ = self.book.epoll.remove(&death.watch);
        death.toll.toll().iter().filter_map(Weak::upgrade).for_each(|alarm| alarm.raise());
    }
}

impl Book {
    fn enter(self: &Arc<Self>, by_key: &mut ByKey, key: ProcKey, watch: Watch) -> Result<Arc<Death>, Error> {
        self.epoll.add(&watch, key.0).map_err(|errno| Error::Sys { call: "epoll_ctl", errno })?;
        let death = Arc::new(Death { key, toll: Toll::default(), watch, book: self.clone() });
        by_key.insert(key, Arc::downgrade(&death));
        Ok(death)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Watch::Process(process) => process.as_fd(),
            Watch::Door(door) => door.as_fd(),
        }
    }
}

impl Death {
    /// Whether it has happened, as far as the porter knows. One load.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.toll.has_tolled()
    }

    /// Whether this process watches it: not if its parent did before a fork.
    pub fn is_ours(&self) -> bool {
        self.book.pid == pid()
    }

    /// Whether it has happened: one system call.
    pub fn look(&self) -> bool {
        self.is_dead()
            || match &self.watch {
                Watch::Process(process) => process.is_dead(),
                Watch::Door(door) => hung_up(door),
            }
    }

    /// Raises the alarm when it happens, or now.
    pub fn tell(&self, alarm: &Arc<Alarm>) {
        if !self.toll.listen(alarm) {
            alarm.raise();
        }
    }
}

impl std::fmt::Debug for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Death({:#x}, dead: {})", self.key.0, self.is_dead())
    }
}

impl Drop for Death {
    fn drop(&mut self) {
        // The set is our parent's too if we have it by a fork, and so may be the one who holds the lock.
        if !self.is_ours() {
            return;
        }
        // A process that is dead already has been taken off.
        let _ = self.book.epoll.remove(&self.watch);
        let mut by_key = lock(&self.book.by_key);
        if by_key.get(&self.key).is_some_and(|death| death.strong_count() == 0) {
            by_key.remove(&self.key);
        }
    }
}

/// The process by its pid, if it has one here. The door must not have hung up afterwards: then it was still that one's.
fn by_pid(door: &OwnedFd) -> Option<PidFd> {
    let pid = PeerCred::of(door).ok()?.pid?;
    let start = start_time(pid).ok()??;
    PidFd::open(ProcId { pid, start }).ok().filter(|_| !hung_up(door))
}

fn hung_up(door: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(door, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

impl Alarm {
    /// Not raised; `wake` is what an interface sleeps on.
    pub fn new(wake: Arc<EventFd>) -> Arc<Alarm> {
        Arc::new(Alarm { raised: Flag::default(), wake })
    }

    /// Raises it, and wakes who sleeps.
    pub fn raise(&self) {
        self.raised.raise();
        let _ = self.wake.signal();
    }

    /// Whether it is raised.
    #[inline(always)]
    pub fn is_raised(&self) -> bool {
        self.raised.is_raised()
    }

    /// Takes it down: true if it was raised.
    pub fn take(&self) -> bool {
        self.raised.take()
    }
}
