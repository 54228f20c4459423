//! Remote memory by packed keys and by MR keys: bounds, rights and the cache.

#![allow(unsafe_code)]

use super::super::{Config, Iface, Md, Mem, Rkey};
use crate::api::{self, Access, AllocReq, Ep as _, Error, Iface as _, Iov, Md as _, Memory as _, Op, Sent};
use crate::host::fd_server::Name;
use crate::host::{MAX_CACHED, RemoteSegments};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ucs::config::{Source, Table};

fn open() -> Iface {
    Iface::open(&Config::load(&Source::empty()).unwrap()).unwrap()
}

/// Memory with all rights, each byte of which is its offset.
fn memory(md: &Md, len: usize) -> Mem {
    let mem = md.alloc(&AllocReq { access: Access::ALL, ..AllocReq::new(len, "test") }).unwrap();
    // SAFETY: inside the allocation, which nobody else knows of yet.
    (0..len).for_each(|at| unsafe { mem.addr().wrapping_add(at).write(at as u8) });
    mem
}

fn by_mr_key(md: &Md, word: u64) -> Result<Rkey, Error> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match md.rkey_from_mr_key(word, 0, 0) {
            Err(Error::NotReady) if Instant::now() < until => std::thread::yield_now(),
            answer => return answer,
        }
    }
}

fn get(reader: &Iface, of: &Iface, from: u64, len: usize, key: &Rkey) -> Result<Vec<u8>, api::Refused> {
    let ep = reader.connect(&of.device_addr(), &of.iface_addr()).unwrap();
    let mut got = vec![0; len];
    // SAFETY: `got` is ours alone, and a get is over when the call returns.
    unsafe { ep.get_zcopy(&[Iov::new(got.as_mut_ptr(), len, None)], from, key, Default::default()) }
        .map(|sent| assert_eq!(sent, Sent::Done))
        .map(|()| got)
}

#[test]
fn registered_part_of_an_allocation_has_a_key() {
    let (owner, reader) = (open(), open());
    let all = memory(owner.md(), 100_000);
    let register = |from: usize, len, access| {
        let at = all.addr().wrapping_add(from);
        // SAFETY: inside the allocation but for its last bytes in one case, which only asks for a key.
        unsafe { owner.md().register(at, len, access) }.unwrap()
    };
    let part = register(50_001, 10_000, Access::REMOTE_READ);
    assert_eq!((part.len(), part.method()), (10_000, None));
    assert_eq!(owner.md().mr_key(&part), owner.md().mr_key(&all));
    let key = reader.md().unpack_rkey(&owner.md().pack_rkey(&part).unwrap()).unwrap();
    let from = part.addr().addr() as u64;
    assert_eq!(get(&reader, &owner, from + 9_990, 10, &key).unwrap()[..2], [(59_991 % 256) as u8, 88]);
    for (from, len) in [(from - 1, 2), (from + 9_999, 2), (0, 1), (u64::MAX, 2)] {
        assert_eq!(get(&reader, &owner, from, len, &key), Err(Error::RemoteAccess.into()), "{from:#x}");
    }
    let none = Err(Error::Unsupported(Op::RemoteKey));
    assert_eq!(owner.md().mr_key(&register(99_999, 2, Access::REMOTE_READ)), none, "half of it outside");
    assert_eq!(owner.md().mr_key(&register(0, 10, Access::LOCAL_WRITE)), none, "of no use to peers");
    let read_only =
        owner.md().alloc(&AllocReq { access: Access::REMOTE_READ, ..AllocReq::new(4096, "test") }).unwrap();
    // SAFETY: the allocation, and no more is asked for than a key.
    let more = unsafe { owner.md().register(read_only.addr(), 10, Access::REMOTE_WRITE) }.unwrap();
    assert_eq!(owner.md().mr_key(&more), none, "more than the allocation allows");
    assert!(owner.md().has_allocated(part.addr(), 1) && !owner.md().has_allocated(part.addr(), 50_000));
    let (at, word) = (part.addr(), owner.md().mr_key(&part).unwrap());
    drop(all);
    assert!(!owner.md().has_allocated(at, 1));
    assert_eq!(by_mr_key(open().md(), word).err(), Some(Error::RemoteAccess));
}

#[test]
fn mr_key_names_the_whole_allocation() {
    let (owner, reader) = (open(), open());
    let all = memory(owner.md(), 5000);
    let word = owner.md().mr_key(&all).unwrap();
    assert_eq!(reader.md().rkey_from_mr_key(word, 0, 0).err(), Some(Error::NotReady), "no query yet");
    let (key, from) = (by_mr_key(reader.md(), word).unwrap(), all.addr().addr() as u64);
    assert_eq!(api::Rkey::range(&key), (from, 5000));
    assert_eq!(get(&reader, &owner, from + 300, 3, &key), Ok(vec![44, 45, 46]));
    assert_eq!(get(&reader, &owner, from + 4999, 2, &key), Err(Error::RemoteAccess.into()));
    // The second use is ready at once. Freed memory stays mapped here, without its pages.
    let again = reader.md().rkey_from_mr_key(word, 0, 0).unwrap();
    drop(all);
    assert_eq!(get(&reader, &owner, from + 300, 3, &again), Ok(vec![0; 3]));
    let iface = u64::from_le_bytes(owner.iface_addr()[..].try_into().unwrap());
    assert_eq!(by_mr_key(reader.md(), iface).err(), Some(Error::RemoteAccess));
    assert!(by_mr_key(reader.md(), word ^ 1 << 63).is_err());
}

