//! Progress of one worker, and the checks of each send, receive and flush that it completed. Called by `job`
//! and after each action. Never starts an operation.

use super::Failed;
use super::job::Job;
use super::model::MsgState;
use super::sim_worker::{Flushing, Receiving, Sending};
use super::step::of_tag;
use crate::pattern::Pattern;
use ucp::Error;
use ucp::rdm::RecvStatus;
use ucp::rdm::io::PeerId;
use ucp::select::Protocol;
use ucp::wire::Features;

impl Job {
    /// Progresses a worker and checks what ended; answers the number of events.
    pub(super) fn progress(&mut self, n: usize) -> Result<usize, Failed> {
        self.step += 1;
        let events = self.workers[n].progress();
        if events > 0 {
            self.trace.record(
                &[8, n as u64, events as u64, self.fabric.now()],
                format_args!("{}: {n} progresses: {events} events, {} ns", self.step, self.fabric.now()),
            );
        }
        self.take_peer_failures(n)?;
        self.reap_recvs(n)?;
        self.reap_sends(n)?;
        self.reap_flushes(n)?;
        self.reap_rma(n)?;
        self.reap_revocable(n)?;
        self.reap_ams(n)?;
        self.reap_streams(n)?;
        Ok(events)
    }

    /// Checks that a peer number stands for one worker.
    pub(super) fn learn_peer(&mut self, n: usize, peer: PeerId, who: usize) -> Result<(), Failed> {
        let known = *self.workers[n].peers.entry(peer).or_insert(who);
        let twice = self.workers[n].peers.values().filter(|w| **w == who).count() > 1;
        // A peer met by a NIC that failed since, and by no other, is met anew.
        if twice && known == who && !self.is_lost(n, who) && self.has_lost_nic(n, who) {
            self.disconnect(n, who);
        }
        match known == who && !twice || self.is_lost(n, who) {
            true => Ok(()),
            false => Err(self
                .fail(format!("worker {n}: {peer:?} is worker {who}, but was {:?}", self.workers[n].peers))),
        }
    }

