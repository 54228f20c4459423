//! Watches processes for their death. Entries are made when peers are attached. It costs messages nothing:
//! the kernel notifies the fd server's thread, which raises the alarms of interfaces.
//!
//! A process that calls `execve` lives on for the kernel, but it is another program: its fd server is gone,
//! and with it the name of its socket. Nobody notifies of that, so checks look for the name now and then.

use super::lock;
use super::namespace::{ProcKey, SocketNamespace};
use super::notifier::{Flag, Notifier};
use super::wire::KeepOpen;
use crate::api::{ConnectError, Error};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use ucs::Errno;
use ucs::sys::proc::{WatchError, pid, start_time};
use ucs::sys::{Epoll, EventFd, PeerCred, PidFd, ProcId, WakeSocket};

/// Time between two looks for the name of a process.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// The watched processes, and the epoll set that the thread sleeps on.
pub struct Watches {
    registry: Arc<Registry>,
}

struct Registry {
    pid: u32,
    namespace: SocketNamespace,
    /// Key of this process, whose name is held.
    own: ProcKey,
    epoll: Epoll,
    by_key: Mutex<ByKey>,
    unkeyed: Mutex<UnkeyedProcesses>,
}

/// Processes without a key, by pid, and how many there were.
#[derive(Default)]
struct UnkeyedProcesses {
    by_id: HashMap<ProcId, Weak<ProcWatch>>,
    count: u64,
}

type ByKey = HashMap<ProcKey, Weak<ProcWatch>>;

/// Keys for processes that have none: above real ones (40 bits), below the thread's tokens.
const UNKEYED: u64 = 1 << 48;

/// The descriptor that becomes readable when a process ends.
enum WatchedFd {
    Process(PidFd),
    /// The connection to its fd server, where the system cannot name the process.
    Socket(OwnedFd),
}

pub enum WatchMethod {
    Existing(Arc<ProcWatch>),
    Process(PidFd),
    /// By the connection to its fd server only, which both sides must keep.
    Socket,
}

impl WatchMethod {
    pub fn may_be_alive(&self) -> bool {
        match self {
            WatchMethod::Existing(watch) => !watch.check(),
            WatchMethod::Process(process) => !process.is_dead(),
            WatchMethod::Socket => true,
        }
    }

    pub fn keep_open(&self) -> KeepOpen {
        if matches!(self, WatchMethod::Socket) { KeepOpen::Yes } else { KeepOpen::No }
    }
}

/// The watch of one process, until it is dropped.
pub struct ProcWatch {
    key: ProcKey,
    notifier: Notifier<Alarm>,
    fd: WatchedFd,
    registry: Arc<Registry>,
    /// Key whose name the process holds as long as its fd server lives; `None` if it is not seen here.
    name: Option<ProcKey>,
    since: Instant,
    /// Time of the last look for the name, in milliseconds.
    looked: AtomicU64,
}

/// A descriptor that an interface sleeps on.
pub trait WakeUp: Send + Sync {
    /// Wakes the interface if it sleeps. Does not block.
    fn wake_up(&self);
}

impl WakeUp for EventFd {
    fn wake_up(&self) {
        let _ = self.signal();
    }
}

impl WakeUp for WakeSocket {
    fn wake_up(&self) {
        let _ = self.signal();
    }
}

/// The alarm of an interface, raised when one of its peers has died.
pub struct Alarm {
    raised: Flag,
    wake: Arc<dyn WakeUp>,
}

impl Watches {
    /// Watches for the process with the key `own` of a namespace.
    pub fn new(namespace: SocketNamespace, own: ProcKey) -> Result<Watches, Errno> {
        Ok(Watches {
            registry: Arc::new(Registry {
                pid: pid(),
                namespace,
                own,
                epoll: Epoll::new()?,
                by_key: Mutex::default(),
                unkeyed: Mutex::default(),
            }),
        })
    }

    pub fn epoll(&self) -> &Epoll {
        &self.registry.epoll
    }

