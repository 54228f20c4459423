//! Which of the tests of a run could not be done. One alone is the run's failure; of several each is told when it is found, and
//! the run goes on.

use tools_common::out::printable;

use crate::fail::{Failure, TOOL};

/// Counts.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Tests that have begun.
    pub started: usize,
    all: usize,
    failed: usize,
    only: Option<Failure>,
}

impl Outcome {
    /// So many are to be done.
    pub fn expect_tests(&mut self, tests: usize) {
        self.all = tests;
    }

    /// One cannot be; `tells`: somebody reads it.
    pub fn failed(&mut self, label: Option<&str>, failure: Failure, tells: bool) {
        self.failed += 1;
        match label {
            Some(label) if self.all > 1 => {
                if tells {
                    // Both may be a peer's words.
                    eprintln!("{TOOL}: {}", printable(&format!("{label}: {failure}")));
                }
            }
            _ => self.only = Some(failure),
        }
    }

    /// What all has come to.
    pub fn outcome(&mut self) -> Result<(), Failure> {
        match (self.only.take(), self.failed) {
            (Some(only), _) => Err(only),
            (None, 0) => Ok(()),
            (None, failed) => Err(Failure::SomeTests { failed, all: self.all }),
        }
    }
}
