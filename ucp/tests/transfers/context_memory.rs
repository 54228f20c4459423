//! Memory of a context: one key serves through every worker, in whichever thread it is, and is gone for all
//! of them when the memory is withdrawn.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{bytes, context, ends, runs_in_own_process, spin};
use ucp::{
    Access, AllocParams, AtomicOp, Context, Ep, EpParams, MapParams, Mem, MemError, Rkey, ServedOps, Worker,
};

const LEN: usize = 256 << 10;

/// A client and two workers of another context.
struct Job {
    client: Worker,
    servers: [Worker; 2],
    eps: [Ep; 2],
    context: Context,
}

impl Job {
    fn on(tls: &str) -> Job {
        let (ours, theirs) = ends(tls);
        let (client, context) = (crate::common::context(ours).worker().unwrap(), context(theirs));
        let servers = [context.worker().unwrap(), context.worker().unwrap()];
        let eps = [0, 1].map(|n| client.connect(&servers[n].address(), EpParams::default()).unwrap());
        Job { client, servers, eps, context }
    }

    fn until(&self, mut done: impl FnMut() -> bool) {
        spin(&[&self.client, &self.servers[0], &self.servers[1]], &mut done);
    }

    fn flush(&self) {
        let flush = self.client.flush();
        self.until(|| flush.is_done());
        flush.wait().unwrap();
    }
}

/// Puts through one worker what is got through the other, and adds through both.
fn used_through_both(job: &Job, addr: u64, keys: [&Rkey; 2]) {
    for (n, len) in [8, 5000, 100_000].into_iter().enumerate() {
        let (by, other) = (n % 2, 1 - n % 2);
        let sent = bytes(n as u64, len);
        let put = job.eps[by].put(sent.clone(), addr + 8, keys[by]);
        job.until(|| put.is_done());
        put.wait().0.unwrap();
        job.flush();
        let get = job.eps[other].get(vec![0; len], addr + 8, keys[other]);
        job.until(|| get.is_done());
        let (result, got) = get.wait();
        assert!(result.is_ok() && got == sent, "{len} bytes");
    }
    for by in [0, 1, 0] {
        let add = job.eps[by].atomic_fetch(AtomicOp::Sum, 5u64, addr, keys[by]);
        job.until(|| add.is_done());
        add.wait().unwrap();
    }
}

fn two_workers_serve_one_key(tls: &str) {
    let job = Job::on(tls);
    let mem = job.context.mem_alloc(LEN, Access::all()).unwrap();
    let mut own = vec![0u64; LEN / 8].into_boxed_slice();
    // SAFETY: the box outlives the registration and is not used meanwhile.
    let mapped = unsafe { job.context.mem_map(own.as_mut_ptr().cast(), LEN, Access::all()) }.unwrap();
    for mem in [&mem, &mapped] {
        let packed = mem.pack_rkey();
        let keys = [0, 1].map(|n| job.eps[n].unpack_rkey(&packed).unwrap());
        assert!(keys[0].compare(&keys[1]).is_eq());
        used_through_both(&job, mem.addr(), [&keys[0], &keys[1]]);
        assert_eq!(mem.word(0), 15);
        // By packets alone.
        let key = Rkey::from_key(mem.key());
        used_through_both(&job, mem.addr(), [&key, &key]);
        assert_eq!(mem.word(0), 30);
        // By one key for devices and packets, as libfabric has them.
        let key = mem.libfabric_key();
        assert_eq!(key, mem.libfabric_key());
        let keys = [0, 1].map(|n| Rkey::from_libfabric_key(&job.eps[n], key));
        used_through_both(&job, mem.addr(), [&keys[0], &keys[1]]);
        assert_eq!(mem.word(0), 45);
    }
}

