//! Interfaces of several threads on one memory domain. One thread registers memory with it; two others reach
//! the memory through interfaces of their own, one of which is opened and closed again and again; and a peer
//! with a domain of its own reaches it too. Instantiated in `tests/conform/conform.rs`.

use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ucs::config::Source;
use uct::any::{self, Ep, Iface, Md, Mem};
use uct::api::{
    Access, AllocReq, AtomicOp, Comp, Ep as _, Error, Iface as _, Iov, Md as _, Memory as _, Outcome,
    Refused, Sent,
};

use super::rma::{read, write};
use super::{Log, bytes};

/// Puts and gets of each of three threads: 102 000 operations together.
const ROUND_TRIPS: u64 = 17_000;
/// Round trips with one registration.
const PER_TARGET: u64 = 17;
/// Times that an interface is closed and opened again.
const REOPENED: u64 = 20;
const LEN: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Memory of the shared domain, for one thread to use and to deregister.
struct Target {
    mem: Mem,
    key: Vec<u8>,
    /// The allocation that it is a part of, if it is one.
    _whole: Option<Arc<Mem>>,
}

/// An interface, an endpoint by which it reaches the memory, and local memory.
struct Side {
    iface: Iface,
    ep: Ep,
    local: Mem,
}

impl Side {
    fn new(iface: Iface, to: (&[u8], &[u8])) -> Side {
        let ep = iface.connect(to.0, to.1).unwrap();
        ep.ensure_connected().unwrap();
        let local = iface.md().alloc(&AllocReq::new(2 * LEN, "local")).unwrap();
        Side { iface, ep, local }
    }

    /// On an interface of the shared domain, connected with itself.
    fn on(md: &Md, source: &Source) -> Side {
        let iface = any::open_iface(md, source).unwrap();
        let (device, addr) = (iface.device_addr(), iface.iface_addr());
        Side::new(iface, (&device, &addr))
    }

    /// Runs an operation to its end.
    fn finish(&self, mut call: impl FnMut(Comp) -> Outcome) -> Result<(), Error> {
        let (mut log, late) = (Log::default(), Instant::now() + TIMEOUT);
        let sent = loop {
            match call(Comp::Token(1)) {
                Err(Refused::NoResource) => self.iface.poll(16, &mut log),
                Err(Refused::Failed(e)) => return Err(e),
                Ok(sent) => break sent,
            };
            assert!(Instant::now() < late, "no resource for ever");
        };
        while sent == Sent::InProgress && log.comps.is_empty() {
            self.iface.poll(16, &mut log);
            assert!(Instant::now() < late, "no completion");
        }
        log.comps.first().map_or(Ok(()), |(_, result)| *result)
    }

    fn put(&self, target: &Target, rkey: &any::Rkey) -> Result<(), Error> {
        let iov = [Iov::new(self.local.addr(), LEN, Some(&self.local))];
        let at = target.mem.addr().addr() as u64;
        // SAFETY: the local memory is this thread's, and is left alone until the operation is over.
        self.finish(|comp| unsafe { self.ep.put_zcopy(&iov, at, rkey, comp) })
    }

    fn get(&self, target: &Target, rkey: &any::Rkey) -> Result<(), Error> {
        let iov = [Iov::new(self.local.addr().wrapping_add(LEN), LEN, Some(&self.local))];
        let at = target.mem.addr().addr() as u64;
        // SAFETY: as in `put`.
        self.finish(|comp| unsafe { self.ep.get_zcopy(&iov, at, rkey, comp) })
    }

    /// Writes and reads each target several times, and deregisters it.
    fn use_targets(&self, targets: &Receiver<Target>, round_trips: u64, seed: u64) {
        for n in 0..round_trips / PER_TARGET {
            let target = targets.recv_timeout(TIMEOUT).expect("memory to use");
            let rkey = self.iface.md().unpack_rkey(&target.key).unwrap();
            for round in 0..PER_TARGET {
                let data = bytes(seed << 32 | n << 8 | round, LEN);
                write(&self.local, 0, &data);
                assert_eq!(self.put(&target, &rkey), Ok(()));
                assert_eq!(self.get(&target, &rkey), Ok(()));
                assert!(read(&self.local, LEN, LEN) == data, "not what was put");
            }
            if n % 4 == 0 {
                target.mem.revoke();
                assert_eq!(self.iface.md().pack_rkey(&target.mem), Err(Error::BadLocalKey));
                if self.iface.md().attr().revokes_keys {
                    assert_eq!(self.put(&target, &rkey), Err(Error::RemoteAccess));
                }
            }
        }
    }
}

/// Registers memory and hands it out until nobody wants any: allocations, and parts of one.
fn register(md: &Md, users: &[SyncSender<Target>]) {
    let whole = Arc::new(md.alloc(&AllocReq::new(LEN * (users.len() + 8), "whole")).unwrap());
    let mut wanted = true;
    while wanted {
        wanted = false;
        for (n, user) in users.iter().enumerate() {
            let mem = md.alloc(&AllocReq::new(LEN, "target")).unwrap();
            let key = md.pack_rkey(&mem).unwrap().to_vec();
            let part = whole.addr().wrapping_add(n * LEN);
            // SAFETY: inside the allocation, which the target keeps.
            let part = unsafe { md.register(part, LEN, Access::ALL) }.unwrap();
            let part_key = md.pack_rkey(&part).unwrap().to_vec();
            wanted |= user.send(Target { mem, key, _whole: None }).is_ok();
            let part = Target { mem: part, key: part_key, _whole: Some(whole.clone()) };
            wanted |= user.send(part).is_ok();
        }
    }
}

