//! Objects of a worker, dropped in any order by any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use ucp::mt::{
    ProgressThread, SharedAmMessage, SharedEp, SharedEpParams, SharedListener, SharedMessage,
    SharedMultiRecv, SharedRequest, SharedScope, SharedScopedRequest, SharedWorker, ThreadMode,
};
use ucp::{Access, AmProto, AtomicOp, Match, SendRequest, TAG_MASK_FULL};

use crate::common::{bytes, context};
use crate::connect;

/// Types that other threads may use, and hand on.
const fn assert_send_sync<T: Send + Sync>() {}
const _: () = {
    assert_send_sync::<SharedWorker>();
    assert_send_sync::<SharedEp>();
    assert_send_sync::<SharedRequest<SendRequest<Vec<u8>>>>();
    assert_send_sync::<SharedRequest<ucp::RecvRequest<Vec<u8>>>>();
    assert_send_sync::<SharedRequest<ucp::AmSend<String>>>();
    assert_send_sync::<SharedRequest<ucp::FlushRequest>>();
    assert_send_sync::<SharedRequest<ucp::FetchRequest<u64>>>();
    assert_send_sync::<ucp::Mem>();
    assert_send_sync::<ucp::Rkey>();
    assert_send_sync::<SharedAmMessage>();
    assert_send_sync::<SharedMessage>();
    assert_send_sync::<SharedMultiRecv<Vec<u8>>>();
    assert_send_sync::<SharedListener>();
    assert_send_sync::<SharedScope<'_, '_>>();
    assert_send_sync::<SharedScopedRequest<'_, ()>>();
    assert_send_sync::<ucp::StreamData>();
    assert_send_sync::<ProgressThread>();
};

/// A buffer that counts those that exist.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn new(len: usize, count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(vec![0; len], count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: the bytes are the vector's, which is not changed.
unsafe impl ucp::IoBuf for Counted {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: as above.
unsafe impl ucp::IoBufMut for Counted {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }

    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// All kinds of objects of a worker, and some operations under way.
fn all_objects(mode: ThreadMode, buffers: &Arc<AtomicUsize>) -> Vec<Box<dyn std::any::Any + Send>> {
    let worker = context("posix").shared_worker(mode).unwrap();
    let ep = connect(&worker, &worker);
    let (kept, all) = channel();
    let owned = Counted::new(1, buffers);
    worker
        .set_am_handler(1, move |message| {
            let _owned = &owned;
            kept.send(message).unwrap();
        })
        .unwrap();
    let params = SharedEpParams::on_error(|_| {});
    let with_callback = worker.connect(&worker.address().unwrap(), params).unwrap();
    let mem = worker.mem_alloc(64, Access::all()).unwrap();
    let rkey = ep.unpack_rkey(&mem.pack_rkey()).unwrap();
    ep.am_send(1, &[1], vec![2; 100]).wait().unwrap().0.unwrap();
    ep.am_send_with(AmProto::Rendezvous, 1, &[1], Counted::new(9000, buffers)).detach().unwrap();
    ep.tag_send(77, vec![7; 100]).wait().unwrap().0.unwrap();
    let (mut eager, mut rendezvous, mut probed) = (None, None, None);
    while eager.is_none() || rendezvous.is_none() || probed.is_none() {
        worker.progress().unwrap();
        for message in all.try_iter() {
            let to = if message.data().is_some() { &mut eager } else { &mut rendezvous };
            *to = Some(message);
        }
        probed = probed.or_else(|| worker.mprobe(Match::tagged(77, TAG_MASK_FULL)).unwrap());
    }
    let recv = worker.tag_recv(1, TAG_MASK_FULL, Counted::new(8, buffers));
    let matched = worker.tag_recv(2, TAG_MASK_FULL, Counted::new(200_000, buffers));
    let send = ep.tag_send_sync(2, Counted::new(200_000, buffers));
    let unmatched = ep.tag_send_sync(3, Counted::new(8, buffers));
    let called = worker.tag_recv(4, TAG_MASK_FULL, Counted::new(8, buffers));
    called.then(|_| {}).unwrap();
    let many = worker.recv_multi(Match::tagged(5, TAG_MASK_FULL), Counted::new(100, buffers), 10);
    let flush = worker.flush();
    let listener = worker.listen("127.0.0.1:0".parse().unwrap(), |_| {}).unwrap();
    let fetch = ep.atomic_fetch(AtomicOp::Sum, 1u64, mem.addr(), &rkey);
    vec![
        Box::new(worker),
        Box::new(ep),
        Box::new(with_callback),
        Box::new(mem),
        Box::new(rkey),
        Box::new(eager),
        Box::new(rendezvous),
        Box::new(probed),
        Box::new(recv),
        Box::new(matched),
        Box::new(send),
        Box::new(unmatched),
        Box::new(many.map_err(drop)),
        Box::new(flush),
        Box::new(fetch),
        Box::new(listener),
    ]
}

/// Objects of a worker may be dropped in any order, each by any thread.
#[test]
fn objects_are_dropped_in_any_order_by_any_thread() {
    for mode in [ThreadMode::Single, ThreadMode::Serialized, ThreadMode::Multi] {
        for seed in 0..30 {
            let buffers = Arc::new(AtomicUsize::new(0));
            let mut objects = all_objects(mode, &buffers);
            assert!(buffers.load(Ordering::Relaxed) > 5);
            let order = bytes(seed, objects.len());
            let mut hands: [Vec<_>; 3] = Default::default();
            for n in order {
                hands[usize::from(n) % 3].push(objects.swap_remove(usize::from(n) / 3 % objects.len()));
            }
            let [mine, first, second] = hands;
            thread::scope(|scope| {
                scope.spawn(|| first.into_iter().for_each(drop));
                let second = scope.spawn(|| second.into_iter().for_each(drop));
                if seed % 2 == 0 {
                    second.join().unwrap();
                }
                mine.into_iter().for_each(drop);
            });
            assert_eq!(buffers.load(Ordering::Relaxed), 0, "{mode:?} {seed}");
        }
    }
}
