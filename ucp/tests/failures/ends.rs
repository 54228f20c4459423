//! Voluntary ends: each kind of operation, while the peer closes its endpoint by force, closes it with a
//! flush, drops its worker, or the caller cancels. Then a new connection, again and again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::{Pair, bytes, spin};
use ucp::mt::{SharedEp, SharedEpParams, SharedRequest};
use ucp::{
    Access, AmMessage, AmProto, AtomicOp, CloseMode, EpParams, Error, ErrorMode, FetchRequest, Match, Mem,
    Message, MultiRecv, RecvRequest, Rkey, SendRequest, TAG_MASK_FULL, Worker,
};

const LONG: usize = 4 << 20;

/// An operation that B has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    LongSend,
    SyncSend,
    ClaimedSend,
    AmKept,
    AmWithoutHandler,
    Stream,
    NamedRecv,
    StreamRecv,
    Put,
    Get,
    AtomicFetch,
    MultiRecv,
}

const KINDS: [Kind; 12] = [
    Kind::LongSend,
    Kind::SyncSend,
    Kind::ClaimedSend,
    Kind::AmKept,
    Kind::AmWithoutHandler,
    Kind::Stream,
    Kind::NamedRecv,
    Kind::StreamRecv,
    Kind::Put,
    Kind::Get,
    Kind::AtomicFetch,
    Kind::MultiRecv,
];

/// The event that ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Force,
    ForceAndReconnect,
    Flush,
    DropWorker,
    Cancel,
}

const ENDS: [End; 5] = [End::Force, End::ForceAndReconnect, End::Flush, End::DropWorker, End::Cancel];

enum Op {
    Send(SendRequest<Vec<u8>>),
    Am(ucp::AmSend<Vec<u8>>),
    Recv(RecvRequest<Vec<u8>>),
    Fetch(FetchRequest<u64>),
    Multi(MultiRecv<Vec<u8>>),
    /// Of a worker that threads share, on an endpoint of its own.
    SharedSend(SharedRequest<SendRequest<Vec<u8>>>, SharedEp),
    SharedRecv(SharedRequest<RecvRequest<Vec<u8>>>),
}

impl Op {
    fn is_done(&self) -> bool {
        match self {
            Op::Send(op) => op.is_done(),
            Op::Am(op) => op.is_done(),
            Op::Recv(op) => op.is_done(),
            Op::Fetch(op) => op.is_done(),
            Op::Multi(op) => op.is_done(),
            Op::SharedSend(op, _) => op.is_done().unwrap(),
            Op::SharedRecv(op) => op.is_done().unwrap(),
        }
    }

    fn cancel(&mut self) -> bool {
        match self {
            Op::Send(op) => op.cancel(),
            Op::Am(op) => op.cancel(),
            Op::Recv(op) => op.cancel(),
            Op::Fetch(op) => op.cancel(),
            Op::Multi(op) => op.cancel(),
            Op::SharedSend(op, _) => op.cancel().unwrap(),
            Op::SharedRecv(op) => op.cancel().unwrap(),
        }
    }

    fn wait(self) -> Result<(), Error> {
        match self {
            Op::Send(op) => op.wait().0,
            Op::Am(op) => op.wait().0,
            Op::Recv(op) => op.wait().0.map(drop),
            Op::Fetch(op) => op.wait().map(drop),
            Op::Multi(op) => op.finish().0,
            Op::SharedSend(mut op, ep) => {
                let ended = op.wait().unwrap().0;
                drop(ep);
                ended
            }
            Op::SharedRecv(mut op) => op.wait().unwrap().0.map(drop),
        }
    }
}

/// The parts of B's operation that A holds.
#[derive(Default)]
struct Held {
    kept: Rc<RefCell<Vec<AmMessage>>>,
    claimed: Option<Message>,
    mem: Option<Mem>,
    memory: Vec<u8>,
}

