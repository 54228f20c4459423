//! Streams in a job: one from each worker to each other. Bytes come in the order in which they were sent, each once,
//! whatever the borders of sends and receives. Called by `act` and `settle`; looked at by the world at the end.

use super::Failed;
use super::forms::{Form, Room};
use super::knobs::Scope;
use super::node::Node;
use super::world::World;
use crate::pattern::Pattern;
use std::collections::BTreeMap;
use ucp::rdm::WireId;
use ucp::rdm::io::PeerId;
use ucp::{Error, Until};

/// Bytes of one stream in one run.
const LEN: usize = 150_000;
/// Sends of one stream under way.
const MAX_OPEN: usize = 6;

/// A send that has not ended.
struct Pouring {
    len: usize,
    cancelled: bool,
    form: Form,
}

/// The stream between two workers.
#[derive(Default)]
pub struct Brook {
    /// Bytes sent so far, and received.
    sent: usize,
    got: usize,
    sending: Vec<Pouring>,
    receiving: Option<Room>,
    /// As many bytes the receive waits for, if it waits for all of them.
    awaited: usize,
    /// The receive was cancelled.
    hushed: bool,
    /// A receive ended with the death of the sender: nothing more comes.
    over: bool,
    /// The sender's name for its receiver, by which it has sent last: whoever has been met anew by another NIC has another, and
    /// what is sent to it another stream.
    way: Option<PeerId>,
    /// Where those begin in all that was sent.
    starts: Vec<usize>,
    /// How far the receiver has read each, by its own names.
    read: BTreeMap<PeerId, usize>,
    /// The sender has come by another NIC than the first.
    around: bool,
}

impl Brook {
    /// There is, or was, more than one.
    fn is_torn(&self) -> bool {
        self.around || self.starts.len() > 1
    }

    /// Where bytes that came by `from` lie in all that was sent. `torn`: they may be of any of several streams.
    fn place(&self, from: PeerId, bytes: &[u8], all: &[u8], torn: bool) -> Option<usize> {
        let is_at = |at: &usize| all.get(*at..self.sent).is_some_and(|rest| rest.starts_with(bytes));
        if !torn {
            return Some(self.got).filter(is_at);
        }
        match self.read.get(&from) {
            Some(at) => Some(*at).filter(is_at),
            None => std::iter::once(self.got).chain(self.starts.iter().copied()).find(is_at),
        }
    }
}

/// All streams, by (from, to).
pub type Brooks = BTreeMap<(usize, usize), Brook>;

