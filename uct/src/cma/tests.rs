//! Tests of what `cma` alone promises; the rest is in the conformance suite, where memory is allocated and so
//! mapped.

#![allow(unsafe_code)]

use super::{Config, Ep, Iface, Rkey};
use crate::api::{
    Access, AllocReq, Comp, ConnectError, Ep as _, Error, Iface as _, Iov, Md as _, Memory as _, Outcome,
    Refused, Sent,
};

fn pair() -> (Iface, Iface, Ep) {
    let (a, b) = (Iface::open(&Config::default()).unwrap(), Iface::open(&Config::default()).unwrap());
    let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
    (a, b, ep)
}

fn key_of(a: &Iface, b: &Iface, memory: &mut [u8], access: Access) -> Rkey {
    // SAFETY: the tests keep `memory` longer than the key, and read it between operations only.
    let mem = unsafe { b.md().register(memory.as_mut_ptr(), memory.len(), access) }.unwrap();
    a.md().unpack_rkey(&b.md().pack_rkey(&mem).unwrap()).unwrap()
}

fn put(ep: &Ep, bytes: &[u8], to: *const u8, rkey: &Rkey) -> Outcome {
    let iov = [Iov::new(bytes.as_ptr(), bytes.len(), None)];
    // SAFETY: the flush, or else the call itself, completes the operation.
    match unsafe { ep.put_zcopy(&iov, to.addr() as u64, rkey, Default::default()) }? {
        Sent::InProgress => ep.flush(Default::default()),
        Sent::Done => Ok(Sent::Done),
    }
}

/// [`ucs::sys::proc::allow_ptrace`] gets the setting as it is.
#[test]
fn a_setting_keeps_peers_out() {
    use ucs::config::{Source, Table};
    for (value, lets_in) in [("n", false), ("y", true)] {
        let source = Source::empty().with("UCX_CMA_ALLOW_PEERS", value);
        assert_eq!(Config::load(&source).unwrap().allow_peers, lets_in);
    }
    assert!(Config::default().allow_peers, "unless it is told otherwise");
}

#[test]
fn endpoints_read_the_number_that_an_interface_publishes() {
    let (a, b, ep) = pair();
    assert_eq!(
        (ep.published(), a.connect(&a.device_addr(), &a.iface_addr()).unwrap().published()),
        (Some(0), Some(0))
    );
    b.publish(7);
    assert_eq!(ep.published(), Some(7));
    b.publish(u64::MAX);
    assert_eq!(ep.published(), Some(u64::MAX));
    // The process of a version that publishes nothing has other bytes behind its key.
    let earlier = [ep.peer_process().unwrap(), 7, 7];
    let mut addr = b.iface_addr();
    addr[16..]
        .copy_from_slice(&(std::hint::black_box(&earlier).as_ptr().expose_provenance() as u64).to_le_bytes());
    assert_eq!(a.connect(&b.device_addr(), &addr).unwrap().published(), None);
}

#[test]
fn unallocated_memory_is_reached_by_syscall() {
    let (a, b, ep) = pair();
    let mut there = vec![0u8; 100_000];
    let base = there.as_mut_ptr();
    let rkey = key_of(&a, &b, &mut there, Access::ALL);
    assert!(a.md().rkey_ptr(&rkey, base.addr() as u64, 1).is_none());
    let bytes: Vec<u8> = (0..99_999).map(|i| (i * 7) as u8).collect();
    assert_eq!(put(&ep, &bytes, base.wrapping_add(1), &rkey), Ok(Sent::Done));
    assert_eq!(there[1..], bytes[..]);
    let mut back = vec![0u8; 99_999];
    let iov =
        [Iov::new(back.as_mut_ptr(), 40_000, None), Iov::new(back[40_000..].as_mut_ptr(), 59_999, None)];
    // SAFETY: `back` is not read before the flush has returned.
    let got = unsafe { ep.get_zcopy(&iov, base.addr() as u64 + 1, &rkey, Default::default()) };
    assert_eq!((got, ep.flush(Default::default())), (Ok(Sent::InProgress), Ok(Sent::Done)));
    assert_eq!(back, bytes);
}

