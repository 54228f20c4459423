//! Failures of a traffic run: a violation, an unexpected error, or a partner that is gone. Printed by the
//! binary.

use super::plan::{Message, Receive};
use crate::partner::PartnerError;
use crate::pattern::Mismatch;
use std::time::Duration;

/// A run that did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The context or worker does not open.
    #[error("{0}")]
    Open(#[from] uct::api::OpenError),
    /// A configuration value is invalid.
    #[error("{0}")]
    Config(#[from] ucs::config::ConfigError),
    /// The partner's address does not connect.
    #[error("{0}")]
    Connect(#[from] ucp::ConnectError),
    /// The exchange with the partner process failed.
    #[error("{0}")]
    Partner(#[from] PartnerError),
    /// An operation ended with an unexpected error.
    #[error("{what}: {error}")]
    Reported {
        /// The operation.
        what: String,
        /// The error.
        error: ucp::Error,
    },
    /// A result that the contract forbids.
    #[error("CONTRACT VIOLATION: {0}")]
    Violation(String),
    /// Nothing moves and the partner lives.
    #[error("STALLED: nothing moved for {after:?}; {state}")]
    Stalled {
        /// How long.
        after: Duration,
        /// State of the run.
        state: String,
    },
    /// The partner process ended long ago and no operation failed.
    #[error("partner process has ended, but no operation failed for {after:?}; {state}")]
    NotNotified {
        /// How long.
        after: Duration,
        /// State of the run.
        state: String,
    },
}

impl Failure {
    /// Whether an operation reported that the peer is gone.
    pub fn is_peer_gone(&self) -> bool {
        matches!(self, Failure::Reported { error: ucp::Error::PeerGone(_), .. })
    }

    /// A receive did not get its message.
    #[cold]
    pub fn wrong(
        what: &str,
        message: &Message,
        receive: Option<&Receive>,
        got: &dyn std::fmt::Debug,
    ) -> Failure {
        let at = match receive {
            Some(r) => format!(" by tag {:#018x} mask {:#018x}", r.tag, r.mask),
            None => String::new(),
        };
        Failure::Violation(format!(
            "{what}{at}: expected message {} (tag {:#018x}, {} bytes, room {:?}), got {got:?}",
            message.seq, message.tag, message.len, message.short
        ))
    }

    /// A message's bytes differ.
    #[cold]
    pub fn damaged(message: &Message, mismatch: Mismatch) -> Failure {
        Failure::Violation(format!("message {} of {} bytes is damaged: {mismatch}", message.seq, message.len))
    }
}
