//! Options that are numbers.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use super::trimmed;
use super::value::{PlacePtr, TextPtr, ValuePtr, copied, load, show, show_text, store};
use crate::entry::CStatus;

/// `UCS_ULUNITS_INF`.
pub(super) const INF: c_ulong = c_ulong::MAX;
/// `UCS_ULUNITS_AUTO`.
pub(super) const AUTO: c_ulong = c_ulong::MAX - 1;
/// `UCS_HEXUNITS_AUTO`.
const HEX_AUTO: c_uint = 0xfffe;

/// `ucs_range_spec_t`.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(C)]
pub(crate) struct Range {
    first: c_uint,
    last: c_uint,
}

/// Digits of a number with a sign, decimal or after `0x`.
fn integer(text: &str) -> Option<i128> {
    digits(text, 10)
}

/// A number of 32 bits with a sign. As with `scanf`'s `%i`, one that begins with 0 is octal.
fn int(text: &str) -> Option<c_int> {
    let is_octal = text.trim_start_matches(['-', '+']).starts_with('0');
    digits(text, if is_octal { 8 } else { 10 }).and_then(|value| c_int::try_from(value).ok())
}

/// Digits of a number with a sign, after `0x` hexadecimal, else of this radix.
fn digits(text: &str, radix: u32) -> Option<i128> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((digits, radix), |hex| (hex, 16));
    // `from_str_radix` takes a second sign.
    let is_number = digits.chars().all(|c| c.is_digit(radix));
    let value = i128::from(u64::from_str_radix(digits, radix).ok().filter(|_| is_number)?);
    Some(if is_negative { -value } else { value })
}

/// A number of 64 bits. As with `scanf`, -1 is the largest.
pub(super) fn ulong(text: &str) -> Option<c_ulong> {
    let value = integer(text)?;
    match value < 0 {
        true => i64::try_from(value).ok().map(|value| value as c_ulong),
        false => c_ulong::try_from(value).ok(),
    }
}

/// A number of 32 bits. As with `scanf`, -1 is the largest.
pub(super) fn uint(text: &str) -> Option<c_uint> {
    let value = integer(text)?;
    match value < 0 {
        true => i32::try_from(value).ok().map(|value| value as c_uint),
        false => c_uint::try_from(value).ok(),
    }
}

/// A number, `inf` or `auto`.
pub(super) fn ulunits(text: &str) -> Option<c_ulong> {
    match text {
        _ if text.eq_ignore_ascii_case("inf") => Some(INF),
        _ if text.eq_ignore_ascii_case("auto") => Some(AUTO),
        _ => ulong(text),
    }
}

/// Text of a number that may be `inf` or `auto`.
pub(super) fn ulunits_text(value: c_ulong) -> String {
    match value {
        INF => "inf".into(),
        AUTO => "auto".into(),
        _ => value.to_string(),
    }
}

fn range(text: &str) -> Option<Range> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    (is_number(first) && is_number(last)).then(|| Some(Range { first: uint(first)?, last: uint(last)? }))?
}

