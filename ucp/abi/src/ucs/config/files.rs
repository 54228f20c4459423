//! Values of options that files have: the library's own file of settings, and files of UCX's form.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use ::ucs::config::{Origin, Source};

use crate::context::text_of;

/// Values by their full names.
static VALUES: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Reads the file of settings that the environment names, once.
fn read_settings() {
    static READ: Once = Once::new();
    READ.call_once(|| match Source::from_env() {
        Ok(source) => {
            let mut values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
            for (key, value) in source.of_origin(Origin::File) {
                values.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        Err(error) => {
            crate::log::init_from_env();
            tracing::error!("{error}");
        }
    });
}

/// The value of a name in a file.
pub(super) fn value(name: &str) -> Option<CString> {
    read_settings();
    let values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
    values.get(name).and_then(|value| CString::new(value.as_str()).ok())
}

/// Names and values of a file: `NAME=value` on a line each. Sections, and what follows `#` or `;`, are left
/// aside.
fn entries(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';', '[']));
    lines.filter_map(|line| line.split_once('=')).map(|(name, value)| {
        let value = [" #", " ;"].iter().fold(value, |value, mark| value.split(mark).next().unwrap_or(value));
        (name.trim(), value.trim())
    })
}

entry! {
    /// Reads a file of options of UCX's form. Values that there are already stay, unless `overrides`.
    fn ucs_config_parse_config_file(folder: *const c_char, name: *const c_char, overrides: c_int) {
        // SAFETY: the caller's contract.
        let path = unsafe { Path::new(&text_of(folder)).join(text_of(name)) };
        let Ok(text) = std::fs::read_to_string(&path) else {
            tracing::debug!("there is no file of options {}", path.display());
            return Ok(());
        };
        let mut values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in entries(&text) {
            if overrides != 0 || !values.contains_key(name) {
                values.insert(name.to_owned(), value.to_owned());
            }
        }
        Ok(())
    }

    /// Reads the file of settings that `UCX_CONFIG_FILE` names. Files of UCX are not looked for.
    fn ucs_config_parse_config_files() {
        read_settings();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_value_a_line() {
        let text = "# a comment\n[part]\nUCC_A = 1\n; other\nUCC_B=x=y # why\nUCC_C=\nno value\n";
        let found: Vec<_> = entries(text).collect();
        assert_eq!(found, [("UCC_A", "1"), ("UCC_B", "x=y"), ("UCC_C", "")]);
    }
}
