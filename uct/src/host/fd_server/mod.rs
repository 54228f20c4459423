//! The fd server: a thread of each process that passes descriptors of its memory to peers that query its unix
//! socket, and notifies of peers that die. A descriptor moves only if a process sends it, and a peer must be
//! able to attach while the owner computes, hence the thread; see decision 12 in `docs/decisions`. Interfaces
//! and memory domains of a namespace share one. It sleeps otherwise, and never touches messages or memory.
//!
//! | File | Contents |
//! |---|---|
//! | `namespace.rs` | the names of sockets |
//! | `wire.rs` | request and reply |
//! | `server.rs` | the thread |
//! | `client_table.rs` | the connections it keeps |
//! | `guess_limit.rs` | limit of guessed names |
//! | `client.rs` | the socket calls of a querying process |
//! | `query.rs` | a query, until its reply arrives |
//! | `watch.rs` | processes that are watched for their death |
//! | `notifier.rs` | the synchronisation of the notification, with its loom model |

mod client;
mod client_table;
mod guess_limit;
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
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use ucs::mem::SharedMem;
use ucs::sys::{EventFd, ProcId, WakeSocket, thread};

/// Bits of an export's number in a [`Name`]. Above them are the bits [`ALIAS`] and [`CUSTOM_SLOTS`], and then
/// the process.
const EXPORT_BITS: u32 = 30;
const NUMBER: u64 = (1 << EXPORT_BITS) - 1;
const ALIAS: u64 = 1 << EXPORT_BITS;
const CUSTOM_SLOTS: u64 = 1 << (EXPORT_BITS + 1);
const OWNER_SHIFT: u32 = EXPORT_BITS + 2;
/// Bytes of the thread's stack. It holds no buffers.
const STACK_LEN: usize = 128 << 10;

/// The name of an export: the key of its process and a number. No two live ones of a host are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name(pub u64);

impl Name {
    fn new(owner: ProcKey, export: u64) -> Name {
        Name(owner.0 << OWNER_SHIFT | export & NUMBER)
    }

    /// Whether it is the second name of memory, which nobody guesses: see [`FdServer::alias`].
    pub(super) fn is_alias(self) -> bool {
        self.0 & ALIAS != 0
    }

    pub fn with_custom_slots(self) -> Name {
        Name(self.0 | CUSTOM_SLOTS)
    }

    pub fn has_default_slots(self) -> bool {
        self.0 & CUSTOM_SLOTS == 0
    }

    pub fn owner(self) -> ProcKey {
        ProcKey(self.0 >> OWNER_SHIFT)
    }
}

/// The proof that a process presents to get a descriptor of memory: its name, and the nonce that keys of it
/// contain. The nonce is 0 for interfaces, whose names are addresses, and for aliases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capability {
    pub name: Name,
    pub nonce: u64,
}

