//! `--doctor`: what is missing or slow on this machine, and what to do. Reads system files and limits, and
//! opens each transport once. Changes nothing and needs no privilege.

mod checks;
mod machine;

use std::fmt::Write as _;

use serde::Serialize;
use ucs::config::Source;

use machine::Machine;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Good,
    /// It works, but slower than it could.
    Slow,
    Bad,
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    /// Remedy and reason; empty if the check is good.
    #[serde(skip_serializing_if = "String::is_empty")]
    advice: String,
}

impl Finding {
    fn good(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, verdict: Verdict::Good, found: found.into(), advice: String::new() }
    }

    fn slow(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { check, verdict: Verdict::Slow, found: found.into(), advice: advice.into() }
    }

    fn bad(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { check, verdict: Verdict::Bad, found: found.into(), advice: advice.into() }
    }
}

/// Names in the environment or file that have no effect.
fn names(source: &Source) -> Finding {
    let tables = tools_common::settings::tables();
    let (unknown, unused) = (source.unknown_keys(&tables), source.unused_keys(&tables));
    let listed: Vec<String> = unknown.iter().map(ToString::to_string).collect();
    match (unknown.is_empty(), unused.is_empty()) {
        (false, _) => Finding::slow("configuration", listed.join("; "), "no effect: correct or unset it"),
        (true, true) => {
            Finding::good("configuration", "every UCX_* and SOFTEFA_* key is known and has a good value")
        }
        (true, false) => Finding::good(
            "configuration",
            format!("every value is good; settings of UCX without effect here: {}", unused.join(", ")),
        ),
    }
}

/// Runs all checks. `config`: the configuration, or the error of reading it.
pub fn run_checks(config: Result<Source, String>) -> Vec<Finding> {
    let machine = Machine::here();
    let mut all = checks::machine(&machine);
    match config {
        Ok(source) => {
            all.push(names(&source));
            all.extend(checks::transports(&source));
        }
        Err(why) => {
            all.push(Finding::bad("configuration", why, "correct or unset it: no program starts with it"));
            all.extend(checks::transports(&Source::empty()));
        }
    }
    all
}

pub fn has_failures(all: &[Finding]) -> bool {
    all.iter().any(|f| f.verdict == Verdict::Bad)
}

pub fn text(all: &[Finding]) -> String {
    let mut out = String::new();
    for f in all {
        let mark = match f.verdict {
            Verdict::Good => "good",
            Verdict::Slow => "SLOW",
            Verdict::Bad => "BAD ",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# {mark}  {:<16} {}", f.check, f.found);
        if !f.advice.is_empty() {
            let _ = writeln!(out, "#       {:<16} -> {}", "", f.advice);
        }
    }
    let count = |verdict| all.iter().filter(|f| f.verdict == verdict).count();
    let (slow, bad) = (count(Verdict::Slow), count(Verdict::Bad));
    let _ = match (slow, bad) {
        (0, 0) => writeln!(out, "#\n# Nothing is missing."),
        _ => writeln!(out, "#\n# {bad} missing or broken, {slow} slower than need be."),
    };
    out
}
