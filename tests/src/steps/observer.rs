//! The process that observes a failure: takes both processes through an operation step by step, ends the
//! other one, and checks its own part and later operations.

use super::op::Op;
use super::side::Side;
use super::{Closing, Command, Ending, Progress, Role, Snapshot};
use crate::leftovers::Leftovers;
use crate::partner::Partner;
use std::time::{Duration, Instant};
use ucp::rdm::EngineSnapshot;
use ucp::{AmProto, AtomicOp, Error, Match, TAG_MASK_FULL};

/// Transports notify within milliseconds; the rest is for busy machines.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Rounds without an event after which nothing moves any more.
const QUIET: u32 = 4;
const IDLE_RECEIVES: usize = 32;

/// A run of an operation between this process and another.
pub struct Run {
    side: Side,
    other: Partner,
    now: Snapshot,
}

/// How the observer's operation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notification {
    /// It succeeded.
    Success,
    /// With the error that names the peer as gone.
    PeerGone,
    /// The peer gave it up, and reported that.
    Aborted,
    /// Not at all: no one is notified of an active message that does not come.
    None,
}

impl Run {
    /// Starts the other process, with role `failing`, and both parts. Sockets of `posix` are in `dir`.
    pub fn start(wire: &str, dir: &str, op: Op, failing: Role) -> Run {
        let [op_word, role_word] = [serde_json::to_string(&op), serde_json::to_string(&failing)];
        let args = ["failing".into(), wire.into(), dir.into(), op_word.unwrap(), role_word.unwrap()];
        let mut other = Partner::start(&args).unwrap();
        let mut side = Side::open(wire, dir, op);
        side.connect(&other.recv(TIMEOUT).unwrap());
        other.send(&side.peer_info()).unwrap();
        let mut run = Run { side, other, now: Snapshot::default() };
        if op != Op::FirstContact {
            run.ask(Command::Exchange);
            run.side.exchange();
            let start = Instant::now();
            run.run_until_quiet(&mut |_| {});
            // A process that is slow to answer the first send is quiet as well.
            while run.side.outcomes().iter().any(Option::is_none) || run.now.failing.ended.contains(&false) {
                run.run_until_quiet(&mut |_| {});
                assert!(start.elapsed() < TIMEOUT, "they do not meet: {}", run.now);
            }
        }
        run.now = Snapshot::default();
        // A target is ready before the first packet comes.
        match failing {
            Role::Target => {
                run.ask(Command::Start);
                run.side.start(op, failing.other());
            }
            Role::Initiator => {
                run.side.start(op, failing.other());
                run.ask(Command::Start);
            }
        }
        run.now.observer = run.side.progress();
        run
    }

    fn ask(&mut self, what: Command) -> usize {
        self.other.send(&what).unwrap();
        let (events, progress): (usize, Progress) = self.other.recv(TIMEOUT).unwrap();
        self.now.failing = progress;
        events
    }

    /// Progresses both once. Returns the events, or `None` if `each`, called after each half, stopped it.
    fn progress_once(&mut self, each: &mut dyn FnMut(&Snapshot) -> bool) -> Option<usize> {
        let there = self.ask(Command::Progress);
        if !each(&self.now) {
            return None;
        }
        let here = self.side.progress_once();
        self.now.observer = self.side.progress();
        each(&self.now).then_some(there + here)
    }

    fn run_until_quiet(&mut self, each: &mut dyn FnMut(&Snapshot)) {
        let (start, mut quiet) = (Instant::now(), 0);
        while quiet < QUIET {
            let events = self.progress_once(&mut |snapshot| {
                each(snapshot);
                true
            });
            quiet = if events == Some(0) { quiet + 1 } else { 0 };
            assert!(start.elapsed() < TIMEOUT, "does not come to rest: {}", self.now);
        }
    }

    /// All snapshots of an undisturbed operation, which succeeds on both sides.
    pub fn snapshots(mut self) -> Vec<Snapshot> {
        let mut snapshots = vec![self.now.clone()];
        self.run_until_quiet(&mut |snapshot| {
            if snapshots.last() != Some(snapshot) {
                snapshots.push(snapshot.clone());
            }
        });
        let outcomes = self.side.outcomes();
        assert!(outcomes.iter().all(|end| *end == Some(Ok(()))), "{outcomes:?}");
        assert!(self.now.failing.ended.iter().all(|ended| *ended), "{}", self.now);
        self.other.send(&Command::Exit).unwrap();
        assert!(self.other.exited_ok());
        snapshots
    }

    /// Goes on to snapshot number `k` of `snapshots`. False: this run has others, as the first contact has
    /// where a process is slow to answer.
    #[must_use]
    pub fn until(&mut self, snapshots: &[Snapshot], k: usize) -> bool {
        let (mut at, start) = (0, Instant::now());
        if self.now != snapshots[0] {
            return false;
        }
        while at < k {
            let (mut last, mut same) = (at, true);
            self.progress_once(&mut |snapshot| {
                if *snapshot != snapshots[last] {
                    last += 1;
                    same &= snapshots.get(last) == Some(snapshot);
                }
                last < k
            });
            at = last;
            if !same {
                return false;
            }
            assert!(start.elapsed() < TIMEOUT, "stands still before step {k}: {}", self.now);
        }
        true
    }

