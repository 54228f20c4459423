//! Processes as peers: identity and death. Never trusts a bare pid, which the system reuses.

#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Once, OnceLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{Blame, Errno};

/// A process, distinguished from others with its pid. Valid inside one pid namespace of one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcId {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start: u64,
}

impl ProcId {
    /// The calling process. Read once: later there may be no descriptor left to read it with.
    pub fn current() -> ProcId {
        static ME: OnceLock<ProcId> = OnceLock::new();
        let pid = pid();
        if let Some(me) = ME.get().filter(|me| me.pid == pid) {
            return *me;
        }
        match start_time(pid) {
            Ok(Some(start)) => {
                let me = ProcId { pid, start };
                let _ = ME.set(me);
                me
            }
            _ => ProcId { pid, start: 0 },
        }
    }
}

/// Process id of the caller. A system call in a process's first call only: the number is kept in a page that
/// the kernel empties for a forked child.
#[inline]
pub fn pid() -> u32 {
    match KEPT.get() {
        Some(Some(kept)) => match kept.load(Relaxed) {
            0 => keep(kept),
            pid => pid,
        },
        Some(None) => std::process::id(),
        None => first_pid(),
    }
}

/// The page, if the kernel empties one at a fork.
static KEPT: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();

#[cold]
fn keep(kept: &AtomicU32) -> u32 {
    let pid = std::process::id();
    kept.store(pid, Relaxed);
    pid
}

#[cold]
fn first_pid() -> u32 {
    match KEPT.get_or_init(emptied_page) {
        Some(kept) => keep(kept),
        None => std::process::id(),
    }
}

/// A page of zeros that stays, and that is zero again in a forked child.
fn emptied_page() -> Option<&'static AtomicU32> {
    let (len, access) = (rustix::param::page_size(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping, at no given address.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the mapping of just now, which holds nothing yet.
    if unsafe { madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above; nothing refers to it.
        let _ = unsafe { munmap(page, len) };
        return None;
    }
    // SAFETY: page-aligned zeros of a mapping that is never unmapped; only this atomic uses it.
    Some(unsafe { &*page.cast::<AtomicU32>() })
}

/// Start time of `pid` in ticks since boot; `None`: no such process. An error: it cannot be read.
pub fn start_time(pid: u32) -> Result<Option<u64>, Errno> {
    match fs::read_to_string(format!("/proc/{pid}/stat")).map_err(Errno::from) {
        Ok(stat) => Ok(start_in(&stat)),
        Err(errno) if errno.is_resource() => Err(errno),
        Err(_) => Ok(None),
    }
}

/// Yama's restriction of access to other processes of the user (`ptrace_scope`); `None` without Yama.
pub fn yama_scope() -> Option<u32> {
    fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

/// Lets any process of this user access the memory of this one, for the rest of its life, if that is `wanted`
/// and the system would not by itself.
pub fn allow_ptrace(wanted: bool) {
    static ALLOW_PEERS: Once = Once::new();
    if must_set_ptracer(wanted, yama_scope) {
        ALLOW_PEERS.call_once(|| {
            // As without Yama: whoever may send this process a signal may access its memory.
            if let Err(e) = rustix::process::set_ptracer(rustix::process::PTracer::Any) {
                tracing::debug!("cannot allow peers to trace this process (PR_SET_PTRACER): {e}");
            }
        });
    }
}

/// Whether the kernel lets other processes of this user access this one's memory, as far as the process
/// itself decides: not if it has changed its user, or has said so by `PR_SET_DUMPABLE`.
pub fn is_dumpable() -> bool {
    use rustix::process::{DumpableBehavior, dumpable_behavior};
    matches!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable))
}

/// Without Yama, and with a scope of 0, processes of one user may access each other; with one above 1 no
/// process can permit it.
fn must_set_ptracer(wanted: bool, scope: impl FnOnce() -> Option<u32>) -> bool {
    wanted && scope() == Some(1)
}

/// Field 22 of a `/proc/PID/stat` line. The name (field 2) is in parentheses and may contain anything.
fn start_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// `SO_PEERPIDFD`; the libc crate has it under some targets only.
const SO_PEERPIDFD: libc::c_int = 77;

/// `SO_PASSRIGHTS`, which the libc crate does not have.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Has the system refuse messages with descriptors to a unix socket, and to sockets accepted from it. Such a
/// descriptor is closed when its message is received or dropped, and that takes as long as its sender has
/// prepared: a TCP connection may linger for years. False before Linux 6.16, which cannot.
pub fn refuse_descriptors(socket: impl AsFd) -> bool {
    let (off, len) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    let (socket, at) = (socket.as_fd().as_raw_fd(), (&raw const off).cast());
    // SAFETY: `at` and `len` name an integer of ours, which is what the option wants.
    unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, at, len) == 0 }
}

/// The process at the other end of a unix socket, as it was when the connection was made or listened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    /// Pid in this namespace; `None` if not visible.
    pub pid: Option<u32>,
    /// Effective user in this user namespace.
    pub uid: u32,
}

