//! Parses packets given as hexadecimal digits.

/// Bytes may be separated by blanks, colons and commas, and begin with `0x`.
pub fn parse(text: &str) -> Result<Vec<u8>, String> {
    let words = text.split(|c: char| c.is_whitespace() || c == ':' || c == ',');
    let mut bytes = Vec::new();
    for word in words {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        if let Some(odd) = digits.chars().find(|c| !c.is_ascii_hexdigit()) {
            return Err(format!("'{odd}' is no hexadecimal digit"));
        }
        if !digits.len().is_multiple_of(2) {
            return Err(format!("'{word}' has an odd number of digits: a byte has two"));
        }
        let pairs = digits.as_bytes().chunks(2).filter_map(|pair| std::str::from_utf8(pair).ok());
        bytes.extend(pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()));
    }
    if bytes.is_empty() {
        return Err("no packet: expected hexadecimal digits, such as 41040c00...".into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn hex_separators_are_accepted() {
        for text in ["40040400", "40 04 04 00\n", "0x40, 0x04,0x04, 0x00", "40:04:04:00"] {
            assert_eq!(parse(text), Ok(vec![0x40, 4, 4, 0]), "{text}");
        }
        for text in ["", "  ", "4", "40 4", "4g", "ää"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
