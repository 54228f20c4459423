//! Opens a worker, connects it, and names what it uses. Used by tests of two sides and of groups.

use tools_common::boot::HexBytes;
use tools_common::meter::Reading;
use ucp::select::{DeliveryComplete, Kind, MemKind};
use ucp::{Address, Context, Ep, EpParams, ErrorMode, Worker};
use ucs::config::Source;
use uct::api::{DevKind, TlResource};

use super::test_worker::TestWorker;
use crate::fail::Failure;
use crate::report::UsedTransport;
use crate::spec::{Flow, Layout, Memory, Spec, Test};

pub fn scale(spec: &Spec, reading: Reading) -> Reading {
    if spec.test.flow() == Flow::PingPong { reading.halved() } else { reading }
}

pub fn open(spec: &Spec, source: &Source) -> Result<TestWorker, Failure> {
    let mut source = source.clone();
    if let Some(tls) = &spec.tl {
        source.set("UCX_TLS", tls);
    }
    if let Some(dev) = &spec.dev {
        // A transport without network devices has one device: nothing to choose.
        let is_choice = |r: &TlResource| r.kind == DevKind::Net || r.dev != *dev;
        if uct::any::resources(&source)?.iter().all(is_choice) {
            source.set("UCX_NET_DEVICES", dev);
        }
    }
    TestWorker::open(&Context::configured(source)?, spec.level)
}

pub fn connect(spec: &Spec, worker: &Worker, theirs: &HexBytes) -> Result<Ep, Failure> {
    let address = Address::unpack(&theirs.0).map_err(|e| Failure::Run(e.to_string()))?;
    // Errors reach the test through its operations; `-e` measures the cost of an error handler.
    let errors = if spec.peer_errors { ErrorMode::Peer(Box::new(|_| {})) } else { ErrorMode::None };
    worker
        .connect(&address, EpParams { errors, ..EpParams::default() })
        .map_err(|e| Failure::Run(format!("cannot connect: {e}")))
}

pub fn sync(spec: &Spec) -> DeliveryComplete {
    match spec.test {
        Test::TagSyncLat | Test::TagSyncBw => DeliveryComplete::Yes,
        _ => DeliveryComplete::No,
    }
}

pub fn message_path(spec: &Spec) -> &'static str {
    match spec.test {
        Test::StreamLat | Test::StreamBw => "stream",
        _ => "am",
    }
}

pub fn tag_path(spec: &Spec, worker: &Worker, ep: &Ep) -> UsedTransport {
    let from = |mem| ep.protocols().table_from(mem, Kind::Tagged, sync(spec));
    let table = match (spec.memory, spec.layout) {
        // Pieces are gathered wherever they are.
        (_, Some(Layout::Iov)) => from(MemKind::Host),
        (Memory::Plain, _) => ep.protocols().table(Kind::Tagged, sync(spec)),
        _ => from(MemKind::Allocated),
    };
    path(worker, ep, table.pick(spec.size()).name())
}

pub fn path(worker: &Worker, ep: &Ep, data_path: &str) -> UsedTransport {
    let transport = ep.protocols().transports().first().copied().unwrap_or_default();
    let device = worker.ifaces().into_iter().find(|lane| lane.tl == transport).map(|lane| lane.dev);
    UsedTransport {
        transport: transport.into(),
        device: device.unwrap_or_default(),
        data_path: data_path.into(),
    }
}
