//! Memory of other processes, mapped here and shared by the keys that name it; segments named by MR keys are
//! cached. Owners are watched: a process that only puts and gets sends nothing that shows a death. Each
//! interface of the domain hears of it.

#![allow(unsafe_code)]

use super::fd_server::{
    Alarm, ExportKind, FdServer, Fetched, MemRange, Name, ProcKey, ProcWatch, Query, QueryResult, as_error,
};
use crate::api::{Access, ConnectError, Error};
use crate::base::direct::Window;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use rustc_hash::FxBuildHasher;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use ucs::mem::{MemError, SharedMap};

/// Most cached segments; the least recently used makes room.
pub const MAX_CACHED: usize = 256;
/// Most open queries: each takes a descriptor, and one more for a process not watched yet.
const MAX_QUERIES: usize = 32;

/// A segment of another process, mapped here.
#[derive(Debug)]
pub struct RemoteSegment {
    map: SharedMap,
    range: MemRange,
    /// Kept with the segment, so that a later endpoint knows of a death.
    watch: Option<Arc<ProcWatch>>,
}

struct CachedSegment {
    segment: Rc<RemoteSegment>,
    last_used: Cell<u64>,
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
    server: Arc<FdServer>,
    watch: Watch,
    listeners: RefCell<Vec<Listener>>,
    segments: RefCell<HashMap<Name, Weak<RemoteSegment>, FxBuildHasher>>,
    cached: RefCell<HashMap<Name, CachedSegment, FxBuildHasher>>,
    use_count: Cell<u64>,
    /// Open queries, of MR keys and of calls that waited in vain.
    queries: RefCell<HashMap<Name, Box<Query>, FxBuildHasher>>,
    answer_timeout: Duration,
}

impl RemoteSegment {
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

impl RemoteSegments {
    pub fn new(server: Arc<FdServer>, watch: Watch, answer_timeout: Duration) -> RemoteSegments {
        let (segments, cached, queries) = (RefCell::default(), RefCell::default(), RefCell::default());
        RemoteSegments {
            server,
            watch,
            listeners: RefCell::default(),
            segments,
            cached,
            use_count: Cell::new(0),
            queries,
            answer_timeout,
        }
    }

    pub fn server(&self) -> &Arc<FdServer> {
        &self.server
    }

    /// The segment of a name, mapped as long as the result lives. Waits for the fd server of its owner up to
    /// the answer timeout; if that expires, later calls for the owner do not wait until it has answered.
    pub fn map(&self, name: Name) -> Result<Rc<RemoteSegment>, Error> {
        if let Some(segment) = self.segments.borrow().get(&name).and_then(Weak::upgrade) {
            return Ok(segment);
        }
        let fetched = self.fetch(name).map_err(as_error)?;
        self.insert_segment(name, fetched)
    }

    fn fetch(&self, name: Name) -> Result<Fetched, ConnectError> {
        let wait = if self.is_unresponsive(name.owner()) { Duration::ZERO } else { self.answer_timeout };
        let earlier = self.queries.borrow_mut().remove(&name);
        let query = earlier.map_or_else(|| self.server.query([name], self.answer_timeout), Ok)?;
        match self.server.wait(query, wait)? {
            QueryResult::Answered(mut all) => {
                all.pop().map_or(Err(ConnectError::Malformed), |(_, received)| received)
            }
            QueryResult::Pending(query) => {
                self.keep_query(name, query);
                Err(ConnectError::NoAnswer)
            }
        }
    }

    fn is_unresponsive(&self, owner: ProcKey) -> bool {
        let mut queries = self.queries.borrow_mut();
        let overdue = queries.extract_if(|name, queries| name.owner() == owner && queries.is_overdue());
        let overdue: Vec<_> = overdue.collect();
        for (name, query) in overdue {
            // Any result shows that it answers again.
            if let Ok(QueryResult::Pending(query)) = self.server.wait(query, Duration::ZERO) {
                queries.insert(name, query);
                return true;
            }
        }
        false
    }

    fn keep_query(&self, name: Name, query: Box<Query>) {
        let mut queries = self.queries.borrow_mut();
        if queries.len() == MAX_QUERIES {
            queries.clear();
        }
        queries.insert(name, query);
    }

    fn insert_segment(
        &self,
        name: Name,
        Fetched { mem, kind, watch }: Fetched,
    ) -> Result<Rc<RemoteSegment>, Error> {
        // The segment of an interface is not the program's memory.
        let ExportKind::Memory(range) = kind else { return Err(Error::RemoteAccess) };
        let len = usize::try_from(range.len.get()).map_err(|_| Error::RemoteAccess)?;
        let writes = access(&range).intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let map = SharedMap::from_fd(mem, len, writes).map_err(map_error)?;
        let watch = self.watch(name.owner(), watch);
        let segment = Rc::new(RemoteSegment { map, range, watch });
        let mut segments = self.segments.borrow_mut();
        if segments.len() == segments.capacity() {
            segments.retain(|_, segment| segment.strong_count() > 0);
        }
        segments.insert(name, Rc::downgrade(&segment));
        Ok(segment)
    }

