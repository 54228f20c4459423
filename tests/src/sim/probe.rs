//! Messages that nobody has received yet in a job: probed, claimed and received later, claimed and dropped, thrown away unread.
//! Called by `act`, and by the world at rest.

use super::Failed;
use super::act::of_tag;
use super::forms::Room;
use super::ledger::{End, Fate, Rec, Step, Want};
use super::node::{Receiving, Taken};
use super::world::World;

impl World {
    pub(super) fn probe(&mut self, n: usize) -> Result<(), Failed> {
        let (want, from) = self.want(n);
        let found = self.nodes[n].worker.probe(self.matching(n, want, from));
        let Some(found) = found else { return Ok(()) };
        self.trace.tell(
            &[3, n as u64, found.tag, found.len],
            format_args!("{}: {n} probes {want:x?} from {from:?}: {found:?}", self.step),
        );
        match want {
            Want::Tagged { .. } => self.envelope(n, want, from, &found).map(drop),
            Want::Untagged => Ok(()),
        }
    }

    /// Checks what a probe for a tagged message found; answers the message's number.
    fn envelope(
        &self,
        n: usize,
        want: Want,
        from: Option<usize>,
        found: &ucp::Envelope,
    ) -> Result<usize, Failed> {
        let (sender, seq) = of_tag(found.tag);
        let ledger = &self.nodes[n].ledger;
        let rec = Rec { want, from, room: 0, many: false, end: End::Open };
        let msg = ledger.find(sender, seq).filter(|msg| {
            let m = ledger.msg(*msg);
            m.fate == Fate::Waits && m.tag == Some(found.tag) && m.len as u64 == found.len && rec.names(m)
        });
        msg.ok_or_else(|| {
            self.fail(format!("worker {n}: probe for {want:x?} from {from:?} found {found:x?}"))
        })
    }

    /// A matched probe; its message is received now or later.
    pub(super) fn take(&mut self, n: usize) -> Result<(), Failed> {
        let (want, from) = self.want(n);
        let Some(message) = self.nodes[n].worker.mprobe(self.matching(n, want, from)) else { return Ok(()) };
        let found = message.envelope();
        let room = self.room();
        let rec = self.nodes[n].ledger.posted(want, from, room);
        self.trace.tell(
            &[4, n as u64, found.tag, found.len, rec as u64],
            format_args!("{}: {n} takes by probe {rec} {want:x?} from {from:?}: {found:?}", self.step),
        );
        if let Want::Tagged { .. } = want {
            let msg = self.envelope(n, want, from, &found)?;
            let got = self.nodes[n].ledger.got(rec, msg, Step::MAX);
            got.map_err(|e| self.broken(n, e))?;
        }
        self.nodes[n].taken.push(Taken { rec, message });
        // Which untagged message it is shows its content only: it is received at once.
        if want == Want::Untagged || self.rng.percent(50) {
            return self.receive_last_taken(n);
        }
        Ok(())
    }

    pub(super) fn receive_one_taken(&mut self, n: usize) -> Result<(), Failed> {
        let len = self.nodes[n].taken.len();
        if len > 0 {
            let at = self.rng.below(len as u64) as usize;
            self.nodes[n].taken.swap(at, len - 1);
        }
        self.receive_last_taken(n)
    }

    fn receive_last_taken(&mut self, n: usize) -> Result<(), Failed> {
        let Some(Taken { rec, message }) = self.nodes[n].taken.pop() else { return Ok(()) };
        let cuts = self.rooms(self.nodes[n].ledger.rec(rec).room);
        let request = Room::probed(message, &cuts);
        self.nodes[n].recvs.push(Receiving { rec, cancelled: None, request });
        self.settle_recvs(n)
    }

    /// Receives everything that probes took.
    pub(super) fn receive_taken(&mut self, n: usize) -> Result<(), Failed> {
        while !self.nodes[n].taken.is_empty() {
            self.receive_last_taken(n)?;
        }
        Ok(())
    }

    /// Drops a message that a probe took: its sender must not notice.
    pub(super) fn discard(&mut self, n: usize) -> Result<(), Failed> {
        let Some(Taken { rec, message }) = self.nodes[n].taken.pop() else { return Ok(()) };
        drop(message);
        let End::Got { msg, .. } = self.nodes[n].ledger.rec(rec).end else { return Ok(()) };
        self.trace.tell(
            &[16, n as u64, msg as u64],
            format_args!("{}: {n} discards message {msg}, taken by {rec}", self.step),
        );
        self.outcome.discarded += 1;
        let got = self.nodes[n].ledger.got(rec, msg, self.step);
        got.map_err(|e| self.broken(n, e))
    }

    /// Throws a message away that nobody has asked for: its sender must not notice. Untagged ones do not say which they are.
    pub(super) fn throw_away(&mut self, n: usize) -> Result<(), Failed> {
        let (want, from) = self.want(n);
        if want == Want::Untagged {
            return Ok(());
        }
        let Some(found) = self.nodes[n].worker.discard(self.matching(n, want, from)) else { return Ok(()) };
        let msg = self.envelope(n, want, from, &found)?;
        let rec = self.nodes[n].ledger.posted(want, from, 0);
        self.trace.tell(
            &[17, n as u64, msg as u64, rec as u64],
            format_args!("{}: {n} throws message {msg} away: {want:x?} from {from:?}", self.step),
        );
        self.outcome.unread += 1;
        let got = self.nodes[n].ledger.got(rec, msg, self.step);
        got.map_err(|e| self.broken(n, e))
    }

    /// Nothing unexpected is left.
    pub(super) fn nothing_to_probe(&self, n: usize) -> Result<(), Failed> {
        for want in [Want::Tagged { tag: 0, mask: 0 }, Want::Untagged] {
            if let Some(found) = self.nodes[n].worker.probe(self.matching(n, want, None)) {
                return Err(self.fail(format!("worker {n}: a message too many: {found:x?}")));
            }
        }
        Ok(())
    }
}
