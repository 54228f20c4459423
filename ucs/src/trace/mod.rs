//! Text logging with UCX's levels, to standard error. Installed by tools and tests only.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;

use crate::config::{ConfigError, Source, Table};

crate::config_enum! {
    /// How much is logged: each level includes those before it.
    pub enum LogLevel {
        /// Nothing but messages before an abort.
        Fatal = "fatal",
        /// Failures.
        Error = "error",
        /// Likely surprises.
        Warn = "warn",
        /// Hints for tuning.
        Diag = "diag",
        /// Choices made at open.
        Info = "info",
        /// Connections, peers, slow paths.
        Debug = "debug",
        /// Everything there is on slow paths.
        Trace = "trace",
        /// As `trace`: UCX's request level.
        Req = "req",
        /// As `trace`: UCX's data level.
        Data = "data",
        /// As `trace`: UCX's async level.
        Async = "async",
        /// As `trace`: UCX's function level.
        Func = "func",
        /// As `trace`: UCX's poll level.
        Poll = "poll",
    }
}

impl LogLevel {
    /// The level of the `tracing` crate that shows the same.
    pub const fn filter(self) -> LevelFilter {
        match self {
            LogLevel::Fatal | LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Diag | LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }
    }
}

crate::config_table! {
    /// Logging.
    pub struct LogConfig, prefix "UCX_" {
        /// Messages up to this level go to standard error.
        pub log_level: LogLevel = "warn", key "LOG_LEVEL";
    }
}

/// Starts logging as `UCX_LOG_LEVEL` says. A logger that is installed already stays.
pub fn init(source: &Source) -> Result<(), ConfigError> {
    let config = LogConfig::load(source)?;
    let subscriber = fmt::Subscriber::builder()
        .with_max_level(config.log_level.filter())
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(true)
        .finish();
    // An error here means that the program brought its own logger: that one is right.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_map_and_typos_are_errors() {
        let level = |text| LogConfig::load(&Source::empty().with("UCX_LOG_LEVEL", text)).map(|c| c.log_level);
        assert_eq!(level("DEBUG").unwrap().filter(), LevelFilter::DEBUG);
        assert_eq!(level("poll").unwrap().filter(), LevelFilter::TRACE);
        assert_eq!(LogConfig::default().log_level.filter(), LevelFilter::WARN);
        let err = init(&Source::empty().with("UCX_LOG_LEVEL", "loud")).unwrap_err().to_string();
        assert!(err.starts_with("UCX_LOG_LEVEL=loud (override): expected one of fatal, error"), "{err}");
    }

    #[test]
    fn init_twice_is_fine() {
        assert_eq!(init(&Source::empty()), Ok(()));
        assert_eq!(init(&Source::empty()), Ok(()));
    }
}