    /// Determines how the process at the other end of `socket` can be watched, before anything is sent.
    pub fn identify(&self, key: ProcKey, socket: &OwnedFd) -> Result<WatchMethod, ConnectError> {
        if let Some(watch) = lock(&self.registry.by_key).get(&key).and_then(Weak::upgrade) {
            return Ok(WatchMethod::Existing(watch));
        }
        match PidFd::of_socket(socket) {
            Ok(Some(process)) => Ok(WatchMethod::Process(process)),
            Ok(None) => Ok(pidfd_by_pid(socket).map_or(WatchMethod::Socket, WatchMethod::Process)),
            Err(errno) if errno.is_resource() => Err(Error::NoDescriptor.into()),
            Err(_) => Err(ConnectError::Gone),
        }
    }

    /// Watches a process. All replies at `socket` have been received: its next event is the end.
    pub fn watch(&self, key: ProcKey, method: WatchMethod, socket: OwnedFd) -> Result<Arc<ProcWatch>, Error> {
        let fd = match method {
            WatchMethod::Existing(watch) => return Ok(watch),
            WatchMethod::Process(process) => WatchedFd::Process(process),
            WatchMethod::Socket => WatchedFd::Socket(socket),
        };
        let mut by_key = lock(&self.registry.by_key);
        match by_key.get(&key).and_then(Weak::upgrade) {
            Some(watch) => Ok(watch),
            None => self.registry.insert(&mut by_key, (key, key), fd),
        }
    }

    /// Watches a process by its pid. It may have the name `owner`, perhaps in another namespace.
    pub fn watch_process(&self, id: ProcId, owner: ProcKey) -> Result<Arc<ProcWatch>, ConnectError> {
        let mut unkeyed = lock(&self.registry.unkeyed);
        if let Some(watch) = unkeyed.by_id.get(&id).and_then(Weak::upgrade) {
            return Ok(watch);
        }
        let process = PidFd::open(id).map_err(|e| match e {
            WatchError::Gone { .. } => ConnectError::Gone,
            WatchError::Os { errno, .. } if errno.is_resource() => Error::NoDescriptor.into(),
            WatchError::Os { errno, .. } => Error::Sys { call: "pidfd_open", errno }.into(),
        })?;
        let key = ProcKey(UNKEYED + unkeyed.count);
        unkeyed.count += 1;
        let mut by_key = lock(&self.registry.by_key);
        let watch = self.registry.insert(&mut by_key, (key, owner), WatchedFd::Process(process))?;
        drop(by_key);
        if unkeyed.by_id.len() == unkeyed.by_id.capacity() {
            unkeyed.by_id.retain(|_, watch| watch.strong_count() > 0);
        }
        unkeyed.by_id.insert(id, Arc::downgrade(&watch));
        Ok(watch)
    }

    pub fn find(&self, key: ProcKey) -> Option<Arc<ProcWatch>> {
        lock(&self.registry.by_key).get(&key).and_then(Weak::upgrade)
    }

    pub fn is_dead(&self, key: ProcKey) -> bool {
        self.find(key).is_some_and(|watch| watch.is_dead())
    }

    /// Notifies the subscribers of a process that has ended.
    pub fn on_exit(&self, key: ProcKey) {
        // Otherwise the last watch is just being dropped.
        let Some(watch) = self.find(key) else { return };
        watch.notify();
    }
}

impl Registry {
    fn insert(
        self: &Arc<Self>,
        by_key: &mut ByKey,
        (key, owner): (ProcKey, ProcKey),
        fd: WatchedFd,
    ) -> Result<Arc<ProcWatch>, Error> {
        // Where the system refuses pidfds, nobody is woken: operations find the death.
        if !matches!(&fd, WatchedFd::Process(process) if !process.can_poll()) {
            self.epoll.add(&fd, key.0).map_err(|errno| Error::Sys { call: "epoll_ctl", errno })?;
        }
        let watch = Arc::new(ProcWatch {
            key,
            notifier: Notifier::default(),
            fd,
            registry: self.clone(),
            name: self.namespace.is_held(owner).then_some(owner),
            since: Instant::now(),
            looked: AtomicU64::new(0),
        });
        by_key.insert(key, Arc::downgrade(&watch));
        Ok(watch)
    }
}

