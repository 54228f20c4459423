//! What has ended: progress of one worker, and the checks of every send, receive and flush that it brought to its end.
//! Called by the world and after every action. Never starts an operation.

use super::Failed;
use super::act::of_tag;
use super::ledger::Fate;
use super::node::{Flushing, Receiving, Sending};
use super::world::World;
use crate::pattern::Pattern;
use ucp::Error;
use ucp::rdm::RecvStatus;
use ucp::rdm::io::PeerId;
use ucp::select::Row;

impl World {
    /// Progress of one worker and everything it ended; answers the number of events.
    pub(super) fn progress(&mut self, n: usize) -> Result<usize, Failed> {
        self.step += 1;
        let events = self.nodes[n].worker.progress();
        if events > 0 {
            self.trace.tell(
                &[8, n as u64, events as u64, self.fabric.now()],
                format_args!("{}: {n} progresses: {events} events, {} ns", self.step, self.fabric.now()),
            );
        }
        self.note_losses(n)?;
        self.settle_recvs(n)?;
        self.settle_sends(n)?;
        self.settle_flushes(n)?;
        self.settle_shore(n)?;
        self.settle_loans(n)?;
        self.settle_letters(n)?;
        self.settle_brooks(n)?;
        Ok(events)
    }

    /// A peer number stands for one worker, whoever named it first.
    pub(super) fn know(&mut self, n: usize, peer: PeerId, who: usize) -> Result<(), Failed> {
        let known = *self.nodes[n].peers.entry(peer).or_insert(who);
        let twice = self.nodes[n].peers.values().filter(|w| **w == who).count() > 1;
        // Whoever has met somebody by a NIC that is lost since, and no other, meets that one anew.
        if twice && known == who && !self.is_lost(n, who) && self.is_unplugged(n, who) {
            self.sever(n, who);
        }
        match known == who && !twice || self.is_lost(n, who) {
            true => Ok(()),
            false => {
                Err(self
                    .fail(format!("worker {n}: {peer:?} is worker {who}, but was {:?}", self.nodes[n].peers)))
            }
        }
    }

    pub(super) fn settle_sends(&mut self, n: usize) -> Result<(), Failed> {
        self.note_losses(n)?;
        let mut at = 0;
        while at < self.nodes[n].sends.len() {
            let node = &mut self.nodes[n];
            if !node.sends[at].request.is_done(&node.worker) {
                at += 1;
                continue;
            }
            let Sending { to, msg, sync, cancelled, row, request } = self.nodes[n].sends.remove(at);
            // Only who reads a message tells its end without having said that it acknowledges.
            let refuses = sync && self.nodes[to].withholds_dc();
            // Or it was to be a packet, and was read when its turn came and more was known of the peer.
            let len = self.nodes[to].ledger.msg(msg).len;
            let reads = matches!(row.plain(), Row::LongRead | Row::RuntRead)
                || self.knobs.min_read.is_some_and(|min| len >= min);
            let Some(end) = request.end() else { return Err(self.fail("a done request is not done")) };
            self.trace.tell(
                &[9, n as u64, to as u64, msg as u64, u64::from(end.is_ok())],
                format_args!("{}: {n}'s send of message {msg} of {to} ended: {end:?}", self.step),
            );
            match end {
                Ok(()) if !cancelled && self.is_in_place(to) => {}
                Ok(()) if !cancelled && (!refuses || reads || self.is_lost(n, to)) => {}
                Err(error) if self.is_lost(n, to) && self.is_bereaved(n, error) => self.outcome.bereaved += 1,
                Err(Error::Unsupported | Error::Cancelled)
                    if refuses && end != Err(Error::Cancelled) || cancelled =>
                {
                    self.withdraw(to, msg)?;
                }
                Err(error) if self.finds_no_place(to, msg, sync, error) => {
                    self.outcome.unplaced += 1;
                    self.withdraw(to, msg)?;
                }
                _ => {
                    return Err(
                        self.fail(format!("worker {n}: send to {to} (cancelled {cancelled}) ended {end:?}"))
                    );
                }
            }
            if sync && end.is_ok() && !self.is_lost(n, to) && !self.nodes[to].ledger.has_cut() {
                self.settle_recvs(to)?;
                // A message that was there when a receive of many was posted is received, and told by progress.
                if self.nodes[to].ledger.msg(msg).fate == Fate::Waits && !self.nodes[to].many.is_empty() {
                    self.progress(to)?;
                }
                if !matches!(self.nodes[to].ledger.msg(msg).fate, Fate::Taken(_)) {
                    return Err(self.fail(format!(
                        "worker {n}: sync send of message {msg} of {to} ended before it was received"
                    )));
                }
            }
        }
        Ok(())
    }

    /// A message never was.
    fn withdraw(&mut self, to: usize, msg: usize) -> Result<(), Failed> {
        let withdrawn = self.nodes[to].ledger.withdrawn(msg);
        withdrawn.map_err(|e| self.broken(to, e))?;
        self.outcome.withdrawn += 1;
        self.outcome.messages -= 1;
        self.outcome.bytes -= self.nodes[to].ledger.msg(msg).len as u64;
        Ok(())
    }

