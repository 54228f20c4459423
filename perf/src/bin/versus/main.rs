//! Ours beside UCX or libfabric, in one run: `versus` starts our program and the other alternately, both
//! sides pinned to the same two cores, and prints the medians and their ratio.
//!
//! A figure of this program is a ratio of two programs that ran within seconds of each other; the absolute
//! numbers beside it belong to the machine of that minute.

mod curves;
mod fabric;
mod rows;
mod run;
mod scale;

use clap::{Parser, ValueEnum};
use perf::figure::{Figure, Line, three_digits};
use rows::{COUNT_ROWS, LIBFABRIC_ROWS, Metric, Row, SCALE_ROWS, UCX_ROWS};
use run::{Error, Ours, Theirs, Ucx};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// What ours is put beside.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Against {
    /// UCX's ucx_perftest, over shared memory
    Ucx,
    /// libfabric's EFA provider, on the software EFA device
    Libfabric,
    /// UCX again: threads, endpoints, idle progress, addresses, memory
    Scale,
    /// libfabric again: instructions per eager message, by callgrind
    Instructions,
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
    /// Save the figures here too, for `figures`.
    #[arg(long, value_name = "FILE.json")]
    save: Option<PathBuf>,
    /// A sentence to be saved with them, such as where and when.
    #[arg(long, requires = "save")]
    remark: Option<String>,
    /// Save both sides here too, as ucx-perftest --plot --with reads them.
    #[arg(long, value_name = "FOLDER")]
    curves: Option<PathBuf>,
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

fn cores(s: &str) -> Result<(u32, u32), String> {
    let (a, b) = s.split_once(',').ok_or("expected two core numbers, as in 0,1")?;
    let num = |x: &str| x.trim().parse().map_err(|_| format!("'{x}' is not a core number"));
    Ok((num(a)?, num(b)?))
}

fn main() -> ExitCode {
    let args = Args::parse();
    match versus(&args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("versus: {failed} rows failed");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("versus: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Answers how many rows failed: one does not keep the others from being measured.
fn versus(args: &Args) -> Result<usize, Error> {
    let ours = Ours::find(args.ours.clone(), args.cores);
    let ucx = || Ucx::find(args.ucx.clone(), args.cores, args.ucx_tls.clone());
    let (theirs, rows): (Box<dyn Theirs>, _) = match args.against {
        Against::Ucx => (Box::new(ucx()?), UCX_ROWS),
        Against::Scale => {
            (Box::new(scale::Scale::find(ucx()?, args.cores, args.ucx_tls.clone())?), SCALE_ROWS)
        }
        Against::Libfabric => (Box::new(fabric::Libfabric::find(args.cores)?), LIBFABRIC_ROWS),
        Against::Instructions => (Box::new(fabric::Libfabric::find(args.cores)?), COUNT_ROWS),
    };
    // A count is the same every time.
    let pairs = if args.quick || args.against == Against::Instructions { 1 } else { args.pairs };
    let scale = if args.quick { 10 } else { 1 };
    let how = match pairs {
        1 => "One run of each".into(),
        n => format!("Medians of {n} alternating pairs"),
    };
    let note = format!("{how}; {}; {}.", theirs.describe(), ours.describe());
    let chosen = rows.iter().filter(|r| args.only.as_deref().is_none_or(|o| r.name.contains(o)));
    let (mut figures, mut failed) = (Vec::new(), 0);
    for row in chosen {
        match measure(&ours, &*theirs, row, pairs, scale) {
            Ok(figure) => {
                show(args, &figure, theirs.as_ref());
                figures.push((row, figure));
                save(args, &figures, &note)?;
            }
            Err(e) => {
                eprintln!("versus: {}: {e}", row.name);
                failed += 1;
            }
        }
    }
    if !args.json {
        println!("{note}");
    }
    if let Some(folder) = &args.curves {
        curves::save(folder, &figures)?;
    }
    Ok(failed)
}

/// After each row: whoever is stopped leaves what it has.
fn save(args: &Args, figures: &[(&Row, Figure)], note: &str) -> Result<(), Error> {
    let Some(path) = &args.save else { return Ok(()) };
    let mut lines: Vec<Line> = figures.iter().map(|(_, f)| Line::Figure(f.clone())).collect();
    let remark = args.remark.as_deref().map_or_else(String::new, |r| format!(" {r}"));
    lines.push(Line::Note { note: format!("{note}{remark}") });
    let text: String = lines
        .iter()
        .map(|l| serde_json::to_string(l).unwrap_or_else(|e| unreachable!("plain structs: {e}")) + "\n")
        .collect();
    std::fs::write(path, text).map_err(|source| Error::File { path: path.display().to_string(), source })
}

/// A line as soon as it is known: a whole table takes minutes.
fn show(args: &Args, f: &Figure, theirs: &dyn Theirs) {
    if args.json {
        println!("{}", serde_json::to_string(f).unwrap_or_else(|e| unreachable!("a plain struct: {e}")));
    } else {
        println!(
            "{:<40} ours {:>7}  {} {:>7} {:<12}  ratio {:.2} ({:.2} to {:.2}), {} is better",
            f.row,
            three_digits(f.ours),
            theirs.name(),
            three_digits(f.theirs),
            f.unit,
            f.ratio,
            f.ratio_min,
            f.ratio_max,
            f.better
        );
    }
    let _ = std::io::stdout().flush();
}

fn measure(
    ours: &Ours,
    theirs: &dyn Theirs,
    row: &'static Row,
    pairs: u32,
    scale: u64,
) -> Result<Figure, Error> {
    // A length is a length.
    let pairs = if row.metric == Metric::Address { 1 } else { pairs };
    let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        of_ours.push(theirs.ours(ours, row, scale)?);
        of_theirs.push(theirs.run(row, scale)?);
    }
    let ratios: Vec<f64> = of_ours.iter().zip(&of_theirs).map(|(a, b)| a / b).collect();
    Ok(Figure {
        row: row.name.into(),
        unit: row.metric.unit().into(),
        ours: median(&of_ours),
        against: theirs.name(),
        theirs: median(&of_theirs),
        ratio: median(&ratios),
        ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        pairs: ratios.len(),
        better: row.metric.better().into(),
    })
}

fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let mid = v.len() / 2;
    if v.len() % 2 == 1 { v[mid] } else { (v[mid - 1] + v[mid]) / 2.0 }
}
