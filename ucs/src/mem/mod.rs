//! Memory helpers: page arithmetic, private and shared mappings, pools of fixed slots.
//! Used by transports and devices for segments and buffers. Never registers memory with a device.

pub mod avail;
pub mod map;
pub mod page;
pub mod pool;

pub use map::{Fill, MapOpts, Mapping, MemError, Pages, SharedMap, SharedMem};
