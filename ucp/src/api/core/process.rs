//! Identity of this process, for addresses.

/// Identifier of this process, not 0: tells whether a peer may be in the same process. Two processes of a
/// host have the same one with probability 2^-32.
pub(crate) fn process() -> u32 {
    use std::hash::{Hash, Hasher};
    let me = ucs::sys::proc::ProcId::current();
    let mut hasher = rustc_hash::FxHasher::default();
    (me, ucs::sys::host::HostKey::current()).hash(&mut hasher);
    let hash = hasher.finish();
    ((hash ^ hash >> 32) as u32).max(1)
}
