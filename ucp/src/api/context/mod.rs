//! Contexts: configuration, choice of transports, calibration, and opening of workers.

pub(crate) mod calibrate;
pub(crate) mod config;
pub(crate) mod libfabric;
pub(crate) mod open;
pub(crate) mod resources;
