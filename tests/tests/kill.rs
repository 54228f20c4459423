//! Two processes in traffic, and one of them is ended by force: the other learns it from the transport within a second, and
//! nothing is left on the machine.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use suites::leftovers::{Leftovers, of_this_project};
use suites::sched_delay::Clock;

/// One of these at a time: they compare what is on the machine before and after.
static ALONE: Mutex<()> = Mutex::new(());

/// For the survivor to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// From the kill on: the survivor has been told, has said so, closed everything and is gone.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// A traffic run that would take minutes, and the two processes of it.
struct Pair {
    parent: Child,
    child_pid: u32,
}

/// Who is ended.
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
        // In the middle of traffic: both have done some work on their own.
        wait_for("traffic", || (cpu_ticks(parent.id())? > 30 && cpu_ticks(child_pid)? > 30).then_some(()));
        Pair { parent, child_pid }
    }

    /// How the parent ended and what it and the child said. Kills it if it does not end.
    fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let code = loop {
            match self.parent.try_wait().expect("it is our child") {
                Some(status) => break status.code(),
                None if Instant::now() > deadline => {
                    // Not an answer: the caller sees that it hung.
                    let _ = self.parent.kill();
                    let _ = self.parent.wait();
                    break Some(-1);
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        wait_for("the second process to end", || (!is_running(self.child_pid)).then_some(()));
        let mut said = String::new();
        if let Some(mut err) = self.parent.stderr.take() {
            err.read_to_string(&mut said).expect("text");
        }
        (code, said)
    }
}

fn wait_for<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
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
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("it is running");
}

fn end_one(tls: &str, victim: Victim, how: rustix::process::Signal) {
    // A test that failed has poisoned it; the others are none the worse.
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = Leftovers::now(of_this_project);
    let pair = Pair::start(tls);
    let clock = Clock::start();
    let killed = clock.now();
    if victim != Victim::Child {
        signal(pair.parent.id(), how);
    }
    if victim != Victim::Parent {
        signal(pair.child_pid, how);
    }
    let (code, said) = pair.end();
    let took = clock.since(killed);
    // Who lives must have been told by its transport, not by the pipe and not by standing still. The child's text
    // comes over the standard error that it shares with the parent.
    let told = said.contains(" is gone") || said.contains(" is not reachable");
    match victim {
        Victim::Child => assert!(code == Some(1) && told, "{code:?}: {said}"),
        Victim::Parent => assert!(code.is_none() && told, "{code:?}: {said}"),
        Victim::Both => assert_eq!(code, None, "{said}"),
    }
    assert!(!said.contains("BROKEN") && !said.contains("STALLED"), "{said}");
    assert!(took <= TOLD_WITHIN, "{tls}, {victim:?} killed: the other was gone after {took:?}");
    let left = before.since(Duration::from_secs(5), of_this_project);
    assert!(left.is_empty(), "left behind: {left:?}");
}

const KILL: rustix::process::Signal = rustix::process::Signal::KILL;
const INT: rustix::process::Signal = rustix::process::Signal::INT;

#[test]
fn kill_9_of_the_partner_on_posix() {
    end_one("posix", Victim::Child, KILL);
}

#[test]
fn kill_9_of_the_partner_on_efa() {
    end_one("efa", Victim::Child, KILL);
}

#[test]
fn kill_9_of_the_starter_on_posix() {
    end_one("posix", Victim::Parent, KILL);
}

#[test]
fn kill_9_of_the_starter_on_efa() {
    end_one("efa", Victim::Parent, KILL);
}

#[test]
fn ctrl_c_on_posix() {
    end_one("posix", Victim::Both, INT);
}

#[test]
fn ctrl_c_on_efa() {
    end_one("efa", Victim::Both, INT);
}
