//! Runs seeds of the simulation. A failing seed is printed with the violation; `sim --seed S -v` replays it
//! with every event. `tests/README.md` says more.

use clap::Parser;
use std::process::ExitCode;
use std::time::Instant;
use suites::sim::{self, Limits, Outcome, Verbosity};

/// Runs seeds of a simulated job: real workers and interfaces, one thread, virtual time.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Number of seeds, from --first on.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Replay this seed only.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Workers of the job; 0 draws two to eight.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    workers: u32,
    /// Messages each worker sends.
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    messages: u64,
    /// Print every event.
    #[arg(long, short)]
    verbose: bool,
    /// Print in how many seeds each packet type and each fault occurred; fail if one never did.
    #[arg(long)]
    coverage: bool,
    /// Print one JSON object at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let limits = Limits { workers: args.workers as usize, messages: args.messages, ..Limits::default() };
    let verbosity = if args.verbose { Verbosity::Verbose } else { Verbosity::Quiet };
    let seeds = match args.seed {
        Some(seed) => seed..seed + 1,
        None => args.first..args.first + args.seeds,
    };
    let (start, mut sum, mut failed) = (Instant::now(), Outcome::default(), Vec::new());
    for seed in seeds.clone() {
        match sim::run(seed, limits, verbosity) {
            Ok(outcome) => add(&mut sum, &outcome),
            Err(failure) => {
                eprintln!("sim: FAILED {failure}");
                eprintln!(
                    "sim: replay with: sim --seed {seed} --workers {} --messages {} -v",
                    args.workers, args.messages
                );
                failed.push(seed);
            }
        }
    }
    report(&args, seeds.end - seeds.start, &sum, &failed, start.elapsed().as_secs_f64());
    let missing = sum.coverage.missing();
    if args.coverage && !missing.is_empty() {
        eprintln!("sim: packet types and faults that never came: {}", missing.join(", "));
    }
    match failed.is_empty() && (missing.is_empty() || !args.coverage) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn add(sum: &mut Outcome, one: &Outcome) {
    sum.coverage.add_run(one);
    sum.digest = suites::pattern::mix(sum.digest ^ one.digest);
    sum.steps += one.steps;
    sum.messages += one.messages;
    sum.bytes += one.bytes;
    sum.cancelled += one.cancelled;
    sum.withdrawn += one.withdrawn;
    sum.truncated += one.truncated;
    sum.unexpected += one.unexpected;
    sum.out_of_order += one.out_of_order;
    sum.queue_full += one.queue_full;
    sum.virtual_ns += one.virtual_ns;
    sum.workers += one.workers;
    sum.ams += one.ams;
    sum.streamed += one.streamed;
    sum.rma_ops += one.rma_ops;
    sum.atomics += one.atomics;
    sum.closed += one.closed;
    sum.discarded += one.discarded;
    sum.nacked += one.nacked;
    sum.peer_failed += one.peer_failed;
    sum.died += one.died;
    sum.disconnected += one.disconnected;
    sum.force_closed += one.force_closed;
    sum.timed_out += one.timed_out;
    sum.not_ready += one.not_ready;
    sum.peer_errors += one.peer_errors;
}

fn report(args: &Args, seeds: u64, sum: &Outcome, failed: &[u64], seconds: f64) {
    if args.json {
        let line = serde_json::json!({
            "seeds": seeds, "failed": failed, "workers": args.workers, "seconds": seconds,
            "messages": sum.messages, "bytes": sum.bytes, "steps": sum.steps, "digest": format!("{:016x}", sum.digest),
            "unexpected": sum.unexpected, "out_of_order": sum.out_of_order, "truncated": sum.truncated,
            "active_messages": sum.ams, "streamed": sum.streamed, "one_sided": sum.rma_ops, "atomics": sum.atomics,
            "closed": sum.closed, "discarded": sum.discarded, "nacked": sum.nacked, "died": sum.died,
            "bereaved": sum.peer_failed, "never_came": sum.coverage.missing(), "cancelled": sum.cancelled, "withdrawn": sum.withdrawn, "queue_full": sum.queue_full,
        });
        println!("{line}");
        return;
    }
    println!(
        "{seeds} seeds, {} failed: {} workers, {} messages, {:.1} MB, {} steps, {:.2} s, digest {:016x}",
        failed.len(),
        sum.workers,
        sum.messages,
        sum.bytes as f64 / 1e6,
        sum.steps,
        seconds,
        sum.digest
    );
    println!(
        "  unexpected {}, packets out of order {}, truncated {}, receives cancelled {}, sends withdrawn {}, queue full {}",
        sum.unexpected, sum.out_of_order, sum.truncated, sum.cancelled, sum.withdrawn, sum.queue_full
    );
    println!(
        "  active messages {}, streamed {:.1} MB, one-sided {}, atomics on slots {}, endpoints closed {}, discarded {}",
        sum.ams,
        sum.streamed as f64 / 1e6,
        sum.rma_ops,
        sum.atomics,
        sum.closed,
        sum.discarded
    );
    println!(
        "  sent after a READ_NACK {}, workers died {}, endpoints closed by force {}, pairs that lost each other {}, operations ended by that {}",
        sum.nacked, sum.died, sum.force_closed, sum.disconnected, sum.peer_failed
    );
    if args.coverage {
        print!("{}", sum.coverage);
    }
    if !failed.is_empty() {
        println!("  failed seeds: {failed:?}");
    }
}