#[test]
fn bcopy_closures_may_put_and_get() {
    let (a, b, ep) = pair();
    let mut there = vec![1u8; 64];
    let at = there.as_mut_ptr().addr() as u64;
    let rkey = key_of(&a, &b, &mut there, Access::ALL);
    let pack = |slot: &mut [u8]| {
        slot.fill(2);
        let inner = ep.put_bcopy(16, |slot| (slot.fill(3), slot.len()).1, at + 32, &rkey);
        assert_eq!(inner, Ok(16));
        assert_eq!(ep.put_short(&[4; 8], at + 48, &rkey), Ok(Sent::Done));
        assert!(slot.iter().all(|byte| *byte == 2));
        20
    };
    assert_eq!(ep.put_bcopy(32, pack, at, &rkey), Ok(20));
    let want = [[2u8; 20].as_slice(), &[1; 12], &[3; 16], &[4; 8], &[1; 8]].concat();
    assert_eq!(there, want);
    let mut all = [0; 64];
    assert_eq!(ep.get_short(&mut all, at, &rkey), Ok(Sent::Done));
    assert_eq!(all[..], want);
    let longest = a.attr().put.max_bcopy;
    let too_long = ep.put_bcopy(longest + 1, |_| panic!("packed"), at, &rkey);
    assert_eq!(too_long, Err(Error::TooLong { len: longest + 1, max: longest }.into()));
    let outside = ep.put_bcopy(8, |_| panic!("packed"), at + 57, &rkey);
    assert_eq!(outside, Err(Error::RemoteAccess.into()));
}

#[test]
fn allocated_memory_is_mapped() {
    let (a, b, ep) = pair();
    let mem = b.md().alloc(&AllocReq::new(4096, "test")).unwrap();
    let rkey = a.md().unpack_rkey(&b.md().pack_rkey(&mem).unwrap()).unwrap();
    let at = a.md().rkey_ptr(&rkey, mem.addr().addr() as u64, 4096).unwrap();
    assert_ne!(at, mem.addr());
    assert_eq!(put(&ep, b"hello", mem.addr(), &rkey), Ok(Sent::Done));
    // SAFETY: mapped as long as the key, and written by nobody now.
    assert_eq!(unsafe { at.wrapping_add(4).read() }, b'o');
}

