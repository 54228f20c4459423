//! The loops of `perf/fabric/bench.c` with `ucp`, for `versus --against libfabric`. Two processes, each on a
//! core of its own; prints one line of JSON. Transports are those of `UCX_TLS`.
//!
//!     ucp_bench TEST SIZE ITERS CORE CORE     tests: tag_lat tag_bw put_lat put_bw get_lat get_bw fadd
//!     ucp_bench self TEST SIZE ITERS          tag put fadd: one process with itself, for instruction counts

mod loops;

use std::process::ExitCode;
use std::time::Instant;

use loops::{MSG, Remote, Runner, Side, Test};
use perf::second_process::{Failure, PeerProcess, pin, split_role};
use ucp::{Address, Context, EpParams, Mem, TAG_MASK_FULL};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            ucs::stderr_line!("ucp_bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), Failure> {
    let usage = "usage: ucp_bench TEST SIZE ITERS CORE CORE | ucp_bench self tag|put|fadd SIZE ITERS";
    if let [kind, test, size, iters] = args
        && kind == "self"
    {
        let (size, iters) = (size.parse()?, iters.parse()?);
        return match test.as_str() {
            "tag" => tag_to_self(size, iters),
            "put" => rma_to_self(Test::PutLat, size, iters),
            "fadd" => rma_to_self(Test::Fadd, size, iters),
            _ => Err(usage.into()),
        };
    }
    let (args, is_second) = split_role(args);
    let [test, size, iters, server, client] = args else { return Err(usage.into()) };
    let test = Test::parse(test).ok_or(usage)?;
    let (size, iters) = (size.parse()?, iters.parse()?);
    if is_second { second(test, size, iters, server) } else { first(args, test, size, iters, client) }
}

fn first(args: &[String], test: Test, size: usize, iters: usize, core: &str) -> Result<(), Failure> {
    let mut other = PeerProcess::second(args)?;
    pin(core)?;
    let (mut runner, _mem) = exchange_addresses(test, size, Side::First, &mut other)?;
    runner.pass(warm_up(iters))?;
    let start = Instant::now();
    runner.pass(iters)?;
    let took = start.elapsed().as_secs_f64();
    other.done()?;
    let (n, bytes) = (iters as f64, size as f64);
    // Half a round trip of a ping-pong.
    let each = if test == Test::TagLat { took / n / 2.0 } else { took / n };
    tools_common::out::line(format!(
        "{{\"latency_us\":{{\"avg\":{:.4}}},\"msg_rate\":{:.0},\"bandwidth_mbs\":{:.1}}}",
        each * 1e6,
        n / took,
        n * bytes / took / 1_048_576.0
    ));
    Ok(())
}

fn second(test: Test, size: usize, iters: usize, core: &str) -> Result<(), Failure> {
    pin(core)?;
    let mut other = PeerProcess::first();
    let (mut runner, _mem) = exchange_addresses(test, size, Side::Second, &mut other)?;
    runner.pass(warm_up(iters))?;
    runner.pass(iters)?;
    // The first process may still need answers.
    let end = other.end_signal();
    while end.try_recv().is_err() {
        runner.worker.progress();
    }
    Ok(())
}

fn warm_up(iters: usize) -> usize {
    iters / 10 + 10
}

/// Receives each message before the next is sent: the same work in every run.
fn tag_to_self(size: usize, iters: usize) -> Result<(), Failure> {
    let worker = Context::new()?.worker()?;
    let ep = worker.connect(&worker.address(), EpParams::default())?;
    let (out, mut back) = (vec![0; size], vec![0; size]);
    for _ in 0..iters {
        worker.scope(|s| {
            let received = s.tag_recv(MSG, TAG_MASK_FULL, &mut back);
            s.tag_send(&ep, MSG, &out).wait()?;
            received.wait().map(drop)
        })?;
    }
    Ok(())
}

fn rma_to_self(test: Test, size: usize, iters: usize) -> Result<(), Failure> {
    let worker = Context::new()?.worker()?;
    let mem = loops::map_target(&worker, size)?;
    let ep = worker.connect(&worker.address(), EpParams::default())?;
    let remote = Remote { rkey: ep.unpack_rkey(&mem.pack_rkey())?, addr: mem.addr() };
    Runner::new(test, size, Side::First, worker, ep, remote).one_sided(iters)
}

fn exchange_addresses(
    test: Test,
    size: usize,
    side: Side,
    other: &mut PeerProcess,
) -> Result<(Runner, Mem), Failure> {
    let worker = Context::new()?.worker()?;
    let mem = loops::map_target(&worker, size)?;
    other.send(&worker.address().pack())?;
    other.send(&mem.pack_rkey())?;
    other.send(&mem.addr().to_le_bytes())?;
    let ep = worker.connect(&Address::unpack(&other.recv()?)?, EpParams::default())?;
    let rkey = ep.unpack_rkey(&other.recv()?)?;
    let addr = u64::from_le_bytes(other.recv()?.try_into().map_err(|_| "not an address")?);
    Ok((Runner::new(test, size, side, worker, ep, Remote { rkey, addr }), mem))
}
