//! The native end: executes steps with `ucp` over the `efa` transport, as the C end in `tests/interop` does
//! with libfabric. Run by `interop play`. Reports what it sees; never judges it.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use ucp::rdm::RecvStatus;
use ucp::rdm::io::PeerId;
use ucp::select::DeliveryComplete;
use ucp::{
    Address, Context, Ep, EpParams, Error, Match, Message, MultiRecv, RecvRequest, SendParams, SendRequest,
    Worker,
};

use super::control::{Line, bytes, raw_address, sum};
use super::native_rma::{AtomicRun, ExportedMemory, GUARD_BYTE, ListOp};

/// With less space left a multi-receive ends, as at libfabric's end.
const MULTI_RECV_MIN: usize = 8912;
/// Idle rounds before a round may sleep.
const BUSY_ROUNDS: u32 = 64;

/// A HANDSHAKE may arrive this much later than the message that caused it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

enum Op {
    Send(SendRequest<Vec<u8>>),
    Recv(RecvRequest<Box<[u8]>>),
    Scattered(RecvRequest<Vec<Box<[u8]>>>),
    Multi(MultiRecv<Box<[u8]>>),
    ListOp(ListOp),
    AtomicRun(AtomicRun),
}

struct NativeEnd {
    ops: Vec<(String, Op)>,
    claimed: HashMap<String, Message>,
    memory: ExportedMemory,
    eps: Vec<Ep>,
    worker: Worker,
}

/// Executes steps from standard input until it ends.
pub fn play() -> std::io::Result<()> {
    let mut text = Vec::new();
    let mut native = None;
    let (mut stalled, mut idle) = (false, 0);
    loop {
        let timeout = if idle > BUSY_ROUNDS { Duration::from_millis(1) } else { Duration::ZERO };
        if readable(timeout)? {
            let mut piece = [0; 4096];
            let n = rustix::io::read(std::io::stdin().as_fd(), &mut piece)?;
            if n == 0 {
                return Ok(());
            }
            text.extend_from_slice(&piece[..n]);
        }
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line = Line::new(String::from_utf8_lossy(&text[..end]));
            text.drain(..=end);
            match line.word(0) {
                Some("quit") => return Ok(()),
                Some("stall") => stalled = true,
                Some("go") => stalled = false,
                _ => {}
            }
            let answer = match step(&mut native, &line) {
                Ok(answer) => format!("ok {answer}"),
                Err(why) => format!("no {why}"),
            };
            say(answer.trim_end());
        }
        let busy = !stalled && native.as_mut().is_some_and(NativeEnd::progress);
        idle = if busy { 0 } else { idle + 1 };
    }
}

fn readable(timeout: Duration) -> std::io::Result<bool> {
    let stdin = std::io::stdin();
    let stdin = stdin.as_fd();
    let mut all = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
    Ok(poll(&mut all, Some(&timeout))? > 0)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // If this fails the driver is gone, and the next read ends the loop.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn step(native: &mut Option<NativeEnd>, line: &Line) -> Result<String, String> {
    let name = line.word(0).unwrap_or("");
    match (name, &mut *native) {
        ("version", _) => Ok(format!("ucp {}", env!("CARGO_PKG_VERSION"))),
        ("stall" | "go", _) => Ok(String::new()),
        ("open", None) => {
            let end = NativeEnd::open()?;
            let raw = end.worker.address().efa_raw().ok_or("no efa transport")?;
            *native = Some(end);
            Ok(raw.iter().map(|b| format!("{b:02x}")).collect())
        }
        ("open", Some(_)) => Err("open already".into()),
        ("close", _) => {
            *native = None;
            Ok(String::new())
        }
        (_, None) => Err("open comes first".into()),
        ("features", Some(end)) => end.features(line),
        ("passed", Some(end)) => Ok(end.worker.stats().rare.forwarded.to_string()),
        ("mem", Some(end)) => end.memory.add(&end.worker, line),
        ("look", Some(end)) => end.memory.look(line),
        ("forget", Some(end)) => end.memory.forget(line).map(|()| String::new()),
        (_, Some(end)) => end.step(name, line).map(|()| String::new()),
    }
}

fn id(line: &Line) -> Result<String, String> {
    Ok(line.word(1).ok_or("no id")?.into())
}

fn length(line: &Line) -> Result<usize, String> {
    line.number_at(2).map(|len| len as usize).ok_or_else(|| "no length".into())
}

