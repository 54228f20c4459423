//! The close of one of several endpoints between two workers: its operations end at both ends, and those of
//! the others go on.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::common::{bytes, context, spin};
use ucp::{
    AmMessage, AmProto, CloseMode, ConnRequest, ConnectParams, Ep, EpParams, Error, ErrorMode, Listener,
    Match, TAG_MASK_FULL, Worker,
};

const LONG: usize = 1 << 20;

/// One end of a connection, and what its error handler was told.
struct End {
    ep: Option<Ep>,
    told: Rc<Cell<Option<Error>>>,
}

impl End {
    fn ep(&self) -> &Ep {
        self.ep.as_ref().unwrap()
    }

    fn close(&mut self, how: CloseMode) -> ucp::FlushRequest {
        self.ep.take().unwrap().close(how)
    }

    fn peer(&self) -> ucp::PeerId {
        self.ep().peer()
    }
}

fn handler() -> (EpParams, Rc<Cell<Option<Error>>>) {
    let told = Rc::new(Cell::new(None));
    let heard = told.clone();
    let errors = ErrorMode::Peer(Box::new(move |error| {
        assert!(heard.replace(Some(error)).is_none(), "told once");
    }));
    (EpParams { errors, ..EpParams::default() }, told)
}

/// Two workers, or one, with several connections between them.
struct Net {
    client: Worker,
    server: Worker,
    connections: Vec<[End; 2]>,
    _listener: Listener,
}

impl Net {
    fn new(tls: &str, to_itself: bool, connections: usize) -> Net {
        let context = context(tls);
        let server = context.worker().unwrap();
        let client = if to_itself { server.clone() } else { context.worker().unwrap() };
        let requests: Rc<RefCell<Vec<ConnRequest>>> = Rc::default();
        let to = requests.clone();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let listener = server.listen(any, move |request| to.borrow_mut().push(request)).unwrap();
        let mut net = Net { client, server, connections: Vec::new(), _listener: listener };
        for _ in 0..connections {
            let (ep, told) = handler();
            let params = ConnectParams { ep, ..ConnectParams::default() };
            let ep = net.client.connect_to(net._listener.local_addr(), params).unwrap();
            net.until(|| !requests.borrow().is_empty());
            let request = requests.borrow_mut().pop().unwrap();
            let (params, heard) = handler();
            let back = net.server.accept(request, params).unwrap();
            net.connections.push([End { ep: Some(ep), told }, End { ep: Some(back), told: heard }]);
            net.exchange(net.connections.len() - 1);
        }
        net
    }

    fn until(&self, mut done: impl FnMut() -> bool) {
        spin(&[&self.client, &self.server], &mut done);
    }

    fn end(&self, connection: usize, end: usize) -> &End {
        &self.connections[connection][end]
    }

    /// Messages both ways on a connection that lives.
    fn exchange(&self, connection: usize) {
        for (end, to) in [(0, &self.server), (1, &self.client)] {
            for len in [8, 100_000] {
                let tag = 1000 + 2 * connection as u64 + end as u64;
                let send = self.end(connection, end).ep().tag_send(tag, bytes(3, len));
                let recv = to.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(len));
                self.until(|| recv.is_done() && send.is_done());
                assert!(recv.wait().1 == bytes(3, len) && send.wait().0 == Ok(()));
            }
        }
    }

    /// Closes one end by force. Returns once the other end has been told.
    fn force(&mut self, connection: usize, end: usize) {
        let peer = self.end(connection, 1 - end).peer();
        assert_eq!(self.connections[connection][end].close(CloseMode::Force).wait(), Ok(()));
        self.until(|| self.end(connection, 1 - end).told.get().is_some());
        let other = self.end(connection, 1 - end);
        assert_eq!(other.told.get(), Some(Error::Reset(peer)));
        assert_eq!(other.ep().tag_send(1, vec![1]).wait().0, Err(Error::Reset(peer)));
    }
}

