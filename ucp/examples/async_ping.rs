//! Ping-pong with `async`: requests are futures that own their buffers. `cargo run -p ucp --example
//! async_ping`
//!
//! Two threads run a worker each. `Worker::block_on` is the executor here. Any other works if something calls
//! `Worker::progress`; the worker's `event_fd` tells when.

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use ucp::{Address, Context, Ep, EpParams, TAG_MASK_FULL, Worker};

const PING: u64 = 1;
const PONG: u64 = 2;
const ROUNDS: u32 = 10_000;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("async_ping: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let (to_pong, from_ping) = channel();
    let (to_ping, from_pong) = channel();
    let pong = thread::spawn(move || -> Result<(), String> {
        let (worker, ep) = open(&to_ping, &from_ping).map_err(|e| e.to_string())?;
        worker.block_on(answer(&worker, &ep)).map_err(|e| e.to_string())
    });

    let (worker, ep) = open(&to_pong, &from_pong)?;
    let start = Instant::now();
    worker.block_on(ask(&worker, &ep))?;
    let took = start.elapsed();
    println!("{ROUNDS} round trips over {}: {:.3} us each way", ep.protocols().transports()[0], half(took));
    pong.join().map_err(|_| "the other side panicked")??;
    Ok(())
}

fn open(to: &Sender<Vec<u8>>, from: &Receiver<Vec<u8>>) -> Result<(Worker, Ep), Box<dyn Error>> {
    let worker = Context::new()?.worker()?;
    to.send(worker.address().pack())?;
    let ep = worker.connect(&Address::unpack(&from.recv()?)?, EpParams::default())?;
    Ok((worker, ep))
}

async fn ask(worker: &Worker, ep: &Ep) -> Result<(), ucp::Error> {
    // A request owns its buffer and returns it, so one buffer each way serves all rounds.
    let (mut out, mut back) = (vec![0u8; 8], Vec::with_capacity(8));
    for round in 0..ROUNDS {
        out[..4].copy_from_slice(&round.to_le_bytes());
        let answer = worker.tag_recv(PONG, TAG_MASK_FULL, back);
        let (sent, buf) = ep.tag_send(PING, out).await;
        sent?;
        out = buf;
        let (status, buf) = answer.await;
        status?;
        assert_eq!(buf, out, "the answer is the question");
        back = buf;
    }
    Ok(())
}

async fn answer(worker: &Worker, ep: &Ep) -> Result<(), ucp::Error> {
    let mut buf = Vec::with_capacity(8);
    for _ in 0..ROUNDS {
        let (status, got) = worker.tag_recv(PING, TAG_MASK_FULL, buf).await;
        status?;
        let (sent, back) = ep.tag_send(PONG, got).await;
        sent?;
        buf = back;
    }
    ep.flush().await
}

fn half(took: std::time::Duration) -> f64 {
    took.as_secs_f64() * 1e6 / f64::from(ROUNDS) / 2.0
}
