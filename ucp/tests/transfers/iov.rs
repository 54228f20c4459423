//! Messages, active messages and streams of several pieces of memory, by every protocol, on every lane.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{Pair, bytes};
use ucp::select::DeliveryComplete;
use ucp::{AM_MAX_HEADER, AmProto, Error, Iov, OpParams, SendParams, TAG_MASK_FULL};

/// Lengths of the pieces: from empty to what is long on every lane.
const CUTS: [&[usize]; 8] = [
    &[],
    &[0, 0],
    &[8],
    &[1, 0, 7, 24],
    &[100, 2000, 1],
    &[4000, 4000, 4000],
    &[1, 69_999, 30_000],
    &[300_000, 5, 400_000],
];

fn cut(number: u64, lens: &[usize]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let whole = bytes(number, lens.iter().sum());
    let mut rest = &whole[..];
    let pieces = lens.iter().map(|len| rest.split_off(..*len).unwrap().to_vec()).collect();
    (whole, pieces)
}

fn tagged(tls: &str) {
    let pair = Pair::on(tls);
    for (n, lens) in CUTS.iter().enumerate() {
        for (sync, cq_data, late) in [
            (DeliveryComplete::No, None, false),
            (DeliveryComplete::No, None, true),
            (DeliveryComplete::Yes, None, false),
            (DeliveryComplete::No, Some(5), true),
        ] {
            let (whole, pieces) = cut(n as u64, lens);
            let params = SendParams { tag: Some(3), sync, cq_data, ..SendParams::default() };
            let recv = || pair.b.tag_recv(3, TAG_MASK_FULL, Vec::with_capacity(whole.len()));
            let posted = (!late).then(recv);
            let send = pair.ab.send_iov(pieces.clone(), &params);
            if late {
                pair.settle();
            }
            let recv = posted.unwrap_or_else(recv);
            pair.until(|| recv.is_done() && send.is_done());
            let (status, got) = recv.wait();
            assert!(got == whole, "{lens:?}");
            assert_eq!(status.map(|s| (s.len, s.cq_data)), Ok((whole.len(), cq_data)));
            assert_eq!(send.wait(), (Ok(()), pieces));
        }
    }
    pair.settle();
    assert_eq!(
        (pair.a.diagnostics().requests(), pair.b.diagnostics().requests(), pair.b.diagnostics().held_bytes()),
        (0, 0, 0)
    );
}

fn active_messages(tls: &str) {
    let pair = Pair::on(tls);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(5, move |message| to.borrow_mut().push(message));
    for (n, lens) in CUTS.iter().enumerate() {
        for how in [AmProto::Auto, AmProto::Eager, AmProto::Rendezvous] {
            for header_len in [0, 16, AM_MAX_HEADER] {
                let ((whole, pieces), header) = (cut(n as u64, lens), bytes(99, header_len));
                let send = pair.ab.am_send_iov(how, 5, &header, pieces.clone());
                pair.until(|| !kept.borrow().is_empty());
                let message = kept.borrow_mut().pop().unwrap();
                assert_eq!((message.header(), message.data_len()), (&header[..], whole.len() as u64));
                let recv = message.recv(Vec::with_capacity(whole.len()));
                pair.until(|| recv.is_done() && send.is_done());
                assert!(recv.wait().1 == whole, "{how:?} {header_len} {lens:?}");
                assert_eq!(send.wait(), (Ok(()), pieces));
            }
        }
    }
}

fn streams(tls: &str) {
    let pair = Pair::on(tls);
    for (n, lens) in CUTS.iter().enumerate() {
        let (whole, pieces) = cut(n as u64, lens);
        let list: Vec<Iov> =
            pieces.iter().map(|b| Iov { addr: b.as_ptr().cast_mut(), len: b.len() }).collect();
        // SAFETY: `pieces` lives until the flush below is complete.
        let started = unsafe { pair.ab.stream_send_layout_raw(&list, &OpParams::default()) }.unwrap();
        let mut got = Vec::new();
        while got.len() < whole.len() {
            let recv = pair.ba.stream_recv(Vec::with_capacity(50_000));
            pair.until(|| recv.is_done());
            got.extend(recv.wait().1);
        }
        assert!(got == whole, "{lens:?}");
        if let ucp::OpStatus::InProgress(id) = started {
            pair.until(|| pair.a.test(id).is_some());
        }
    }
}

/// With many at once some wait for room, and the library's lists for them are reused.
fn many_operations_wait(tls: &str) {
    let pair = Pair::on(tls);
    let (whole, pieces) = cut(1, &[8, 1000, 300]);
    for round in 0..3u64 {
        let mut sends: Vec<_> = (0..2000)
            .map(|n| {
                let params = SendParams { tag: Some(n), ..SendParams::default() };
                pair.ab.send_iov(pieces.clone(), &params)
            })
            .collect();
        for n in 0..2000 {
            let recv = pair.b.tag_recv(n, TAG_MASK_FULL, Vec::with_capacity(whole.len()));
            pair.until(|| recv.is_done());
            assert!(recv.wait().1 == whole, "{round} {n}");
        }
        pair.until(|| sends.iter_mut().all(|send| send.is_done()));
    }
    assert_eq!(pair.a.diagnostics().requests(), 0);
}

#[test]
fn overflowing_lengths_are_rejected() {
    let pair = Pair::on("self");
    let piece = Iov { addr: std::ptr::NonNull::dangling().as_ptr(), len: usize::MAX };
    let params = SendParams { tag: Some(1), ..SendParams::default() };
    // SAFETY: rejected, so nothing is read.
    let refused = unsafe { pair.ab.send_layout_raw(&[piece, piece], &params) };
    assert_eq!(refused, Err(Error::Invalid));
}

on! {
    [tagged active_messages streams many_operations_wait]
    loopback: "self",
    posix: "posix",
    efa: "efa",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}
