//! More than a hundred times `kill -9` at random moments on `posix`, `cma` and the software device: of a
//! child or the parent of the survivor, during connection, messages, and one-sided operations.

use crate::{Dir, NOTIFY_LIMIT, Seen, TIMEOUT, contact_of, open, send_some, socket_of};
use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use suites::leftovers::Leftovers;
use suites::partner::Partner;
use suites::rng::Rng;
use suites::sched_delay::Clock;
use uct::any::{self, Iface};
use uct::api::{
    Access, AllocReq, AtomicOp, Comp, ConnectError, Ep as _, EpTag, Error, Iface as _, Iov, Md as _,
    Memory as _, Refused, Sent,
};

const EPS: usize = 3;
const MEMORY: usize = 4096;
/// Kinds of operations of [`Side::step`].
const STEPS: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Traffic {
    /// Messages in both directions on `posix`.
    Messages,
    /// One-sided operations of the survivor on `posix`; the victim is passive, and no message is sent.
    Puts,
    /// As [`Traffic::Puts`], with an MR key.
    Words,
    /// Puts and gets in both directions on `cma`, in mapped memory and by the kernel.
    Cma,
    /// Messages, puts and gets in both directions on the software device, each of which reports the death.
    Soft,
}

/// Tag of an endpoint that is made after the death.
const LATE_TAG: EpTag = EpTag(19);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Child,
    /// The parent of the survivor.
    Parent,
}

/// How often each combination is run.
const ROUNDS: [(Traffic, Victim, u64); 10] = [
    (Traffic::Messages, Victim::Child, 24),
    (Traffic::Puts, Victim::Child, 16),
    (Traffic::Words, Victim::Child, 8),
    (Traffic::Cma, Victim::Child, 16),
    (Traffic::Soft, Victim::Child, 20),
    (Traffic::Messages, Victim::Parent, 12),
    (Traffic::Puts, Victim::Parent, 8),
    (Traffic::Words, Victim::Parent, 4),
    (Traffic::Cma, Victim::Parent, 12),
    (Traffic::Soft, Victim::Parent, 12),
];

/// Address of an interface, and its memory: address, packed key, MR key (0: none).
type Contact = (Vec<u8>, Vec<u8>, Vec<(u64, Vec<u8>, u64)>);

impl Traffic {
    fn from_name(name: &str) -> Traffic {
        let all = [Traffic::Messages, Traffic::Puts, Traffic::Words, Traffic::Cma, Traffic::Soft];
        all.into_iter().find(|traffic| format!("{traffic:?}") == name).unwrap()
    }

    fn tl(self) -> &'static str {
        match self {
            Traffic::Messages | Traffic::Puts | Traffic::Words => "posix",
            Traffic::Cma => "cma",
            Traffic::Soft => "efa",
        }
    }
}

struct Side {
    traffic: Traffic,
    eps: Vec<any::Ep>,
    keys: Vec<(u64, any::Rkey)>,
    mems: Vec<any::Mem>,
    iface: Iface,
    seen: Seen,
    /// Polls rarely.
    busy: bool,
}

impl Side {
    fn open(traffic: Traffic, dir: &str) -> Side {
        let iface = open(traffic.tl(), dir);
        let all = AllocReq { access: Access::ALL, ..AllocReq::new(MEMORY, "kills") };
        let mut mems = vec![iface.md().alloc(&all).unwrap()];
        if traffic == Traffic::Cma {
            let bytes = vec![0u64; MEMORY / 8].leak();
            // SAFETY: leaked, and not read here.
            let mem = unsafe { iface.md().register(bytes.as_mut_ptr().cast(), MEMORY, Access::ALL) };
            mems.push(mem.unwrap());
        }
        Side { traffic, eps: Vec::new(), keys: Vec::new(), mems, iface, seen: Seen::default(), busy: false }
    }

    fn contact(&self) -> Contact {
        let md = self.iface.md();
        let (device, iface) = contact_of(&self.iface);
        let key = |mem: &any::Mem| {
            (mem.addr().addr() as u64, md.pack_rkey(mem).unwrap().to_vec(), md.mr_key(mem).unwrap_or(0))
        };
        (device, iface, self.mems.iter().map(key).collect())
    }

