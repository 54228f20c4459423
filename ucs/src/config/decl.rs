//! Declaration of a table: one entry per key gives a struct field, a parser and a description. No global
//! list.

use std::ops::RangeBounds;

use super::parse::ConfigValue;
use super::source::{ConfigError, Origin, Source};

/// `Ok`, or what would have been accepted instead.
pub type CheckResult = Result<(), String>;

/// One key, as declared.
#[derive(Clone, Copy, Debug)]
pub struct KeyDesc {
    /// Full name, with prefix.
    pub name: &'static str,
    /// Default, as a user would write it.
    pub default: &'static str,
    /// Help text; one paragraph.
    pub help: &'static str,
    /// Unit of the number, or empty.
    pub unit: &'static str,
    /// Allowed range ("within 1..=8"), or empty.
    pub range: &'static str,
    /// Further condition in condition, or empty.
    pub condition: &'static str,
    /// Would this text be accepted?
    pub validate: fn(&str) -> CheckResult,
}

impl KeyDesc {
    /// Range and condition in one text; empty when there is neither.
    pub fn limits(&self) -> String {
        [self.range, self.condition].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", ")
    }
}

/// One table of keys, as declared.
#[derive(Clone, Copy, Debug)]
pub struct TableDesc {
    /// Title of the table.
    pub title: &'static str,
    /// Prefix of all names.
    pub prefix: &'static str,
    /// The keys, in order of declaration.
    pub keys: &'static [KeyDesc],
}

impl TableDesc {
    /// Checks every value `source` has for this table without making the struct.
    pub fn check(&self, source: &Source) -> Result<(), ConfigError> {
        self.keys.iter().try_for_each(|key| key.check(source))
    }
}

impl KeyDesc {
    /// Checks the value that `source` has for this key.
    pub fn check(&self, source: &Source) -> Result<(), ConfigError> {
        let Some((value, origin)) = source.lookup(self.name) else { return Ok(()) };
        source.check_text(self.name)?;
        (self.validate)(value).map_err(|expected| bad_value(self, value, origin, expected))
    }
}

/// A struct declared with [`config_table!`](crate::config_table).
pub trait Table: Sized {
    /// Description of the table.
    const DESC: TableDesc;

    /// Reads all keys; the first bad value is the error.
    fn load(source: &Source) -> Result<Self, ConfigError>;
}

fn bad_value(key: &KeyDesc, value: &str, origin: Origin, expected: String) -> ConfigError {
    ConfigError::BadValue { key: key.name, value: value.to_owned(), origin, expected }
}

/// Parses and checks one value. Called by the macro.
#[doc(hidden)]
pub fn validate<T: ConfigValue>(
    key: &KeyDesc,
    text: &str,
    within: impl FnOnce(&T) -> bool,
) -> Result<T, String> {
    match T::parse(text.trim()) {
        Some(value) if within(&value) => Ok(value),
        _ => match key.limits() {
            limits if limits.is_empty() => Err(T::expected()),
            limits => Err(format!("{}, {limits}", T::expected())),
        },
    }
}

