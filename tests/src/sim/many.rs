//! Receives of many messages in a job: filled message by message, cut short by the end of their room, cancelled, or ended
//! by a loss. Called by `act` and `settle`; the ledger has one receive for each, which takes many.

use super::Failed;
use super::act::WORD;
use super::ledger::{Step, Want};
use super::world::World;
use ucp::{Error, MultiRecv, Part};

/// Receives of many that a worker has open at a time.
const MAX_OPEN: usize = 3;
/// Longest messages of the run that the longest of them has room for.
const LONGEST: u64 = 6;

/// A receive of many that has not ended.
pub struct Many {
    /// Its number in the ledger.
    pub rec: usize,
    /// When a cancel was asked for and granted.
    cancelled: Option<Step>,
    /// With less room than this left, it takes no more.
    least: usize,
    /// Bytes up to the end of the last message.
    used: usize,
    /// None of its messages was lost.
    whole: bool,
    request: MultiRecv<Box<[u8]>>,
}

impl World {
    /// Posts a receive of many.
    pub(super) fn post_many(&mut self, n: usize, want: Want, from: Option<usize>) -> Result<(), Failed> {
        if self.nodes[n].many.len() >= MAX_OPEN {
            return Ok(());
        }
        let longest = self.knobs.sizes.max().max(WORD);
        // Where less is left than the longest message has, one may be cut, but never so that nobody knows it.
        let least = *self.rng.pick(&[WORD, longest / 2, longest]).max(&WORD);
        let room = self.rng.range(least as u64, longest as u64 * LONGEST) as usize;
        let what = self.matching(n, want, from);
        let node = &mut self.nodes[n];
        let rec = node.ledger.posted_many(want, from, room);
        self.trace.tell(
            &[19, n as u64, rec as u64, room as u64, least as u64],
            format_args!(
                "{}: {n} posts receive {rec} of many: {want:x?} from {from:?}, room {room}, least {least}",
                self.step
            ),
        );
        match node.worker.recv_multi(what, vec![0; room].into_boxed_slice(), least) {
            Ok(request) => {
                node.many.push(Many { rec, cancelled: None, least, used: 0, whole: true, request })
            }
            Err((error, _)) if self.is_bereaved(n, error) => self.bereave_many(n, rec)?,
            Err((error, _)) => {
                return Err(self.fail(format!("worker {n}: receive {rec} of many is refused: {error:?}")));
            }
        }
        self.settle_recvs(n)
    }

    fn bereave_many(&mut self, n: usize, rec: usize) -> Result<(), Failed> {
        self.outcome.bereaved += 1;
        let bereaved = self.nodes[n].ledger.bereaved(rec);
        bereaved.map_err(|e| self.broken(n, e))
    }

    pub(super) fn cancel_one_of_many(&mut self, n: usize) -> Result<(), Failed> {
        let len = self.nodes[n].many.len() as u64;
        if len == 0 {
            return Ok(());
        }
        let at = self.rng.below(len) as usize;
        self.cancel_many(n, at);
        self.settle_recvs(n)
    }

    fn cancel_many(&mut self, n: usize, at: usize) {
        let many = &mut self.nodes[n].many[at];
        if many.request.cancel() {
            many.cancelled = Some(self.step);
        }
        let (rec, granted) = (many.rec, many.cancelled.is_some());
        self.trace.tell(
            &[20, n as u64, rec as u64, u64::from(granted)],
            format_args!("{}: {n} cancels receive {rec} of many: {granted}", self.step),
        );
    }

    /// Cancels all that are open. At rest, each can be cancelled.
    pub(super) fn cancel_all_of_many(&mut self, n: usize) -> Result<(), Failed> {
        for at in 0..self.nodes[n].many.len() {
            self.cancel_many(n, at);
            let many = &self.nodes[n].many[at];
            if many.cancelled.is_none() && !many.request.is_done() {
                let rec = many.rec;
                return Err(
                    self.fail(format!("worker {n}: receive {rec} of many cannot be cancelled at rest"))
                );
            }
        }
        Ok(())
    }

    /// Looks at the messages that have come into them, and at those that have ended.
    pub(super) fn settle_many(&mut self, n: usize) -> Result<(), Failed> {
        let mut at = 0;
        while at < self.nodes[n].many.len() {
            // First: what it had when it ended is told by then.
            let done = self.nodes[n].many[at].request.is_done();
            while let Some(part) = self.nodes[n].many[at].request.try_next() {
                self.part_came(n, at, part)?;
            }
            match done {
                true => self.many_ended(n, at)?,
                false => at += 1,
            }
        }
        Ok(())
    }

    fn part_came(&mut self, n: usize, at: usize, part: Part) -> Result<(), Failed> {
        let many = &mut self.nodes[n].many[at];
        let (rec, offset) = (many.rec, part.offset());
        let bytes = many.request.bytes(&part).to_vec();
        many.used = many.used.max(offset + bytes.len());
        let left = self.nodes[n].ledger.rec(rec).room - offset;
        match part.status() {
            Ok(status) => self.received(n, rec, status, &bytes)?,
            Err(Error::Truncated { len, room })
                if room == left && len as usize > room && bytes.len() == room =>
            {
                self.truncated(n, rec, len as usize, &bytes)?;
            }
            Err(error) if self.is_bereaved(n, error) => {
                self.nodes[n].many[at].whole = false;
                self.outcome.bereaved += 1;
                return Ok(());
            }
            end => {
                return Err(
                    self.fail(format!("worker {n}: a message in receive {rec} of many ended {end:?}"))
                );
            }
        }
        self.nodes[n].ledger.lies_at(offset);
        Ok(())
    }

    fn many_ended(&mut self, n: usize, at: usize) -> Result<(), Failed> {
        let Many { rec, cancelled, least, used, whole, request } = self.nodes[n].many.remove(at);
        let (end, buf) = request.finish();
        self.trace.tell(
            &[21, n as u64, rec as u64, used as u64],
            format_args!("{}: {n}'s receive {rec} of many ended: {end:?}, {used} bytes", self.step),
        );
        let ended = match (end, cancelled) {
            (Err(Error::Cancelled), Some(at)) => {
                self.outcome.many_cancelled += 1;
                self.nodes[n].ledger.cancelled(rec, at)
            }
            // What was lost had its room too.
            (Ok(()), None) if buf.len() - used < least || !whole => {
                self.outcome.filled += 1;
                self.nodes[n].ledger.full(rec, whole)
            }
            (Err(error), None) if self.is_bereaved(n, error) => return self.bereave_many(n, rec),
            _ => {
                return Err(self.fail(format!(
                    "worker {n}: receive {rec} of many ({cancelled:?}, {used} bytes of {}) ended {end:?}",
                    buf.len()
                )));
            }
        };
        ended.map_err(|e| self.broken(n, e))
    }
}
