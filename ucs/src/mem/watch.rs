//! Memory events for registration caches: pages unmapped, moved or given back, without patching code. By
//! userfaultfd: an unmapping thread waits until our thread has read the event. One watch per process, as a
//! page has one watcher.
//!
//! Without userfaultfd, [`Watch::open`] fails, and a cache must keep nothing that may be unmapped.

#![allow(unsafe_code)]

mod events;

use crate::Errno;
pub use events::Cursor;
use events::UnmapEvents;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use crate::mem::page::page_size;
use crate::mem::{MapOpts, Mapping};
use crate::sys::fd::EventFd;
use crate::sys::thread::spawn_masked;
use rustix::event::{PollFd, PollFlags};

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Msg {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}
const _: () = assert!(size_of::<Msg>() == 32);

const UFFD_API: u64 = 0xaa;
/// Faults of the kernel's own are not for us: what an unprivileged process may ask for.
const USER_MODE_ONLY: i32 = 1;
const FEATURES: u64 = FEATURE_WP | FEATURE_REMAP | FEATURE_REMOVE | FEATURE_UNMAP;
const FEATURE_WP: u64 = 1;
const FEATURE_REMAP: u64 = 1 << 2;
const FEATURE_REMOVE: u64 = 1 << 3;
const FEATURE_UNMAP: u64 = 1 << 6;
const MODE_WP: u64 = 2;
/// Removes protection that is never set, and wakes no thread.
const WP_NOTHING: u64 = 2;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const fn iowr(nr: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | 0xaa << 8 | nr
}
const UFFDIO_API: u64 = iowr(0x3f, size_of::<Api>());
const UFFDIO_REGISTER: u64 = iowr(0, size_of::<Register>());
const UFFDIO_WRITEPROTECT: u64 = iowr(6, size_of::<WriteProtect>());

const STACK: usize = 64 << 10;

#[derive(Debug)]
struct Shared {
    uffd: Arc<OwnedFd>,
    events: Arc<UnmapEvents>,
    stop: Arc<EventFd>,
    reader: Option<JoinHandle<()>>,
    /// A page that is watched and never goes, to ask the kernel by.
    probe: Mapping,
    /// A child of fork has no reader.
    pid: u32,
}

/// Watches ranges of this process' memory. What it watches is watched until the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

impl Watch {
    /// Starts the process's listening thread, if needed.
    pub fn open() -> Result<Watch, Errno> {
        static SHARED: Mutex<Weak<Shared>> = Mutex::new(Weak::new());
        let mut the = lock(&SHARED);
        let here = std::process::id();
        if let Some(shared) = the.upgrade().filter(|shared| shared.pid == here) {
            return Ok(Watch(shared));
        }
        let shared = Arc::new(Shared::open(here)?);
        *the = Arc::downgrade(&shared);
        Ok(Watch(shared))
    }

    /// Watches `len` bytes at `at`, whole pages. An error: this kind of memory cannot be watched.
    pub fn add(&self, at: NonNull<u8>, len: usize) -> Result<(), Errno> {
        self.0.add(at, len)
    }

    /// Gives each range (first byte, bytes) gone since `taken` to `each`; everything after an overflow.
    // HOT
    #[inline]
    pub fn drain(&self, taken: &mut Cursor, each: impl FnMut(usize, usize)) {
        if self.0.events.is_new(taken) {
            self.0.events.drain(taken, each);
        }
    }

    /// Whether no thread is in the midst of unmapping watched memory: then [`Watch::drain`] reports
    /// everything that a mapping made before may have replaced. One system call.
    pub fn is_quiescent(&self) -> bool {
        let range = Range { start: self.0.probe.as_ptr().addr() as u64, len: page_size() as u64 };
        let mut nothing = WriteProtect { range, mode: WP_NOTHING };
        // The kernel refuses (EAGAIN) from before the pages go until the one who unmaps goes on. SAFETY: the
        // request takes this structure and changes no memory.
        unsafe { libc::ioctl(self.0.uffd.as_raw_fd(), UFFDIO_WRITEPROTECT as _, &raw mut nothing) == 0 }
    }
}

impl Shared {
    fn open(pid: u32) -> Result<Shared, Errno> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: the system call takes flags and makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(Errno::last_os());
        }
        // SAFETY: a descriptor just made, which nobody else owns.
        let uffd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) };
        let mut api = Api { api: UFFD_API, features: FEATURES, ioctls: 0 };
        // SAFETY: the request takes this structure.
        if unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API as _, &raw mut api) } != 0 {
            return Err(Errno::last_os());
        }
        let probe = Mapping::new(page_size(), MapOpts::default()).map_err(|_| Errno(libc::ENOMEM))?;
        let uffd = Arc::new(uffd);
        let events = Arc::new(UnmapEvents::new());
        let stop = Arc::new(EventFd::new()?);
        let reader = {
            let (uffd, events, stop) = (uffd.clone(), events.clone(), stop.clone());
            spawn_masked("memory-watch", STACK, move || listen(&uffd, &events, &stop))?
        };
        let shared = Shared { uffd, events, stop, reader: Some(reader), probe, pid };
        let page = NonNull::new(shared.probe.as_ptr()).ok_or(Errno(libc::EFAULT))?;
        shared.add(page, page_size())?;
        Ok(shared)
    }

    fn add(&self, at: NonNull<u8>, len: usize) -> Result<(), Errno> {
        let range = Range { start: at.addr().get() as u64, len: len as u64 };
        let mut register = Register { range, mode: MODE_WP, ioctls: 0 };
        // Write protection is registered for and never switched on: no access ever faults. SAFETY: the
        // request takes this structure and changes no memory.
        match unsafe { libc::ioctl(self.uffd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) } {
            0 => Ok(()),
            _ => Err(Errno::last_os()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            // The thread is the parent's, and so is the event.
            return;
        }
        // It can only fail for want of the descriptor, which we hold.
        let _ = self.stop.signal();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(uffd: &OwnedFd, events: &UnmapEvents, stop: &EventFd) {
    loop {
        let mut fds =
            [PollFd::new(uffd, PollFlags::IN), PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        events.begin();
        let mut msgs = [Msg::default(); 16];
        // SAFETY: the descriptor writes whole messages into the array, at most its size.
        let got = unsafe { libc::read(uffd.as_raw_fd(), msgs.as_mut_ptr().cast(), size_of_val(&msgs)) };
        let count = usize::try_from(got).unwrap_or(0) / size_of::<Msg>();
        for Msg { event, arg, .. } in &msgs[..count] {
            match *event {
                EVENT_REMAP => events.push(arg[0] as usize, arg[2] as usize),
                EVENT_REMOVE | EVENT_UNMAP => {
                    events.push(arg[0] as usize, arg[1].saturating_sub(arg[0]) as usize);
                }
                _ => {}
            }
        }
        events.end();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