/// Reads one key. Called by the macro.
#[doc(hidden)]
pub fn read_key<T: ConfigValue>(
    key: &KeyDesc,
    source: &Source,
    validate: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ConfigError> {
    let (value, origin) = source.lookup(key.name).unwrap_or((key.default, Origin::Default));
    source.check_text(key.name)?;
    validate(value).map_err(|expected| bad_value(key, value, origin, expected))
}

/// `range.contains(value)`, with the element type fixed by the value. Called by the macro.
#[doc(hidden)]
pub fn within<T: PartialOrd>(range: impl RangeBounds<T>, value: &T) -> bool {
    range.contains(value)
}

/// Declares a configuration table: a struct that implements [`Table`] and `Default`.
///
/// Each entry: `/// help`, then `vis field: Type = "default", key "NAME" [, unit "bytes"] [, range
/// LOW..=HIGH] [, check |v| COND => "in words"];`. The type implements [`ConfigValue`].
#[macro_export]
macro_rules! config_table {
    (
        $(#[doc = $title:literal])+
        $vis:vis struct $Table:ident, prefix $prefix:literal {
            $(
                $(#[doc = $help:literal])+
                $fvis:vis $field:ident : $ty:ty = $default:literal, key $key:literal
                    $(, unit $unit:literal)?
                    $(, range $range:expr)?
                    $(, check $check:expr => $condition:literal)?
                ;
            )+
        }
    ) => {
        $(#[doc = $title])+
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $Table {
            $(
                $(#[doc = $help])+
                #[doc = concat!("\n\nKey `", $prefix, $key, "`, default `", $default, "`.")]
                $fvis $field: $ty,
            )+
        }

        const _: () = {
            #[allow(non_camel_case_types, clippy::enum_variant_names)]
            enum Index { $($field),+ }

            struct Validate;
            #[allow(unused_mut, unused_assignments)]
            impl Validate {
                $(
                    fn $field(text: &str) -> ::core::result::Result<$ty, ::std::string::String> {
                        $crate::config::validate::<$ty>(&KEYS[Index::$field as usize], text, |_value| {
                            let mut good = true;
                            $(good &= $crate::config::decl_within($range, _value);)?
                            $(
                                let check: fn(&$ty) -> bool = $check;
                                good &= check(_value);
                            )?
                            good
                        })
                    }
                )+
            }

            static KEYS: &[$crate::config::KeyDesc] = &[$(
                $crate::config::KeyDesc {
                    name: concat!($prefix, $key),
                    default: $default,
                    help: concat!($($help),+),
                    unit: concat!($($unit)?),
                    range: concat!($("within ", stringify!($range))?),
                    condition: concat!($($condition)?),
                    validate: |text| Validate::$field(text).map(drop),
                }
            ),+];

            impl $crate::config::Table for $Table {
                const DESC: $crate::config::TableDesc = $crate::config::TableDesc {
                    title: concat!($($title),+),
                    prefix: $prefix,
                    keys: KEYS,
                };

                fn load(
                    source: &$crate::config::Source,
                ) -> ::core::result::Result<Self, $crate::config::ConfigError> {
                    ::core::result::Result::Ok($Table {
                        $($field: $crate::config::read_key(
                            &KEYS[Index::$field as usize],
                            source,
                            Validate::$field,
                        )?,)+
                    })
                }
            }

            impl ::core::default::Default for $Table {
                fn default() -> Self {
                    <$Table as $crate::config::Table>::load(&$crate::config::Source::empty())
                        .expect("declared defaults are valid")
                }
            }
        };
    };
}

/// Declares an enum whose values a user writes by name, implementing [`ConfigValue`] and `Display`.
/// ```
/// ucs::config_enum! {
///     /// How to send.
///     pub enum Path {
///         /// Copy into a buffer.
///         Bcopy = "bcopy",
///         /// From where it is.
///         Zcopy = "zcopy",
///     }
/// }
/// use ucs::config::ConfigValue;
/// assert_eq!(Path::parse("zcopy"), Some(Path::Zcopy));
/// assert_eq!(Path::expected(), "one of bcopy, zcopy");
/// ```
#[macro_export]
macro_rules! config_enum {
    (
        $(#[$meta:meta])+
        $vis:vis enum $Enum:ident {
            $( $(#[$vmeta:meta])+ $Variant:ident = $name:literal ),+ $(,)?
        }
    ) => {
        $(#[$meta])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $Enum {
            $( $(#[$vmeta])+ $Variant ),+
        }

        impl $Enum {
            /// Every value with its name, in order of declaration.
            $vis const ALL: &'static [($Enum, &'static str)] = &[$(($Enum::$Variant, $name)),+];

            /// The name a user writes.
            $vis const fn name(self) -> &'static str {
                match self { $($Enum::$Variant => $name),+ }
            }
        }

        impl ::core::fmt::Display for $Enum {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.name())
            }
        }

        impl $crate::config::ConfigValue for $Enum {
            fn parse(text: &str) -> ::core::option::Option<Self> {
                Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(value, _)| *value)
            }
            fn expected() -> ::std::string::String {
                let names: ::std::vec::Vec<&str> = Self::ALL.iter().map(|(_, name)| *name).collect();
                ::std::format!("one of {}", names.join(", "))
            }
        }
    };
}
