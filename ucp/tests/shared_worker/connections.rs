//! Endpoints of shared workers: connected later, flushed and closed, and connected by socket address.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ucp::mt::{LockError, SharedConnectParams, SharedEpParams, SharedWorker, ThreadMode};
use ucp::{
    CloseMode, ConnRequest, ConnectError, ConnectFailure, Error, ListenError, SendParams, TAG_MASK_FULL,
};

use crate::common::{bytes, context};
use crate::{Shared, multi, until_asleep};
/// An endpoint whose peer is told later, by another thread.
fn endpoint_is_connected_later(tls: &str) {
    let pair = Shared::on(tls);
    let (ep, connector) = pair.a.connect_later(SharedEpParams::default()).unwrap();
    let mut sends: Vec<_> = (0..5u64).map(|n| ep.tag_send(1, n.to_le_bytes().to_vec())).collect();
    assert!(connector.is_awaited().unwrap());
    let address = pair.b.address().unwrap();
    thread::scope(|scope| scope.spawn(|| connector.connect(&address).unwrap()).join().unwrap());
    for n in 0..5u64 {
        let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
        pair.until(|| recv.is_done().unwrap());
        assert_eq!({ recv }.wait().unwrap().1, n.to_le_bytes());
    }
    sends.iter_mut().for_each(|send| send.wait().unwrap().0.unwrap());
    let (ep, connector) = pair.a.connect_later(SharedEpParams::default()).unwrap();
    let mut send = ep.tag_send(1, vec![1]);
    drop(connector);
    assert!(matches!(send.wait().unwrap().0, Err(Error::ConnectFailed(_))));
}

/// Flush, cancel, close, and the callback when the peer is gone.
fn endpoints_are_flushed_and_closed(tls: &str) {
    let Shared { a, b, ab, ba } = Shared::on(tls);
    ab.tag_send(1, bytes(1, 100)).detach().unwrap();
    let served = b.spawn_progress().unwrap();
    ab.flush().wait().unwrap();
    a.flush_within(Duration::from_secs(60)).wait().unwrap();
    a.fence().unwrap();
    assert_eq!(b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(100)).wait().unwrap().1, bytes(1, 100));
    let mut recv = a.tag_recv(9, TAG_MASK_FULL, Vec::with_capacity(8));
    assert_eq!(recv.test().map(|ended| ended.is_some()), Ok(false));
    assert_eq!(recv.cancel(), Ok(true));
    assert_eq!(recv.wait().unwrap().0, Err(Error::Cancelled));
    assert!(ab.peer_view().unwrap().is_some() && !ab.protocols(|p| p.transports()).unwrap().is_empty());
    let failed = Arc::new(Mutex::new(None));
    let callback = failed.clone();
    let params = SharedEpParams::on_error(move |error| *callback.lock().unwrap() = Some(error));
    let observed = b.connect(&a.address().unwrap(), params).unwrap();
    observed.tag_send(1, vec![1]).wait().unwrap().0.unwrap();
    assert_eq!(ab.close(CloseMode::Flush(Duration::from_secs(60))).wait(), Ok(()));
    drop((recv, a));
    let start = Instant::now();
    while failed.lock().unwrap().is_none() {
        b.check_peers().unwrap();
        let _ = observed.tag_send(1, vec![1]).wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(60), "the peer's end is not noticed");
    }
    assert!(observed.tag_send(1, vec![1]).wait().unwrap().0.is_err());
    assert_eq!(ba.close(CloseMode::Force).wait().is_ok(), failed.lock().unwrap().is_none());
    drop((served, observed));
}

