//! Memory of other processes, mapped here and shared by the keys that name it; segments named by MR keys are
//! cached. Owners are watched: a process that only puts and gets sends nothing that shows a death. Each
//! interface of the domain hears of it.

#![allow(unsafe_code)]

use super::fd_server::{
    Alarm, Capability, ExportKind, FdServer, Fetched, MemRange, Name, ProcKey, ProcWatch, Query, QueryResult,
    as_error, lock,
};
use super::recent_segments;
use crate::api::{Access, ConnectError, Error};
use crate::base::direct::Window;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use rustc_hash::FxBuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use ucs::mem::{MemError, SharedMap};

/// Most cached segments; one not used lately makes room.
pub const MAX_CACHED: usize = 256;
/// Most open queries: each takes a descriptor, and one more for a process not watched yet.
const MAX_QUERIES: usize = 32;

/// A segment of another process, mapped here.
#[derive(Debug)]
pub struct RemoteSegment {
    name: Name,
    /// The nonce that the owner has confirmed.
    nonce: u64,
    map: SharedMap,
    range: MemRange,
    /// Named by its MR key since another segment last had to make room.
    in_use: AtomicBool,
    /// Kept with the segment, so that a later endpoint knows of a death.
    watch: Option<Arc<ProcWatch>>,
}

/// Whether the interfaces of a domain hear of the death of owners of mapped memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// They do, by their alarms.
    Owners,
    /// They watch the processes of their endpoints themselves.
    Nothing,
}

/// An interface of the domain: its alarm, and the owners of segments until it has handled their death.
struct Listener {
    alarm: Arc<Alarm>,
    watches: HashMap<ProcKey, Arc<ProcWatch>, FxBuildHasher>,
}

impl Listener {
    fn listen(&mut self, owner: ProcKey, watch: &Arc<ProcWatch>) {
        if let Entry::Vacant(new) = self.watches.entry(owner) {
            new.insert(watch.clone());
            watch.subscribe(&self.alarm);
        }
    }
}

pub struct RemoteSegments {
    /// Distinguishes the domains of a process.
    id: u64,
    server: Arc<FdServer>,
    watch: Watch,
    answer_timeout: Duration,
    /// Not held while a peer is waited for.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: Vec<Listener>,
    segments: HashMap<Name, Weak<RemoteSegment>, FxBuildHasher>,
    /// Segments named by MR keys, kept mapped.
    cached: HashMap<Name, CachedSegment, FxBuildHasher>,
    cache_count: u64,
    /// Open queries, of MR keys and of calls that waited in vain.
    queries: HashMap<Name, Box<Query>, FxBuildHasher>,
}

struct CachedSegment {
    segment: Arc<RemoteSegment>,
    /// When it was cached, or was found in use when another had to make room.
    since: u64,
}

impl RemoteSegment {
    pub fn name(&self) -> Name {
        self.name
    }

    /// A part of the segment, with the rights of `access` that its owner grants.
    pub fn window(&self, addr: u64, len: usize, access: Access) -> Result<Window, Error> {
        let (into, all) = (addr.wrapping_sub(self.range.addr.get()), self.map.len());
        if into > all as u64 || len > all - into as usize {
            return Err(Error::RemoteAccess);
        }
        let at = self.map.as_ptr().wrapping_add(into as usize);
        let access = access & self.access();
        // SAFETY: `len` bytes from there are mapped (just checked) as long as `self`, which is kept beside
        // the window; written only if the owner allows it.
        Ok(unsafe { Window::new(addr, len, at, access) })
    }

    /// The whole segment, with all rights that its owner grants.
    pub fn all(&self) -> Result<Window, Error> {
        let len = usize::try_from(self.range.len.get()).map_err(|_| Error::RemoteAccess)?;
        self.window(self.range.addr.get(), len, self.access())
    }

    fn access(&self) -> Access {
        access(&self.range)
    }
}

fn access(range: &MemRange) -> Access {
    Access::from_bits_truncate(range.access.get())
}

impl State {
    fn find(&self, name: Name) -> Option<Arc<RemoteSegment>> {
        self.segments.get(&name).and_then(Weak::upgrade)
    }

    fn keep_query(&mut self, name: Name, query: Box<Query>) {
        if self.queries.len() >= MAX_QUERIES {
            self.queries.clear();
        }
        self.queries.insert(name, query);
    }

    fn insert(&mut self, name: Name, segment: &Arc<RemoteSegment>) {
        if self.segments.len() == self.segments.capacity() {
            self.segments.retain(|_, segment| segment.strong_count() > 0);
        }
        self.segments.insert(name, Arc::downgrade(segment));
    }