/// Keys are equal if they are of the same memory, with the same rights; otherwise one comes before the other.
fn keys_have_an_order(tls: &str) {
    let job = Job::on(tls);
    let alloc = |access| job.context.mem_alloc(LEN, access).unwrap();
    let memories = [alloc(Access::all()), alloc(Access::all()), alloc(Access::READ)];
    let unpack = |n: usize| memories.each_ref().map(|mem| job.eps[n].unpack_rkey(&mem.pack_rkey()).unwrap());
    let (own, other) = (unpack(0), unpack(1));
    for (a, one) in own.iter().enumerate() {
        for (b, two) in other.iter().enumerate() {
            assert_eq!(one.compare(two).is_eq(), a == b, "{a} {b}");
            assert_eq!(one.compare(two), two.compare(one).reverse(), "{a} {b}");
        }
    }
    let mut sorted: Vec<&Rkey> = own.iter().chain(&other).collect();
    sorted.sort_by(|one, two| one.compare(two));
    assert!(sorted.chunks(2).all(|pair| pair[0].compare(pair[1]).is_eq()), "equal ones are neighbours");
    // A number says nothing of the owner.
    assert!(Rkey::from_program_key(7).compare(&Rkey::from_program_key(7)).is_eq());
    assert!(Rkey::from_program_key(7).compare(&Rkey::from_program_key(8)).is_ne());
}

/// Memory with a key and addresses of the program is reached by packets alone, which are counted.
fn own_keys_and_offsets(tls: &str) {
    let job = Job::on(tls);
    let mut own = vec![0u64; LEN / 8].into_boxed_slice();
    let map = |params: MapParams, own: &mut [u64]| {
        // SAFETY: the box outlives the registration and is not used meanwhile.
        unsafe { job.context.mem_map_with(own.as_mut_ptr().cast(), LEN, params) }
    };
    let named = MapParams::new(Access::all()).key(7).base(0x100);
    let mem = map(named, &mut own).unwrap();
    assert_eq!((mem.addr(), mem.libfabric_key()), (0x100, mem.key()));
    assert_eq!(map(named, &mut own).err(), Some(MemError::KeyInUse { key: 7 }));
    let key = Rkey::from_program_key(7);
    let other = map(MapParams::new(Access::READ).key(8), &mut own).unwrap();
    used_through_both(&job, mem.addr(), [&key, &key]);
    assert_eq!(mem.word(0), 15);
    // Three gets and three fetching atomic operations; flushes may write, too.
    let [one, two] = [0, 1].map(|n| ServedOps::of(&job.servers[n]));
    assert_eq!(one.reads + two.reads, 6);
    assert!(one.writes + two.writes >= 3);
    for (addr, number) in [(0x100 + LEN as u64, 7), (0xff, 7), (other.as_ptr().addr() as u64, 9)] {
        let get = job.eps[0].get(vec![0; 8], addr, &Rkey::from_program_key(number));
        job.until(|| get.is_done());
        assert!(get.wait().0.is_err(), "{number} at {addr:#x}");
    }
    // The key is free again.
    drop(mem);
    assert_eq!(map(named, &mut own).unwrap().addr(), 0x100);
    let wraps = MapParams::new(Access::all()).base(u64::MAX - 8);
    assert_eq!(map(wraps, &mut own).err(), Some(MemError::BadRange));
}

/// Operations are counted by the region that they are on, whichever worker serves them.
fn counted_by_region(tls: &str) {
    let job = Job::on(tls);
    let mut own = [vec![0u64; LEN / 8], vec![0u64; LEN / 8]];
    let mems = own.each_mut().map(|own| {
        let params = MapParams::new(Access::all()).counted();
        // SAFETY: the memory outlives the registration and is not used meanwhile.
        unsafe { job.context.mem_map_with(own.as_mut_ptr().cast(), LEN, params) }.unwrap()
    });
    let keys = mems.each_ref().map(|mem| Rkey::from_key(mem.key()));
    used_through_both(&job, mems[0].addr(), [&keys[0], &keys[0]]);
    let put = job.eps[1].put(vec![7; LEN], mems[1].addr(), &keys[1]);
    job.until(|| put.is_done());
    job.flush();
    let served = mems.each_ref().map(Mem::served);
    assert_eq!((served[0].reads, served[1].reads), (6, 0), "three gets, three fetching atomic operations");
    assert!(served[0].writes >= 1);
    assert_eq!(served[1].writes, 1, "one long write");
    let refused = job.eps[0].get(vec![0; 16], mems[1].addr() + LEN as u64 - 8, &keys[1]);
    job.until(|| refused.is_done());
    assert!(refused.wait().0.is_err());
    assert_eq!(mems[1].served(), served[1], "what is refused is not counted");
    // SAFETY: as above.
    let plain = unsafe { job.context.mem_map(own[0].as_mut_ptr().cast(), LEN, Access::all()) }.unwrap();
    assert_eq!(plain.served(), ServedOps::default());
}

