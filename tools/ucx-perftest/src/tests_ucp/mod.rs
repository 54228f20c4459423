//! High-level tests: tag matching, active messages, streams and one-sided operations over the transports of
//! `UCX_TLS` or `-x`. Called by `session` on all sides with the same [`Spec`].

mod am;
mod am_loop;
mod group_messages;
mod group_rma;
mod group_run;
mod group_tag;
mod group_test;
mod message_io;
mod rma;
mod scatter;
mod setup;
mod single_buffer;
mod slot;
mod stream;
mod tag;
mod test_worker;
mod waiter;
mod window;

use tools_common::boot::HexBytes;
use tools_common::meter::Meter;
use ucp::Ep;
use ucs::config::Source;

use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Link;
use crate::report::{Report, TestResult};
use crate::spec::{Pattern, Spec, Test, Waiting};
use setup::{connect, message_path, open, path, scale, tag_path};
use tag::TagTest;
use test_worker::TestWorker;
use waiter::Waiter;

/// Runs one test; the result counts on the active side.
pub fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<TestResult, Failure> {
    if spec.pattern != Pattern::Pairs {
        return group_run::run(spec, source, link, report);
    }
    let opened = open(spec, source);
    let mine = opened
        .as_ref()
        .map(|w| HexBytes(w.address().pack()))
        .map_err(|e| Failure::Unsupported(e.to_string()));
    let theirs = link.exchange_result(mine)?;
    let worker = opened?;
    let connected = connect(spec, &worker, &theirs);
    link.exchange_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())))?;
    let ep = connected?;
    if spec.test.is_ucp_rma() {
        return run_rma(spec, worker, &ep, link, report);
    }
    let mut path = tag_path(spec, &worker, &ep);
    if spec.test.is_am_or_stream() {
        path.data_path = message_path(spec).into();
    }
    let rank = spec.rank;
    let side = link.side();
    let mut show = |meter: &mut Meter| {
        let reading = meter.read(rank);
        if side.is_active() {
            report.progress(spec, &path, scale(spec, reading));
        }
    };
    let (wait, counter) = (Waiter::new(spec, link, &ep), IterationCounter::new(&mut show));
    if spec.test.is_am_or_stream() {
        let mut test = am_loop::AmLoop { spec, side, worker, ep: &ep, wait, counter };
        test.run()?;
        let (reading, hist) =
            (scale(spec, test.counter.meter.read(rank)), Report::histogram(spec, &test.counter.meter));
        return Ok(TestResult::new(spec, path.clone(), reading, hist));
    }
    let mut tag = TagTest { spec, side, worker, ep: &ep, wait, counter, buffers: None };
    if spec.warmup > 0 {
        tag.counter.set_warm_up(true);
        tag.measure(spec.warmup)?;
        tag.counter.set_warm_up(false);
    }
    tag.measure(spec.iters)?;
    let (reading, hist) =
        (scale(spec, tag.counter.meter.read(rank)), Report::histogram(spec, &tag.counter.meter));
    let done = TestResult::new(spec, path.clone(), reading, hist);
    tag.wait.barrier(&tag.worker)?;
    Ok(done)
}

fn run_rma(
    spec: &Spec,
    worker: TestWorker,
    ep: &Ep,
    link: &mut Link,
    report: &Report,
) -> Result<TestResult, Failure> {
    let target = rma::target(spec, &worker);
    let mine = target.as_ref().map(|target| (target.mem.addr(), HexBytes(target.mem.pack_rkey())));
    let (addr, packed) = link.exchange_result(mine.map_err(|e| Failure::Unsupported(e.to_string())))?;
    let target = target?;
    let rkey = ep.unpack_rkey(&packed.0).map_err(|e| Failure::Run(e.to_string()))?;
    let path = path(&worker, ep, rma::data_path(spec, ep, &rkey));
    if spec.test == Test::UcpPutLat && spec.waiting == Waiting::Sleep {
        link.exchange_result(rma::can_sleep(&path.data_path))?;
    }
    let (rank, side) = (spec.rank, link.side());
    let mut show = |meter: &mut Meter| {
        let reading = meter.read(rank);
        if side.is_active() {
            report.progress(spec, &path, scale(spec, reading));
        }
    };
    let (wait, counter, remote) =
        (Waiter::new(spec, link, ep), IterationCounter::new(&mut show), rma::RemoteMemory { addr, rkey });
    let (remote, mem) = (&remote, &target.mem);
    let mut rma = rma::RmaTest { spec, side, worker, ep, remote, target: mem, wait, counter };
    if spec.warmup > 0 {
        rma.counter.set_warm_up(true);
        rma.measure(spec.warmup)?;
        rma.counter.set_warm_up(false);
    }
    rma.measure(spec.iters)?;
    let (reading, hist) =
        (scale(spec, rma.counter.meter.read(rank)), Report::histogram(spec, &rma.counter.meter));
    let done = TestResult::new(spec, path.clone(), reading, hist);
    rma.wait.barrier(&rma.worker)?;
    drop(rma);
    target.mark_ended();
    Ok(done)
}
