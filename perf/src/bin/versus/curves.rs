//! Saves figures over the message size as `ucx-perftest --json` would, for its `--plot`.

use std::path::Path;

use perf::figure::Figure;
use serde_json::json;

use super::cases::{Case, Metric};
use super::run::Error;

/// The test of `ucx-perftest` that a case corresponds to.
fn test(case: &Case) -> &str {
    match case.test {
        "put_lat" => "ucp_put_lat",
        "put_bw" => "ucp_put_bw",
        "get_lat" => "ucp_get",
        "fadd" => "ucp_fadd",
        other => other,
    }
}

/// A result as `ucx-perftest --plot` reads it; `program` is the name in the legend.
fn point(case: &Case, program: &str, value: f64) -> String {
    let (time, bandwidth) = match case.metric {
        Metric::Latency => (value, 0.0),
        Metric::Rate => (0.0, value * 1e6 * case.size as f64 / 1_048_576.0),
        _ => (0.0, value),
    };
    let line = json!({
        "test": test(case), "transport": case.tls, "size": case.size, "bandwidth_mbs": bandwidth,
        "latency_us": {"p50": time, "avg": time}, "program": program,
    });
    line.to_string()
}

/// Writes `ours.json` and a file named after the other program into `folder`.
pub fn save(folder: &Path, figures: &[(&Case, Figure)]) -> Result<(), Error> {
    let Some((_, first)) = figures.first() else { return Ok(()) };
    let theirs = first.against.split(' ').next().unwrap_or("theirs");
    type Side = fn(&Figure) -> f64;
    let sides: [(&str, &str, Side); 2] =
        [("ours", "this library", |f| f.best().ours), (theirs, &first.against, |f| f.best().theirs)];
    std::fs::create_dir_all(folder)
        .map_err(|source| Error::File { path: folder.display().to_string(), source })?;
    for (name, program, side) in sides {
        let lines: Vec<String> = figures.iter().map(|(case, f)| point(case, program, side(f))).collect();
        let path = folder.join(format!("{name}.json"));
        std::fs::write(&path, lines.join("\n") + "\n")
            .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    }
    Ok(())
}
