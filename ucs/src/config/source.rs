//! Configuration values with their origin: overrides before environment before file. Read once at open.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::decl::{Table, TableDesc};
use super::undeclared::{is_ucx_name, ucx_names};
use crate::Blame;

/// Variables with these prefixes are read; of others that no table declares nothing is said.
const PREFIXES: [&str; 2] = ["UCX_", "SOFTEFA_"];

crate::config_table! {
    /// Configuration itself.
    pub struct SourceConfig, prefix "UCX_" {
        /// TOML file of settings: `KEY = value` lines with full key names. Environment variables win over it.
        /// Only read from the environment.
        pub config_file: String = "", key "CONFIG_FILE";
        /// Warn of names that neither this library nor UCX has.
        pub warn_unused: bool = "y", key "WARN_UNUSED_ENV_VARS";
        /// The C interface checks every handle and request that a program passes, and aborts at the first
        /// that is not valid. Only read from the environment.
        pub check: bool = "n", key "CHECK";
    }
}

const FILE_KEY: &str = SourceConfig::DESC.keys[0].name;

impl SourceConfig {
    pub(super) const WARN_UNUSED: &str = SourceConfig::DESC.keys[1].name;
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Declared in the source.
    Default,
    /// The file named by `UCX_CONFIG_FILE`.
    File,
    /// An environment variable.
    Environment,
    /// Set by the program (an option, a test).
    Override,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Default => "default",
            Origin::File => "file",
            Origin::Environment => "environment",
            Origin::Override => "override",
        })
    }
}

/// A configuration that cannot be used. One line; names what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value does not parse or is out of range.
    #[error("{key}={value} ({origin}): expected {expected}")]
    BadValue {
        /// Full name of the key.
        key: &'static str,
        /// Value found.
        value: String,
        /// Where it was found.
        origin: Origin,
        /// Accepted form.
        expected: String,
    },
    /// The file of settings cannot be used.
    #[error("{FILE_KEY}={}: {why}", path.display())]
    BadFile {
        /// Name of the file.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// An environment variable is not UTF-8.
    #[error("{key} (environment): the value is not valid UTF-8")]
    NotText {
        /// Name of the variable.
        key: String,
    },
}

impl ConfigError {
    /// Always the caller: the text of a setting has to change.
    pub const fn blame(&self) -> Blame {
        Blame::Caller
    }
}

/// A variable or file entry that neither a table declares nor UCX knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey {
    /// Name of the key.
    pub name: String,
    /// Where it was found.
    pub origin: Origin,
    /// The known name most like it, if one is near. A declared name comes before one of UCX.
    pub nearest: Option<&'static str>,
}

/// All values that were set somewhere, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    values: BTreeMap<String, (String, Origin)>,
    /// Keys of `values` whose text is not UTF-8 in the environment: an error for the table that reads one.
    not_text: BTreeSet<String>,
}

impl Source {
    /// Nothing set: every key has its default. The environment is not looked at.
    pub fn empty() -> Source {
        Source::default()
    }

    /// Snapshot of the process environment, and of the TOML file that `UCX_CONFIG_FILE` names, if set.
    pub fn from_env() -> Result<Source, ConfigError> {
        Source::from_vars(std::env::vars_os())
    }