#[test]
fn memory_without_remote_rights_has_no_key() {
    let owner = open();
    let access = Access::LOCAL_READ | Access::LOCAL_WRITE;
    let mem = owner.md().alloc(&AllocReq { access, ..AllocReq::new(4096, "test") }).unwrap();
    let none = Error::Unsupported(Op::RemoteKey);
    assert_eq!(owner.md().mr_key(&mem).err(), Some(none));
    assert_eq!(owner.md().pack_rkey(&mem).err(), Some(none));
    // SAFETY: the allocation, and no more is asked for than a key.
    let more = unsafe { owner.md().register(mem.addr(), 10, Access::REMOTE_READ) }.unwrap();
    assert_eq!(owner.md().mr_key(&more).err(), Some(none));
}

#[test]
fn read_only_memory_is_mapped_by_nobody_for_writing() {
    let owner = open();
    let access = Access::REMOTE_READ;
    let mem = owner.md().alloc(&AllocReq { access, ..AllocReq::new(4096, "read-only-test") }).unwrap();
    // The owner writes it.
    // SAFETY: a byte of the allocation.
    unsafe { mem.addr().write(7) };
    // An attacker has the file, by whatever way.
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_it = |at: &std::path::PathBuf| {
        std::fs::read_link(at).is_ok_and(|to| to.to_string_lossy().contains("read-only-test"))
    };
    let file = links.map(|entry| entry.path()).find(is_it).expect("the memory file");
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    assert!(ucs::mem::SharedMem::from_fd(file.try_clone().unwrap().into(), 4096).is_err());
    assert!(std::io::Write::write(&mut &file, &[1]).is_err());
    let map = ucs::mem::SharedMap::from_fd(file.into(), 4096, false).unwrap();
    // SAFETY: a byte of the mapping.
    assert_eq!(unsafe { map.as_ptr().read() }, 7);
}

#[test]
fn keys_without_the_nonce_open_nothing() {
    let (owner, reader) = (open(), open());
    let mem = memory(owner.md(), 4096);
    let packed = owner.md().pack_rkey(&mem).unwrap().to_vec();
    let mut wrong = packed.clone();
    wrong[32] ^= 1;
    assert_eq!(reader.md().unpack_rkey(&wrong).err(), Some(Error::RemoteAccess), "unknown");
    let right = reader.md().unpack_rkey(&packed).unwrap();
    assert_eq!(reader.md().unpack_rkey(&wrong).err(), Some(Error::RemoteAccess), "known here");
    // The name of the export is no key by itself.
    let name = u64::from_le_bytes(packed[..8].try_into().unwrap());
    assert_eq!(by_mr_key(open().md(), name).err(), Some(Error::RemoteAccess));
    drop(right);
}

#[test]
fn mr_key_cache_is_bounded() {
    let (owner, reader) = (open(), open());
    let mems: Vec<Mem> = (0..MAX_CACHED + 3).map(|_| memory(owner.md(), 1)).collect();
    let words: Vec<u64> = mems.iter().map(|mem| owner.md().mr_key(mem).unwrap()).collect();
    let remote_segments: &RemoteSegments = reader.md().remote_segments();
    for word in &words {
        by_mr_key(reader.md(), *word).unwrap();
        by_mr_key(reader.md(), words[0]).unwrap();
    }
    assert_eq!(remote_segments.counts().0, MAX_CACHED);
    assert!(
        reader.md().rkey_from_mr_key(words[0], 0, 0).is_ok()
            && reader.md().rkey_from_mr_key(words[MAX_CACHED], 0, 0).is_ok()
    );
    assert_eq!(reader.md().rkey_from_mr_key(words[1], 0, 0).err(), Some(Error::NotReady), "used longest ago");
    let held = by_mr_key(reader.md(), words[1]).unwrap();
    remote_segments.forget(Name(words[0]).owner());
    assert_eq!(remote_segments.counts(), (0, 0));
    let map = remote_segments.map(Name(words[1]).into()).unwrap();
    assert!(Arc::strong_count(&map) >= 2);
    drop(held);
}

#[test]
fn key_grants_no_more_than_the_owner() {
    let (owner, reader) = (open(), open());
    let ep = reader.connect(&owner.device_addr(), &owner.iface_addr()).unwrap();
    for (access, writes) in [(Access::REMOTE_READ, false), (Access::ALL, true)] {
        let mem = owner.md().alloc(&AllocReq { access, ..AllocReq::new(4096, "test") }).unwrap();
        let mut packed = owner.md().pack_rkey(&mem).unwrap().to_vec();
        packed[24..28].fill(0xff);
        let at = mem.addr().addr() as u64;
        for key in
            [reader.md().unpack_rkey(&packed), by_mr_key(reader.md(), owner.md().mr_key(&mem).unwrap())]
        {
            let key = key.unwrap();
            let want = if writes { Ok(Sent::Done) } else { Err(Error::RemoteAccess.into()) };
            assert_eq!(ep.put_short(&[7], at, &key), want);
            assert_eq!(ep.atomic_post(api::AtomicOp::Add, 1u64, at, &key), want);
            assert!(ep.get_short(&mut [0; 8], at, &key).is_ok());
            let here = reader.md().rkey_ptr(&key, at, 8).unwrap();
            assert_eq!(ucs::mem::query::mapping_at(here.addr()).unwrap().writable, writes);
        }
    }
}
