//! Private and shared mappings that unmap themselves. Shared ones are sealed memfds: no clean-up after a
//! crash, and no peer can shrink them. Never hands out `&[u8]` of memory another process can write.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::Advice;

use super::page::{HUGE_2M, page_size, round_up};
use crate::{Blame, Errno, Status};

/// Why a mapping could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemError {
    /// The length is zero or too large for the address space.
    #[error("cannot map {len} bytes: length out of range")]
    BadLength {
        /// Length asked for, in bytes.
        len: usize,
    },
    /// Memory, space or descriptors are used up.
    #[error(
        "cannot get {len} bytes of {what}: {errno} (free memory, lower the size, or raise the container's or user's limit)"
    )]
    Exhausted {
        /// Kind of memory.
        what: &'static str,
        /// Length asked for, in bytes.
        len: usize,
        /// Error number.
        errno: Errno,
    },
    /// No descriptor is left, here or in the whole system.
    #[error("no descriptor for {what}: {errno} (raise the limit, see `ulimit -n`)")]
    Descriptors {
        /// Purpose of the descriptor.
        what: &'static str,
        /// Error number.
        errno: Errno,
    },
    /// The size is beyond what this process may give a file.
    #[error(
        "cannot get {len} bytes of shared memory: files may have {limit} bytes (raise the limit, see `ulimit -f`)"
    )]
    FileLimit {
        /// Length asked for, in bytes.
        len: usize,
        /// The limit, in bytes.
        limit: u64,
    },
    /// Page-locking was refused.
    #[error("cannot lock {len} bytes in memory: {errno} (raise the limit, see `ulimit -l`)")]
    LockLimit {
        /// Length asked for, in bytes.
        len: usize,
        /// Error number.
        errno: Errno,
    },
    /// The process that owned the segment is gone, or has closed it.
    #[error("process {pid} is gone or has closed its segment (fd {fd})")]
    Gone {
        /// Process id of the owner.
        pid: u32,
        /// Descriptor number in the owner.
        fd: RawFd,
    },
    /// The system does not let us at the other process's segment.
    #[error(
        "no permission to open the segment of process {pid}: run both as the same user, in one pid namespace"
    )]
    Denied {
        /// Process id of the owner.
        pid: u32,
    },
    /// The peer named no sealed memory file of the announced size.
    #[error("the peer's segment is not acceptable: {why}")]
    Refused {
        /// Reason.
        why: &'static str,
    },
    /// Another system error.
    #[error("{op}: {errno}")]
    Os {
        /// System call or step.
        op: &'static str,
        /// Error number.
        errno: Errno,
    },
}

impl MemError {
    /// Whose fault it is.
    pub const fn blame(&self) -> Blame {
        match self {
            MemError::BadLength { .. } => Blame::Caller,
            MemError::Exhausted { .. }
            | MemError::Descriptors { .. }
            | MemError::FileLimit { .. }
            | MemError::LockLimit { .. } => Blame::Resource,
            MemError::Gone { .. } | MemError::Refused { .. } | MemError::Denied { .. } => Blame::Peer,
            MemError::Os { .. } => Blame::Device,
        }
    }

    /// Error number of the system, or the one it would give.
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            MemError::Exhausted { errno, .. }
            | MemError::Descriptors { errno, .. }
            | MemError::LockLimit { errno, .. }
            | MemError::Os { errno, .. } => Some(*errno),
            MemError::FileLimit { .. } => Some(Errno(libc::EFBIG)),
            MemError::BadLength { .. }
            | MemError::Gone { .. }
            | MemError::Denied { .. }
            | MemError::Refused { .. } => None,
        }
    }

    /// The nearest plain status.
    pub const fn status(&self) -> Status {
        match self {
            MemError::BadLength { .. } => Status::InvalidParam,
            MemError::Exhausted { .. }
            | MemError::Descriptors { .. }
            | MemError::FileLimit { .. }
            | MemError::LockLimit { .. } => Status::NoMemory,
            MemError::Gone { .. } | MemError::Denied { .. } => Status::Unreachable,
            MemError::Refused { .. } => Status::Rejected,
            MemError::Os { .. } => Status::ShmemSegment,
        }
    }

    /// Maps a failure to open `/proc/PID/fd/N` of a peer.
    pub(crate) fn open_proc(pid: u32, fd: RawFd, e: rustix::io::Errno) -> MemError {
        use rustix::io::Errno as E;
        match e {
            E::NOENT | E::SRCH => MemError::Gone { pid, fd },
            E::ACCESS | E::PERM => MemError::Denied { pid },
            E::NXIO | E::NODEV | E::ISDIR => MemError::Refused { why: "its descriptor is of the wrong kind" },
            e => MemError::os("open", "a peer's segment", 1, e),
        }
    }

    fn os(op: &'static str, what: &'static str, len: usize, errno: impl Into<Errno>) -> MemError {
        let errno = errno.into();
        if matches!(errno, Errno(libc::EMFILE) | Errno(libc::ENFILE)) {
            MemError::Descriptors { what, errno }
        } else if errno.is_resource() {
            MemError::Exhausted { what, len, errno }
        } else {
            MemError::Os { op, errno }
        }
    }
}

