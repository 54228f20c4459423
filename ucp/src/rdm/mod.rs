//! The engine: EFA RDM v4 without I/O.

pub mod io;
