//! Fabrics and domains that are open, by which `fi_getinfo` tells what a program has opened already.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::Fid;

/// Handles and names, in the order in which they were opened.
pub(crate) struct OpenObjects(Mutex<Vec<(usize, String)>>);

pub(crate) static FABRICS: OpenObjects = OpenObjects(Mutex::new(Vec::new()));
pub(crate) static DOMAINS: OpenObjects = OpenObjects(Mutex::new(Vec::new()));

impl OpenObjects {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object has been opened.
    pub(crate) fn add(&self, fid: *const Fid, name: &str) {
        self.lock().push((fid.expose_provenance(), name.to_owned()));
    }

    /// An object is closed.
    pub(crate) fn remove(&self, fid: *const Fid) {
        self.lock().retain(|(known, _)| *known != fid.addr());
    }

    /// Name of an object. `None`: it is not open, or none of this provider. Nothing is read there.
    pub(crate) fn name_of(&self, fid: *const Fid) -> Option<String> {
        self.lock().iter().find(|(known, _)| *known == fid.addr()).map(|(_, name)| name.clone())
    }

    /// The object of a name that was opened first; null: there is none.
    pub(crate) fn first(&self, name: &str) -> *mut Fid {
        let found = self.lock().iter().find(|(_, known)| known == name).map(|(fid, _)| *fid);
        found.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
    }
}
