//! Receives into several pieces of memory of contiguous messages, by every protocol, on every lane.

use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::rc::Rc;

use crate::common::{Pair, bytes};
use ucp::rdm::RecvStatus;
use ucp::select::DeliveryComplete;
use ucp::{
    AmProto, Callback, Error, Iov, Match, OpParams, OpStatus, RequestId, SendParams, StreamRecvMode,
    TAG_MASK_FULL,
};
use ucs::config::Source;

/// Lengths of the pieces: from empty to what is long on every lane.
const CUTS: [&[usize]; 9] = [
    &[],
    &[0, 0],
    &[8],
    &[1, 0, 7, 24],
    &[100, 2000, 1],
    &[4000, 4000, 4000],
    &[1, 69_999, 30_000],
    &[300_000, 5, 400_000],
    &[50_000, 60_000, 70_000, 1, 80_000, 90_000],
];

fn rooms(lens: &[usize]) -> Vec<Box<[u8]>> {
    lens.iter().map(|len| vec![0xee; *len].into_boxed_slice()).collect()
}

/// Each message is as long as the pieces, half as long, or longer by one.
fn messages(tls: &str) {
    let pair = Pair::on(tls);
    for (n, lens) in CUTS.iter().enumerate() {
        let room = lens.iter().sum::<usize>();
        for (sync, late, len) in [
            (DeliveryComplete::No, false, room),
            (DeliveryComplete::No, true, room),
            (DeliveryComplete::Yes, false, room / 2),
            (DeliveryComplete::No, true, room / 2),
            (DeliveryComplete::No, false, room + 1),
            (DeliveryComplete::No, true, room + 1),
        ] {
            for tag in [Some(3), None] {
                let whole = bytes(n as u64, len);
                let what = tag.map_or(Match::untagged(), |tag| Match::tagged(tag, TAG_MASK_FULL));
                let recv = || pair.b.recv_iov(what, rooms(lens));
                let posted = (!late).then(recv);
                let send = pair.ab.send(whole.clone(), &SendParams { tag, sync, ..SendParams::default() });
                if late {
                    pair.settle();
                }
                let recv = posted.unwrap_or_else(recv);
                pair.until(|| recv.is_done() && send.is_done());
                let (status, got) = recv.wait();
                let got = got.concat();
                let n = len.min(room);
                assert!(got[..n] == whole[..n], "{lens:?} {len}");
                assert!(got[n..].iter().all(|byte| *byte == 0xee), "{lens:?} {len}");
                match status {
                    Ok(status) => assert!(len <= room && status.len == len),
                    Err(error) => assert_eq!(error, Error::Truncated { len: len as u64, room }),
                }
                assert_eq!(send.wait().0, Ok(()));
            }
        }
    }
    pair.settle();
    assert_eq!(
        (pair.a.diagnostics().requests(), pair.b.diagnostics().requests(), pair.b.diagnostics().held_bytes()),
        (0, 0, 0)
    );
}

/// Every vector gets the length that it received.
fn receive_vector_ends_with_the_message(tls: &str) {
    let pair = Pair::on(tls);
    let lens = |got: &[Vec<u8>]| got.iter().map(Vec::len).collect::<Vec<_>>();
    for len in [0usize, 5, 100, 150, 200] {
        let rooms = [100, 0, 50].map(|len| vec![0; len].into_boxed_slice().into_vec()).to_vec();
        let recv = pair.b.recv_iov(Match::tagged(1, TAG_MASK_FULL), rooms);
        let send = pair.ab.tag_send(1, bytes(1, len));
        pair.until(|| recv.is_done() && send.is_done());
        let (_, got) = recv.wait();
        assert_eq!(lens(&got), [len.min(100), 0, len.min(150) - len.min(100)]);
        assert!(got.concat() == bytes(1, len)[..len.min(150)]);
    }
}

type Ended = Result<RecvStatus, Error>;

unsafe fn note(arg: *mut (), _: RequestId, ended: Ended) {
    let cell: *const Cell<Option<Ended>> = arg.cast();
    // SAFETY: the test keeps the cell until the call is seen.
    unsafe { &*cell }.set(Some(ended));
}

/// With a callback, in a scope, blocking, after a probe; the caller may reuse the list after the call.
fn forms(tls: &str) {
    let pair = Pair::on(tls);
    let whole = bytes(7, 150_000);
    let what = Match::tagged(9, TAG_MASK_FULL);
    let mut bufs = rooms(&[70_000, 1, 79_999]);
    let end: Cell<Option<Ended>> = Cell::new(None);
    let done = Callback::new(note, std::ptr::from_ref(&end).cast_mut().cast());
    let list: Vec<Iov> = bufs.iter_mut().map(|b| Iov { addr: b.as_mut_ptr(), len: b.len() }).collect();
    // SAFETY: buffers and cell live, unread, until the completion below.
    let started = unsafe { pair.b.recv_layout_raw(&list, what, &OpParams::with_callback(done)) }.unwrap();
    drop(list);
    let OpStatus::InProgress(id) = started else { panic!("nothing has come") };
    let send = pair.ab.tag_send(9, whole.clone());
    pair.until(|| end.get().is_some() && send.is_done());
    pair.b.free(id);
    assert!(end.get().unwrap().unwrap().len == whole.len() && bufs.concat() == whole);

    let send = pair.ab.tag_send(9, whole.clone());
    let (mut first, mut rest) = ([0; 1000], vec![0; 149_000]);
    pair.b.scope(|s| {
        let recv = s.recv_iov(what, [&mut first[..], &mut rest[..]]);
        pair.until(|| recv.is_done());
        assert_eq!(recv.wait().map(|status| status.len), Ok(whole.len()));
    });
    assert!([&first[..], &rest[..]].concat() == whole);
    assert_eq!(send.wait().0, Ok(()));

    let send = pair.ab.tag_send(9, vec![5; 12]);
    pair.settle();
    let (mut first, mut rest) = ([0; 4], [0; 20]);
    let mut slices = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut rest)];
    assert_eq!(pair.b.recv_iov_blocking(what, &mut slices).map(|status| status.len), Ok(12));
    assert_eq!((first, &rest[..9]), ([5; 4], &[5, 5, 5, 5, 5, 5, 5, 5, 0][..]));
    assert!(send.is_done());

    let send = pair.ab.tag_send(9, whole.clone());
    pair.settle();
    let recv = pair.b.mprobe(what).unwrap().recv_iov(rooms(&[10, 149_990]));
    pair.until(|| recv.is_done() && send.is_done());
    assert!(recv.wait().1.concat() == whole);
}

