//! Benchmarks and side-by-side measurements, and their shared code.

pub mod core_latency;
pub mod engine_pair;
pub mod figure;
pub mod second_process;