    /// As [`from_env`](Self::from_env) with the given variables instead of the environment's.
    pub fn from_vars(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Source, ConfigError> {
        let mut env = Source::empty();
        for (name, value) in vars {
            let Some(name) = name.to_str().filter(|n| PREFIXES.iter().any(|p| n.starts_with(p))) else {
                continue;
            };
            if value.to_str().is_none() {
                env.not_text.insert(name.to_owned());
            }
            env.put(name, &value.to_string_lossy(), Origin::Environment);
        }
        let mut all = match env.lookup(FILE_KEY) {
            Some((path, _)) if !path.is_empty() => {
                env.check_text(FILE_KEY)?;
                Source::from_file(Path::new(path))?
            }
            _ => return Ok(env),
        };
        all.values.append(&mut env.values);
        all.not_text = env.not_text;
        Ok(all)
    }

    /// Reads a TOML file: top-level entries with full key names, each a string, number, boolean or list.
    pub fn from_file(path: &Path) -> Result<Source, ConfigError> {
        let bad = |why: String| ConfigError::BadFile { path: path.into(), why };
        let text = std::fs::read_to_string(path).map_err(|e| bad(format!("cannot read it: {e}")))?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            bad(format!("line {line}: {}", e.message()))
        })?;
        let mut source = Source::empty();
        for (name, value) in table {
            let Some(value) = plain(&value) else {
                return Err(bad(format!("{name}: expected a string, number, boolean or list")));
            };
            source.put(&name, &value, Origin::File);
        }
        Ok(source)
    }

    /// Sets a value that wins over environment and file.
    pub fn set(&mut self, key: &str, value: &str) {
        self.put(key, value, Origin::Override);
    }

    /// [`set`](Self::set) for chaining.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Source {
        self.set(key, value);
        self
    }

    /// Values of `UCX_<prefix>_KEY` win over those of `UCX_KEY`. An empty prefix changes nothing.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Source {
        if prefix.is_empty() {
            return self;
        }
        let prefix = format!("UCX_{prefix}_");
        let own = |name: &String| name.strip_prefix(&prefix).filter(|key| !key.is_empty()).map(str::to_owned);
        let names: Vec<_> = self.values.keys().filter_map(|name| Some((name.clone(), own(name)?))).collect();
        for (name, key) in names {
            if let Some(value) = self.values.remove(&name) {
                self.values.insert(format!("UCX_{key}"), value);
            }
        }
        self
    }

    fn put(&mut self, key: &str, value: &str, origin: Origin) {
        if origin != Origin::Environment {
            self.not_text.remove(key);
        }
        self.values.insert(key.to_owned(), (value.to_owned(), origin));
    }

    /// Value and origin of `key`. `None`: the default holds.
    pub fn lookup(&self, key: &str) -> Option<(&str, Origin)> {
        self.values.get(key).map(|(value, origin)| (value.as_str(), *origin))
    }

    /// Keys and values of one origin, by name.
    pub fn of_origin(&self, origin: Origin) -> impl Iterator<Item = (&str, &str)> {
        let of_it = self.values.iter().filter(move |(_, (_, of))| *of == origin);
        of_it.map(|(key, (value, _))| (key.as_str(), value.as_str()))
    }

    /// True when `key` was set anywhere.
    pub fn is_set(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// An error if the environment's value of `key` is not UTF-8.
    pub(super) fn check_text(&self, key: &str) -> Result<(), ConfigError> {
        match self.not_text.contains(key) {
            true => Err(ConfigError::NotText { key: key.to_owned() }),
            false => Ok(()),
        }
    }

    /// Set keys that neither a table declares nor UCX knows, by name, each with the nearest known name.
    pub fn unknown_keys(&self, tables: &[&TableDesc]) -> Vec<UnknownKey> {
        let known = || declared(tables).chain(ucx_names());
        self.undeclared(tables)
            .into_iter()
            .filter(|name| !is_ucx_name(name))
            .map(|name| UnknownKey {
                name: name.to_owned(),
                origin: self.values[name].1,
                nearest: nearest(name, known()),
            })
            .collect()
    }

    /// Set keys of UCX that no table declares, by name: they have no effect.
    pub fn unused_keys(&self, tables: &[&TableDesc]) -> Vec<&str> {
        self.undeclared(tables).into_iter().filter(|name| is_ucx_name(name)).collect()
    }

    fn undeclared(&self, tables: &[&TableDesc]) -> Vec<&str> {
        let names = self.values.keys().map(String::as_str);
        names.filter(|name| declared(tables).all(|key| key != *name)).collect()
    }
}

fn declared<'a>(tables: &'a [&'a TableDesc]) -> impl Iterator<Item = &'static str> {
    let own = SourceConfig::DESC.keys.iter();
    tables.iter().flat_map(|t| t.keys).chain(own).map(|key| key.name)
}

fn plain(value: &toml::Value) -> Option<String> {
    Some(match value {
        toml::Value::String(s) => s.clone(),
        toml::Value::Integer(n) => n.to_string(),
        toml::Value::Float(x) => x.to_string(),
        toml::Value::Boolean(b) => if *b { "y" } else { "n" }.to_owned(),
        toml::Value::Array(all) => all.iter().map(plain).collect::<Option<Vec<_>>>()?.join(","),
        toml::Value::Table(_) | toml::Value::Datetime(_) => return None,
    })
}

/// The name at the least edit distance, if that is at most a third of the length. Ties: the first.
fn nearest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let limit = name.len() / 3;
    known.map(|k| (distance(name, k), k)).filter(|(d, _)| *d <= limit).min_by_key(|(d, _)| *d).map(|(_, k)| k)
}

pub(super) fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = last;
        last = row;
    }
    last[b.len()]
}
