//! The process that stays: takes both through an operation step by step, ends the other at one of them, and looks at what
//! becomes of its own part and of everything it starts later.

use super::op::How;
use super::side::Side;
use super::{Ask, Closing, Ending, Moment, Place, Role};
use crate::leftovers::Leftovers;
use crate::partner::Partner;
use std::time::{Duration, Instant};
use ucp::rdm::Census;
use ucp::{AmProto, AtomicOp, EXACT, Error, Match};

/// For everything that is waited for: transports tell within milliseconds; the rest is for busy machines.
const PATIENCE: Duration = Duration::from_secs(20);
/// Turns without an event at either side after which nothing happens any more.
const QUIET: u32 = 4;
/// Receives that active messages keep posted.
const IDLE_RECEIVES: usize = 32;

/// One run of an operation between this process and another.
pub struct Run {
    side: Side,
    other: Partner,
    now: Moment,
}

/// How the survivor's part has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Well.
    Well,
    /// With the error that names the peer as gone.
    Gone,
    /// The peer has given it up, and said so.
    GivenUp,
    /// Of an active message that has not come, nobody is told.
    Nothing,
}

impl Run {
    /// Starts the other process, and both parts of the operation. The other has the role `victim`. Sockets of `posix` are
    /// files in `dir`.
    pub fn start(wire: &str, dir: &str, how: How, victim: Role) -> Run {
        let [how_word, role_word] = [serde_json::to_string(&how), serde_json::to_string(&victim)];
        let args = ["victim".into(), wire.into(), dir.into(), how_word.unwrap(), role_word.unwrap()];
        let mut other = Partner::start(&args).unwrap();
        let mut side = Side::open(wire, dir, how);
        side.connect(&other.recv(PATIENCE).unwrap());
        other.send(&side.card()).unwrap();
        let mut run = Run { side, other, now: Moment::default() };
        if how != How::FirstContact {
            run.ask(Ask::Meet);
            run.side.meet();
            run.run_out(&mut |_| {});
        }
        run.now = Moment::default();
        // A target is ready before the first packet comes.
        match victim {
            Role::Target => {
                run.ask(Ask::Start);
                run.side.start(how, victim.other());
            }
            Role::Initiator => {
                run.side.start(how, victim.other());
                run.ask(Ask::Start);
            }
        }
        run.now.survivor = run.side.place();
        run
    }

    fn ask(&mut self, what: Ask) -> usize {
        self.other.send(&what).unwrap();
        let (events, place): (usize, Place) = self.other.recv(PATIENCE).unwrap();
        self.now.victim = place;
        events
    }

    /// One turn of each, `each` after every half of it; answers the events.
    fn turn(&mut self, each: &mut dyn FnMut(&Moment) -> bool) -> Option<usize> {
        let there = self.ask(Ask::Turn);
        if !each(&self.now) {
            return None;
        }
        let here = self.side.turn();
        self.now.survivor = self.side.place();
        each(&self.now).then_some(there + here)
    }

    /// Turns until nothing happens any more; shows every moment.
    fn run_out(&mut self, each: &mut dyn FnMut(&Moment)) {
        let (start, mut quiet) = (Instant::now(), 0);
        while quiet < QUIET {
            let events = self.turn(&mut |moment| {
                each(moment);
                true
            });
            quiet = if events == Some(0) { quiet + 1 } else { 0 };
            assert!(start.elapsed() < PATIENCE, "does not come to rest: {}", self.now);
        }
    }

    /// All moments of an operation that nobody disturbs, which ends well on both sides.
    pub fn moments(mut self) -> Vec<Moment> {
        let mut moments = vec![self.now.clone()];
        self.run_out(&mut |moment| {
            if moments.last() != Some(moment) {
                moments.push(moment.clone());
            }
        });
        let outcomes = self.side.outcomes();
        assert!(outcomes.iter().all(|end| *end == Some(Ok(()))), "{outcomes:?}");
        assert!(self.now.victim.ended.iter().all(|ended| *ended), "{}", self.now);
        self.other.send(&Ask::Leave).unwrap();
        assert!(self.other.exited_ok());
        moments
    }

    /// Goes on to the moment number `k` of `moments`.
    pub fn until(&mut self, moments: &[Moment], k: usize) {
        let (mut at, start) = (0, Instant::now());
        assert_eq!(self.now, moments[0], "the same beginning");
        while at < k {
            let (mut last, mut same) = (at, true);
            self.turn(&mut |moment| {
                if *moment != moments[last] {
                    last += 1;
                    same &= moments.get(last) == Some(moment);
                }
                last < k
            });
            at = last;
            assert!(same, "not what came before at step {at}: {}", self.now);
            assert!(start.elapsed() < PATIENCE, "stands still before step {k}: {}", self.now);
        }
    }

