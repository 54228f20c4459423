//! Long transfers over several software NICs: which NICs an endpoint has, that the bytes use all of them, and
//! the settings for their number.

use crate::common::{Pair, bytes};
use ucp::{Access, Context, EpParams, RmaParams, Worker};
use ucs::config::Source;

const LEN: usize = 3 << 20;

fn source(nics: &str) -> Source {
    Source::empty().with("UCX_TLS", "efa").with("SOFTEFA_DEVICES", nics)
}

fn pair(kind: &str, source: &Source) -> Pair {
    let context = Context::configured(source.clone()).unwrap();
    let pair = Pair::of_contexts(&context, &context, kind == "shared");
    let (here, there) = (pair.a.tag_recv(0, !0, vec![0; 1]), pair.b.tag_recv(0, !0, vec![0; 1]));
    let (one, other) = (pair.ab.tag_send(0, vec![1]), pair.ba.tag_send(0, vec![1]));
    pair.until(|| here.is_done() && there.is_done() && one.is_done() && other.is_done());
    pair.settle();
    pair
}

fn devices(pair: &Pair) -> Vec<String> {
    let rails = pair.ab.protocols().rails();
    assert!(rails.iter().all(|rail| rail.has_handshake && rail.fault.is_none()), "{rails:?}");
    rails.into_iter().map(|rail| rail.device).collect()
}

fn pieces(worker: &Worker) -> u64 {
    worker.stats().rare.pieces
}

fn message(pair: &Pair, seed: u64) {
    let recv = pair.b.tag_recv(9, !0, Vec::with_capacity(LEN));
    let send = pair.ab.tag_send(9, bytes(seed, LEN));
    pair.until(|| recv.is_done() && send.is_done());
    let (status, room) = recv.wait();
    assert_eq!(status.map(|status| status.len), Ok(LEN));
    assert!(room == bytes(seed, LEN), "bytes differ");
}

fn put_and_get(pair: &Pair, seed: u64) {
    let mem = pair.b.mem_alloc(LEN, Access::all()).unwrap();
    let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
    let sync = RmaParams { sync: ucp::select::DeliveryComplete::Yes, ..RmaParams::default() };
    let put = pair.ab.put_with(bytes(seed, LEN), mem.addr(), &rkey, &sync);
    pair.until(|| put.is_done());
    assert_eq!(put.wait().0, Ok(()));
    let mut there = vec![0; LEN];
    mem.read(0, &mut there);
    assert!(there == bytes(seed, LEN), "bytes differ");
    let get = pair.ab.get(Vec::with_capacity(LEN), mem.addr(), &rkey);
    pair.until(|| get.is_done());
    let (status, here) = get.wait();
    assert_eq!(status.map(|status| status.len), Ok(LEN));
    assert!(here == bytes(seed, LEN), "bytes differ");
}

fn messages_and_rma_use_every_nic(kind: &str) {
    for (nics, used) in [("1", 1), ("2", 2), ("4", 4), ("6", 4)] {
        let pair = pair(kind, &source(nics));
        let names: Vec<String> = (0..used).map(|nic| format!("softefa{nic}")).collect();
        assert_eq!(devices(&pair), names);
        assert_eq!(
            pair.ab.protocols().transports().len(),
            nics.parse::<usize>().unwrap().min(4),
            "each lane once"
        );
        message(&pair, 1);
        // With one NIC nothing is striped.
        let cut = if used > 1 { used } else { 0 };
        assert_eq!((pieces(&pair.a), pieces(&pair.b)), (0, cut));
        put_and_get(&pair, 2);
        assert_eq!((pieces(&pair.a), pieces(&pair.b)), (2 * cut, cut));
    }
}

fn nics_are_selected_by_config(kind: &str) {
    let named = pair(kind, &source("4").with("UCX_NET_DEVICES", "softefa1,softefa3"));
    assert_eq!(devices(&named), ["softefa1", "softefa3"]);
    message(&named, 3);
    assert_eq!(pieces(&named.b), 2);
    let limits = source("4").with("UCX_MAX_RNDV_RAILS", "3").with("UCX_MAX_RMA_RAILS", "2");
    let limited = pair(kind, &limits);
    message(&limited, 4);
    put_and_get(&limited, 5);
    assert_eq!((pieces(&limited.a), pieces(&limited.b)), (4, 3));
    let none = pair(kind, &source("4").with("UCX_MAX_RNDV_RAILS", "1").with("UCX_MAX_RMA_RAILS", "1"));
    message(&none, 6);
    put_and_get(&none, 7);
    assert_eq!((pieces(&none.a), pieces(&none.b)), (0, 0));
    let coarse =
        pair(kind, &source("4").with("UCX_MIN_RNDV_CHUNK_SIZE", "1m").with("UCX_MIN_RMA_CHUNK_SIZE", "2m"));
    message(&coarse, 8);
    put_and_get(&coarse, 9);
    assert_eq!((pieces(&coarse.a), pieces(&coarse.b)), (0, 3), "as many as there are chunks");
}

#[test]
fn workers_use_their_common_nics() {
    let open = |nics| Context::configured(source(nics)).unwrap().worker().unwrap();
    let (a, b) = (open("2"), open("4"));
    let raw = ucp::Address::unpack(&b.address().efa_raw().unwrap()).unwrap();
    let bare = a.connect(&raw, EpParams::default()).unwrap();
    assert_eq!(bare.protocols().rails().len(), 1);
    let pair = Pair::of(a, b);
    message(&pair, 10);
    pair.settle();
    message(&pair, 11);
    assert_eq!(devices(&pair), ["softefa0", "softefa1"]);
    assert_eq!(pieces(&pair.b), 2);
}

#[test]
fn granted_data_of_a_lost_nic_are_resent() {
    let slow = source("2").with("SOFTEFA_DELAY", "20").with("UCX_PROGRESS_BATCH", "1");
    let granted = slow.with("UCX_MIN_READ", "1g").with("UCX_MIN_RNDV_CHUNK_SIZE", "16k");
    let mut elsewhere = 0;
    for after in (20..200).step_by(15) {
        let down = granted.clone().with("SOFTEFA_DOWN", &format!("1:{after}"));
        let open = |source: &Source| Context::configured(source.clone()).unwrap().worker().unwrap();
        let pair = Pair::of(open(&down), open(&granted));
        for seed in 0..3 {
            message(&pair, seed);
            pair.settle();
        }
        let lost: Vec<bool> = pair.ab.protocols().rails().iter().map(|rail| rail.fault.is_some()).collect();
        assert_eq!((lost, pair.ba.protocols().rails()[0].fault), (vec![false, true], None), "after {after}");
        elsewhere += pair.a.stats().rare.resent_after_failover;
    }
    assert!(elsewhere > 20, "{elsewhere} packets came back");
}

on! {
    [messages_and_rma_use_every_nic nics_are_selected_by_config]
    plain: "plain",
    shared: "shared",
}