/// Begins one of the operations of a worker that threads share. `None`: it, or the pair, is of another kind.
fn begin_shared(pair: &Pair, kind: Kind) -> Option<Op> {
    let [_, b] = pair.shared.as_ref()?.workers() else { return None };
    let ep = || b.connect(&pair.a.address(), SharedEpParams::default()).unwrap();
    match kind {
        Kind::LongSend => {
            let ep = ep();
            Some(Op::SharedSend(ep.tag_send(1, bytes(1, LONG)), ep))
        }
        Kind::SyncSend => {
            let ep = ep();
            Some(Op::SharedSend(ep.tag_send_sync(1, vec![1; 8]), ep))
        }
        Kind::NamedRecv => {
            let from = Match::tagged(1, TAG_MASK_FULL).from(&pair.ba);
            Some(Op::SharedRecv(b.recv(from, Vec::with_capacity(8))))
        }
        _ => None,
    }
}

/// Begins an operation of B and brings it to where it waits for A.
fn begin(pair: &Pair, kind: Kind) -> (Op, Held) {
    let mut held = Held::default();
    if kind == Kind::AmKept {
        let kept = held.kept.clone();
        pair.a.set_am_handler(1, move |message| kept.borrow_mut().push(message));
    }
    if let Some(op) = begin_shared(pair, kind) {
        pair.settle();
        return (op, held);
    }
    let long = || bytes(1, LONG);
    let ep = &pair.ba;
    let op = match kind {
        Kind::LongSend | Kind::ClaimedSend => Op::Send(ep.tag_send(1, long())),
        Kind::SyncSend => Op::Send(ep.tag_send_sync(1, vec![1; 8])),
        Kind::AmKept | Kind::AmWithoutHandler => {
            Op::Am(ep.am_send_with(AmProto::Rendezvous, 1, b"head", long()))
        }
        Kind::Stream => Op::Send(ep.stream_send(long())),
        Kind::NamedRecv => {
            Op::Recv(pair.b.recv(Match::tagged(1, TAG_MASK_FULL).from(ep), Vec::with_capacity(8)))
        }
        Kind::StreamRecv => Op::Recv(ep.stream_recv(vec![0; 8])),
        Kind::MultiRecv => {
            let from = Match::tagged(1, TAG_MASK_FULL).from(ep);
            Op::Multi(pair.b.recv_multi(from, Vec::with_capacity(8), 1).map_err(|(e, _)| e).unwrap())
        }
        Kind::Put | Kind::Get | Kind::AtomicFetch => {
            held.memory = vec![0; LONG];
            let access = Access::all();
            // SAFETY: `held` keeps the vector until the region is dropped.
            let mem = unsafe { pair.a.mem_map(held.memory.as_mut_ptr(), LONG, access) }.unwrap();
            let rkey = ep.unpack_rkey(&mem.pack_rkey()).unwrap();
            let op = match kind {
                // By packets, which A has not seen.
                Kind::AtomicFetch => {
                    let rkey = Rkey::from_key(mem.key());
                    let op = Op::Fetch(ep.atomic_fetch(AtomicOp::Sum, 1, mem.addr(), &rkey));
                    held.mem = Some(mem);
                    return (op, held);
                }
                Kind::Put => Op::Send(ep.put(long(), mem.addr(), &rkey)),
                _ => Op::Recv(ep.get(vec![0; LONG], mem.addr(), &rkey)),
            };
            held.mem = Some(mem);
            (0..3).for_each(|_| _ = pair.a.progress() + pair.b.progress());
            return (op, held);
        }
    };
    pair.settle();
    if kind == Kind::ClaimedSend {
        held.claimed = pair.a.mprobe(Match::tagged(1, TAG_MASK_FULL));
        assert!(held.claimed.is_some());
    }
    (op, held)
}

