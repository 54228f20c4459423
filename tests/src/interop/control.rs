//! The control language of the matrix: steps, answers, and the bytes both ends agree on. The C end in
//! `tests/interop` speaks it too. Never trusts a line: missing words are `None`.

/// A line: a name, then words and `key=value` pairs in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line(String);

impl Line {
    pub fn new(text: impl Into<String>) -> Line {
        Line(text.into())
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Word `at`; the name is word 0.
    pub fn word(&self, at: usize) -> Option<&str> {
        self.0.split_whitespace().nth(at)
    }

    /// The value of `key=value`; the empty string for a plain `key`.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.split_whitespace().skip(1).find_map(|word| match word.strip_prefix(key)? {
            "" => Some(""),
            rest => rest.strip_prefix('='),
        })
    }

    /// The value of `key` as a decimal or `0x` hexadecimal number.
    pub fn number(&self, key: &str) -> Option<u64> {
        number(self.value(key)?)
    }

    pub fn number_at(&self, at: usize) -> Option<u64> {
        number(self.word(at)?)
    }

    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }
}

pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let word = |n: usize| mix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n as u64)).to_le_bytes();
    let mut all: Vec<u8> = (0..len.div_ceil(8)).flat_map(word).collect();
    all.truncate(len);
    all
}

/// A small whole number as `long double` of x86-64, in 16 bytes.
fn extended(number: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    if number > 0 {
        let up = number.leading_zeros() + 56;
        bytes[..8].copy_from_slice(&(u64::from(number) << up).to_le_bytes());
        bytes[8..10].copy_from_slice(&(16383 + 63 - up as u16).to_le_bytes());
    }
    bytes
}

/// Elements of an atomic datatype (wire number, up to long double complex) with small whole values.
pub fn values(len: usize, ty: u64, seed: u64) -> Vec<u8> {
    let element = |k: u64| {
        let v = mix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(k)) % 9;
        let (real, imaginary) = (v as u8, (v % 4) as u8);
        match ty {
            0 | 1 => vec![v as u8],
            2 | 3 => (v as u16).to_le_bytes().into(),
            4 | 5 => (v as u32).to_le_bytes().into(),
            8 => f32::from(real).to_le_bytes().into(),
            9 => f64::from(real).to_le_bytes().into(),
            10 => [f32::from(real), f32::from(imaginary)].map(f32::to_le_bytes).concat(),
            11 => [f64::from(real), f64::from(imaginary)].map(f64::to_le_bytes).concat(),
            12 => extended(real).into(),
            13 => [real, imaginary].map(extended).concat(),
            _ => v.to_le_bytes().into(),
        }
    };
    let mut all = Vec::with_capacity(len + 32);
    for k in 0.. {
        if all.len() >= len {
            break;
        }
        all.extend(element(k));
    }
    all.truncate(len);
    all
}

/// The FNV-1a sum that both ends print instead of bytes.
pub fn sum(bytes: &[u8]) -> u64 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The 32 bytes of a raw address in 64 hexadecimal digits.
pub fn raw_address(hex: &str) -> Option<[u8; 32]> {
    let mut raw = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in raw.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_values_are_found() {
        let line = Line::new("recv 7 4096 tag=0x10 multi ignore=3");
        assert_eq!((line.word(1), line.number_at(2)), (Some("7"), Some(4096)));
        assert_eq!((line.number("tag"), line.number("ignore")), (Some(16), Some(3)));
        assert!(line.has("multi") && !line.has("tagged") && !line.has("mul") && !line.has("recv"));
        assert_eq!(line.value("multi"), Some(""));
    }

    #[test]
    fn bytes_and_checksums_equal_those_of_the_other_end() {
        assert_eq!(bytes(11, 5)[..8], bytes(8, 5)[..]);
        assert_ne!(bytes(8, 5), bytes(8, 6));
        assert_eq!(sum(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(sum(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn values_are_small_and_of_their_type() {
        assert_eq!(values(8, 9, 3), f64::from(values(1, 0, 3)[0]).to_le_bytes());
        assert_eq!(values(40, 11, 3).len(), 40);
        // One, two and five in C.
        let ends = [(1, [0, 0x80, 0xff, 0x3f]), (2, [0, 0x80, 0, 0x40]), (5, [0, 0xa0, 1, 0x40])];
        assert!(ends.iter().all(|(n, end)| extended(*n)[6..10] == end[..] && extended(*n)[10..] == [0; 6]));
        assert!(values(100, 1, 5).iter().all(|v| *v < 9));
    }

    #[test]
    fn addresses_are_64_digits() {
        let hex = "fe80000000000000".repeat(4);
        assert_eq!(raw_address(&hex).map(|raw| raw[8]), Some(0xfe));
        assert_eq!(raw_address(&hex[1..]), None);
        assert_eq!(raw_address(&"zz".repeat(32)), None);
    }
}