fn matches(line: &Line) -> Match {
    match line.number("tag") {
        Some(tag) => Match::tagged(tag, !line.number("ignore").unwrap_or(0)),
        None => Match::untagged(),
    }
}

/// Memory for `len` bytes in `count` pieces of increasing odd lengths.
fn pieces(len: usize, count: usize) -> Vec<Box<[u8]>> {
    let mut left = len;
    let piece = |nth: usize| {
        let its = if nth + 1 < count { ((2 * nth + 1) * len / (count * count)) | 1 } else { left };
        let its = its.min(left);
        left -= its;
        vec![GUARD_BYTE; its].into_boxed_slice()
    };
    (0..count).map(piece).collect()
}

impl NativeEnd {
    fn open() -> Result<NativeEnd, String> {
        let worker = Context::new().and_then(|context| context.worker()).map_err(|e| e.to_string())?;
        Ok(NativeEnd {
            ops: Vec::new(),
            claimed: HashMap::new(),
            memory: ExportedMemory::default(),
            eps: Vec::new(),
            worker,
        })
    }

    fn step(&mut self, name: &str, line: &Line) -> Result<(), String> {
        match name {
            "peer" => {
                let raw = line.word(1).and_then(raw_address).ok_or("an address has 64 digits")?;
                let address = Address::unpack(&raw).map_err(|e| e.to_string())?;
                let ep = self.worker.connect(&address, EpParams::default()).map_err(|e| e.to_string())?;
                self.eps.push(ep);
            }
            "recv" => {
                let mut what = matches(line);
                if let Some(from) = line.number("from") {
                    what = what.from(self.ep(from)?);
                }
                let len = length(line)?;
                let room = vec![GUARD_BYTE; len].into_boxed_slice();
                let op = match line.number("parts") {
                    _ if line.has("multi") => Op::Multi(
                        self.worker.recv_multi(what, room, MULTI_RECV_MIN).map_err(|(e, _)| e.to_string())?,
                    ),
                    Some(parts) => Op::Scattered(self.worker.recv_iov(what, pieces(len, parts as usize))),
                    None => Op::Recv(self.worker.recv(what, room)),
                };
                self.ops.push((id(line)?, op));
            }
            "claim" => {
                let message = self.claimed.remove(&id(line)?).ok_or("nothing of that name was claimed")?;
                let request = message.recv(vec![GUARD_BYTE; length(line)?].into_boxed_slice());
                self.ops.push((id(line)?, Op::Recv(request)));
            }
            "peek" => self.peek(line)?,
            "send" => {
                let params = SendParams {
                    tag: line.number("tag"),
                    sync: if line.has("dc") { DeliveryComplete::Yes } else { DeliveryComplete::No },
                    cq_data: line.number("data"),
                    ..SendParams::default()
                };
                let message = bytes(length(line)?, line.number("seed").unwrap_or(0));
                let request = self.to(line)?.send(message, &params);
                self.ops.push((id(line)?, Op::Send(request)));
            }
            "write" | "read" => {
                let list_op = ListOp::start(self.to(line)?, name, line)?;
                self.ops.push((id(line)?, Op::ListOp(list_op)));
            }
            "atomic" | "fetch" | "compare" => {
                let atomic = AtomicRun::start(self.to(line)?, name, line)?;
                self.ops.push((id(line)?, Op::AtomicRun(atomic)));
            }
            "cancel" => {
                let id = id(line)?;
                match self.ops.iter_mut().find(|(of, _)| *of == id) {
                    Some((_, Op::Recv(request))) => drop(request.cancel()),
                    Some((_, Op::Scattered(request))) => drop(request.cancel()),
                    Some((_, Op::Multi(multi))) => drop(multi.cancel()),
                    _ => {}
                }
            }
            _ => return Err("unknown step".into()),
        }
        Ok(())
    }

    fn features(&self, line: &Line) -> Result<String, String> {
        let (ep, until) = (self.to(line)?, Instant::now() + HANDSHAKE_TIMEOUT);
        while ep.peer_view().is_some_and(|view| view.features.is_none()) && Instant::now() < until {
            self.worker.progress();
        }
        let view = ep.peer_view().ok_or("no such peer")?;
        Ok(format!("{:#x}", view.features.ok_or("no HANDSHAKE yet")?.bits()))
    }

    fn ep(&self, nth: u64) -> Result<&Ep, String> {
        self.eps.get(nth as usize).ok_or_else(|| "no such peer".into())
    }