/// A takes what B has sent, sends what B waits for, and B's operation ends well.
fn finish(pair: &Pair, kind: Kind, op: Op, held: &mut Held) {
    let back = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
    let mut room = Vec::new();
    match kind {
        Kind::LongSend | Kind::SyncSend => {
            room.push(pair.a.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(LONG)));
        }
        Kind::ClaimedSend => room.push(held.claimed.take().unwrap().recv(Vec::with_capacity(LONG))),
        Kind::AmKept => {
            let message = held.kept.borrow_mut().pop().unwrap();
            room.push(message.recv(Vec::with_capacity(LONG)));
        }
        Kind::AmWithoutHandler => pair.a.set_am_handler(1, drop),
        Kind::Stream => room.push(back.stream_recv_full(vec![0; LONG])),
        Kind::NamedRecv | Kind::MultiRecv => back.tag_send(1, vec![2; 8]).detach(),
        Kind::StreamRecv => back.stream_send(vec![2; 8]).detach(),
        Kind::Put | Kind::Get | Kind::AtomicFetch => {}
    }
    pair.until(|| op.is_done() && room.iter().all(RecvRequest::is_done));
    assert_eq!(op.wait(), Ok(()), "{kind:?}");
}

impl Kind {
    /// Whether a device, or progress of A that comes before the end, may serve it.
    fn may_be_served(self) -> bool {
        matches!(self, Kind::Put | Kind::Get | Kind::AtomicFetch)
    }
}

fn each_operation_ends(tls: &str) {
    for end in ENDS {
        for kind in KINDS {
            let why = format!("{tls}: {kind:?}, {end:?}");
            ends(tls, kind, end, &why);
        }
    }
}

