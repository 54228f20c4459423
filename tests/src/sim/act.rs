//! One random step: a worker sends, posts a receive, probes, cancels, flushes, makes progress; or time passes.
//! Called by the world. Everything it starts is written into the receiver's or its own ledger first.

use super::Failed;
use super::forms::{Form, Room, Way};
use super::knobs::Scope;
use super::ledger::{Step, Want};
use super::node::{Flushing, Receiving, Sending};
use super::world::World;
use crate::pattern::Pattern;
use std::time::Duration;
use ucp::select::{Kind, Sync};
use ucp::{Close, EpParams, Match, SendParams, Worker};

/// The tag: a user's part above, then who sent it and which message it is, so that each tag is sent once.
const USER_SHIFT: u32 = 48;
const SENDER_SHIFT: u32 = 32;
/// Masks of receives: any tag, the user's part, user and sender.
const MASKS: [u64; 3] = [0, u64::MAX << USER_SHIFT, u64::MAX << SENDER_SHIFT];
/// Shortest message or room that can be told by its first word, bytes.
pub(super) const WORD: usize = 8;
/// More than any run takes: time is not what closes.
const LONG: Duration = Duration::from_secs(1 << 30);
/// Receives a worker has open at a time.
const MAX_OPEN: usize = 24;

/// Kinds of a step that is none of the frequent ones; the last ones are in later scopes only.
const fn others(scope: Scope) -> u64 {
    match scope {
        Scope::First | Scope::Many => 11,
        Scope::Forms => 14,
        Scope::Lists | Scope::InPlace | Scope::Nics | Scope::Mixed | Scope::Pieces => 18,
    }
}

/// The sender and number in a tag.
pub fn of_tag(tag: u64) -> (usize, u64) {
    ((tag >> SENDER_SHIFT) as usize & 0xffff, tag & 0xffff_ffff)
}

impl World {
    /// One step.
    pub(super) fn act(&mut self) -> Result<(), Failed> {
        self.step += 1;
        let living = self.living();
        let n = *self.rng.pick(&living);
        type Act = fn(&mut World, usize) -> Result<(), Failed>;
        let acts: [(u64, Act); 8] = [
            (self.knobs.send, World::send),
            (self.knobs.recv, World::post),
            (self.knobs.progress, |world, n| world.progress(n).map(drop)),
            (self.knobs.rma, World::reach),
            (self.knobs.letters, World::post_letter),
            (self.knobs.brooks, World::paddle),
            (self.knobs.other, World::other),
            (self.knobs.loans, World::borrow_or_lend),
        ];
        let mut roll = self.rng.below(acts.iter().map(|(weight, _)| weight).sum());
        for (weight, act) in acts {
            if roll < weight {
                return act(self, n);
            }
            roll -= weight;
        }
        Ok(())
    }

    fn other(&mut self, n: usize) -> Result<(), Failed> {
        if self.knobs.death && self.step >= self.dies_at {
            self.dies_at = Step::MAX;
            self.kill_one();
            return Ok(());
        }
        if self.knobs.unplug && self.step >= self.unplugs_at {
            self.unplugs_at = Step::MAX;
            self.unplug_one();
            return Ok(());
        }
        match self.rng.below(others(self.limits.scope)) {
            0 => self.probe(n),
            1 | 2 => self.take(n),
            3 => self.receive_one_taken(n),
            4 => self.cancel_recv(n),
            5 => self.cancel_send(n),
            6 => self.flush(n),
            7 => self.close(n),
            8 => self.discard(n),
            9 => {
                self.cancel_reach(n);
                self.settle_shore(n)
            }
            11 => {
                self.cancel_letter(n);
                self.settle_letters(n)
            }
            12 => {
                self.cancel_brook(n);
                self.settle_brooks(n)
            }
            13 => self.fence(n),
            14 | 15 => self.throw_away(n),
            16 => self.cancel_flush(n),
            17 => {
                self.change_handler(n);
                Ok(())
            }
            _ => {
                let most = *self.rng.pick(&[20_000, 20_000, 200_000, 5_000_000]);
                let ns = self.rng.below(most);
                self.fabric.advance(ns);
                Ok(())
            }
        }
    }

    /// Makes the endpoint of `from` to `to`, unless it is there. False: there is no way to a dead worker.
    pub(super) fn connect(&mut self, from: usize, to: usize) -> Result<bool, Failed> {
        // Over other NICs they would meet anew, and what they are to each other would not be what it was.
        if self.knobs.nics > 1 && self.is_lost(from, to) {
            return Ok(self.nodes[from].eps[to].is_some());
        }
        self.reconnect(from, to)
    }