    pub(super) fn reap_sends(&mut self, n: usize) -> Result<(), Failed> {
        self.take_peer_failures(n)?;
        let mut at = 0;
        while at < self.workers[n].sends.len() {
            let sim_worker = &mut self.workers[n];
            if !sim_worker.sends[at].request.is_done(&sim_worker.worker) {
                at += 1;
                continue;
            }
            let may_have_begun = self.may_have_begun(n, at);
            let Sending { to, msg, sync, cancelled, row, request } = self.workers[n].sends.remove(at);
            // A sync send to a peer without acknowledgements ends well only if the receiver reads it.
            let refuses = sync && self.workers[to].withholds_dc();
            // Also if it was to be packets, and was read when more was known of the peer.
            let len = self.workers[to].model.msg(msg).len;
            let reads = matches!(row.plain(), Protocol::LongRead | Protocol::RuntRead)
                || self.params.min_read.is_some_and(|min| len >= min);
            let Some(end) = request.end() else { return Err(self.fail("a done request is not done")) };
            self.trace.record(
                &[9, n as u64, to as u64, msg as u64, u64::from(end.is_ok())],
                format_args!("{}: {n}'s send of message {msg} of {to} ended: {end:?}", self.step),
            );
            match end {
                Ok(()) if !cancelled && self.is_zcopy_recv(to) => {}
                Ok(()) if !cancelled && (!refuses || reads || self.is_lost(n, to)) => {}
                Err(error) if self.is_lost(n, to) && self.is_peer_failure(n, error) => {
                    self.outcome.peer_failed += 1
                }
                Err(Error::Cancelled) if cancelled && may_have_begun => self.outcome.withdrawn += 1,
                Err(Error::Unsupported | Error::Cancelled)
                    if refuses && end != Err(Error::Cancelled) || cancelled =>
                {
                    self.withdraw(to, msg)?;
                }
                Err(error) if self.may_be_rejected(to, msg, sync, error) => {
                    self.outcome.zcopy_rejected += 1;
                    self.withdraw(to, msg)?;
                }
                _ => {
                    return Err(
                        self.fail(format!("worker {n}: send to {to} (cancelled {cancelled}) ended {end:?}"))
                    );
                }
            }
            if sync && end.is_ok() && !self.is_lost(n, to) && !self.workers[to].model.has_truncated() {
                self.reap_recvs(to)?;
                // A multi-receive takes an unexpected message as it is posted, and reports it by progress.
                if self.workers[to].model.msg(msg).state == MsgState::Unmatched
                    && !self.workers[to].multi_recvs.is_empty()
                {
                    self.progress(to)?;
                }
                if !matches!(self.workers[to].model.msg(msg).state, MsgState::Matched(_)) {
                    return Err(self.fail(format!(
                        "worker {n}: sync send of message {msg} of {to} ended before it was received"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether an error of a receive of `n` is explained by a message that its sender has cancelled.
    pub(super) fn is_withdrawal(&self, n: usize, error: Error) -> bool {
        let has_cancelled = |who: usize| self.workers[n].model.has_cancelled(who);
        match error {
            Error::Aborted(peer, _) => {
                self.worker_of_peer(n, peer).is_some_and(|who| has_cancelled(who) && !self.is_lost(n, who))
            }
            // Its memory is withdrawn, and the sender cannot be asked to send it.
            Error::Unsupported => (0..self.workers.len())
                .any(|who| has_cancelled(who) && self.workers[who].withheld.contains(Features::READ_NACK)),
            // Names no sender: nothing is left of a message that was claimed.
            Error::NoMessage => !self.has_losses(n) && (0..self.workers.len()).any(has_cancelled),
            _ => false,
        }
    }

    fn withdraw(&mut self, to: usize, msg: usize) -> Result<(), Failed> {
        let withdrawn = self.workers[to].model.withdrawn(msg);
        withdrawn.map_err(|e| self.violation(to, e))?;
        self.outcome.withdrawn += 1;
        self.outcome.messages -= 1;
        self.outcome.bytes -= self.workers[to].model.msg(msg).len as u64;
        Ok(())
    }

    pub(super) fn reap_recvs(&mut self, n: usize) -> Result<(), Failed> {
        self.take_peer_failures(n)?;
        let mut at = 0;
        while at < self.workers[n].recvs.len() {
            if !self.workers[n].recvs[at].request.is_done() {
                at += 1;
                continue;
            }
            let Receiving { rec, cancelled, request } = self.workers[n].recvs.remove(at);
            let Some((end, buf)) = request.end() else { return Err(self.fail("a done request is not done")) };
            match (end, cancelled) {
                (Err(Error::Cancelled), Some(at)) => {
                    let gone = self.workers[n].model.cancelled(rec, at);
                    gone.map_err(|e| self.violation(n, e))?;
                    self.outcome.cancelled += 1;
                }
                (Ok(status), None) => self.received(n, rec, status, &buf)?,
                (Err(Error::Truncated { len, room }), None) if self.is_zcopy_recv(n) => {
                    self.zcopy_truncated(n, rec, (len, room), &buf)?;
                }
                (Err(error), None) if self.is_zcopy_recv(n) && self.is_refused(error) => {
                    let gone = self.workers[n].model.cancelled(rec, self.step);
                    gone.map_err(|e| self.violation(n, e))?;
                }
                (Err(Error::Truncated { len, room }), None) if room == buf.len() && len as usize > room => {
                    self.truncated(n, rec, len as usize, &buf)?;
                }
                (Err(error), None) if self.is_withdrawal(n, error) => {
                    let ended = self.workers[n].model.ended_by_withdrawal(rec);
                    ended.map_err(|e| self.violation(n, e))?;
                }
                // Nothing is left of a message that was claimed and then lost.
                (Err(error), None)
                    if self.is_peer_failure(n, error) || error == Error::NoMessage && self.has_losses(n) =>
                {
                    let ended = self.workers[n].model.ended_by_loss(rec);
                    ended.map_err(|e| self.violation(n, e))?;
                    self.outcome.peer_failed += 1;
                }
                _ => {
                    return Err(self.fail(format!("worker {n}: receive {rec} ({cancelled:?}) ended {end:?}")));
                }
            }
        }
        self.reap_multi_recvs(n)
    }

    pub(super) fn received(
        &mut self,
        n: usize,
        rec: usize,
        status: RecvStatus,
        buf: &[u8],
    ) -> Result<(), Failed> {
        let len = status.len;
        let Some(bytes) = buf.get(..len) else {
            return Err(
                self.fail(format!("worker {n}: receive {rec} of {} bytes ended {status:?}", buf.len()))
            );
        };
        // Whole tagged messages may be too short to identify by their bytes; untagged ones have no tag.
        let who = match self.workers[n].model.rec(rec).want {
            super::model::MatchSpec::Tagged { .. } => Some(of_tag(status.tag)),
            super::model::MatchSpec::Untagged => self.by_first_word(bytes),
        };
        let msg = self.matched(n, rec, who, len, bytes)?;
        let m = *self.workers[n].model.msg(msg);
        let cq_data = self.cq_data.get(&(m.sender, m.seq)).copied();
        if m.tag.unwrap_or(0) != status.tag || status.cq_data != cq_data {
            return Err(
                self.fail(format!("worker {n}: receive {rec} got {m:?}, but its status is {status:?}"))
            );
        }
        self.learn_peer(n, status.from, m.sender)
    }

    pub(super) fn truncated(&mut self, n: usize, rec: usize, len: usize, buf: &[u8]) -> Result<(), Failed> {
        self.outcome.truncated += 1;
        let who = self.by_first_word(buf);
        self.matched(n, rec, who, len, buf).map(drop)
    }

    fn by_first_word(&self, bytes: &[u8]) -> Option<(usize, u64)> {
        let word = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
        self.words.get(&word).copied()
    }

    fn matched(
        &mut self,
        n: usize,
        rec: usize,
        who: Option<(usize, u64)>,
        len: usize,
        bytes: &[u8],
    ) -> Result<usize, Failed> {
        let msg = who.and_then(|(sender, seq)| self.workers[n].model.find(sender, seq));
        let (Some(msg), Some((sender, seq))) = (msg, who) else {
            return Err(
                self.fail(format!("worker {n}: receive {rec} got {len} bytes that nobody sent ({who:?})"))
            );
        };
        if self.workers[n].model.msg(msg).len != len {
            let m = self.workers[n].model.msg(msg);
            return Err(self.fail(format!("worker {n}: receive {rec} got {len} bytes of {m:?}")));
        }
        let check = Pattern::new(self.seed, sender as u64, seq).check(bytes);
        check.map_err(|e| self.fail(format!("worker {n}: receive {rec} got message {msg} damaged: {e}")))?;
        self.trace.record(
            &[10, n as u64, rec as u64, msg as u64],
            format_args!(
                "{}: {n}'s receive {rec} got message {msg} ({seq} of {sender}), {len} bytes",
                self.step
            ),
        );
        let got = self.workers[n].model.got(rec, msg, self.step);
        got.map_err(|e| self.violation(n, e))?;
        Ok(msg)
    }

    fn reap_flushes(&mut self, n: usize) -> Result<(), Failed> {
        let mut at = 0;
        while at < self.workers[n].flushes.len() {
            if !self.workers[n].flushes[at].is_done() {
                at += 1;
                continue;
            }
            let Flushing { of, limited, cancelled, implicit_gets, cells, end, .. } =
                self.workers[n].flushes.remove(at);
            let Some(end) = end else { return Err(self.fail("a done flush is not done")) };
            match end {
                Ok(()) if !cancelled => self.check_flush_covered(n, &implicit_gets, &cells)?,
                Err(Error::Cancelled) if cancelled => self.workers[n].rma.keep_implicit_gets(implicit_gets),
                Err(Error::TimedOut(_)) if limited => {
                    self.outcome.timed_out += 1;
                    self.workers[n].rma.keep_implicit_gets(implicit_gets);
                }
                // A write that nobody waits for has met revoked memory: the flush covers everything else.
                Err(Error::RemoteAccess(_)) if self.may_report_refusal(n, of) => {
                    self.outcome.access_denied += 1;
                    self.workers[n].rma.keep_implicit_gets(implicit_gets);
                }
                Err(_) if of.map_or(self.is_uncertain_of_any(n), |of| self.is_uncertain(n, of)) => {
                    self.outcome.peer_failed += 1;
                    self.workers[n].rma.keep_implicit_gets(implicit_gets);
                }
                end => return Err(self.fail(format!("worker {n}: flush of {of:?} ended {end:?}"))),
            }
            self.trace.record(&[11, n as u64], format_args!("{}: a flush of {n} ended", self.step));
        }
        Ok(())
    }
}
