//! Allocations that are counted, in the engine and on lanes, and scripts that bound held memory. The global
//! allocator counts for each thread, so tests run side by side. Without lanes too.

#[cfg(feature = "lanes")]
#[path = "../common/mod.rs"]
mod common;
#[path = "../counting/mod.rs"]
mod counting;
#[path = "../script/mod.rs"]
mod script;

#[cfg(feature = "lanes")]
mod dropped;
mod engine_no_alloc;
mod fuzz_corpus;
#[cfg(feature = "lanes")]
mod no_alloc;
mod peer_memory;