/// Sends of both connections wait for receives. Those of the closed one end at both ends, the others arrive.
// [M11.21]
fn sends_end_with_their_endpoint(tls: &str, to_itself: bool) {
    for end in [0, 1] {
        let mut net = Net::new(tls, to_itself, 2);
        let mut sends: [Vec<_>; 4] = Default::default();
        for (connection, of) in net.connections.iter().enumerate() {
            for (at, end) in of.iter().enumerate() {
                let send = &mut sends[2 * connection + at];
                let tag = 10 * connection as u64 + at as u64;
                send.push(end.ep().tag_send_sync(tag, bytes(tag, 8)));
                send.push(end.ep().tag_send(tag, bytes(tag, LONG)));
                send.push(end.ep().tag_send_sync(tag, bytes(tag, 30_000)));
            }
        }
        for _ in 0..200 {
            net.client.progress();
            net.server.progress();
        }
        net.force(0, end);
        net.until(|| sends[..2].iter().flatten().all(|send| send.is_done()));
        let [first, second, rest @ ..] = sends;
        let how = [first, second].map(|of| of.into_iter().map(|send| send.wait().0).collect::<Vec<_>>());
        let peer = net.end(0, 1 - end).peer();
        assert!(how[end].iter().all(|how| *how == Err(Error::Cancelled)), "{how:?}");
        assert!(how[1 - end].iter().all(|how| *how == Err(Error::Reset(peer))), "{how:?}");
        for (at, of) in rest.into_iter().enumerate() {
            let (to, tag) = ([&net.server, &net.client][at], 10 + at as u64);
            for (send, len) in of.into_iter().zip([8, LONG, 30_000]) {
                let recv = to.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(len));
                net.until(|| recv.is_done() && send.is_done());
                assert!(recv.wait().1 == bytes(tag, len) && send.wait().0 == Ok(()));
            }
        }
        assert_eq!((net.end(1, 0).told.get(), net.end(1, 1).told.get()), (None, None));
        net.exchange(1);
    }
}

/// A receive that has half of a long message ends with an error.
fn matched_receives_end(tls: &str) {
    let mut net = Net::new(tls, false, 2);
    for steps in 0..12 {
        let tag = 77 + steps;
        let send = net.end(0, 0).ep().tag_send(tag, bytes(1, 8 * LONG));
        let recv = net.server.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8 * LONG));
        for _ in 0..steps {
            net.client.progress();
            net.server.progress();
        }
        // It may be served by one copy.
        if recv.is_done() {
            assert_eq!((recv.wait().0.map(drop), send.wait().0), (Ok(()), Ok(())));
            continue;
        }
        net.force(0, 0);
        net.until(|| send.is_done());
        let ended = send.wait().0;
        assert!([Ok(()), Err(Error::Cancelled)].contains(&ended), "{ended:?}");
        // A receive that nothing has matched waits on.
        let cancelled = recv.cancel();
        net.until(|| recv.is_done());
        assert!(cancelled || recv.wait().0.is_err() || ended == Ok(()));
        break;
    }
    net.exchange(1);
}

