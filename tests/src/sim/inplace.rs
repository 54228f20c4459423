//! Workers in zero-copy receive mode in a job: their device puts untagged messages where receives are, in whatever order;
//! what does not fit that is refused or lost, and the model knows what may be. Called by `act`, `settle` and the world.

use super::Failed;
use super::act::WORD;
use super::ledger::Want;
use super::world::World;
use ucp::select::{Row, Sync};
use ucp::{Error, Match, SendParams};

/// Bytes of a packet that a message without a header has more of: any header.
const HEADER: usize = 96;
/// Rounds within which all receives have got a message.
const MOST_ROUNDS: usize = 100;

impl World {
    /// Whether a worker is in that mode.
    pub(super) fn is_in_place(&self, n: usize) -> bool {
        self.nodes[n].in_place
    }

    /// Whether a message need not come though its send ends well: those with a tag, and those in several packets, are dropped by
    /// who is in that mode, if they went out before it was known.
    pub(super) fn may_vanish(&self, to: usize, len: usize, row: Row, params: &SendParams) -> bool {
        let reads = self.knobs.min_read.is_some_and(|min| len >= min);
        let short = row.plain() == Row::Eager && len + HEADER <= self.knobs.mtu as usize;
        self.is_in_place(to) && (params.tag.is_some() || reads || !short)
    }

    /// Whether a send to a worker in that mode may end with this error.
    pub(super) fn finds_no_place(&self, to: usize, msg: usize, sync: bool, error: Error) -> bool {
        let msg = self.nodes[to].ledger.msg(msg);
        let wide = || self.cq_data.get(&(msg.sender, msg.seq)).is_some_and(|data| data >> 32 != 0);
        self.is_in_place(to)
            && match error {
                Error::Unsupported => msg.tag.is_some() || sync || wide() || msg.perhaps,
                Error::TooLong { .. } | Error::Aborted(..) => msg.perhaps,
                _ => false,
            }
    }

    /// Whether a receive may end so at once: its device has refused the registration.
    pub(super) fn is_refused(&self, error: Error) -> bool {
        self.knobs.refusal > 0.0 && matches!(error, Error::Invalid)
    }

    /// Posts a receive, or one of those that this mode does not have.
    pub(super) fn post_in_place(&mut self, n: usize) -> Result<(), Failed> {
        if self.rng.percent(90) {
            let room = self.room();
            return self.post_this(n, Want::Untagged, None, room);
        }
        let worker = &self.nodes[n].worker;
        let mut refused = vec![worker.recv(Match::tagged(0, 0), vec![0; WORD])];
        let ep = self.nodes[n].eps.iter().flatten().next();
        refused.extend(ep.map(|ep| worker.recv(Match::untagged().from(ep), vec![0; WORD])));
        let many = worker.recv_multi(Match::untagged(), vec![0; WORD], WORD).err().map(|(error, _)| error);
        let ends: Vec<_> =
            refused.into_iter().map(|request| request.test().ok().map(|(end, _)| end)).collect();
        match ends.iter().all(|end| *end == Some(Err(Error::Unsupported))) && many == Some(Error::Unsupported)
        {
            true => Ok(()),
            false => {
                Err(self.fail(format!("worker {n}: receives that its mode has not: {ends:?}, {many:?}")))
            }
        }
    }

    /// A receive was too short. Nothing of the message is there, not even who sent it.
    pub(super) fn cut_in_place(
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
        self.trace.tell(
            &[23, n as u64, rec as u64, len],
            format_args!("{}: {n}'s receive {rec} of {room} bytes was too short: {len} bytes", self.step),
        );
        self.outcome.cut_in_place += 1;
        let cut = self.nodes[n].ledger.cut(rec);
        cut.map_err(|e| self.broken(n, e))
    }

    /// Messages without a header are tried again until there is a receive: posts one where there is none.
    pub(super) fn make_places(&mut self) -> Result<(), Failed> {
        for n in self.living() {
            if self.is_in_place(n) && self.nodes[n].ledger.open() == 0 {
                self.post_this(n, Want::Untagged, None, self.knobs.sizes.max().max(WORD))?;
            }
        }
        Ok(())
    }

    /// At rest: what still waits is received, and since receives of that mode cannot be taken back, each gets a message, as long
    /// as there is anybody to send one.
    pub(super) fn use_receives_up(&mut self) -> Result<(), Failed> {
        for _ in 0..MOST_ROUNDS {
            // What is held of a lost one that was met anew stays: see `nothing_left`.
            let anew = |n: usize| self.knobs.nics > 1 && self.has_losses(n);
            let holds =
                |n: &usize| self.is_in_place(*n) && self.nodes[*n].worker.held_bytes() > 0 && !anew(*n);
            let waits = self.living().iter().any(holds);
            if waits {
                self.make_places()?;
                self.rest()?;
            }
            let mut sent = 0;
            for n in self.living().into_iter().filter(|n| self.is_in_place(*n)).collect::<Vec<_>>() {
                let from =
                    self.living().into_iter().filter(|from| !self.is_lost(*from, n)).collect::<Vec<_>>();
                let open = if from.is_empty() { 0 } else { self.nodes[n].ledger.open() };
                for _ in 0..open {
                    let from = *self.rng.pick(&from);
                    let cq_data = self.rng.percent(20).then(|| self.rng.bits() >> 32);
                    if self.connect(from, n)? {
                        let params = SendParams { tag: None, sync: Sync::No, cq_data, done: None };
                        self.send_this(from, n, WORD, params)?;
                        sent += 1;
                    }
                }
            }
            if sent == 0 && !waits {
                return Ok(());
            }
            self.rest()?;
        }
        Err(self.fail("receives stay posted though each has got a message"))
    }

    /// Receives of a worker in that mode to whom nobody is left that could send.
    pub(super) fn abandoned(&self, n: usize) -> usize {
        let all = self.living().into_iter().all(|from| self.is_lost(from, n));
        if all && self.is_in_place(n) { self.nodes[n].ledger.open() } else { 0 }
    }
}
