//! Benches and side-by-side measurements, and what they share: figures as they are saved and shown, the
//! second process of a measuring program, the distance of two processors, and the pair of engines that benches and counters
//! drive.

pub mod core_latency;
pub mod engine_pair;
pub mod figure;
pub mod second_process;
