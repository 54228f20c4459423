//! Telling a cache of memory that pages went away: unmapped, moved or given back, by whomever, without patching code.
//! The kernel tells it (userfaultfd): whoever unmaps watched pages waits until a thread of ours has read the notice, so
//! that nobody can map anew at the address before the cache can know. Used by registration caches.
//!
//! Where there is no userfaultfd, [`Watch::open`] says so and the cache must not keep what its owner may unmap.

use crate::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::sys::fd::EventFd;
use rustix::event::{PollFd, PollFlags};

/// `struct uffdio_api`, `uffdio_register`, `uffdio_range` and `uffd_msg` of linux/userfaultfd.h.
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
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// `_IOWR(0xaa, nr, size)`.
const fn iowr(nr: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | 0xaa << 8 | nr
}
const UFFDIO_API: u64 = iowr(0x3f, size_of::<Api>());
const UFFDIO_REGISTER: u64 = iowr(0, size_of::<Register>());

/// Notices not taken yet. `seq` is odd while a notice is being taken from the kernel.
#[derive(Default, Debug)]
struct Notices {
    seq: AtomicU64,
    gone: Mutex<Vec<(usize, usize)>>,
}

/// Watches ranges of this process' memory. Dropped, it watches none.
#[derive(Debug)]
pub struct Watch {
    uffd: Arc<OwnedFd>,
    notices: Arc<Notices>,
    stop: Arc<EventFd>,
    reader: Option<JoinHandle<()>>,
}

/// Up to where a user of a [`Watch`] has taken notices.
#[derive(Clone, Copy, Default, Debug)]
pub struct Taken(u64);

impl Watch {
    /// Starts to listen, with a thread of its own. An error says why the system does not tell us.
    pub fn open() -> Result<Watch, Errno> {
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
        let uffd = Arc::new(uffd);
        let notices = Arc::new(Notices::default());
        let stop = Arc::new(EventFd::new()?);
        let reader = {
            let (uffd, notices, stop) = (uffd.clone(), notices.clone(), stop.clone());
            let thread = std::thread::Builder::new().name("memory-watch".into());
            thread.spawn(move || listen(&uffd, &notices, &stop)).map_err(Errno::from)?
        };
        Ok(Watch { uffd, notices, stop, reader: Some(reader) })
    }

    /// Watches `len` bytes at `at`, whole pages. An error: this kind of memory cannot be watched.
    pub fn add(&self, at: NonNull<u8>, len: usize) -> Result<(), Errno> {
        let range = Range { start: at.addr().get() as u64, len: len as u64 };
        let mut register = Register { range, mode: MODE_WP, ioctls: 0 };
        // Write protection is registered for and never switched on: no access ever faults.
        // SAFETY: the request takes this structure and changes no memory.
        match unsafe { libc::ioctl(self.uffd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) } {
            0 => Ok(()),
            _ => Err(Errno::last_os()),
        }
    }

    /// Gives each range (first byte, bytes) that went away since `taken` to `each`. Nothing new costs one load. // HOT
    #[inline]
    pub fn take(&self, taken: &mut Taken, each: impl FnMut(usize, usize)) {
        // SYNC(notice): a thread that has unmapped was let go after the count was made odd.
        if self.notices.seq.load(Ordering::Acquire) != taken.0 {
            self.take_news(taken, each);
        }
    }

    #[cold]
    fn take_news(&self, taken: &mut Taken, mut each: impl FnMut(usize, usize)) {
        loop {
            let seq = self.notices.seq.load(Ordering::Acquire);
            if seq.is_multiple_of(2) {
                let gone = std::mem::take(&mut *lock(&self.notices.gone));
                gone.into_iter().for_each(|(start, len)| each(start, len));
                taken.0 = seq;
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It can only fail for want of the descriptor, which we hold.
        let _ = self.stop.signal();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(uffd: &OwnedFd, notices: &Notices, stop: &EventFd) {
    loop {
        let mut fds =
            [PollFd::new(uffd, PollFlags::IN), PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        // SYNC(notice): odd before the kernel lets the thread that unmaps go on.
        notices.seq.fetch_add(1, Ordering::AcqRel);
        let mut msgs = [Msg::default(); 16];
        // SAFETY: the descriptor writes whole messages into the array, at most its size.
        let got = unsafe { libc::read(uffd.as_raw_fd(), msgs.as_mut_ptr().cast(), size_of_val(&msgs)) };
        let count = usize::try_from(got).unwrap_or(0) / size_of::<Msg>();
        let mut gone = lock(&notices.gone);
        for msg in &msgs[..count] {
            match msg.event {
                // from, to, length
                EVENT_REMAP => gone.push((msg.arg[0] as usize, msg.arg[2] as usize)),
                // start, end
                EVENT_REMOVE | EVENT_UNMAP => {
                    gone.push((msg.arg[0] as usize, msg.arg[1].saturating_sub(msg.arg[0]) as usize));
                }
                _ => {}
            }
        }
        drop(gone);
        notices.seq.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{MapOpts, Mapping};

    #[test]
    fn unmapping_is_told_before_it_returns() {
        // Kernels and containers may refuse it; then there is nothing to test.
        let Ok(watch) = Watch::open() else { return };
        let mut taken = Taken::default();
        for _ in 0..50 {
            let map = Mapping::new(1 << 16, MapOpts::default()).unwrap();
            let at = NonNull::new(map.as_ptr()).unwrap();
            if watch.add(at, map.len()).is_err() {
                return;
            }
            // SAFETY: inside the mapping; watched memory is used as any other.
            unsafe { at.as_ptr().write(1) };
            watch.take(&mut taken, |_, _| panic!("nothing is gone yet"));
            let len = map.len();
            drop(map);
            let mut gone = 0;
            watch.take(&mut taken, |start, bytes| {
                assert!(start >= at.addr().get() && start + bytes <= at.addr().get() + len);
                gone += bytes;
            });
            assert_eq!(gone, len);
        }
    }
}
