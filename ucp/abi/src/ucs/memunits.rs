//! Numbers of bytes with units.

use std::ffi::{c_char, c_void};

use ::ucs::Status;

use super::global::Global;
use crate::entry::CStatus;

/// `UCS_MEMUNITS_INF`.
const INF: usize = usize::MAX;
/// `UCS_MEMUNITS_AUTO`.
const AUTO: usize = usize::MAX - 1;

/// Units, each 1024 times the one before.
pub(super) const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// Names of units, with a null at the end.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_memunits_suffixes: Global<[*const c_char; 8]> = Global::new([
    c"".as_ptr(),
    c"K".as_ptr(),
    c"M".as_ptr(),
    c"G".as_ptr(),
    c"T".as_ptr(),
    c"P".as_ptr(),
    c"E".as_ptr(),
    std::ptr::null(),
]);

/// A number of bytes: digits and a unit, `inf` or `auto`. -1 is `inf`.
pub(super) fn parse_memunits(text: &str) -> Option<usize> {
    let text = text.trim().to_ascii_uppercase();
    match &*text {
        "INF" | "-1" => return Some(INF),
        "AUTO" => return Some(AUTO),
        _ => {}
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.strip_suffix('B').unwrap_or(unit);
    let power = UNITS.iter().position(|known| *known == unit)?;
    number.parse::<usize>().ok()?.checked_mul(1 << (10 * power))
}

/// Text of a number of bytes, in the largest unit of which it is a multiple.
pub(super) fn text_of_memunits(value: usize) -> String {
    match value {
        INF => "inf".into(),
        AUTO => "auto".into(),
        // Of zero, which every unit divides, no unit is meant.
        0 => "0".into(),
        _ => {
            let unit = (value.trailing_zeros() as usize / 10).min(UNITS.len() - 1);
            format!("{}{}", value >> (10 * unit), UNITS[unit])
        }
    }
}

entry! {
    /// Reads a number of bytes with its unit.
    fn ucs_str_to_memunits(text: *const c_char, to: *mut c_void) -> CStatus {
        if text.is_null() || to.is_null() {
            return Err(Status::InvalidParam);
        }
        // SAFETY: the caller's contract.
        let value = parse_memunits(&unsafe { crate::context::text_of(text) }).ok_or(Status::InvalidParam)?;
        // SAFETY: the caller has a `size_t` there.
        unsafe { to.cast::<usize>().write_unaligned(value) };
        Ok(())
    }

    /// Prints a number of bytes with its unit, or `inf` or `auto`. Returns the buffer.
    fn ucs_memunits_to_str(value: usize, buffer: *mut c_char, size: usize) -> *mut c_char {
        // SAFETY: the caller's contract.
        unsafe { crate::info::fill_string(buffer, size, &text_of_memunits(value)) };
        Ok(buffer)
    }

    /// Prints two numbers of bytes with `..` between them, or one if they are equal. Returns the buffer.
    fn ucs_memunits_range_str(first: usize, last: usize, buffer: *mut c_char, size: usize) -> *mut c_char {
        let text = match first == last {
            true => text_of_memunits(first),
            false => format!("{}..{}", text_of_memunits(first), text_of_memunits(last)),
        };
        // SAFETY: the caller's contract.
        unsafe { crate::info::fill_string(buffer, size, &text) };
        Ok(buffer)
    }

    /// Value of the letter of a unit: 1 for bytes, 0 for no unit.
    fn ucs_string_quantity_prefix_value(letter: c_char) -> usize {
        let letter = char::from(letter as u8);
        let unit = UNITS.iter().skip(1).position(|unit| unit.starts_with(letter));
        Ok(if letter == 'B' { 1 } else { unit.map_or(0, |at| 1 << (10 * (at + 1))) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn sizes_have_units() {
        for (text, value) in [
            ("1", 1),
            ("8k", 8192),
            ("8K", 8192),
            ("8kb", 8192),
            ("2MB", 2 << 20),
            ("3g", 3 << 30),
            ("1t", 1 << 40),
            ("1P", 1 << 50),
            ("1e", 1 << 60),
            ("7b", 7),
            ("inf", INF),
            ("-1", INF),
            ("Auto", AUTO),
        ] {
            assert_eq!(parse_memunits(text), Some(value), "{text}");
        }
        for text in ["", "k", "2.5m", "-2", "1x", "1kbb", "16e", "99999999999999999999", "1 2"] {
            assert_eq!(parse_memunits(text), None, "{text}");
        }
    }

    #[test]
    fn every_text_is_read_as_its_size() {
        for value in [0, 1, 1023, 1024, 1500, 1 << 20, 3 << 30, 1 << 50, 5 << 60, INF, AUTO] {
            assert_eq!(parse_memunits(&text_of_memunits(value)), Some(value), "{value}");
        }
    }

    #[test]
    fn a_range_of_one_size_is_one_number() {
        let mut buffer = [0u8; 16];
        for (first, last, text) in [(1024, 1024, "1K"), (1, 1 << 20, "1..1M"), (8, usize::MAX, "8..inf")] {
            // SAFETY: the buffer is of this test.
            unsafe { ucs_memunits_range_str(first, last, buffer.as_mut_ptr().cast(), buffer.len()) };
            assert_eq!(CStr::from_bytes_until_nul(&buffer).expect("a text").to_str(), Ok(text));
        }
    }

    #[test]
    fn sizes_are_printed_with_their_unit() {
        let mut buffer = [0u8; 8];
        let expected = [
            (0, "0"),
            (1000, "1000"),
            (1024, "1K"),
            (3 << 20, "3M"),
            ((1 << 20) + 1024, "1025K"),
            (AUTO, "auto"),
        ];
        for (value, text) in expected.into_iter().chain([(usize::MAX, "inf"), (1 << 40, "1T")]) {
            // SAFETY: the buffer is of this test.
            unsafe { ucs_memunits_to_str(value, buffer.as_mut_ptr().cast(), buffer.len()) };
            assert_eq!(CStr::from_bytes_until_nul(&buffer).expect("a text").to_str(), Ok(text));
        }
    }
}
