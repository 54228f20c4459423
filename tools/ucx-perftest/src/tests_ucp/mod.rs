//! High-level tests: tag matching, active messages, streams and one-sided operations over whatever transports `UCX_TLS` (or `-x`) leaves.
//! Called by `session` on both sides with the same [`Spec`]; exchanges addresses, warms up, measures.

mod am;
mod am_loop;
mod group_messages;
mod group_rma;
mod group_test;
mod rma;
mod scatter;
mod single_buffer;
mod stream;
mod tag;
mod window;

use tools_common::boot::HexBytes;
use tools_common::meter::Meter;
use ucp::select::{Kind, MemKind, Sync};
use ucp::{Address, Context, Ep, EpParams, ErrorMode, Worker};
use ucs::config::Source;
use uct::api::{DevKind, TlResource};

use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Link;
use crate::report::{Report, TestResult, UsedTransport};
use crate::spec::{Flow, Layout, Memory, Pattern, Spec, Test, Waiting};
use tag::TagTest;
use window::Waiter;

/// Runs one test; answers the result on the side that measures (and on the other, where nobody prints it).
pub fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<TestResult, Failure> {
    if spec.pattern != Pattern::Pairs {
        return group_test::run(spec, source, link, report);
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
        tag.measure(spec.warmup)?;
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
    worker: Worker,
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
        rma.measure(spec.warmup)?;
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

fn scale(spec: &Spec, reading: tools_common::meter::Reading) -> tools_common::meter::Reading {
    if spec.test.flow() == Flow::PingPong { reading.halved() } else { reading }
}

fn open(spec: &Spec, source: &Source) -> Result<Worker, Failure> {
    let mut source = source.clone();
    if let Some(tls) = &spec.tl {
        source.set("UCX_TLS", tls);
    }
    if let Some(dev) = &spec.dev {
        // What is no network has one device: nothing to choose.
        let is_choice = |r: &TlResource| r.kind == DevKind::Net || r.dev != *dev;
        if uct::any::resources(&source)?.iter().all(is_choice) {
            source.set("UCX_NET_DEVICES", dev);
        }
    }
    Ok(Context::configured(source)?.worker()?)
}

fn connect(spec: &Spec, worker: &Worker, theirs: &HexBytes) -> Result<Ep, Failure> {
    let address = Address::unpack(&theirs.0).map_err(|e| Failure::Run(e.to_string()))?;
    // A failure reaches the test through its operations; `-e` measures what being told besides costs.
    let errors = if spec.peer_errors { ErrorMode::Peer(Box::new(|_| {})) } else { ErrorMode::None };
    worker.connect(&address, EpParams { errors }).map_err(|e| Failure::Run(format!("cannot connect: {e}")))
}

fn sync(spec: &Spec) -> Sync {
    match spec.test {
        Test::TagSyncLat | Test::TagSyncBw => Sync::Yes,
        _ => Sync::No,
    }
}

/// What active messages and streams are to people; their protocols are those of messages.
fn message_path(spec: &Spec) -> &'static str {
    match spec.test {
        Test::StreamLat | Test::StreamBw => "stream",
        _ => "am",
    }
}

/// The lane that messages take, and the protocol that this size takes on it.
fn tag_path(spec: &Spec, worker: &Worker, ep: &Ep) -> UsedTransport {
    let from = |mem| ep.table_from(mem, Kind::Tagged, sync(spec));
    let table = match (spec.memory, spec.layout) {
        // What lies in several pieces is gathered, wherever they are.
        (_, Some(Layout::Iov)) => from(MemKind::Host),
        (Memory::Plain, _) => ep.table(Kind::Tagged, sync(spec)),
        _ => from(MemKind::Own),
    };
    path(worker, ep, table.pick(spec.size()).name())
}

/// The lane that operations take, and how they go on it.
fn path(worker: &Worker, ep: &Ep, data_path: &str) -> UsedTransport {
    let transport = ep.transports().first().copied().unwrap_or_default();
    let device = worker.lanes().into_iter().find(|lane| lane.tl == transport).map(|lane| lane.dev);
    UsedTransport {
        transport: transport.into(),
        device: device.unwrap_or_default(),
        data_path: data_path.into(),
    }
}
