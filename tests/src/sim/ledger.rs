//! What one worker was sent and what it asked for: the model that a run is held against.
//! Written by the world while it runs, audited at the end. Knows nothing of packets, time or transports.
//!
//! When a message reaches the worker is not seen from outside, so the ledger does not predict matches; it knows which
//! are allowed (the rules of MPI and UCP, numbered as in [`Ledger::audit`]):
//!
//! 1. A receive takes only messages that it names, and each message is taken once.
//! 2. A message does not overtake: when a receive has taken one of a sender's messages, every earlier message of that
//!    sender that it names too was taken by a receive posted earlier.
//! 3. A receive is not passed over: when a message was taken by one receive, every receive posted earlier that names it
//!    too was no longer open then.
//! 4. Nothing waits for what is there: in a world at rest, no open receive names a message that nobody took.

use std::fmt;

/// A number that only grows.
pub type Step = u64;

/// Which messages a receive names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Tagged ones whose tag agrees in the bits of the mask.
    Tagged {
        /// The tag.
        tag: u64,
        /// Bits that count.
        mask: u64,
    },
    /// Untagged ones.
    Untagged,
}

/// A message sent to this worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Msg {
    /// Who sent it.
    pub sender: usize,
    /// Its number among all that the sender sends: the order of sending.
    pub seq: u64,
    /// Its tag.
    pub tag: Option<u64>,
    /// Bytes.
    pub len: usize,
    /// When it was sent.
    pub sent: Step,
    /// What became of it.
    pub fate: Fate,
    /// It need not come: a receiver in zero-copy receive mode drops what has no place.
    pub perhaps: bool,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nobody has taken it.
    Waits,
    /// A receive, by number.
    Taken(usize),
    /// Its send was cancelled, or refused by this worker: it never was.
    Withdrawn,
}

impl Fate {
    /// The receive that took it.
    fn taker(self) -> Option<usize> {
        match self {
            Fate::Taken(by) => Some(by),
            Fate::Waits | Fate::Withdrawn => None,
        }
    }
}

/// A receive posted by this worker (or a probe that took a message).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rec {
    /// What it names.
    pub want: Want,
    /// Of this sender only.
    pub from: Option<usize>,
    /// Bytes it has room for.
    pub room: usize,
    /// It takes every message that it names, until its room is used up.
    pub many: bool,
    /// What became of it.
    pub end: End,
}

/// A message in a receive of many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    rec: usize,
    msg: usize,
    /// Where its bytes begin: messages are put one behind the other as they are matched.
    offset: usize,
    /// When its end was seen.
    at: Step,
}

/// What became of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It is posted.
    Open,
    /// It took a message, seen at this step.
    Got {
        /// Number of the message.
        msg: usize,
        /// When its end was seen; `Step::MAX` while only its message is known.
        at: Step,
    },
    /// It was cancelled.
    Cancelled {
        /// When.
        at: Step,
    },
    /// It took a message of a sender that died before all of it had come.
    Bereaved,
    /// The device had a message for it that was too long.
    Cut,
    /// It took as many as it had room for. The last one; nobody, if that is lost with its sender.
    Full(Option<usize>),
}

impl Rec {
    /// Whether it names the message.
    pub fn names(&self, msg: &Msg) -> bool {
        let kind = match (self.want, msg.tag) {
            (Want::Tagged { tag, mask }, Some(theirs)) => (tag ^ theirs) & mask == 0,
            (Want::Untagged, None) => true,
            _ => false,
        };
        kind && self.from.is_none_or(|from| from == msg.sender)
    }
}

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! broken {
    ($($text:tt)*) => { Err(Broken(format!($($text)*))) };
}

/// One worker's messages and receives, in the order of sending and posting.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    msgs: Vec<Msg>,
    recs: Vec<Rec>,
    /// What receives of many took.
    parts: Vec<Part>,
    /// Senders that have died or were lost, and when: their messages may be lost.
    dead: Vec<(usize, Step)>,
    /// Zero-copy receive mode: the device decides which receive gets which message, so rules 2 and 3 do not hold.
    without_order: bool,
    /// Receives of that mode that were too short for some message: which one, nobody says.
    cut: usize,
}

impl Ledger {
    /// That of a worker in zero-copy receive mode.
    pub fn without_order() -> Ledger {
        Ledger { without_order: true, ..Ledger::default() }
    }

