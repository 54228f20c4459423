//! Opening a worker, connecting it, and the names of what it uses: the same for tests of two sides and of groups.
//! Called by `mod` and `group_run`. Runs no loop.

use tools_common::boot::HexBytes;
use tools_common::meter::Reading;
use ucp::select::{Kind, MemKind, Sync};
use ucp::{Address, Context, Ep, EpParams, ErrorMode, Worker};
use ucs::config::Source;
use uct::api::{DevKind, TlResource};

use crate::fail::Failure;
use crate::report::UsedTransport;
use crate::spec::{Flow, Layout, Memory, Spec, Test};

pub fn scale(spec: &Spec, reading: Reading) -> Reading {
    if spec.test.flow() == Flow::PingPong { reading.halved() } else { reading }
}

pub fn open(spec: &Spec, source: &Source) -> Result<Worker, Failure> {
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

pub fn connect(spec: &Spec, worker: &Worker, theirs: &HexBytes) -> Result<Ep, Failure> {
    let address = Address::unpack(&theirs.0).map_err(|e| Failure::Run(e.to_string()))?;
    // A failure reaches the test through its operations; `-e` measures what being told besides costs.
    let errors = if spec.peer_errors { ErrorMode::Peer(Box::new(|_| {})) } else { ErrorMode::None };
    worker.connect(&address, EpParams { errors }).map_err(|e| Failure::Run(format!("cannot connect: {e}")))
}

pub fn sync(spec: &Spec) -> Sync {
    match spec.test {
        Test::TagSyncLat | Test::TagSyncBw => Sync::Yes,
        _ => Sync::No,
    }
}

/// What active messages and streams are to people; their protocols are those of messages.
pub fn message_path(spec: &Spec) -> &'static str {
    match spec.test {
        Test::StreamLat | Test::StreamBw => "stream",
        _ => "am",
    }
}

/// The lane that messages take, and the protocol that this size takes on it.
pub fn tag_path(spec: &Spec, worker: &Worker, ep: &Ep) -> UsedTransport {
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
pub fn path(worker: &Worker, ep: &Ep, data_path: &str) -> UsedTransport {
    let transport = ep.transports().first().copied().unwrap_or_default();
    let device = worker.lanes().into_iter().find(|lane| lane.tl == transport).map(|lane| lane.dev);
    UsedTransport {
        transport: transport.into(),
        device: device.unwrap_or_default(),
        data_path: data_path.into(),
    }
}