impl PeerCred {
    /// Asks the system.
    pub fn of(socket: impl AsFd) -> Result<PeerCred, Errno> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (socket, at) = (socket.as_fd().as_raw_fd(), (&raw mut cred).cast());
        // SAFETY: `at` and `len` name a `ucred` of ours, which is what the option wants.
        let code = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len) };
        if code != 0 {
            return Err(Errno::last_os());
        }
        Ok(PeerCred { pid: u32::try_from(cred.pid).ok().filter(|&pid| pid != 0), uid: cred.uid })
    }

    /// Whether it is the caller's user.
    pub fn is_same_user(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Watches one process. Readable (for poll and epoll) once it has exited, zombie or not, if it
/// [can be polled](PidFd::can_poll).
#[derive(Debug)]
pub struct PidFd {
    fd: OwnedFd,
    /// Where the system refuses pidfds, as containers may: the process's directory, which is not another's
    /// when the pid is used again.
    is_directory: bool,
}

/// Why a process cannot be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// It has exited, or the pid belongs to another process by now.
    #[error("process {pid} has exited")]
    Gone {
        /// The pid.
        pid: u32,
    },
    /// A system error.
    #[error("cannot watch process {pid}: {errno}")]
    Os {
        /// The pid.
        pid: u32,
        /// Error number.
        errno: Errno,
    },
}

impl WatchError {
    /// Whose fault it is.
    pub const fn blame(&self) -> Blame {
        match self {
            WatchError::Gone { .. } => Blame::Peer,
            WatchError::Os { errno, .. } if errno.is_resource() => Blame::Resource,
            WatchError::Os { .. } => Blame::Device,
        }
    }
}

impl PidFd {
    /// Watches the process `id`, if it is still that one.
    pub fn open(id: ProcId) -> Result<PidFd, WatchError> {
        let gone = WatchError::Gone { pid: id.pid };
        let pid = i32::try_from(id.pid).ok().and_then(Pid::from_raw).ok_or(gone)?;
        use rustix::io::Errno as E;
        let (fd, is_directory) = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => (fd, false),
            Err(E::SRCH) => return Err(gone),
            Err(E::PERM | E::ACCESS | E::NOSYS) => (proc_directory(id.pid)?, true),
            Err(e) => return Err(WatchError::Os { pid: id.pid, errno: e.into() }),
        };
        // Read after opening: an equal start time proves that the descriptor is for that process.
        match start_time(id.pid) {
            Ok(Some(start)) if start == id.start => Ok(PidFd { fd, is_directory }),
            Ok(_) => Err(gone),
            Err(errno) => Err(WatchError::Os { pid: id.pid, errno }),
        }
    }

    /// Watches the process at the other end of a unix socket (or its listener). `None`: before Linux 6.5.
    pub fn of_socket(socket: impl AsFd) -> Result<Option<PidFd>, Errno> {
        let mut fd: libc::c_int = -1;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        let (socket, at) = (socket.as_fd().as_raw_fd(), (&raw mut fd).cast());
        // SAFETY: `at` and `len` name an int of ours, which is what the option wants.
        let code = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, at, &mut len) };
        if code != 0 {
            return match Errno::last_os() {
                Errno(libc::ENOPROTOOPT | libc::EINVAL) => Ok(None),
                errno => Err(errno),
            };
        }
        // SAFETY: the system has just made this descriptor for us.
        Ok(Some(PidFd { fd: unsafe { OwnedFd::from_raw_fd(fd) }, is_directory: false }))
    }

    /// Whether the descriptor becomes readable at the exit. Not where the system refuses pidfds: there only
    /// [`PidFd::is_dead`] tells.
    pub fn can_poll(&self) -> bool {
        !self.is_directory
    }

    /// Has it exited? One system call, or three where the system refuses pidfds; does not block.
    pub fn is_dead(&self) -> bool {
        if self.is_directory {
            return has_exited(&self.fd);
        }
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
    }
}

fn proc_directory(pid: u32) -> Result<OwnedFd, WatchError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty()).map_err(|e| match e {
        rustix::io::Errno::NOENT => WatchError::Gone { pid },
        e => WatchError::Os { pid, errno: e.into() },
    })
}

/// Whether the process of this `/proc` directory has exited, zombie or not. No, if that cannot be read.
fn has_exited(directory: &OwnedFd) -> bool {
    use rustix::io::Errno as E;
    let file = match rustix::fs::openat(directory, "stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(e) => return matches!(e, E::NOENT | E::SRCH),
    };
    // The name, of at most 64 bytes, and the state lie within this.
    let mut stat = [0; 256];
    match rustix::io::read(&file, &mut stat) {
        Ok(len) => {
            state_in(&String::from_utf8_lossy(&stat[..len])).is_some_and(|state| "ZXx".contains(state))
        }
        Err(e) => e == E::SRCH,
    }
}

/// Whether a thread of a process may be unable to run, or that is unknown: stopped by a signal or debugger,
/// in an uninterruptible wait, or in a frozen cgroup.
pub fn may_be_halted(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let halted = |stat: String| state_in(&stat).is_some_and(|state| "TtD".contains(state));
    let any =
        threads.flatten().any(|thread| fs::read_to_string(thread.path().join("stat")).is_ok_and(halted));
    any || fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| is_frozen(&groups))
}