impl AsFd for WatchedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            WatchedFd::Process(process) => process.as_fd(),
            WatchedFd::Socket(socket) => socket.as_fd(),
        }
    }
}

impl ProcWatch {
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.notifier.is_notified()
    }

    pub fn is_ours(&self) -> bool {
        self.registry.pid == pid()
    }

    /// Whether the process has died, or is another program by now: one system call, and now and then more.
    pub fn check(&self) -> bool {
        let has_died = || match &self.fd {
            WatchedFd::Process(process) => process.is_dead(),
            WatchedFd::Socket(socket) => has_hung_up(socket),
        };
        self.is_dead() || has_died() || self.has_lost_name()
    }

    /// Looks for the name of the process, if the last look is long ago, and notifies the subscribers if it is
    /// gone: the process has another program, or has closed all that peers could reach.
    fn has_lost_name(&self) -> bool {
        let Some(name) = self.name.filter(|_| self.is_ours()) else { return false };
        let now = self.since.elapsed().as_millis() as u64;
        if now < self.looked.load(Relaxed) + LOOK_INTERVAL.as_millis() as u64 {
            return false;
        }
        self.looked.store(now, Relaxed);
        let Registry { namespace, own, .. } = &*self.registry;
        // If not even our own name is seen, this thread has left the network namespace.
        let is_lost = !namespace.is_held(name) && namespace.is_held(*own);
        if is_lost {
            tracing::debug!("the process with the key {:x} has become another program", name.0);
            self.notify();
        }
        is_lost
    }

    fn notify(&self) {
        let _ = self.registry.epoll.remove(&self.fd);
        self.notifier.notify().iter().filter_map(Weak::upgrade).for_each(|alarm| alarm.raise());
    }

    /// Raises the alarm when the process dies, or now if it has.
    pub fn subscribe(&self, alarm: &Arc<Alarm>) {
        if !self.notifier.subscribe(alarm) {
            alarm.raise();
        }
    }
}

impl std::fmt::Debug for ProcWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProcWatch({:#x}, dead: {})", self.key.0, self.is_dead())
    }
}

impl Drop for ProcWatch {
    fn drop(&mut self) {
        // After a fork the set is the parent's, and the lock may be held for ever.
        if !self.is_ours() {
            return;
        }
        let _ = self.registry.epoll.remove(&self.fd);
        let mut by_key = lock(&self.registry.by_key);
        if by_key.get(&self.key).is_some_and(|watch| watch.strong_count() == 0) {
            by_key.remove(&self.key);
        }
    }
}

/// The process by its pid, if it is visible here. The socket is checked last: the pid was its then.
fn pidfd_by_pid(socket: &OwnedFd) -> Option<PidFd> {
    let pid = PeerCred::of(socket).ok()?.pid?;
    let start = start_time(pid).ok()??;
    let process = PidFd::open(ProcId { pid, start }).ok()?;
    // Where the process cannot be polled, the connection can.
    (process.can_poll() && !has_hung_up(socket)).then_some(process)
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
}

impl Alarm {
    /// An alarm not raised; `wake` wakes the interface if it sleeps.
    pub fn new(wake: Arc<dyn WakeUp>) -> Arc<Alarm> {
        Arc::new(Alarm { raised: Flag::default(), wake })
    }

    pub fn raise(&self) {
        self.raised.raise();
        self.wake.wake_up();
    }

    #[inline(always)]
    pub fn is_raised(&self) -> bool {
        self.raised.is_raised()
    }

    pub fn take(&self) -> bool {
        self.raised.take()
    }
}