impl World {
    fn bytes_of(&self, (from, to): (usize, usize)) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        Pattern::new(self.seed, 0xb400, (from << 8 | to) as u64).fill(&mut bytes);
        bytes
    }

    /// Worker `n` sends to, or receives from, some stream.
    pub(super) fn paddle(&mut self, n: usize) -> Result<(), Failed> {
        let other = self.any_worker();
        match self.rng.percent(50) {
            true => self.pour(n, other),
            false if self.limits.scope >= Scope::Lists && self.rng.percent(40) => self.scoop(other, n),
            false => self.draw(other, n),
        }?;
        self.settle_brooks(n)
    }

    fn pour(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let len = self.knobs.sizes.draw(&mut self.rng).min(LEN / 4);
        let brook = self.brooks.entry((n, to)).or_default();
        let at = brook.sent;
        if brook.sending.len() >= MAX_OPEN || at + len > LEN || !self.connect(n, to)? {
            return Ok(());
        }
        let bytes = self.bytes_of((n, to))[at..at + len].to_vec();
        let refuses = self.nodes[to].withholds_classes();
        let (way, cuts) = self.way(len);
        let around = !self.is_by_first(n, to);
        let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
        let peer = ep.peer();
        let form = Form::stream(ep, way, bytes, &cuts);
        self.trace.tell(
            &[40, n as u64, to as u64, len as u64],
            format_args!("{}: {n} streams {len} bytes at {at} to {to}", self.step),
        );
        if let Some(brook) = self.brooks.get_mut(&(n, to)) {
            brook.sending.push(Pouring { len, cancelled: false, form });
            if brook.way.replace(peer) != Some(peer) {
                brook.starts.push(at);
                brook.around |= around;
            }
            // What the peer refuses never was in the stream.
            brook.sent += if refuses { 0 } else { len };
        }
        self.outcome.streamed += len as u64;
        Ok(())
    }

    /// Posts a receive from the stream from `from` to `n`: one that ends with what there is, or one that waits for as
    /// much as will surely come.
    fn draw(&mut self, from: usize, n: usize) -> Result<(), Failed> {
        let room = self.rng.range(1, 5000) as usize;
        let full = self.rng.percent(40);
        let brook = self.brooks.entry((from, n)).or_default();
        let left = brook.sent - brook.got;
        if brook.receiving.is_some() || (full && left == 0) || !self.connect(n, from)? {
            return Ok(());
        }
        let room = if full { room.min(left) } else { room };
        let cuts = self.rooms(room);
        let Some(ep) = &self.nodes[n].eps[from] else { return Err(self.fail("just connected")) };
        let request = Room::stream(ep, if full { Until::Full } else { Until::Some }, &cuts);
        self.trace.tell(
            &[41, n as u64, from as u64, room as u64, u64::from(full)],
            format_args!("{}: {n} draws {room} bytes from {from}, full {full}", self.step),
        );
        if let Some(brook) = self.brooks.get_mut(&(from, n)) {
            brook.receiving = Some(request);
            brook.awaited = if full { room } else { 0 };
            brook.hushed = false;
        }
        Ok(())
    }

    /// Takes what has come of the stream from `from` to `n`, in memory of the library's.
    fn scoop(&mut self, from: usize, n: usize) -> Result<(), Failed> {
        self.settle_brooks(n)?;
        if !self.connect(n, from)? || self.brooks.entry((from, n)).or_default().receiving.is_some() {
            return Ok(());
        }
        let Some(ep) = &self.nodes[n].eps[from] else { return Err(self.fail("just connected")) };
        let (taken, peer) = (ep.stream_recv_data(), ep.peer());
        let (all, lost) = (self.bytes_of((from, n)), self.is_lost(n, from));
        let torn = self.is_torn(from, n);
        let Some(brook) = self.brooks.get_mut(&(from, n)) else { return Ok(()) };
        let mut at = brook.got;
        let len = match taken {
            Ok(None) => return Ok(()),
            Ok(Some(data))
                if let Some(place) = brook.place(peer, &data, &all, torn)
                    && !data.is_empty() =>
            {
                at = place;
                data.len()
            }
            Err(_) if lost => {
                brook.over = true;
                return Ok(());
            }
            wrong => return Err(self.fail(format!("worker {n}: at {at} of {from}'s stream: {wrong:?}"))),
        };
        brook.got = at + len;
        brook.read.insert(peer, at + len);
        self.outcome.scooped += len as u64;
        self.trace.tell(
            &[44, n as u64, from as u64, len as u64],
            format_args!("{}: {n} takes {len} bytes at {at} of the stream from {from}", self.step),
        );
        Ok(())
    }

    /// Whether `n` knows `to` by the first NICs of both, or has gone on from there.
    fn is_by_first(&self, n: usize, to: usize) -> bool {
        let first = Node::gids(to, 1).next().map(|gid| gid.0);
        let view = self.nodes[n].eps[to].as_ref().and_then(|ep| ep.peer_view());
        view.is_none_or(|view| Some(view.addr.gid) == first && view.wire == WireId(0))
    }

    /// Whether what is sent from `from` to `n` need not all be read, or not in one: they have lost each other, or one of them has
    /// lost a NIC and met the other anew.
    fn is_torn(&self, from: usize, n: usize) -> bool {
        let torn = || self.brooks.get(&(from, n)).is_some_and(Brook::is_torn);
        self.is_lost(from, n) || self.is_unplugged(from, n) && torn()
    }

    /// Looks at what has ended at worker `n`.
    pub(super) fn settle_brooks(&mut self, n: usize) -> Result<(), Failed> {
        for other in 0..self.nodes.len() {
            if let Some(brook) = self.brooks.get_mut(&(n, other)) {
                let worker = &self.nodes[n].worker;
                let ended: Vec<_> = brook.sending.extract_if(.., |send| send.form.is_done(worker)).collect();
                let refuses = self.nodes[other].withholds_classes();
                for Pouring { len, cancelled, form } in ended {
                    // Of no bytes nothing is sent that could be refused.
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
                .brooks
                .get_mut(&(other, n))
                .and_then(|brook| brook.receiving.take_if(|request| request.is_done()));
            if let Some(request) = done {
                self.drawn(other, n, request)?;
            }
        }
        Ok(())
    }

    fn drawn(&mut self, from: usize, n: usize, request: Room) -> Result<(), Failed> {
        let Some((end, buf)) = request.end() else { return Err(self.fail("a done receive is not done")) };
        let all = self.bytes_of((from, n));
        let (lost, torn) = (self.is_lost(n, from), self.is_torn(from, n));
        let Some(brook) = self.brooks.get_mut(&(from, n)) else { return Ok(()) };
        let (at, hushed) = (brook.got, std::mem::take(&mut brook.hushed));
        brook.awaited = 0;
        self.trace.tell(
            &[42, n as u64, from as u64, at as u64, u64::from(end.is_ok())],
            format_args!("{}: {n} drew from {from} at {at}: {end:?}", self.step),
        );
        match end {
            Ok(status) if !hushed && status.len > 0 && status.len <= buf.len() => {
                let place = brook.place(status.from, &buf[..status.len], &all, torn);
                let Some(place) = place else {
                    return Err(self.fail(format!("worker {n}: the stream from {from} is wrong behind {at}")));
                };
                brook.got = place + status.len;
                brook.read.insert(status.from, place + status.len);
                Ok(())
            }
            Err(Error::Cancelled) if hushed => Ok(()),
            Err(_) if lost => {
                brook.over = true;
                Ok(())
            }
            _ => {
                let sent = brook.sent;
                Err(self.fail(format!("worker {n}: at {at} of {sent} from {from}, a receive ended {end:?}")))
            }
        }
    }

    /// Receives what streams still hold. Answers whether there was anything.
    pub(super) fn drain_brooks(&mut self) -> Result<bool, Failed> {
        let mut any = false;
        let keys: Vec<(usize, usize)> = self.brooks.keys().copied().collect();
        for (from, n) in keys {
            if self.is_dead(n) || !self.reconnect(n, from)? {
                continue;
            }
            let lost = self.is_torn(from, n);
            let Some(brook) = self.brooks.get_mut(&(from, n)) else { continue };
            let left = brook.sent - brook.got;
            // Of who is lost as much as there is.
            if (left == 0 && !lost) || brook.over || brook.receiving.is_some() {
                continue;
            }
            let Some(ep) = &self.nodes[n].eps[from] else { return Err(self.fail("just connected")) };
            let until = if lost { Until::Some } else { Until::Full };
            brook.receiving = Some(Room::stream(ep, until, &[left.max(1)]));
            brook.hushed = false;
            any = true;
        }
        Ok(any)
    }

    /// Gives up receives for which nothing comes any more.
    pub(super) fn stop_brooks(&mut self) -> Result<(), Failed> {
        for ((from, n), brook) in &mut self.brooks {
            let Some(request) = &brook.receiving else { continue };
            if self.nodes[*n].dead {
                continue;
            }
            brook.hushed = request.cancel();
            if !brook.hushed {
                let what = format!("worker {n}: a receive from {from}'s stream cannot be cancelled");
                return Err(self.fail(what));
            }
        }
        Ok(())
    }

    /// Worker `n` gives up its latest send to some stream, and its receive from another.
    pub(super) fn cancel_brook(&mut self, n: usize) {
        let (to, from) = (self.any_worker(), self.any_worker());
        let mut granted = 0;
        if let Some(brook) = self.brooks.get_mut(&(n, to))
            && let Some(last) = brook.sending.last_mut()
            // Else the model would not know what is behind the gap, or a receive would wait for what never comes.
            && !last.cancelled
            && last.len + brook.awaited + brook.got <= brook.sent
            && last.form.cancel(&self.nodes[n].worker)
        {
            (last.cancelled, granted) = (true, 1);
            brook.sent -= last.len;
        }
        if let Some(brook) = self.brooks.get_mut(&(from, n))
            && let Some(request) = &brook.receiving
        {
            brook.hushed |= request.cancel();
            granted += u64::from(brook.hushed);
        }
        self.outcome.hushed += granted;
        self.trace.tell(
            &[43, n as u64, to as u64, from as u64, granted],
            format_args!(
                "{}: {n} cancels what it streams to {to} and draws from {from}: {granted}",
                self.step
            ),
        );
    }

    /// Everything that was sent was received.
    pub(super) fn look_at_brooks(&self) -> Result<(), Failed> {
        for ((from, n), brook) in &self.brooks {
            if self.is_dead(*from) || self.is_dead(*n) {
                continue;
            }
            let bytes = if self.is_torn(*from, *n) { 0 } else { brook.sent - brook.got };
            let left = (bytes, brook.sending.len(), brook.receiving.is_some());
            if left != (0, 0, false) {
                return Err(
                    self.fail(format!("stream from {from} to {n}: bytes, sends, receives left: {left:?}"))
                );
            }
        }
        Ok(())
    }
}
