//! Streams, one from each worker to each other. Bytes arrive once and in order, whatever the borders of sends
//! and receives. Called by `step`, `completions` and `job`.

use super::Failed;
use super::forms::{RecvOp, SendOp};
use super::job::Job;
use super::job_params::Scope;
use crate::pattern::Pattern;
use std::collections::BTreeMap;
use ucp::rdm::WireId;
use ucp::rdm::io::PeerId;
use ucp::{Error, StreamRecvMode};

const LEN: usize = 150_000;
const MAX_OPEN: usize = 6;

struct StreamSend {
    len: usize,
    cancelled: bool,
    form: SendOp,
}

#[derive(Default)]
pub struct Stream {
    sent: usize,
    got: usize,
    sending: Vec<StreamSend>,
    receiving: Option<RecvOp>,
    /// Bytes that a full receive waits for.
    awaited: usize,
    recv_cancelled: bool,
    /// The receiver has closed its endpoint: a receive may end as cancelled, or with what it holds.
    ep_closed: bool,
    /// A receive ended with the death of the sender.
    ended: bool,
    /// Receiver's id in the last send: a peer met anew by another NIC has another id, and stream.
    receiver: Option<PeerId>,
    /// Offsets at which these streams begin.
    stream_starts: Vec<usize>,
    /// Offsets at which they may begin since the pair was lost.
    restarts: Vec<usize>,
    /// How far the receiver has read each, by its own ids.
    read: BTreeMap<PeerId, usize>,
    switched_nic: bool,
}

impl Stream {
    fn is_split(&self) -> bool {
        self.switched_nic || self.stream_starts.len() > 1
    }

    /// The offset of bytes that came from `from`. `split`: they may be of any of several streams.
    fn offset_of(&self, from: PeerId, bytes: &[u8], all: &[u8], split: bool) -> Option<usize> {
        let is_at = |at: &usize| all.get(*at..self.sent).is_some_and(|rest| rest.starts_with(bytes));
        if !split {
            return Some(self.got).filter(is_at);
        }
        match self.read.get(&from) {
            // Between a lost pair a stream begins anew with each connection.
            Some(at) => std::iter::once(*at).chain(self.restarts.iter().copied()).find(is_at),
            None => std::iter::once(self.got).chain(self.stream_starts.iter().copied()).find(is_at),
        }
    }
}

pub type Streams = BTreeMap<(usize, usize), Stream>;