    /// The same, also if they have lost each other.
    pub(super) fn reconnect(&mut self, from: usize, to: usize) -> Result<bool, Failed> {
        if self.nodes[from].eps[to].is_some() {
            return Ok(true);
        }
        let ep = self.nodes[from].worker.connect(&self.nodes[to].address, EpParams::default());
        if ep.is_err() && self.is_lost(from, to) {
            return Ok(false);
        }
        let ep = ep.map_err(|e| self.fail(format!("worker {from} cannot connect to {to}: {e}")))?;
        self.know(from, ep.peer(), to)?;
        self.nodes[from].eps[to] = Some(ep);
        Ok(true)
    }

    fn send(&mut self, n: usize) -> Result<(), Failed> {
        let node = &self.nodes[n];
        if node.seq >= self.limits.messages || node.sends.len() >= self.knobs.window {
            return Ok(());
        }
        let to = self.any_worker();
        if !self.connect(n, to)? {
            // Whoever lives and has lost everybody comes to an end all the same.
            self.nodes[n].seq += u64::from(!self.is_dead(to));
            return Ok(());
        }
        let mut len = self.knobs.sizes.draw(&mut self.rng);
        let user = self.rng.below(self.knobs.user_tags);
        let tag = user << USER_SHIFT | (n as u64) << SENDER_SHIFT | self.nodes[n].seq;
        let tag = (!self.rng.percent(self.knobs.untagged)).then_some(tag);
        let sync = if self.rng.percent(self.knobs.sync) { Sync::Yes } else { Sync::No };
        let cq_data = self.rng.percent(self.knobs.cq_data).then(|| self.rng.bits());
        if tag.is_none() {
            len = len.max(WORD);
        }
        self.send_this(n, to, len, SendParams { tag, sync, cq_data, done: None })
    }

    /// Sends the next message of worker `n`.
    pub(super) fn send_this(
        &mut self,
        n: usize,
        to: usize,
        len: usize,
        params: SendParams,
    ) -> Result<(), Failed> {
        let SendParams { tag, sync, cq_data, .. } = params;
        let seq = self.nodes[n].seq;
        self.nodes[n].seq += 1;
        let pattern = Pattern::new(self.seed, n as u64, seq);
        self.words.insert(pattern.first(), (n, seq));
        self.cq_data.extend(cq_data.map(|data| ((n, seq), data)));
        let mut buf = vec![0; len];
        pattern.fill(&mut buf);
        let (way, cuts) = self.way(len);
        let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
        let row = ep.table(if tag.is_some() { Kind::Tagged } else { Kind::Untagged }, sync).pick(len);
        let perhaps = self.may_vanish(to, len, row, &params) || way == Way::Loose && self.is_in_place(to);
        let msg = self.nodes[to].ledger.sent(n, seq, tag, len, self.step);
        self.nodes[to].ledger.may_vanish(msg, perhaps);
        self.outcome.messages += 1;
        self.outcome.bytes += len as u64;
        self.outcome.let_go += u64::from(way == Way::Loose && sync == Sync::No);
        self.trace.tell(
            &[1, n as u64, to as u64, seq, len as u64],
            format_args!(
                "{}: {n} sends {seq} to {to}: tag {tag:x?}, {len} bytes, {sync:?}, {row:?}, {way:?}",
                self.step
            ),
        );
        let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
        let request = Form::message(ep, way, buf, &cuts, &params);
        self.nodes[n].sends.push(Sending {
            to,
            msg,
            sync: sync == Sync::Yes,
            cancelled: false,
            row,
            request,
        });
        self.settle_sends(n)
    }

    /// A form for a send of `len` bytes, and the lengths of its pieces.
    pub(super) fn way(&mut self, len: usize) -> (Way, Vec<usize>) {
        let ways = [Way::Whole, Way::Whole, Way::Pieces, Way::Told, Way::Id, Way::Now, Way::Loose];
        let way = match self.limits.scope {
            Scope::Pieces | Scope::Mixed | Scope::Nics | Scope::InPlace | Scope::Lists => {
                *self.rng.pick(&ways)
            }
            Scope::Forms => *self.rng.pick(&ways[..5]),
            Scope::Many | Scope::First => Way::Whole,
        };
        self.outcome.formed += u64::from(way != Way::Whole);
        let cuts = if way == Way::Whole { Vec::new() } else { self.cut(len) };
        (way, cuts)
    }

    /// Lengths of the pieces that a receive of `room` bytes goes into: one piece, or several, some of them empty.
    pub(super) fn rooms(&mut self, room: usize) -> Vec<usize> {
        if self.limits.scope < Scope::Pieces || self.course.percent(60) {
            return vec![room];
        }
        self.outcome.scattered += 1;
        let (mut cuts, mut left) = (Vec::new(), room);
        // Up to four are read into in place; more are not.
        for _ in 0..self.course.below(6) {
            let len = self.course.below(left as u64 + 1) as usize;
            (cuts, left) = ([cuts, vec![len]].concat(), left - len);
        }
        cuts.push(left);
        cuts
    }

