//! Text logging with UCX's levels, to standard error or a file. Installed by tools and tests only.

mod limit;

pub use limit::RateLimit;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

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
            // Text before an abort is written by the panic, not as a log line.
            LogLevel::Fatal => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
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
        /// Messages up to this level are logged.
        pub log_level: LogLevel = "warn", key "LOG_LEVEL";
        /// Most errors and warnings a second of one place in the source; the rest are counted. 0: no bound.
        pub log_rate: u32 = "20", key "LOG_RATE";
        /// Where messages go: stdout, stderr, PATH or file:PATH, which is appended to. In a path %p is the
        /// process id, %h the host, %e the program, %i the user id. Empty: standard error.
        pub log_file: String = "", key "LOG_FILE";
    }
}

/// Starts logging as `UCX_LOG_LEVEL` and `UCX_LOG_FILE` say. A logger that is installed already stays.
///
/// If the file cannot be opened, messages go to standard error, and the first says why.
pub fn init(source: &Source) -> Result<(), ConfigError> {
    let config = LogConfig::load(source)?;
    let (writer, is_terminal, failure) = match destination(&config.log_file) {
        Destination::Stdout => (BoxMakeWriter::new(io::stdout), io::stdout().is_terminal(), None),
        Destination::Stderr => (BoxMakeWriter::new(io::stderr), io::stderr().is_terminal(), None),
        Destination::File(path) => match File::options().create(true).append(true).open(&path) {
            Ok(file) => (BoxMakeWriter::new(Mutex::new(file)), false, None),
            Err(e) => (BoxMakeWriter::new(io::stderr), io::stderr().is_terminal(), Some((path, e))),
        },
    };
    let subscriber = fmt::Subscriber::builder()
        .with_max_level(config.log_level.filter())
        .with_writer(writer)
        .with_ansi(is_terminal)
        // It would tell of a line that cannot be written by `eprintln!`, which then panics.
        .log_internal_errors(false)
        .event_format(limit::Limited::new(fmt::format().with_target(true), config.log_rate))
        .finish();
    // An error here means that the program brought its own logger: that one is right.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if let Some((path, e)) = failure {
        tracing::warn!("UCX_LOG_FILE={}: cannot open {path}: {e}", config.log_file);
    }
    Ok(())
}

/// Writes a line to standard error, at once. Drops the line where it cannot be written.
pub fn stderr_line(text: std::fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// As `eprintln!`, which panics where standard error cannot be written: here the line is dropped.
#[macro_export]
macro_rules! stderr_line {
    ($($text:tt)*) => {
        $crate::trace::stderr_line(::std::format_args!($($text)*))
    };
}

#[derive(Debug, PartialEq, Eq)]
enum Destination {
    Stdout,
    Stderr,
    File(String),
}

fn destination(text: &str) -> Destination {
    match text {
        "" | "stderr" => Destination::Stderr,
        "stdout" => Destination::Stdout,
        path => Destination::File(expand_path(path.strip_prefix("file:").unwrap_or(path))),
    }
}

/// Replaces `%p` by the process id, `%h` by the host's name, `%e` by the program's, `%i` by the user id.
pub fn expand_path(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        let text = match after.as_bytes().first() {
            Some(b'p') => std::process::id().to_string(),
            Some(b'h') => crate::sys::host::hostname(),
            Some(b'e') => program(),
            Some(b'i') => rustix::process::geteuid().as_raw().to_string(),
            _ => {
                out.push('%');
                rest = after;
                continue;
            }
        };
        out.push_str(&text);
        rest = &after[1..];
    }
    out + rest
}

fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_map_and_typos_are_errors() {
        let level = |text| LogConfig::load(&Source::empty().with("UCX_LOG_LEVEL", text)).map(|c| c.log_level);
        assert_eq!(level("DEBUG").unwrap().filter(), LevelFilter::DEBUG);
        assert_eq!(level("poll").unwrap().filter(), LevelFilter::TRACE);
        assert_eq!(level("fatal").unwrap().filter(), LevelFilter::OFF, "failures are not fatal messages");
        assert_eq!(level("error").unwrap().filter(), LevelFilter::ERROR);
        assert_eq!(LogConfig::default().log_level.filter(), LevelFilter::WARN);
        let err = init(&Source::empty().with("UCX_LOG_LEVEL", "loud")).unwrap_err().to_string();
        assert!(err.starts_with("UCX_LOG_LEVEL=loud (override): expected one of fatal, error"), "{err}");
    }

    #[test]
    fn log_files_have_names_with_process_and_host() {
        let file = |path: String| Destination::File(path);
        assert_eq!(destination(""), Destination::Stderr);
        assert_eq!(destination("stdout"), Destination::Stdout);
        let (pid, host) = (std::process::id(), crate::sys::host::hostname());
        assert_eq!(destination("/tmp/%h/ucx.%p.log"), file(format!("/tmp/{host}/ucx.{pid}.log")));
        assert_eq!(destination("file:a%%p%"), file(format!("a%{pid}%")));
        assert_eq!(
            expand_path("%x %e %i"),
            format!("%x {} {}", program(), rustix::process::geteuid().as_raw())
        );
    }

    #[test]
    fn init_twice_is_fine() {
        assert_eq!(init(&Source::empty()), Ok(()));
        assert_eq!(init(&Source::empty()), Ok(()));
    }
}
