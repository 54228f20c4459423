//! Copies, copies that survive faults, page arithmetic, private and shared mappings, pools. Never registers
//! memory with a device.

pub mod avail;
pub mod copy;
pub mod fixed;
pub mod guard;
pub mod map;
pub mod page;
pub mod pool;
pub mod query;
pub mod rights;
pub mod watch;

pub use copy::{copy_bytes, copy_slice, copy_word_or_bytes};
pub use fixed::FixedMap;
pub use map::{Fill, MapOpts, Mapping, MemError, Pages, SharedMap, SharedMem, return_free_memory};
