//! One end of a pair of processes that send each other validated messages over UDP. `tests/hosts` runs both
//! ends, with a network of its own in between.
//!
//! ```text
//! pair NODE OWN PEER MESSAGES [key=value...]
//! ```
//!
//! `NODE` is 0 or 1, `OWN` and `PEER` are addresses with the first of four ports, one a flow. Both ends send
//! `MESSAGES`. Keys: `secret` (a text of 16 bytes or more: datagrams are sealed), `mtu` (bytes of UDP
//! payload), `timeout` (seconds). The last line on stdout has what was checked; exit code 0: all is well.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use usnic::auth::{Auth, AuthConfig, OVERHEAD, Opened, Secret};
use usnic::{ChannelConfig, ChannelId, CloseReason, Config, EpId, HEAD, Head, Module, Posted, Sink, Source};

/// Flows of the data channel; the priority channel has a port of its own before them.
const FLOWS: usize = 3;
/// Time without a datagram after which an end that is done leaves.
const LINGER: Duration = Duration::from_millis(1_500);
/// Id of the word that everything has arrived.
const DONE: u64 = u64::MAX;

fn byte(id: u64, at: usize) -> u8 {
    (id.wrapping_mul(131) as usize).wrapping_add(at.wrapping_mul(7)) as u8
}

fn len(id: u64) -> usize {
    match id % 20 {
        0..=13 => (id * 37 % 700) as usize,
        14..=18 => (id * 137 % 4_000) as usize,
        _ => 1 + (id * 1_379 % 30_000) as usize,
    }
}

fn head(id: u64) -> Head {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&id.to_le_bytes());
    head
}