/// Whether a cgroup of a `/proc/PID/cgroup` text is frozen, as far as it is visible here.
fn is_frozen(groups: &str) -> bool {
    groups.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(kind), Some(path)) = (fields.next(), fields.next()) else { return false };
        let holds = |file: String, text: &str| fs::read_to_string(file).is_ok_and(|all| all.contains(text));
        match kind {
            "" => holds(format!("/sys/fs/cgroup{path}/cgroup.events"), "frozen 1"),
            "freezer" => holds(format!("/sys/fs/cgroup/freezer{path}/freezer.state"), "FR"),
            _ => false,
        }
    })
}

/// Field 3 of a `/proc/PID/stat` line.
fn state_in(stat: &str) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().next()
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::multiple_unsafe_ops_per_block)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn finds_the_start_time_behind_any_name() {
        let line = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(start_in(line), Some(4242));
        assert_eq!(start_in("7 (x"), None);
        assert_eq!(ProcId::current(), ProcId::current());
        assert!(ProcId::current().start > 0);
    }

    #[test]
    fn a_forked_child_has_a_pid_of_its_own() {
        let me = pid();
        assert_eq!((me, pid()), (std::process::id(), me));
        // SAFETY: the child calls nothing but system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = (pid(), pid(), std::process::id());
            let code = i32::from(own.0 == me || own != (own.2, own.2, own.2));
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) }
        }
        let mut status = 1;
        // SAFETY: the status is ours.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
        assert_eq!(pid(), me);
    }

    #[test]
    fn ptracer_is_set_only_with_yama_scope_1() {
        for (wanted, scope, allows) in [
            (true, Some(1), true),
            (true, Some(0), false),
            (true, Some(2), false),
            (true, Some(3), false),
            (true, None, false),
            (false, Some(1), false),
        ] {
            assert_eq!(must_set_ptracer(wanted, || scope), allows, "{wanted} {scope:?}");
        }
    }

    #[test]
    fn sees_a_zombie_as_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let id = ProcId { pid: child.id(), start: start_time(child.id()).unwrap().unwrap() };
        let watch = PidFd::open(id).unwrap();
        assert!(!watch.is_dead());
        child.kill().unwrap();
        // Wait for the exit through the descriptor itself, not through wait(): it stays a zombie.
        let mut fds = [PollFd::new(&watch, PollFlags::IN)];
        assert_eq!(poll(&mut fds, None).unwrap(), 1);
        assert!(watch.is_dead());
        child.wait().unwrap();
        assert!(watch.is_dead());
        assert_eq!(PidFd::open(id).unwrap_err(), WatchError::Gone { pid: id.pid });
    }

    /// Has the system refuse `pidfd_open` to the calling thread, as a container may.
    fn refuse_pidfd_open() {
        let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let mut filter = [
            // The number of the call is the first word of what the filter sees.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_pidfd_open as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the calls read the program, which outlives them; they concern this thread only.
        let codes = unsafe {
            let first = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            (first, libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
        };
        assert_eq!(codes, (0, 0));
    }

    #[test]
    fn a_process_is_watched_where_pidfds_are_refused() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let id = ProcId { pid: child.id(), start: start_time(child.id()).unwrap().unwrap() };
        std::thread::scope(|threads| {
            threads.spawn(|| {
                refuse_pidfd_open();
                let watch = PidFd::open(id).unwrap();
                assert!(!watch.can_poll() && !watch.is_dead());
                let other = ProcId { start: id.start + 1, ..id };
                assert_eq!(PidFd::open(other).unwrap_err(), WatchError::Gone { pid: id.pid });
                child.kill().unwrap();
                while !watch.is_dead() {
                    std::thread::yield_now();
                }
                child.wait().unwrap();
                assert!(watch.is_dead(), "it is no more");
                assert_eq!(PidFd::open(id).unwrap_err(), WatchError::Gone { pid: id.pid });
            });
        });
    }

    #[test]
    fn peer_credentials_of_a_socket() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let cred = PeerCred::of(&a).unwrap();
        assert_eq!((cred.pid, cred.is_same_user()), (Some(pid()), true));
        assert!(PidFd::of_socket(&a).unwrap().is_none_or(|watch| !watch.is_dead()));
        let file = fs::File::open("/dev/null").unwrap();
        assert_eq!(PeerCred::of(&file), Err(Errno(libc::ENOTSOCK)));
        assert!(PidFd::of_socket(&file).is_err());
    }

    #[test]
    fn another_process_with_the_pid_is_not_it() {
        let me = ProcId::current();
        let other = ProcId { start: me.start + 1, ..me };
        assert_eq!(PidFd::open(other).unwrap_err(), WatchError::Gone { pid: me.pid });
        assert!(PidFd::open(ProcId { pid: 0, start: 0 }).is_err());
        assert!(PidFd::open(me).is_ok_and(|p| !p.is_dead()));
    }
}
