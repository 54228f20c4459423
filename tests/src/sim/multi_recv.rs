//! Multi-receives: filled message by message, truncated at the end of the buffer, cancelled, or ended by a
//! lost peer. Called by `step` and `completions`.

use super::Failed;
use super::job::Job;
use super::model::{MatchSpec, StepNo};
use super::step::WORD;
use ucp::{Error, MultiRecv, MultiRecvMessage};

const MAX_OPEN: usize = 3;
/// The largest buffer, in messages of the longest length.
const MAX_MESSAGES: u64 = 6;

pub struct MultiRecvOp {
    pub rec: usize,
    cancelled: Option<StepNo>,
    /// With less space left, it takes no more messages.
    min_room: usize,
    used: usize,
    /// None of its messages was lost.
    whole: bool,
    request: MultiRecv<Box<[u8]>>,
}

impl Job {
    pub(super) fn post_multi_recv(
        &mut self,
        n: usize,
        want: MatchSpec,
        from: Option<usize>,
    ) -> Result<(), Failed> {
        if self.workers[n].multi_recvs.len() >= MAX_OPEN {
            return Ok(());
        }
        let longest = self.params.sizes.max().max(WORD);
        // With less space left a message may be truncated; a word always fits, to identify it.
        let min_room = *self.rng.pick(&[WORD, longest / 2, longest]).max(&WORD);
        let room = self.rng.range(min_room as u64, longest as u64 * MAX_MESSAGES) as usize;
        let what = self.matching(n, want, from);
        let sim_worker = &mut self.workers[n];
        let rec = sim_worker.model.posted_multi(want, from, room);
        self.trace.record(
            &[19, n as u64, rec as u64, room as u64, min_room as u64],
            format_args!(
                "{}: {n} posts receive {rec} of many: {want:x?} from {from:?}, room {room}, least {min_room}",
                self.step
            ),
        );
        match sim_worker.worker.recv_multi(what, vec![0; room].into_boxed_slice(), min_room) {
            Ok(request) => sim_worker.multi_recvs.push(MultiRecvOp {
                rec,
                cancelled: None,
                min_room,
                used: 0,
                whole: true,
                request,
            }),
            Err((error, _)) if self.is_peer_failure(n, error) => self.multi_recv_failed(n, rec)?,
            Err((error, _)) => {
                return Err(self.fail(format!("worker {n}: receive {rec} of many is refused: {error:?}")));
            }
        }
        self.reap_recvs(n)
    }

    fn multi_recv_failed(&mut self, n: usize, rec: usize) -> Result<(), Failed> {
        self.outcome.peer_failed += 1;
        let ended = self.workers[n].model.ended_by_loss(rec);
        ended.map_err(|e| self.violation(n, e))
    }

    pub(super) fn cancel_one_multi_recv(&mut self, n: usize) -> Result<(), Failed> {
        let len = self.workers[n].multi_recvs.len() as u64;
        if len == 0 {
            return Ok(());
        }
        let at = self.rng.below(len) as usize;
        self.cancel_multi_recv(n, at);
        self.reap_recvs(n)
    }

    fn cancel_multi_recv(&mut self, n: usize, at: usize) {
        let multi = &mut self.workers[n].multi_recvs[at];
        if multi.request.cancel() {
            multi.cancelled = Some(self.step);
        }
        let (rec, granted) = (multi.rec, multi.cancelled.is_some());
        self.trace.record(
            &[20, n as u64, rec as u64, u64::from(granted)],
            format_args!("{}: {n} cancels receive {rec} of many: {granted}", self.step),
        );
    }

    pub(super) fn cancel_all_multi_recvs(&mut self, n: usize) -> Result<(), Failed> {
        for at in 0..self.workers[n].multi_recvs.len() {
            self.cancel_multi_recv(n, at);
            let multi = &self.workers[n].multi_recvs[at];
            if multi.cancelled.is_none() && !multi.request.is_done() {
                let rec = multi.rec;
                return Err(
                    self.fail(format!("worker {n}: receive {rec} of many cannot be cancelled at rest"))
                );
            }
        }
        Ok(())
    }

    pub(super) fn reap_multi_recvs(&mut self, n: usize) -> Result<(), Failed> {
        let mut at = 0;
        while at < self.workers[n].multi_recvs.len() {
            // Asked first: messages are reported before the end.
            let done = self.workers[n].multi_recvs[at].request.is_done();
            while let Some(message) = self.workers[n].multi_recvs[at].request.try_next() {
                self.message_arrived(n, at, message)?;
            }
            match done {
                true => self.multi_recv_ended(n, at)?,
                false => at += 1,
            }
        }
        Ok(())
    }

    fn message_arrived(&mut self, n: usize, at: usize, message: MultiRecvMessage) -> Result<(), Failed> {
        let multi = &mut self.workers[n].multi_recvs[at];
        let (rec, offset) = (multi.rec, message.offset());
        let bytes = multi.request.bytes(&message).to_vec();
        multi.used = multi.used.max(offset + bytes.len());
        let left = self.workers[n].model.rec(rec).room - offset;
        match message.status() {
            Ok(status) => self.received(n, rec, status, &bytes)?,
            Err(Error::Truncated { len, room })
                if room == left && len as usize > room && bytes.len() == room =>
            {
                self.truncated(n, rec, len as usize, &bytes)?;
            }
            Err(error) if self.is_withdrawal(n, error) => {
                self.workers[n].multi_recvs[at].whole = false;
                return Ok(());
            }
            Err(error) if self.is_peer_failure(n, error) => {
                self.workers[n].multi_recvs[at].whole = false;
                self.outcome.peer_failed += 1;
                return Ok(());
            }
            end => {
                return Err(
                    self.fail(format!("worker {n}: a message in receive {rec} of many ended {end:?}"))
                );
            }
        }
        self.workers[n].model.set_offset(offset);
        Ok(())
    }

    fn multi_recv_ended(&mut self, n: usize, at: usize) -> Result<(), Failed> {
        let MultiRecvOp { rec, cancelled, min_room, used, whole, request } =
            self.workers[n].multi_recvs.remove(at);
        let (end, buf) = request.finish();
        self.trace.record(
            &[21, n as u64, rec as u64, used as u64],
            format_args!("{}: {n}'s receive {rec} of many ended: {end:?}, {used} bytes", self.step),
        );
        let ended = match (end, cancelled) {
            (Err(Error::Cancelled), Some(at)) => {
                self.outcome.multi_recv_cancelled += 1;
                self.workers[n].model.cancelled(rec, at)
            }
            // A lost message used its space too.
            (Ok(()), None) if buf.len() - used < min_room || !whole => {
                self.outcome.multi_recv_filled += 1;
                self.workers[n].model.full(rec, whole)
            }
            (Err(error), None) if self.is_peer_failure(n, error) => return self.multi_recv_failed(n, rec),
            _ => {
                return Err(self.fail(format!(
                    "worker {n}: receive {rec} of many ({cancelled:?}, {used} bytes of {}) ended {end:?}",
                    buf.len()
                )));
            }
        };
        ended.map_err(|e| self.violation(n, e))
    }
}
