//! Operations of more work requests than the send queue is deep.

#![allow(unsafe_code)]

use super::*;
use crate::api::{Outcome, RemoteIov};

const BLOCKS: usize = 500;
const GAP: usize = 3;
const SPAN: usize = BLOCKS * GAP;

fn short_queue() -> Config {
    Config { tx_queue_len: 8, ..Config::default() }
}

/// Every third byte, on both sides.
fn blocks<D: Dev>(local: &Mem<D>) -> [Iov<'_, Mem<D>>; 2] {
    let half = |from: usize| {
        let addr = local.addr().wrapping_add(from * GAP);
        Iov { addr, len: 1, stride: GAP, count: BLOCKS / 2, mem: Some(local) }
    };
    [half(0), half(BLOCKS / 2)]
}

fn put<D: Dev>(ep: &Ep<D>, local: &Mem<D>, at: u64, rkey: &Rkey, comp: Comp) -> Outcome {
    let remote = [RemoteIov { addr: at, len: 1, stride: GAP as u64, count: BLOCKS, rkey }];
    // SAFETY: tests keep `local` until the operation is over, and do not write to it.
    unsafe { ep.put_sgl(&blocks(local), &remote, comp) }
}

fn every_third(fill: u8) -> Vec<u8> {
    (0..SPAN).map(|n| if n % GAP == 0 { fill } else { 0 }).collect()
}

on_every_network!(
    a_multi_wr_operation_counts_once_for_completions_flushes_and_fences a_multi_wr_operation_fails_once
    a_dropped_endpoint_finishes_its_multi_wr_operation
);

fn a_multi_wr_operation_counts_once_for_completions_flushes_and_fences<N: Network>() {
    let (net, mut a, mut b) = pair_on::<N>(&short_queue(), &short_queue());
    let (ep, other, _back) = (a.ep_to(&b), a.ep_to(&b), b.ep_to(&a));
    let (local, remote) = (alloc(&a, SPAN, 7), alloc(&b, SPAN, 0));
    let rkey = rkey_of(&b, &remote, &a);
    let at = remote.addr() as u64;
    assert_eq!(put(&ep, &local, at, &rkey, Comp::Token(1)), Ok(Sent::InProgress));
    assert_eq!(ep.flush(Comp::Token(2)), Ok(Sent::InProgress));
    assert_eq!(a.iface.flush(Comp::Token(3)), Ok(Sent::InProgress));
    assert_eq!(ep.fence(), Ok(Sent::Done));
    assert_eq!(ep.am_short(1, 0, &[]), Err(Refused::NoResource), "behind the fence");
    assert_eq!(other.am_short(1, 0, &[]), Ok(Sent::Done), "others have the other half of the queue");
    settle(&net, &mut a, &mut b);
    assert_eq!(a.log.comps, [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
    assert_eq!(read(&remote), every_third(7));
    assert_eq!(ep.flush(Comp::None), Ok(Sent::Done));
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));

    // Reads, two at a time.
    let back = alloc(&a, SPAN, 0);
    for token in [4, 5] {
        // SAFETY: as in `put`.
        let got = unsafe { ep.get_zcopy(&blocks(&back), at, &rkey, Comp::Token(token)) };
        assert_eq!(got, Ok(Sent::InProgress));
    }
    settle(&net, &mut a, &mut b);
    a.log.comps.sort_by_key(|c| c.0);
    assert_eq!(a.log.comps[3..], [(4, Ok(())), (5, Ok(()))]);
    let there = read(&remote);
    assert!((0..BLOCKS).all(|n| read(&back)[n * GAP] == there[n]));
    assert_eq!(a.log.errors, []);
}

fn a_multi_wr_operation_fails_once<N: Network>() {
    let (net, mut a, mut b) = pair_on::<N>(&short_queue(), &short_queue());
    let (ep, _back) = (a.ep_to(&b), b.ep_to(&a));
    let (local, remote) = (alloc(&a, SPAN, 7), alloc(&b, SPAN, 0));
    let guarded = AllocReq { access: Access::LOCAL_WRITE | Access::REMOTE_READ, ..AllocReq::new(SPAN, "ro") };
    let guarded = b.iface.md().alloc(&guarded).unwrap();
    let (rkey, bad) = (rkey_of(&b, &remote, &a), rkey_of(&b, &guarded, &a));
    ep.set_tag(EpTag(3));
    // The peer's device refuses the second half, reported by the completion or as an endpoint error.
    let half = |at: &Mem<N::B>| (at.addr() as u64, BLOCKS / 2);
    for comp in [Comp::Token(1), Comp::None] {
        let to = |(addr, count), rkey| RemoteIov { addr, len: 1, stride: GAP as u64, count, rkey };
        let list = [to(half(&remote), &rkey), to(half(&guarded), &bad)];
        // SAFETY: as in `put`.
        assert_eq!(unsafe { ep.put_sgl(&blocks(&local), &list, comp) }, Ok(Sent::InProgress));
        settle(&net, &mut a, &mut b);
    }
    assert_eq!(a.log.comps, [(1, Err(Error::RemoteAccess))]);
    assert_eq!(a.log.errors, [(EpTag(3), Error::RemoteAccess)]);
    assert_eq!(read(&guarded), [0; SPAN]);
    assert_eq!(ep.flush(Comp::None), Ok(Sent::Done), "nothing is left of it");
    assert_eq!(put(&ep, &local, remote.addr() as u64, &rkey, Comp::Token(2)), Ok(Sent::InProgress));
    settle(&net, &mut a, &mut b);
    assert_eq!(a.log.comps[1..], [(2, Ok(()))]);
    // All requests are checked before the first post.
    let past = remote.addr() as u64 + 3;
    assert_eq!(put(&ep, &local, past, &rkey, Comp::Token(3)), Err(Error::RemoteAccess.into()));
}

