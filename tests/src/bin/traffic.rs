//! Two processes exchange validated tagged messages of mixed sizes in both directions. The process that is
//! started starts the other one. A failure prints the seed that repeats the run, and the exit status is 1.

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use suites::traffic::mesh::{self, Place};
use suites::traffic::{self, Options, Report};

/// Two processes pass validated tagged messages of mixed sizes in both directions at once.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Transports, as UCX_TLS takes them.
    #[arg(long, default_value = "posix")]
    tls: String,
    /// Messages each way.
    #[arg(long, short = 'n', default_value_t = 1_000_000)]
    messages: u64,
    /// Seed of the run: the same seed sends the same messages.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sends in flight, and receives open before the next 64 are posted.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    window: u32,
    /// Longest message, bytes.
    #[arg(long, default_value_t = suites::sizes::MAX as u32, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    max: u32,
    /// Puts each way, as many gets, and twice as many atomics, all checked.
    #[arg(long, default_value_t = 0)]
    rma: u64,
    /// Command that starts the other process, such as `ip netns exec NAME`; words are separated by spaces.
    #[arg(long, default_value = "")]
    launcher: String,
    /// Command that starts a further process, on another host; may be repeated. All processes talk to all.
    #[arg(long = "with", value_name = "COMMAND")]
    others: Vec<String>,
    #[arg(long, hide = true, requires = "procs")]
    place: Option<usize>,
    #[arg(long, hide = true)]
    procs: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Leave the processes to the scheduler instead of pinning them to two cpus.
    #[arg(long)]
    unpinned: bool,
    /// Sleep until something comes when nothing has moved for a while, instead of polling on.
    #[arg(long)]
    sleep: bool,
    #[arg(long, hide = true, default_value = "parent")]
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Parent,
    Child,
}

impl Args {
    fn options(&self) -> Options {
        Options {
            tls: self.tls.clone(),
            messages: self.messages,
            seed: self.seed,
            window: self.window as usize,
            max: self.max as usize,
            rma: self.rma,
            launcher: words_of(&self.launcher),
            pinned: !self.unpinned,
            sleeps: self.sleep,
        }
    }

    fn of_child(&self) -> Vec<String> {
        let mut args = vec![
            "--role=child".into(),
            format!("--tls={}", self.tls),
            format!("--messages={}", self.messages),
            format!("--seed={}", self.seed),
            format!("--window={}", self.window),
            format!("--max={}", self.max),
            format!("--rma={}", self.rma),
        ];
        args.extend(self.unpinned.then(|| "--unpinned".to_owned()));
        args.extend(self.sleep.then(|| "--sleep".to_owned()));
        args
    }
}

fn words_of(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Why a peer is lost is in the log.
    if let Err(error) = ucs::config::Source::from_env().and_then(|source| ucs::trace::init(&source)) {
        eprintln!("traffic: {error}");
        return ExitCode::FAILURE;
    }
    let end = match args.role {
        Role::Parent if !args.others.is_empty() => {
            let launchers: Vec<_> = args.others.iter().map(|words| words_of(words)).collect();
            mesh::first(&args.options(), &launchers, &args.of_child()).map(|all| print_all(&args, &all))
        }
        Role::Parent => traffic::parent(&args.options(), &args.of_child())
            .map(|(mine, theirs)| print(&args, &mine, &theirs)),
        Role::Child => match (args.place, args.procs) {
            (Some(me), Some(procs)) => mesh::other(&args.options(), Place { me, procs }),
            _ => traffic::child(&args.options()),
        },
    };
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let Args { role, tls, seed, messages, window, .. } = &args;
            eprintln!("traffic: {failure}");
            eprintln!(
                "traffic: {role:?} of --tls {tls} --messages {messages} --window {window} --seed {seed}"
            );
            ExitCode::FAILURE
        }
    }
}

/// Prints what all processes of `--with` have checked.
fn print_all(args: &Args, all: &[Report]) {
    let seconds = all.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let messages: u64 = all.iter().map(|report| report.messages).sum();
    let bytes: u64 = all.iter().map(|report| report.bytes).sum();
    if args.json {
        let line = serde_json::json!({
            "tls": args.tls, "seed": args.seed, "window": args.window, "messages": messages, "bytes": bytes,
            "seconds": seconds, "processes": all,
        });
        println!("{line}");
        return;
    }
    println!(
        "traffic over {} among {} processes: {} messages to each other one, all right: {messages} messages, \
         {:.1} MB, {seconds:.2} s (seed {})",
        args.tls,
        all.len(),
        args.messages,
        bytes as f64 / 1e6,
        args.seed
    );
    for (nth, Report { rma, .. }) in all.iter().enumerate() {
        println!("  process {nth}: puts {} gets {} atomics {}", rma.puts, rma.gets, rma.atomics);
    }
}

fn print(args: &Args, mine: &Report, theirs: &Report) {
    let seconds = mine.seconds.max(theirs.seconds);
    let messages = mine.messages + theirs.messages;
    let bytes = mine.bytes + theirs.bytes;
    if args.json {
        let line = serde_json::json!({
            "tls": args.tls, "seed": args.seed, "window": args.window, "messages": messages, "bytes": bytes,
            "seconds": seconds, "parent": mine, "child": theirs,
        });
        println!("{line}");
        return;
    }
    println!(
        "traffic over {}: {} messages each way, all right: {} messages, {:.1} MB, {:.2} s, {:.0} messages/s, {:.0} MB/s (seed {})",
        args.tls,
        args.messages,
        messages,
        bytes as f64 / 1e6,
        seconds,
        messages as f64 / seconds,
        bytes as f64 / 1e6 / seconds,
        args.seed
    );
    for (name, r) in [("parent", mine), ("child", theirs)] {
        println!(
            "  {name}: sent eager {} medium {} long {} (sync {}); received unexpected {} truncated {} late blocks {}; \
             packets early {}; wire full {}",
            r.sent.eager,
            r.sent.medium,
            r.sent.long,
            r.sync,
            r.unexpected,
            r.truncated,
            r.late_blocks,
            r.out_of_order,
            r.wire_full
        );
        if args.rma > 0 {
            println!("  {name}: puts {} gets {} atomics {}", r.rma.puts, r.rma.gets, r.rma.atomics);
        }
    }
}