    /// A message is sent to this worker; answers its number here.
    pub fn sent(&mut self, sender: usize, seq: u64, tag: Option<u64>, len: usize, at: Step) -> usize {
        self.msgs.push(Msg { sender, seq, tag, len, sent: at, fate: Fate::Waits, perhaps: false });
        self.msgs.len() - 1
    }

    /// A receive is posted; answers its number.
    pub fn posted(&mut self, want: Want, from: Option<usize>, room: usize) -> usize {
        self.recs.push(Rec { want, from, room, many: false, end: End::Open });
        self.recs.len() - 1
    }

    /// A receive of many is posted; answers its number.
    pub fn posted_many(&mut self, want: Want, from: Option<usize>, room: usize) -> usize {
        self.recs.push(Rec { want, from, room, many: true, end: End::Open });
        self.recs.len() - 1
    }

    /// The message `seq` of `sender`.
    pub fn find(&self, sender: usize, seq: u64) -> Option<usize> {
        self.msgs.iter().position(|m| (m.sender, m.seq) == (sender, seq))
    }

    /// A message by number.
    pub fn msg(&self, n: usize) -> &Msg {
        &self.msgs[n]
    }

    /// A receive by number.
    pub fn rec(&self, n: usize) -> &Rec {
        &self.recs[n]
    }

    /// All messages.
    pub fn msgs(&self) -> &[Msg] {
        &self.msgs
    }

    /// Whether a message need not come.
    pub fn may_vanish(&mut self, msg: usize, perhaps: bool) {
        self.msgs[msg].perhaps = perhaps;
    }

    /// A receive was too short for a message, which is lost.
    pub fn cut(&mut self, rec: usize) -> Result<(), Broken> {
        self.cut += 1;
        match &mut self.recs[rec] {
            Rec { end: end @ End::Open, .. } => *end = End::Cut,
            r => return broken!("receive {rec} {r:?} was cut"),
        }
        Ok(())
    }

    /// Whether any was.
    pub fn has_cut(&self) -> bool {
        self.cut > 0
    }

    /// Messages that a worker at rest can receive.
    pub fn to_receive(&self) -> impl Iterator<Item = &Msg> {
        self.waiting().filter(|m| !self.without_order || self.is_due(m)).skip(self.cut)
    }

    /// Receives that are posted.
    pub fn open(&self) -> usize {
        self.recs.iter().filter(|r| r.end == End::Open).count()
    }

    /// Messages that nobody has taken.
    pub fn waiting(&self) -> impl Iterator<Item = &Msg> {
        self.msgs.iter().filter(|m| m.fate == Fate::Waits)
    }

    /// A receive took a message. Rule 1.
    pub fn got(&mut self, rec: usize, msg: usize, at: Step) -> Result<(), Broken> {
        let (r, m) = (&mut self.recs[rec], &mut self.msgs[msg]);
        if !r.names(m) {
            return broken!("rule 1: receive {rec} {r:?} took message {msg} {m:?}, which it does not name");
        }
        match (r.end, m.fate) {
            (End::Open, Fate::Waits) if r.many => {
                m.fate = Fate::Taken(rec);
                self.parts.push(Part { rec, msg, offset: 0, at });
                return Ok(());
            }
            (End::Open, Fate::Waits) => {}
            // Taken by a probe before, received now.
            (End::Got { msg: before, at: Step::MAX }, Fate::Taken(by)) if (before, by) == (msg, rec) => {}
            _ => return broken!("rule 1: receive {rec} {r:?} took message {msg} {m:?}"),
        }
        r.end = End::Got { msg, at };
        m.fate = Fate::Taken(rec);
        Ok(())
    }

    /// Where the message lies that a receive of many took last.
    pub fn lies_at(&mut self, offset: usize) {
        if let Some(part) = self.parts.last_mut() {
            part.offset = offset;
        }
    }

    /// A receive of many has no room for another; `whole`: none of its messages was lost.
    pub fn full(&mut self, rec: usize, whole: bool) -> Result<(), Broken> {
        let parts = self.parts.iter().filter(|part| part.rec == rec);
        let last = parts.max_by_key(|part| (part.offset, self.msgs[part.msg].len)).map(|part| part.msg);
        match &mut self.recs[rec] {
            Rec { end: end @ End::Open, many: true, .. } => *end = End::Full(last.filter(|_| whole)),
            r => return broken!("receive {rec} {r:?} was filled"),
        }
        Ok(())
    }

    /// A receive was cancelled.
    pub fn cancelled(&mut self, rec: usize, at: Step) -> Result<(), Broken> {
        match &mut self.recs[rec] {
            Rec { end: end @ End::Open, .. } => *end = End::Cancelled { at },
            r => return broken!("receive {rec} {r:?} was cancelled"),
        }
        Ok(())
    }