fn active_messages(tls: &str) {
    let pair = Pair::on(tls);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(5, move |message| to.borrow_mut().push(message));
    for (n, lens) in CUTS.iter().enumerate() {
        let room = lens.iter().sum::<usize>();
        for (how, len) in [AmProto::Auto, AmProto::Eager, AmProto::Rendezvous]
            .into_iter()
            .flat_map(|how| [(how, room), (how, room / 3), (how, room + 1)])
        {
            let whole = bytes(n as u64, len);
            let send = pair.ab.am_send_with(how, 5, b"header", whole.clone());
            pair.until(|| !kept.borrow().is_empty());
            let message = kept.borrow_mut().pop().unwrap();
            let recv = message.recv_iov(rooms(lens));
            pair.until(|| recv.is_done() && send.is_done());
            let (status, got) = recv.wait();
            assert!(got.concat()[..len.min(room)] == whole[..len.min(room)], "{how:?} {lens:?} {len}");
            let expect = if len > room { Err(Error::Truncated { len: len as u64, room }) } else { Ok(len) };
            assert_eq!(status.map(|status| status.len), expect);
        }
    }
}

fn streams(tls: &str) {
    let pair = Pair::on(tls);
    let whole = bytes(3, 400_000);
    let mut rest = &whole[..];
    let send = pair.ab.stream_send(whole[..150_000].to_vec());
    let more = pair.ab.stream_send(whole[150_000..].to_vec());
    for (lens, until) in [
        (&[100, 0, 7][..], StreamRecvMode::Some),
        (&[100_000, 1, 99_999], StreamRecvMode::WaitAll),
        (&[8, 8], StreamRecvMode::WaitAll),
        (&[3, 400_000], StreamRecvMode::Some),
    ] {
        let recv = pair.ba.stream_recv_iov(rooms(lens), until);
        pair.until(|| recv.is_done());
        let (status, got) = recv.wait();
        let len = status.unwrap().len;
        assert!(len > 0 && (until == StreamRecvMode::Some || len == lens.iter().sum::<usize>()));
        assert!(got.concat()[..len] == *rest.split_off(..len).unwrap(), "{lens:?}");
    }
    // One piece continues where several ended.
    let recv = pair.ba.stream_recv_full(vec![0; rest.len()].into_boxed_slice());
    pair.until(|| recv.is_done() && send.is_done() && more.is_done());
    assert!(*recv.wait().1 == *rest);
}

/// Dropped, cancelled and pending receives: the library's lists are reused, nothing is written late.
fn many_operations_wait(tls: &str) {
    let pair = Pair::on(tls);
    for round in 0..3u64 {
        let mut recvs: Vec<_> =
            (0..1000).map(|n| pair.b.recv_iov(Match::tagged(n, TAG_MASK_FULL), rooms(&[400, 700]))).collect();
        for gone in recvs.drain(500..) {
            if round == 0 { assert!(gone.cancel()) } else { drop(gone) }
        }
        let mut sends: Vec<_> = (0..500).map(|n| pair.ab.tag_send(n, bytes(n, 1100))).collect();
        pair.until(|| sends.iter_mut().all(|s| s.is_done()) && recvs.iter_mut().all(|r| r.is_done()));
        for (n, recv) in recvs.into_iter().enumerate() {
            assert!(recv.wait().1.concat() == bytes(n as u64, 1100));
        }
    }
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().requests()), (0, 0));
}

#[test]
fn overflowing_lengths_are_rejected() {
    let pair = Pair::on("self");
    let piece = Iov { addr: std::ptr::NonNull::dangling().as_ptr(), len: usize::MAX };
    // SAFETY: rejected, so nothing is written.
    let refused = unsafe { pair.b.recv_layout_raw(&[piece, piece], Match::untagged(), &OpParams::default()) };
    assert!(matches!(refused, Err(Error::Invalid)));
}

#[test]
fn zero_copy_receives_are_contiguous() {
    let source = [("UCX_TLS", "efa"), ("UCX_NET_DEVICES", "softefa0"), ("UCX_ZCOPY_RECV", "y")];
    let source = source.iter().fold(Source::empty(), |source, (key, value)| source.with(key, value));
    let worker = ucp::Context::configured(source).unwrap().worker().unwrap();
    assert_eq!(worker.recv_iov(Match::untagged(), rooms(&[100, 100])).wait().0, Err(Error::Unsupported));
    // Pieces of which one is not empty are one piece.
    assert!(worker.recv_iov(Match::untagged(), rooms(&[0, 100])).test().is_err());
}

on! {
    [messages receive_vector_ends_with_the_message forms active_messages streams many_operations_wait]
    loopback: "self",
    posix: "posix",
    cma: "posix,cma",
    efa: "efa",
    nics: "efa*2",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}
