//! Numbers as people write and read them: `8k`, `1.5m`, thousands separators. Units are powers of 1024.

use ucs::config::parse_size;

/// Parses a length in bytes such as `64`, `8k` or `1m`.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    match parse_size(text).and_then(|n| usize::try_from(n).ok()) {
        Some(n) if n < usize::MAX => Ok(n),
        _ => Err(format!("'{text}' is not a size (a number of bytes, or with k, m, g such as 64k)")),
    }
}

/// Parses a count such as `1000` or `10k`.
pub fn parse_count(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Some(n) if n < u64::MAX => Ok(n),
        _ => Err(format!("'{text}' is not a count (a number, or with k, m such as 10k)")),
    }
}

/// Whether a length is no limit: no memory is as long.
pub fn is_unlimited(n: usize) -> bool {
    n >= isize::MAX as usize
}

/// Formats 65536 as `64K`. Other numbers than multiples of a unit stay; [no limit](is_unlimited) is
/// `unlimited`.
pub fn short_bytes(n: usize) -> String {
    if is_unlimited(n) {
        return "unlimited".into();
    }
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    match units.iter().find(|(shift, _)| n != 0 && n.trailing_zeros() >= *shift) {
        Some((shift, unit)) => format!("{}{unit}", n >> shift),
        None => n.to_string(),
    }
}

/// Formats 1234567.89 as `1,234,567.89`, with `decimals` digits after the point.
pub fn grouped(value: f64, decimals: usize) -> String {
    let plain = format!("{value:.decimals$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut out = String::from(sign);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_read() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("8k"), Ok(8192));
        assert_eq!(parse_bytes("1M"), Ok(1 << 20));
        assert_eq!(parse_count("10k"), Ok(10240));
        for bad in ["", "x", "-1", "8q", "inf", "1 2"] {
            assert!(parse_bytes(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
    }

    #[test]
    fn numbers_are_printed_for_people() {
        assert_eq!(grouped(1_234_567.891, 2), "1,234,567.89");
        assert_eq!(grouped(999.0, 0), "999");
        assert_eq!(grouped(-1000.0, 0), "-1,000");
        let texts = [1 << 40, isize::MAX as usize - 1, isize::MAX as usize, usize::MAX].map(short_bytes);
        assert_eq!(texts, ["1T", "9223372036854775806", "unlimited", "unlimited"]);
        assert_eq!(short_bytes(65536), "64K");
        assert_eq!(short_bytes(8185), "8185");
        assert_eq!(short_bytes(0), "0");
        assert_eq!(short_bytes(1 << 30), "1G");
        assert_eq!(short_bytes(usize::MAX), "unlimited");
    }
}