fn ends(tls: &str, kind: Kind, end: End, why: &str) {
    let mut pair = Pair::on(tls);
    pair.meet();
    let told = Rc::new(Cell::new(None));
    let heard = told.clone();
    let errors = ErrorMode::Peer(Box::new(move |error| heard.set(Some(error))));
    pair.ba = pair.b.connect(&pair.a.address(), EpParams { errors, ..EpParams::default() }).unwrap();
    let (op, mut held) = begin(&pair, kind);
    let peer = pair.ba.peer();
    let (aborted, reset) = (Err(Error::Aborted(peer, 4127)), Err(Error::Reset(peer)));
    match end {
        End::Force | End::ForceAndReconnect => {
            let ab = std::mem::replace(&mut pair.ab, pair.a.connect_later(EpParams::default()).0);
            assert_eq!(ab.close(CloseMode::Force).wait(), Ok(()), "{why}");
            if end == End::ForceAndReconnect {
                pair.ab = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
            }
            let flush = pair.ba.flush();
            pair.until(|| op.is_done() && flush.is_done() && told.get().is_some());
            let moved = kind.may_be_served();
            let ended = op.wait();
            let expected = if matches!(kind, Kind::StreamRecv) { reset } else { aborted };
            assert!(ended == expected || moved && ended == Ok(()), "{why}: {ended:?}");
            // On a wire without order it may end before the close is heard.
            let flushed = flush.wait();
            assert!(flushed == reset || tls == "reorder" && flushed == Ok(()), "{why}: {flushed:?}");
            assert_eq!(told.get().map(Err), Some(reset), "{why}");
            assert_eq!(pair.ba.tag_send(1, vec![1]).wait().0, reset, "{why}");
            // Nothing of it is left at A.
            assert_eq!(pair.a.probe(Match::tagged(1, TAG_MASK_FULL)).map(drop), None, "{why}");
            for message in held.kept.borrow_mut().drain(..) {
                assert!(message.recv(Vec::with_capacity(LONG)).wait().0.is_err(), "{why}");
            }
            if let Some(claimed) = held.claimed.take() {
                assert!(claimed.recv(Vec::with_capacity(LONG)).wait().0.is_err(), "{why}");
            }
            reconnects(&mut pair, 2);
        }
        End::Flush => {
            let ab = std::mem::replace(&mut pair.ab, pair.a.connect_later(EpParams::default()).0);
            let close = ab.close(CloseMode::Flush(Duration::from_secs(50)));
            pair.until(|| close.is_done());
            assert_eq!(close.wait(), Ok(()), "{why}");
            pair.settle();
            finish(&pair, kind, op, &mut held);
            assert_eq!(told.get(), None, "{why}");
        }
        End::DropWorker => {
            // A handler that keeps messages keeps their worker.
            pair.a.clear_am_handler(1);
            held.kept.borrow_mut().clear();
            drop(held);
            let Pair { a, b, ab, ba, shared } = pair;
            drop((ab, a, shared));
            let start = Instant::now();
            spin(&[&b], &mut || op.is_done() || start.elapsed() > Duration::from_secs(30));
            assert!(op.is_done(), "{why}: hangs");
            let ended = op.wait();
            // What has been claimed or kept is discarded first, and so received.
            let received = matches!(kind, Kind::ClaimedSend | Kind::AmKept) || kind.may_be_served();
            let moved = received && ended == Ok(());
            let is_gone = |error| {
                matches!(error, Error::PeerGone(p) | Error::Unreachable(p)
                | Error::Unresponsive(p) if p == peer)
            };
            assert!(moved || ended.is_err_and(is_gone), "{why}: {ended:?}");
            drop(ba);
        }
        End::Cancel => {
            let mut op = op;
            let cancelled = op.cancel();
            // Documented: what an active message has announced, and a stream that has begun, go on.
            let goes_on = matches!(kind, Kind::AmKept | Kind::AmWithoutHandler | Kind::Stream);
            assert!(cancelled != goes_on || kind.may_be_served(), "{why}: {cancelled}");
            if !cancelled {
                return finish(&pair, kind, op, &mut held);
            }
            pair.until(|| op.is_done());
            assert_eq!(op.wait(), Err(Error::Cancelled), "{why}");
            pair.settle();
            assert_eq!(pair.a.probe(Match::tagged(1, TAG_MASK_FULL)).map(drop), None, "{why}");
            if let Some(claimed) = held.claimed.take() {
                assert_eq!(claimed.recv(Vec::with_capacity(LONG)).wait().0, Err(Error::NoMessage), "{why}");
            }
            let flush = pair.ba.flush();
            pair.until(|| flush.is_done());
            assert_eq!(flush.wait(), Ok(()), "{why}");
            pair.meet();
        }
    }
}

/// Closes by force and connects again, from one side, the other, and both.
fn reconnects(pair: &mut Pair, times: u64) {
    pair.ab = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
    pair.ba = pair.b.connect(&pair.a.address(), EpParams::default()).unwrap();
    for n in 0..times {
        for (a_closes, b_closes) in [(true, false), (false, true), (true, true)] {
            let addresses = [pair.a.address(), pair.b.address()];
            let late = [&pair.a, &pair.b].map(|worker| worker.connect_later(EpParams::default()).0);
            let [no_ab, no_ba] = late;
            let ab = std::mem::replace(&mut pair.ab, no_ab);
            let ba = std::mem::replace(&mut pair.ba, no_ba);
            // What is sent across a close is received, or the sender is told.
            let (across, tag) = (pair.a.tag_recv(u64::MAX, TAG_MASK_FULL, Vec::with_capacity(8)), 5 + n);
            if a_closes {
                assert_eq!(ab.close(CloseMode::Force).wait(), Ok(()));
            }
            let sent = ba.tag_send(u64::MAX, n.to_le_bytes().to_vec()).wait().0;
            let flush = ba.flush();
            if b_closes {
                let _ = ba.close(CloseMode::Force).wait();
            }
            pair.until(|| flush.is_done());
            let flushed = flush.wait();
            pair.settle();
            // The flush of the endpoint may have ended before the close was heard.
            let all = pair.b.flush();
            pair.until(|| all.is_done());
            let told = sent.is_err() || flushed.is_err() || all.wait().is_err();
            if a_closes && !across.is_done() {
                assert!(told || b_closes, "lost and not told");
            }
            drop(across);
            pair.ab = pair.a.connect(&addresses[1], EpParams::default()).unwrap();
            pair.ba = pair.b.connect(&addresses[0], EpParams::default()).unwrap();
            for (from, to, ep) in [(&pair.a, &pair.b, &pair.ab), (&pair.b, &pair.a, &pair.ba)] {
                for len in [8, 20_000, 300_000] {
                    let body = bytes(n, len);
                    let send = ep.tag_send_sync(tag, body.clone());
                    let recv = to.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(len));
                    spin(&[from, to], &mut || send.is_done() && recv.is_done());
                    let (ended, got) = recv.wait();
                    assert_eq!((send.wait().0, ended.map(|status| status.len)), (Ok(()), Ok(len)));
                    assert!(got == body);
                }
            }
        }
    }
}

