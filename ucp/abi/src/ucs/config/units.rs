//! Options with units: times, sizes, bandwidths and signals.

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};

use ::ucs::Status;

use super::super::cpu::ticks_per_second;
use super::super::memunits::{UNITS, parse_memunits, text_of_memunits};
use super::numbers::{AUTO, INF, ulunits_text};
use super::text::duplicate;
use super::value::{PlacePtr, TextPtr, ValuePtr, load, show, show_text, store};
use super::{bytes_of, trimmed, trimmed_bytes};
use crate::entry::CStatus;

/// A larger number of bytes a second is printed in a larger unit, as UCX does.
const LARGEST_SHOWN: f64 = 50_000.0;

/// `UCS_CONFIG_BW_AUTO`.
const BANDWIDTH_AUTO: f64 = -2.0;

/// `ucs_config_bw_spec_t`: the bandwidth of a device.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Bandwidth {
    name: *mut c_char,
    bytes_per_second: f64,
}

/// A number and what follows it.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let is_end = |c: char| !c.is_ascii_digit() && !".+-".contains(c);
    let end = text.find(is_end).unwrap_or(text.len());
    // An exponent: `e` with digits after it.
    let power = text[end..].strip_prefix(['e', 'E']).filter(|rest| rest.starts_with(|c| !is_end(c)));
    let end = power
        .map_or(end, |rest| rest.find(is_end).map_or(text.len(), |after| text.len() - rest.len() + after));
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

/// Seconds.
fn time(text: &str) -> Option<f64> {
    if text.eq_ignore_ascii_case("inf") {
        return Some(f64::INFINITY);
    }
    let (number, unit) = number_and_unit(text)?;
    let scale = match unit {
        "m" => 60.0,
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    Some(number * scale)
}

fn text_of_time(seconds: f64) -> String {
    if seconds == f64::INFINITY { "inf".into() } else { format!("{:.2}us", seconds * 1e6) }
}

/// Bytes a second, or [`BANDWIDTH_AUTO`].
fn bandwidth(text: &str) -> Option<f64> {
    if text.eq_ignore_ascii_case("auto") {
        return Some(BANDWIDTH_AUTO);
    }
    let (number, unit) = number_and_unit(text)?;
    let prefixes = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50), ("E", 60)];
    let prefix = prefixes.iter().find_map(|(prefix, shift)| Some((unit.strip_prefix(prefix)?, *shift)));
    let (unit, shift) = prefix.unwrap_or((unit, 0));
    let (rate, bits) =
        unit.strip_prefix('B').map(|rate| (rate, 1.0)).or_else(|| Some((unit.strip_prefix('b')?, 8.0)))?;
    let is_rate = ["", "s", "ps", "/s"].contains(&rate);
    (is_rate && number >= 0.0).then(|| number * (1u64 << shift) as f64 / bits)
}

fn text_of_bandwidth(bytes: f64) -> String {
    if bytes == BANDWIDTH_AUTO {
        return "auto".into();
    }
    let (mut value, mut unit) = (bytes, 0);
    while value > LARGEST_SHOWN && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2}{}Bps", UNITS[unit])
}

/// Names of signals, without `SIG`, from number 1 on.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