/// Announced data that is withdrawn fails its receive: begun or not, also of a message that is kept.
// [M11.22]
fn announced_data_ends(tls: &str) {
    for received in [false, true] {
        let mut net = Net::new(tls, false, 2);
        let kept: Rc<RefCell<Vec<AmMessage>>> = Rc::default();
        let to = kept.clone();
        net.server.set_am_handler(1, move |message| to.borrow_mut().push(message));
        let sends = [0, 1].map(|connection| {
            let ep = net.end(connection, 0).ep();
            ep.am_send_with(AmProto::Rendezvous, 1, &[connection as u8], bytes(connection as u64, LONG))
        });
        net.until(|| kept.borrow().len() == 2);
        let mut messages = std::mem::take(&mut *kept.borrow_mut());
        messages.sort_by_key(|message| message.header()[0]);
        let [first, second]: [AmMessage; 2] = messages.try_into().unwrap();
        let (mut begun, mut later) = (None, Some(first));
        if received {
            begun = later.take().map(|message| message.recv(Vec::with_capacity(LONG)));
        }
        net.force(0, 0);
        let recv = begun.unwrap_or_else(|| later.unwrap().recv(Vec::with_capacity(LONG)));
        let [first, other] = sends;
        net.until(|| recv.is_done() && first.is_done());
        let (got, sent) = (recv.wait(), first.wait().0);
        // It may have been read before the close.
        assert!(got.0.is_err() || received && got.1 == bytes(0, LONG), "{:?}", got.0);
        assert!(sent == Err(Error::Cancelled) || received && sent == Ok(()), "{sent:?}");
        let recv = second.recv(Vec::with_capacity(LONG));
        net.until(|| recv.is_done() && other.is_done());
        assert!(recv.wait().1 == bytes(1, LONG) && other.wait().0 == Ok(()));
        net.server.clear_am_handler(1);
        net.exchange(1);
    }
}

/// An answer to a message goes by the connection on which it has come, and by a new endpoint once that has
/// failed.
fn answers_to_a_closed_connection(tls: &str) {
    let mut net = Net::new(tls, false, 2);
    let kept: Rc<RefCell<Vec<AmMessage>>> = Rc::default();
    let to = kept.clone();
    net.server.set_am_handler(1, move |message| to.borrow_mut().push(message));
    let sent = net.end(0, 0).ep().am_send_with(AmProto::Eager, 1, b"", vec![7]);
    net.until(|| kept.borrow().len() == 1 && sent.is_done());
    let message = kept.borrow_mut().pop().unwrap();
    for tag in [8, 9] {
        let reply = message.reply_ep().expect("the peer lives");
        assert_eq!(reply.socket_addrs().is_some(), tag == 8, "the endpoint of the connection");
        let send = reply.tag_send(tag, bytes(tag, 100));
        let recv = net.client.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(100));
        net.until(|| recv.is_done() && send.is_done());
        assert!(recv.wait().1 == bytes(tag, 100) && send.wait().0 == Ok(()));
        if tag == 8 {
            net.force(0, 0);
        }
    }
    net.server.clear_am_handler(1);
    net.exchange(1);
}

/// Two endpoints of `a` to the address of `b`, and one back, whose failure is told. They have met.
struct ByAddress {
    a: Worker,
    b: Worker,
    back: Ep,
    eps: [Ep; 2],
    told: Rc<Cell<Option<Error>>>,
}

impl ByAddress {
    fn on(tls: &str) -> ByAddress {
        let context = context(tls);
        let (a, b) = (context.worker().unwrap(), context.worker().unwrap());
        let (params, told) = handler();
        let back = b.connect(&a.address(), params).unwrap();
        let eps = [0, 1].map(|_| a.connect(&b.address(), EpParams::default()).unwrap());
        let hello = (back.tag_send(1, vec![1]), a.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(1)));
        spin(&[&a, &b], &mut || hello.0.is_done() && hello.1.is_done());
        ByAddress { a, b, back, eps, told }
    }
}

/// Two endpoints to one address: closing one leaves the other, closing the last ends the conversation.
fn endpoints_to_an_address(tls: &str) {
    let ByAddress { a, b, back, eps: [one, two], told } = ByAddress::on(tls);
    let until = |done: &mut dyn FnMut() -> bool| spin(&[&a, &b], done);
    let ends = one.tag_send(2, bytes(2, LONG));
    let stays = two.tag_send(3, bytes(3, LONG));
    assert_eq!(one.close(CloseMode::Force).wait(), Ok(()));
    until(&mut || ends.is_done());
    assert_eq!(ends.wait().0, Err(Error::Cancelled));
    let recv = b.recv(Match::tagged(3, TAG_MASK_FULL), Vec::with_capacity(LONG));
    until(&mut || recv.is_done() && stays.is_done());
    assert!(recv.wait().1 == bytes(3, LONG) && stays.wait().0 == Ok(()));
    assert_eq!(told.get(), None);
    let peer = back.peer();
    assert_eq!(two.close(CloseMode::Force).wait(), Ok(()));
    until(&mut || told.get().is_some());
    assert_eq!(told.get(), Some(Error::Reset(peer)));
}

