//! Parses values: sizes, times, booleans, lists, `auto`. Never panics.

use std::time::Duration;

/// A type that configuration values can have.
pub trait ConfigValue: Sized {
    /// The value written as `text` (trimmed), or `None` if it is not one.
    fn parse(text: &str) -> Option<Self>;

    /// Accepted form, to follow the word "expected".
    fn expected() -> String;
}

impl ConfigValue for bool {
    fn parse(text: &str) -> Option<bool> {
        match text.to_ascii_lowercase().as_str() {
            "y" | "yes" | "on" | "1" | "true" => Some(true),
            "n" | "no" | "off" | "0" | "false" => Some(false),
            _ => None,
        }
    }

    fn expected() -> String {
        "y or n".into()
    }
}

/// Parses a non-negative number with an optional unit (`8k`, `1.5m`, `2g`, `1t`, `1p`, `1e`, powers of 1024),
/// or `inf`.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    if text == "inf" {
        return Some(u64::MAX);
    }
    let text = text.strip_suffix('b').unwrap_or(&text);
    let (digits, shift) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        b't' => (&text[..text.len() - 1], 40),
        b'p' => (&text[..text.len() - 1], 50),
        b'e' => (&text[..text.len() - 1], 60),
        _ => (text, 0),
    };
    let (whole, part) = digits.split_once('.').map_or((digits, None), |(w, p)| (w, Some(p)));
    let number = |s: &str| s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse::<u64>().ok()).flatten();
    let mut value = number(whole)?.checked_mul(1 << shift)?;
    if let Some(part) = part {
        if !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        // At most eighteen digits of the fraction matter below 2^60.
        let part = &part[..part.len().min(18)];
        let rest = (u128::from(number(part)?) << shift) / 10u128.pow(part.len() as u32);
        value = value.checked_add(u64::try_from(rest).ok()?)?;
    }
    Some(value)
}

macro_rules! unsigned {
    ($($ty:ty)*) => {$(
        impl ConfigValue for $ty {
            fn parse(text: &str) -> Option<$ty> {
                match parse_size(text)? {
                    u64::MAX => Some(<$ty>::MAX),
                    n => <$ty>::try_from(n).ok(),
                }
            }

            fn expected() -> String {
                "a number with optional k/m/g/t or inf".into()
            }
        }
    )*};
}
unsigned!(u8 u16 u32 u64 usize);

macro_rules! signed {
    ($($ty:ty)*) => {$(
        impl ConfigValue for $ty {
            fn parse(text: &str) -> Option<$ty> {
                text.parse().ok()
            }

            fn expected() -> String {
                format!("a whole number from {} to {}", <$ty>::MIN, <$ty>::MAX)
            }
        }
    )*};
}
signed!(i32 i64);

impl ConfigValue for f64 {
    fn parse(text: &str) -> Option<f64> {
        text.parse().ok().filter(|x: &f64| x.is_finite())
    }

    fn expected() -> String {
        "a number such as 0.5 or 1e-6".into()
    }
}

impl ConfigValue for String {
    fn parse(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn expected() -> String {
        "text".into()
    }
}

/// The longest time, which `inf` stands for: 136 years. Any clock can add it.
pub const MAX_TIME: Duration = Duration::from_secs(u32::MAX as u64);

/// A longer time than [`MAX_TIME`] counts as that.
impl ConfigValue for Duration {
    fn parse(text: &str) -> Option<Duration> {
        let text = text.to_ascii_lowercase();
        if text == "inf" {
            return Some(MAX_TIME);
        }
        let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let scale = match unit {
            "ns" => 1e-9,
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" | "" => 1.0,
            "m" | "min" => 60.0,
            _ => return None,
        };
        let number: f64 = number.trim().parse().ok()?;
        let seconds = (number * scale).min(MAX_TIME.as_secs_f64());
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn expected() -> String {
        "a time such as 500us, 20ms, 1.5s or inf".into()
    }
}

/// A value the library may choose itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Auto<T> {
    /// `auto`: the library chooses.
    #[default]
    Auto,
    /// Given by the user.
    Value(T),
}

impl<T> Auto<T> {
    /// The user's value, or `choice`.
    pub fn unwrap_or(self, choice: T) -> T {
        match self {
            Auto::Auto => choice,
            Auto::Value(value) => value,
        }
    }

    /// The user's value, if there is one.
    pub fn given(self) -> Option<T> {
        match self {
            Auto::Auto => None,
            Auto::Value(value) => Some(value),
        }
    }
}

impl<T: ConfigValue> ConfigValue for Auto<T> {
    fn parse(text: &str) -> Option<Auto<T>> {
        if text.eq_ignore_ascii_case("auto") { Some(Auto::Auto) } else { T::parse(text).map(Auto::Value) }
    }

    fn expected() -> String {
        format!("auto or {}", T::expected())
    }
}

/// Comma list; empty text is the empty list.
impl<T: ConfigValue> ConfigValue for Vec<T> {
    fn parse(text: &str) -> Option<Vec<T>> {
        if text.is_empty() {
            return Some(Vec::new());
        }
        text.split(',').map(|item| Some(item.trim()).filter(|i| !i.is_empty()).and_then(T::parse)).collect()
    }

    fn expected() -> String {
        format!("a comma list, each {}", T::expected())
    }
}
