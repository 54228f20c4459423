//! A process that removes the sysfs tree once the program has ended, however it ended. Started by `run`
//! before it becomes the program; no child of it, so a program that waits for any child does not meet it.

use crate::sysfs_tree::SysfsTree;
use rustix::event::{PollFd, PollFlags};
use std::io;
use std::time::Duration;
use ucs::sys::{PidFd, ProcId, proc};

/// Time between two checks where the kernel has no pidfds.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub fn start(tree: SysfsTree) -> io::Result<()> {
    let me = ProcId::current();
    // SAFETY: this program has one thread, so the child may do whatever this process may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let done = detach().map(|()| wait_and_remove(me, tree));
            exit(if done.is_ok() { 0 } else { 1 })
        }
        child => {
            tree.leave_to_cleanup();
            reap(child)
        }
    }
}

/// Exits without the launcher's exit handlers.
fn exit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

fn reap(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable.
        match unsafe { libc::waitpid(child, &raw mut status, 0) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 => return Ok(()),
            _ => return Err(io::Error::other("the process that would remove it cannot be started")),
        }
    }
}

/// Leaves the terminal and goes on in a child; the intermediate process ends.
fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    // SAFETY: as in `start`.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(()),
        _ => exit(0),
    }
}

fn wait_and_remove(program: ProcId, tree: SysfsTree) {
    // The working directory may be unmounted; open pipe ends would block their readers.
    let _ = rustix::process::chdir("/");
    // SAFETY: nothing in this process uses a descriptor it had before.
    unsafe { libc::close_range(0, libc::c_uint::MAX, 0) };
    match PidFd::open(program) {
        Ok(pidfd) => {
            let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
            while let Err(rustix::io::Errno::INTR) = rustix::event::poll(&mut fds, None) {}
        }
        // No pidfds, or gone already.
        Err(_) => {
            while proc::start_time(program.pid).is_ok_and(|start| start == Some(program.start)) {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }
    drop(tree);
}