fn withdrawn_memory_is_gone_for_both(tls: &str) {
    let job = Job::on(tls);
    let mut own = vec![0u64; LEN / 8].into_boxed_slice();
    for round in 0..20usize {
        // SAFETY: the box outlives the registration and is not used meanwhile.
        let mem = unsafe { job.context.mem_map(own.as_mut_ptr().cast(), LEN, Access::all()) }.unwrap();
        let packed = mem.pack_rkey();
        let keys = [0, 1].map(|n| job.eps[n].unpack_rkey(&packed).unwrap());
        let by_packets = Rkey::from_key(mem.key());
        let puts: Vec<_> = (0..4)
            .map(|n| {
                let key = if n < 2 { &keys[n] } else { &by_packets };
                job.eps[n % 2].put(vec![1; LEN], mem.addr(), key)
            })
            .collect();
        (0..round * 3).for_each(|_| {
            [&job.client, &job.servers[0], &job.servers[1]].iter().for_each(|worker| {
                worker.progress();
            });
        });
        drop(mem);
        own.fill(0);
        let start = Instant::now();
        job.until(|| puts.iter().all(|put| put.is_done()) || start.elapsed() > Duration::from_secs(30));
        assert!(puts.iter().all(|put| put.is_done()), "round {round}");
        let flush = job.client.flush();
        job.until(|| flush.is_done());
        drop((puts, flush));
        assert!(own.iter().all(|word| *word == 0), "withdrawn memory was written in round {round}");
    }
}

fn memory_serves_workers_of_other_threads(tls: &str) {
    let (ours, theirs) = ends(tls);
    let (client, context) = (crate::common::context(ours).worker().unwrap(), context(theirs));
    // Memory that is older than the workers, and memory that changes while they run.
    let first = context.mem_alloc(LEN, Access::all()).unwrap();
    let stop = AtomicBool::new(false);
    let (send, addresses) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (context, stop, send) = (context.clone(), &stop, send.clone());
            scope.spawn(move || {
                let worker = context.worker().unwrap();
                send.send(worker.address().pack()).unwrap();
                while !stop.load(Relaxed) {
                    worker.progress();
                }
            });
        }
        let eps: Vec<_> = addresses
            .iter()
            .take(2)
            .map(|packed| {
                client.connect(&ucp::Address::unpack(&packed).unwrap(), EpParams::default()).unwrap()
            })
            .collect();
        let ends = |put: ucp::SendRequest<Vec<u8>>| {
            spin(&[&client], &mut || put.is_done());
            put.wait().0
        };
        for round in 0..40u64 {
            let mem = context.mem_alloc(LEN, Access::all()).unwrap();
            for (n, ep) in eps.iter().enumerate() {
                for mem in [&first, &mem] {
                    let (whole, packets) =
                        (ep.unpack_rkey(&mem.pack_rkey()).unwrap(), Rkey::from_key(mem.key()));
                    for (nth, key) in [&whole, &packets].into_iter().enumerate() {
                        let sent = bytes(round + n as u64, [9000, 64][nth]);
                        let at = (round as usize * 16 + nth * 10_000) % (LEN / 2);
                        ends(ep.put(sent.clone(), mem.addr() + at as u64, key)).unwrap();
                        let flush = client.flush();
                        spin(&[&client], &mut || flush.is_done());
                        flush.wait().unwrap();
                        let mut got = vec![0; sent.len()];
                        mem.read(at, &mut got);
                        assert!(got == sent, "round {round}");
                    }
                }
            }
            // Withdrawn while the other threads receive a long put to it.
            let key = Rkey::from_key(mem.key());
            let late: Vec<_> = eps.iter().map(|ep| ep.put(vec![7; LEN], mem.addr(), &key)).collect();
            (0..round % 10).for_each(|_| {
                client.progress();
            });
            drop(mem);
            for put in late {
                let _ = ends(put);
            }
            // One that had left as a whole was done for its caller, and this flush hears of its refusal.
            let flush = client.flush();
            spin(&[&client], &mut || flush.is_done());
            let refused = |error| matches!(error, ucp::Error::RemoteAccess(_) | ucp::Error::Aborted(..));
            assert!(flush.wait().err().is_none_or(refused), "round {round}");
        }
        stop.store(true, Relaxed);
    });
}