/// A dropped endpoint does not stay open, though a flush of it goes on: the close of the other is the last.
fn one_is_dropped(tls: &str) {
    let ByAddress { a, b, back, eps: [one, two], told } = ByAddress::on(tls);
    let until = |done: &mut dyn FnMut() -> bool| spin(&[&a, &b], done);
    let (send, flush) = (one.tag_send_sync(2, bytes(2, LONG)), one.flush());
    drop(one);
    assert_eq!(two.close(CloseMode::Force).wait(), Ok(()));
    until(&mut || send.is_done() && flush.is_done() && told.get().is_some());
    assert!(send.wait().0.is_err() && flush.wait().is_err());
    assert_eq!(told.get(), Some(Error::Reset(back.peer())));
}

/// Endpoints that were made of an address share a stream. It ends where the close of one leaves a gap.
// [M11.23]
fn stream_of_several(tls: &str) {
    let context = context(tls);
    let (a, b) = (context.worker().unwrap(), context.worker().unwrap());
    let back = b.connect(&a.address(), EpParams::default()).unwrap();
    let [one, two] = [0, 1].map(|_| a.connect(&b.address(), EpParams::default()).unwrap());
    let until = |done: &mut dyn FnMut() -> bool| spin(&[&a, &b], done);
    let hello = (back.tag_send(1, vec![1]), a.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(1)));
    until(&mut || hello.0.is_done() && hello.1.is_done());
    let pieces = 600;
    let sends: Vec<_> = (0..pieces).map(|n| one.stream_send(bytes(n, 3000))).collect();
    assert_eq!(one.close(CloseMode::Force).wait(), Ok(()));
    let later = two.stream_send(b"later".to_vec());
    let all: Vec<u8> = (0..pieces).flat_map(|n| bytes(n, 3000)).chain(*b"later").collect();
    let mut got = Vec::new();
    until(&mut || match back.stream_recv_data() {
        Ok(data) => {
            got.extend_from_slice(data.as_deref().unwrap_or_default());
            got.len() >= all.len()
        }
        Err(error) => {
            assert!(matches!(error, Error::Aborted(..)), "{error:?}");
            true
        }
    });
    assert!(all.starts_with(&got), "{} bytes", got.len());
    until(&mut || sends.iter().all(|send| send.is_done()) && later.is_done());
}

/// A close of one by flush lets its sends arrive; the other connection goes on.
fn flush_of_one(tls: &str) {
    let mut net = Net::new(tls, false, 2);
    let send = net.end(0, 0).ep().tag_send(5, bytes(5, LONG));
    let close = net.connections[0][0].close(CloseMode::Flush(Duration::from_secs(50)));
    let recv = net.server.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(LONG));
    net.until(|| close.is_done() && recv.is_done() && send.is_done());
    assert!(recv.wait().1 == bytes(5, LONG) && send.wait().0 == Ok(()) && close.wait() == Ok(()));
    net.exchange(1);
    assert_eq!(net.end(1, 1).told.get(), None);
}

fn sends_between_two_workers(tls: &str) {
    sends_end_with_their_endpoint(tls, false);
}

fn sends_of_a_worker_to_itself(tls: &str) {
    sends_end_with_their_endpoint(tls, true);
}

on! {
    [sends_between_two_workers sends_of_a_worker_to_itself matched_receives_end announced_data_ends
     endpoints_to_an_address flush_of_one one_is_dropped stream_of_several answers_to_a_closed_connection]
    posix: "posix", soft: "soft", itself: "self,posix", several: "self,posix,cma,efa", reorder: "reorder",
}