impl Job {
    fn bytes_of(&self, (from, to): (usize, usize)) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        Pattern::new(self.seed, 0xb400, (from << 8 | to) as u64).fill(&mut bytes);
        bytes
    }

    pub(super) fn step_stream(&mut self, n: usize) -> Result<(), Failed> {
        let other = self.any_worker();
        match self.rng.percent(50) {
            true => self.stream_send(n, other),
            false if self.limits.scope >= Scope::AtomicLists && self.rng.percent(40) => {
                self.stream_recv_data(other, n)
            }
            false => self.stream_recv(other, n),
        }?;
        self.reap_streams(n)
    }

    fn stream_send(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let len = self.params.sizes.draw(&mut self.rng).min(LEN / 4);
        let stream = self.streams.entry((n, to)).or_default();
        let at = stream.sent;
        if stream.sending.len() >= MAX_OPEN || at + len > LEN || !self.connect(n, to)? {
            return Ok(());
        }
        let bytes = self.bytes_of((n, to))[at..at + len].to_vec();
        let refuses = self.workers[to].withholds_classes();
        let (form, lens) = self.send_form(len);
        let (switched_nic, lost) =
            (!self.uses_first_nics(n, to), self.is_lost(n, to) || self.is_closing_early(n, to));
        let Some(ep) = &self.workers[n].eps[to] else { return Err(self.fail("just connected")) };
        let peer = ep.peer();
        let form = SendOp::stream(ep, form, bytes, &lens);
        self.trace.record(
            &[40, n as u64, to as u64, len as u64],
            format_args!("{}: {n} streams {len} bytes at {at} to {to}", self.step),
        );
        if let Some(stream) = self.streams.get_mut(&(n, to)) {
            stream.sending.push(StreamSend { len, cancelled: false, form });
            if stream.receiver.replace(peer) != Some(peer) {
                stream.stream_starts.push(at);
                stream.switched_nic |= switched_nic;
            }
            if lost {
                stream.stream_starts.push(at);
                stream.restarts.push(at);
            }
            // Refused bytes never were in the stream.
            stream.sent += if refuses { 0 } else { len };
        }
        self.outcome.streamed += len as u64;
        Ok(())
    }

    /// Posts a receive that ends with some bytes, or a full one of bytes that will surely come.
    fn stream_recv(&mut self, from: usize, n: usize) -> Result<(), Failed> {
        let room = self.rng.range(1, 5000) as usize;
        let full = self.rng.percent(40);
        let stream = self.streams.entry((from, n)).or_default();
        let left = stream.sent - stream.got;
        if stream.receiving.is_some() || (full && left == 0) || !self.connect(n, from)? {
            return Ok(());
        }
        let room = if full { room.min(left) } else { room };
        let lens = self.recv_lens(room);
        let Some(ep) = &self.workers[n].eps[from] else { return Err(self.fail("just connected")) };
        let request =
            RecvOp::stream(ep, if full { StreamRecvMode::WaitAll } else { StreamRecvMode::Some }, &lens);
        self.trace.record(
            &[41, n as u64, from as u64, room as u64, u64::from(full)],
            format_args!("{}: {n} draws {room} bytes from {from}, full {full}", self.step),
        );
        if let Some(stream) = self.streams.get_mut(&(from, n)) {
            stream.receiving = Some(request);
            stream.awaited = if full { room } else { 0 };
            stream.recv_cancelled = false;
            stream.ep_closed = false;
        }
        Ok(())
    }

    /// Whether a receive of `n` waits for bytes of the stream from `from`.
    pub(super) fn draws_from(&self, from: usize, n: usize) -> bool {
        self.streams.get(&(from, n)).is_some_and(|stream| stream.receiving.is_some())
    }

    /// Whether something that `n` streams to `to` is not received any more.
    pub(super) fn streams_in_vain(&self, n: usize, to: usize) -> bool {
        self.streams.get(&(n, to)).is_some_and(|stream| stream.ended && !stream.sending.is_empty())
    }

    /// Notes that worker `n` closes its endpoint to `from`.
    pub(super) fn close_stream(&mut self, from: usize, n: usize) {
        if let Some(stream) = self.streams.get_mut(&(from, n)) {
            stream.ep_closed = true;
        }
    }

    /// Takes what has come of the stream, in the library's memory.
    fn stream_recv_data(&mut self, from: usize, n: usize) -> Result<(), Failed> {
        self.reap_streams(n)?;
        if !self.connect(n, from)? || self.streams.entry((from, n)).or_default().receiving.is_some() {
            return Ok(());
        }
        let Some(ep) = &self.workers[n].eps[from] else { return Err(self.fail("just connected")) };
        let (taken, peer) = (ep.stream_recv_data(), ep.peer());
        let (all, lost) = (self.bytes_of((from, n)), self.is_lost(n, from));
        let split = self.is_split(from, n);
        let Some(stream) = self.streams.get_mut(&(from, n)) else { return Ok(()) };
        let mut at = stream.got;
        let len = match taken {
            Ok(None) => return Ok(()),
            Ok(Some(data))
                if let Some(offset) = stream.offset_of(peer, &data, &all, split)
                    && !data.is_empty() =>
            {
                at = offset;
                data.len()
            }
            Err(_) if lost => {
                stream.ended = true;
                return Ok(());
            }
            wrong => return Err(self.fail(format!("worker {n}: at {at} of {from}'s stream: {wrong:?}"))),
        };
        stream.got = at + len;
        stream.read.insert(peer, at + len);
        self.outcome.stream_data += len as u64;
        self.trace.record(
            &[44, n as u64, from as u64, len as u64],
            format_args!("{}: {n} takes {len} bytes at {at} of the stream from {from}", self.step),
        );
        Ok(())
    }

    /// Whether `n` knows `to` by the first NICs of both, or failed over from there.
    fn uses_first_nics(&self, n: usize, to: usize) -> bool {
        let first = self.workers[to].first_gid().map(|gid| gid.0);
        let view = self.workers[n].eps[to].as_ref().and_then(|ep| ep.peer_view());
        view.is_none_or(|view| Some(view.addr.gid) == first && view.wire == WireId(0))
    }

    /// Whether the stream may be incomplete: the pair is lost, or met anew by another NIC.
    fn is_split(&self, from: usize, n: usize) -> bool {
        let split = || self.streams.get(&(from, n)).is_some_and(Stream::is_split);
        self.is_lost(from, n) || self.has_lost_nic(from, n) && split()
    }

    pub(super) fn reap_streams(&mut self, n: usize) -> Result<(), Failed> {
        for other in 0..self.workers.len() {
            if let Some(stream) = self.streams.get_mut(&(n, other)) {
                let worker = &self.workers[n].worker;
                let ended: Vec<_> = stream.sending.extract_if(.., |send| send.form.is_done(worker)).collect();
                let refuses = self.workers[other].withholds_classes();
                for StreamSend { len, cancelled, form } in ended {
                    // An empty send is never refused.
                    let refuses = refuses && len > 0;
                    let Some(end) = form.end() else { return Err(self.fail("a done send is not done")) };
                    let right = match end {
                        Err(Error::Cancelled) if cancelled => true,
                        _ if cancelled => false,
                        Ok(()) => !refuses || self.is_lost(n, other),
                        Err(Error::Unsupported) => refuses,
                        Err(_) => self.is_lost(n, other),
                    };
                    if !right {
                        return Err(self.fail(format!("worker {n}: a stream to {other} failed")));
                    }
                }
            }
            let done = self
                .streams
                .get_mut(&(other, n))
                .and_then(|stream| stream.receiving.take_if(|request| request.is_done()));
            if let Some(request) = done {
                self.stream_received(other, n, request)?;
            }
        }
        Ok(())
    }

    fn stream_received(&mut self, from: usize, n: usize, request: RecvOp) -> Result<(), Failed> {
        let Some((end, buf)) = request.end() else { return Err(self.fail("a done receive is not done")) };
        let all = self.bytes_of((from, n));
        let (lost, split) = (self.is_lost(n, from), self.is_split(from, n));
        let Some(stream) = self.streams.get_mut(&(from, n)) else { return Ok(()) };
        let (at, recv_cancelled) = (stream.got, std::mem::take(&mut stream.recv_cancelled));
        stream.awaited = 0;
        self.trace.record(
            &[42, n as u64, from as u64, at as u64, u64::from(end.is_ok())],
            format_args!("{}: {n} drew from {from} at {at}: {end:?}", self.step),
        );
        match end {
            Ok(status) if !recv_cancelled && status.len > 0 && status.len <= buf.len() => {
                let offset = stream.offset_of(status.from, &buf[..status.len], &all, split);
                let Some(offset) = offset else {
                    return Err(self.fail(format!("worker {n}: the stream from {from} is wrong behind {at}")));
                };
                stream.got = offset + status.len;
                stream.read.insert(status.from, offset + status.len);
                Ok(())
            }
            Err(Error::Cancelled) if recv_cancelled || stream.ep_closed => Ok(()),
            Err(_) if lost => {
                stream.ended = true;
                Ok(())
            }
            _ => {
                let sent = stream.sent;
                Err(self.fail(format!("worker {n}: at {at} of {sent} from {from}, a receive ended {end:?}")))
            }
        }
    }

    /// Posts receives for what streams still hold; answers whether there was anything.
    pub(super) fn drain_streams(&mut self) -> Result<bool, Failed> {
        let mut any = false;
        let keys: Vec<(usize, usize)> = self.streams.keys().copied().collect();
        for (from, n) in keys {
            if self.is_dead(n) || !self.reconnect(n, from)? {
                continue;
            }
            let lost = self.is_split(from, n);
            let Some(stream) = self.streams.get_mut(&(from, n)) else { continue };
            let left = stream.sent - stream.got;
            // A lost peer's stream is read as far as it goes.
            if (left == 0 && !lost) || stream.ended || stream.receiving.is_some() {
                continue;
            }
            let Some(ep) = &self.workers[n].eps[from] else { return Err(self.fail("just connected")) };
            let until = if lost { StreamRecvMode::Some } else { StreamRecvMode::WaitAll };
            stream.receiving = Some(RecvOp::stream(ep, until, &[left.max(1)]));
            stream.recv_cancelled = false;
            stream.ep_closed = false;
            any = true;
        }
        Ok(any)
    }

    pub(super) fn cancel_stream_recvs(&mut self) -> Result<(), Failed> {
        let lost: Vec<(usize, usize)> = self.streams.keys().copied().collect();
        let lost: Vec<(usize, usize)> = lost.into_iter().filter(|&(from, n)| self.is_lost(n, from)).collect();
        for ((from, n), stream) in &mut self.streams {
            let Some(request) = &stream.receiving else { continue };
            if self.workers[*n].dead {
                continue;
            }
            stream.recv_cancelled = request.cancel();
            // Of a lost pair it may hold bytes of the last connection, and get no more.
            if !stream.recv_cancelled && !lost.contains(&(*from, *n)) {
                let what = format!("worker {n}: a receive from {from}'s stream cannot be cancelled");
                return Err(self.fail(what));
            }
        }
        Ok(())
    }

    pub(super) fn cancel_stream(&mut self, n: usize) {
        let (to, from) = (self.any_worker(), self.any_worker());
        let mut granted = 0;
        if let Some(stream) = self.streams.get_mut(&(n, to))
            && let Some(last) = stream.sending.last_mut()
            // Bytes behind a gap could not be checked, and a full receive would wait for ever.
            && !last.cancelled
            && last.len + stream.awaited + stream.got <= stream.sent
            && last.form.cancel(&self.workers[n].worker)
        {
            (last.cancelled, granted) = (true, 1);
            stream.sent -= last.len;
        }
        if let Some(stream) = self.streams.get_mut(&(from, n))
            && let Some(request) = &stream.receiving
        {
            stream.recv_cancelled |= request.cancel();
            granted += u64::from(stream.recv_cancelled);
        }
        self.outcome.am_or_stream_cancelled += granted;
        self.trace.record(
            &[43, n as u64, to as u64, from as u64, granted],
            format_args!(
                "{}: {n} cancels what it streams to {to} and draws from {from}: {granted}",
                self.step
            ),
        );
    }

    pub(super) fn check_streams(&self) -> Result<(), Failed> {
        for ((from, n), stream) in &self.streams {
            if self.is_dead(*from) || self.is_dead(*n) {
                continue;
            }
            let bytes = if self.is_split(*from, *n) { 0 } else { stream.sent - stream.got };
            let receives = stream.receiving.is_some() && !self.is_lost(*from, *n);
            let left = (bytes, stream.sending.len(), receives);
            if left != (0, 0, false) {
                return Err(
                    self.fail(format!("stream from {from} to {n}: bytes, sends, receives left: {left:?}"))
                );
            }
        }
        Ok(())
    }
}
