//! Options that are one name of several, or a set of names.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::array::Array;
use super::value::{PlacePtr, TextPtr, ValuePtr, load, show, show_text, store};
use super::{Parser, Read, bytes_of, is_function, trimmed, trimmed_bytes};
use crate::entry::{CStatus, guard};

const YES: &[&str] = &["y", "yes", "on", "1"];
const NO: &[&str] = &["n", "no", "off", "0"];

fn is_one(text: &str, of: &[&str]) -> bool {
    of.iter().any(|name| name.eq_ignore_ascii_case(text))
}

/// `y` or `n`, also by their other names.
fn boolean(text: &str) -> Option<c_int> {
    if is_one(text, YES) { Some(1) } else { is_one(text, NO).then_some(0) }
}

/// `y`, `n`, or other names with their values.
fn boolean_or(text: &str, others: &[(&str, c_int)]) -> Option<c_int> {
    let other = others.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    other.map(|(_, value)| *value).or_else(|| boolean(text))
}

/// Text of a value of a list, or its number.
fn name_of(value: c_int, names: &[&str]) -> String {
    usize::try_from(value)
        .ok()
        .and_then(|at| names.get(at))
        .map_or_else(|| value.to_string(), |name| (*name).into())
}

/// Names of an enumeration, which a null ends.
///
/// # Safety
/// `arg` is such a list, or null.
unsafe fn names<'a>(arg: *const c_void) -> impl Iterator<Item = &'a [u8]> {
    let list = arg.cast::<*const c_char>();
    let at = move |index: usize| {
        // SAFETY: the list goes on up to its null.
        let name = if list.is_null() { std::ptr::null() } else { unsafe { list.add(index).read() } };
        // SAFETY: its elements are strings.
        (!name.is_null()).then(|| unsafe { bytes_of(name) })
    };
    (0..).map_while(at)
}

/// The names between brackets.
///
/// # Safety
/// As [`names`].
unsafe fn alternatives(arg: *const c_void) -> Vec<u8> {
    // SAFETY: the contract of this function.
    let names = unsafe { names(arg) }.collect::<Vec<_>>().join(&b'|');
    [b"[", &*names, b"]"].concat()
}

/// Bits of the names in a list with commas.
///
/// # Safety
/// As [`names`].
unsafe fn bits(text: &[u8], arg: *const c_void) -> Option<u64> {
    let mut mask = 0;
    for name in text.split(|c| *c == b',').map(<[u8]>::trim_ascii).filter(|name| !name.is_empty()) {
        // SAFETY: the contract of this function.
        let at = unsafe { names(arg) }.position(|known| known.eq_ignore_ascii_case(name))?;
        mask |= 1u64.checked_shl(u32::try_from(at).ok()?)?;
    }
    Some(mask)
}

/// Names of the bits that are set, with commas between them.
///
/// # Safety
/// As [`names`].
unsafe fn names_of(mask: u64, arg: *const c_void) -> Vec<u8> {
    // SAFETY: the contract of this function.
    let names = unsafe { names(arg) }.take(64).enumerate();
    let set: Vec<_> = names.filter(|(at, _)| mask & 1 << at != 0).map(|(_, name)| name).collect();
    set.join(&b',')
}

/// Reads a set of 64 bits.
unsafe extern "C" fn read_wide_bitmap(text: *const c_char, to: PlacePtr, arg: *const c_void) -> c_int {
    // SAFETY: the caller passes a string or null, and a list of names.
    guard("ucs_config_sscanf_bitmap", || store(to, unsafe { bits(trimmed_bytes(text)?, arg) }))
}

/// Prints a set of 64 bits.
unsafe extern "C" fn write_wide_bitmap(
    to: TextPtr,
    size: usize,
    from: ValuePtr,
    arg: *const c_void,
) -> c_int {
    // SAFETY: the caller passes a list of names.
    guard("ucs_config_sprintf_bitmap", || show_text(to, size, &unsafe { names_of(load(from)?, arg) }))
}

/// Copies a set of 64 bits.
unsafe extern "C" fn clone_wide_bitmap(from: ValuePtr, to: PlacePtr, _arg: *const c_void) -> CStatus {
    guard("ucs_config_clone_uint", || store(to, Some(load::<u64>(from)?)).map(|_| ()))
}

/// Whether a parser is that of sets of names.
pub(super) fn is_bitmap(parser: &Parser) -> bool {
    static LINKED: OnceLock<usize> = OnceLock::new();
    let own = ucs_config_sscanf_bitmap as Read;
    parser.read.is_some_and(|read| is_function(read, own, c"ucs_config_sscanf_bitmap", &LINKED))
}

/// The parser of a set of names that has 64 bits, as since UCX 1.18, in place of that of one with 32.
pub(super) fn wide_bitmap(parser: Parser) -> Parser {
    Parser {
        read: Some(read_wide_bitmap),
        write: Some(write_wide_bitmap),
        clone: Some(clone_wide_bitmap),
        ..parser
    }
}