entry! {
    /// Reads a number with a sign.
    fn ucs_config_sscanf_int(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, int(unsafe { trimmed(text) }?))
    }

    /// Prints a number with a sign.
    fn ucs_config_sprintf_int(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &load::<c_int>(from)?.to_string())
    }

    /// Reads a number, or `inf`.
    fn ucs_config_sscanf_uint(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        let text = unsafe { trimmed(text) }?;
        store(to, if text.eq_ignore_ascii_case("inf") { Some(c_uint::MAX) } else { uint(text) })
    }

    /// Prints a number, or `inf`.
    fn ucs_config_sprintf_uint(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        match load::<c_uint>(from)? {
            c_uint::MAX => show(to, size, "inf"),
            value => show(to, size, &value.to_string()),
        }
    }

    /// Reads a number of 64 bits.
    fn ucs_config_sscanf_ulong(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, ulong(unsafe { trimmed(text) }?))
    }

    /// Prints a number of 64 bits.
    fn ucs_config_sprintf_ulong(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &load::<c_ulong>(from)?.to_string())
    }

    /// Reads a number of 64 bits, `inf` or `auto`.
    fn ucs_config_sscanf_ulunits(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, ulunits(unsafe { trimmed(text) }?))
    }

    /// Prints a number of 64 bits, `inf` or `auto`.
    fn ucs_config_sprintf_ulunits(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &ulunits_text(load(from)?))
    }

    /// Reads a number with a point.
    fn ucs_config_sscanf_double(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, unsafe { trimmed(text) }?.parse::<f64>().ok().filter(|value| !value.is_nan()))
    }

    /// Prints a number with a point.
    fn ucs_config_sprintf_double(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &format!("{:.3}", load::<f64>(from)?))
    }

    /// Reads a hexadecimal number after `0x`, or `auto`.
    fn ucs_config_sscanf_hex(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        let text = unsafe { trimmed(text) }?;
        let value = match text.starts_with("0x") || text.starts_with("0X") {
            true => uint(text),
            false => text.eq_ignore_ascii_case("auto").then_some(HEX_AUTO),
        };
        store(to, value)
    }

    /// Prints a hexadecimal number, or `auto`.
    fn ucs_config_sprintf_hex(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        match load::<c_uint>(from)? {
            HEX_AUTO => show(to, size, "auto"),
            value => show(to, size, &format!("{value:#x}")),
        }
    }

    /// Reads a number of bits: a mask with so many of them set, from the lowest on.
    fn ucs_config_sscanf_bitmask(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        let count = uint(unsafe { trimmed(text) }?);
        store(to, count.map(|count| 1u32.checked_shl(count).map_or(u32::MAX, |bit| bit - 1)))
    }

    /// Prints the number of bits of a mask.
    fn ucs_config_sprintf_bitmask(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &load::<u32>(from)?.count_ones().to_string())
    }

    /// Reads a number, or two with a `-` between them.
    fn ucs_config_sscanf_range_spec(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, range(unsafe { trimmed(text) }?))
    }

    /// Prints the two ends of a range, or the one number that it has.
    fn ucs_config_sprintf_range_spec(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        let Range { first, last } = load(from)?;
        show_text(to, size, &if first == last { first.to_string() } else { format!("{first}-{last}") })
    }
}

copied! {
    /// Copies a number.
    fn ucs_config_clone_int: c_int;
    /// Copies a number.
    fn ucs_config_clone_uint: c_uint;
    /// Copies a number.
    fn ucs_config_clone_ulong: c_ulong;
    /// Copies a number.
    fn ucs_config_clone_double: f64;
    /// Copies a range.
    fn ucs_config_clone_range_spec: Range;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_signs_and_two_bases() {
        assert_eq!(integer("-5"), Some(-5));
        assert_eq!(integer("+0x1F"), Some(31));
        assert_eq!((int("017"), int("-010"), int("0"), int("0x1f")), (Some(15), Some(-8), Some(0), Some(31)));
        assert_eq!((int("08"), int("2147483648"), uint("010")), (None, None, Some(10)));
        for text in ["", "-", "0x", "--5", "-+5", "5x", "5 5", "0x-5", "99999999999999999999"] {
            assert_eq!(integer(text), None, "{text}");
        }
        assert_eq!((uint("-1"), ulong("-1")), (Some(c_uint::MAX), Some(INF)));
        assert_eq!((uint("4294967296"), uint("-9999999999")), (None, None));
        assert_eq!(ulong("18446744073709551615"), Some(INF));
        assert_eq!(ulong("-18446744073709551615"), None);
        assert_eq!((ulunits("Inf"), ulunits("AUTO"), ulunits("x")), (Some(INF), Some(AUTO), None));
    }

    #[test]
    fn ranges_have_one_number_or_two() {
        assert_eq!(range("7"), Some(Range { first: 7, last: 7 }));
        assert_eq!(range("3-9"), Some(Range { first: 3, last: 9 }));
        for text in ["", "-", "3-", "-3", "3-x", "3-9-1"] {
            assert_eq!(range(text), None, "{text}");
        }
    }
}