on! { [two_workers_serve_one_key keys_have_an_order own_keys_and_offsets counted_by_region withdrawn_memory_is_gone_for_both memory_serves_workers_of_other_threads]
    posix: "posix",
    posix_and_cma: "posix,cma",
    efa: "efa",
    all: "all",
    one_all_other_efa: "efa|all",
    two_nics: "efa*2",
    one_nic_other_two: "efa*2|efa",
    two_nics_other_one: "efa|efa*2",
}

#[test]
fn memory_is_allocated_where_and_as_asked() {
    // Another test could map memory at the address meanwhile.
    if runs_in_own_process("context_memory::memory_is_allocated_where_and_as_asked") {
        return;
    }
    let context = context("all");
    assert_eq!(context.mem_alloc(0, Access::all()).err(), Some(MemError::BadRange));
    // An address that was free a moment ago.
    let free = context.mem_alloc(LEN, Access::all()).unwrap().as_ptr();
    let at = AllocParams::new(Access::all()).at(NonNull::new(free).unwrap());
    let mem = context.mem_alloc_with(LEN, at).unwrap();
    assert_eq!(mem.as_ptr(), free);
    assert!(context.mem_alloc_with(LEN, at).is_err(), "memory is there already");
    let start = Instant::now();
    let lazy = context.mem_alloc_with(8 << 30, AllocParams::new(Access::all()).lazily_filled());
    match lazy {
        Ok(lazy) => {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
            lazy.write(5 << 30, b"late");
            lazy.advise(5 << 30, 4096, uct::api::Advice::WillNeed).unwrap();
            assert!(lazy.advise(8 << 30, 1, uct::api::Advice::WillNeed).is_err());
        }
        // A host may forbid as much.
        Err(why) => eprintln!("8 GiB, lazily: {why}"),
    }
}

/// Peers of this host map memory of the device, whatever else the context has.
#[test]
fn memory_comes_from_what_peers_reach() {
    for tls in ["efa", "efa,self", "posix,self"] {
        let (context, client) = (context(tls), crate::common::context(tls).worker().unwrap());
        let worker = context.worker().unwrap();
        let mem = context.mem_alloc(LEN, Access::all()).unwrap();
        let ep = client.connect(&worker.address(), EpParams::default()).unwrap();
        let key = ep.unpack_rkey(&mem.pack_rkey()).unwrap();
        assert!(format!("{key:?}").contains("lane: true"), "{tls}: {key:?}");
        assert_eq!(key.ptr(mem.addr(), 8).is_some(), tls != "efa", "{tls}");
        if let Some(at) = key.ptr(mem.addr() + 16, 8) {
            mem.write(16, &7u64.to_ne_bytes());
            // SAFETY: eight aligned bytes that the key maps; nobody writes them now.
            assert_eq!(unsafe { at.cast::<u64>().read_volatile() }, 7);
            assert!(key.ptr(mem.addr() + LEN as u64, 8).is_none());
        }
    }
}
