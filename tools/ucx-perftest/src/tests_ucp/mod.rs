//! High-level tests: tag matching over whatever transports `UCX_TLS` (or `-x`) leaves.
//! Called by `session` on both sides with the same [`Spec`]; exchanges addresses, warms up, measures.

mod many;
mod ring;
mod tag;

use tools_common::boot::Blob;
use tools_common::meter::Meter;
use ucp::select::{Kind, Sync};
use ucp::{Address, Context, Ep, EpParams, ErrorMode, Worker};
use ucs::config::Source;

use crate::fail::Failure;
use crate::link::Link;
use crate::report::{Done, Path, Report};
use crate::spec::{Flow, Pattern, Spec, Test};
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
    let path = path(spec, &worker, &ep);
    let rank = report.rank();
    let side = link.side();
    let mut show = |meter: &mut Meter| {
        let reading = meter.read(rank);
        if side.is_active() {
            report.progress(spec, scale(spec, reading));
        }
    };
    let (wait, meter) = (Waiter::new(link, &ep), Meter::new());
    let mut tag = Tag { spec, side, worker, ep: &ep, wait, meter, show: &mut show };
    if spec.warmup > 0 {
        tag.measure(spec.warmup)?;
    }
    tag.measure(spec.iters)?;
    let (reading, hist) = (scale(spec, tag.meter.read(rank)), report.histogram(spec, &tag.meter));
    let done = Done::new(spec, path, reading, hist);
    tag.wait.barrier(&tag.worker)?;
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
        source.set("UCX_NET_DEVICES", dev);
    }
    Ok(Context::configured(source)?.worker()?)
}

fn connect(spec: &Spec, worker: &Worker, theirs: &Blob) -> Result<Ep, Failure> {
    let address = Address::unpack(&theirs.0).map_err(|e| Failure::Run(e.to_string()))?;
    // A failure reaches the test through its operations; `-e` measures what being told besides costs.
    let errors = if spec.peer_errors { ErrorMode::Peer(Box::new(|_| {})) } else { ErrorMode::None };
    worker.connect(&address, EpParams { errors }).map_err(|e| Failure::Run(format!("cannot connect: {e}")))
}

/// The lane that messages take, and the protocol that this size takes on it.
fn path(spec: &Spec, worker: &Worker, ep: &Ep) -> Path {
    let sync = match spec.test {
        Test::TagSyncLat | Test::TagSyncBw => Sync::Yes,
        _ => Sync::No,
    };
    let transport = ep.transports().first().copied().unwrap_or_default();
    let device = worker.lanes().into_iter().find(|lane| lane.tl == transport).map(|lane| lane.dev);
    Path {
        transport: transport.into(),
        device: device.unwrap_or_default(),
        data_path: ep.table(Kind::Tagged, sync).pick(spec.size()).name().into(),
    }
}
