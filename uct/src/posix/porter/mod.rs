//! The porter: one thread of a process that hands the descriptors of its memory to peers that ask at its unix socket,
//! and tells of peers that die. Interfaces and memory domains share the one of their place. It sleeps in the kernel but
//! for those two occasions, never looks at a message, and never touches what it hands out.
//!
//! | File | What |
//! |---|---|
//! | `place.rs` | where sockets are, and what they are called |
//! | `wire.rs` | question and answer |
//! | `answer.rs` | the thread |
//! | `ask.rs` | a peer at the door |
//! | `asked.rs` | a question, until its answer comes |
//! | `watch.rs` | deaths, and who wants to know |
//! | `toll.rs` | the synchronisation of that alone, with its loom model |
//!
//! Why a thread: a descriptor moves only if a process sends it, and a peer must be able to attach while the owner
//! computes. See decision 12 in `docs/decisions`.

mod answer;
mod ask;
mod asked;
mod place;
#[cfg(test)]
mod tests;
mod toll;
mod watch;
mod wire;

pub use asked::{Asked, Heard};
pub use place::{Place, ProcKey};
pub use watch::{Alarm, Death};
pub use wire::{Each, MOST, Place as Whereabouts};

use crate::api::{Access, ConnectError, Error, OpenError};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use ucs::mem::SharedMem;
use ucs::sys::{EventFd, ProcId, thread};

/// Bits of an export's number in a [`Name`], and the one above them: [`Name::is_usual`].
const EXPORT_BITS: u32 = 23;
const UNUSUAL: u64 = 1 << EXPORT_BITS;
/// Stack of the thread, bytes. It holds no buffers.
const STACK: usize = 128 << 10;

/// Something a process hands out: its key and a number. Two live ones of a host never share a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name(pub u64);

impl Name {
    fn new(owner: ProcKey, export: u64) -> Name {
        Name(owner.0 << (EXPORT_BITS + 1) | export & (UNUSUAL - 1))
    }

    /// The name of an interface with slots of another length than [`USUAL_SLOT`](super::seg::USUAL_SLOT).
    pub fn unusual(self) -> Name {
        Name(self.0 | UNUSUAL)
    }

    /// Whether the slots of an interface called so have the usual length.
    pub fn is_usual(self) -> bool {
        self.0 & UNUSUAL == 0
    }

    /// The process.
    pub fn owner(self) -> ProcKey {
        ProcKey(self.0 >> (EXPORT_BITS + 1))
    }
}

/// What kind of memory is handed out.
#[derive(Clone, Copy, Debug)]
pub enum What<W> {
    /// The program's, which its owner has there.
    Memory(Whereabouts),
    /// An interface's, with what wakes that.
    Iface(W),
}

/// What is handed out under a name.
#[derive(Clone)]
struct Exported {
    mem: Arc<SharedMem>,
    what: What<Arc<EventFd>>,
}

/// What the thread and the process share.
struct Shared {
    exports: Mutex<HashMap<u64, Exported>>,
    /// What of them is the program's memory, by first address: where it is, and its name.
    memory: Mutex<BTreeMap<u64, (Whereabouts, Name)>>,
    watches: watch::Watches,
    stop: EventFd,
}

/// The porter of this process at one place.
pub struct Porter {
    place: Place,
    key: ProcKey,
    /// The process that made it: a child after `fork` has the memory, but not the thread.
    pid: u32,
    next: AtomicU64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Something being handed out; no longer once dropped. Who has it keeps it.
pub struct Export {
    porter: Arc<Porter>,
    name: Name,
}

/// What a peer handed out.
pub struct Fetched {
    /// Its memory, not yet looked at.
    pub mem: OwnedFd,
    /// What it is; not yet looked at either.
    pub what: What<OwnedFd>,
    /// Tells when its process dies.
    pub death: Arc<Death>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks leaves anything half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The porters of this process; those of its parent before a fork are not its own.
static OPEN: Mutex<Vec<Weak<Porter>>> = Mutex::new(Vec::new());

impl Porter {
    /// This process's porter at the place: the one there is, or a new one.
    pub fn at(place: Place) -> Result<Arc<Porter>, OpenError> {
        let mut open = lock(&OPEN);
        let pid = ucs::sys::proc::pid();
        let mut live = open.iter().filter_map(Weak::upgrade);
        if let Some(porter) = live.find(|porter| porter.pid == pid && porter.place == place) {
            return Ok(porter);
        }
        open.retain(|porter| porter.strong_count() > 0);
        let porter = Arc::new(Porter::open(place, pid)?);
        open.push(Arc::downgrade(&porter));
        Ok(porter)
    }

