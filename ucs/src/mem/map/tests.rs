//! Mappings: contents, limits, seals, and what a peer may name.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;

fn plain_memfd(len: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create(c"plain", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(fd.try_clone().unwrap()).set_len(len).unwrap();
    fd
}

const LAZY: MapOpts = MapOpts { pages: Pages::Small, fill: Fill::Lazy };

#[test]
fn private_memory_is_zeroed_and_rounded() {
    for pages in [Pages::Small, Pages::Transparent] {
        let mut map = Mapping::new(5000, MapOpts { pages, fill: Fill::Now }).unwrap();
        assert_eq!(map.len(), round_up(5000, page_size()).unwrap());
        assert!(map.as_mut_slice().iter().all(|&b| b == 0));
        map.as_mut_slice()[4999] = 7;
    }
    assert_eq!(Mapping::new(0, LAZY).unwrap_err(), MemError::BadLength { len: 0 });
    assert_eq!(Mapping::new(usize::MAX, LAZY).unwrap_err().blame(), Blame::Caller);
}

#[test]
fn too_much_is_an_error_that_says_so() {
    let huge = 1usize << 46;
    for err in [
        Mapping::new(huge, MapOpts { pages: Pages::Small, fill: Fill::Lazy }).unwrap_err(),
        SharedMem::create("toobig", huge, MapOpts::default()).unwrap_err(),
    ] {
        assert_eq!(err.blame(), Blame::Resource, "{err}");
        assert_eq!(err.status(), Status::NoMemory);
        assert!(err.to_string().contains("70368744177664 bytes"), "{err}");
    }
}

#[test]
fn two_mappings_of_one_segment_share_bytes() {
    let a = SharedMem::create("pair", 10_000, MapOpts::default()).unwrap();
    let b = SharedMem::open_proc(std::process::id(), a.fd(), 10_000).unwrap();
    assert_eq!(a.len(), b.len());
    assert_ne!(a.as_ptr(), b.as_ptr());
    // SAFETY: offset 9999 is inside the mapping a, which lives.
    let at = unsafe { a.as_ptr().add(9999) };
    // SAFETY: valid for writes, and nobody else looks at this byte at the moment.
    unsafe { at.write_volatile(42) };
    // SAFETY: offset 9999 is inside the mapping b, which lives.
    let at = unsafe { b.as_ptr().add(9999) };
    // SAFETY: valid for reads.
    assert_eq!(unsafe { at.read_volatile() }, 42);
}

#[test]
fn discarded_pages_read_as_zeros_wherever_they_are_mapped() {
    let a = SharedMem::create("discard", 10_000, MapOpts::default()).unwrap();
    let b = SharedMem::from_fd(rustix::io::dup(&a).unwrap(), 10_000).unwrap();
    // SAFETY: bytes of the mapping, of which nobody else knows.
    unsafe { a.as_ptr().write_bytes(7, 10_000) };
    a.discard();
    for at in [0, 5000, 9999] {
        // SAFETY: as above.
        assert_eq!(unsafe { b.as_ptr().wrapping_add(at).read() }, 0);
    }
    assert_eq!(a.len(), b.len());
}

#[test]
fn nobody_can_resize_a_segment() {
    let a = SharedMem::create("sealed", 4096, MapOpts::default()).unwrap();
    let file = File::from(a.as_fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(1 << 20).is_err());
    assert!(rustix::fs::fcntl_add_seals(&a.fd, SealFlags::WRITE).is_err());
}

#[test]
fn peer_descriptors_are_checked() {
    let pid = std::process::id();
    let refused = |e: Result<SharedMem, MemError>| match e {
        Err(MemError::Refused { why }) => why,
        other => panic!("{other:?}"),
    };
    let plain = plain_memfd(4096);
    assert_eq!(
        refused(SharedMem::open_proc(pid, plain.as_raw_fd(), 1)),
        "it is not sealed against shrinking"
    );
    let small = SharedMem::create("small", 4096, LAZY).unwrap();
    assert_eq!(refused(SharedMem::open_proc(pid, small.fd(), 4097)), "its size is not the one announced");
    let empty = plain_memfd(0);
    rustix::fs::fcntl_add_seals(&empty, SealFlags::SHRINK).unwrap();
    assert_eq!(refused(SharedMem::from_fd(empty, 0)), "its size is not the one announced");
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(refused(SharedMem::open_proc(pid, pipe.as_raw_fd(), 1)), "it is not a memory file");
    let disk = File::open("/proc/self/exe").unwrap();
    assert!(SharedMem::from_fd(disk.into(), 1).is_err());
    assert_eq!(SharedMem::open_proc(pid, 1 << 20, 1).unwrap_err(), MemError::Gone { pid, fd: 1 << 20 });
    assert_eq!(SharedMem::open_proc(u32::MAX, 0, 1).unwrap_err().blame(), Blame::Peer);
}

#[test]
fn huge_pages_or_a_clear_error() {
    let opts = MapOpts { pages: Pages::Huge2M, fill: Fill::Now };
    let made = [
        SharedMem::create("huge", 1, opts).map(|m| (m.len(), m.as_ptr().addr())),
        Mapping::new(1, opts).map(|m| (m.len(), m.as_ptr().addr())),
    ];
    for made in made {
        match made {
            Ok((len, at)) => assert_eq!((len, at % HUGE_2M), (HUGE_2M, 0)),
            Err(e) => assert_eq!(e.blame(), Blame::Resource, "{e}"),
        }
    }
}

#[test]
fn a_file_gets_transparent_huge_pages() {
    let choice = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let choice = std::fs::read_to_string(choice).unwrap_or_default();
    if !["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|on| choice.contains(on)) {
        return crate::testing::skipped("a_file_gets_transparent_huge_pages", "files have none here");
    }
    let smaps = || BufReader::new(File::open("/proc/self/smaps").unwrap());
    for fill in [Fill::Now, Fill::Lazy] {
        let mem = SharedMem::create("thp", 16 << 20, MapOpts { pages: Pages::Transparent, fill }).unwrap();
        // SAFETY: ours alone.
        unsafe { mem.as_ptr().write_bytes(1, mem.len()) };
        let huge = crate::mem::query::field(smaps(), mem.as_ptr().addr(), "ShmemPmdMapped:").unwrap();
        // Some may be missing for want of free ones.
        assert!(huge > 0, "{fill:?}");
    }
}

#[test]
fn read_only_mappings_are_readable() {
    let mem = SharedMem::create("read", 5000, MapOpts::default()).unwrap();
    // SAFETY: ours alone.
    unsafe { mem.as_ptr().write_volatile(7) };
    let copy = || mem.as_fd().try_clone_to_owned().unwrap();
    for writes in [false, true] {
        let map = SharedMap::from_fd(copy(), 5000, writes).unwrap();
        // SAFETY: the first byte of a live mapping.
        assert_eq!((map.len(), unsafe { map.as_ptr().read_volatile() }), (8192, 7));
        assert_eq!(crate::mem::query::mapping_at(map.as_ptr().addr()).unwrap().writable, writes);
    }
    assert!(SharedMap::from_fd(copy(), 10_000, false).is_err());
    assert!(SharedMap::from_fd(plain_memfd(4096), 1, false).is_err());
}

#[test]
fn names_and_locks() {
    let long = "x\0".repeat(300);
    let mem = SharedMem::create(&long, 1, MapOpts::default()).unwrap();
    match mem.lock() {
        Ok(()) => {}
        Err(e) => assert!(matches!(e, MemError::LockLimit { .. }), "{e}"),
    }
}

/// Not a test: the other process of the next one. Makes a segment, says its number, waits to be killed.
#[test]
#[ignore = "started by killed_makers_leave_nothing_behind"]
fn maker() {
    let mem = SharedMem::create("maker", 4096, MapOpts::default()).unwrap();
    // SAFETY: the first byte of a live mapping; nobody else knows of it yet.
    unsafe { mem.as_ptr().write_volatile(9) };
    println!("\nfd={}", mem.fd());
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn killed_makers_leave_nothing_behind() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "mem::map::tests::maker"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let fd = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("fd=")?.parse().ok())
        .expect("the maker says its descriptor");
    let mem = SharedMem::open_proc(child.id(), fd, 4096).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // SAFETY: the first byte of a live mapping; its only writer is dead.
    assert_eq!(unsafe { mem.as_ptr().read_volatile() }, 9, "what is mapped stays");
    let again = SharedMem::open_proc(child.id(), fd, 4096).unwrap_err();
    assert_eq!(again, MemError::Gone { pid: child.id(), fd }, "nothing else does");
}
