//! Tests of the RMA-only lane, on `cma` within this process.

use super::*;
use crate::rdm::{MemTable, Region};

#[test]
fn address_round_trips() {
    for len in 0..=48u8 {
        let address: Vec<u8> = (1..=len).collect();
        let encoded = encode_address(&address);
        assert_eq!(encoded.len(), usize::from(len).div_ceil(16));
        assert!(encoded.iter().all(|part| part.len == 0));
        let decoded = decode_address(&encoded);
        assert_eq!(decoded[..address.len()], address);
        assert!(decoded[address.len()..].iter().all(|byte| *byte == 0));
    }
    assert!(encode_address(&[1; 49]).is_empty(), "too long for a request");
}

fn open(source: &Source) -> Option<RmaOnlyLane> {
    let found = uct::any::resources(source).unwrap();
    let cma: Vec<_> = found.into_iter().filter(|r| r.tl == "cma").collect();
    let open = |r: &uct::api::TlResource| uct::any::open_md(r.tl, &r.dev, source);
    let domains = Domains::open((&[], &cma), open, 1).unwrap();
    RmaOnlyLane::open(&domains, source, 1, CopyPolicy::Auto)
}

/// An endpoint of `posix` to this process.
fn lane_ep() -> (Iface, Ep) {
    let posix = uct::any::open("posix", "memory", &Source::empty()).unwrap();
    let ep = posix.connect(&posix.device_addr(), &posix.iface_addr()).unwrap();
    (posix, ep)
}

#[test]
fn read_by_invalid_address_fails() {
    let Some(rma_only) = open(&Source::empty()) else { return };
    let (_posix, lane_ep) = lane_ep();
    let word = 0x0102_0304_0506_0708u64;
    let mut buf = [0u8; 8];
    let from = Remote { addr: (&raw const word).addr() as u64, key: 0 };
    // SAFETY: `buf` outlives the piece.
    let piece = unsafe { Piece::new(buf.as_mut_ptr(), 8) }.unwrap();
    let read = |address: &RmaAddress, from: Remote| {
        // SAFETY: `buf` is ours and is read after the call only.
        unsafe { rma_only.read(PeerId(1), &lane_ep, piece, from, address) }
    };
    let address = |addr, key| [RmaIov { addr, len: 0, key }].into_iter().collect::<RmaAddress>();
    for address in
        [address(0, 0), address(u64::MAX, u64::MAX), address(1, 1), address(std::process::id().into(), 7)]
    {
        assert!(read(&address, from).is_err(), "{address:?}");
    }
    // The right process, first with a foreign key, then with its own.
    assert!(read(rma_only.local_address(), from).is_err());
    let key =
        rma_only.iface.md().mr_key(&rma_only.iface.md().alloc(&uct::api::AllocReq::new(8, "test")).unwrap());
    read(rma_only.local_address(), Remote { key: key.unwrap(), ..from }).unwrap();
    assert_eq!(u64::from_ne_bytes(buf), word);
    rma_only.remove_peer(PeerId(1));
    assert!(rma_only.peers.borrow().is_empty());
}

