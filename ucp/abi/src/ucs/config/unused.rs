//! Variables of the environment that no option has taken.

use std::collections::BTreeSet;
use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, PoisonError};

use ::ucs::config::{Source, SourceConfig, Table as _};

use super::fill::last_part;
use super::string;

/// Names of variables that an option has taken.
static USED: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

/// Prefixes whose variables have been looked at.
static SEEN: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

/// Notes that an option has taken a variable. Returns whether it is the first one of this name.
pub(super) fn is_used(name: &[u8]) -> bool {
    USED.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned())
}

/// Whether the program is warned of variables that have no effect.
pub(super) fn warns() -> bool {
    let config = Source::from_env().and_then(|source| SourceConfig::load(&source));
    config.is_ok_and(|config| config.warn_unused)
}

/// Names of the variables with a prefix that no option has taken.
fn unused(prefix: &[u8]) -> Vec<String> {
    let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let names = std::env::vars_os().map(|(name, _)| name);
    let names = names.filter(|name| name.as_bytes().starts_with(prefix) && !used.contains(name.as_bytes()));
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

/// [`unused`], the first time that a prefix is asked for.
fn unused_once(prefix: &[u8]) -> Vec<String> {
    let is_first = SEEN.lock().unwrap_or_else(PoisonError::into_inner).insert(prefix.to_owned());
    // The variables of this library have its own warning.
    if is_first && prefix != b"UCX_" { unused(prefix) } else { Vec::new() }
}

entry! {
    /// Warns of the variables with a prefix that no option has taken, once for each prefix, and of those with
    /// its last part alone, unless `UCX_WARN_UNUSED_ENV_VARS=n`.
    fn ucs_config_parser_print_env_vars_once(env_prefix: *const c_char) {
        // SAFETY: the caller passes a string or null.
        let prefix = unsafe { string(env_prefix, "the prefix of options") }?;
        crate::log::init_from_env();
        if !warns() {
            return Ok(());
        }
        let last = last_part(prefix).ok().flatten();
        for prefix in [prefix].into_iter().chain(last) {
            for name in unused_once(prefix.to_bytes()) {
                tracing::warn!("unused variable of the environment: {name} (UCX_WARN_UNUSED_ENV_VARS=n hides this)");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_unused_until_an_option_takes_it() {
        // SAFETY: no other test has variables of this prefix.
        unsafe { std::env::set_var("TEST_UNUSED_A", "1") };
        assert_eq!(unused(b"TEST_UNUSED_"), ["TEST_UNUSED_A"]);
        assert_eq!(unused_once(b"TEST_UNUSED_"), ["TEST_UNUSED_A"]);
        // Each prefix has its own first time.
        assert_eq!(unused_once(b"TEST_UNUSE"), ["TEST_UNUSED_A"]);
        assert!(unused_once(b"TEST_UNUSED_").is_empty() && unused_once(b"TEST_UNUSE").is_empty());
        assert_eq!([0; 2].map(|_| is_used(b"TEST_UNUSED_A")), [true, false]);
        assert!(unused(b"TEST_UNUSED_").is_empty());
    }
}
