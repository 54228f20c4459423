//! The events of a run in order: always a digest, and their text on request. Never influences the run.

use std::fmt::Arguments;

/// Whether a run prints its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verbosity {
    /// Digest only.
    Quiet,
    /// Prints every event on standard output.
    Verbose,
}

/// The events of one run.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    digest: u64,
    verbosity: Verbosity,
}

impl Trace {
    /// An empty trace.
    pub fn new(verbosity: Verbosity) -> Trace {
        Trace { digest: 0xcbf2_9ce4_8422_2325, verbosity }
    }

    /// Records an event: the numbers `what` go into the digest, `text` is for people.
    pub fn record(&mut self, what: &[u64], text: Arguments<'_>) {
        for word in what {
            self.digest = crate::pattern::mix(self.digest ^ word);
        }
        if self.verbosity == Verbosity::Verbose {
            println!("{text}");
        }
    }

    /// The digest of all events so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}
