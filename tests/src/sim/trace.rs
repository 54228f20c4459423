//! What happens in a run, in order: a digest of it always, and its text when asked for.
//! Written by the world at everything it does or sees. Never influences the run.

use std::fmt::Arguments;

/// Whether a run tells what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verbosity {
    /// A digest only.
    Quiet,
    /// Every event, on standard output.
    Verbose,
}

/// The events of one run.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    digest: u64,
    verbosity: Verbosity,
}

impl Trace {
    /// Nothing has happened.
    pub fn new(verbosity: Verbosity) -> Trace {
        Trace { digest: 0xcbf2_9ce4_8422_2325, verbosity }
    }

    /// Something happens: `what` (kind of event, who, numbers) goes into the digest, `text` is for people.
    pub fn record(&mut self, what: &[u64], text: Arguments<'_>) {
        for word in what {
            self.digest = crate::pattern::mix(self.digest ^ word);
        }
        if self.verbosity == Verbosity::Verbose {
            println!("{text}");
        }
    }

    /// Of all events so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}