    fn connect(&mut self, peer: &Contact) {
        let (device, iface, keys) = peer;
        self.eps = (0..EPS).map(|_| self.iface.connect(device, iface).unwrap()).collect();
        self.eps.iter().enumerate().for_each(|(n, ep)| ep.set_tag(EpTag(10 + n as u64)));
        let start = Instant::now();
        let key = |key: &[u8], word: u64| match self.traffic {
            Traffic::Words => loop {
                match self.iface.md().rkey_from_mr_key(word, 0, 0) {
                    Err(Error::NotReady) if start.elapsed() < TIMEOUT => {}
                    key => break key,
                }
            },
            _ => self.iface.md().unpack_rkey(key),
        };
        self.keys = match self.traffic {
            Traffic::Messages => Vec::new(),
            _ => keys.iter().map(|(at, packed, word)| (*at, key(packed, *word).unwrap())).collect(),
        };
    }

    /// Sends a message, where messages are sent: a process that never sent anything and has no key is not
    /// notified. There is no resource until the peer's fd server has run.
    fn send_first(&mut self) {
        let (start, all_ones) = (Instant::now(), 0x0101_0101_0101_0101);
        let send = || self.eps[0].am_short(1, all_ones, &[]);
        while self.traffic == Traffic::Messages && send() == Err(Refused::NoResource) {
            assert!(start.elapsed() < TIMEOUT, "nothing can be sent");
        }
        // The device admits one-sided operations of known senders only.
        while self.traffic == Traffic::Soft && self.seen.bytes.is_empty() {
            assert_eq!(send_some(&self.eps[0], 0), Ok(()));
            self.iface.poll(8, &mut self.seen);
            assert!(start.elapsed() < TIMEOUT, "nothing comes");
        }
    }

    fn step(&self, ep: &any::Ep, n: usize) -> Result<(), Error> {
        if self.traffic == Traffic::Messages {
            return if n == 7 { done(ep.flush(Comp::None)) } else { send_some(ep, n as u64) };
        }
        let (at, key) = &self.keys[n % self.keys.len()];
        let (mut near, mut old) = ([7u8; 64], 0u64);
        let result = NonNull::from(&mut old);
        let iov = [Iov::new(near.as_mut_ptr(), near.len(), None)];
        if self.traffic == Traffic::Soft {
            let local = &self.mems[0];
            let own = [Iov::new(local.addr(), 64, Some(local))];
            return match n % 3 {
                0 => send_some(ep, n as u64),
                // SAFETY: registered memory that outlives the polling.
                1 => done(unsafe { ep.put_zcopy(&own, *at, key, Comp::None) }),
                // SAFETY: as above.
                _ => done(unsafe { ep.get_zcopy(&own, *at, key, Comp::None) }),
            };
        }
        let mapped = self.traffic != Traffic::Cma;
        let begun = match n % STEPS {
            0 if mapped => ep.put_short(&near, *at, key),
            1 if mapped => ep.atomic_post(AtomicOp::Add, 1u64, *at, key),
            // SAFETY: `old` outlives the call, which completes the operation.
            2 if mapped => unsafe { ep.atomic_fetch(AtomicOp::Add, 1u64, result, *at, key, Comp::None) },
            // SAFETY: as above.
            3 if mapped => unsafe { ep.atomic_cswap(1u64, 2, result, *at, key, Comp::None) },
            4 if mapped => ep.get_short(&mut near, *at, key),
            5 if mapped => return done(ep.put_bcopy(64, |room| room.len(), *at, key)),
            7 => ep.flush(Comp::None),
            // SAFETY: `near` outlives the call and the flush behind it, which completes the operation.
            n if n % 3 == 0 => unsafe { ep.get_zcopy(&iov, *at, key, Comp::None) },
            // SAFETY: as above.
            _ => unsafe { ep.put_zcopy(&iov, *at, key, Comp::None) },
        };
        done(if begun == Ok(Sent::InProgress) { ep.flush(Comp::None) } else { begun })
    }

    fn run_traffic(&mut self, mut end: impl FnMut(&Seen) -> bool) {
        for n in 0.. {
            if end(&self.seen) {
                return;
            }
            if let Err(e) = self.step(&self.eps[n % EPS], n / EPS % STEPS) {
                assert_eq!(e, Error::PeerDead);
            }
            self.poll();
        }
    }