fn connections_follow_each_other(tls: &str) {
    let mut pair = Pair::on(tls);
    reconnects(&mut pair, 34);
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().held_bytes()), (0, 0));
    assert_eq!((pair.b.diagnostics().requests(), pair.a.diagnostics().held_bytes()), (0, 0));
}

/// The stream, the active messages and the puts of a new connection have nothing of the last one.
fn next_connection_begins_anew(tls: &str) {
    let mut pair = Pair::on(tls);
    pair.meet();
    let kept: Rc<RefCell<Vec<AmMessage>>> = Rc::default();
    let to = kept.clone();
    pair.a.set_am_handler(1, move |message| to.borrow_mut().push(message));
    for n in 0..10u8 {
        pair.ba.stream_send(vec![99; 100]).detach();
        let long = pair.ba.stream_send(vec![98; LONG]);
        let am = pair.ba.am_send_with(AmProto::Rendezvous, 1, &[n], vec![97; LONG]);
        pair.settle();
        let old = kept.borrow_mut().pop().unwrap();
        let late = pair.a.connect_later(EpParams::default()).0;
        let _ = std::mem::replace(&mut pair.ab, late).close(CloseMode::Force).wait();
        let ab = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
        let recv = ab.stream_recv_full(vec![0; 3]);
        pair.until(|| long.is_done() && am.is_done());
        assert!(long.wait().0.is_err() && am.wait().0.is_err());
        pair.settle();
        assert!(!recv.is_done(), "{n}: nothing of the last connection");
        let ba = pair.b.connect(&pair.a.address(), EpParams::default()).unwrap();
        ba.stream_send(vec![n; 3]).detach();
        let am = ba.am_send_with(AmProto::Rendezvous, 1, &[n], vec![n; 50_000]);
        pair.until(|| recv.is_done() && !kept.borrow().is_empty());
        assert_eq!(recv.wait().1, vec![n; 3]);
        // The data of the old one never come, and those of the new one do.
        let old = old.recv(Vec::with_capacity(LONG));
        let new = kept.borrow_mut().pop().unwrap().recv(Vec::with_capacity(50_000));
        pair.until(|| old.is_done() && new.is_done() && am.is_done());
        assert!(old.wait().0.is_err());
        assert!(new.wait().1 == vec![n; 50_000] && am.wait().0 == Ok(()));
        (pair.ab, pair.ba) = (ab, ba);
    }
    pair.settle();
    kept.borrow_mut().clear();
    // Receives for active messages stay posted.
    pair.a.clear_am_handler(1);
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().requests()), (32, 0));
}

