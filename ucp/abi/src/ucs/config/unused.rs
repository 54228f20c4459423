//! Variables of the environment that no option has taken.

use std::collections::BTreeSet;
use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, Once, PoisonError};

use super::string;

/// Names of variables that an option has taken.
static USED: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());

/// Notes that an option has taken a variable.
pub(super) fn is_used(name: &[u8]) {
    USED.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
}

/// Names of the variables with a prefix that no option has taken.
fn unused(prefix: &[u8]) -> Vec<String> {
    let used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let names = std::env::vars_os().map(|(name, _)| name);
    let names = names.filter(|name| name.as_bytes().starts_with(prefix) && !used.contains(name.as_bytes()));
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

entry! {
    /// Warns of the variables with a prefix that no option has taken, once in a process, unless
    /// `UCX_WARN_UNUSED_ENV_VARS=n`. Those of this library have its own warning.
    fn ucs_config_parser_print_env_vars_once(env_prefix: *const c_char) {
        static ONCE: Once = Once::new();
        // SAFETY: the caller passes a string or null.
        let prefix = unsafe { string(env_prefix, "the prefix of options") }?.to_bytes();
        ONCE.call_once(|| {
            crate::log::init_from_env();
            let is_off = |value: std::ffi::OsString| ["n", "no", "0"].iter().any(|no| value.eq_ignore_ascii_case(no));
            if prefix == b"UCX_" || std::env::var_os("UCX_WARN_UNUSED_ENV_VARS").is_some_and(is_off) {
                return;
            }
            for name in unused(prefix) {
                tracing::warn!("unused variable of the environment: {name} (UCX_WARN_UNUSED_ENV_VARS=n hides this)");
            }
        });
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
        is_used(b"TEST_UNUSED_A");
        assert!(unused(b"TEST_UNUSED_").is_empty());
    }
}