    fn poll(&mut self) {
        self.iface.poll(8, &mut self.seen);
        self.seen.bytes.clear();
        if self.traffic == Traffic::Soft {
            // Each operation in flight reports the death.
            self.seen.failed_eps.sort_by_key(|tag| tag.0);
            self.seen.failed_eps.dedup();
        }
        if self.busy {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn run_until_killed(&mut self) {
        if matches!(self.traffic, Traffic::Puts | Traffic::Words) {
            return std::thread::sleep(TIMEOUT);
        }
        if self.traffic == Traffic::Soft {
            self.send_first();
        }
        let start = Instant::now();
        self.run_traffic(|seen| !seen.failed_eps.is_empty() || start.elapsed() > TIMEOUT);
    }

    /// Checks that every endpoint was notified once, and that everything fails.
    fn check_notified(&mut self, peer: &Contact) {
        self.seen.failed_eps.sort_by_key(|tag| tag.0);
        assert_eq!(self.seen.failed_eps, [EpTag(10), EpTag(11), EpTag(12)], "each once");
        if self.traffic == Traffic::Soft {
            return self.check_later_operations();
        }
        let late = self.iface.connect(&peer.0, &peer.1);
        if self.traffic == Traffic::Cma {
            assert_eq!(late.as_ref().err(), Some(&ConnectError::Gone));
        } else {
            assert_eq!(late.as_ref().unwrap().ensure_connected(), Err(ConnectError::Gone));
        }
        late.iter().for_each(|ep| ep.set_tag(LATE_TAG));
        for ep in self.eps.iter().chain(&late) {
            for n in 0..2 * STEPS {
                assert_eq!(self.step(ep, n), Err(Error::PeerDead), "{:?} {n}", self.traffic);
            }
            assert_eq!(ep.check(Comp::None), Err(Refused::Failed(Error::PeerDead)));
        }
        for _ in 0..if self.busy { 20 } else { 5000 } {
            self.iface.poll(8, &mut self.seen);
        }
        assert_eq!(self.seen.failed_eps[EPS..], [], "never again, and the late one not at all");
    }
}

impl Side {
    fn check_later_operations(&mut self) {
        let start = Instant::now();
        for n in 0..6 {
            self.seen.failed_eps.clear();
            while self.seen.failed_eps.len() < EPS {
                for ep in &self.eps {
                    let began = if n % 2 == 0 { self.step(ep, n) } else { done(ep.check(Comp::None)) };
                    assert!(matches!(began, Ok(()) | Err(Error::PeerDead)), "{began:?}");
                }
                self.poll();
                assert!(start.elapsed() < TIMEOUT, "not notified again of {n}");
            }
        }
    }
}

fn done<T>(outcome: Result<T, Refused>) -> Result<(), Error> {
    match outcome {
        Ok(_) | Err(Refused::NoResource) => Ok(()),
        Err(Refused::Failed(e)) => Err(e),
    }
}

/// Runs a role of the children, if `args` name one.
pub fn run_role(args: &[&str]) -> bool {
    match args {
        ["victim", traffic, dir] => victim(Traffic::from_name(traffic), dir),
        ["parent", traffic, dir, test] => parent(Traffic::from_name(traffic), dir, test),
        ["survivor", traffic, dir, test] => survivor(Traffic::from_name(traffic), dir, test),
        _ => return false,
    }
    true
}

fn victim(traffic: Traffic, dir: &str) {
    let (mut line, mut side) = (Partner::parent(), Side::open(traffic, dir));
    line.send(&side.contact()).unwrap();
    side.connect(&line.recv(TIMEOUT).unwrap());
    side.run_until_killed();
}

fn parent(traffic: Traffic, dir: &str, test: &str) {
    let mut side = Side::open(traffic, dir);
    let mut child =
        Partner::start(&["survivor", &format!("{traffic:?}"), dir, test].map(str::to_owned)).unwrap();
    let peer: Contact = child.recv(TIMEOUT).unwrap();
    child.send(&side.contact()).unwrap();
    side.connect(&peer);
    side.run_until_killed();
}

/// The survivor of a parent; has a connection to the test.
fn survivor(traffic: Traffic, dir: &str, test: &str) {
    // Dropped last: then nothing of this process is left.
    let mut test = UnixStream::connect_addr(&SocketAddr::from_abstract_name(test).unwrap()).unwrap();
    let (mut line, mut side) = (Partner::parent(), Side::open(traffic, dir));
    line.send(&side.contact()).unwrap();
    let peer: Contact = line.recv(TIMEOUT).unwrap();
    side.connect(&peer);
    side.send_first();
    let mut say = |what: &str| test.write_all(format!("{what}\n").as_bytes()).unwrap();
    say(&socket_of(&contact_of(&side.iface).1));
    say(&socket_of(&peer.1));
    let start = Instant::now();
    side.run_traffic(|seen| seen.failed_eps.len() == EPS || start.elapsed() > TIMEOUT);
    say("notified");
    side.check_notified(&peer);
    say("done");
}

/// Kills a child of this process. Returns the time to the notification.
fn kill_child(
    traffic: Traffic,
    dir: &Dir,
    at: &str,
    clock: &Clock,
    rng: &mut Rng,
) -> (Duration, Vec<String>) {
    let mut side = Side::open(traffic, at);
    side.busy = rng.percent(25);
    let mut victim = Partner::start(&["victim", &format!("{traffic:?}"), at].map(str::to_owned)).unwrap();
    let peer: Contact = victim.recv(TIMEOUT).unwrap();
    let sockets = vec![socket_of(&peer.1)];
    side.connect(&peer);
    victim.send(&side.contact()).unwrap();
    side.send_first();
    let (start, lifetime) = (Instant::now(), Duration::from_micros(rng.below(6000)));
    side.run_traffic(|_| start.elapsed() >= lifetime);
    assert_eq!(side.seen.failed_eps, []);
    check_sockets_exist(&sockets);
    let (killed, killed_at) = (clock.now(), Instant::now());
    // Dropping the partner kills it.
    drop(victim);
    if traffic == Traffic::Soft || rng.percent(50) {
        side.run_traffic(|seen| seen.failed_eps.len() == EPS || clock.since(killed) > NOTIFY_LIMIT);
    } else {
        while side.seen.failed_eps.len() < EPS && clock.since(killed) <= NOTIFY_LIMIT {
            side.poll();
        }
    }
    let notified = killed_at.elapsed();
    assert!(side.seen.failed_eps.len() == EPS, "{traffic:?}: not notified within {NOTIFY_LIMIT:?}");
    side.check_notified(&peer);
    // The survivor's own socket stays.
    while dir.files() > usize::from(!at.is_empty()) {
        assert!(clock.since(killed) < NOTIFY_LIMIT, "{traffic:?}: a socket is left");
        std::thread::yield_now();
    }
    (notified, sockets)
}

fn kill_parent(
    traffic: Traffic,
    dir: &Dir,
    at: &str,
    clock: &Clock,
    rng: &mut Rng,
) -> (Duration, Vec<String>) {
    let name = format!("kills.{}.{:x}", std::process::id(), rng.bits());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let args = ["parent", &format!("{traffic:?}"), at, &name].map(str::to_owned);
    let victim = Partner::start(&args).unwrap();
    let (survivor, _) = listener.accept().unwrap();
    survivor.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut lines = BufReader::new(survivor).lines();
    let mut next_line = || lines.next().map(|line| line.expect("a line"));
    let sockets = vec![next_line().unwrap(), next_line().unwrap()];
    std::thread::sleep(Duration::from_micros(rng.below(6000)));
    check_sockets_exist(&sockets);
    let (killed, killed_at) = (clock.now(), Instant::now());
    drop(victim);
    assert_eq!(next_line().as_deref(), Some("notified"), "{traffic:?}");
    let notified = killed_at.elapsed();
    assert!(clock.since(killed) <= NOTIFY_LIMIT, "{traffic:?}: notified after {notified:?}");
    assert_eq!(next_line().as_deref(), Some("done"), "{traffic:?}");
    assert_eq!(next_line(), None, "it ends");
    let left =
        Leftovers::default().since(TIMEOUT, |name| sockets.iter().any(|socket| name.ends_with(socket)));
    assert_eq!((left, dir.files()), (Vec::new(), 0), "{traffic:?}");
    (notified, sockets)
}

fn check_sockets_exist(sockets: &[String]) {
    for socket in sockets {
        assert_ne!(Leftovers::now(|name| name.ends_with(socket)), Leftovers::default(), "the name is right");
    }
}

/// Kills around the time of the connection: before the first message or key, or during it. The first call
/// that needs the victim fails at the latest, and removes its socket file.
pub fn kill_during_connect() {
    let (dir, clock) = (Dir::new(), Clock::start());
    let mut rng = Rng::new(0x0dea_d001, 0);
    for round in 0..24 {
        let at = if round % 2 == 0 { "" } else { dir.path() };
        let traffic = [Traffic::Messages, Traffic::Puts][round / 2 % 2];
        let mut side = Side::open(traffic, at);
        let mut victim = Partner::start(&["victim", &format!("{traffic:?}"), at].map(str::to_owned)).unwrap();
        let peer: Contact = victim.recv(TIMEOUT).unwrap();
        side.eps = (0..EPS).map(|_| side.iface.connect(&peer.0, &peer.1).unwrap()).collect();
        let pid = victim.pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).unwrap();
        let delay = Duration::from_micros(rng.below(400));
        let killer = std::thread::spawn(move || {
            if round >= 8 {
                std::thread::sleep(delay);
            }
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        });
        let mut racing = Some(killer);
        if round < 8 {
            racing.take().into_iter().for_each(|killer| killer.join().unwrap());
        }
        let killed = clock.now();
        let limit = NOTIFY_LIMIT + delay;
        match traffic {
            Traffic::Messages => {
                for ep in &side.eps {
                    while send_some(ep, 1) != Err(Error::PeerDead) {
                        side.iface.poll(8, &mut side.seen);
                        assert!(clock.since(killed) < limit, "round {round}: never notified");
                    }
                }
            }
            _ => {
                let (remote, key, _) = &peer.2[0];
                let rkey = side.iface.md().unpack_rkey(key);
                assert!(matches!(rkey, Ok(_) | Err(Error::PeerDead)), "{:?}", rkey.err());
                while let Ok(rkey) = &rkey
                    && side.eps[0].put_short(&[1; 8], *remote, rkey) != Err(Refused::Failed(Error::PeerDead))
                {
                    side.iface.poll(8, &mut side.seen);
                    assert!(clock.since(killed) < limit, "round {round}: never notified");
                }
            }
        }
        for ep in &side.eps {
            while ep.check(Comp::None) != Err(Refused::Failed(Error::PeerDead)) {
                assert!(clock.since(killed) < limit, "round {round}: a question is answered");
            }
            assert!(send_some(ep, 2) == Err(Error::PeerDead));
        }
        racing.into_iter().for_each(|killer| killer.join().unwrap());
        drop(victim);
        // The survivor's own socket stays.
        while dir.files() > usize::from(!at.is_empty()) {
            assert!(clock.since(killed) < limit, "round {round}: a socket is left");
            std::thread::yield_now();
        }
    }
}

/// Kills at a random moment after the connection. Every endpoint is notified once, within a second (a
/// millisecond on an idle machine), everything fails from then on, and no socket is left.
pub fn kill_at_random_moments() {
    let (dir, clock) = (Dir::new(), Clock::start());
    let mut rng = Rng::new(0x0dea_d000, 0);
    let mut sockets = Vec::new();
    for (traffic, victim, rounds) in ROUNDS {
        if let Some(why) = uct::cma::unavailable_reason().filter(|_| traffic == Traffic::Cma) {
            ucs::testing::skipped("kills in traffic of cma", why);
            continue;
        }
        let mut notified: Vec<Duration> = (0..rounds)
            .map(|round| {
                // Every other round with socket files, which the kernel does not remove.
                let at = if round % 2 == 0 || traffic == Traffic::Cma { "" } else { dir.path() };
                let (notified, of) = match victim {
                    Victim::Child => kill_child(traffic, &dir, at, &clock, &mut rng),
                    Victim::Parent => kill_parent(traffic, &dir, at, &clock, &mut rng),
                };
                sockets.extend(of);
                notified
            })
            .collect();
        notified.sort();
        let ms = |at: usize| notified[at].as_secs_f64() * 1e3;
        println!(
            "    from kill -9 of its {victim:?} to the error at the last endpoint, {traffic:?}, {rounds} times: {:.2} ms min, \
             {:.2} ms median, {:.2} ms max",
            ms(0),
            ms(notified.len() / 2),
            ms(notified.len() - 1)
        );
    }
    assert_eq!(dir.files(), 0);
    let left = Leftovers::now(|name| sockets.iter().any(|socket| name.ends_with(socket)));
    assert_eq!(left, Leftovers::default());
}
