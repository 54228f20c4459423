//! Addresses of the handles, and of the packed bytes, that programs hold. A slow path looks a handle up
//! before it reads what is there: a wild address, a handle of another kind and a freed one are refused
//! without an access to their memory.
//!
//! The table has parts with a lock each: threads with workers of their own seldom wait for each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

/// Name of the kind of each handle, by its address.
type Part = HashMap<usize, &'static str>;

const PARTS: usize = 64;

static LIVE: [Mutex<Option<Part>>; PARTS] = [const { Mutex::new(None) }; PARTS];

/// The part of an address.
fn part(address: usize) -> MutexGuard<'static, Option<Part>> {
    let at = (address >> 4 ^ address >> 12) % PARTS;
    LIVE[at].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a handle has been handed out.
pub(crate) fn insert(address: usize, name: &'static str) {
    part(address).get_or_insert_default().insert(address, name);
}

/// Notes that a handle has been freed.
pub(crate) fn remove(address: usize) {
    if let Some(part) = &mut *part(address) {
        part.remove(&address);
    }
}

/// Notes that what is at an address has been freed. `false`: nothing of this kind was there.
pub(crate) fn take(address: usize, name: &'static str) -> bool {
    let mut part = part(address);
    let Some(part) = &mut *part else { return false };
    let is_one = part.get(&address).is_some_and(|found| *found == name);
    is_one && part.remove(&address).is_some()
}

/// Whether a handle of this kind is at an address.
pub(crate) fn contains(address: usize, name: &'static str) -> bool {
    part(address).as_ref().and_then(|part| part.get(&address)).is_some_and(|found| *found == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_known_by_address_and_kind_until_it_is_freed() {
        let place = 0_u64;
        let address = std::ptr::from_ref(&place).addr();
        assert!(!contains(address, "worker"));
        insert(address, "worker");
        assert!(
            contains(address, "worker") && !contains(address, "endpoint") && !contains(address + 8, "worker")
        );
        remove(address);
        assert!(!contains(address, "worker"));
    }
}
