//! The fd server: one thread of a process that hands the descriptors of its memory to peers that ask at its unix socket,
//! and tells of peers that die. Interfaces and memory domains share the one of their place. It sleeps in the kernel but
//! for those two occasions, never looks at a message, and never touches what it hands out.
//!
//! | File | What |
//! |---|---|
//! | `namespace.rs` | where sockets are, and what they are called |
//! | `wire.rs` | question and answer |
//! | `server.rs` | the thread |
//! | `client.rs` | a peer at the door |
//! | `query.rs` | a question, until its answer comes |
//! | `watch.rs` | deaths, and who wants to know |
//! | `notifier.rs` | the synchronisation of that alone, with its loom model |
//!
//! Why a thread: a descriptor moves only if a process sends it, and a peer must be able to attach while the owner
//! computes. See decision 12 in `docs/decisions`.

mod client;
mod namespace;
mod notifier;
mod query;
mod server;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

pub use namespace::{ProcKey, SocketNamespace};
pub use query::{Query, QueryResult};
pub use watch::{Alarm, ProcWatch};
pub use wire::{MAX_NAMES, MemRange, PerName};

use crate::api::{Access, ConnectError, Error, OpenError};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use ucs::mem::SharedMem;
use ucs::sys::{EventFd, ProcId, thread};

/// Bits of an export's number in a [`Name`], and the one above them: [`Name::has_default_slots`].
const EXPORT_BITS: u32 = 23;
const CUSTOM_SLOTS: u64 = 1 << EXPORT_BITS;
/// Stack of the thread, bytes. It holds no buffers.
const STACK_LEN: usize = 128 << 10;

/// Something a process hands out: its key and a number. Two live ones of a host never share a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name(pub u64);

impl Name {
    fn new(owner: ProcKey, export: u64) -> Name {
        Name(owner.0 << (EXPORT_BITS + 1) | export & (CUSTOM_SLOTS - 1))
    }

    /// The name of an interface with slots of another length than `posix::seg::DEFAULT_SLOT_LEN`.
    pub fn with_custom_slots(self) -> Name {
        Name(self.0 | CUSTOM_SLOTS)
    }

    /// Whether the slots of an interface called so have the usual length.
    pub fn has_default_slots(self) -> bool {
        self.0 & CUSTOM_SLOTS == 0
    }

    /// The process.
    pub fn owner(self) -> ProcKey {
        ProcKey(self.0 >> (EXPORT_BITS + 1))
    }
}

/// What kind of memory is handed out.
#[derive(Clone, Copy, Debug)]
pub enum ExportKind<W> {
    /// The program's, which its owner has there.
    Memory(MemRange),
    /// An interface's, with what wakes that.
    Iface(W),
}

/// What is handed out under a name.
#[derive(Clone)]
struct ExportEntry {
    mem: Arc<SharedMem>,
    kind: ExportKind<Arc<EventFd>>,
}

/// What the thread and the process share.
struct Shared {
    exports: Mutex<HashMap<u64, ExportEntry>>,
    /// What of them is the program's memory, by first address: where it is, and its name.
    memory: Mutex<BTreeMap<u64, (MemRange, Name)>>,
    watches: watch::Watches,
    stop: EventFd,
}

/// The fd server of this process at one place.
pub struct FdServer {
    namespace: SocketNamespace,
    key: ProcKey,
    /// The process that made it: a child after `fork` has the memory, but not the thread.
    pid: u32,
    next: AtomicU64,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Something being handed out; no longer once dropped. Who has it keeps it.
pub struct Export {
    server: Arc<FdServer>,
    name: Name,
}

/// What a peer handed out.
pub struct Fetched {
    /// Its memory, not yet looked at.
    pub mem: OwnedFd,
    /// What it is; not yet looked at either.
    pub kind: ExportKind<OwnedFd>,
    /// Tells when its process dies.
    pub watch: Arc<ProcWatch>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that is done under these locks leaves anything half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fd servers of this process; those of its parent before a fork are not its own.
static SERVERS: Mutex<Vec<Weak<FdServer>>> = Mutex::new(Vec::new());

impl FdServer {
    /// This process's fd server at the place: the one there is, or a new one.
    pub fn get(namespace: SocketNamespace) -> Result<Arc<FdServer>, OpenError> {
        let mut servers = lock(&SERVERS);
        let pid = ucs::sys::proc::pid();
        let mut live = servers.iter().filter_map(Weak::upgrade);
        if let Some(server) = live.find(|server| server.pid == pid && server.namespace == namespace) {
            return Ok(server);
        }
        servers.retain(|server| server.strong_count() > 0);
        let server = Arc::new(FdServer::open(namespace, pid)?);
        servers.push(Arc::downgrade(&server));
        Ok(server)
    }

