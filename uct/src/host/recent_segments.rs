//! Segments that a thread has named by MR key: a lookup that shares nothing with other threads. Keeps no
//! segment mapped.

use super::fd_server::Name;
use super::remote_segment::{MAX_CACHED, RemoteSegment};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

type Segments = HashMap<(u64, Name), Weak<RemoteSegment>, FxBuildHasher>;

thread_local! {
    /// By domain and name.
    static RECENT: RefCell<Segments> = const { RefCell::new(HashMap::with_hasher(FxBuildHasher)) };
}

/// The segment, if this thread has named it lately and it is still mapped.
// HOT
#[inline]
pub fn find(domain: u64, name: Name) -> Option<Arc<RemoteSegment>> {
    RECENT.try_with(|recent| recent.borrow().get(&(domain, name))?.upgrade()).ok().flatten()
}

/// Remembers a segment that was looked up among those of the domain.
#[cold]
pub fn insert(domain: u64, name: Name, segment: &Arc<RemoteSegment>) {
    // The thread may be ending.
    let _ = RECENT.try_with(|recent| {
        let mut recent = recent.borrow_mut();
        if recent.len() >= MAX_CACHED {
            recent.retain(|_, segment| segment.strong_count() > 0);
            if recent.len() >= MAX_CACHED {
                recent.clear();
            }
        }
        recent.insert((domain, name), Arc::downgrade(segment));
    });
}