fn a_dropped_endpoint_finishes_its_multi_wr_operation<N: Network>() {
    let (net, mut a, mut b) = pair_on::<N>(&short_queue(), &short_queue());
    let (ep, _back) = (a.ep_to(&b), b.ep_to(&a));
    let (local, remote) = (alloc(&a, SPAN, 7), alloc(&b, SPAN, 0));
    let rkey = rkey_of(&b, &remote, &a);
    assert_eq!(put(&ep, &local, remote.addr() as u64, &rkey, Comp::Token(1)), Ok(Sent::InProgress));
    drop(ep);
    settle(&net, &mut a, &mut b);
    assert_eq!(a.log.comps, [(1, Ok(()))]);
    assert_eq!(read(&remote), every_third(7));
    assert_eq!(a.iface.flush(Comp::None), Ok(Sent::Done));
}

#[test]
fn an_address_handle_is_freed_after_a_multi_wr_operation() {
    let slow = FaultPlan { delay: 1000, ..FaultPlan::NONE };
    let fabric = Fabric::new(1, slow);
    let mut profile = Profile::default();
    profile.attr.max_ah = 1;
    let mut a = Side::on(fabric.open(1, profile).unwrap(), 1, &short_queue());
    let mut b = Side::open(&fabric, 2, &short_queue());
    let (ep, _back) = (a.ep_to(&b), b.ep_to(&a));
    let (local, remote) = (alloc(&a, SPAN, 7), alloc(&b, SPAN, 0));
    let rkey = rkey_of(&b, &remote, &a);
    assert_eq!(put(&ep, &local, remote.addr() as u64, &rkey, Comp::None), Ok(Sent::InProgress));
    drop(ep);
    let elsewhere = || a.iface.connect_raw(&RawAddr { gid: Gid::link_local(9), qpn: 1, connid: 0 });
    assert!(matches!(elsewhere().err(), Some(Error::Exhausted(_))), "the operation needs it");
    settle(&fabric, &mut a, &mut b);
    assert_eq!(read(&remote), every_third(7));
    assert!(a.iface.connect_raw(&RawAddr { gid: Gid::link_local(9), qpn: 1, connid: 0 }).is_ok());
}

#[test]
fn a_peer_death_ends_a_multi_wr_operation_once() {
    let slow = FaultPlan { delay: 1000, ..FaultPlan::NONE };
    let (fabric, mut a, mut b) = pair(slow, &short_queue(), &short_queue());
    let (ep, _back) = (a.ep_to(&b), b.ep_to(&a));
    let (local, remote) = (alloc(&a, SPAN, 7), alloc(&b, SPAN, 0));
    let rkey = rkey_of(&b, &remote, &a);
    assert_eq!(put(&ep, &local, remote.addr() as u64, &rkey, Comp::Token(1)), Ok(Sent::InProgress));
    assert_eq!(ep.flush(Comp::Token(2)), Ok(Sent::InProgress));
    while read(&remote)[100 * GAP] == 0 {
        a.poll();
        fabric.advance(500);
    }
    fabric.kill(b.iface.raw_addr().gid);
    settle(&fabric, &mut a, &mut b);
    let [(1, Err(reported)), (2, Ok(()))] = a.log.comps[..] else { panic!("{:?}", a.log.comps) };
    assert!(matches!(reported, Error::PeerDead | Error::Unreachable | Error::Unresponsive), "{reported:?}");
    assert_eq!(a.log.errors, []);
    assert_eq!(read(&remote)[(BLOCKS - 1) * GAP], 0, "the rest was given up");
}

#[test]
fn multi_wr_operations_leave_slots_for_others() {
    let slow = FaultPlan { delay: 1000, ..FaultPlan::NONE };
    let (fabric, mut a, mut b) = pair(slow, &short_queue(), &short_queue());
    let (ep, other, _back) = (a.ep_to(&b), a.ep_to(&b), b.ep_to(&a));
    let (local, remote) = (alloc(&a, SPAN, 7), alloc(&b, SPAN, 0));
    let rkey = rkey_of(&b, &remote, &a);
    for token in 1..4 {
        let put = || put(&ep, &local, remote.addr() as u64, &rkey, Comp::Token(token));
        while put() == Err(Refused::NoResource) {
            a.poll();
            fabric.advance(500);
        }
    }
    let mut sent = 0;
    while a.log.comps.is_empty() {
        sent += usize::from(other.am_short(1, 0, &[]).is_ok());
        a.poll();
        b.poll();
        fabric.advance(500);
    }
    assert!(sent > 50, "{sent} messages beside them");
    settle(&fabric, &mut a, &mut b);
    a.log.comps.sort_by_key(|c| c.0);
    assert_eq!(a.log.comps, [1, 2, 3].map(|token| (token, Ok(()))));
    assert_eq!(read(&remote), every_third(7));
}
