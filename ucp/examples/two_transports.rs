//! One program over two transports, and the protocols that the library chose for each size. The code names no
//! transport; configuration (`UCX_TLS`) does. `cargo run -p ucp --example two_transports`

use std::error::Error;
use std::process::ExitCode;

use ucp::select::{DeliveryComplete, Kind};
use ucp::{Context, EpParams, TAG_MASK_FULL};
use ucs::config::Source;

fn main() -> ExitCode {
    match ["posix", "efa"].into_iter().try_for_each(over) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("two_transports: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs two workers of this thread over the transports of `tls`.
fn over(tls: &str) -> Result<(), Box<dyn Error>> {
    let context = Context::configured(Source::from_env()?.with("UCX_TLS", tls))?;
    let (a, b) = (context.worker()?, context.worker()?);
    let ep = a.connect(&b.address(), EpParams::default())?;

    println!("UCX_TLS={tls}:");
    for range in ep.protocols().table(Kind::Tagged, DeliveryComplete::No).ranges() {
        match range.to {
            usize::MAX => println!("  from {:>7} bytes: {}", range.from, range.protocol.name()),
            to => println!("  {:>7} to {to:>7} bytes: {}", range.from, range.protocol.name()),
        }
    }

    for len in [0, 100, 10_000, 1_000_000] {
        let message: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let recv = b.tag_recv(len as u64, TAG_MASK_FULL, Vec::with_capacity(len));
        let send = ep.tag_send(len as u64, message);
        while !(recv.is_done() && send.is_done()) {
            a.progress();
            b.progress();
        }
        let ((status, got), (sent, message)) = (recv.wait(), send.wait());
        status?;
        sent?;
        assert_eq!(got, message);
        println!("  {len} bytes arrived");
    }
    Ok(())
}