    /// What a random receive or probe names.
    pub(super) fn want(&mut self, n: usize) -> (Want, Option<usize>) {
        let from =
            self.rng.percent(self.knobs.from).then(|| self.rng.below(self.nodes.len() as u64) as usize);
        // A peer can be named once there is an endpoint to it.
        let from = from.filter(|from| self.nodes[n].eps[*from].is_some());
        if self.rng.percent(self.knobs.untagged) {
            return (Want::Untagged, from);
        }
        let user = self.rng.below(self.knobs.user_tags) << USER_SHIFT;
        let sender = self.rng.below(self.nodes.len() as u64);
        if self.rng.percent(self.knobs.exact) {
            let tags: Vec<u64> = self.nodes[n].ledger.waiting().filter_map(|m| m.tag).collect();
            // One that waits, or one that was sent before or will perhaps be sent.
            let tag = match tags.is_empty() || self.rng.percent(10) {
                true => user | sender << SENDER_SHIFT | self.rng.below(self.limits.messages),
                false => *self.rng.pick(&tags),
            };
            return (Want::Tagged { tag, mask: u64::MAX }, from);
        }
        // Bits outside the mask are set at random: they must not count.
        let mask = *self.rng.pick(&MASKS);
        let noise = self.rng.bits() & !mask;
        (Want::Tagged { tag: (user | sender << SENDER_SHIFT) & mask | noise, mask }, from)
    }

    pub(super) fn matching(&self, n: usize, want: Want, from: Option<usize>) -> Match {
        let what = match want {
            Want::Tagged { tag, mask } => Match::tagged(tag, mask),
            Want::Untagged => Match::untagged(),
        };
        match from.and_then(|from| self.nodes[n].eps[from].as_ref()) {
            Some(ep) => what.from(ep),
            None => what,
        }
    }

    pub(super) fn room(&mut self) -> usize {
        let longest = self.knobs.sizes.max().max(WORD);
        match self.rng.percent(self.knobs.short) {
            true => self.rng.range(WORD as u64, longest as u64) as usize,
            false => longest,
        }
    }

    fn post(&mut self, n: usize) -> Result<(), Failed> {
        if self.nodes[n].recvs.len() >= MAX_OPEN {
            return Ok(());
        }
        if self.is_in_place(n) {
            return self.post_in_place(n);
        }
        let (want, from) = self.want(n);
        if self.limits.scope >= Scope::Many && self.rng.percent(self.knobs.many) {
            return self.post_many(n, want, from);
        }
        let room = self.room();
        self.post_this(n, want, from, room)
    }

    /// Posts a receive.
    pub(super) fn post_this(
        &mut self,
        n: usize,
        want: Want,
        from: Option<usize>,
        room: usize,
    ) -> Result<(), Failed> {
        let what = self.matching(n, want, from);
        let cuts = if self.is_in_place(n) { vec![room] } else { self.rooms(room) };
        let node = &mut self.nodes[n];
        let rec = node.ledger.posted(want, from, room);
        self.trace.tell(
            &[2, n as u64, rec as u64],
            format_args!(
                "{}: {n} posts receive {rec}: {want:x?} from {from:?}, room {room} {cuts:?}",
                self.step
            ),
        );
        let request = Room::post(&node.worker, what, &cuts);
        node.recvs.push(Receiving { rec, cancelled: None, request });
        self.settle_recvs(n)
    }

    fn cancel_recv(&mut self, n: usize) -> Result<(), Failed> {
        if self.limits.scope >= Scope::Many && self.rng.percent(50) {
            return self.cancel_one_of_many(n);
        }
        let len = self.nodes[n].recvs.len() as u64;
        match len {
            0 => Ok(()),
            _ => {
                let at = self.rng.below(len) as usize;
                self.cancel_this(n, at)?;
                self.settle_recvs(n)
            }
        }
    }

    fn cancel_this(&mut self, n: usize, at: usize) -> Result<(), Failed> {
        let recv = &mut self.nodes[n].recvs[at];
        if recv.request.cancel() {
            recv.cancelled = Some(self.step);
        }
        let (rec, granted) = (recv.rec, recv.cancelled.is_some());
        self.trace.tell(
            &[5, n as u64, rec as u64, u64::from(granted)],
            format_args!("{}: {n} cancels receive {rec}: {granted}", self.step),
        );
        Ok(())
    }