    /// A sender has died, or is lost.
    pub fn bereave(&mut self, sender: usize, at: Step) {
        self.dead.push((sender, at));
    }

    fn is_dead(&self, sender: usize) -> bool {
        self.dead.iter().any(|(dead, _)| *dead == sender)
    }

    /// Whether two messages of one sender were sent in different lives of it: nothing is said of their order.
    fn is_between(&self, e: &Msg, m: &Msg) -> bool {
        self.dead.iter().any(|(dead, at)| *dead == m.sender && e.sent <= *at && *at <= m.sent)
    }

    /// A receive ended since a sender has died. It may have been anybody's, unless it names one.
    pub fn bereaved(&mut self, rec: usize) -> Result<(), Broken> {
        match &mut self.recs[rec] {
            Rec { end: end @ End::Open, from, .. }
                if !self.dead.is_empty()
                    && from.is_none_or(|from| self.dead.iter().any(|(dead, _)| *dead == from)) =>
            {
                *end = End::Bereaved;
            }
            // Taken by a probe, and then not whole.
            Rec { end: End::Got { msg, at: Step::MAX }, .. }
                if self.dead.iter().any(|(dead, _)| *dead == self.msgs[*msg].sender) =>
            {
                self.msgs[*msg].fate = Fate::Withdrawn;
                self.recs[rec].end = End::Bereaved;
            }
            r => return broken!("receive {rec} {r:?} ended by a death that is none of its own"),
        }
        Ok(())
    }

    /// Messages that nobody has taken and that cannot be lost.
    pub fn due(&self) -> impl Iterator<Item = &Msg> {
        self.waiting().filter(|m| self.is_due(m)).skip(self.cut)
    }

    fn is_due(&self, m: &Msg) -> bool {
        m.fate == Fate::Waits && !m.perhaps && !self.is_dead(m.sender)
    }

    /// The send of a message was cancelled.
    pub fn withdrawn(&mut self, msg: usize) -> Result<(), Broken> {
        match &mut self.msgs[msg] {
            Msg { fate: fate @ Fate::Waits, .. } => *fate = Fate::Withdrawn,
            m => return broken!("message {msg} {m:?} was withdrawn"),
        }
        Ok(())
    }

    /// Rule 4, for a world at rest.
    pub fn at_rest(&self) -> Result<(), Broken> {
        for (n, m) in self.msgs.iter().enumerate().filter(|(_, m)| self.is_due(m)).skip(self.cut) {
            let open = |(_, r): &(usize, &Rec)| r.end == End::Open && r.names(m);
            if let Some((rec, r)) = self.recs.iter().enumerate().find(open) {
                return broken!("rule 4: receive {rec} {r:?} is open at rest, and message {n} {m:?} waits");
            }
        }
        Ok(())
    }

    /// Rules 2 and 3, and that nothing waits, at the end of a run.
    pub fn audit(&self) -> Result<(), Broken> {
        if let Some(m) = self.due().next() {
            return broken!("message {m:?} was never taken");
        }
        if let Some(rec) =
            self.recs.iter().position(|r| matches!(r.end, End::Open | End::Got { at: Step::MAX, .. }))
        {
            return broken!("receive {rec} {:?} is still there", self.recs[rec]);
        }
        if self.without_order {
            return Ok(());
        }
        let taken = || self.msgs.iter().enumerate().filter_map(|(n, m)| Some((n, m.fate.taker()?)));
        // Order first: a message that was overtaken also went past the receive of the one that overtook it.
        taken().try_for_each(|(n, by)| self.did_not_overtake(n, by))?;
        taken().try_for_each(|(n, by)| self.passed_nobody(n, by))
    }

    /// Rule 2.
    fn did_not_overtake(&self, n: usize, by: usize) -> Result<(), Broken> {
        let (m, r) = (&self.msgs[n], &self.recs[by]);
        let earlier = |e: &&Msg| e.sender == m.sender && e.seq < m.seq && r.names(e);
        for e in self.msgs[..n].iter().filter(earlier) {
            match e.fate {
                Fate::Withdrawn => {}
                // Lost with its sender, or a part of it was: then a receive ended that says nothing of it.
                Fate::Waits if self.is_dead(e.sender) => {}
                Fate::Taken(_) if self.is_between(e, m) => {}
                Fate::Taken(before) if before < by => {}
                Fate::Taken(before) if before == by && self.lies_before(e, m, by) => {}
                _ => return broken!("rule 2: message {n} {m:?} overtook {e:?} at receive {by} {r:?}"),
            }
        }
        Ok(())
    }

