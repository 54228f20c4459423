//! What only `cma` promises; the rest is in the conformance suite, where memory is allocated and so mapped.

use super::{Config, Ep, Iface, Rkey};
use crate::api::{
    Access, AllocReq, ConnectError, Ep as _, Error, Iface as _, Iov, Md as _, Memory as _, Outcome, Refused,
    Sent,
};

fn pair() -> (Iface, Iface, Ep) {
    let (a, b) = (Iface::open(&Config::default()).unwrap(), Iface::open(&Config::default()).unwrap());
    let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
    (a, b, ep)
}

/// The key of registered memory, as the peer has it.
fn key_of(a: &Iface, b: &Iface, memory: &mut [u8], access: Access) -> Rkey {
    // SAFETY: the tests keep `memory` longer than they use the key, and look at it between operations only.
    let mem = unsafe { b.md().register(memory.as_mut_ptr(), memory.len(), access) }.unwrap();
    a.md().unpack_rkey(&b.md().pack_rkey(&mem).unwrap()).unwrap()
}

fn put(ep: &Ep, bytes: &[u8], to: *const u8, rkey: &Rkey) -> Outcome {
    let iov = [Iov::new(bytes.as_ptr(), bytes.len(), None)];
    // SAFETY: the call is done with `bytes` when it returns.
    unsafe { ep.put_zcopy(&iov, to.addr() as u64, rkey, Default::default()) }
}

#[test]
fn memory_of_any_kind_is_reached() {
    let (a, b, ep) = pair();
    let mut there = vec![0u8; 100_000];
    let base = there.as_mut_ptr();
    let rkey = key_of(&a, &b, &mut there, Access::ALL);
    assert!(a.md().direct_ptr(&rkey, base.addr() as u64, 1).is_none());
    let bytes: Vec<u8> = (0..99_999).map(|i| (i * 7) as u8).collect();
    assert_eq!(put(&ep, &bytes, base.wrapping_add(1), &rkey), Ok(Sent::Done));
    assert_eq!(there[1..], bytes[..]);
    let mut back = vec![0u8; 99_999];
    let iov =
        [Iov::new(back.as_mut_ptr(), 40_000, None), Iov::new(back[40_000..].as_mut_ptr(), 59_999, None)];
    // SAFETY: `back` is not looked at before the call has returned.
    let got = unsafe { ep.get_zcopy(&iov, base.addr() as u64 + 1, &rkey, Default::default()) };
    assert_eq!(got, Ok(Sent::Done));
    assert_eq!(back, bytes);
}

#[test]
fn allocated_memory_is_mapped() {
    let (a, b, ep) = pair();
    let mem = b.md().alloc(&AllocReq::new(4096, "test")).unwrap();
    let rkey = a.md().unpack_rkey(&b.md().pack_rkey(&mem).unwrap()).unwrap();
    let at = a.md().direct_ptr(&rkey, mem.addr().addr() as u64, 4096).unwrap();
    assert_ne!(at, mem.addr());
    assert_eq!(put(&ep, b"hello", mem.addr(), &rkey), Ok(Sent::Done));
    // SAFETY: mapped as long as the key, and written by nobody now.
    assert_eq!(unsafe { at.wrapping_add(4).read() }, b'o');
}

#[test]
fn keys_bound_what_is_reached() {
    let (a, b, ep) = pair();
    let mut there = vec![0u8; 64];
    let base = there.as_mut_ptr();
    let denied = Err(Refused::Failed(Error::RemoteAccess));
    let rkey = key_of(&a, &b, &mut there[8..16], Access::ALL);
    for (at, len) in [(7, 1), (16, 1), (8, 9), (0, 64)] {
        assert_eq!(put(&ep, &[1; 64][..len], base.wrapping_add(at), &rkey), denied);
    }
    assert_eq!(put(&ep, &[1; 8], base.wrapping_add(8), &rkey), Ok(Sent::Done));
    let rkey = key_of(&a, &b, &mut there, Access::REMOTE_READ);
    assert_eq!(put(&ep, &[1; 8], base, &rkey), denied);
    assert_eq!(there.iter().map(|&b| u32::from(b)).sum::<u32>(), 8);
    // A key of another process, by its own word.
    let mut packed = b.md().pack_rkey(&b.md().alloc(&AllocReq::new(8, "test")).unwrap()).unwrap();
    packed[0] ^= 1;
    packed[8..16].fill(0);
    let rkey = a.md().unpack_rkey(&packed).unwrap();
    assert!(matches!(put(&ep, &[1], base, &rkey), Err(Refused::Failed(Error::InvalidParam(_)))));
}

#[test]
fn addresses_are_proved() {
    let (a, b) = (Iface::open(&Config::default()).unwrap(), Iface::open(&Config::default()).unwrap());
    let (device, iface) = (b.device_addr(), b.iface_addr());
    assert_eq!(a.reachable(&device, &iface), Ok(()));
    let changed = |at: usize| {
        let mut iface = iface.clone();
        iface[at] ^= 1;
        a.connect(&device, &iface).err()
    };
    assert_eq!(changed(8), Some(ConnectError::Gone), "another key");
    assert_eq!(changed(16), Some(ConnectError::Gone), "another place");
    assert_eq!(changed(3), Some(ConnectError::Gone), "no such pid");
    let ep = a.connect(&device, &iface).unwrap();
    assert_eq!(changed(16), None, "the process is known now");
    assert_eq!(changed(8), Some(ConnectError::Gone), "but not by that key");
    drop(ep);
    assert_eq!(changed(16), Some(ConnectError::Gone), "and no longer");
    let mut other = device.clone();
    other[0] ^= 1;
    assert_eq!(a.connect(&other, &iface).err(), Some(ConnectError::OtherHost));
    assert_eq!(a.connect(&device, &iface[1..]).err(), Some(ConnectError::Malformed));
}

/// Not measured, but printed: what is known of a process is asked for once.
#[test]
fn many_endpoints_share_what_is_known_of_a_process() {
    const MANY: usize = 500;
    let (a, b, _ep) = pair();
    let (device, iface) = (b.device_addr(), b.iface_addr());
    let start = std::time::Instant::now();
    let eps: Vec<Ep> = (0..MANY).map(|_| a.connect(&device, &iface).unwrap()).collect();
    println!("{} ns an endpoint", start.elapsed().as_nanos() / MANY as u128);
    assert!(eps.iter().all(|ep| ep.check(Default::default()) == Ok(Sent::Done)));
}