#[test]
fn memory_allocated_by_posix_is_mapped() {
    use crate::any;
    use ucs::config::Source;
    let dir = std::env::temp_dir().join(format!("uct-cma-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let dir_name = dir.to_str().expect("a name in UTF-8");
    for source in [Source::empty(), Source::empty().with("UCX_POSIX_SOCKET_DIR", dir_name)] {
        let open = |tl| any::open(tl, "memory", &source).unwrap();
        let (owner, posix, peer) = (open("cma"), open("posix"), open("cma"));
        let set = any::MemSet::alloc(&[owner.md(), posix.md()], &AllocReq::new(8192, "test")).unwrap();
        let mem = set.mem(0).expect("registered with all");
        assert_eq!(mem.method(), None, "it is the other one's");
        let packed = owner.md().pack_rkey(mem).unwrap();
        let rkey = peer.md().unpack_rkey(&packed).unwrap();
        let at = peer.md().rkey_ptr(&rkey, mem.addr().addr() as u64 + 100, 8).expect("it is mapped");
        assert_ne!(at, mem.addr().wrapping_add(100));
        // SAFETY: inside the set's memory, which nobody else uses.
        unsafe { mem.addr().wrapping_add(100).write(7) };
        // SAFETY: mapped as long as the key, and not written now.
        assert_eq!(unsafe { at.read() }, 7);
        // SAFETY: a part of the set's memory, registered for a shorter time.
        let part = unsafe { owner.md().register(mem.addr().wrapping_add(4096), 64, Access::ALL) }.unwrap();
        let rkey = peer.md().unpack_rkey(&owner.md().pack_rkey(&part).unwrap()).unwrap();
        let first = part.addr().addr() as u64;
        assert!(peer.md().rkey_ptr(&rkey, first, 64).is_some());
        assert!(peer.md().rkey_ptr(&rkey, first - 1, 64).is_none(), "no more than was registered");
        drop((part, set));
        assert!(peer.md().unpack_rkey(&packed).is_ok_and(|rkey| peer.md().rkey_ptr(&rkey, 0, 0).is_none()));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The child process of the next test. Prints its address, and lives until its input ends.
#[test]
#[ignore = "started by peer_failures_are_reported_up_to_max"]
fn child_process() {
    let iface = Iface::open(&Config::default()).unwrap();
    let hex = |addr: &[u8]| addr.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    println!("\nat {} {}", hex(&iface.device_addr()), hex(&iface.iface_addr()));
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn peer_failures_are_reported_up_to_max() {
    use crate::api::{Am, EpTag, Sink};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[derive(Default)]
    struct Reported(Vec<u64>);
    impl Sink for Reported {
        fn on_am(&mut self, _: Am<'_>) {}
        fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
            assert_eq!((token, result), (WAITING, Err(Error::PeerDead)));
            self.0.push(token);
        }
        fn on_ep_error(&mut self, ep: EpTag, error: Error) {
            assert_eq!(error, Error::PeerDead);
            self.0.push(ep.0);
        }
    }

    const WAITING: u64 = 1000;
    const MANY: u64 = 100;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "cma::tests::child_process"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let at = lines.find_map(|line| line.unwrap().strip_prefix("at ").map(str::to_owned)).expect("it says");
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap()).collect()
    };
    let (device, iface) = at.trim().split_once(' ').expect("two addresses");
    let (device, iface) = (bytes(device), bytes(iface));
    let here = Iface::open(&Config::default()).unwrap();
    let mut eps: Vec<Ep> = (0..MANY)
        .map(|n| {
            let ep = here.connect(&device, &iface).unwrap();
            ep.set_tag(EpTag(n));
            ep
        })
        .collect();
    let key = u64::from_le_bytes(iface[8..16].try_into().unwrap());
    let rkey = here.md().rkey_from_mr_key(key, 4096, 1).unwrap();
    let iov = [Iov::new(b"x".as_ptr(), 1, None)];
    // SAFETY: a constant; the remote address need not exist.
    let put = unsafe { eps[9].put_zcopy(&iov, 4096, &rkey, Comp::Token(WAITING)) };
    assert_eq!(put, Ok(Sent::InProgress));
    // SAFETY: as above.
    let put = unsafe { eps[5].put_zcopy(&iov, 4096, &rkey, Comp::None) };
    assert_eq!(put, Ok(Sent::InProgress));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut reported = Reported::default();
    assert_eq!(here.poll(1, &mut reported), 1);
    assert_eq!(std::mem::take(&mut reported.0), [WAITING], "the process is gone, notified or not");
    assert_eq!(eps[5].flush(Comp::None), Err(Error::PeerDead.into()));
    while reported.0.is_empty() {
        assert!(here.poll(1, &mut reported) <= 1);
        std::thread::yield_now();
    }
    assert_eq!(reported.0, [0]);
    assert_eq!((here.poll(0, &mut reported), here.is_idle()), (0, false));
    assert_eq!(here.arm(Default::default()), Ok(false), "more to report");
    eps.pop();
    for n in 1..MANY - 1 {
        assert!(!here.is_idle());
        assert_eq!((here.poll(1, &mut reported), reported.0.len() as u64), (1, n + 1));
    }
    assert_eq!((here.poll(64, &mut reported), here.is_idle()), (0, true));
    assert!(reported.0.iter().copied().eq(0..MANY - 1));
    assert_eq!(eps[0].flush(Default::default()), Err(Error::PeerDead.into()));
}

#[test]
fn keys_bound_the_access() {
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
    // A key that claims another owner, for memory that is mapped here and that is not.
    let mine = b.md().alloc(&AllocReq::new(8, "test")).unwrap();
    let mut packed = b.md().pack_rkey(&mine).unwrap();
    packed[0] ^= 1;
    let forged = a.md().unpack_rkey(&packed).err();
    assert!(matches!(forged, Some(Error::InvalidParam(_))), "memory of one process in a key of another");
    packed[8..16].fill(0);
    let called = a.md().unpack_rkey(&packed).unwrap();
    let at = mine.addr().addr() as u64;
    assert!(a.md().rkey_ptr(&called, at, 8).is_none());
    assert!(matches!(put(&ep, &[1], mine.addr(), &called), Err(Refused::Failed(Error::InvalidParam(_)))));
    assert!(ep.put_short(&[1], at, &called).is_err() && ep.get_short(&mut [0], at, &called).is_err());
}

#[test]
fn addresses_are_verified() {
    let (a, b) = (Iface::open(&Config::default()).unwrap(), Iface::open(&Config::default()).unwrap());
    let (device, iface) = (b.device_addr(), b.iface_addr());
    assert_eq!(a.reachable(&device, &iface), Ok(()));
    let changed = |at: usize| {
        let mut iface = iface.clone();
        iface[at] ^= 1;
        a.connect(&device, &iface).err()
    };
    assert_eq!(changed(8), Some(ConnectError::Gone), "another key");
    assert_eq!(changed(16), Some(ConnectError::Gone), "another key address");
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

#[test]
fn endpoints_share_the_process_state() {
    const MANY: usize = 500;
    let (a, b, _ep) = pair();
    let (device, iface) = (b.device_addr(), b.iface_addr());
    let start = std::time::Instant::now();
    let eps: Vec<Ep> = (0..MANY).map(|_| a.connect(&device, &iface).unwrap()).collect();
    println!("{} ns an endpoint", start.elapsed().as_nanos() / MANY as u128);
    assert!(eps.iter().all(|ep| ep.check(Default::default()) == Ok(Sent::Done)));
}
