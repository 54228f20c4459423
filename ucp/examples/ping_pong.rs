//! The ping-pong of the OpenFabrics tutorial on this library.
//! ```text
//! cargo run -p ucp --example ping_pong                     # 8 bytes, 10000 times
//! UCX_TLS=efa cargo run -p ucp --example ping_pong -- 65536 1000
//! ```
//!
//! | the tutorial's step | here |
//! |---|---|
//! | `fi_getinfo`, `fi_fabric`, `fi_domain` | [`Context`]; `UCX_TLS` instead of hints |
//! | `fi_cq_open` twice, `fi_av_open`, `fi_endpoint`, `fi_ep_bind`, `fi_enable` | `Context::worker` |
//! | `fi_getname` | `Worker::address` |
//! | `fi_av_insert` | `Worker::connect` |
//! | `fi_send`, `fi_recv` | `Ep::msg_send`, `Worker::msg_recv` |
//! | `wait_for_comp` on a completion queue | `wait` on the request, which makes progress |
//!
//! As in the tutorial, the client is given the server's address. The server learns the client's from its
//! first message, and acknowledges when it is ready.

#[path = "../../uct/examples/common/job.rs"]
mod job;

use std::process::ExitCode;
use std::time::Instant;

use job::{Job, Outcome};
use ucp::{Address, Context, Ep, EpParams, Worker};

const MAX_CTRL: usize = 1024;

fn main() -> ExitCode {
    let number =
        |n: usize, default: usize| std::env::args().nth(n).map_or(Some(default), |text| text.parse().ok());
    match (number(1, 8), number(2, 10_000)) {
        (Some(size), Some(rounds @ 1..)) => job::run(2, 2, |job| work(job, size, rounds)),
        _ => {
            eprintln!("ping_pong: expected [SIZE [ROUNDS]], such as 8 10000");
            ExitCode::FAILURE
        }
    }
}

fn work(job: &mut Job, size: usize, rounds: usize) -> Outcome {
    let worker = Context::new()?.worker()?;
    // The tutorial takes the server's address from the command line.
    let server = if job.rank == 0 { worker.address().pack() } else { Vec::new() };
    let server = job.gather(&server)?.swap_remove(0);
    let ep = match job.rank {
        0 => meet_client(&worker)?,
        _ => meet_server(&worker, &Address::unpack(&server)?)?,
    };
    let start = Instant::now();
    ping_pong(&worker, &ep, job.rank == 1, size, rounds)?;
    if job.rank == 1 {
        let each = start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / 2.0;
        println!(
            "{rounds} round trips of {size} bytes over {}: {each:.3} us each way",
            ep.protocols().transports()[0]
        );
    }
    // A flush ends when what was sent has left.
    ep.flush().wait()?;
    job.gather(&[])?;
    Ok(())
}

/// Sends the client's address and waits for the server's acknowledgement.
fn meet_server(worker: &Worker, server: &Address) -> Result<Ep, Box<dyn std::error::Error>> {
    let ep = worker.connect(server, EpParams::default())?;
    let ready = worker.msg_recv(Vec::with_capacity(1));
    ep.msg_send(worker.address().pack()).wait().0?;
    ready.wait().0?;
    Ok(ep)
}

/// Waits for a client's address, connects and acknowledges.
fn meet_client(worker: &Worker) -> Result<Ep, Box<dyn std::error::Error>> {
    let (status, client) = worker.msg_recv(Vec::with_capacity(MAX_CTRL)).wait();
    status?;
    let ep = worker.connect(&Address::unpack(&client)?, EpParams::default())?;
    ep.msg_send(vec![1]).wait().0?;
    Ok(ep)
}

fn ping_pong(worker: &Worker, ep: &Ep, client: bool, size: usize, rounds: usize) -> Result<(), ucp::Error> {
    let (mut out, mut room) = (vec![0u8; size], Vec::with_capacity(size));
    for round in 0..rounds {
        // The receive is posted before its message can come, so the bytes go straight into the buffer.
        let answer = worker.msg_recv(room);
        if client {
            out.fill(round as u8);
            let (sent, buf) = ep.msg_send(out).wait();
            sent?;
            out = buf;
        }
        let (status, got) = answer.wait();
        status?;
        assert!(got.len() == size && got.iter().all(|b| *b == round as u8), "round {round} came whole");
        room = if client {
            got
        } else {
            let (sent, buf) = ep.msg_send(got).wait();
            sent?;
            buf
        };
    }
    Ok(())
}