    pub(super) fn settle_recvs(&mut self, n: usize) -> Result<(), Failed> {
        self.note_losses(n)?;
        let mut at = 0;
        while at < self.nodes[n].recvs.len() {
            if !self.nodes[n].recvs[at].request.is_done() {
                at += 1;
                continue;
            }
            let Receiving { rec, cancelled, request } = self.nodes[n].recvs.remove(at);
            let Some((end, buf)) = request.end() else { return Err(self.fail("a done request is not done")) };
            match (end, cancelled) {
                (Err(Error::Cancelled), Some(at)) => {
                    let gone = self.nodes[n].ledger.cancelled(rec, at);
                    gone.map_err(|e| self.broken(n, e))?;
                    self.outcome.cancelled += 1;
                }
                (Ok(status), None) => self.received(n, rec, status, &buf)?,
                (Err(Error::Truncated { len, room }), None) if self.is_in_place(n) => {
                    self.cut_in_place(n, rec, (len, room), &buf)?;
                }
                (Err(error), None) if self.is_in_place(n) && self.is_refused(error) => {
                    let gone = self.nodes[n].ledger.cancelled(rec, self.step);
                    gone.map_err(|e| self.broken(n, e))?;
                }
                (Err(Error::Truncated { len, room }), None) if room == buf.len() && len as usize > room => {
                    self.truncated(n, rec, len as usize, &buf)?;
                }
                // Of a message that was claimed and then lost, nothing is left to receive.
                (Err(error), None)
                    if self.is_bereaved(n, error) || error == Error::NoMessage && self.has_losses(n) =>
                {
                    let bereaved = self.nodes[n].ledger.bereaved(rec);
                    bereaved.map_err(|e| self.broken(n, e))?;
                    self.outcome.bereaved += 1;
                }
                _ => {
                    return Err(self.fail(format!("worker {n}: receive {rec} ({cancelled:?}) ended {end:?}")));
                }
            }
        }
        self.settle_many(n)
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
        // Whole tagged messages may be too short to know by their bytes; untagged ones have no tag.
        let who = match self.nodes[n].ledger.rec(rec).want {
            super::ledger::Want::Tagged { .. } => Some(of_tag(status.tag)),
            super::ledger::Want::Untagged => self.by_word(bytes),
        };
        let msg = self.found(n, rec, who, len, bytes)?;
        let m = *self.nodes[n].ledger.msg(msg);
        let cq_data = self.cq_data.get(&(m.sender, m.seq)).copied();
        if m.tag.unwrap_or(0) != status.tag || status.cq_data != cq_data {
            return Err(
                self.fail(format!("worker {n}: receive {rec} got {m:?}, but its status is {status:?}"))
            );
        }
        self.know(n, status.from, m.sender)
    }

    pub(super) fn truncated(&mut self, n: usize, rec: usize, len: usize, buf: &[u8]) -> Result<(), Failed> {
        self.outcome.truncated += 1;
        let who = self.by_word(buf);
        self.found(n, rec, who, len, buf).map(drop)
    }

    fn by_word(&self, bytes: &[u8]) -> Option<(usize, u64)> {
        let word = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
        self.words.get(&word).copied()
    }

    /// A receive ended with what seems to be this message: checks length and bytes, and tells the ledger.
    fn found(
        &mut self,
        n: usize,
        rec: usize,
        who: Option<(usize, u64)>,
        len: usize,
        bytes: &[u8],
    ) -> Result<usize, Failed> {
        let msg = who.and_then(|(sender, seq)| self.nodes[n].ledger.find(sender, seq));
        let (Some(msg), Some((sender, seq))) = (msg, who) else {
            return Err(
                self.fail(format!("worker {n}: receive {rec} got {len} bytes that nobody sent ({who:?})"))
            );
        };
        if self.nodes[n].ledger.msg(msg).len != len {
            let m = self.nodes[n].ledger.msg(msg);
            return Err(self.fail(format!("worker {n}: receive {rec} got {len} bytes of {m:?}")));
        }
        let check = Pattern::new(self.seed, sender as u64, seq).check(bytes);
        check.map_err(|e| self.fail(format!("worker {n}: receive {rec} got message {msg} damaged: {e}")))?;
        self.trace.tell(
            &[10, n as u64, rec as u64, msg as u64],
            format_args!(
                "{}: {n}'s receive {rec} got message {msg} ({seq} of {sender}), {len} bytes",
                self.step
            ),
        );
        let got = self.nodes[n].ledger.got(rec, msg, self.step);
        got.map_err(|e| self.broken(n, e))?;
        Ok(msg)
    }

    fn settle_flushes(&mut self, n: usize) -> Result<(), Failed> {
        let mut at = 0;
        while at < self.nodes[n].flushes.len() {
            if !self.nodes[n].flushes[at].request.is_done() {
                at += 1;
                continue;
            }
            let Flushing { of, limited, cancelled, lent, cells, request } = self.nodes[n].flushes.remove(at);
            match request.wait() {
                Ok(()) if !cancelled => self.check_covered(n, &lent, &cells)?,
                Err(Error::Cancelled) if cancelled => self.nodes[n].shore.uncover(lent),
                Err(Error::TimedOut(_)) if limited => {
                    self.outcome.timed_out += 1;
                    self.nodes[n].shore.uncover(lent);
                }
                Err(_) if of.map_or(self.is_unsure_of_any(n), |of| self.is_unsure(n, of)) => {
                    self.outcome.bereaved += 1;
                    self.nodes[n].shore.uncover(lent);
                }
                end => return Err(self.fail(format!("worker {n}: flush of {of:?} ended {end:?}"))),
            }
            self.trace.tell(&[11, n as u64], format_args!("{}: a flush of {n} ended", self.step));
        }
        Ok(())
    }
}