impl From<Name> for Capability {
    fn from(name: Name) -> Capability {
        Capability { name, nonce: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum ExportKind<W> {
    /// Memory of the program, at this range in its owner.
    Memory(MemRange),
    /// The segment of an interface, with the socket that wakes it.
    Iface(W),
}

#[derive(Clone)]
struct ExportEntry {
    mem: Arc<SharedMem>,
    kind: ExportKind<Arc<WakeSocket>>,
    /// The nonce that a request by the first name must contain.
    nonce: u64,
}

struct Shared {
    /// By name. Memory that has been given an alias is there under both.
    exports: Mutex<HashMap<u64, ExportEntry>>,
    /// The exported memory of the program, by first address.
    memory: Mutex<BTreeMap<u64, (MemRange, Name)>>,
    watches: watch::Watches,
    stop: EventFd,
}

/// The fd server of this process in one namespace.
pub struct FdServer {
    namespace: SocketNamespace,
    key: ProcKey,
    /// The process that made it: after a fork the child has the memory, but not the thread.
    pid: u32,
    next: AtomicU64,
    /// Key of the hashes that nonces and aliases are.
    secret: RandomState,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// An export, until it is withdrawn or dropped. Processes that fetched it keep the memory.
pub struct Export {
    server: Arc<FdServer>,
    name: Name,
    withdrawn: AtomicBool,
}

/// An export fetched from a peer, not validated yet.
pub struct Fetched {
    pub mem: OwnedFd,
    pub kind: ExportKind<OwnedFd>,
    pub watch: Arc<ProcWatch>,
}

/// Locks. What is behind these locks is consistent between any two statements, also after a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fd servers of this process and, after a fork, those of its parent.
static SERVERS: Mutex<Vec<Weak<FdServer>>> = Mutex::new(Vec::new());

impl FdServer {
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
        let watches =
            watch::Watches::new(namespace.clone(), key).map_err(|e| open_error("watch peers", e))?;
        let stop = EventFd::new().map_err(|e| open_error("make an event descriptor", e))?;
        let shared = Arc::new(Shared { exports: Mutex::default(), memory: Mutex::default(), watches, stop });
        let body = server::ServerThread::new(listener, namespace.clone(), shared.clone())
            .map_err(|e| open_error("wait for peers", e))?;
        let thread = thread::spawn_masked("uct-fd-server", STACK_LEN, move || body.run());
        let thread = thread.map_err(|e| open_error("start a thread", e))?;
        let secret = RandomState::new();
        Ok(FdServer { namespace, key, pid, next: AtomicU64::new(0), secret, shared, thread: Some(thread) })
    }

    pub fn namespace(&self) -> &SocketNamespace {
        &self.namespace
    }

    pub fn key(&self) -> ProcKey {
        self.key
    }

    /// Whether this process made it, rather than its parent before a fork.
    pub fn is_ours(&self) -> bool {
        self.pid == ucs::sys::proc::pid()
    }

    pub fn new_name(&self) -> Name {
        let exports = lock(&self.shared.exports);
        loop {
            let name = Name::new(self.key, self.next.fetch_add(1, Ordering::Relaxed));
            // The numbers wrap after a billion.
            if !exports.contains_key(&name.0) && !exports.contains_key(&name.with_custom_slots().0) {
                return name;
            }
        }
    }

    /// The nonce of memory: 64 bits that say nothing to whoever has not got a key of it. 0 is none.
    pub fn nonce(&self, name: Name) -> u64 {
        self.secret.hash_one(("nonce", name.0)).max(1)
    }

    /// A second name of exported memory, which is a key to it of one word: 30 bits of it are as random as a
    /// nonce. Memory has none until this is called first.
    pub fn alias(&self, name: Name) -> Option<Name> {
        let alias = self.alias_of(name);
        if !self.is_ours() {
            return None;
        }
        let mut exports = lock(&self.shared.exports);
        let entry = exports.get(&name.0)?;
        if let Some(there) = exports.get(&alias.0) {
            // Two of a billion may meet. The later one has no alias.
            return Arc::ptr_eq(&there.mem, &entry.mem).then_some(alias);
        }
        let entry = entry.clone();
        exports.insert(alias.0, entry);
        Some(alias)
    }

    fn alias_of(&self, name: Name) -> Name {
        Name(Name::new(self.key, self.secret.hash_one(("alias", name.0))).0 | ALIAS)
    }

    /// Exports `mem` under `name`, until the result is dropped.
    pub fn export(
        self: &Arc<Self>,
        name: Name,
        mem: Arc<SharedMem>,
        kind: ExportKind<Arc<WakeSocket>>,
    ) -> Export {
        if let ExportKind::Memory(range) = &kind {
            lock(&self.shared.memory).insert(range.addr.get(), (*range, name));
        }
        let nonce = match kind {
            ExportKind::Memory(_) => self.nonce(name),
            ExportKind::Iface(_) => 0,
        };
        lock(&self.shared.exports).insert(name.0, ExportEntry { mem, kind, nonce });
        Export { server: self.clone(), name, withdrawn: AtomicBool::new(false) }
    }

    /// Name and rights of the export that contains a whole range, of any domain of this process.
    pub fn memory_at(&self, addr: u64, len: u64) -> Option<(Name, Access)> {
        if !self.is_ours() {
            return None;
        }
        let memory = lock(&self.shared.memory);
        let (first, (range, name)) = memory.range(..=addr).next_back()?;
        let within = addr - first < range.len.get() && len <= range.len.get() - (addr - first);
        within.then(|| (*name, Access::from_bits_truncate(range.access.get())))
    }

    /// Watches a process that has not been asked for anything; `owner` is the key that its address contains.
    pub fn watch(&self, process: ProcId, owner: ProcKey) -> Result<Arc<ProcWatch>, ConnectError> {
        self.shared.watches.watch_process(process, owner)
    }

    /// Whether a process is watched here and has died, as far as the thread was notified. No system call.
    pub fn is_known_dead(&self, owner: ProcKey) -> bool {
        self.shared.watches.is_dead(owner)
    }

    /// Whether a process once seen here still lives; yes if in doubt: a wrong "dead" costs messages.
    pub fn is_alive(&self, owner: ProcKey) -> bool {
        // The watch first: the socket may have been removed by a clean-up of the directory.
        let find_watch = || self.shared.watches.find(owner).map(|watch| !watch.check());
        owner == self.key || find_watch().unwrap_or_else(|| client::is_alive(&self.namespace, owner))
    }
}

impl FdServer {
    /// Whether a process may not run at present, or that is unknown: it is stopped, frozen, or waits for
    /// pages.
    pub fn may_be_halted(&self, owner: ProcKey) -> bool {
        let pid = match owner == self.key {
            true => Some(self.pid),
            false => client::pid_of(&self.namespace, owner),
        };
        pid.is_none_or(ucs::sys::proc::may_be_halted)
    }
}

impl Drop for FdServer {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let _ = self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.namespace.unlink(self.key);
    }
}

impl Export {
    pub fn name(&self) -> Name {
        self.name
    }

    pub fn server(&self) -> &Arc<FdServer> {
        &self.server
    }
}

impl Export {
    /// Passes the memory to nobody from now on.
    pub fn withdraw(&self) {
        if !self.server.is_ours() || self.withdrawn.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut exports = lock(&self.server.shared.exports);
        let gone = exports.remove(&self.name.0);
        if let Some(ExportEntry { mem, kind: ExportKind::Memory(_), .. }) = &gone {
            let alias = self.server.alias_of(self.name).0;
            if exports.get(&alias).is_some_and(|it| Arc::ptr_eq(&it.mem, mem)) {
                exports.remove(&alias);
            }
        }
        drop(exports);
        if let Some(ExportEntry { kind: ExportKind::Memory(range), .. }) = &gone {
            let mut memory = lock(&self.server.shared.memory);
            if memory.get(&range.addr.get()).is_some_and(|(_, name)| *name == self.name) {
                memory.remove(&range.addr.get());
            }
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({:#x})", self.name.0)
    }
}

/// Maps the answer to a query to the error of the operation, and logs what that cannot tell.
#[cold]
pub fn as_error(e: ConnectError) -> Error {
    match e {
        ConnectError::Gone => Error::PeerDead,
        ConnectError::Malformed => Error::RemoteAccess,
        ConnectError::Op(e) => e,
        why => {
            tracing::warn!("a peer on this host cannot be reached: {why}");
            Error::Unreachable
        }
    }
}
