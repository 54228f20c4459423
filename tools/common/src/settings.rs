//! Configuration of tools: the tables of all crates and their values. A bad value is an error, an unknown
//! name a warning. Never changes the environment.

use ucs::config::{ConfigError, Source, SourceConfig, Table, TableDesc};

/// All tables, lowest layer first.
pub fn tables() -> Vec<&'static TableDesc> {
    [&ucs::trace::LogConfig::DESC, &SourceConfig::DESC].into_iter().chain(ucp::Context::tables()).collect()
}

/// Reads environment and file, starts logging, reports unknown names, and checks all values.
pub fn load() -> Result<Source, ConfigError> {
    let source = Source::from_env()?;
    ucs::trace::init(&source)?;
    ucs::config::report_undeclared(&source, &tables())?;
    check(&source)?;
    Ok(source)
}

fn check(source: &Source) -> Result<(), ConfigError> {
    tables().iter().try_for_each(|table| table.check(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_value_is_refused_and_unknown_name_is_not() {
        let source = Source::empty().with("UCX_POSIX_FIFO_SIZ", "8");
        assert_eq!(check(&source), Ok(()));
        let unknown = source.unknown_keys(&tables());
        assert_eq!(unknown[0].nearest, Some("UCX_POSIX_FIFO_SIZE"));
        let text = check(&Source::empty().with("UCX_POSIX_FIFO_SIZE", "many")).unwrap_err().to_string();
        assert!(text.starts_with("UCX_POSIX_FIFO_SIZE=many (override): expected a number"), "{text}");
        assert_eq!(check(&Source::empty().with("UCX_LOG_LEVEL", "info")), Ok(()));
    }

    #[test]
    fn no_name_is_declared_twice() {
        let mut names: Vec<&str> = tables().iter().flat_map(|t| t.keys).map(|k| k.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