    /// Ends the other process, waits for the ends of this one's operations, and checks what comes after.
    pub fn end(mut self, how: Ending) -> Vec<Notification> {
        if let Ending::Closed(closing) = how {
            self.ask(Command::Close(closing));
            match closing {
                Closing::Force => self.run_until_quiet(&mut |_| {}),
                Closing::Flush => {
                    let start = Instant::now();
                    while !self.now.failing.closed {
                        self.progress_once(&mut |_| true);
                        assert!(start.elapsed() < TIMEOUT, "the close does not end: {}", self.now);
                    }
                }
            }
        }
        let Run { side, mut other, .. } = self;
        if how == Ending::Killed {
            // Dropping the partner kills it with SIGKILL, and waits for it.
            drop(other);
        } else {
            other.send(&Command::Exit).unwrap();
            assert!(other.exited_ok(), "it ended badly");
        }
        After { side }.look(how)
    }
}

struct After {
    side: Side,
}

impl After {
    /// Waits for the ends of its operations, and checks everything else.
    fn look(mut self, how: Ending) -> Vec<Notification> {
        let start = Instant::now();
        let mut quiet = 0;
        // Until the worker knows of the failure, and has no more events.
        while quiet < QUIET {
            let events = self.side.progress_once();
            let known = self.fault().is_some() || !self.side.worker().check_peers();
            quiet = if events == 0 && known { quiet + 1 } else { 0 };
            assert!(start.elapsed() < TIMEOUT, "not notified: {:?}", self.side.outcomes());
        }
        let notifications: Vec<Notification> =
            self.side.outcomes().iter().map(|end| self.notification(*end, how)).collect();
        assert!(self.fault().is_some(), "nobody knows that it is gone");
        self.later(how);
        self.nothing_left();
        notifications
    }

    fn fault(&self) -> Option<ucp::rdm::io::PeerError> {
        self.side.ep().peer_view().and_then(|view| view.fault)
    }

    fn notification(&self, end: Option<Result<(), Error>>, how: Ending) -> Notification {
        let peer = self.side.ep().peer();
        match end {
            Some(Ok(())) => Notification::Success,
            Some(Err(Error::PeerGone(p) | Error::Unreachable(p) | Error::Unresponsive(p))) if p == peer => {
                Notification::PeerGone
            }
            Some(Err(Error::Aborted(p, _) | Error::Reset(p) | Error::RemoteAccess(p)))
                if p == peer && how != Ending::Killed =>
            {
                Notification::Aborted
            }
            None => Notification::None,
            other => panic!("ended {other:?}, which does not name the peer"),
        }
    }

    /// Checks that later operations fail at once with the same error: after a close by force, of which it was
    /// told, with that of the close.
    fn later(&mut self, how: Ending) {
        let (ep, worker) = (self.side.ep(), self.side.worker());
        let (peer, remote) = (ep.peer(), self.side.remote());
        let from = Match::tagged(99, TAG_MASK_FULL).from(ep);
        let buf = || vec![0; 8];
        let room = || Vec::with_capacity(8);
        let ends = [
            ("send", ep.tag_send(9, buf()).wait().0),
            ("sync send", ep.tag_send_sync(9, buf()).wait().0),
            ("long send", ep.tag_send(9, vec![0; 1 << 20]).wait().0),
            ("active message", ep.am_send_with(AmProto::Auto, 5, b"x", buf()).wait().0),
            ("stream", ep.stream_send(buf()).wait().0),
            ("receive", worker.recv(from, room()).wait().0.map(drop)),
            ("put", ep.put(buf(), remote.at, &remote.packets).wait().0),
            ("get", ep.get(room(), remote.at, &remote.packets).wait().0.map(drop)),
            ("atomic", ep.atomic_fetch(AtomicOp::Sum, 1u64, remote.at, &remote.packets).wait().map(drop)),
            ("flush", ep.flush().wait()),
        ];
        for (what, end) in ends {
            let named = match end {
                Err(Error::PeerGone(p) | Error::Unreachable(p) | Error::Unresponsive(p)) => p == peer,
                Err(Error::Reset(p)) => p == peer && how == Ending::Closed(Closing::Force),
                _ => false,
            };
            assert!(named, "a {what} to the dead ended {end:?}");
        }
    }

    /// Checks that only receives of active messages and complete messages of the dead are in flight.
    fn nothing_left(&self) {
        let snapshot = self.side.worker().diagnostics().snapshot();
        let (receives, unexpected, held_bytes) =
            (snapshot.receives, snapshot.unexpected, snapshot.held_bytes);
        assert_eq!(snapshot, EngineSnapshot { receives, unexpected, held_bytes, ..EngineSnapshot::EMPTY });
        assert!([0, IDLE_RECEIVES].contains(&receives), "{receives} receives");
        assert_eq!(self.side.worker().diagnostics().registrations(), 0);
        // Names of queue pairs that the kernel would have removed with their owner.
        let gid = self.side.ep().peer_view().expect("it is still known").addr.gid;
        let iid = u64::from_be_bytes(std::array::from_fn(|n| gid[8 + n]));
        let left = Leftovers::now(|name| name.contains("softefa.") && name.contains(&format!(".{iid:x}.")));
        assert_eq!(left, Leftovers::default());
    }
}
