//! What the command-line tools share: finding and talking to the other side, measuring, printing.
//! Used by `ucx-perftest` and `ucx-info`. Knows no transport and no protocol.

pub mod boot;
pub mod meter;
pub mod out;
pub mod pmix;
pub mod settings;
pub mod table;
pub mod units;