entry! {
    /// Reads `y` or `n`.
    fn ucs_config_sscanf_bool(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, boolean(unsafe { trimmed(text) }?))
    }

    /// Prints `y` or `n`.
    fn ucs_config_sprintf_bool(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, if load::<c_int>(from)? != 0 { "y" } else { "n" })
    }

    /// Reads `y`, `n` or `try`, which is also `maybe`.
    fn ucs_config_sscanf_ternary(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, boolean_or(unsafe { trimmed(text) }?, &[("try", 2), ("maybe", 2)]))
    }

    /// Reads `y`, `n`, `try`, which is also `maybe`, or `auto`.
    fn ucs_config_sscanf_ternary_auto(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, boolean_or(unsafe { trimmed(text) }?, &[("try", 2), ("maybe", 2), ("auto", 3)]))
    }

    /// Prints `y`, `n`, `try` or `auto`.
    fn ucs_config_sprintf_ternary_auto(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &name_of(load(from)?, &["n", "y", "try", "auto"]))
    }

    /// Reads `on` or `off`.
    fn ucs_config_sscanf_on_off(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, boolean_or(unsafe { trimmed(text) }?, &[("on", 1), ("off", 0)]))
    }

    /// Reads `on`, `off` or `auto`; `try` and `maybe` are `auto`.
    fn ucs_config_sscanf_on_off_auto(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        const OTHERS: &[(&str, c_int)] = &[("on", 1), ("off", 0), ("auto", 2), ("try", 2), ("maybe", 2)];
        // SAFETY: the caller passes a string or null.
        store(to, boolean_or(unsafe { trimmed(text) }?, OTHERS))
    }

    /// Prints `on`, `off` or `auto`.
    fn ucs_config_sprintf_on_off_auto(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &name_of(load(from)?, &["off", "on", "auto"]))
    }

    /// Reads a name of a list: its place there.
    fn ucs_config_sscanf_enum(text: *const c_char, to: PlacePtr, arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null, and a list of names.
        let at = unsafe {
            let text = trimmed_bytes(text)?;
            names(arg).position(|name| name.eq_ignore_ascii_case(text))
        };
        store(to, at.and_then(|at| c_uint::try_from(at).ok()))
    }

    /// Prints a name of a list.
    fn ucs_config_sprintf_enum(to: TextPtr, size: usize, from: ValuePtr, arg: *const c_void) -> c_int {
        let value = load::<c_uint>(from)?;
        // SAFETY: the caller passes a list of names.
        let name = unsafe { names(arg) }.nth(value as usize);
        match name {
            Some(name) => show_text(to, size, name),
            None => show_text(to, size, &value.to_string()),
        }
    }

    /// Prints the names of a list.
    fn ucs_config_help_enum(to: TextPtr, size: usize, arg: *const c_void) {
        // SAFETY: the caller passes a list of names.
        show(to, size, &unsafe { alternatives(arg) }).map(|_| ())
    }

    /// Reads names of a list, with commas between them: a bit for each.
    fn ucs_config_sscanf_bitmap(text: *const c_char, to: PlacePtr, arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null, and a list of names.
        store(to, unsafe { bits(trimmed_bytes(text)?, arg) }.and_then(|mask| c_uint::try_from(mask).ok()))
    }

    /// Prints the names of the bits that are set.
    fn ucs_config_sprintf_bitmap(to: TextPtr, size: usize, from: ValuePtr, arg: *const c_void) -> c_int {
        let mask = u64::from(load::<c_uint>(from)?);
        // SAFETY: the caller passes a list of names.
        show_text(to, size, &unsafe { names_of(mask, arg) })
    }

    /// Prints the names of a list.
    fn ucs_config_help_bitmap(to: TextPtr, size: usize, arg: *const c_void) {
        // SAFETY: the caller passes a list of names.
        show(to, size, &[b"comma-separated list of: ", &*unsafe { alternatives(arg) }].concat()).map(|_| ())
    }
}

unsafe extern "C" {
    fn fnmatch(pattern: *const c_char, text: *const c_char, flags: c_int) -> c_int;
}

entry! {
    /// Place of the first pattern of an array that a text matches, or -1.
    fn ucs_config_names_search(array: *const Array, text: *const c_char) -> c_int {
        // SAFETY: the array is the caller's, or null.
        let array = unsafe { array.as_ref() }.filter(|_| !text.is_null());
        let Some(array) = array else { return Ok(-1) };
        for (at, pattern) in (0..).zip(array.elements::<*const c_char>()) {
            // SAFETY: both are strings of the caller.
            if !pattern.is_null() && unsafe { fnmatch(*pattern, text, 0) } == 0 {
                return Ok(at);
            }
        }
        Ok(-1)
    }

    /// A size of an option: `auto` is another size, and none is larger than a limit.
    fn ucs_config_memunits_get(value: usize, auto: usize, limit: usize) -> usize {
        Ok(if value == super::numbers::AUTO as usize { auto } else { value.min(limit) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_names_become_bits() {
        let list = [c"one".as_ptr(), c"two".as_ptr(), std::ptr::null()];
        let arg = list.as_ptr().cast();
        // SAFETY: a null ends the list.
        let bits = |text: &str| unsafe { bits(text.as_bytes(), arg) };
        assert_eq!((bits("ONE, two"), bits(""), bits("two,,")), (Some(3), Some(0), Some(2)));
        assert_eq!((bits("three"), bits("one,three")), (None, None));
        // SAFETY: as above.
        assert_eq!(unsafe { alternatives(arg) }, b"[one|two]");
        assert_eq!(name_of(1, &["a", "b"]), "b");
        assert_eq!((name_of(2, &["a", "b"]), name_of(-1, &["a"])), ("2".into(), "-1".into()));
    }
}