fn signal(text: &str) -> Option<c_int> {
    if let Ok(number) = text.parse::<c_int>() {
        return (number >= 0).then_some(number);
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let at = SIGNALS.iter().position(|known| *known == name)?;
    c_int::try_from(at + 1).ok()
}

entry! {
    /// Reads a time with its unit, in seconds.
    fn ucs_config_sscanf_time(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, time(unsafe { trimmed(text) }?))
    }

    /// Prints a time of seconds.
    fn ucs_config_sprintf_time(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show(to, size, &text_of_time(load(from)?))
    }

    /// Reads a time with its unit, or `auto`, in counts of the processor's time counter.
    fn ucs_config_sscanf_time_units(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        let text = unsafe { trimmed(text) }?;
        if text.eq_ignore_ascii_case("auto") {
            return store(to, Some(AUTO));
        }
        // A conversion of numbers with a point keeps to the limits of the other type.
        let counts = |seconds: f64| if seconds.is_finite() { (seconds * ticks_per_second()) as c_ulong } else { INF };
        store(to, time(text).filter(|seconds| *seconds >= 0.0).map(counts))
    }

    /// Prints a time of counts.
    fn ucs_config_sprintf_time_units(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        match load::<c_ulong>(from)? {
            value @ (INF | AUTO) => show(to, size, &ulunits_text(value)),
            value => show(to, size, &text_of_time(value as f64 / ticks_per_second())),
        }
    }

    /// Reads a bandwidth, or `auto`.
    fn ucs_config_sscanf_bw(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, bandwidth(unsafe { trimmed(text) }?))
    }

    /// Prints a bandwidth.
    fn ucs_config_sprintf_bw(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show_text(to, size, &text_of_bandwidth(load(from)?))
    }

    /// Reads a device and its bandwidth.
    fn ucs_config_sscanf_bw_spec(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        let text = unsafe { trimmed_bytes(text) }?;
        let (name, rate) = text.split_at(text.iter().position(|c| *c == b':').ok_or(Status::InvalidParam)?);
        let rate = std::str::from_utf8(&rate[1..]).ok().and_then(bandwidth);
        let bytes_per_second = rate.ok_or(Status::InvalidParam)?;
        let name = CString::new(name).map_err(|_| Status::InvalidParam)?;
        store(to, Some(Bandwidth { name: duplicate(&name)?, bytes_per_second }))
    }

    /// Prints a device and its bandwidth.
    fn ucs_config_sprintf_bw_spec(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        let Bandwidth { name, bytes_per_second } = load(from)?;
        // SAFETY: the caller's contract.
        let name = unsafe { bytes_of(name) };
        show_text(to, size, &[name, b":", text_of_bandwidth(bytes_per_second).as_bytes()].concat())
    }

    /// Copies a device and its bandwidth.
    fn ucs_config_clone_bw_spec(from: ValuePtr, to: PlacePtr, _arg: *const c_void) -> CStatus {
        let Bandwidth { name, bytes_per_second } = load(from)?;
        // SAFETY: the caller's contract.
        let name = duplicate(if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } })?;
        store(to, Some(Bandwidth { name, bytes_per_second })).map(|_| ())
    }

    /// Frees the name of a device.
    fn ucs_config_release_bw_spec(value: ValuePtr, _arg: *const c_void) {
        // SAFETY: the name is of `malloc`.
        unsafe { libc::free(load::<Bandwidth>(value)?.name.cast()) };
        Ok(())
    }

    /// Reads the number or the name of a signal.
    fn ucs_config_sscanf_signo(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, signal(unsafe { trimmed(text) }?))
    }

    /// Prints the name of a signal, or its number if it has none.
    fn ucs_config_sprintf_signo(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        let number = load::<c_int>(from)?;
        let name = usize::try_from(number).ok().and_then(|number| SIGNALS.get(number.wrapping_sub(1)));
        show_text(to, size, &name.map_or_else(|| number.to_string(), |name| (*name).into()))
    }

    /// Reads a number of bytes with its unit, `inf` or `auto`.
    fn ucs_config_sscanf_memunits(text: *const c_char, to: PlacePtr, _arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        store(to, parse_memunits(unsafe { trimmed(text) }?))
    }

    /// Prints a number of bytes with its unit.
    fn ucs_config_sprintf_memunits(to: TextPtr, size: usize, from: ValuePtr, _arg: *const c_void) -> c_int {
        show_text(to, size, &text_of_memunits(load(from)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let of = |text| time(text).map(|seconds| (seconds * 1e9).round());
        assert_eq!(
            (of("1"), of("1.5ms"), of("2us"), of("3ns")),
            (Some(1e9), Some(1.5e6), Some(2e3), Some(3.0))
        );
        assert_eq!((of("2e-3s"), of("1E3us"), time("1e"), time("1es")), (Some(2e6), Some(1e6), None, None));
        assert_eq!((of("1m"), time("inf")), (Some(6e10), Some(f64::INFINITY)));
        assert_eq!((time(""), time("1h"), time("ms"), time("auto")), (None, None, None, None));
        assert_eq!((text_of_time(0.0015), text_of_time(f64::INFINITY)), ("1500.00us".into(), "inf".into()));
    }

    #[test]
    fn bandwidths_are_of_bytes_or_bits() {
        assert_eq!(
            (bandwidth("1MBs"), bandwidth("1MB/s"), bandwidth("1MBps")),
            (Some(1048576.0), Some(1048576.0), Some(1048576.0))
        );
        assert_eq!(
            (bandwidth("10Gbs"), bandwidth("1bs"), bandwidth("auto")),
            (Some(1342177280.0), Some(0.125), Some(-2.0))
        );
        for text in ["", "5", "1kB", "1gbs", "1MBx", "-1MBs", "MBs"] {
            assert_eq!(bandwidth(text), None, "{text}");
        }
        assert_eq!(
            (text_of_bandwidth(5242880.0), text_of_bandwidth(1e9)),
            ("5120.00KBps".into(), "953.67MBps".into())
        );
        assert_eq!(
            (text_of_bandwidth(1342177280.0), text_of_bandwidth(-2.0)),
            ("1280.00MBps".into(), "auto".into())
        );
        // The texts of UCX 1.13.1.
        for (bytes, text) in [
            (0.0, "0.00Bps"),
            (50_000.0, "50000.00Bps"),
            (50_001.0, "48.83KBps"),
            (40.0 * 1024.0 * 1024.0, "40960.00KBps"),
            (50.0 * 1024.0 * 1024.0, "50.00MBps"),
            (60.0 * 1024f64.powi(4), "60.00TBps"),
            (1e20, "86.74EBps"),
        ] {
            assert_eq!(text_of_bandwidth(bytes), text);
        }
        assert_eq!((bandwidth("2PBps"), bandwidth("1EBs")), (Some(2f64.powi(51)), Some(2f64.powi(60))));
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(
            (signal("SIGINT"), signal("int"), signal("9"), signal("SIGKILL")),
            (Some(2), Some(2), Some(9), Some(9))
        );
        assert_eq!((signal("SIGXX"), signal("-1"), signal("")), (None, None, None));
        assert_eq!(SIGNALS[libc::SIGSYS as usize - 1], "SYS");
    }
}
