//! Identity of this process, for addresses.

/// This process, as no other process of its host has ever been: interfaces that live in one process only are reachable
/// from the same process only.
pub(crate) fn process() -> u64 {
    use std::hash::{Hash, Hasher};
    let me = ucs::sys::proc::ProcId::current();
    let mut hasher = rustc_hash::FxHasher::default();
    (me, ucs::sys::host::HostKey::current()).hash(&mut hasher);
    hasher.finish().max(1)
}