    /// Whether a receive of many matched `e` before `m`.
    fn lies_before(&self, e: &Msg, m: &Msg, by: usize) -> bool {
        let offset = |of: &Msg| {
            let part = self.parts.iter().find(|part| part.rec == by && self.msgs[part.msg] == *of);
            part.map(|part| part.offset)
        };
        offset(e).zip(offset(m)).is_some_and(|(e, m)| e <= m)
    }

    /// When a message was seen to have been received.
    fn seen(&self, n: usize, by: usize) -> Option<Step> {
        match self.recs[by] {
            Rec { many: true, .. } => self.parts.iter().find(|part| part.msg == n).map(|part| part.at),
            Rec { end: End::Got { at, .. }, .. } => Some(at),
            _ => None,
        }
    }

    /// Rule 3.
    fn passed_nobody(&self, n: usize, by: usize) -> Result<(), Broken> {
        let m = &self.msgs[n];
        let Some(at) = self.seen(n, by) else {
            return broken!("message {n} {m:?}: no such receive");
        };
        let came_before = |other: usize| {
            let other = &self.msgs[other];
            if other.sender == m.sender && !self.is_between(m, other) {
                other.seq < m.seq
            } else {
                other.sent < at
            }
        };
        for (rec, r) in self.recs[..by].iter().enumerate().filter(|(_, r)| r.names(m)) {
            let closed_before = match r.end {
                End::Open => false,
                End::Bereaved | End::Cut | End::Full(None) => true,
                End::Cancelled { at: cancelled } => cancelled < at,
                End::Got { msg, .. } | End::Full(Some(msg)) => came_before(msg),
            };
            if !closed_before {
                return broken!("rule 3: message {n} {m:?} went to receive {by}, past receive {rec} {r:?}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Want = Want::Tagged { tag: 0, mask: 0 };

    fn tag(tag: u64) -> Want {
        Want::Tagged { tag, mask: u64::MAX }
    }

    /// Two senders' messages 0..3 with tags 1, 2, 1 from sender 0 and tag 1 from sender 1.
    fn ledger() -> Ledger {
        let mut l = Ledger::default();
        for (seq, t) in [(0, 1), (1, 2), (2, 1)] {
            l.sent(0, seq, Some(t), 8, seq);
        }
        l.sent(1, 0, Some(1), 8, 3);
        l
    }

    fn rule(result: Result<(), Broken>) -> String {
        result.unwrap_err().0.chars().take(6).collect()
    }

    #[test]
    fn a_fair_run_passes() {
        let mut l = ledger();
        let (a, b, c, d) = (
            l.posted(tag(2), None, 8),
            l.posted(ANY, None, 8),
            l.posted(ANY, Some(0), 8),
            l.posted(ANY, None, 8),
        );
        for (rec, msg) in [(b, 3), (a, 1), (c, 0), (d, 2)] {
            l.got(rec, msg, 10).unwrap();
        }
        assert_eq!((l.at_rest(), l.audit()), (Ok(()), Ok(())));
    }

    #[test]
    fn each_rule_is_seen_broken() {
        let mut l = ledger();
        let a = l.posted(tag(2), None, 8);
        assert_eq!(rule(l.got(a, 0, 10)), "rule 1");
        let b = l.posted(ANY, None, 8);
        l.got(b, 0, 10).unwrap();
        let c = l.posted(ANY, None, 8);
        assert_eq!(rule(l.got(c, 0, 10)), "rule 1");
        assert_eq!(rule(l.at_rest()), "rule 4");

        // Message 2 overtakes message 0, which has the same tag and sender.
        let mut l = ledger();
        let all: Vec<usize> = (0..4).map(|_| l.posted(ANY, None, 8)).collect();
        for (rec, msg) in [(0, 2), (1, 0), (2, 1), (3, 3)] {
            l.got(all[rec], msg, 10).unwrap();
        }
        assert_eq!(rule(l.audit()), "rule 2");

        // Receive 0 was open for message 1 when receive 1 took it: its own message was sent later.
        let mut l = Ledger::default();
        let (a, b) = (l.posted(ANY, None, 8), l.posted(ANY, None, 8));
        l.sent(0, 0, Some(1), 8, 1);
        l.got(b, 0, 5).unwrap();
        l.sent(1, 0, Some(1), 8, 6);
        l.got(a, 1, 7).unwrap();
        assert_eq!(rule(l.audit()), "rule 3");

        let mut l = Ledger::default();
        let (a, b) = (l.posted(ANY, None, 8), l.posted(ANY, None, 8));
        l.sent(0, 0, Some(1), 8, 1);
        l.got(b, 0, 5).unwrap();
        l.cancelled(a, 6).unwrap();
        assert_eq!(rule(l.audit()), "rule 3");
    }

    #[test]
    fn a_receive_of_many_keeps_the_rules() {
        // Messages 0, 1 and 2 of sender 0 lie one behind the other, 3 of sender 1 went to the receive behind it.
        let filled = |offsets: [usize; 3]| {
            let mut l = ledger();
            let (many, one) = (l.posted_many(ANY, None, 24), l.posted(ANY, None, 8));
            for (msg, offset) in offsets.into_iter().enumerate() {
                l.got(many, msg, 10).unwrap();
                l.lies_at(offset);
            }
            l.got(one, 3, 11).unwrap();
            assert!(l.audit().is_err(), "it is open");
            l.full(many, true).unwrap();
            assert!(l.full(many, true).is_err() && l.full(one, true).is_err());
            l
        };
        assert_eq!(filled([0, 8, 16]).audit(), Ok(()));
        assert_eq!(rule(filled([8, 0, 16]).audit()), "rule 2");

        // It was open when the receive behind it took message 0: its last message was sent later.
        let mut l = Ledger::default();
        let (many, one) = (l.posted_many(ANY, None, 8), l.posted(ANY, None, 8));
        l.sent(0, 0, Some(1), 8, 1);
        l.got(one, 0, 5).unwrap();
        l.sent(1, 0, Some(1), 8, 6);
        l.got(many, 1, 7).unwrap();
        l.full(many, true).unwrap();
        assert_eq!(rule(l.audit()), "rule 3");
        let mut l = Ledger::default();
        l.posted_many(ANY, None, 8);
        l.sent(0, 0, Some(1), 8, 1);
        assert_eq!(rule(l.at_rest()), "rule 4");
    }

    #[test]
    fn what_was_withdrawn_blocks_nobody() {
        let mut l = ledger();
        l.withdrawn(0).unwrap();
        assert!(l.withdrawn(0).is_err());
        let all: Vec<usize> = (0..3).map(|_| l.posted(ANY, None, 8)).collect();
        for (rec, msg) in [(0, 1), (1, 2), (2, 3)] {
            l.got(all[rec], msg, 10).unwrap();
        }
        assert_eq!(l.audit(), Ok(()));
        assert!(l.clone().got(0, 0, 11).is_err());
    }

    #[test]
    fn the_dead_excuse_only_themselves() {
        let mut l = ledger();
        let (a, b) = (l.posted(ANY, Some(0), 8), l.posted(ANY, Some(1), 8));
        assert!(l.bereaved(a).is_err());
        l.bereave(0, 5);
        assert!(l.bereaved(b).is_err());
        l.bereaved(a).unwrap();
        assert_eq!(rule(l.at_rest()), "rule 4");
        l.got(b, 3, 10).unwrap();
        assert_eq!((l.at_rest(), l.audit()), (Ok(()), Ok(())));

        let mut l = ledger();
        l.bereave(1, 5);
        assert!(l.audit().is_err(), "messages of the living must be taken");
    }

    #[test]
    fn two_lives_of_a_sender_have_no_order() {
        for met_anew in [false, true] {
            let mut l = Ledger::default();
            let old = l.sent(0, 0, Some(1), 8, 1);
            if met_anew {
                l.bereave(0, 2);
            }
            let new = l.sent(0, 1, Some(1), 8, 2);
            let (a, b) = (l.posted(ANY, None, 8), l.posted(ANY, None, 8));
            l.got(a, new, 3).unwrap();
            l.got(b, old, 4).unwrap();
            assert_eq!(l.audit().is_ok(), met_anew);
        }
    }

    #[test]
    fn untagged_and_tagged_do_not_mix() {
        let mut l = Ledger::default();
        l.sent(0, 0, None, 8, 0);
        let any = l.posted(ANY, None, 8);
        assert_eq!(l.at_rest(), Ok(()));
        assert!(l.got(any, 0, 1).is_err());
        let untagged = l.posted(Want::Untagged, Some(0), 8);
        l.got(untagged, 0, 1).unwrap();
    }
}
