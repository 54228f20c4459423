//! Counts tests and failures of a run. The failure of a single test is the run's; of several tests each
//! failure is printed, and the run goes on.

use tools_common::out::printable;

use crate::fail::{Failure, TOOL};

#[derive(Debug, Default)]
pub struct Outcome {
    pub started: usize,
    all: usize,
    failed: usize,
    only: Option<Failure>,
}

impl Outcome {
    pub fn expect_tests(&mut self, tests: usize) {
        self.all = tests;
    }

    /// A test failed; `prints`: this process reports it.
    pub fn failed(&mut self, label: Option<&str>, failure: Failure, tells: bool) {
        self.failed += 1;
        match label {
            Some(label) if self.all > 1 => {
                if tells {
                    // Both may be text of the peer.
                    ucs::stderr_line!("{TOOL}: {}", printable(&format!("{label}: {failure}")));
                }
            }
            _ => self.only = Some(failure),
        }
    }

    pub fn outcome(&mut self) -> Result<(), Failure> {
        match (self.only.take(), self.failed) {
            (Some(only), _) => Err(only),
            (None, 0) => Ok(()),
            (None, failed) => Err(Failure::SomeTests { failed, all: self.all }),
        }
    }
}
