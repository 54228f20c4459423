//! Memory of peers that is mapped here: shared by the keys that name it, and kept for those that come as one word, which
//! have no life of their own. Used by the memory domains of `posix` and `cma`. Touches no byte of it. Whose memory was mapped
//! here is watched from then on, until it dies: who puts and gets sends nothing by which its death could be noticed.

use super::porter::{
    Alarm, Asked, Death, Fetched, Heard, Name, Porter, ProcKey, What, Whereabouts, as_error,
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

/// Most mappings kept for words: what makes room for another is what was used longest ago.
const MOST: usize = 256;
/// Most names asked for at a time: each takes a descriptor, and another if its process is not watched yet.
const MOST_ASKED: usize = 32;

/// A peer's memory, mapped here.
#[derive(Debug)]
pub struct Mapped {
    map: SharedMap,
    place: Whereabouts,
    /// Kept as long as the memory is, so that an endpoint made later can know.
    _death: Option<Arc<Death>>,
}

/// A mapping, and when a word last named it.
struct Kept {
    map: Rc<Mapped>,
    used: Cell<u64>,
}

/// All of it, of one memory domain.
pub struct Foreign {
    porter: Arc<Porter>,
    /// Raised when an owner dies; none if that is known otherwise.
    alarm: Option<Arc<Alarm>>,
    /// Owners of what was ever mapped here that live, or are still to be mourned.
    watched: RefCell<HashMap<ProcKey, Arc<Death>, FxBuildHasher>>,
    /// Those that somebody has.
    maps: RefCell<HashMap<Name, Weak<Mapped>, FxBuildHasher>>,
    kept: RefCell<HashMap<Name, Kept, FxBuildHasher>>,
    uses: Cell<u64>,
    /// Names that are asked for: those that words have said, and those that were waited for in vain.
    asked: RefCell<HashMap<Name, Box<Asked>, FxBuildHasher>>,
    /// How long an owner may take to answer.
    patience: Duration,
}

impl Mapped {
    /// A part of it, with as much of `access` as its owner gives everybody: whatever a key claims.
    pub fn window(&self, addr: u64, len: usize, access: Access) -> Result<Window, Error> {
        // An address below it wraps to a huge offset.
        let (into, all) = (addr.wrapping_sub(self.place.addr.get()), self.map.len());
        if into > all as u64 || len > all - into as usize {
            return Err(Error::RemoteAccess);
        }
        let at = self.map.as_ptr().wrapping_add(into as usize);
        let access = access & self.access();
        // SAFETY: `len` bytes from there on are mapped (just checked) as long as `self`, which is kept beside the window; to be
        // written if the owner allows that, without which nothing is written through the window.
        Ok(unsafe { Window::new(addr, len, at, access) })
    }

    /// All of it, with the rights that its owner gives everybody.
    pub fn all(&self) -> Result<Window, Error> {
        let len = usize::try_from(self.place.len.get()).map_err(|_| Error::RemoteAccess)?;
        self.window(self.place.addr.get(), len, self.access())
    }

    fn access(&self) -> Access {
        access(&self.place)
    }
}

/// What the owner lets everybody do.
fn access(place: &Whereabouts) -> Access {
    Access::from_bits_truncate(place.access.get())
}

impl Foreign {
    pub(super) fn new(porter: Arc<Porter>, alarm: Option<Arc<Alarm>>, patience: Duration) -> Foreign {
        let (maps, kept, asked) = (RefCell::default(), RefCell::default(), RefCell::default());
        Foreign {
            porter,
            alarm,
            watched: RefCell::default(),
            maps,
            kept,
            uses: Cell::new(0),
            asked,
            patience,
        }
    }

    /// Our own porter, which asks those of peers.
    pub(super) fn porter(&self) -> &Arc<Porter> {
        &self.porter
    }

    /// What a key names, mapped as long as somebody has the answer. Waits for the porter of its owner; once only, if that does
    /// not answer in time (it is stopped, perhaps), and not again for any key of its until it has answered.
    pub fn map(&self, name: Name) -> Result<Rc<Mapped>, Error> {
        if let Some(map) = self.maps.borrow().get(&name).and_then(Weak::upgrade) {
            return Ok(map);
        }
        let fetched = self.fetch(name).map_err(as_error)?;
        self.enter(name, fetched)
    }

    fn fetch(&self, name: Name) -> Result<Fetched, ConnectError> {
        let wait = if self.is_silent(name.owner()) { Duration::ZERO } else { self.patience };
        let asked = self.asked.borrow_mut().remove(&name);
        let question = asked.map_or_else(|| self.porter.ask([name], self.patience), Ok)?;
        match self.porter.hear(question, wait)? {
            Heard::All(mut all) => all.pop().map_or(Err(ConnectError::Malformed), |(_, given)| given),
            Heard::Nothing(question) => {
                self.go_on_asking(name, question);
                Err(ConnectError::Silent)
            }
        }
    }

    /// Whether that process has a question that it should have answered by now, and still has not.
    fn is_silent(&self, owner: ProcKey) -> bool {
        let mut asked = self.asked.borrow_mut();
        let overdue = asked.extract_if(|name, asked| name.owner() == owner && asked.is_overdue());
        let overdue: Vec<_> = overdue.collect();
        for (name, question) in overdue {
            // What is said now, whatever it is, is not what anybody waits for any more: it answers.
            if let Ok(Heard::Nothing(question)) = self.porter.hear(question, Duration::ZERO) {
                asked.insert(name, question);
                return true;
            }
        }
        false
    }

    fn go_on_asking(&self, name: Name, question: Box<Asked>) {
        let mut asked = self.asked.borrow_mut();
        if asked.len() == MOST_ASKED {
            // Answers that nobody came for.
            asked.clear();
        }
        asked.insert(name, question);
    }

    fn enter(&self, name: Name, Fetched { mem, what, death }: Fetched) -> Result<Rc<Mapped>, Error> {
        // An interface's memory is no memory of the program's.
        let What::Memory(place) = what else { return Err(Error::RemoteAccess) };
        let len = usize::try_from(place.len.get()).map_err(|_| Error::RemoteAccess)?;
        let writes = access(&place).intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let map = SharedMap::from_fd(mem, len, writes).map_err(error)?;
        let death = self.watch(name.owner(), death);
        let map = Rc::new(Mapped { map, place, _death: death });
        let mut maps = self.maps.borrow_mut();
        if maps.len() == maps.capacity() {
            maps.retain(|_, map| map.strong_count() > 0);
        }
        maps.insert(name, Rc::downgrade(&map));
        Ok(map)
    }

    /// Has our interface told when a process dies. Our own death is no news to us.
    fn watch(&self, owner: ProcKey, death: Arc<Death>) -> Option<Arc<Death>> {
        let alarm = self.alarm.as_ref().filter(|_| owner != self.porter.key())?;
        if let Entry::Vacant(new) = self.watched.borrow_mut().entry(owner) {
            new.insert(death.clone());
            death.tell(alarm);
        }
        Some(death)
    }

    /// The same of a key that is one word: it stays mapped. Does not wait: until the answer is there it is
    /// [not ready](Error::NotReady), and when that takes too long [out of reach](Error::Unreachable).
    #[inline]
    pub fn of_word(&self, name: Name) -> Result<Rc<Mapped>, Error> {
        let now = self.uses.get();
        self.uses.set(now + 1);
        if let Some(kept) = self.kept.borrow().get(&name) {
            kept.used.set(now);
            return Ok(kept.map.clone());
        }
        self.keep(name, now)
    }

    #[cold]
    fn keep(&self, name: Name, now: u64) -> Result<Rc<Mapped>, Error> {
        let there = self.maps.borrow().get(&name).and_then(Weak::upgrade);
        let map = match there {
            Some(map) => map,
            None => self.ask(name)?,
        };
        let mut kept = self.kept.borrow_mut();
        if kept.len() == MOST
            && let Some(oldest) = kept.iter().min_by_key(|(_, kept)| kept.used.get()).map(|(name, _)| *name)
        {
            kept.remove(&oldest);
        }
        kept.insert(name, Kept { map: map.clone(), used: Cell::new(now) });
        Ok(map)
    }

    /// Asks for a name, or hears what is said of it.
    fn ask(&self, name: Name) -> Result<Rc<Mapped>, Error> {
        // That a process has no such memory (any more) says nothing of its being there.
        let refused = |e| match e {
            ConnectError::Gone => Error::RemoteAccess,
            e => as_error(e),
        };
        let asked = self.asked.borrow_mut().remove(&name);
        let Some(question) = asked else {
            self.go_on_asking(name, self.porter.ask([name], self.patience).map_err(refused)?);
            return Err(Error::NotReady);
        };
        let fetched = match self.porter.hear(question, Duration::ZERO).map_err(refused)? {
            Heard::Nothing(question) => {
                let overdue = question.is_overdue();
                self.go_on_asking(name, question);
                return Err(if overdue { Error::Unreachable } else { Error::NotReady });
            }
            Heard::All(mut all) => all.pop().map_or(Err(ConnectError::Malformed), |(_, given)| given),
        };
        let fetched = fetched.map_err(refused)?;
        self.enter(name, fetched)
    }

    /// Processes that have died: they are watched no longer, and to be [forgotten](Foreign::forget).
    pub(super) fn take_dead(&self) -> Vec<(ProcKey, Arc<Death>)> {
        self.watched.borrow_mut().extract_if(|_, death| death.is_dead()).collect()
    }

    /// The process is gone: nothing of its memory is kept.
    pub(super) fn forget(&self, owner: ProcKey) {
        self.kept.borrow_mut().retain(|name, _| name.owner() != owner);
        self.asked.borrow_mut().retain(|name, _| name.owner() != owner);
    }
}

/// Why memory that a peer handed out is not mapped.
fn error(e: MemError) -> Error {
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

#[cfg(test)]
mod tests;
