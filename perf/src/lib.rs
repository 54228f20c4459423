//! Benches and side-by-side measurements.