    /// Caches a segment. One that no thread has used for long makes room.
    fn cache(&mut self, name: Name, segment: &Arc<RemoteSegment>) {
        while self.cached.len() >= MAX_CACHED && !self.cached.contains_key(&name) {
            let Some((&oldest, it)) = self.cached.iter_mut().min_by_key(|(_, it)| it.since) else { break };
            if it.segment.in_use.swap(false, Ordering::Relaxed) {
                self.cache_count += 1;
                it.since = self.cache_count;
            } else {
                self.cached.remove(&oldest);
            }
        }
        self.cache_count += 1;
        self.cached.insert(name, CachedSegment { segment: segment.clone(), since: self.cache_count });
    }
}

impl RemoteSegments {
    pub fn new(server: Arc<FdServer>, watch: Watch, answer_timeout: Duration) -> RemoteSegments {
        static DOMAINS: AtomicU64 = AtomicU64::new(0);
        let id = DOMAINS.fetch_add(1, Ordering::Relaxed);
        RemoteSegments { id, server, watch, answer_timeout, state: Mutex::default() }
    }

    pub fn server(&self) -> &Arc<FdServer> {
        &self.server
    }

    /// The segment that a key names, mapped as long as the result lives. Waits for the fd server of its owner
    /// up to the answer timeout; if that expires, later calls for the owner do not wait until it has
    /// answered.
    pub fn map(&self, wanted: Capability) -> Result<Arc<RemoteSegment>, Error> {
        let known = lock(&self.state).find(wanted.name);
        match known {
            Some(segment) if segment.nonce == wanted.nonce => Ok(segment),
            // Names are no secret: the one who gave the key has made it up.
            Some(_) => Err(Error::RemoteAccess),
            None => self.add(wanted, self.fetch(wanted).map_err(as_error)?),
        }
    }

    fn fetch(&self, wanted: Capability) -> Result<Fetched, ConnectError> {
        let name = wanted.name;
        let wait = if self.is_unresponsive(name.owner()) { Duration::ZERO } else { self.answer_timeout };
        let earlier = lock(&self.state).queries.remove(&name);
        let query = earlier.map_or_else(|| self.server.query([wanted], self.answer_timeout), Ok)?;
        match self.server.wait(query, wait)? {
            QueryResult::Answered(mut all) => match all.pop() {
                // The process answers: the memory alone is gone.
                Some((_, Err(ConnectError::Gone))) => Err(Error::RemoteAccess.into()),
                Some((_, received)) => received,
                None => Err(ConnectError::Malformed),
            },
            QueryResult::Pending(query) => {
                lock(&self.state).keep_query(name, query);
                Err(ConnectError::NoAnswer)
            }
        }
    }

    fn is_unresponsive(&self, owner: ProcKey) -> bool {
        let overdue = |name: &Name, query: &mut Box<Query>| name.owner() == owner && query.is_overdue();
        let overdue: Vec<_> = lock(&self.state).queries.extract_if(overdue).collect();
        let mut unresponsive = false;
        for (name, query) in overdue {
            // Any result shows that it answers again.
            if let Ok(QueryResult::Pending(query)) = self.server.wait(query, Duration::ZERO) {
                lock(&self.state).keep_query(name, query);
                unresponsive = true;
            }
        }
        unresponsive
    }

    /// Maps what was fetched, unless another thread has meanwhile.
    fn add(
        &self,
        Capability { name, nonce }: Capability,
        Fetched { mem, kind, watch }: Fetched,
    ) -> Result<Arc<RemoteSegment>, Error> {
        // The segment of an interface is not the program's memory.
        let ExportKind::Memory(range) = kind else { return Err(Error::RemoteAccess) };
        let len = usize::try_from(range.len.get()).map_err(|_| Error::RemoteAccess)?;
        let writes = access(&range).intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let map = SharedMap::from_fd(mem, len, writes).map_err(map_error)?;
        let watched = self.watch == Watch::Owners && name.owner() != self.server.key();
        let watch = watched.then_some(watch);
        let mut state = lock(&self.state);
        if let Some(segment) = state.find(name) {
            return Ok(segment);
        }
        if let Some(watch) = &watch {
            state.listeners.iter_mut().for_each(|listener| listener.listen(name.owner(), watch));
        }
        let segment =
            Arc::new(RemoteSegment { name, nonce, map, range, in_use: AtomicBool::new(false), watch });
        state.insert(name, &segment);
        Ok(segment)
    }

