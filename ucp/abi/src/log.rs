//! Log lines of the library: to standard error, from the level that `UCX_LOG_LEVEL` says.

use std::sync::Once;

use ::ucs::config::{Source, Table};
use ::ucs::trace::LogConfig;

static DONE: Once = Once::new();

/// Installs the log once, unless the program has one.
pub(crate) fn init(source: &Source) {
    DONE.call_once(|| {
        if let Err(error) = ::ucs::trace::init(source) {
            ::ucs::stderr_line!("ucp: {error}");
        }
        // What programs log themselves is passed on up to the same level.
        if let Ok(config) = LogConfig::load(source) {
            crate::ucs::global::set_log_level(config.log_level as i32);
        }
    });
}

/// As [`init`], for programs that have not read a configuration.
pub(crate) fn init_from_env() {
    if !DONE.is_completed() {
        init(&Source::from_env().unwrap_or_else(|_| Source::empty()));
    }
}
