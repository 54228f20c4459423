//! Sends tagged messages from a worker to another one of this process, for `perf/files-executed`: callgrind
//! collects within `send_one` or `receive_one`, and forgets at `begin` what the messages before the last one
//! cost. Transports are those of `UCX_TLS`.
//!
//!     one_message SIZE

use std::hint::black_box;
use std::process::ExitCode;
use ucp::{Context, Ep, EpParams, Match, OpParams, OpStatus, SendParams, TAG_MASK_FULL, Worker};

type Failure = Box<dyn std::error::Error>;

/// Messages before the one that counts. Transports do some work at each 16th message, which it is not.
const WARM_UP: usize = 1000;

fn main() -> ExitCode {
    let size = std::env::args().nth(1).map_or(Ok(8), |size| size.parse());
    match size.map_err(Failure::from).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            ucs::stderr_line!("one_message: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(size: usize) -> Result<(), Failure> {
    let context = Context::new()?;
    let (sender, receiver) = (context.worker()?, context.worker()?);
    let ep = sender.connect(&receiver.address(), EpParams::default())?;
    let (out, mut back) = (vec![7u8; size], vec![0u8; size]);
    for sent in 0..=WARM_UP {
        if sent == WARM_UP {
            begin();
        }
        receive_one(&receiver, &mut back, || match send_one(&ep, &out)? {
            OpStatus::Done(()) => Ok(()),
            OpStatus::InProgress(_) if sent == WARM_UP => Err("a message did not go at once".into()),
            // The receiver's thread has not answered yet.
            OpStatus::InProgress(id) => loop {
                sender.progress();
                if let Some(ended) = sender.test(id) {
                    return Ok(ended.map(drop)?);
                }
            },
        })?;
        while sender.progress() > 0 {}
        if back != out {
            return Err(format!("message {sent} arrived changed").into());
        }
        back.fill(0);
    }
    Ok(())
}

/// Where callgrind sets all costs to zero.
#[inline(never)]
fn begin() {
    black_box(());
}

#[inline(never)]
fn send_one(ep: &Ep, out: &[u8]) -> Result<OpStatus<()>, Failure> {
    let params = SendParams { tag: Some(1), ..SendParams::default() };
    // SAFETY: `out` does not change, and outlives the send, which `run` waits for.
    Ok(unsafe { ep.send_raw(out.as_ptr(), out.len(), &params) }?)
}

/// Posts a receive, has the message sent, which does not count, and receives it.
#[inline(never)]
fn receive_one(
    receiver: &Worker,
    back: &mut [u8],
    send: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let matching = Match::tagged(1, TAG_MASK_FULL);
    // SAFETY: `back` outlives the receive, which ends below, and is not read before.
    let posted = unsafe { receiver.recv_raw(back.as_mut_ptr(), back.len(), matching, &OpParams::default()) }?;
    let OpStatus::InProgress(posted) = posted else { return Err("a message came unasked".into()) };
    send()?;
    loop {
        receiver.progress();
        if let Some(received) = receiver.test(posted) {
            return Ok(received.map(drop)?);
        }
    }
}
