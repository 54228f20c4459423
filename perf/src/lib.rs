//! Benches and side-by-side measurements, and what they share.

pub mod pair;
