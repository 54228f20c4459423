//! Tagged messages from a worker to itself over `posix`, whose receives and sends are functions of their own:
//! what `ucp_tag_recv_nbx` and `ucp_tag_send_nbx` are compared with. `count tag` has them inlined.

use clap::Parser;
use std::error::Error;
use std::hint::black_box;
use ucp::{Context, Ep, EpParams, Match, OpParams, OpStatus, RecvStatus, SendParams, TAG_MASK_FULL, Worker};
use ucs::config::Source;

/// Messages between two tests of their receives.
const WINDOW: u64 = 16;

/// Sends and receives tagged messages, for instruction counts of the calls.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// How often.
    #[arg(long, short = 'n', default_value_t = 100_000)]
    times: u64,
    /// Bytes each; at most 8000.
    #[arg(long, short = 's', default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=8000))]
    size: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let worker = Context::configured(Source::empty().with("UCX_TLS", "posix"))?.worker()?;
    let ep = worker.connect(&worker.address(), EpParams::default())?;
    let (out, mut back) = (vec![7u8; args.size as usize], vec![0u8; args.size as usize]);
    // Both sides have exchanged handshakes before anything is counted.
    ep.tag_send_blocking(0, &out)?;
    worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut back)?;
    // The compiler makes special functions of calls whose arguments it knows.
    let params = black_box(SendParams { tag: Some(1), ..SendParams::default() });
    let (matching, receives) = black_box((Match::tagged(1, TAG_MASK_FULL), OpParams::default()));
    let mut running = Vec::with_capacity(WINDOW as usize);
    for _ in 0..args.times / WINDOW {
        for _ in 0..WINDOW {
            if let OpStatus::InProgress(id) = raw_receive(&worker, &mut back, matching, &receives)? {
                running.push(id);
            }
        }
        for _ in 0..WINDOW {
            assert_eq!(raw_send(&ep, &out, &params)?, OpStatus::Done(()), "there is room for a window");
        }
        while let Some(&id) = running.last() {
            match worker.test(id) {
                Some(ended) => drop((ended?, running.pop())),
                None => drop(worker.progress()),
            }
        }
    }
    Ok(())
}

/// A raw receive. Its caller ends it before `back` is used again.
#[inline(never)]
fn raw_receive(
    worker: &Worker,
    back: &mut [u8],
    matching: Match,
    params: &OpParams<'_>,
) -> Result<OpStatus<RecvStatus>, ucp::Error> {
    // SAFETY: `back` outlives the receive, which ends in `main`, and is not read before.
    unsafe { worker.recv_raw(back.as_mut_ptr(), back.len(), matching, params) }
}

/// A raw send.
#[inline(never)]
fn raw_send(ep: &Ep, out: &[u8], params: &SendParams<'_>) -> Result<OpStatus<()>, ucp::Error> {
    // SAFETY: `out` outlives the send and does not change.
    unsafe { ep.send_raw(out.as_ptr(), out.len(), params) }
}
