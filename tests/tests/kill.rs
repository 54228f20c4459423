//! One of two processes in traffic is killed: the transport notifies the other within a second, and nothing
//! is left on the machine.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use suites::leftovers::{Leftovers, of_this_project};
use suites::sched_delay::Clock;

/// One at a time: the tests compare what is on the machine before and after.
static SERIAL: Mutex<()> = Mutex::new(());

const TIMEOUT: Duration = Duration::from_secs(30);
/// Limit from the kill to the exit of the survivor, which reports and closes everything.
const NOTIFY_LIMIT: Duration = Duration::from_secs(3);

/// A traffic run that would take minutes, and its two processes.
struct Pair {
    parent: Child,
    child_pid: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Parent,
    Child,
    Both,
}

impl Pair {
    fn start(tls: &str) -> Pair {
        let parent = Command::new(env!("CARGO_BIN_EXE_traffic"))
            .args(["--tls", tls, "--messages", "100000000", "--unpinned"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("traffic starts");
        let child_pid = wait_for("the second process", || child_of(parent.id()));
        wait_for("traffic", || (cpu_ticks(parent.id())? > 30 && cpu_ticks(child_pid)? > 30).then_some(()));
        Pair { parent, child_pid }
    }

    /// Returns the parent's exit code and the standard error of both. Kills the parent if it hangs.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + TIMEOUT;
        let code = loop {
            match self.parent.try_wait().expect("it is our child") {
                Some(status) => break status.code(),
                None if Instant::now() > deadline => {
                    // -1 tells the caller that it hung.
                    let _ = self.parent.kill();
                    let _ = self.parent.wait();
                    break Some(-1);
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        wait_for("the second process to end", || (!is_running(self.child_pid)).then_some(()));
        let mut stderr = String::new();
        if let Some(mut err) = self.parent.stderr.take() {
            err.read_to_string(&mut stderr).expect("text");
        }
        (code, stderr)
    }
}

fn wait_for<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = is() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Fields of `/proc/PID/stat` behind the name.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn cpu_ticks(pid: u32) -> Option<u64> {
    let fields = stat(pid)?;
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] != "Z")
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    try_signal(pid, signal).expect("it is running");
}

fn try_signal(pid: u32, signal: rustix::process::Signal) -> rustix::io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal)
}

fn kill_and_check(tls: &str, victim: Victim, how: rustix::process::Signal) {
    // A failed test poisons the lock without harm to others.
    let _serial = SERIAL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = Leftovers::now(of_this_project);
    let pair = Pair::start(tls);
    let clock = Clock::start();
    let killed = clock.now();
    if victim != Victim::Child {
        signal(pair.parent.id(), how);
    }
    match victim {
        Victim::Parent => {}
        Victim::Child => signal(pair.child_pid, how),
        // With its parent it may have ended already.
        Victim::Both => _ = try_signal(pair.child_pid, how),
    }
    let (code, stderr) = pair.end();
    let took = clock.since(killed);
    // The transport must have reported it, not the pipe or a timeout; both share the standard error.
    let is_notified = stderr.contains(" is gone") || stderr.contains(" is not reachable");
    match victim {
        Victim::Child => assert!(code == Some(1) && is_notified, "{code:?}: {stderr}"),
        Victim::Parent => assert!(code.is_none() && is_notified, "{code:?}: {stderr}"),
        Victim::Both => assert_eq!(code, None, "{stderr}"),
    }
    assert!(!stderr.contains("VIOLATION") && !stderr.contains("STALLED"), "{stderr}");
    assert!(took <= NOTIFY_LIMIT, "{tls}, {victim:?} killed: the other was gone after {took:?}");
    let left = before.since(Duration::from_secs(20), of_this_project);
    assert!(left.is_empty(), "left behind: {left:?}");
}

const KILL: rustix::process::Signal = rustix::process::Signal::KILL;
const INT: rustix::process::Signal = rustix::process::Signal::INT;

#[test]
fn sigkill_of_the_child_on_posix() {
    kill_and_check("posix", Victim::Child, KILL);
}

#[test]
fn sigkill_of_the_child_on_efa() {
    kill_and_check("efa", Victim::Child, KILL);
}

#[test]
fn sigkill_of_the_parent_on_posix() {
    kill_and_check("posix", Victim::Parent, KILL);
}

#[test]
fn sigkill_of_the_parent_on_efa() {
    kill_and_check("efa", Victim::Parent, KILL);
}

#[test]
fn sigint_to_both_on_posix() {
    kill_and_check("posix", Victim::Both, INT);
}

#[test]
fn sigint_to_both_on_efa() {
    kill_and_check("efa", Victim::Both, INT);
}