    fn open(namespace: SocketNamespace, pid: u32) -> Result<FdServer, OpenError> {
        let open_error = |what: &str, errno| namespace::open_error(what, "", errno);
        let (key, listener) = namespace.bind()?;
        let watches = watch::Watches::new().map_err(|e| open_error("watch peers", e))?;
        let stop = EventFd::new().map_err(|e| open_error("make an event descriptor", e))?;
        let shared = Arc::new(Shared { exports: Mutex::default(), memory: Mutex::default(), watches, stop });
        let body = server::ServerThread::new(listener, namespace.clone(), shared.clone())
            .map_err(|e| open_error("wait for peers", e))?;
        let thread = thread::spawn_masked("uct-fd-server", STACK_LEN, move || body.run());
        let thread = thread.map_err(|e| open_error("start a thread", e))?;
        Ok(FdServer { namespace, key, pid, next: AtomicU64::new(0), shared, thread: Some(thread) })
    }

    /// Where it is.
    pub fn namespace(&self) -> &SocketNamespace {
        &self.namespace
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
            if !exports.contains_key(&name.0) && !exports.contains_key(&name.with_custom_slots().0) {
                return name;
            }
        }
    }

    /// Hands `mem`, and what else there is of it, to whoever asks for `name`.
    pub fn export(
        self: &Arc<Self>,
        name: Name,
        mem: Arc<SharedMem>,
        kind: ExportKind<Arc<EventFd>>,
    ) -> Export {
        if let ExportKind::Memory(range) = &kind {
            lock(&self.shared.memory).insert(range.addr.get(), (*range, name));
        }
        lock(&self.shared.exports).insert(name.0, ExportEntry { mem, kind });
        Export { server: self.clone(), name }
    }

    /// The memory that is handed out in which all of a range lies, whichever domain of this process has allocated it: its name,
    /// and what it may be used for.
    pub fn memory_at(&self, addr: u64, len: u64) -> Option<(Name, Access)> {
        // A child's copy of the list is nobody's.
        if !self.is_ours() {
            return None;
        }
        let memory = lock(&self.shared.memory);
        let (first, (range, name)) = memory.range(..=addr).next_back()?;
        let within = addr - first < range.len.get() && len <= range.len.get() - (addr - first);
        within.then(|| (*name, Access::from_bits_truncate(range.access.get())))
    }

    /// Watches a process that has no fd server that we know of.
    pub fn watch(&self, process: ProcId) -> Result<Arc<ProcWatch>, ConnectError> {
        self.shared.watches.watch_process(process)
    }

    /// Whether a process is watched by somebody here and has died, as far as the fd server knows. No system call.
    pub fn is_known_dead(&self, owner: ProcKey) -> bool {
        self.shared.watches.is_dead(owner)
    }

    /// Whether a process that was once seen at this place still lives. Not knowing counts as alive: a wrong "alive"
    /// costs time, a wrong "dead" costs messages.
    pub fn is_alive(&self, owner: ProcKey) -> bool {
        // Who is watched is known; a socket may have been removed by whoever cleans up directories.
        let find_watch = || self.shared.watches.find(owner).map(|watch| !watch.check());
        owner == self.key || find_watch().unwrap_or_else(|| client::is_alive(&self.namespace, owner))
    }
}

impl Drop for FdServer {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let _ = self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            // It closes the socket as it ends.
            let _ = thread.join();
        }
        self.namespace.unlink(self.key);
    }
}

impl Export {
    /// What peers call it.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Who hands it out.
    pub fn server(&self) -> &Arc<FdServer> {
        &self.server
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // A child's copy of the list is nobody's; and it may have been locked when the child was made.
        if self.server.is_ours() {
            let gone = lock(&self.server.shared.exports).remove(&self.name.0);
            if let Some(ExportEntry { kind: ExportKind::Memory(range), .. }) = &gone {
                let mut memory = lock(&self.server.shared.memory);
                if memory.get(&range.addr.get()).is_some_and(|(_, name)| *name == self.name) {
                    memory.remove(&range.addr.get());
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

/// What a refusal of a peer's fd server means for an operation.
pub fn as_error(e: ConnectError) -> Error {
    match e {
        ConnectError::Gone => Error::PeerDead,
        ConnectError::Malformed => Error::RemoteAccess,
        ConnectError::Op(e) => e,
        _ => Error::Unreachable,
    }
}
