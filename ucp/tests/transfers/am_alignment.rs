//! Alignment of the data that handlers of active messages get: of messages in one packet, in several, and in
//! memory of their own, and of messages that a handler keeps.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{Pair, bytes, context};
use ucp::AmProto;

const ALIGNMENTS: [usize; 5] = [1, 8, 64, 4096, 64 << 10];
const HEADERS: [usize; 4] = [0, 5, 8, 300];
/// A word with and without its header, one packet, several, more than a posted buffer has.
const LENGTHS: [usize; 8] = [0, 1, 3, 8, 100, 5000, 9000, 40_000];

#[test]
fn data_is_aligned_and_stays_where_it_is() {
    for (tls, alignment) in ["self", "posix", "efa"].iter().flat_map(|tls| ALIGNMENTS.map(|to| (*tls, to))) {
        let of = context(tls);
        let pair = Pair::of_contexts(&of, &of.clone().with_am_alignment(alignment), false);
        let kept = Rc::new(RefCell::new(Vec::new()));
        let keep = kept.clone();
        pair.b.set_am_handler(4, move |message| {
            let data = message.data().expect("sent eagerly");
            let is_aligned = data.is_empty() || data.as_ptr().addr().is_multiple_of(alignment);
            assert!(is_aligned, "{tls}: {} bytes to {alignment}", data.len());
            keep.borrow_mut().push(message);
        });
        let sent: Vec<_> = HEADERS.iter().flat_map(|header| LENGTHS.map(|len| (*header, len))).collect();
        for (n, (header, len)) in sent.iter().enumerate() {
            let (header, data) = (bytes(n as u64, *header), bytes(n as u64 + 100, *len));
            let send = pair.ab.am_send_with(AmProto::Eager, 4, &header, data);
            pair.until(|| send.is_done() && kept.borrow().len() > n);
        }
        for (n, ((header, len), message)) in sent.iter().zip(kept.borrow().iter()).enumerate() {
            assert_eq!(message.header(), bytes(n as u64, *header), "{tls}, {alignment}, message {n}");
            assert_eq!(
                message.data().unwrap(),
                bytes(n as u64 + 100, *len),
                "{tls}, {alignment}, message {n}"
            );
        }
        kept.borrow_mut().clear();
    }
}

/// An alignment that no memory has: the message is dropped, and its worker goes on.
#[test]
fn an_alignment_that_no_memory_has_drops_messages() {
    let of = context("posix");
    let pair = Pair::of_contexts(&of, &of.clone().with_am_alignment(usize::MAX), false);
    pair.b.set_am_handler(4, |_| panic!("there is no such memory"));
    for len in [1, 8, 5000, 9000] {
        let send = pair.ab.am_send(4, b"header", vec![7; len]);
        pair.until(|| send.is_done());
    }
    pair.settle();
    let recv = pair.b.tag_recv(1, ucp::TAG_MASK_FULL, Vec::with_capacity(8));
    let send = pair.ab.tag_send(1, vec![1; 8]);
    pair.until(|| recv.is_done() && send.is_done());
}