    /// Cancels every open receive. At rest, each can be cancelled.
    pub(super) fn cancel_all(&mut self, n: usize) -> Result<(), Failed> {
        if self.is_in_place(n) {
            return Ok(());
        }
        for at in 0..self.nodes[n].recvs.len() {
            self.cancel_this(n, at)?;
            if self.nodes[n].recvs[at].cancelled.is_none() && !self.nodes[n].recvs[at].request.is_done() {
                let rec = self.nodes[n].recvs[at].rec;
                return Err(self.fail(format!("worker {n}: open receive {rec} cannot be cancelled at rest")));
            }
        }
        self.cancel_all_of_many(n)?;
        // The end of a cancelled operation is told by progress.
        self.progress(n).map(drop)
    }

    fn cancel_send(&mut self, n: usize) -> Result<(), Failed> {
        let len = self.nodes[n].sends.len() as u64;
        if len == 0 {
            return Ok(());
        }
        let at = self.rng.below(len) as usize;
        let node = &mut self.nodes[n];
        let send = &mut node.sends[at];
        send.cancelled |= send.request.cancel(&node.worker);
        let (to, msg, granted) = (send.to, send.msg, send.cancelled);
        self.trace.tell(
            &[6, n as u64, to as u64, msg as u64, u64::from(granted)],
            format_args!("{}: {n} cancels its send of message {msg} of {to}: {granted}", self.step),
        );
        self.settle_sends(n)
    }

    fn flush(&mut self, n: usize) -> Result<(), Failed> {
        let to = self.rng.below(self.nodes.len() as u64) as usize;
        let one = self.nodes[n].eps[to].is_some() && self.rng.percent(70);
        let limited = self.rng.percent(20);
        let limit = Duration::from_nanos(self.rng.below(100_000));
        let (lent, cells) = self.covered(n, one.then_some(to));
        let node = &mut self.nodes[n];
        let (of, request) = match &node.eps[to] {
            Some(ep) if one && limited => (Some(to), ep.flush_within(limit)),
            Some(ep) if one => (Some(to), ep.flush()),
            _ if limited => (None, node.worker.flush_within(limit)),
            _ => (None, Worker::flush(&node.worker)),
        };
        node.flushes.push(Flushing { of, limited, cancelled: false, lent, cells, request });
        self.trace.tell(&[7, n as u64, to as u64], format_args!("{}: {n} flushes ({of:?})", self.step));
        Ok(())
    }

    /// What is started behind it, to anybody, takes effect behind it.
    fn fence(&mut self, n: usize) -> Result<(), Failed> {
        Worker::fence(&self.nodes[n].worker);
        self.trace.tell(&[8, n as u64, u64::MAX], format_args!("{}: {n} fences", self.step));
        Ok(())
    }

    /// Closes an endpoint, or just drops it; the next operation makes another.
    fn close(&mut self, n: usize) -> Result<(), Failed> {
        let to = self.any_worker();
        let (closes, force) = (self.rng.percent(80), self.rng.percent(self.knobs.force));
        if closes && force && self.rng.percent(50) {
            return self.give_up(n, to);
        }
        let (lent, cells) = self.covered(n, Some(to));
        let node = &mut self.nodes[n];
        let Some(ep) = node.eps[to].take() else {
            node.shore.uncover(lent);
            return Ok(());
        };
        match closes {
            true => {
                let within = if force { Duration::from_nanos(self.rng.below(50_000)) } else { LONG };
                if force {
                    node.giving_up.insert(to);
                }
                let request = ep.close(Close::Flush(within));
                node.flushes.push(Flushing {
                    of: Some(to),
                    limited: force,
                    cancelled: false,
                    lent,
                    cells,
                    request,
                });
            }
            false => node.shore.uncover(lent),
        }
        self.outcome.closed += 1;
        self.trace.tell(
            &[15, n as u64, to as u64],
            format_args!("{}: {n} closes its endpoint to {to}: {closes}", self.step),
        );
        Ok(())
    }

    /// Posts a receive for each message that waits, whatever it is; answers how many.
    pub(super) fn post_for_all_waiting(&mut self, n: usize) -> Result<usize, Failed> {
        let due = self.nodes[n].ledger.to_receive();
        let kinds: Vec<bool> = due.map(|m| m.tag.is_some()).collect();
        let longest = self.knobs.sizes.max().max(WORD);
        for tagged in &kinds {
            let want = if *tagged { Want::Tagged { tag: 0, mask: 0 } } else { Want::Untagged };
            self.post_this(n, want, None, longest)?;
        }
        Ok(kinds.len())
    }

    /// Stops waiting for a flush or close; what it waited for goes on.
    fn cancel_flush(&mut self, n: usize) -> Result<(), Failed> {
        let Some(last) = self.nodes[n].flushes.last_mut() else { return Ok(()) };
        last.cancelled |= last.request.cancel();
        let granted = u64::from(last.cancelled);
        self.outcome.waits_ended += granted;
        self.trace.tell(
            &[18, n as u64, granted],
            format_args!("{}: {n} cancels its latest flush: {granted}", self.step),
        );
        Ok(())
    }
}