fn id(head: &Head) -> u64 {
    head.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Messages that have arrived, and what was amiss with them.
struct Received {
    done: Vec<bool>,
    count: u64,
    doubled: u64,
    corrupt: u64,
    partly: HashMap<u64, Vec<u8>>,
    peer_is_done: bool,
    dead: Option<CloseReason>,
}

impl Received {
    fn check(&mut self, id: u64, bytes: &[u8]) {
        if id == DONE {
            self.peer_is_done = true;
            return;
        }
        let good = bytes.len() == len(id) && bytes.iter().enumerate().all(|(at, b)| *b == byte(id, at));
        match self.done.get_mut(id as usize) {
            Some(done) if good => {
                self.doubled += u64::from(*done);
                self.count += u64::from(!*done);
                *done = true;
            }
            _ => self.corrupt += 1,
        }
    }
}

impl Sink for Received {
    fn on_accept(&mut self, _: EpId, _: u64) {}
    fn on_dead(&mut self, _: EpId, _: u64, why: CloseReason) {
        self.dead = Some(why);
    }
    fn on_frag(&mut self, _: EpId, head: &Head, payload: &[u8]) {
        self.check(id(head), payload);
    }
    fn on_first_chunk(&mut self, _: EpId, head: &Head, total: u32) -> Option<u64> {
        self.partly.insert(id(head), vec![0; total as usize]);
        Some(id(head))
    }
    fn on_chunk(&mut self, target: u64, offset: u32, bytes: &[u8]) {
        if let Some(to) = self.partly.get_mut(&target) {
            to[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
    fn on_last_chunk(&mut self, _: EpId, target: u64, _: &Head, whole: bool) {
        match self.partly.remove(&target) {
            Some(bytes) if whole => self.check(target, &bytes),
            _ => {}
        }
    }
}

struct Pattern;

impl Source for Pattern {
    fn fetch(&mut self, id: u64, offset: u32, to: &mut [u8]) -> bool {
        to.iter_mut().enumerate().for_each(|(n, b)| *b = byte(id, offset as usize + n));
        true
    }
    fn on_copied(&mut self, _: u64) {}
}

/// Sockets, sealing, and the counters of both.
struct Paths {
    own: Vec<UdpSocket>,
    peer: Vec<SocketAddr>,
    auth: Option<Auth>,
    node: u64,
    out: Vec<u8>,
    datagrams: u64,
    refused: u64,
}

impl Paths {
    fn transmit(&mut self, now: u64, module: &mut Module, posted: Posted) {
        let path = match posted.channel {
            ChannelId::Priority => 0,
            ChannelId::Data => 1 + usize::from(posted.flow),
        };
        let bytes = module.bytes(&posted);
        let sealed = match &mut self.auth {
            None => Some(bytes),
            Some(auth) => match auth.seal(now, 1 - self.node, bytes, &mut self.out) {
                Ok(len) => Some(&self.out[..len]),
                // The module sends it again.
                Err(_) => None,
            },
        };
        if let Some(bytes) = sealed {
            self.put(path, bytes);
        }
        module.completed(&posted);
    }

    /// Sends a datagram. One that the system does not take is lost, and sent again in time.
    fn put(&self, path: usize, bytes: &[u8]) {
        let _ = self.own[path].send_to(bytes, self.peer[path]);
    }

    /// Answers a datagram.
    fn reply(&self, path: usize, to: SocketAddr, bytes: &[u8]) {
        let _ = self.own[path].send_to(bytes, to);
    }

    /// Sends the messages of a handshake that are due.
    fn shake(&mut self, now: u64) {
        while let Some((_, message)) = self.auth.as_mut().and_then(|auth| auth.poll_send(now)) {
            self.put(0, &message);
        }
    }

    /// Passes one datagram on. `first`: the first one of a poll.
    fn take(
        &mut self,
        now: u64,
        (path, from, first): (usize, SocketAddr, bool),
        datagram: &mut [u8],
        module: &mut Module,
        received: &mut Received,
    ) {
        self.datagrams += 1;
        let bytes = match &mut self.auth {
            None => datagram,
            Some(auth) => match auth.open(now, from, datagram) {
                Opened::Datagram { bytes, .. } => bytes,
                Opened::Answer(answer) => return self.reply(path, from, &answer),
                Opened::Notice(notice) => return self.reply(path, from, &notice),
                Opened::Up(_) => return,
                Opened::Dropped => {
                    self.refused += 1;
                    return;
                }
            },
        };
        if !(first && module.recv_fast(now, bytes, received))
            && let Some(reset) = module.on_datagram(now, bytes, received)
        {
            let mut out = [0; 256];
            match &mut self.auth {
                None => self.reply(path, from, &reset),
                Some(auth) => {
                    if let Ok(len) = auth.seal(now, 1 - self.node, &reset, &mut out) {
                        self.reply(path, from, &out[..len]);
                    }
                }
            }
        }
    }
}

/// Command line.
struct Args {
    node: u64,
    own: SocketAddr,
    peer: SocketAddr,
    messages: u64,
    secret: Option<Secret>,
    mtu: u32,
    timeout: Duration,
}

fn parse<T: std::str::FromStr<Err: Display>>(what: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|why| format!("{what} {text:?}: {why}"))
}

fn args() -> Result<Args, String> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let [node, own, peer, messages, keys @ ..] = &all[..] else {
        return Err("pair NODE OWN PEER MESSAGES [secret=TEXT] [mtu=BYTES] [timeout=SECONDS]".into());
    };
    let mut args = Args {
        node: parse("node", node)?,
        own: parse("address", own)?,
        peer: parse("address", peer)?,
        messages: parse("messages", messages)?,
        secret: None,
        mtu: 1_472,
        timeout: Duration::from_secs(120),
    };
    for key in keys {
        match key.split_once('=') {
            Some(("secret", text)) => args.secret = Some(Secret::new(text.as_bytes())?),
            Some(("mtu", text)) => args.mtu = parse("mtu", text)?,
            Some(("timeout", text)) => args.timeout = Duration::from_secs(parse("timeout", text)?),
            _ => return Err(format!("no key {key:?}")),
        }
    }
    if args.node > 1 || args.messages == 0 || !(1_000..=65_000).contains(&args.mtu) {
        return Err("the node is 0 or 1, there is a message, and the MTU is 1000 to 65000".into());
    }
    Ok(args)
}

/// A seed of the system, and the time of the start.
fn seed() -> Result<[u8; 32], String> {
    use std::io::Read;
    let mut seed = [0; 32];
    let mut file = std::fs::File::open("/dev/urandom").map_err(|e| format!("/dev/urandom: {e}"))?;
    file.read_exact(&mut seed).map_err(|e| format!("/dev/urandom: {e}"))?;
    Ok(seed)
}

fn paths(args: &Args) -> Result<Paths, String> {
    let nth = |addr: SocketAddr, n: usize| SocketAddr::new(addr.ip(), addr.port() + n as u16);
    let bind = |n: usize| {
        let addr = nth(args.own, n);
        let socket = UdpSocket::bind(addr).map_err(|e| format!("{addr}: {e}"))?;
        socket.set_nonblocking(true).map_err(|e| format!("{addr}: {e}"))?;
        Ok::<_, String>(socket)
    };
    let seed = seed()?;
    let auth = args.secret.as_ref().map(|it| Auth::new(AuthConfig::default(), it, args.node, &seed));
    Ok(Paths {
        own: (0..=FLOWS).map(bind).collect::<Result<_, _>>()?,
        peer: (0..=FLOWS).map(|n| nth(args.peer, n)).collect(),
        auth,
        node: args.node,
        out: vec![0; 1 << 16],
        datagrams: 0,
        refused: 0,
    })
}

fn config(args: &Args, seed: &[u8; 32]) -> Config {
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let overhead = if args.secret.is_some() { OVERHEAD as u32 } else { 0 };
    let defaults = Config::default();
    Config {
        node: args.node,
        epoch,
        flows: FLOWS as u8,
        salt: u32::from(seed[0]) | u32::from(seed[1]) << 8,
        data: ChannelConfig { mtu: args.mtu - overhead, ..defaults.data },
        // Both ends start within seconds of each other, on networks that lose.
        hellos: 12,
        ..defaults
    }
}

/// Queues what the module takes: a few messages at a time, so that memory stays bounded.
fn feed(now: u64, next: &mut u64, args: &Args, ep: EpId, module: &mut Module, paths: &mut Paths) {
    let end = args.messages.min(*next + 16);
    while *next < end && module.segments().0 < 600 && module.find(1 - args.node) == Some(ep) {
        let bytes: Vec<u8> = (0..len(*next)).map(|at| byte(*next, at)).collect();
        let head = head(*next);
        let sent = if bytes.len() > module.longest_small(ep) {
            module.send_large(now, ep, &head, bytes.len() as u32, *next).map(|()| None)
        } else {
            module.send(now, ep, &head, [&bytes, &[]])
        };
        match sent {
            Ok(Some(posted)) => paths.transmit(now, module, posted),
            Ok(None) => {}
            // The peer is dead, which ends the run.
            Err(_) => return,
        }
        *next += 1;
    }
}

fn run(args: &Args) -> Result<(Received, Module, Paths, Duration), String> {
    let mut paths = paths(args)?;
    let born = Instant::now();
    let now = || born.elapsed().as_nanos() as u64;
    let mut module = Module::new(config(args, &seed()?), now());
    let mut received = Received {
        done: vec![false; args.messages as usize],
        count: 0,
        doubled: 0,
        corrupt: 0,
        partly: HashMap::new(),
        peer_is_done: false,
        dead: None,
    };
    let ep = module.connect(now(), 1 - args.node).ok_or("no room for a peer")?;
    let (mut next, mut told, mut buf) = (0, None, vec![0; 1 << 16]);
    let mut heard = Instant::now();
    loop {
        let (mut idle, mut first) = (true, true);
        for path in 0..paths.own.len() {
            for _ in 0..64 {
                let Ok((n, from)) = paths.own[path].recv_from(&mut buf) else { break };
                (idle, heard) = (false, Instant::now());
                let is_first = path == 0 && std::mem::take(&mut first);
                paths.take(now(), (path, from, is_first), &mut buf[..n], &mut module, &mut received);
            }
        }
        module.on_time(now(), &mut received);
        paths.shake(now());
        feed(now(), &mut next, args, ep, &mut module, &mut paths);
        while let Some(posted) = module.poll_send(now(), &mut Pattern) {
            idle = false;
            paths.transmit(now(), &mut module, posted);
        }
        let complete = received.count == args.messages && next == args.messages && module.segments().0 == 0;
        if told.is_none() && complete {
            told = Some(born.elapsed());
            if let Ok(Some(posted)) = module.send(now(), ep, &head(DONE), [&[], &[]]) {
                paths.transmit(now(), &mut module, posted);
            }
        }
        let leaves = received.peer_is_done && module.segments().0 == 0 && heard.elapsed() > LINGER;
        if let Some(took) = told.filter(|_| leaves || received.dead.is_some()) {
            return Ok((received, module, paths, took));
        }
        if born.elapsed() > args.timeout || (received.dead.is_some() && told.is_none()) {
            return Ok((received, module, paths, born.elapsed()));
        }
        if idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn main() -> ExitCode {
    let outcome = args().and_then(|args| run(&args).map(|outcome| (args, outcome)));
    let (args, (received, module, paths, took)) = match outcome {
        Ok(outcome) => outcome,
        Err(why) => {
            eprintln!("pair: {why}");
            return ExitCode::from(2);
        }
    };
    let stats = module.stats();
    let lost = args.messages - received.count;
    let resent = stats.resent_by_timer + stats.resent_by_duplicate_ack + stats.resent_by_time;
    println!(
        "checked={} lost={lost} doubled={} corrupt={} seconds={:.3} sent={} resent={resent} again={} dropped={} \
         dead={:?}",
        received.count,
        received.doubled,
        received.corrupt,
        took.as_secs_f64(),
        stats.sent,
        stats.received_again,
        stats.corrupt + stats.malformed + paths.refused,
        received.dead,
    );
    if (lost, received.doubled, received.corrupt) == (0, 0, 0) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
