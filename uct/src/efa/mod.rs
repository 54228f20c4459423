//! The `efa` transport: SRD over a device trait.
//!
//! An active message is one datagram whose byte 0 is the id; no other header. Nothing is ordered.

pub mod dev;