    fn watch(&self, owner: ProcKey, watch: Arc<ProcWatch>) -> Option<Arc<ProcWatch>> {
        if self.watch == Watch::Nothing || owner == self.server.key() {
            return None;
        }
        self.listeners.borrow_mut().iter_mut().for_each(|listener| listener.listen(owner, &watch));
        Some(watch)
    }

    /// Raises `alarm` when the owner of a segment dies, whoever has mapped it, until
    /// [`remove_alarm`](RemoteSegments::remove_alarm).
    pub fn add_alarm(&self, alarm: Arc<Alarm>) {
        let mut new = Listener { alarm, watches: HashMap::default() };
        for (name, segment) in &*self.segments.borrow() {
            if let Some(watch) = segment.upgrade().and_then(|segment| segment.watch.clone()) {
                new.listen(name.owner(), &watch);
            }
        }
        self.listeners.borrow_mut().push(new);
    }

    pub fn remove_alarm(&self, alarm: &Arc<Alarm>) {
        self.listeners.borrow_mut().retain(|listener| !Arc::ptr_eq(&listener.alarm, alarm));
    }

    /// The segment of an MR key, from the cache if it is there. Does not wait: [`Error::NotReady`] until the
    /// owner has answered, [`Error::Unreachable`] if it takes too long.
    #[inline]
    pub fn by_mr_key(&self, name: Name) -> Result<Rc<RemoteSegment>, Error> {
        let now = self.use_count.get();
        self.use_count.set(now + 1);
        if let Some(cached) = self.cached.borrow().get(&name) {
            cached.last_used.set(now);
            return Ok(cached.segment.clone());
        }
        self.cache(name, now)
    }

    #[cold]
    fn cache(&self, name: Name, now: u64) -> Result<Rc<RemoteSegment>, Error> {
        let there = self.segments.borrow().get(&name).and_then(Weak::upgrade);
        let segment = match there {
            Some(segment) => segment,
            None => self.poll_query(name)?,
        };
        let mut cached = self.cached.borrow_mut();
        if cached.len() == MAX_CACHED
            && let Some(oldest) =
                cached.iter().min_by_key(|(_, cached)| cached.last_used.get()).map(|(name, _)| *name)
        {
            cached.remove(&oldest);
        }
        cached.insert(name, CachedSegment { segment: segment.clone(), last_used: Cell::new(now) });
        Ok(segment)
    }

    /// Queries a name, or receives the reply of an earlier query.
    fn poll_query(&self, name: Name) -> Result<Rc<RemoteSegment>, Error> {
        // A missing name does not mean that the process is gone.
        let query_error = |e| match e {
            ConnectError::Gone => Error::RemoteAccess,
            e => as_error(e),
        };
        let earlier = self.queries.borrow_mut().remove(&name);
        let Some(query) = earlier else {
            self.keep_query(name, self.server.query([name], self.answer_timeout).map_err(query_error)?);
            return Err(Error::NotReady);
        };
        let fetched = match self.server.wait(query, Duration::ZERO).map_err(query_error)? {
            QueryResult::Pending(query) => {
                let overdue = query.is_overdue();
                self.keep_query(name, query);
                return Err(if overdue { Error::Unreachable } else { Error::NotReady });
            }
            QueryResult::Answered(mut all) => {
                all.pop().map_or(Err(ConnectError::Malformed), |(_, received)| received)
            }
        };
        let fetched = fetched.map_err(query_error)?;
        self.insert_segment(name, fetched)
    }

    /// Takes the dead processes that the interface of `alarm` has not heard of, to be
    /// [forgotten](RemoteSegments::forget).
    pub fn take_dead(&self, alarm: &Arc<Alarm>) -> Vec<(ProcKey, Arc<ProcWatch>)> {
        let mut listeners = self.listeners.borrow_mut();
        let listener = listeners.iter_mut().find(|listener| Arc::ptr_eq(&listener.alarm, alarm));
        let dead =
            |listener: &mut Listener| listener.watches.extract_if(|_, watch| watch.is_dead()).collect();
        listener.map_or_else(Vec::new, dead)
    }

    pub fn forget(&self, owner: ProcKey) {
        self.cached.borrow_mut().retain(|name, _| name.owner() != owner);
        self.queries.borrow_mut().retain(|name, _| name.owner() != owner);
    }

    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize) {
        (self.cached.borrow().len(), self.queries.borrow().len())
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
