//! `UCX_EMULATION=n`: operations that need the peer's processor fail at once, with an error that says so;
//! others work.

use crate::common::{Pair, bytes};
use ucp::{Access, Context, Error, Rkey, RmaMethod};
use ucs::config::Source;

fn pair(tls: &str) -> Pair {
    let source = Source::empty().with("UCX_TLS", tls).with("UCX_NET_DEVICES", "softefa0");
    let context = Context::configured(source.with("UCX_EMULATION", "n")).unwrap();
    Pair::of(context.worker().unwrap(), context.worker().unwrap())
}

fn operations_without_peer_progress(tls: &str, means: RmaMethod) {
    let pair = pair(tls);
    // The device can be used after the handshake.
    let hello = pair.ab.tag_send_sync(0, "hello");
    let heard = pair.b.tag_recv(0, ucp::TAG_MASK_FULL, vec![0; 8]);
    pair.until(|| hello.is_done() && heard.is_done());
    assert_eq!((hello.wait().0, heard.wait().0.map(|status| status.len)), (Ok(()), Ok(5)));
    let mem = pair.b.mem_alloc(4096, Access::all()).unwrap();
    let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
    assert_eq!(pair.ab.protocols().rma_method(&rkey), means);
    let put = pair.ab.put(bytes(1, 4096), mem.addr(), &rkey);
    pair.until(|| put.is_done());
    assert_eq!(put.wait().0, Ok(()));
    let flush = pair.ab.flush();
    pair.until(|| flush.is_done());
    assert_eq!(flush.wait(), Ok(()));
    let get = pair.ab.get(vec![0; 4096], mem.addr(), &rkey);
    pair.until(|| get.is_done());
    assert!(get.wait().1 == bytes(1, 4096));

    let packets = Rkey::from_key(mem.key());
    assert_eq!(pair.ab.protocols().rma_method(&packets), RmaMethod::Emulated);
    for len in [1, 4096] {
        let put = pair.ab.put(vec![9; len], mem.addr(), &packets);
        let get = pair.ab.get(vec![0; len], mem.addr(), &packets);
        pair.until(|| put.is_done() && get.is_done());
        assert_eq!(
            (put.wait().0, get.wait().0.map(drop)),
            (Err(Error::EmulationDisabled), Err(Error::EmulationDisabled))
        );
    }
    let flush = pair.ab.flush();
    pair.until(|| flush.is_done());
    assert_eq!(flush.wait(), Ok(()), "a flush asks for itself");
    assert_eq!(pair.b.stats().served.iter().map(|t| t.bytes).sum::<u64>(), 0, "nobody was asked");
    assert!(Error::EmulationDisabled.to_string().contains("UCX_EMULATION"));
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().held_bytes()), (0, 0));
}

#[test]
fn operations_without_peer_progress_on_shared_memory() {
    operations_without_peer_progress("posix", RmaMethod::Mapped);
}

#[test]
fn operations_without_peer_progress_on_efa() {
    operations_without_peer_progress("efa", RmaMethod::Rdma);
}
