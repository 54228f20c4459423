//! A line on standard error, rewritten once a second while a measurement runs. Only on a terminal, and only
//! where standard output shows nothing until the end; erased before anything else is printed.

use std::io::{IsTerminal as _, Write as _};

use tools_common::meter::Reading;

use crate::spec::Spec;

#[derive(Debug, Default)]
pub struct ProgressLine {
    on: bool,
    shown: std::cell::Cell<bool>,
}

impl ProgressLine {
    pub fn new(wanted: bool) -> ProgressLine {
        ProgressLine { on: wanted && std::io::stderr().is_terminal(), shown: Default::default() }
    }

    pub fn show(&self, spec: &Spec, reading: Reading) {
        if self.on {
            // A terminal that is gone needs no error message.
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{}", line(spec, reading));
            self.shown.set(true);
        }
    }

    pub fn clear(&self) {
        if self.shown.replace(false) {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn line(spec: &Spec, reading: Reading) -> String {
    let done = (reading.iters as f64 / spec.iters as f64 * 100.0).min(100.0);
    let rate = if reading.overall > 0.0 { 1e-6 / reading.overall } else { 0.0 };
    let label = spec.label().map_or(String::new(), |label| format!("{label}: "));
    format!(
        "{label}{} of {} bytes: {done:.0} %, {:.3} usec, {rate:.3} M/s",
        spec.test.name(),
        spec.size(),
        reading.overall * 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Sizes, TestArgs};
    use crate::spec::Test;

    #[test]
    fn progress_line_has_percentage_and_rate() {
        let args = TestArgs {
            test: Some(Test::TagLat),
            size: Some(Sizes::Range(8, 16)),
            iters: Some(1000),
            ..TestArgs::default()
        };
        let spec = args.specs(&[]).unwrap().remove(1);
        let reading = Reading { iters: 250, overall: 2e-6, ..Reading::default() };
        assert_eq!(line(&spec, reading), "16: tag_lat of 16 bytes: 25 %, 2.000 usec, 0.500 M/s");
    }
}
