//! N eager messages through two engines and nothing else, to be run under an instruction counter: the counts of two
//! runs agree to the last digit, which no time does on a machine with other work. `perf/README.md` has the command.
//!
//! Prints what it did. With `--calibrate` it does everything but the messages: the difference of two counts, divided
//! by their number, is instructions per message.

use clap::Parser;
use perf::pair::Pair;
use std::hint::black_box;

/// Passes eager messages through two engines, for instruction counts.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Messages.
    #[arg(long, short = 'n', default_value_t = 100_000)]
    messages: u64,
    /// Bytes in a message; at most 8000.
    #[arg(long, short = 's', default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=8000))]
    size: u32,
    /// Set up and exchange nothing.
    #[arg(long)]
    calibrate: bool,
}

fn main() {
    let args = Args::parse();
    let (mut pair, buf) = (Pair::new(), vec![7u8; args.size as usize]);
    let messages = if args.calibrate { 0 } else { args.messages };
    for tag in 0..messages {
        pair.recv(black_box(tag), u64::MAX);
        assert!(pair.send(tag, black_box(&buf)), "an empty queue has room");
        pair.deliver();
        assert!(pair.received().is_some(), "message {tag} was not received");
    }
    println!("{messages} eager messages of {} bytes", args.size);
}
