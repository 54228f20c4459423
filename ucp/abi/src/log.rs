//! Log lines of the library: to standard error, from the level that `UCX_LOG_LEVEL` says.

use std::sync::Once;

use ::ucs::config::Source;

/// Installs the log once, unless the program has one.
pub(crate) fn init(source: &Source) {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        if let Err(error) = ::ucs::trace::init(source) {
            eprintln!("ucp: {error}");
        }
    });
}
