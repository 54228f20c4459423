//! The ping-pong of the OpenFabrics tutorial, step by step, on this library.
//!
//! ```text
//! cargo run -p ucp --example ping_pong                     # 8 bytes, 10000 times
//! UCX_TLS=efa cargo run -p ucp --example ping_pong -- 65536 1000
//! ```
//!
//! | the tutorial's step | here |
//! |---|---|
//! | `fi_getinfo`, `fi_fabric`, `fi_domain`: what there is, and opening it | [`Context`]; `UCX_TLS` in the place of hints |
//! | `fi_cq_open` twice, `fi_av_open`, `fi_endpoint`, `fi_ep_bind`, `fi_enable` | `Context::worker`: one object has them all |
//! | `fi_getname` | `Worker::address` |
//! | `fi_av_insert` | `Worker::connect` |
//! | `fi_send`, `fi_recv` | `Ep::msg_send`, `Worker::msg_recv` |
//! | `wait_for_comp` on a completion queue | `wait` on the request: it makes progress |
//!
//! As in the tutorial, the client knows the server's address beforehand; the server learns the client's from its first
//! message, and acknowledges when it is ready.

#[path = "../../uct/examples/common/family.rs"]
mod family;

use std::process::ExitCode;
use std::time::Instant;

use family::{Family, Outcome};
use ucp::{Address, Context, Ep, EpParams, Worker};

/// Longest first message.
const MAX_CTRL: usize = 1024;

fn main() -> ExitCode {
    let number =
        |n: usize, default: usize| std::env::args().nth(n).map_or(Some(default), |text| text.parse().ok());
    match (number(1, 8), number(2, 10_000)) {
        (Some(size), Some(rounds @ 1..)) => family::run(2, |family| work(family, size, rounds)),
        _ => {
            eprintln!("ping_pong: expected [SIZE [ROUNDS]], such as 8 10000");
            ExitCode::FAILURE
        }
    }
}

fn work(family: &mut Family, size: usize, rounds: usize) -> Outcome {
    let worker = Context::new()?.worker()?;
    // What the tutorial takes from its command line: the server's address. The client's is not told this way.
    let server = if family.rank == 0 { worker.address().pack() } else { Vec::new() };
    let server = family.gather(&server)?.swap_remove(0);
    let ep = match family.rank {
        0 => meet_client(&worker)?,
        _ => meet_server(&worker, &Address::unpack(&server)?)?,
    };
    let start = Instant::now();
    ping_pong(&worker, &ep, family.rank == 1, size, rounds)?;
    if family.rank == 1 {
        let each = start.elapsed().as_secs_f64() * 1e6 / rounds as f64 / 2.0;
        println!("{rounds} round trips of {size} bytes over {}: {each:.3} us each way", ep.transports()[0]);
    }
    // What was sent last may still be on its way.
    ep.flush().wait()?;
    family.gather(&[])?;
    Ok(())
}

/// The client says who it is, and waits until the server knows it.
fn meet_server(worker: &Worker, server: &Address) -> Result<Ep, Box<dyn std::error::Error>> {
    let ep = worker.connect(server, EpParams::default())?;
    let ready = worker.msg_recv(Vec::with_capacity(1));
    ep.msg_send(worker.address().pack()).wait().0?;
    ready.wait().0?;
    Ok(ep)
}

/// The server waits for a client, and answers when it can reach it.
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
        // A receive is posted before its message can come: then the bytes go straight to their place.
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
