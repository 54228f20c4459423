//! Values of options that files have: the library's own file of settings, and files of UCX's form.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

use ::ucs::config::{Origin, Source};

use super::bytes_of;

/// Values by their full names, all of any bytes.
static VALUES: Mutex<BTreeMap<Vec<u8>, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// Reads the file of settings that the environment names, once.
fn read_settings() {
    static READ: Once = Once::new();
    READ.call_once(|| match Source::from_env() {
        Ok(source) => {
            let mut values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
            for (key, value) in source.of_origin(Origin::File) {
                values.entry(key.into()).or_insert_with(|| value.into());
            }
        }
        Err(error) => {
            crate::log::init_from_env();
            tracing::error!("{error}");
        }
    });
}

/// The value of a name in a file.
pub(super) fn value(name: &[u8]) -> Option<CString> {
    read_settings();
    let values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
    values.get(name).and_then(|value| CString::new(value.as_slice()).ok())
}

/// The parts of a text in front of the first place of a kind and behind it.
fn split_at(text: &[u8], is_end: impl Fn(usize) -> bool) -> Option<(&[u8], &[u8])> {
    let at = (0..text.len()).find(|at| is_end(*at))?;
    Some((&text[..at], &text[at + 1..]))
}

/// A text without the comment at its end: `;` after white space.
fn without_comment(text: &[u8]) -> &[u8] {
    let is_comment = |at: usize| text[at] == b';' && at > 0 && text[at - 1].is_ascii_whitespace();
    split_at(text, is_comment).map_or(text, |(text, _)| text)
}

/// Names and values of a file of UCX's form: `NAME=value` or `NAME: value` on a line each. Lines that begin
/// with `#` or `;` are comments, and those of sections are left aside. A line with white space in front of it
/// is another value of the name before it.
fn entries(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut last: &[u8] = b"";
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).split(|c| *c == b'\n').filter_map(move |line| {
        let is_indented = line.first().is_some_and(u8::is_ascii_whitespace);
        let line = line.trim_ascii();
        match line.first()? {
            b'#' | b';' => None,
            _ if is_indented && !last.is_empty() => Some((last, line)),
            b'[' => {
                last = b"";
                None
            }
            _ => {
                let (name, value) = split_at(line, |at| b"=:".contains(&line[at]))?;
                if without_comment(name).len() < name.len() {
                    return None;
                }
                last = name.trim_ascii();
                Some((last, without_comment(value).trim_ascii()))
            }
        }
    })
}

entry! {
    /// Reads a file of options of UCX's form. Values that there are already stay, unless `overrides`.
    fn ucs_config_parse_config_file(folder: *const c_char, name: *const c_char, overrides: c_int) {
        // SAFETY: the caller's contract.
        let [folder, name] = unsafe { [bytes_of(folder), bytes_of(name)] }.map(OsStr::from_bytes);
        let path = Path::new(folder).join(name);
        let Ok(text) = std::fs::read(&path) else {
            tracing::debug!("there is no file of options {}", path.display());
            return Ok(());
        };
        let mut values = VALUES.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in entries(&text) {
            if overrides != 0 || !values.contains_key(name) {
                values.insert(name.into(), value.into());
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
        let text = b"# a comment\n[part]\nUCC_A = 1\n; other\nUCC_B=x=y #why\nUCC_C=\nno value\nUCC_D:a=b\t; c\nE=;f\n";
        let found: Vec<_> = entries(text).collect();
        let values: [(&[u8], &[u8]); 5] =
            [(b"UCC_A", b"1"), (b"UCC_B", b"x=y #why"), (b"UCC_C", b""), (b"UCC_D", b"a=b"), (b"E", b";f")];
        assert_eq!(found, values);
    }

    #[test]
    fn a_line_with_space_in_front_is_another_value() {
        let text = b"\xef\xbb\xbf A=1\n  ; comment\n B=2 ; all\n\n[part]\n C=\xe4\nD ;=5\n";
        let found: Vec<_> = entries(text).collect();
        let values: [(&[u8], &[u8]); 3] = [(b"A", b"1"), (b"A", b"B=2 ; all"), (b"C", b"\xe4")];
        assert_eq!(found, values);
    }
}