type Address = (Vec<u8>, Vec<u8>);

fn address(iface: &Iface) -> Address {
    (iface.device_addr().to_vec(), iface.iface_addr().to_vec())
}

/// Uses the memory from another domain, through an endpoint to an interface of another thread. `self` reaches
/// itself only, and with it the memory of the process.
fn run_peer(
    tl: &str,
    dev: &str,
    source: &Source,
    there: Receiver<Address>,
    here: Sender<Address>,
    targets: Receiver<Target>,
) {
    let iface = any::open(tl, dev, source).unwrap();
    let own = address(&iface);
    here.send(own.clone()).unwrap();
    let to = there.recv_timeout(TIMEOUT).unwrap();
    let to = if tl == "self" { own } else { to };
    Side::new(iface, (&to.0, &to.1)).use_targets(&targets, ROUND_TRIPS, 3);
}

/// Runs three threads that use the memory and one that registers it.
pub fn threads_share_a_domain(tl: &str, dev: &str) {
    let source = &Source::empty();
    let md = any::open_md(tl, dev, source).unwrap();
    let (to_peer, at_peer) = channel();
    let (to_first, at_first) = channel();
    let (users, targets): (Vec<_>, Vec<_>) = (0..3).map(|_| sync_channel(2)).unzip();
    let [mine, reopened, peers] = <[_; 3]>::try_from(targets).ok().unwrap();
    let done = &Barrier::new(2);
    let md = &md;
    std::thread::scope(|scope| {
        scope.spawn(move || register(md, &users));
        scope.spawn(move || {
            let side = Side::on(md, source);
            to_peer.send(address(&side.iface)).unwrap();
            let peer: Address = at_first.recv_timeout(TIMEOUT).unwrap();
            // The target of a put knows who puts.
            let _back = (tl != "self").then(|| side.iface.connect(&peer.0, &peer.1).unwrap());
            side.use_targets(&mine, ROUND_TRIPS, 1);
            drop(mine);
            done.wait();
        });
        scope.spawn(move || {
            for _ in 0..REOPENED {
                Side::on(md, source).use_targets(&reopened, ROUND_TRIPS / REOPENED, 2);
            }
        });
        scope.spawn(move || {
            run_peer(tl, dev, source, at_peer, to_first, peers);
            done.wait();
        });
    });
}

/// Emulated atomics of two domains of `efa` and atomics of `posix` count in one word, and lose no increment.
/// Nobody progresses the target.
pub fn atomics_of_transports_meet() {
    const BY_MEMORY: u64 = 50_000;
    const BY_THREAD: u64 = 400;
    let source = &Source::empty();
    let (shm, net) = (any::open_md("posix", "memory", source), any::open_md("efa", "softefa0", source));
    let (shm, net) = (shm.unwrap(), net.unwrap());
    let mem = shm.alloc(&AllocReq::new(64, "word")).unwrap();
    // SAFETY: an allocation that outlives the registration.
    let registered = unsafe { net.register(mem.addr(), 64, Access::ALL) }.unwrap();
    let target = any::open_iface(&net, source).unwrap();
    let (keys, to) = ([shm.pack_rkey(&mem).unwrap(), net.pack_rkey(&registered).unwrap()], address(&target));
    let (at, keys, to) = (mem.addr().addr() as u64, &keys, &to);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let side = Side::on(&shm, source);
            let rkey = side.iface.md().unpack_rkey(&keys[0]).unwrap();
            for _ in 0..BY_MEMORY {
                let added = side.ep.atomic_post(AtomicOp::Add, 1u64, at, &rkey);
                assert_eq!(added, Ok(Sent::Done));
            }
        });
        for _ in 0..2 {
            scope.spawn(move || {
                let side = Side::new(any::open("efa", "softefa0", source).unwrap(), (&to.0, &to.1));
                let rkey = side.iface.md().unpack_rkey(&keys[1]).unwrap();
                let (mut old, mut last) = (0u64, None);
                let result = NonNull::from(&mut old);
                for _ in 0..BY_THREAD {
                    // SAFETY: `old` outlives the operation, which is waited for.
                    let add =
                        |comp| unsafe { side.ep.atomic_fetch(AtomicOp::Add, 1u64, result, at, &rkey, comp) };
                    assert_eq!(side.finish(add), Ok(()));
                    // SAFETY: `old` is alive; the operation is over.
                    let found = unsafe { result.read() };
                    assert!(last.replace(found).is_none_or(|last| last < found));
                }
            });
        }
    });
    // SAFETY: inside the memory; all operations are over.
    assert_eq!(unsafe { mem.addr().cast::<u64>().read_volatile() }, BY_MEMORY + 2 * BY_THREAD);
}