    fn open(place: Place, pid: u32) -> Result<Porter, OpenError> {
        let refused = |what: &str, errno| place::refused(what, "", errno);
        let (key, listener) = place.bind()?;
        let watches = watch::Watches::new().map_err(|e| refused("watch peers", e))?;
        let stop = EventFd::new().map_err(|e| refused("make an event descriptor", e))?;
        let shared = Arc::new(Shared { exports: Mutex::default(), memory: Mutex::default(), watches, stop });
        let body = answer::Body::new(listener, place.clone(), shared.clone())
            .map_err(|e| refused("wait for peers", e))?;
        let thread = thread::spawn_deaf("uct-porter", STACK, move || body.run());
        let thread = thread.map_err(|e| refused("start a thread", e))?;
        Ok(Porter { place, key, pid, next: AtomicU64::new(0), shared, thread: Some(thread) })
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// This process, as peers name it.
    pub fn key(&self) -> ProcKey {
        self.key
    }

    /// Whether this process made it, and is no child that has a copy.
    pub fn is_ours(&self) -> bool {
        self.pid == ucs::sys::proc::pid()
    }

    /// A name for something to be exported.
    pub fn new_name(&self) -> Name {
        let exports = lock(&self.shared.exports);
        loop {
            let name = Name::new(self.key, self.next.fetch_add(1, Ordering::Relaxed));
            // The numbers come round after 8 million.
            if !exports.contains_key(&name.0) && !exports.contains_key(&name.unusual().0) {
                return name;
            }
        }
    }

    /// Hands `mem`, and what else there is of it, to whoever asks for `name`.
    pub fn export(self: &Arc<Self>, name: Name, mem: Arc<SharedMem>, what: What<Arc<EventFd>>) -> Export {
        if let What::Memory(place) = &what {
            lock(&self.shared.memory).insert(place.addr.get(), (*place, name));
        }
        lock(&self.shared.exports).insert(name.0, Exported { mem, what });
        Export { porter: self.clone(), name }
    }

    /// The memory that is handed out in which all of a range lies, whichever domain of this process has allocated it: its name,
    /// and what it may be used for.
    pub fn memory_at(&self, addr: u64, len: u64) -> Option<(Name, Access)> {
        // A child's copy of the list is nobody's.
        if !self.is_ours() {
            return None;
        }
        let memory = lock(&self.shared.memory);
        let (first, (place, name)) = memory.range(..=addr).next_back()?;
        let within = addr - first < place.len.get() && len <= place.len.get() - (addr - first);
        within.then(|| (*name, Access::from_bits_truncate(place.access.get())))
    }

    /// Watches a process that has no porter that we know of.
    pub fn watch(&self, process: ProcId) -> Result<Arc<Death>, ConnectError> {
        self.shared.watches.watch_process(process)
    }

    /// Whether a process is watched by somebody here and has died, as far as the porter knows. No system call.
    pub fn is_known_dead(&self, owner: ProcKey) -> bool {
        self.shared.watches.is_dead(owner)
    }

    /// Whether a process that was once seen at this place still lives. Not knowing counts as alive: a wrong "alive"
    /// costs time, a wrong "dead" costs messages.
    pub fn is_alive(&self, owner: ProcKey) -> bool {
        // Who is watched is known; a socket may have been removed by whoever cleans up directories.
        let watched = || self.shared.watches.sees(owner).map(|death| !death.look());
        owner == self.key || watched().unwrap_or_else(|| ask::is_alive(&self.place, owner))
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let _ = self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            // It closes the socket as it ends.
            let _ = thread.join();
        }
        self.place.unlink(self.key);
    }
}

impl Export {
    /// What peers call it.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Who hands it out.
    pub fn porter(&self) -> &Arc<Porter> {
        &self.porter
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // A child's copy of the list is nobody's; and it may have been locked when the child was made.
        if self.porter.is_ours() {
            let gone = lock(&self.porter.shared.exports).remove(&self.name.0);
            if let Some(Exported { what: What::Memory(place), .. }) = &gone {
                let mut memory = lock(&self.porter.shared.memory);
                if memory.get(&place.addr.get()).is_some_and(|(_, name)| *name == self.name) {
                    memory.remove(&place.addr.get());
                }
            }
        }
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({:#x})", self.name.0)
    }
}

/// What a refusal of a peer's porter means for an operation.
pub fn as_error(e: ConnectError) -> Error {
    match e {
        ConnectError::Gone => Error::PeerDead,
        ConnectError::Malformed => Error::RemoteAccess,
        ConnectError::Op(e) => e,
        _ => Error::Unreachable,
    }
}
