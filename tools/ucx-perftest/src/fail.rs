//! Errors of a run: one line and an exit status. Only `main` prints them.

use tools_common::boot::BootError;

pub const TOOL: &str = "ucx-perftest";

pub const USAGE: u8 = 129;
/// Exit status for a failed run: -1, as `ucx_perftest` has it.
pub const FAILED: u8 = 255;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line, a batch file or a configuration value is wrong.
    #[error("{0}")]
    Usage(String),
    /// The request cannot be done here; the text says what can.
    #[error("{0}")]
    Unsupported(String),
    /// The out-of-band connection failed.
    #[error(transparent)]
    Connection(#[from] BootError),
    /// A communication call or completion failed.
    #[error("{0}")]
    Run(String),
    /// `--validate` found an error.
    #[error("validation failed: {0}")]
    Validation(String),
    /// All sides know the failure, nothing was measured, and the next test can begin.
    #[error("{0}")]
    Agreed(Box<Failure>),
    /// Some of several tests failed; each failure has been printed.
    #[error("{failed} of {all} tests could not be done")]
    SomeTests { failed: usize, all: usize },
}

impl Failure {
    pub fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) => USAGE,
            Failure::Agreed(cause) => cause.status(),
            _ => FAILED,
        }
    }

    /// Whether the other side knows the failure.
    pub fn known_to_peer(&self) -> bool {
        matches!(self, Failure::Agreed(_)) || self.is_consequence()
    }

    /// Whether a connection was lost, and nothing said why.
    pub fn is_lost_connection(&self) -> bool {
        matches!(self, Failure::Connection(BootError::NoServer { .. } | BootError::Closed | BootError::Io(_)))
    }

    /// Whether another side's failure is the cause.
    pub fn is_consequence(&self) -> bool {
        match self {
            Failure::Agreed(cause) => cause.is_consequence(),
            other => {
                matches!(
                    other,
                    Failure::Connection(BootError::Closed | BootError::PeerAborted(..) | BootError::Io(..))
                )
            }
        }
    }
}

impl From<uct::api::Error> for Failure {
    fn from(e: uct::api::Error) -> Self {
        Failure::Run(e.to_string())
    }
}

impl From<uct::api::OpenError> for Failure {
    fn from(e: uct::api::OpenError) -> Self {
        Failure::Unsupported(e.to_string())
    }
}

impl From<uct::api::ConnectError> for Failure {
    fn from(e: uct::api::ConnectError) -> Self {
        Failure::Run(format!("cannot connect: {e}"))
    }
}

impl From<ucs::config::ConfigError> for Failure {
    fn from(e: ucs::config::ConfigError) -> Self {
        Failure::Usage(e.to_string())
    }
}

impl From<ucs::sys::CpuError> for Failure {
    fn from(e: ucs::sys::CpuError) -> Self {
        Failure::Usage(e.to_string())
    }
}

impl Failure {
    /// The cores of `-c` cannot be used.
    pub fn of_given_cores(e: &ucs::sys::CpuError) -> Failure {
        Failure::Usage(format!("-c: {e}"))
    }
}

impl From<ucs::sys::pmix::PmixError> for Failure {
    fn from(e: ucs::sys::pmix::PmixError) -> Self {
        Failure::Unsupported(format!("{e}; -P 0 starts without the launcher"))
    }
}
