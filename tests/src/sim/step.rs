//! One random step: a worker sends, posts a receive, probes, cancels, flushes or makes progress; or time
//! passes. Called by `job`. Tells the model of each operation before it starts it.

use super::Failed;
use super::forms::{RecvOp, SendForm, SendOp};
use super::job::Job;
use super::job_params::Scope;
use super::model::{MatchSpec, StepNo};
use super::sim_worker::{Flushing, Receiving, Sending, locked};
use crate::pattern::Pattern;
use std::time::Duration;
use ucp::select::{DeliveryComplete, Kind};
use ucp::{CloseMode, EpParams, Match, SendParams, Worker};

/// A tag has a user's part, the sender and the message number, so that each tag is sent once.
const USER_SHIFT: u32 = 48;
const SENDER_SHIFT: u32 = 32;
/// Masks of receives: any tag, the user's part, user and sender.
const MASKS: [u64; 3] = [0, u64::MAX << USER_SHIFT, u64::MAX << SENDER_SHIFT];
/// Shortest message or buffer that its first word identifies, bytes.
pub(super) const WORD: usize = 8;
/// Longer than any run.
const LONG: Duration = Duration::from_secs(1 << 30);
const MAX_OPEN: usize = 24;

const fn other_kinds(scope: Scope) -> u64 {
    match scope {
        Scope::First | Scope::MultiRecv => 11,
        Scope::Forms => 14,
        _ => 18,
    }
}

pub fn of_tag(tag: u64) -> (usize, u64) {
    ((tag >> SENDER_SHIFT) as usize & 0xffff, tag & 0xffff_ffff)
}

impl Job {
    pub(super) fn random_step(&mut self) -> Result<(), Failed> {
        self.step += 1;
        let living = self.living();
        let n = *self.rng.pick(&living);
        type Action = fn(&mut Job, usize) -> Result<(), Failed>;
        let actions: [(u64, Action); 8] = [
            (self.params.send, Job::send),
            (self.params.recv, Job::post),
            (self.params.progress, |job, n| job.progress(n).map(drop)),
            (self.params.rma, Job::start_rma),
            (self.params.ams, Job::send_am),
            (self.params.streams, Job::step_stream),
            (self.params.other, Job::other_step),
            (self.params.revocable, Job::step_revocable),
        ];
        let mut draw = self.rng.below(actions.iter().map(|(weight, _)| weight).sum());
        for (weight, action) in actions {
            if draw < weight {
                let shared = self.workers[n].shared();
                let _inside = shared.as_ref().map(locked);
                return action(self, n);
            }
            draw -= weight;
        }
        Ok(())
    }

