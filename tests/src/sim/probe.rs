//! Unexpected messages: probed, claimed and received later, claimed and dropped, discarded unclaimed. Called
//! by `step` and `job`.

use super::Failed;
use super::forms::RecvOp;
use super::job::Job;
use super::model::{MatchSpec, MsgState, RecvRecord, RecvState, StepNo};
use super::sim_worker::{Claimed, Receiving};
use super::step::of_tag;

impl Job {
    pub(super) fn probe(&mut self, n: usize) -> Result<(), Failed> {
        let (want, from) = self.random_match(n);
        let found = self.workers[n].worker.probe(self.matching(n, want, from));
        let Some(found) = found else { return Ok(()) };
        self.trace.record(
            &[3, n as u64, found.tag, found.len],
            format_args!("{}: {n} probes {want:x?} from {from:?}: {found:?}", self.step),
        );
        match want {
            MatchSpec::Tagged { .. } => self.check_envelope(n, want, from, &found).map(drop),
            MatchSpec::Untagged => Ok(()),
        }
    }

    fn check_envelope(
        &self,
        n: usize,
        want: MatchSpec,
        from: Option<usize>,
        found: &ucp::Envelope,
    ) -> Result<usize, Failed> {
        let (sender, seq) = of_tag(found.tag);
        let model = &self.workers[n].model;
        let rec = RecvRecord { want, from, room: 0, multi: false, end: RecvState::Open };
        let msg = model.find(sender, seq).filter(|msg| {
            let m = model.msg(*msg);
            m.state == MsgState::Unmatched
                && m.tag == Some(found.tag)
                && m.len as u64 == found.len
                && rec.names(m)
        });
        msg.ok_or_else(|| {
            self.fail(format!("worker {n}: probe for {want:x?} from {from:?} found {found:x?}"))
        })
    }

    /// Claims a message by a matched probe; it is received now or later.
    pub(super) fn claim(&mut self, n: usize) -> Result<(), Failed> {
        let (want, from) = self.random_match(n);
        let Some(message) = self.workers[n].worker.mprobe(self.matching(n, want, from)) else {
            return Ok(());
        };
        let found = message.envelope();
        let room = self.recv_len();
        let rec = self.workers[n].model.posted(want, from, room);
        self.trace.record(
            &[4, n as u64, found.tag, found.len, rec as u64],
            format_args!("{}: {n} takes by probe {rec} {want:x?} from {from:?}: {found:?}", self.step),
        );
        if let MatchSpec::Tagged { .. } = want {
            let msg = self.check_envelope(n, want, from, &found)?;
            let got = self.workers[n].model.got(rec, msg, StepNo::MAX);
            got.map_err(|e| self.violation(n, e))?;
        }
        self.workers[n].claimed.push(Claimed { rec, message });
        // An untagged message is identified by its content only: it is received at once.
        if want == MatchSpec::Untagged || self.rng.percent(50) {
            return self.receive_last_claimed(n);
        }
        Ok(())
    }

    pub(super) fn receive_claimed(&mut self, n: usize) -> Result<(), Failed> {
        let len = self.workers[n].claimed.len();
        if len > 0 {
            let at = self.rng.below(len as u64) as usize;
            self.workers[n].claimed.swap(at, len - 1);
        }
        self.receive_last_claimed(n)
    }

    fn receive_last_claimed(&mut self, n: usize) -> Result<(), Failed> {
        let Some(Claimed { rec, message }) = self.workers[n].claimed.pop() else { return Ok(()) };
        let lens = self.recv_lens(self.workers[n].model.rec(rec).room);
        let request = RecvOp::claimed(message, &lens);
        self.workers[n].recvs.push(Receiving { rec, cancelled: None, request });
        self.reap_recvs(n)
    }

    pub(super) fn receive_all_claimed(&mut self, n: usize) -> Result<(), Failed> {
        while !self.workers[n].claimed.is_empty() {
            self.receive_last_claimed(n)?;
        }
        Ok(())
    }

    /// Drops a claimed message; its sender must not notice.
    pub(super) fn discard_claimed(&mut self, n: usize) -> Result<(), Failed> {
        let Some(Claimed { rec, message }) = self.workers[n].claimed.pop() else { return Ok(()) };
        drop(message);
        let RecvState::Got { msg, .. } = self.workers[n].model.rec(rec).end else { return Ok(()) };
        self.trace.record(
            &[16, n as u64, msg as u64],
            format_args!("{}: {n} discards message {msg}, taken by {rec}", self.step),
        );
        self.outcome.discarded += 1;
        let got = self.workers[n].model.got(rec, msg, self.step);
        got.map_err(|e| self.violation(n, e))
    }

    /// Discards an unclaimed tagged message; its sender must not notice.
    pub(super) fn discard_unclaimed(&mut self, n: usize) -> Result<(), Failed> {
        let (want, from) = self.random_match(n);
        if want == MatchSpec::Untagged {
            return Ok(());
        }
        let Some(found) = self.workers[n].worker.discard(self.matching(n, want, from)) else { return Ok(()) };
        let msg = self.check_envelope(n, want, from, &found)?;
        let rec = self.workers[n].model.posted(want, from, 0);
        self.trace.record(
            &[17, n as u64, msg as u64, rec as u64],
            format_args!("{}: {n} throws message {msg} away: {want:x?} from {from:?}", self.step),
        );
        self.outcome.discarded_unclaimed += 1;
        let got = self.workers[n].model.got(rec, msg, self.step);
        got.map_err(|e| self.violation(n, e))
    }

    pub(super) fn check_none_unexpected(&self, n: usize) -> Result<(), Failed> {
        for want in [MatchSpec::Tagged { tag: 0, mask: 0 }, MatchSpec::Untagged] {
            if let Some(found) = self.workers[n].worker.probe(self.matching(n, want, None)) {
                return Err(self.fail(format!("worker {n}: a message too many: {found:x?}")));
            }
        }
        Ok(())
    }
}
