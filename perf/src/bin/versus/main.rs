//! Ours beside UCX or libfabric, in one run: `versus` starts our `ucx-perftest` and the other alternately, both
//! sides pinned to the same two cores, and prints the medians and their ratio.
//!
//! A figure of this program is a ratio of two programs that ran within seconds of each other; the absolute
//! numbers beside it belong to the machine of that minute.

mod fabric;
mod rows;
mod run;

use clap::{Parser, ValueEnum};
use comfy_table::{Cell, CellAlignment, Table, presets};
use rows::{LIBFABRIC_ROWS, Row, UCX_ROWS};
use run::{Ours, Theirs, Ucx};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// What ours is put beside.
#[derive(Clone, Copy, ValueEnum)]
enum Against {
    /// The distribution's ucx_perftest, over shared memory
    Ucx,
    /// The distribution's libfabric: its EFA provider on the software EFA device
    Libfabric,
}

/// Runs ours and another's benchmark alternately on the same two cores and prints ratios.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// What ours is put beside.
    #[arg(long, value_enum, default_value = "ucx")]
    against: Against,
    /// Pairs of runs; the median of each side is printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pairs: u32,
    /// One pair with a tenth of the iterations: checks that both run, says little about speed.
    #[arg(long)]
    quick: bool,
    /// The two cores, server first.
    #[arg(long, default_value = "0,1", value_parser = cores)]
    cores: (u32, u32),
    /// Only rows whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// One JSON object a row, instead of a table.
    #[arg(long)]
    json: bool,
    /// UCX's program.
    #[arg(long, default_value = "ucx_perftest")]
    ucx: PathBuf,
    /// Ours; default: beside this program.
    #[arg(long)]
    ours: Option<PathBuf>,
    /// UCX_TLS for UCX's ucp tests.
    #[arg(long, default_value = "posix,cma,self")]
    ucx_tls: String,
}

/// One line of the result.
#[derive(Serialize)]
struct Line {
    row: &'static str,
    unit: &'static str,
    ours: f64,
    against: &'static str,
    theirs: f64,
    /// Ours over theirs: latency below 1 is better, rate above 1 is better.
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    pairs: usize,
}

fn cores(s: &str) -> Result<(u32, u32), String> {
    let (a, b) = s.split_once(',').ok_or("expected two core numbers, as in 0,1")?;
    let num = |x: &str| x.trim().parse().map_err(|_| format!("'{x}' is not a core number"));
    Ok((num(a)?, num(b)?))
}

fn main() -> ExitCode {
    let args = Args::parse();
    match versus(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("versus: {e}");
            ExitCode::FAILURE
        }
    }
}

fn versus(args: &Args) -> Result<(), run::Error> {
    let ours = Ours::find(args.ours.clone(), args.cores);
    let (theirs, rows): (Box<dyn Theirs>, _) = match args.against {
        Against::Ucx => (Box::new(Ucx::find(args.ucx.clone(), args.cores, args.ucx_tls.clone())?), UCX_ROWS),
        Against::Libfabric => (Box::new(fabric::Libfabric::find(args.cores)?), LIBFABRIC_ROWS),
    };
    let pairs = if args.quick { 1 } else { args.pairs };
    let scale = if args.quick { 10 } else { 1 };
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["measurement", "unit", "ours", theirs.name(), "ratio", "ratio of each pair", "better"]);
    let chosen = rows.iter().filter(|r| args.only.as_deref().is_none_or(|o| r.name.contains(o)));
    for row in chosen {
        let line = measure(&ours, &*theirs, row, pairs, scale)?;
        if args.json {
            println!("{}", serde_json::to_string(&line).expect("plain struct"));
            continue;
        }
        let number = |v: f64| Cell::new(run::three_digits(v)).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(line.row),
            Cell::new(line.unit),
            number(line.ours),
            number(line.theirs),
            Cell::new(format!("{:.2}", line.ratio)).set_alignment(CellAlignment::Right),
            Cell::new(format!("{:.2} .. {:.2}", line.ratio_min, line.ratio_max)),
            Cell::new(row.metric.better()),
        ]);
    }
    if !args.json {
        println!("{table}");
        println!("Medians of {pairs} alternating pairs; {}; {}.", theirs.describe(), ours.describe());
    }
    Ok(())
}

fn measure(
    ours: &Ours,
    theirs: &dyn Theirs,
    row: &'static Row,
    pairs: u32,
    scale: u64,
) -> Result<Line, run::Error> {
    let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        of_ours.push(theirs.ours(ours, row, scale)?);
        of_theirs.push(theirs.run(row, scale)?);
    }
    let ratios: Vec<f64> = of_ours.iter().zip(&of_theirs).map(|(a, b)| a / b).collect();
    Ok(Line {
        row: row.name,
        unit: row.metric.unit(),
        ours: median(&of_ours),
        against: theirs.name(),
        theirs: median(&of_theirs),
        ratio: median(&ratios),
        ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        pairs: ratios.len(),
    })
}

fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let mid = v.len() / 2;
    if v.len() % 2 == 1 { v[mid] } else { (v[mid - 1] + v[mid]) / 2.0 }
}
