//! versus: runs this library's benchmark and that of UCX or libfabric alternately on the same two cores, and
//! prints medians and their ratio. The ratio compares runs within a second of each other; absolute numbers
//! belong to the machine and the moment.

mod cases;
mod curves;
mod fabric;
mod paired_runs;
mod run;
mod scale;
mod stock;

use cases::{Case, INSTRUCTION_CASES, LIBFABRIC_CASES, SCALE_CASES, THREAD_CASES, UCX_CASES, UCX_SIZE_CASES};
use clap::{Parser, ValueEnum};
use paired_runs::{Limits, PairedRuns};
use perf::figure::{Figure, SavedLine, Sides, three_digits};
use run::{Error, Ours, Theirs, Ucx};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tools_common::out;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Against {
    /// UCX's ucx_perftest, over shared memory
    Ucx,
    /// One ucx_perftest, UCX's, with this library underneath and with its own
    Library,
    /// One ucx_perftest again: tag latency and bandwidth from 8 bytes to 4 MiB, for --curves
    LibrarySizes,
    /// libfabric's EFA provider, on the software EFA device
    Libfabric,
    /// UCX again: threads, endpoints, idle progress, addresses, memory
    Scale,
    /// UCX again: message rate of threads that share a worker, and of threads with a worker each
    Threads,
    /// libfabric again: instructions per eager message, by callgrind
    Instructions,
}