/// Page size wanted for a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Whatever the system gives.
    #[default]
    Small,
    /// Ask for transparent huge pages; a hint that may have no effect.
    Transparent,
    /// Explicit 2 MiB pages from the huge page pool, or an error. The length is rounded up to 2 MiB.
    Huge2M,
}

/// When the pages get their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Now: too little memory is an error of the call and not a signal later.
    #[default]
    Now,
    /// At first touch: for large regions of which little may be used.
    Lazy,
}

/// How to map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOpts {
    /// Page size.
    pub pages: Pages,
    /// Time of allocation.
    pub fill: Fill,
}

fn mapped_len(len: usize, pages: Pages) -> Result<usize, MemError> {
    let unit = if pages == Pages::Huge2M { HUGE_2M } else { page_size() };
    match round_up(len, unit) {
        Some(n) if n > 0 && n <= isize::MAX as usize => Ok(n),
        _ => Err(MemError::BadLength { len }),
    }
}

/// Zeroed memory of this process alone; unmapped on drop. Page aligned.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
}

impl Mapping {
    /// Maps at least `len` bytes, zeroed.
    pub fn new(len: usize, opts: MapOpts) -> Result<Mapping, MemError> {
        let len = mapped_len(len, opts.pages)?;
        check_room("private memory", len, opts)?;
        let mut how = MmapOptions::new();
        how.len(len);
        if opts.pages == Pages::Huge2M {
            how.huge(Some(21));
        }
        if opts.fill == Fill::Now && opts.pages != Pages::Transparent {
            how.populate();
        }
        let map = how.map_anon().map_err(|e| MemError::os("mmap", "private memory", len, e))?;
        let map = Mapping { map: MmapRaw::from(map) };
        if opts.pages == Pages::Transparent {
            advise_huge(map.as_ptr(), len);
        }
        if opts.fill == Fill::Now {
            populate(map.as_ptr(), len)?;
        }
        Ok(map)
    }

    /// First byte. Valid for `len` bytes while `self` lives.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Length in bytes: what was asked for, rounded up to whole pages.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The bytes, for a caller that has given no pointer to them away.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable, writable, private to this process, zero-initialised and lives as
        // long as the borrow of self; &mut self excludes other slices made here.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.map.len()) }
    }

    /// Locks the pages in memory.
    pub fn lock(&self) -> Result<(), MemError> {
        lock(&self.map)
    }
}

/// Memory that other processes can map: a sealed memfd and its mapping. Vanishes with its last user.
#[derive(Debug)]
pub struct SharedMem {
    map: MmapRaw,
    fd: OwnedFd,
}

impl SharedMem {
    /// Makes a segment of at least `len` zeroed bytes, sealed in size. `name` shows in `/proc/PID/maps`.
    pub fn create(name: &str, len: usize, opts: MapOpts) -> Result<SharedMem, MemError> {
        // SEAL itself too: otherwise a peer could add a write seal and lock later peers out.
        SharedMem::create_sealed(name, len, opts, SealFlags::SEAL)
    }

    /// As [`create`](Self::create), for memory that only this process writes: the caller maps it as often as
    /// it needs to, and then calls [`refuse_writers`](Self::refuse_writers) before any peer has it.
    pub fn create_for_readers(name: &str, len: usize, opts: MapOpts) -> Result<SharedMem, MemError> {
        SharedMem::create_sealed(name, len, opts, SealFlags::empty())
    }