#[test]
fn peers_give_away_their_own_memory_only() {
    // Another server of descriptors, as another process has: the address is valid, and not the peer's.
    let dir = std::env::temp_dir().join(format!("ucp-rma-only-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let third = Source::empty().with("UCX_CMA_SOCKET_DIR", dir.to_str().unwrap());
    let (Some(rma_only), Some(third)) = (open(&Source::empty()), open(&third)) else { return };
    let (_posix, lane_ep) = lane_ep();
    let secret = [7u8; 8];
    let mut buf = [0u8; 8];
    // SAFETY: `buf` outlives the piece.
    let piece = unsafe { Piece::new(buf.as_mut_ptr(), 8) }.unwrap();
    let from = |lane: &RmaOnlyLane| {
        let mem = lane.iface.md().alloc(&uct::api::AllocReq::new(8, "test")).unwrap();
        let key = lane.iface.md().mr_key(&mem).unwrap();
        Remote { addr: (&raw const secret).addr() as u64, key }
    };
    let read = |of: &RmaOnlyLane| {
        // SAFETY: `buf` is ours and is read after the call only.
        unsafe { rma_only.read(PeerId(1), &lane_ep, piece, from(of), of.local_address()) }
    };
    assert_eq!(read(&third), Err(Error::Unreachable.into()));
    assert_eq!(buf, [0; 8], "nothing was read");
    assert_eq!(read(&rma_only), Ok(()));
    assert_eq!(buf, secret);
    // The same of an address that a program passes on: the entries are of two processes.
    let entry = |lane: &RmaOnlyLane| {
        let (nobody, unknown) = (Some(lane_ep.peer_process().unwrap() ^ 1), None);
        [lane_ep.peer_process(), nobody, unknown].map(|process| {
            let ep = RmaOnlyEp::new(lane.entry(), process);
            ep.get(Some(&rma_only)).is_some()
        })
    };
    assert_eq!((entry(&rma_only), entry(&third)), ([true, false, false], [false; 3]));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn bytes_are_read_before_the_version_that_vouches_for_them() {
    let Some(rma_only) = open(&Source::empty()) else { return };
    let (_posix, lane_ep) = lane_ep();
    let (table, mut bytes) = (MemTable::new(3), [7u8; 8]);
    let start = bytes.as_mut_ptr();
    // SAFETY: the bytes stay until the end, and are only read meanwhile.
    let region = unsafe { Region::new(start, bytes.len(), Access::READ) }.unwrap();
    let key = table.add(region).unwrap();
    let at = table.publish();
    rma_only.publish(at);
    let ep = RmaOnlyEp::new(rma_only.entry(), lane_ep.peer_process());
    let piece = RmaIov { addr: start.expose_provenance() as u64, len: 8, key: key.0 };
    assert!(ep.resolve(Some(&rma_only), &piece, Access::READ).is_some());
    let mut to = [0u8; 8];
    // SAFETY: `to` has room for the piece.
    assert_eq!(unsafe { ep.read(Some(&rma_only), &piece, to.as_mut_ptr()) }, Some(true));
    assert_eq!(to, bytes);
    // An owner that takes the memory back between the two changes the version: here the bytes do.
    let version = std::ptr::with_exposed_provenance_mut(at as usize + size_of::<u64>());
    // SAFETY: a word of the table, which is atomic, and which nobody else uses now.
    assert_eq!(unsafe { ep.read(Some(&rma_only), &piece, version) }, Some(false));
}

/// A read that was given up may end while the next one of the same peer waits.
#[test]
fn the_end_of_a_read_that_was_given_up_is_dropped() {
    let Some(rma_only) = open(&Source::empty()) else { return };
    let (peer, from) = (PeerId(1), Remote { addr: 0, key: 0 });
    let wait = |number| {
        let waiting = WaitingRead { number, to: std::ptr::null_mut(), from, result: None };
        rma_only.peers.borrow_mut().entry(peer).or_default().waiting = Some(waiting);
    };
    let end = |number: u64, result| EndedReads(&rma_only).on_comp(number << 32 | u64::from(peer.0), result);
    let result = || rma_only.peers.borrow()[&peer].waiting.as_ref().map(|read| read.result);
    wait(6);
    rma_only.abandon_read(peer);
    assert_eq!(result(), None, "nothing waits");
    wait(7);
    end(6, Err(Error::PeerDead));
    assert_eq!(result(), Some(None), "the next one still waits");
    end(7, Ok(()));
    assert_eq!(result(), Some(Some(Ok(()))));
}

/// The endpoint of a read that was given up waits until its peer copies no longer, so it goes.
#[test]
fn a_read_that_is_given_up_takes_its_endpoint_with_it() {
    let Some(rma_only) = open(&Source::empty()) else { return };
    let (_posix, lane_ep) = lane_ep();
    let peer = PeerId(1);
    let connect = || {
        let remote = rma_only.connect_offer(rma_only.local_address(), &lane_ep);
        rma_only.peers.borrow_mut().entry(peer).or_default().remote = Some(remote);
    };
    let is_connected = || rma_only.peers.borrow()[&peer].remote.is_some();
    connect();
    rma_only.abandon_read(peer);
    assert!(is_connected(), "nothing was given up");
    let waiting =
        WaitingRead { number: 0, to: std::ptr::null_mut(), from: Remote { addr: 0, key: 0 }, result: None };
    rma_only.peers.borrow_mut().entry(peer).or_default().waiting = Some(waiting);
    rma_only.abandon_read(peer);
    assert!(!is_connected());
}
