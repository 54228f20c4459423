//! Configuration: each key is declared once, with default, help, unit and range; values come from the
//! environment, a file, or an override, and a bad one is an error that says what to write. Used at open by
//! every layer; `ucx-info -c` prints the same tables. Never read on a hot path. A name that no table declares
//! is no error: [`report_undeclared`].
//! ```
//! ucs::config_table! {
//!     /// Shared-memory transport.
//!     pub struct PosixConfig, prefix "UCX_POSIX_" {
//!         /// Cells in the receive FIFO.
//!         pub fifo_size: usize = "256", key "FIFO_SIZE", unit "cells",
//!             check |v| v.is_power_of_two() => "a power of two";
//!         /// Bytes of one cell.
//!         pub seg_size: usize = "8k", key "SEG_SIZE", unit "bytes", range 64..=1048576;
//!     }
//! }
//! use ucs::config::{Source, Table};
//!
//! let source = Source::empty().with("UCX_POSIX_FIFO_SIZE", "1k");
//! let config = PosixConfig::load(&source).unwrap();
//! assert_eq!((config.fifo_size, config.seg_size), (1024, 8192));
//! let err = PosixConfig::load(&Source::empty().with("UCX_POSIX_FIFO_SIZE", "100")).unwrap_err();
//! let said = "UCX_POSIX_FIFO_SIZE=100 (override): expected a number \
//!     with optional k/m/g/t or inf, a power of two";
//! assert_eq!(err.to_string(), said);
//! ```

mod decl;
mod dump;
mod lint;
mod parse;
mod source;
mod undeclared;

pub use decl::{CheckResult, KeyDesc, Table, TableDesc};
#[doc(hidden)]
pub use decl::{read_key, validate, within as decl_within};
pub use dump::{Detail, Effective, effective, print};
pub use lint::lint;
pub use parse::{Auto, ConfigValue, MAX_TIME, parse_size};
pub use source::{ConfigError, Origin, Source, SourceConfig, UnknownKey};
pub use undeclared::{check_key, is_first_report, is_ucx_name, report_undeclared};

#[cfg(test)]
mod tests;