/// Runs ours and another's benchmark alternately on the same two cores and prints ratios.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Program that ours is compared with.
    #[arg(long, value_enum, default_value = "ucx")]
    against: Against,
    /// Most pairs of runs; 20 undisturbed runs of each side are enough.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=999))]
    pairs: u32,
    /// Seconds after which no further pair of a case begins.
    #[arg(long, default_value_t = 8, value_name = "N")]
    seconds: u64,
    /// One pair with a tenth of the iterations: checks that both run, says little about speed.
    #[arg(long)]
    quick: bool,
    /// The two cores, server first.
    #[arg(long, default_value = "0,1", value_parser = cores)]
    cores: (u32, u32),
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// One JSON object per case, instead of a table.
    #[arg(long)]
    json: bool,
    /// Save the figures here too, for `figures`.
    #[arg(long, value_name = "FILE.json")]
    save: Option<PathBuf>,
    /// A sentence saved with them, such as where and when.
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
    /// Where tools/install has put this library, for --against library.
    #[arg(long, default_value = "target/installed", value_name = "PREFIX")]
    prefix: PathBuf,
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
            ucs::stderr_line!("versus: {failed} measurements failed");
            ExitCode::FAILURE
        }
        Err(e) => {
            ucs::stderr_line!("versus: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the number of failed measurements; the others go on.
fn versus(args: &Args) -> Result<usize, Error> {
    let ours = Ours::find(args.ours.clone(), args.cores);
    let ucx = || Ucx::find(args.ucx.clone(), args.cores, args.ucx_tls.clone());
    let (theirs, cases): (Box<dyn Theirs>, _) = match args.against {
        Against::Ucx => (Box::new(ucx()?), UCX_CASES),
        Against::Library => (Box::new(stock::Stock::find(ucx()?, &args.prefix)?), UCX_CASES),
        Against::LibrarySizes => (Box::new(stock::Stock::find(ucx()?, &args.prefix)?), UCX_SIZE_CASES),
        Against::Scale | Against::Threads => {
            let cases = if args.against == Against::Scale { SCALE_CASES } else { THREAD_CASES };
            (Box::new(scale::Scale::find(ucx()?, args.cores, args.ucx_tls.clone())?), cases)
        }
        Against::Libfabric => (Box::new(fabric::Libfabric::find(args.cores)?), LIBFABRIC_CASES),
        Against::Instructions => (Box::new(fabric::Libfabric::find(args.cores)?), INSTRUCTION_CASES),
    };
    // Counts do not vary.
    let pairs = if args.quick || args.against == Against::Instructions { 1 } else { args.pairs };
    let scale = if args.quick { 10 } else { 1 };
    let limits = Limits { pairs, time: Duration::from_secs(args.seconds), scale };
    let mut pairs = PairedRuns::new(&ours, theirs.as_ref(), limits)?;
    let chosen: Vec<&Case> = cases
        .iter()
        // The one program has its memory, on either library.
        .filter(|case| args.against != Against::Library || !case.own)
        .filter(|case| args.only.as_deref().is_none_or(|only| case.name.contains(only)))
        .collect();
    if chosen.is_empty() {
        return Err(Error::NoCase(args.only.clone().unwrap_or_default()));
    }
    let (mut figures, mut failed) = (Vec::new(), 0);
    if !args.json {
        out::line(heading(&theirs.name()));
    }
    for case in chosen {
        match pairs.figure(case) {
            Ok(figure) => {
                out::line(if args.json { json(&figure) } else { line(&figure) });
                figures.push((case, figure));
                save(args, &figures, &note(args, &pairs, &ours, theirs.as_ref()))?;
            }
            Err(e) => {
                ucs::stderr_line!("versus: {}: {e}", case.name);
                failed += 1;
            }
        }
    }
    if !args.json {
        out::line(note(args, &pairs, &ours, theirs.as_ref()));
    }
    if let Some(folder) = &args.curves {
        curves::save(folder, &figures)?;
    }
    Ok(failed)
}

/// How the figures were taken.
fn note(args: &Args, pairs: &PairedRuns<'_>, ours: &Ours, theirs: &dyn Theirs) -> String {
    let how = if args.quick || args.pairs == 1 || args.against == Against::Instructions {
        "One run of each".into()
    } else {
        let (pairs, limit) = (args.pairs, pairs.low_latency_limit());
        format!(
            "Medians of up to {pairs} alternating runs: undisturbed ones had a low core-to-core latency, a cache line there and back \
             within {limit:.0} ns before and after; typical, or in brackets, are all"
        )
    };
    format!("{how}; {}; {}.", theirs.describe(), ours.describe())
}

/// Called after each case, so that an interrupted run leaves its figures.
fn save(args: &Args, figures: &[(&Case, Figure)], note: &str) -> Result<(), Error> {
    let Some(path) = &args.save else { return Ok(()) };
    let mut lines: Vec<SavedLine> = figures.iter().map(|(_, f)| SavedLine::Figure(f.clone())).collect();
    let remark = args.remark.as_deref().map_or_else(String::new, |r| format!(" {r}"));
    lines.push(SavedLine::Note { note: format!("{note}{remark}") });
    let text: String = lines.iter().map(|l| json(l) + "\n").collect();
    std::fs::write(path, text).map_err(|source| Error::File { path: path.display().to_string(), source })
}

fn json(plain: &impl serde::Serialize) -> String {
    serde_json::to_string(plain).unwrap_or_else(|e| unreachable!("a plain struct: {e}"))
}

fn heading(theirs: &str) -> String {
    format!(
        "{:<40} {:<12}  {:^28}  {:^28}\n{:<40} {:<12}  {:>8} {theirs:>11}  ratio  {:>8} {theirs:>11}  ratio",
        "", "", "undisturbed", "typical", "", "", "ours", "ours"
    )
}

/// A line of the table, printed at once: a whole table takes minutes.
fn line(f: &Figure) -> String {
    let text = |sides: &Sides| {
        let (ours, theirs) = (three_digits(sides.ours), three_digits(sides.theirs));
        format!("{ours:>8} {theirs:>11} {:>6.2}", sides.ratio)
    };
    let limit = f.undisturbed.as_ref();
    let (undisturbed, runs) =
        (limit.map_or_else(String::new, text), limit.map_or([0; 2], |sides| sides.runs));
    format!(
        "{:<40} {:<12}  {undisturbed:>27}  {:>27}  {} is better; undisturbed {} and {} of {} runs",
        f.name,
        f.unit,
        text(&f.typical),
        f.better,
        runs[0],
        runs[1],
        f.typical.runs[0]
    )
}
