//! Configuration keys of the engine as parameters of libfabric: `fi_info -e` lists them, and `FI_EFA4_TLS`
//! stands for `UCX_TLS`, which wins.

use std::ffi::{CString, OsString, c_char, c_int};

use crate::abi::Provider;

/// `FI_PARAM_STRING`: the engine reads the text of a value.
const STRING: c_int = 0;
const PREFIX: &str = "UCX_";

type Define = unsafe extern "C" fn(*const Provider, *const c_char, c_int, *const c_char, ...) -> c_int;

/// Key of the provider's name, of which the names of parameters are made: it is a variable only.
const NAME: &str = "UCX_OFI_NAME";

/// Names of the engine's keys without their prefix.
fn keys() -> impl Iterator<Item = (&'static str, &'static ucs::config::KeyDesc)> {
    let keys = ucp::Context::tables().into_iter().flat_map(|table| table.keys);
    keys.filter(|key| key.name != NAME).filter_map(|key| Some((key.name.strip_prefix(PREFIX)?, key)))
}

/// Beginning of the variables of a provider with this name; `None` for that of libfabric's own provider,
/// whose variables mean something else.
fn prefix_of(name: &str) -> Option<String> {
    (name != "efa").then(|| format!("FI_{}_", name.to_uppercase()))
}

/// Tells libfabric of all keys. Without its function for that, nothing is told.
pub(crate) fn define(provider: &'static Provider, name: &str) {
    // SAFETY: looks a name up; the text ends with zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fi_param_define".as_ptr()) };
    if found.is_null() || prefix_of(name).is_none() {
        return;
    }
    // SAFETY: that is the type of libfabric's `fi_param_define`.
    let define: Define = unsafe { std::mem::transmute(found) };
    for (name, key) in keys() {
        let help = format!("{} Default: {}", key.help, key.default);
        let (name, help) = (name.to_lowercase(), help.replace('\0', " "));
        let (Ok(name), Ok(help)) = (CString::new(name), CString::new(help)) else { continue };
        // SAFETY: libfabric copies both texts, and the provider is never freed.
        unsafe { define(provider, name.as_ptr(), STRING, c"%s".as_ptr(), help.as_ptr()) };
    }
}

/// Variables of the engine for those of libfabric that a user has set, without those that are set already.
pub(crate) fn translated(vars: &[(OsString, OsString)], name: &str) -> Vec<(OsString, OsString)> {
    let Some(prefix) = prefix_of(name) else { return Vec::new() };
    let given: Vec<_> =
        vars.iter().filter_map(|(var, value)| Some((var.to_str()?.strip_prefix(&prefix)?, value))).collect();
    if given.is_empty() {
        return Vec::new();
    }
    let is_set = |key: &str| vars.iter().any(|(var, _)| var.to_str() == Some(key));
    keys()
        .filter(|(_, key)| !is_set(key.name))
        .filter_map(|(name, key)| {
            let (_, value) = given.iter().find(|(given, _)| *given == name)?;
            Some((key.name.into(), (*value).clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_libfabric_are_keys_of_the_engine() {
        let vars = |all: &[(&str, &str)]| all.iter().map(|(a, b)| (a.into(), b.into())).collect::<Vec<_>>();
        let given =
            vars(&[("FI_EFA4_TLS", "posix"), ("FI_EFA4_NONE", "1"), ("FI_TCP_IFACE", "lo"), ("TLS", "x")]);
        assert_eq!(translated(&given, "efa4"), vars(&[("UCX_TLS", "posix")]));
        let of_provider = vars(&[("FI_EFA4_OFI_AUTO_PROGRESS", "y"), ("FI_EFA4_OFI_NAME", "x")]);
        assert_eq!(translated(&of_provider, "efa4"), vars(&[("UCX_OFI_AUTO_PROGRESS", "y")]));
        assert_eq!(translated(&given, "efa"), []);
        let given = vars(&[("FI_EFA4_TLS", "posix"), ("UCX_TLS", "efa")]);
        assert_eq!(translated(&given, "efa4"), []);
    }
}