    /// Lets no process map the segment for writing any more, whatever descriptor of it it has. Mappings that
    /// are there stay writable. Fails for segments not made by
    /// [`create_for_readers`](Self::create_for_readers).
    pub fn refuse_writers(&self) -> Result<(), MemError> {
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.fd, seals)
            .map_err(|e| MemError::os("add seals", "shared memory", self.len(), e))
    }

    fn create_sealed(
        name: &str,
        len: usize,
        opts: MapOpts,
        further: SealFlags,
    ) -> Result<SharedMem, MemError> {
        let len = mapped_len(len, opts.pages)?;
        let fail = |op| move |e: rustix::io::Errno| MemError::os(op, "shared memory", len, e);
        check_room("shared memory", len, opts)?;
        check_file_limit(len)?;
        let fd = memfd(name, opts.pages).map_err(fail("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(fail("ftruncate"))?;
        let fill =
            || rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64).map_err(fail("fallocate"));
        // Where huge pages need advice they are given to a mapping that has it, not to the file.
        let mapping_first = opts.pages == Pages::Transparent;
        if opts.fill == Fill::Now && !mapping_first {
            fill()?;
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | further;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(fail("add seals"))?;
        let map = map_file(&fd, len)?;
        if mapping_first {
            advise_huge(map.as_mut_ptr(), len);
        }
        if opts.fill == Fill::Now {
            // Fills page tables too, so that the first message does not fault. A hint.
            let _ = populate(map.as_mut_ptr(), len);
            if mapping_first {
                fill()?;
            }
        }
        Ok(SharedMem { map, fd })
    }

    /// Gives memory to the pages that hold these bytes of a segment made with [`Fill::Lazy`]: too little
    /// memory is an error here and not a signal later. Their page tables are filled at first touch.
    pub fn fill(&self, bytes: Range<usize>) -> Result<(), MemError> {
        let len = bytes.len();
        if bytes.end > self.len() {
            return Err(MemError::BadLength { len });
        }
        check_room("shared memory", len, MapOpts::default())?;
        let (at, len64) = (bytes.start as u64, len as u64);
        rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), at, len64)
            .map_err(|e| MemError::os("fallocate", "shared memory", len, e))
    }

    /// Maps descriptor `fd` of process `pid`: a memory file of at least `min_len` bytes that cannot shrink.
    pub fn open_proc(pid: u32, fd: RawFd, min_len: usize) -> Result<SharedMem, MemError> {
        let path = format!("/proc/{pid}/fd/{fd}");
        // NONBLOCK: opening a peer's FIFO or terminal must not block or bind to us.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|e| MemError::open_proc(pid, fd, e))?;
        SharedMem::from_fd(file, min_len)
    }

    /// Maps a segment received as a descriptor, under the same conditions as [`open_proc`](Self::open_proc).
    pub fn from_fd(fd: OwnedFd, min_len: usize) -> Result<SharedMem, MemError> {
        let len = check_segment(&fd, min_len)?;
        Ok(SharedMem { map: map_file(&fd, len)?, fd })
    }

    /// First byte, page aligned, valid for `len` bytes while `self` lives. Other processes read and write it.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Descriptor number by which other processes name the segment (see [`open_proc`](Self::open_proc)).
    #[inline]
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Locks the pages in memory.
    pub fn lock(&self) -> Result<(), MemError> {
        lock(&self.map)
    }

    /// Gives all pages back: every mapping then reads zeros. A hint.
    pub fn discard(&self) {
        let whole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(e) = rustix::fs::fallocate(&self.fd, whole, 0, self.len() as u64) {
            tracing::debug!("cannot free {} bytes of a memory file now: {e}", self.len());
        }
    }
}