    fn to(&self, line: &Line) -> Result<&Ep, String> {
        self.ep(line.number("to").unwrap_or(0))
    }

    fn peek(&mut self, line: &Line) -> Result<(), String> {
        let (id, what) = (id(line)?, matches(line));
        let (found, message) = if line.has("claim") || line.has("discard") {
            let message = self.worker.mprobe(what);
            (message.as_ref().map(Message::envelope), message)
        } else {
            (self.worker.probe(what), None)
        };
        match found {
            Some(found) => {
                let from = self.source(found.from);
                say(&format!("done {id} peek len={} tag={:#x} from={from}", found.len, found.tag));
            }
            None => say(&format!("fail {id} peek error=nothing")),
        }
        if !line.has("discard") {
            self.claimed.extend(message.map(|message| (id, message)));
        }
        Ok(())
    }

    fn source(&self, peer: PeerId) -> String {
        let known = self.eps.iter().position(|ep| ep.peer() == peer);
        known.map_or_else(|| "unknown".into(), |nth| nth.to_string())
    }

    /// Progresses the worker and prints completions; answers whether anything happened.
    fn progress(&mut self) -> bool {
        let busy = self.worker.progress() > 0;
        for (id, op) in std::mem::take(&mut self.ops) {
            match op {
                Op::Send(request) => match request.test() {
                    Ok((Ok(()), _)) => say(&format!("done {id} send")),
                    Ok((Err(e), _)) => say(&failure(&id, "send", e)),
                    Err(request) => self.ops.push((id, Op::Send(request))),
                },
                Op::ListOp(list_op) => match list_op.ended(&id, &self.worker) {
                    Some(line) => say(&line),
                    None => self.ops.push((id, Op::ListOp(list_op))),
                },
                Op::AtomicRun(atomic) => match atomic.ended(&id, &self.worker) {
                    Some(line) => say(&line),
                    None => self.ops.push((id, Op::AtomicRun(atomic))),
                },
                Op::Multi(mut multi) => {
                    while let Some(message) = multi.try_next() {
                        match message.status() {
                            Ok(status) => say(&self.received(&id, &status, multi.bytes(&message))),
                            Err(e) => say(&failure(&id, "recv", e)),
                        }
                    }
                    match multi.is_done() {
                        true => say(&format!("done {id} recv retired")),
                        false => self.ops.push((id, Op::Multi(multi))),
                    }
                }
                Op::Recv(request) => match request.test() {
                    Ok((result, buf)) => say(&self.recv_ended(&id, result, &buf)),
                    Err(request) => self.ops.push((id, Op::Recv(request))),
                },
                Op::Scattered(request) => match request.test() {
                    Ok((result, bufs)) => say(&self.recv_ended(&id, result, &bufs.concat())),
                    Err(request) => self.ops.push((id, Op::Scattered(request))),
                },
            }
        }
        while let Some(write) = self.worker.take_remote_write() {
            let (len, from) = (write.len, self.source(write.from));
            say(&format!("done - remote len={len} data={:#x} from={from}", write.cq_data));
        }
        while let Some(event) = self.worker.take_trace_event() {
            if matches!(event, ucp::rdm::trace::TraceEvent::Dropped { .. }) {
                say(&format!("trouble {event:?}"));
            }
        }
        busy
    }

    fn recv_ended(&self, id: &str, result: Result<RecvStatus, Error>, buf: &[u8]) -> String {
        match result {
            Ok(status) => self.received(id, &status, buf),
            Err(e) => format!("{} sum={:016x}", failure(id, "recv", e), sum(buf)),
        }
    }

    fn received(&self, id: &str, status: &RecvStatus, buf: &[u8]) -> String {
        let (message, behind) = buf.split_at(status.len.min(buf.len()));
        let guard = if behind.iter().all(|b| *b == GUARD_BYTE) { "ok" } else { "broken" };
        let data = status.cq_data.map_or_else(String::new, |data| format!(" data={data:#x}"));
        let from = self.source(status.from);
        let (len, tag, sum) = (status.len, status.tag, sum(message));
        format!("done {id} recv len={len} tag={tag:#x}{data} from={from} sum={sum:016x} guard={guard}")
    }
}

fn failure(id: &str, verb: &str, error: Error) -> String {
    let name = match error {
        Error::Truncated { .. } => "truncated",
        Error::Cancelled => "cancelled",
        _ => "other",
    };
    format!("fail {id} {verb} error={name} why=\"{error}\"")
}
