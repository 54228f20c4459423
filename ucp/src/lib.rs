//! Protocols: EFA RDM v4 over uct, with tag matching and protocol selection.

pub mod rdm;
pub mod select;
pub mod wire;