impl AsFd for SharedMem {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A peer's segment, mapped, its descriptor closed again: costs none of the process's descriptors.
#[derive(Debug)]
pub struct SharedMap {
    map: MmapRaw,
}

impl SharedMap {
    /// First byte, page aligned, valid for `len` bytes while `self` lives. Other processes read and write it.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }
}

impl SharedMap {
    /// Maps a received segment, checked as by [`SharedMem::open_proc`], optionally for writing.
    pub fn from_fd(fd: OwnedFd, min_len: usize, writes: bool) -> Result<SharedMap, MemError> {
        let len = check_segment(&fd, min_len)?;
        let map = match writes {
            true => map_file(&fd, len)?,
            false => {
                let map = MmapOptions::new().len(len).map_raw_read_only(&fd);
                map.map_err(|e| MemError::os("mmap", "shared memory", len, e))?
            }
        };
        Ok(SharedMap { map })
    }
}

impl From<SharedMem> for SharedMap {
    fn from(mem: SharedMem) -> SharedMap {
        SharedMap { map: mem.map }
    }
}

/// Lengths below this are not worth asking the system how much memory is left.
const MIN_CHECKED_LEN: usize = 16 << 20;

/// Refuses to fill more than is left: the kernel would kill. Huge pages answer themselves.
pub(super) fn check_room(what: &'static str, len: usize, opts: MapOpts) -> Result<(), MemError> {
    if len < MIN_CHECKED_LEN || opts.fill == Fill::Lazy || opts.pages == Pages::Huge2M {
        return Ok(());
    }
    match super::avail::available() {
        Some(room) if len as u64 > room => Err(MemError::Exhausted { what, len, errno: Errno(libc::ENOMEM) }),
        _ => Ok(()),
    }
}

/// Refuses a file beyond the process's limit: the kernel would kill (SIGXFSZ).
fn check_file_limit(len: usize) -> Result<(), MemError> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if len as u64 > limit => Err(MemError::FileLimit { len, limit }),
        _ => Ok(()),
    }
}

/// A memory file, not executable where the kernel knows that notion (6.3 and later).
fn memfd(name: &str, pages: Pages) -> Result<OwnedFd, rustix::io::Errno> {
    // The system's limit is 249 bytes; the name is for people only.
    let name: Vec<u8> = name.bytes().filter(|b| *b != 0).take(200).collect();
    let name = CString::new(name).unwrap_or_default();
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if pages == Pages::Huge2M {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    match rustix::fs::memfd_create(&name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(&name, flags),
        made => made,
    }
}

fn check_segment(fd: &OwnedFd, min_len: usize) -> Result<usize, MemError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| MemError::os("fstat", "shared memory", min_len, e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(MemError::Refused { why: "it is not a memory file" });
    }
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => {}
        _ => return Err(MemError::Refused { why: "it is not sealed against shrinking" }),
    }
    let len = usize::try_from(stat.st_size).unwrap_or(0);
    if len == 0 || len < min_len || len > isize::MAX as usize {
        return Err(MemError::Refused { why: "its size is not the one announced" });
    }
    Ok(len)
}

fn map_file(fd: &OwnedFd, len: usize) -> Result<MmapRaw, MemError> {
    MmapOptions::new().len(len).map_raw(fd).map_err(|e| MemError::os("mmap", "shared memory", len, e))
}

fn lock(map: &MmapRaw) -> Result<(), MemError> {
    map.lock().map_err(|e| match Errno::from(e) {
        errno @ (Errno(libc::ENOMEM) | Errno(libc::EPERM) | Errno(libc::EAGAIN)) => {
            MemError::LockLimit { len: map.len(), errno }
        }
        errno => MemError::Os { op: "mlock", errno },
    })
}

/// Advises huge pages for the caller's mapping; kernels without them refuse, harmlessly.
pub(super) fn advise_huge(at: *mut u8, len: usize) {
    // SAFETY: the advice changes no byte, and of what is not mapped it is an error.
    if let Err(e) = unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxHugepage) } {
        tracing::debug!("no transparent huge pages for {len} bytes: {e}");
    }
}

/// Populates every page of the caller's mapping; kernels before 5.14 do it at first touch.
pub(super) fn populate(at: *mut u8, len: usize) -> Result<(), MemError> {
    // SAFETY: as above.
    match unsafe { rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite) }.map_err(Errno::from) {
        Ok(()) | Err(Errno(libc::EINVAL)) => Ok(()),
        Err(errno @ (Errno(libc::ENOMEM) | Errno(libc::EFAULT))) => {
            Err(MemError::Exhausted { what: "memory", len, errno })
        }
        Err(errno) => Err(MemError::Os { op: "madvise", errno }),
    }
}

/// Has the allocator return free memory to the system. It takes milliseconds: for when much has been freed.
#[cold]
pub fn return_free_memory() {
    // SAFETY: the call takes no pointer; the allocator locks what it needs.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests;