    fn other_step(&mut self, n: usize) -> Result<(), Failed> {
        if self.params.death && self.step >= self.dies_at {
            self.dies_at = StepNo::MAX;
            self.kill_worker();
            return Ok(());
        }
        if self.params.fail_nic && self.step >= self.nic_fails_at {
            self.nic_fails_at = StepNo::MAX;
            self.fail_nic();
            return Ok(());
        }
        match self.rng.below(other_kinds(self.limits.scope)) {
            0 => self.probe(n),
            1 | 2 => self.claim(n),
            3 => self.receive_claimed(n),
            4 => self.cancel_recv(n),
            5 => self.cancel_send(n),
            6 => self.flush(n),
            7 => self.close(n),
            8 => self.discard_claimed(n),
            9 => {
                self.cancel_rma(n);
                self.reap_rma(n)
            }
            11 => {
                self.cancel_am(n);
                self.reap_ams(n)
            }
            12 => {
                self.cancel_stream(n);
                self.reap_streams(n)
            }
            13 => self.fence(n),
            14 | 15 => self.discard_unclaimed(n),
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

    /// Makes the endpoint of `from` to `to` if missing. False: the peer is dead.
    pub(super) fn connect(&mut self, from: usize, to: usize) -> Result<bool, Failed> {
        // They would meet anew over other NICs.
        if self.params.nics > 1 && self.is_lost(from, to) {
            return Ok(self.workers[from].eps[to].is_some());
        }
        self.reconnect(from, to)
    }

    /// Makes the endpoint if missing, also of a lost pair.
    pub(super) fn reconnect(&mut self, from: usize, to: usize) -> Result<bool, Failed> {
        if self.workers[from].eps[to].is_some() {
            return Ok(true);
        }
        let ep = self.workers[from].worker.connect(&self.workers[to].address, EpParams::default());
        if ep.is_err() && self.is_lost(from, to) {
            return Ok(false);
        }
        let ep = ep.map_err(|e| self.fail(format!("worker {from} cannot connect to {to}: {e}")))?;
        self.learn_peer(from, ep.peer(), to)?;
        self.workers[from].eps[to] = Some(ep);
        Ok(true)
    }

    fn send(&mut self, n: usize) -> Result<(), Failed> {
        let sim_worker = &self.workers[n];
        if sim_worker.seq >= self.limits.messages || sim_worker.sends.len() >= self.params.window {
            return Ok(());
        }
        let to = self.any_worker();
        if !self.connect(n, to)? {
            // A living worker that has lost all others comes to an end too.
            self.workers[n].seq += u64::from(!self.is_dead(to));
            return Ok(());
        }
        let mut len = self.params.sizes.draw(&mut self.rng);
        let user = self.rng.below(self.params.user_tags);
        let tag = user << USER_SHIFT | (n as u64) << SENDER_SHIFT | self.workers[n].seq;
        let tag = (!self.rng.percent(self.params.untagged)).then_some(tag);
        let sync =
            if self.rng.percent(self.params.sync) { DeliveryComplete::Yes } else { DeliveryComplete::No };
        let cq_data = self.rng.percent(self.params.cq_data).then(|| self.rng.bits());
        if tag.is_none() {
            len = len.max(WORD);
        }
        self.send_this(n, to, len, SendParams { tag, sync, cq_data, ..SendParams::default() })
    }

    pub(super) fn send_this(
        &mut self,
        n: usize,
        to: usize,
        len: usize,
        params: SendParams,
    ) -> Result<(), Failed> {
        let SendParams { tag, sync, cq_data, .. } = params;
        let seq = self.workers[n].seq;
        self.workers[n].seq += 1;
        let pattern = Pattern::new(self.seed, n as u64, seq);
        self.words.insert(pattern.first(), (n, seq));
        self.cq_data.extend(cq_data.map(|data| ((n, seq), data)));
        let mut buf = vec![0; len];
        pattern.fill(&mut buf);
        let (form, lens) = self.send_form(len);
        let Some(ep) = &self.workers[n].eps[to] else { return Err(self.fail("just connected")) };
        let row =
            ep.protocols().table(if tag.is_some() { Kind::Tagged } else { Kind::Untagged }, sync).pick(len);
        let may_be_dropped = self.may_be_dropped(to, len, row, &params)
            || form == SendForm::Detached && self.is_zcopy_recv(to);
        let msg = self.workers[to].model.sent(n, seq, tag, len, self.step);
        self.workers[to].model.set_may_be_dropped(msg, may_be_dropped);
        self.outcome.messages += 1;
        self.outcome.bytes += len as u64;
        self.outcome.detached += u64::from(form == SendForm::Detached && sync == DeliveryComplete::No);
        self.trace.record(
            &[1, n as u64, to as u64, seq, len as u64],
            format_args!(
                "{}: {n} sends {seq} to {to}: tag {tag:x?}, {len} bytes, {sync:?}, {row:?}, {form:?}",
                self.step
            ),
        );
        let Some(ep) = &self.workers[n].eps[to] else { return Err(self.fail("just connected")) };
        let request = SendOp::message(ep, form, buf, &lens, &params);
        self.workers[n].sends.push(Sending {
            to,
            msg,
            sync: sync == DeliveryComplete::Yes,
            cancelled: false,
            row,
            request,
        });
        self.reap_sends(n)
    }

    pub(super) fn send_form(&mut self, len: usize) -> (SendForm, Vec<usize>) {
        let ways = [
            SendForm::Whole,
            SendForm::Whole,
            SendForm::Iov,
            SendForm::Callback,
            SendForm::Id,
            SendForm::Immediate,
            SendForm::Detached,
        ];
        let form = match self.limits.scope {
            Scope::MultiRecv | Scope::First => SendForm::Whole,
            Scope::Forms => *self.rng.pick(&ways[..5]),
            _ => *self.rng.pick(&ways),
        };
        self.outcome.other_forms += u64::from(form != SendForm::Whole);
        let lens = if form == SendForm::Whole { Vec::new() } else { self.cut(len) };
        (form, lens)
    }

    /// Draws the lengths of the pieces of a receive: one, or several, some of them perhaps 0.
    pub(super) fn recv_lens(&mut self, room: usize) -> Vec<usize> {
        if self.limits.scope < Scope::RecvIov || self.scope_rng.percent(60) {
            return vec![room];
        }
        self.outcome.scattered += 1;
        let (mut lens, mut left) = (Vec::new(), room);
        // More than four pieces are not read into in place.
        for _ in 0..self.scope_rng.below(6) {
            let len = self.scope_rng.below(left as u64 + 1) as usize;
            (lens, left) = ([lens, vec![len]].concat(), left - len);
        }
        lens.push(left);
        lens
    }

    pub(super) fn random_match(&mut self, n: usize) -> (MatchSpec, Option<usize>) {
        let from =
            self.rng.percent(self.params.from).then(|| self.rng.below(self.workers.len() as u64) as usize);
        // A peer can be named once there is an endpoint to it.
        let from = from.filter(|from| self.workers[n].eps[*from].is_some());
        if self.rng.percent(self.params.untagged) {
            return (MatchSpec::Untagged, from);
        }
        let user = self.rng.below(self.params.user_tags) << USER_SHIFT;
        let sender = self.rng.below(self.workers.len() as u64);
        if self.rng.percent(self.params.exact) {
            let tags: Vec<u64> = self.workers[n].model.waiting().filter_map(|m| m.tag).collect();
            // A waiting message, or one sent before or perhaps later.
            let tag = match tags.is_empty() || self.rng.percent(10) {
                true => user | sender << SENDER_SHIFT | self.rng.below(self.limits.messages),
                false => *self.rng.pick(&tags),
            };
            return (MatchSpec::Tagged { tag, mask: u64::MAX }, from);
        }
        // Bits outside the mask are random: they must not count.
        let mask = *self.rng.pick(&MASKS);
        let noise = self.rng.bits() & !mask;
        (MatchSpec::Tagged { tag: (user | sender << SENDER_SHIFT) & mask | noise, mask }, from)
    }

    pub(super) fn matching(&self, n: usize, want: MatchSpec, from: Option<usize>) -> Match {
        let what = match want {
            MatchSpec::Tagged { tag, mask } => Match::tagged(tag, mask),
            MatchSpec::Untagged => Match::untagged(),
        };
        match from.and_then(|from| self.workers[n].eps[from].as_ref()) {
            Some(ep) => what.from(ep),
            None => what,
        }
    }

    pub(super) fn recv_len(&mut self) -> usize {
        let longest = self.params.sizes.max().max(WORD);
        match self.rng.percent(self.params.short) {
            true => self.rng.range(WORD as u64, longest as u64) as usize,
            false => longest,
        }
    }

    fn post(&mut self, n: usize) -> Result<(), Failed> {
        if self.workers[n].recvs.len() >= MAX_OPEN {
            return Ok(());
        }
        if self.is_zcopy_recv(n) {
            return self.post_zcopy_recv(n);
        }
        let (want, from) = self.random_match(n);
        if self.limits.scope >= Scope::MultiRecv && self.rng.percent(self.params.multi_recv) {
            return self.post_multi_recv(n, want, from);
        }
        let room = self.recv_len();
        self.post_this(n, want, from, room)
    }

    pub(super) fn post_this(
        &mut self,
        n: usize,
        want: MatchSpec,
        from: Option<usize>,
        room: usize,
    ) -> Result<(), Failed> {
        let what = self.matching(n, want, from);
        let lens = if self.is_zcopy_recv(n) { vec![room] } else { self.recv_lens(room) };
        let sim_worker = &mut self.workers[n];
        let rec = sim_worker.model.posted(want, from, room);
        self.trace.record(
            &[2, n as u64, rec as u64],
            format_args!(
                "{}: {n} posts receive {rec}: {want:x?} from {from:?}, room {room} {lens:?}",
                self.step
            ),
        );
        let request = RecvOp::post(&sim_worker.worker, what, &lens);
        sim_worker.recvs.push(Receiving { rec, cancelled: None, request });
        self.reap_recvs(n)
    }

    fn cancel_recv(&mut self, n: usize) -> Result<(), Failed> {
        if self.limits.scope >= Scope::MultiRecv && self.rng.percent(50) {
            return self.cancel_one_multi_recv(n);
        }
        let len = self.workers[n].recvs.len() as u64;
        match len {
            0 => Ok(()),
            _ => {
                let at = self.rng.below(len) as usize;
                self.cancel_this(n, at)?;
                self.reap_recvs(n)
            }
        }
    }

    fn cancel_this(&mut self, n: usize, at: usize) -> Result<(), Failed> {
        let recv = &mut self.workers[n].recvs[at];
        if recv.request.cancel() {
            recv.cancelled = Some(self.step);
        }
        let (rec, granted) = (recv.rec, recv.cancelled.is_some());
        self.trace.record(
            &[5, n as u64, rec as u64, u64::from(granted)],
            format_args!("{}: {n} cancels receive {rec}: {granted}", self.step),
        );
        Ok(())
    }

    /// Cancels every open receive. In an idle job each can be cancelled.
    pub(super) fn cancel_all(&mut self, n: usize) -> Result<(), Failed> {
        if self.is_zcopy_recv(n) {
            return Ok(());
        }
        for at in 0..self.workers[n].recvs.len() {
            self.cancel_this(n, at)?;
            if self.workers[n].recvs[at].cancelled.is_none() && !self.workers[n].recvs[at].request.is_done() {
                let rec = self.workers[n].recvs[at].rec;
                return Err(self.fail(format!("worker {n}: open receive {rec} cannot be cancelled at rest")));
            }
        }
        self.cancel_all_multi_recvs(n)?;
        self.progress(n).map(drop)
    }

    fn cancel_send(&mut self, n: usize) -> Result<(), Failed> {
        let len = self.workers[n].sends.len() as u64;
        if len == 0 {
            return Ok(());
        }
        let at = self.rng.below(len) as usize;
        let sim_worker = &mut self.workers[n];
        let send = &mut sim_worker.sends[at];
        send.cancelled |= send.request.cancel(&sim_worker.worker);
        let (to, msg, granted) = (send.to, send.msg, send.cancelled);
        let may_have_begun = self.may_have_begun(n, at);
        if granted && may_have_begun {
            self.workers[to].model.set_cancelled(msg);
        }
        self.trace.record(
            &[6, n as u64, to as u64, msg as u64, u64::from(granted)],
            format_args!("{}: {n} cancels its send of message {msg} of {to}: {granted}", self.step),
        );
        self.reap_sends(n)
    }

    /// Whether packets of a send may have gone out before its end. One packet without a receipt is the end.
    pub(super) fn may_have_begun(&self, n: usize, at: usize) -> bool {
        let send = &self.workers[n].sends[at];
        let len = self.workers[send.to].model.msg(send.msg).len;
        send.sync || send.row.plain() != ucp::rdm::Protocol::Eager || 2 * len > self.params.mtu as usize
    }

    fn flush(&mut self, n: usize) -> Result<(), Failed> {
        let to = self.rng.below(self.workers.len() as u64) as usize;
        let one = self.workers[n].eps[to].is_some() && self.rng.percent(70);
        let limited = self.rng.percent(20);
        let limit = Duration::from_nanos(self.rng.below(100_000));
        let (implicit_gets, cells) = self.flush_covers(n, one.then_some(to));
        let sim_worker = &mut self.workers[n];
        let (of, request) = match &sim_worker.eps[to] {
            Some(ep) if one && limited => (Some(to), ep.flush_within(limit)),
            Some(ep) if one => (Some(to), ep.flush()),
            _ if limited => (None, sim_worker.worker.flush_within(limit)),
            _ => (None, Worker::flush(&sim_worker.worker)),
        };
        sim_worker.flushes.push(Flushing {
            of,
            limited,
            cancelled: false,
            implicit_gets,
            cells,
            closes: false,
            request: Some(request),
            end: None,
        });
        self.trace.record(&[7, n as u64, to as u64], format_args!("{}: {n} flushes ({of:?})", self.step));
        Ok(())
    }

    fn fence(&mut self, n: usize) -> Result<(), Failed> {
        Worker::fence(&self.workers[n].worker);
        self.trace.record(&[8, n as u64, u64::MAX], format_args!("{}: {n} fences", self.step));
        Ok(())
    }

    /// Closes an endpoint, or drops it; the next operation makes another.
    fn close(&mut self, n: usize) -> Result<(), Failed> {
        let to = self.any_worker();
        let (closes, force) = (self.rng.percent(80), self.rng.percent(self.params.force));
        if closes && force && self.rng.percent(50) {
            return self.close_by_force(n, to);
        }
        let (implicit_gets, cells) = self.flush_covers(n, Some(to));
        self.close_stream(to, n);
        let sim_worker = &mut self.workers[n];
        let Some(ep) = sim_worker.eps[to].take() else {
            sim_worker.rma.keep_implicit_gets(implicit_gets);
            return Ok(());
        };
        match closes {
            true => {
                let within = if force { Duration::from_nanos(self.rng.below(50_000)) } else { LONG };
                if force {
                    sim_worker.closing_early.insert(to);
                }
                let request = ep.close(CloseMode::Flush(within));
                sim_worker.flushes.push(Flushing {
                    of: Some(to),
                    limited: force,
                    cancelled: false,
                    implicit_gets,
                    cells,
                    closes: true,
                    request: Some(request),
                    end: None,
                });
            }
            false => sim_worker.rma.keep_implicit_gets(implicit_gets),
        }
        self.outcome.closed += 1;
        self.trace.record(
            &[15, n as u64, to as u64],
            format_args!("{}: {n} closes its endpoint to {to}: {closes}", self.step),
        );
        Ok(())
    }

    /// Posts a receive for each waiting message; answers how many.
    pub(super) fn post_for_all_waiting(&mut self, n: usize) -> Result<usize, Failed> {
        let due = self.workers[n].model.to_receive();
        let kinds: Vec<bool> = due.map(|m| m.tag.is_some()).collect();
        let longest = self.params.sizes.max().max(WORD);
        for tagged in &kinds {
            let want = if *tagged { MatchSpec::Tagged { tag: 0, mask: 0 } } else { MatchSpec::Untagged };
            self.post_this(n, want, None, longest)?;
        }
        Ok(kinds.len())
    }

    /// Cancels the latest flush or close; what it waited for goes on.
    fn cancel_flush(&mut self, n: usize) -> Result<(), Failed> {
        let Some(last) = self.workers[n].flushes.last_mut() else { return Ok(()) };
        last.cancelled |= last.request.as_ref().is_some_and(|request| request.cancel());
        let granted = u64::from(last.cancelled);
        self.outcome.flush_cancelled += granted;
        self.trace.record(
            &[18, n as u64, granted],
            format_args!("{}: {n} cancels its latest flush: {granted}", self.step),
        );
        Ok(())
    }
}