    /// Ends the other, waits for the ends of the own part, and looks at all that comes after.
    pub fn end(mut self, how: Ending) -> Vec<Told> {
        if let Ending::Closed(closing) = how {
            self.ask(Ask::Close(closing));
            match closing {
                Closing::ByForce => self.run_out(&mut |_| {}),
                Closing::InTime => {
                    let start = Instant::now();
                    while !self.now.victim.closed {
                        self.turn(&mut |_| true);
                        assert!(start.elapsed() < PATIENCE, "the close does not end: {}", self.now);
                    }
                }
            }
        }
        let Run { side, mut other, .. } = self;
        if how == Ending::Killed {
            // Dropping the partner kills it with SIGKILL, and waits for it.
            drop(other);
        } else {
            other.send(&Ask::Leave).unwrap();
            assert!(other.exited_ok(), "it ended badly");
        }
        After { side }.look(how)
    }
}

/// The survivor alone.
struct After {
    side: Side,
}

impl After {
    /// What it is told in the end, and whether all else is as it must be.
    fn look(mut self, how: Ending) -> Vec<Told> {
        let start = Instant::now();
        let mut quiet = 0;
        // Until the worker knows, and has nothing more to tell.
        while quiet < QUIET {
            let events = self.side.turn();
            let known = self.fault().is_some() || !self.side.worker().check_peers();
            quiet = if events == 0 && known { quiet + 1 } else { 0 };
            assert!(start.elapsed() < PATIENCE, "not told: {:?}", self.side.outcomes());
        }
        let told: Vec<Told> = self.side.outcomes().iter().map(|end| self.told(*end, how)).collect();
        assert!(self.fault().is_some(), "nobody knows that it is gone");
        self.later();
        self.nothing_left();
        told
    }

    fn fault(&self) -> Option<ucp::rdm::io::Fault> {
        self.side.ep().peer_view().and_then(|view| view.fault)
    }

    fn told(&self, end: Option<Result<(), Error>>, how: Ending) -> Told {
        let peer = self.side.ep().peer();
        match end {
            Some(Ok(())) => Told::Well,
            Some(Err(Error::PeerGone(p) | Error::Unreachable(p))) if p == peer => Told::Gone,
            Some(Err(Error::Aborted(p, _) | Error::RemoteAccess(p)))
                if p == peer && how != Ending::Killed =>
            {
                Told::GivenUp
            }
            None => Told::Nothing,
            other => panic!("ended {other:?}, which does not name the peer"),
        }
    }

    /// Whatever is started later says the same, at once.
    fn later(&mut self) {
        let (ep, worker) = (self.side.ep(), self.side.worker());
        let (peer, far) = (ep.peer(), self.side.far());
        let from = Match::tagged(99, EXACT).from(ep);
        let buf = || vec![0; 8];
        let room = || Vec::with_capacity(8);
        let ends = [
            ("send", ep.tag_send(9, buf()).wait().0),
            ("sync send", ep.tag_send_sync(9, buf()).wait().0),
            ("long send", ep.tag_send(9, vec![0; 1 << 20]).wait().0),
            ("active message", ep.am_send_by(AmProto::Auto, 5, b"x", buf()).wait().0),
            ("stream", ep.stream_send(buf()).wait().0),
            ("receive", worker.recv(from, room()).wait().0.map(drop)),
            ("put", ep.put(buf(), far.at, &far.packets).wait().0),
            ("get", ep.get(room(), far.at, &far.packets).wait().0.map(drop)),
            ("atomic", ep.atomic_fetch(AtomicOp::Sum, 1u64, far.at, &far.packets).wait().map(drop)),
            ("flush", ep.flush().wait()),
        ];
        for (what, end) in ends {
            let named = matches!(end, Err(Error::PeerGone(p) | Error::Unreachable(p)) if p == peer);
            assert!(named, "a {what} to the dead ended {end:?}");
        }
    }

    /// Nothing is under way, but receives that wait for active messages and whole messages of the dead.
    fn nothing_left(&self) {
        let census = self.side.worker().census();
        let (receives, unexpected, held_bytes) = (census.receives, census.unexpected, census.held_bytes);
        assert_eq!(census, Census { receives, unexpected, held_bytes, ..Census::EMPTY });
        assert!([0, IDLE_RECEIVES].contains(&receives), "{receives} receives");
        assert_eq!(self.side.worker().registrations(), 0);
        // Names of queue pairs that the kernel would have removed with their owner.
        let gid = self.side.ep().peer_view().expect("it is still known").addr.gid;
        let iid = u64::from_be_bytes(std::array::from_fn(|n| gid[8 + n]));
        let left = Leftovers::now(|name| name.contains("softefa.") && name.contains(&format!(".{iid:x}.")));
        assert_eq!(left, Leftovers::default());
    }
}