    /// Raises `alarm` when the owner of a segment dies, whoever has mapped it, until
    /// [`remove_alarm`](RemoteSegments::remove_alarm).
    pub fn add_alarm(&self, alarm: Arc<Alarm>) {
        let mut new = Listener { alarm, watches: HashMap::default() };
        let mut state = lock(&self.state);
        for (name, segment) in &state.segments {
            if let Some(watch) = segment.upgrade().and_then(|segment| segment.watch.clone()) {
                new.listen(name.owner(), &watch);
            }
        }
        state.listeners.push(new);
    }

    pub fn remove_alarm(&self, alarm: &Arc<Alarm>) {
        // In a forked child another thread of the parent may hold the lock for ever.
        if self.server.is_ours() {
            lock(&self.state).listeners.retain(|listener| !Arc::ptr_eq(&listener.alarm, alarm));
        }
    }

    /// The segment of an MR key, from the cache if it is there. Does not wait: [`Error::NotReady`] until the
    /// owner has answered, [`Error::Unreachable`] if it takes too long.
    // HOT
    #[inline]
    pub fn by_mr_key(&self, name: Name) -> Result<Arc<RemoteSegment>, Error> {
        let Some(segment) = recent_segments::find(self.id, name) else { return self.by_new_mr_key(name) };
        if !segment.in_use.load(Ordering::Relaxed) {
            segment.in_use.store(true, Ordering::Relaxed);
        }
        Ok(segment)
    }

    #[cold]
    fn by_new_mr_key(&self, name: Name) -> Result<Arc<RemoteSegment>, Error> {
        let known = lock(&self.state).find(name);
        let segment = match known {
            Some(segment) => segment,
            None => self.poll_query(name)?,
        };
        lock(&self.state).cache(name, &segment);
        recent_segments::insert(self.id, name, &segment);
        Ok(segment)
    }

    /// Queries a name, or receives the reply of an earlier query.
    fn poll_query(&self, name: Name) -> Result<Arc<RemoteSegment>, Error> {
        // A missing name does not mean that the process is gone.
        let query_error = |e| match e {
            ConnectError::Gone => Error::RemoteAccess,
            e => as_error(e),
        };
        let earlier = lock(&self.state).queries.remove(&name);
        let Some(query) = earlier else {
            let query = self.server.query([name], self.answer_timeout).map_err(query_error)?;
            lock(&self.state).keep_query(name, query);
            return Err(Error::NotReady);
        };
        let fetched = match self.server.wait(query, Duration::ZERO).map_err(query_error)? {
            QueryResult::Pending(query) => {
                let overdue = query.is_overdue();
                lock(&self.state).keep_query(name, query);
                return Err(if overdue { Error::Unreachable } else { Error::NotReady });
            }
            QueryResult::Answered(mut all) => {
                all.pop().map_or(Err(ConnectError::Malformed), |(_, received)| received)
            }
        };
        self.add(name.into(), fetched.map_err(query_error)?)
    }

    /// Takes the dead processes that the interface of `alarm` has not heard of, to be
    /// [forgotten](RemoteSegments::forget).
    pub fn take_dead(&self, alarm: &Arc<Alarm>) -> Vec<(ProcKey, Arc<ProcWatch>)> {
        let mut state = lock(&self.state);
        let listener = state.listeners.iter_mut().find(|listener| Arc::ptr_eq(&listener.alarm, alarm));
        let dead =
            |listener: &mut Listener| listener.watches.extract_if(|_, watch| watch.is_dead()).collect();
        listener.map_or_else(Vec::new, dead)
    }

    /// Lets go of the segments and queries of a process that has died. Keys keep their segments.
    pub fn forget(&self, owner: ProcKey) {
        let mut state = lock(&self.state);
        state.cached.retain(|name, _| name.owner() != owner);
        state.queries.retain(|name, _| name.owner() != owner);
    }

    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.cached.len(), state.queries.len())
    }
}

fn map_error(e: MemError) -> Error {
    match e {
        MemError::Gone { .. } => Error::PeerDead,
        MemError::Denied { .. } => Error::Unreachable,
        MemError::Refused { .. } | MemError::BadLength { .. } => Error::RemoteAccess,
        MemError::Descriptors { .. } => Error::NoDescriptor,
        MemError::Exhausted { .. } | MemError::FileLimit { .. } | MemError::LockLimit { .. } => {
            Error::NoMemory
        }
        MemError::Os { op, errno } => Error::Sys { call: op, errno },
    }
}
