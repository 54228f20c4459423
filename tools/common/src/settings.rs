//! Configuration of tools: the tables of all crates, their values, and an error for names that no table
//! declares. Never changes the environment.

use ucs::config::{ConfigError, Source, Table, TableDesc};

/// All tables, lowest layer first.
pub fn tables() -> Vec<&'static TableDesc> {
    [&ucs::trace::LogConfig::DESC].into_iter().chain(ucp::Context::tables()).collect()
}

/// Reads environment and file, rejects unknown names and bad values, and starts logging.
pub fn load() -> Result<Source, ConfigError> {
    let source = Source::from_env()?;
    check(&source)?;
    ucs::trace::init(&source)?;
    Ok(source)
}

fn check(source: &Source) -> Result<(), ConfigError> {
    let tables = tables();
    source.reject_unknown(&tables)?;
    tables.iter().try_for_each(|table| table.check(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_name_and_bad_value_are_refused() {
        let text = check(&Source::empty().with("UCX_POSIX_FIFO_SIZ", "8")).unwrap_err().to_string();
        assert!(
            text.contains("UCX_POSIX_FIFO_SIZ") && text.ends_with("did you mean UCX_POSIX_FIFO_SIZE?"),
            "{text}"
        );
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
