//! Options that are one name of several, or a set of names.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::array::Array;
use super::trimmed;
use super::value::{PlacePtr, TextPtr, ValuePtr, load, show, show_text, store};

const YES: &[&str] = &["y", "yes", "1"];
const NO: &[&str] = &["n", "no", "0"];

fn is_one(text: &str, of: &[&str]) -> bool {
    of.iter().any(|name| name.eq_ignore_ascii_case(text))
}

/// `y` or `n`.
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
unsafe fn names<'a>(arg: *const c_void) -> impl Iterator<Item = &'a str> {
    let list = arg.cast::<*const c_char>();
    let at = move |index: usize| {
        // SAFETY: the list goes on up to its null.
        let name = if list.is_null() { std::ptr::null() } else { unsafe { list.add(index).read() } };
        // SAFETY: its elements are strings.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default())
    };
    (0..).map_while(at)
}

/// The names between brackets.
///
/// # Safety
/// As [`names`].
unsafe fn alternatives(arg: *const c_void) -> String {
    // SAFETY: the contract of this function.
    format!("[{}]", unsafe { names(arg) }.collect::<Vec<_>>().join("|"))
}

/// Bits of the names in a list with commas.
///
/// # Safety
/// As [`names`].
unsafe fn bits(text: &str, arg: *const c_void) -> Option<c_uint> {
    let mut mask = 0;
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        // SAFETY: the contract of this function.
        let at = unsafe { names(arg) }.position(|known| known.eq_ignore_ascii_case(name))?;
        mask |= 1u32.checked_shl(u32::try_from(at).ok()?)?;
    }
    Some(mask)
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
            let text = trimmed(text)?;
            names(arg).position(|name| name.eq_ignore_ascii_case(text))
        };
        store(to, at.and_then(|at| c_uint::try_from(at).ok()))
    }

    /// Prints a name of a list.
    fn ucs_config_sprintf_enum(to: TextPtr, size: usize, from: ValuePtr, arg: *const c_void) -> c_int {
        let value = load::<c_uint>(from)?;
        // SAFETY: the caller passes a list of names.
        let name = unsafe { names(arg) }.nth(value as usize);
        show_text(to, size, &name.map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Prints the names of a list.
    fn ucs_config_help_enum(to: TextPtr, size: usize, arg: *const c_void) {
        // SAFETY: the caller passes a list of names.
        show(to, size, &unsafe { alternatives(arg) }).map(|_| ())
    }

    /// Reads names of a list, with commas between them: a bit for each.
    fn ucs_config_sscanf_bitmap(text: *const c_char, to: PlacePtr, arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null, and a list of names.
        store(to, unsafe { bits(trimmed(text)?, arg) })
    }

    /// Prints the names of the bits that are set.
    fn ucs_config_sprintf_bitmap(to: TextPtr, size: usize, from: ValuePtr, arg: *const c_void) -> c_int {
        let mask = load::<c_uint>(from)?;
        // SAFETY: the caller passes a list of names.
        let names = unsafe { names(arg) }.take(32).enumerate();
        let set: Vec<_> = names.filter(|(at, _)| mask & 1 << at != 0).map(|(_, name)| name).collect();
        show_text(to, size, &set.join(","))
    }

    /// Prints the names of a list.
    fn ucs_config_help_bitmap(to: TextPtr, size: usize, arg: *const c_void) {
        // SAFETY: the caller passes a list of names.
        show(to, size, &format!("comma-separated list of: {}", unsafe { alternatives(arg) })).map(|_| ())
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
        let bits = |text| unsafe { bits(text, arg) };
        assert_eq!((bits("ONE, two"), bits(""), bits("two,,")), (Some(3), Some(0), Some(2)));
        assert_eq!((bits("three"), bits("one,three")), (None, None));
        // SAFETY: as above.
        assert_eq!(unsafe { alternatives(arg) }, "[one|two]");
        assert_eq!(name_of(1, &["a", "b"]), "b");
        assert_eq!((name_of(2, &["a", "b"]), name_of(-1, &["a"])), ("2".into(), "-1".into()));
    }
}