/// With its last endpoint, receives from a peer's stream end.
fn stream_receives_end_with_their_endpoint(tls: &str) {
    for how in 0..3 {
        let pair = Pair::on(tls);
        pair.meet();
        let other = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
        let none = pair.ab.stream_recv(vec![0; 8]);
        let full = other.stream_recv_full(vec![0; 8]);
        drop(other);
        pair.settle();
        assert!(!none.is_done() && !full.is_done(), "an endpoint is left");
        pair.ba.stream_send(vec![1; 11]).detach();
        pair.until(|| none.is_done());
        pair.settle();
        let Pair { a, b, ab, ba, shared: _shared } = pair;
        let last = ab.stream_recv(vec![0; 8]);
        match how {
            0 => drop(ab),
            1 => drop(ab.close(CloseMode::Flush(Duration::from_secs(9)))),
            _ => drop(ab.close(CloseMode::Force)),
        }
        spin(&[&a, &b], &mut || full.is_done() && last.is_done());
        // What it holds is not lost.
        let (ended, got) = full.wait();
        assert_eq!((ended.map(|status| status.len), &got[..3]), (Ok(3), &[1; 3][..]), "{how}");
        assert_eq!(last.wait().0.map(drop), Err(Error::Cancelled), "{how}");
        drop(ba);
    }
}

fn workers(pair: &Pair) -> [&Worker; 2] {
    [&pair.a, &pair.b]
}

/// Both sides close at once, with operations of both under way.
fn both_sides_close(tls: &str) {
    for kind in KINDS {
        let mut pair = Pair::on(tls);
        pair.meet();
        let (op, held) = begin(&pair, kind);
        let other = pair.ab.tag_send(3, bytes(2, LONG));
        let late = workers(&pair).map(|worker| worker.connect_later(EpParams::default()).0);
        let [no_ab, no_ba] = late;
        let _ = std::mem::replace(&mut pair.ab, no_ab).close(CloseMode::Force).wait();
        let _ = std::mem::replace(&mut pair.ba, no_ba).close(CloseMode::Force).wait();
        pair.until(|| op.is_done() && other.is_done());
        let (op, other) = (op.wait(), other.wait().0);
        let moved = kind.may_be_served();
        assert!((op.is_err() || moved) && other.is_err(), "{kind:?}: {op:?} {other:?}");
        held.kept.borrow_mut().clear();
        drop(held.claimed);
        reconnects(&mut pair, 1);
    }
}

/// Tags of messages that were taken.
fn taken(worker: &Worker) -> BTreeSet<u64> {
    let mut tags = BTreeSet::new();
    while let Some(message) = worker.mprobe(Match::tagged(0, 0)) {
        tags.insert(message.envelope().tag);
        message.discard();
    }
    tags
}

/// Messages sent before B hears of the close are taken, or the flush of B's worker fails.
fn lost_messages_are_told(tls: &str) {
    let mut pair = Pair::on(tls);
    pair.meet();
    for round in 0..20u64 {
        let count = round % 5;
        for tag in 0..count {
            pair.ba.tag_send(tag, vec![1; 8]).detach();
        }
        if round % 2 == 0 {
            pair.settle();
        }
        let late = pair.a.connect_later(EpParams::default()).0;
        let _ = std::mem::replace(&mut pair.ab, late).close(CloseMode::Force).wait();
        pair.settle();
        let flush = pair.b.flush();
        pair.until(|| flush.is_done());
        let (flushed, got) = (flush.wait(), taken(&pair.a));
        let lost = got.len() as u64 != count;
        assert_eq!(flushed.is_err(), lost, "{round}: {got:?} of {count}");
        assert!(!lost || round % 2 == 1, "{round}: taken before");
        pair.ba = pair.b.connect(&pair.a.address(), EpParams::default()).unwrap();
        pair.ab = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
    }
}

on! {
    [each_operation_ends connections_follow_each_other next_connection_begins_anew
     stream_receives_end_with_their_endpoint both_sides_close lost_messages_are_told]
    loopback: "self",
    posix: "posix",
    kernel: "kernel",
    efa: "efa",
    reorder: "reorder",
    several_nics: "efa*2",
    own_contexts: "apart posix",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}