fn v4() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A listener on one worker, two further workers of the context that accept, each in two threads, and clients
/// of four threads on one worker.
fn other_workers_accept(tls: &str) {
    const CLIENTS: u64 = 16;
    let context = context(tls);
    let workers = [(); 4].map(|()| context.shared_worker(ThreadMode::Multi).unwrap());
    let _served = workers.each_ref().map(|worker| worker.spawn_progress().unwrap());
    let [listening, one, two, clients] = &workers;
    let (to_servers, requests) = channel::<ConnRequest>();
    let listener = listening.listen(v4(), move |request| to_servers.send(request).unwrap()).unwrap();
    let addr = listener.local_addr();
    assert!(listener.worker().address() == listening.address() && addr.port() != 0);
    let requests = Mutex::new(requests.into_iter());
    // The callback holds the other end of the channel, and goes with the listener.
    let next = || requests.lock().unwrap().next();
    let serve = |worker: &SharedWorker| {
        while let Some(request) = next() {
            let (id, from) = (request.client_id(), request.peer_addr());
            let ep = worker.accept(request, SharedEpParams::default()).unwrap();
            assert_eq!(ep.socket_addrs().unwrap().map(|addrs| addrs.remote), Some(from));
            let recv = worker.tag_recv(id, TAG_MASK_FULL, Vec::with_capacity(20_000));
            let (_, question) = { recv }.wait().unwrap();
            ep.tag_send(1000 + id, question).wait().unwrap().0.unwrap();
            ep.flush().wait().unwrap();
        }
    };
    let ask = |client_id: u64| {
        let params = SharedConnectParams { client_id, ..Default::default() };
        let ep = clients.connect_to(addr, params).unwrap();
        let text = bytes(client_id, 20_000);
        let mut answer = clients.tag_recv(1000 + client_id, TAG_MASK_FULL, Vec::with_capacity(text.len()));
        // Before anybody has accepted.
        ep.tag_send(client_id, text.clone()).wait().unwrap().0.unwrap();
        assert!(answer.wait().unwrap().1 == text, "{client_id}");
        ep.flush().wait().unwrap();
    };
    thread::scope(|scope| {
        let serve = &serve;
        for worker in [one, one, two, two] {
            scope.spawn(move || serve(worker));
        }
        let asking = [0, 1, 2, 3]
            .map(|thread| scope.spawn(move || (0..CLIENTS).filter(|id| id % 4 == thread).for_each(ask)));
        asking.into_iter().for_each(|thread| thread.join().unwrap());
        drop(listener);
    });
    let left = clients.connect_to(addr, SharedConnectParams::default()).unwrap();
    let refused = Error::ConnectFailed(ConnectFailure::Refused);
    assert_eq!(left.msg_send(vec![1]).wait().unwrap().0, Err(refused));
}

/// A client that waits for an answer sleeps, and hears that it is not wanted, once.
fn rejected_clients_are_told(tls: &str) {
    let (client, server) = (multi(tls), multi(tls));
    let (asked, requests) = channel::<ConnRequest>();
    let _served = client.spawn_progress().unwrap();
    until_asleep("ucp-progress");
    let _serving = server.spawn_progress().unwrap();
    let listener = server.listen(v4(), move |request| asked.send(request).unwrap()).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    for dropped in [false, true] {
        let callback = told.clone();
        let ep = SharedEpParams::on_error(move |error| callback.lock().unwrap().push(error));
        let params = SharedConnectParams { ep, ..Default::default() };
        let ep = client.connect_to(listener.local_addr(), params).unwrap();
        let mut send = ep.send(vec![1; 100], &SendParams::default());
        let request = requests.recv_timeout(Duration::from_secs(60)).unwrap();
        let answers = || if dropped { drop(request) } else { request.reject() };
        thread::scope(|scope| scope.spawn(answers).join().unwrap());
        let error = Error::ConnectFailed(ConnectFailure::Rejected);
        assert_eq!(send.wait().unwrap(), (Err(error), vec![1; 100]));
        assert_eq!(ep.flush().wait(), Err(error));
        assert_eq!(std::mem::take(&mut *told.lock().unwrap()), [error]);
    }
}

/// In mode single other threads neither listen, accept nor connect, and a listener that they drop is closed
/// by the worker's thread.
#[test]
fn connections_keep_to_the_thread_mode() {
    const WRONG: LockError = LockError::WrongThread;
    let server = context("posix").shared_worker(ThreadMode::Single).unwrap();
    let client = multi("posix");
    let _served = client.spawn_progress().unwrap();
    let (asked, requests) = channel();
    let listener = server.listen(v4(), move |request| asked.send(request).unwrap()).unwrap();
    let addr = listener.local_addr();
    let ep = client.connect_to(addr, SharedConnectParams::default()).unwrap();
    let request = loop {
        server.progress().unwrap();
        if let Ok(request) = requests.try_recv() {
            break request;
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(server.listen(v4(), |_| {}).map(drop), Err(ListenError::Thread(WRONG)));
            let connected = server.connect_to(addr, SharedConnectParams::default());
            assert_eq!(connected.map(drop), Err(ConnectError::Thread(WRONG)));
            let accepted = server.accept(request, SharedEpParams::default());
            assert_eq!(accepted.map(drop), Err(ConnectError::Thread(WRONG)));
            let error = Error::ConnectFailed(ConnectFailure::Rejected);
            assert_eq!(ep.msg_send(vec![1]).wait().unwrap().0, Err(error));
            drop(listener);
        });
    });
    assert!(requests.try_recv().is_err());
    server.progress().unwrap();
    let error = Error::ConnectFailed(ConnectFailure::Refused);
    let left = client.connect_to(addr, SharedConnectParams::default()).unwrap();
    assert_eq!(left.msg_send(vec![1]).wait().unwrap().0, Err(error));
}

on! {
    [endpoint_is_connected_later endpoints_are_flushed_and_closed other_workers_accept rejected_clients_are_told]
    posix: "posix",
    efa: "efa",
    all: "all",
}
