//! Identity of this process, for addresses.

/// Identifier of this process, never reused on its host: tells whether a peer is in the same process.
pub(crate) fn process() -> u64 {
    use std::hash::{Hash, Hasher};
    let me = ucs::sys::proc::ProcId::current();
    let mut hasher = rustc_hash::FxHasher::default();
    (me, ucs::sys::host::HostKey::current()).hash(&mut hasher);
    hasher.finish().max(1)
}
