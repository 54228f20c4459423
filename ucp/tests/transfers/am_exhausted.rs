//! Exhaustion of operation ids while active messages arrive: their buffers are posted again once ids are
//! free. One test, since it takes much memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::Pair;
use ucp::{
    AmProto, CloseMode, Context, EpParams, Error, Match, OpParams, OpStatus, RequestId, TAG_MASK_FULL, Worker,
};
use ucs::config::Source;

/// More messages than buffers.
const MESSAGES: usize = 100;
/// Two packets, shorter than a buffer.
const LEN: usize = 6000;
/// Announced.
const LONG: usize = 1 << 20;

/// Posts a receive that nothing matches.
fn one_more(worker: &Worker, into: *mut u8) -> Result<RequestId, Error> {
    // SAFETY: the memory is never freed nor read, and receives of one worker may share it.
    match unsafe { worker.recv_raw(into, 1, Match::tagged(77, TAG_MASK_FULL), &OpParams::default()) }? {
        OpStatus::InProgress(id) => Ok(id),
        OpStatus::Done(_) => unreachable!("nobody has sent that"),
    }
}

#[test]
fn am_buffers_are_reposted_after_exhaustion() {
    let source = Source::empty().with("UCX_TLS", "posix").with("UCX_POSIX_SEG_SIZE", "4096");
    let worker = || Context::configured(source.clone()).unwrap().worker().unwrap();
    let pair = Pair::of(worker(), worker());
    let into: *mut u8 = Box::leak(Box::new(0));
    let running = Rc::new(RefCell::new(Vec::new()));
    let (come, posting) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (count, keep_posting, ids, b) = (come.clone(), posting.clone(), running.clone(), pair.b.clone());
    pair.b.set_am_handler(4, move |message| {
        assert_eq!(message.data(), Some(&[9; LEN][..]));
        count.set(count.get() + 1);
        // The id that this message has released.
        while keep_posting.get()
            && let Ok(id) = one_more(&b, into)
        {
            ids.borrow_mut().push(id);
        }
    });
    let send = |times: usize| {
        let mut sends: Vec<_> =
            (0..times).map(|_| pair.ab.am_send_with(AmProto::Eager, 4, &[], vec![9; LEN])).collect();
        pair.until(|| sends.iter_mut().all(|send| send.is_done()));
        pair.settle();
    };
    send(3);
    assert_eq!(come.get(), 3);
    let fill = || {
        while let Ok(id) = one_more(&pair.b, into) {
            running.borrow_mut().push(id);
        }
    };
    posting.set(true);
    fill();
    send(MESSAGES);
    let held = 3 + MESSAGES - come.get();
    assert!(held > 0, "there are fewer buffers than messages");
    // A message that nobody wants, and announced data: in vain do their senders wait for a receive.
    let tagged = pair.ab.tag_send(1, vec![1; LONG]);
    let mut unwanted = None;
    pair.until(|| {
        unwanted = pair.b.mprobe(Match::tagged(1, TAG_MASK_FULL));
        unwanted.is_some()
    });
    drop(unwanted);
    let announced = pair.ab.am_send_with(AmProto::Rendezvous, 5, &[], vec![1; LONG]);
    pair.settle();
    assert!(!tagged.is_done() && !announced.is_done());
    // Waiting messages arrive, and later ones too.
    posting.set(false);
    for id in running.borrow_mut().drain(..) {
        pair.b.cancel(id);
        pair.b.free(id);
    }
    pair.until(|| come.get() == 3 + MESSAGES);
    pair.until(|| tagged.is_done() && announced.is_done());
    assert_eq!((tagged.wait().0, announced.wait().0), (Ok(()), Ok(())));
    send(MESSAGES);
    assert_eq!(come.get(), 3 + 2 * MESSAGES);
    a_sender_without_requests(&pair, into);
}

/// A sender that has no request left announces no data that it cannot send, and tells of announced data that
/// will not come.
fn a_sender_without_requests(pair: &Pair, into: *mut u8) {
    let kept = Rc::new(Cell::new(None));
    let to = kept.clone();
    pair.b.set_am_handler(6, move |message| to.set(Some(message)));
    let other = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
    let announced = other.am_send_with(AmProto::Rendezvous, 6, &[], vec![2; LONG]);
    let mut message = None;
    pair.until(|| {
        message = kept.take();
        message.is_some()
    });
    let mut running = Vec::new();
    while let Ok(id) = one_more(&pair.a, into) {
        running.push(id);
    }
    let refused = pair.ab.am_send_with(AmProto::Rendezvous, 6, &[], vec![2; LONG]);
    assert!(refused.is_done());
    assert_eq!(refused.wait().0, Err(Error::Exhausted));
    pair.settle();
    assert!(kept.take().is_none(), "nothing was announced");
    // The data that it has announced does not come.
    let received = message.expect("it has come").recv(vec![0; LONG]);
    drop(other.close(CloseMode::Force));
    pair.until(|| announced.is_done() && received.is_done());
    assert!(matches!(received.wait().0, Err(Error::Aborted(..))));
    for id in running {
        pair.a.cancel(id);
        pair.a.free(id);
    }
}
