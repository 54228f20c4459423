//! Workers in zero-copy receive mode: the device puts untagged messages into posted receives, in any order;
//! what does not fit is refused or lost. Called by `step`, `completions` and `job`.

use super::Failed;
use super::job::Job;
use super::model::MatchSpec;
use super::step::WORD;
use ucp::select::{DeliveryComplete, Protocol};
use ucp::{Error, Match, SendParams};

/// Bytes of a packet header, at most.
const HEADER: usize = 96;
/// Rounds within which all receives have got a message.
const MAX_ROUNDS: usize = 100;

impl Job {
    pub(super) fn is_zcopy_recv(&self, n: usize) -> bool {
        self.workers[n].zcopy_recv
    }

    /// Whether a sent message may be dropped: a tagged or long one, sent before the mode was known.
    pub(super) fn may_be_dropped(&self, to: usize, len: usize, row: Protocol, params: &SendParams) -> bool {
        let reads = self.params.min_read.is_some_and(|min| len >= min);
        let short = row.plain() == Protocol::Eager && len + HEADER <= self.params.mtu as usize;
        self.is_zcopy_recv(to) && (params.tag.is_some() || reads || !short)
    }

    /// Whether a send to a worker in that mode may end with this error.
    pub(super) fn may_be_rejected(&self, to: usize, msg: usize, sync: bool, error: Error) -> bool {
        let msg = self.workers[to].model.msg(msg);
        let wide = || self.cq_data.get(&(msg.sender, msg.seq)).is_some_and(|data| data >> 32 != 0);
        self.is_zcopy_recv(to)
            && match error {
                Error::Unsupported => msg.tag.is_some() || sync || wide() || msg.may_be_dropped,
                Error::TooLong { .. } | Error::Aborted(..) => msg.may_be_dropped,
                _ => false,
            }
    }

    /// Whether a receive may fail at once because its registration was refused.
    pub(super) fn is_refused(&self, error: Error) -> bool {
        self.params.refusal > 0.0 && matches!(error, Error::Invalid)
    }

    /// Posts a receive, or tries one that this mode does not have.
    pub(super) fn post_zcopy_recv(&mut self, n: usize) -> Result<(), Failed> {
        if self.rng.percent(90) {
            let room = self.recv_len();
            return self.post_this(n, MatchSpec::Untagged, None, room);
        }
        let worker = &self.workers[n].worker;
        let mut refused = vec![worker.recv(Match::tagged(0, 0), vec![0; WORD])];
        let ep = self.workers[n].eps.iter().flatten().next();
        refused.extend(ep.map(|ep| worker.recv(Match::untagged().from(ep), vec![0; WORD])));
        let multi = worker.recv_multi(Match::untagged(), vec![0; WORD], WORD).err().map(|(error, _)| error);
        let ends: Vec<_> =
            refused.into_iter().map(|request| request.test().ok().map(|(end, _)| end)).collect();
        match ends.iter().all(|end| *end == Some(Err(Error::Unsupported)))
            && multi == Some(Error::Unsupported)
        {
            true => Ok(()),
            false => {
                Err(self.fail(format!("worker {n}: receives that its mode has not: {ends:?}, {multi:?}")))
            }
        }
    }

    /// Records a receive that was too short. The message's sender is not known.
    pub(super) fn zcopy_truncated(
        &mut self,
        n: usize,
        rec: usize,
        (len, room): (u64, usize),
        buf: &[u8],
    ) -> Result<(), Failed> {
        if room != buf.len() || len as usize <= room {
            return Err(
                self.fail(format!("worker {n}: receive {rec} of {room} bytes was cut by {len} bytes"))
            );
        }
        self.trace.record(
            &[23, n as u64, rec as u64, len],
            format_args!("{}: {n}'s receive {rec} of {room} bytes was too short: {len} bytes", self.step),
        );
        self.outcome.zcopy_truncated += 1;
        let cut = self.workers[n].model.truncated(rec);
        cut.map_err(|e| self.violation(n, e))
    }

    /// Posts a receive where none is posted: messages without a header are retried until there is one.
    pub(super) fn post_missing_recvs(&mut self) -> Result<(), Failed> {
        for n in self.living() {
            if self.is_zcopy_recv(n) && self.workers[n].model.open() == 0 {
                self.post_this(n, MatchSpec::Untagged, None, self.params.sizes.max().max(WORD))?;
            }
        }
        Ok(())
    }

    /// Receives waiting messages, and sends to each posted receive, which cannot be cancelled.
    pub(super) fn consume_posted_recvs(&mut self) -> Result<(), Failed> {
        for _ in 0..MAX_ROUNDS {
            // Messages of a lost peer that was met anew stay: see `check_idle`.
            let anew = |n: usize| self.params.nics > 1 && self.has_losses(n);
            let holds = |n: &usize| {
                self.is_zcopy_recv(*n) && self.workers[*n].worker.diagnostics().held_bytes() > 0 && !anew(*n)
            };
            let waits = self.living().iter().any(holds);
            if waits {
                self.post_missing_recvs()?;
                self.run_until_idle()?;
            }
            let mut sent = 0;
            for n in self.living().into_iter().filter(|n| self.is_zcopy_recv(*n)).collect::<Vec<_>>() {
                let from =
                    self.living().into_iter().filter(|from| !self.is_lost(*from, n)).collect::<Vec<_>>();
                let open = if from.is_empty() { 0 } else { self.workers[n].model.open() };
                for _ in 0..open {
                    let from = *self.rng.pick(&from);
                    let cq_data = self.rng.percent(20).then(|| self.rng.bits() >> 32);
                    if self.connect(from, n)? {
                        let params = SendParams {
                            tag: None,
                            sync: DeliveryComplete::No,
                            cq_data,
                            ..SendParams::default()
                        };
                        self.send_this(from, n, WORD, params)?;
                        sent += 1;
                    }
                }
            }
            if sent == 0 && !waits {
                return Ok(());
            }
            self.run_until_idle()?;
        }
        Err(self.fail("receives stay posted though each has got a message"))
    }

    /// Receives of a worker in that mode to which nobody can send any more.
    pub(super) fn orphan_recvs(&self, n: usize) -> usize {
        let all = self.living().into_iter().all(|from| self.is_lost(from, n));
        if all && self.is_zcopy_recv(n) { self.workers[n].model.open() } else { 0 }
    }
}
