//! High-level tests: tag matching, active messages, streams and one-sided operations over whatever transports `UCX_TLS` (or `-x`) leaves.
//! Called by `session` on both sides with the same [`Spec`]; exchanges addresses, warms up, measures.

mod am;
mod mail;
mod many;
mod many_mail;
mod many_rma;
mod plain;
mod ring;
mod rma;
mod scattered;
mod stream;
mod tag;

use tools_common::boot::Blob;
use tools_common::meter::Meter;
use ucp::select::{Kind, MemKind, Sync};
use ucp::{Address, Context, Ep, EpParams, ErrorMode, Worker};
use ucs::config::Source;
use uct::api::{DevKind, TlResource};

use crate::fail::Failure;
use crate::link::Link;
use crate::pulse::Pulse;
use crate::report::{Done, Path, Report};
use crate::spec::{Flow, Layout, Memory, Pattern, Spec, Test, Waiting};
use ring::Waiter;
use tag::Tag;

/// Runs one test; answers the result on the side that measures (and on the other, where nobody prints it).
pub fn run(spec: &Spec, source: &Source, link: &mut Link, report: &Report) -> Result<Done, Failure> {
    if spec.pattern != Pattern::Pairs {
        return many::run(spec, source, link, report);
    }
    let opened = open(spec, source);
    let mine = opened.as_ref().map(|w| Blob(w.address().pack())).map_err(|e| Failure::Cannot(e.to_string()));
    let theirs = link.exchange_result(mine)?;
    let worker = opened?;
    let connected = connect(spec, &worker, &theirs);
    link.exchange_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())))?;
    let ep = connected?;
    if spec.test.is_ucp_rma() {
        return run_rma(spec, worker, &ep, link, report);
    }
    let mut path = tag_path(spec, &worker, &ep);
    if spec.test.is_mail() {
        path.data_path = mail_path(spec).into();
    }
    let rank = spec.rank;
    let side = link.side();
    let mut show = |meter: &mut Meter| {
        let reading = meter.read(rank);
        if side.is_active() {
            report.progress(spec, &path, scale(spec, reading));
        }
    };
    let (wait, pulse) = (Waiter::new(spec, link, &ep), Pulse::new(&mut show));
    if spec.test.is_mail() {
        let mut mail = mail::Mail { spec, side, worker, ep: &ep, wait, pulse };
        mail.run()?;
        let (reading, hist) =
            (scale(spec, mail.pulse.meter.read(rank)), Report::histogram(spec, &mail.pulse.meter));
        return Ok(Done::new(spec, path.clone(), reading, hist));
    }
    let mut tag = Tag { spec, side, worker, ep: &ep, wait, pulse, rings: None };
    if spec.warmup > 0 {
        tag.measure(spec.warmup)?;
    }
    tag.measure(spec.iters)?;
    let (reading, hist) =
        (scale(spec, tag.pulse.meter.read(rank)), Report::histogram(spec, &tag.pulse.meter));
    let done = Done::new(spec, path.clone(), reading, hist);
    tag.wait.barrier(&tag.worker)?;
    Ok(done)
}

fn run_rma(spec: &Spec, worker: Worker, ep: &Ep, link: &mut Link, report: &Report) -> Result<Done, Failure> {
    let target = rma::target(spec, &worker);
    let mine = target.as_ref().map(|ours| (ours.mem.addr(), Blob(ours.mem.pack_rkey())));
    let (addr, packed) = link.exchange_result(mine.map_err(|e| Failure::Cannot(e.to_string())))?;
    let ours = target?;
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
    let (wait, pulse, remote) =
        (Waiter::new(spec, link, ep), Pulse::new(&mut show), rma::Remote { addr, rkey });
    let (remote, target) = (&remote, &ours.mem);
    let mut rma = rma::Rma { spec, side, worker, ep, remote, target, wait, pulse };
    if spec.warmup > 0 {
        rma.measure(spec.warmup)?;
    }
    rma.measure(spec.iters)?;
    let (reading, hist) =
        (scale(spec, rma.pulse.meter.read(rank)), Report::histogram(spec, &rma.pulse.meter));
    let done = Done::new(spec, path.clone(), reading, hist);
    rma.wait.barrier(&rma.worker)?;
    drop(rma);
    ours.end();
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

fn connect(spec: &Spec, worker: &Worker, theirs: &Blob) -> Result<Ep, Failure> {
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
fn mail_path(spec: &Spec) -> &'static str {
    match spec.test {
        Test::StreamLat | Test::StreamBw => "stream",
        _ => "am",
    }
}

/// The lane that messages take, and the protocol that this size takes on it.
fn tag_path(spec: &Spec, worker: &Worker, ep: &Ep) -> Path {
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
fn path(worker: &Worker, ep: &Ep, data_path: &str) -> Path {
    let transport = ep.transports().first().copied().unwrap_or_default();
    let device = worker.lanes().into_iter().find(|lane| lane.tl == transport).map(|lane| lane.dev);
    Path { transport: transport.into(), device: device.unwrap_or_default(), data_path: data_path.into() }
}
