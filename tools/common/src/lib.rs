//! Code shared by the command-line tools: the out-of-band connection, measuring, printing. Knows no
//! transport.

pub mod boot;
pub mod meter;
pub mod out;
pub mod settings;
pub mod table;
pub mod units;
