//! The reference model of one worker: the messages sent to it and the receives that it posted. Written by the
//! job, audited at the end. Knows nothing of packets, time or transports.
//!
//! The arrival of a message is not visible from outside, so the model does not predict matches; it knows
//! which are allowed by the rules of MPI and UCP:
//!
//! 1. A receive takes only messages that it names, and each message is taken once.
//! 2. Messages do not overtake: when a receive has taken a message, every earlier message of the same sender
//!    that it names too was taken by a receive posted earlier.
//! 3. Receives are not passed over: when a message was taken, every receive posted earlier that names it too
//!    was no longer open.
//! 4. Nothing waits for what is there: in an idle job, no open receive names a message that nobody took.

use std::fmt;

/// A step number, which only grows.
pub type StepNo = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatchSpec {
    /// Tagged messages whose tag agrees in the bits of the mask.
    Tagged {
        tag: u64,
        mask: u64,
    },
    Untagged,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Msg {
    pub sender: usize,
    /// Sequence number among all messages of the sender.
    pub seq: u64,
    pub tag: Option<u64>,
    pub len: usize,
    pub sent: StepNo,
    pub state: MsgState,
    /// A receiver in zero-copy receive mode may drop it.
    pub may_be_dropped: bool,
    /// Cancelled after it may have begun: it is received, or a receive ends for it, or neither.
    pub cancelled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MsgState {
    Unmatched,
    /// ProbedMessage by a receive, by number.
    Matched(usize),
    Withdrawn,
}

impl MsgState {
    fn recv(self) -> Option<usize> {
        match self {
            MsgState::Matched(by) => Some(by),
            MsgState::Unmatched | MsgState::Withdrawn => None,
        }
    }
}

/// A receive posted by this worker, or a probe that claimed a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRecord {
    pub want: MatchSpec,
    pub from: Option<usize>,
    pub room: usize,
    /// A multi-receive, open until its buffer is used up.
    pub multi: bool,
    pub end: RecvState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MultiPart {
    rec: usize,
    msg: usize,
    /// Where its bytes begin; messages lie in the order of matching.
    offset: usize,
    at: StepNo,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvState {
    Open,
    Got {
        msg: usize,
        /// When its end was seen; `StepNo::MAX` while the message is only claimed.
        at: StepNo,
    },
    Cancelled {
        at: StepNo,
    },
    /// The sender of its message died before all of it had come.
    PeerFailed,
    /// The device had a message for it that was too long.
    Truncated,
    /// A full multi-receive, and its last message unless that was lost.
    Full(Option<usize>),
}

impl RecvRecord {
    pub fn names(&self, msg: &Msg) -> bool {
        let kind = match (self.want, msg.tag) {
            (MatchSpec::Tagged { tag, mask }, Some(theirs)) => (tag ^ theirs) & mask == 0,
            (MatchSpec::Untagged, None) => true,
            _ => false,
        };
        kind && self.from.is_none_or(|from| from == msg.sender)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! violation {
    ($($text:tt)*) => { Err(Violation(format!($($text)*))) };
}

/// The messages and receives of one worker, in the order of sending and posting.
#[derive(Clone, Debug, Default)]
pub struct Model {
    msgs: Vec<Msg>,
    recs: Vec<RecvRecord>,
    parts: Vec<MultiPart>,
    /// Senders that died or were lost, and when: their messages may be lost.
    lost_senders: Vec<(usize, StepNo)>,
    /// In zero-copy receive mode the device matches: rules 2 and 3 do not hold.
    unordered: bool,
    /// Truncated receives of that mode; which message was lost is not known.
    truncated: usize,
}

impl Model {
    pub fn unordered() -> Model {
        Model { unordered: true, ..Model::default() }
    }

    /// Records a message sent to this worker; answers its number.
    pub fn sent(&mut self, sender: usize, seq: u64, tag: Option<u64>, len: usize, at: StepNo) -> usize {
        self.msgs.push(Msg {
            sender,
            seq,
            tag,
            len,
            sent: at,
            state: MsgState::Unmatched,
            may_be_dropped: false,
            cancelled: false,
        });
        self.msgs.len() - 1
    }

    pub fn posted(&mut self, want: MatchSpec, from: Option<usize>, room: usize) -> usize {
        self.recs.push(RecvRecord { want, from, room, multi: false, end: RecvState::Open });
        self.recs.len() - 1
    }

    /// Records a posted multi-receive; answers its number.
    pub fn posted_multi(&mut self, want: MatchSpec, from: Option<usize>, room: usize) -> usize {
        self.recs.push(RecvRecord { want, from, room, multi: true, end: RecvState::Open });
        self.recs.len() - 1
    }

    pub fn find(&self, sender: usize, seq: u64) -> Option<usize> {
        self.msgs.iter().position(|m| (m.sender, m.seq) == (sender, seq))
    }

    pub fn msg(&self, n: usize) -> &Msg {
        &self.msgs[n]
    }

    pub fn rec(&self, n: usize) -> &RecvRecord {
        &self.recs[n]
    }

    pub fn set_may_be_dropped(&mut self, msg: usize, may_be_dropped: bool) {
        self.msgs[msg].may_be_dropped = may_be_dropped;
    }

    /// Records a receive that was too short; its message is lost.
    pub fn truncated(&mut self, rec: usize) -> Result<(), Violation> {
        self.truncated += 1;
        match &mut self.recs[rec] {
            RecvRecord { end: end @ RecvState::Open, .. } => *end = RecvState::Truncated,
            r => return violation!("receive {rec} {r:?} was cut"),
        }
        Ok(())
    }

    pub fn has_truncated(&self) -> bool {
        self.truncated > 0
    }

    pub fn to_receive(&self) -> impl Iterator<Item = &Msg> {
        self.waiting().filter(|m| !self.unordered || self.must_arrive(m)).skip(self.truncated)
    }

    pub fn open(&self) -> usize {
        self.recs.iter().filter(|r| r.end == RecvState::Open).count()
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Msg> {
        self.msgs.iter().filter(|m| m.state == MsgState::Unmatched)
    }

    /// Records that a receive took a message; checks rule 1.
    pub fn got(&mut self, rec: usize, msg: usize, at: StepNo) -> Result<(), Violation> {
        let (r, m) = (&mut self.recs[rec], &mut self.msgs[msg]);
        if !r.names(m) {
            return violation!(
                "rule 1: receive {rec} {r:?} took message {msg} {m:?}, which it does not name"
            );
        }
        match (r.end, m.state) {
            (RecvState::Open, MsgState::Unmatched) if r.multi => {
                m.state = MsgState::Matched(rec);
                self.parts.push(MultiPart { rec, msg, offset: 0, at });
                return Ok(());
            }
            (RecvState::Open, MsgState::Unmatched) => {}
            // Claimed by a probe before, received now.
            (RecvState::Got { msg: before, at: StepNo::MAX }, MsgState::Matched(by))
                if (before, by) == (msg, rec) => {}
            _ => return violation!("rule 1: receive {rec} {r:?} took message {msg} {m:?}"),
        }
        r.end = RecvState::Got { msg, at };
        m.state = MsgState::Matched(rec);
        Ok(())
    }

    pub fn set_offset(&mut self, offset: usize) {
        if let Some(part) = self.parts.last_mut() {
            part.offset = offset;
        }
    }

    /// Records that a multi-receive is full; `whole`: none of its messages was lost.
    pub fn full(&mut self, rec: usize, whole: bool) -> Result<(), Violation> {
        let parts = self.parts.iter().filter(|part| part.rec == rec);
        let last = parts.max_by_key(|part| (part.offset, self.msgs[part.msg].len)).map(|part| part.msg);
        match &mut self.recs[rec] {
            RecvRecord { end: end @ RecvState::Open, multi: true, .. } => {
                *end = RecvState::Full(last.filter(|_| whole))
            }
            r => return violation!("receive {rec} {r:?} was filled"),
        }
        Ok(())
    }

    pub fn cancelled(&mut self, rec: usize, at: StepNo) -> Result<(), Violation> {
        match &mut self.recs[rec] {
            RecvRecord { end: end @ RecvState::Open, .. } => *end = RecvState::Cancelled { at },
            r => return violation!("receive {rec} {r:?} was cancelled"),
        }
        Ok(())
    }

    pub fn sender_lost(&mut self, sender: usize, at: StepNo) {
        self.lost_senders.push((sender, at));
    }

    fn is_dead(&self, sender: usize) -> bool {
        self.lost_senders.iter().any(|(lost, _)| *lost == sender)
    }

    /// Whether a sender was lost between two of its messages, which are then unordered.
    fn straddles_loss(&self, e: &Msg, m: &Msg) -> bool {
        self.lost_senders.iter().any(|(lost, at)| *lost == m.sender && e.sent <= *at && *at <= m.sent)
    }

    /// Records a receive ended by the loss of a sender: any lost one, unless it names one.
    pub fn ended_by_loss(&mut self, rec: usize) -> Result<(), Violation> {
        match &mut self.recs[rec] {
            RecvRecord { end: end @ RecvState::Open, from, .. }
                if !self.lost_senders.is_empty()
                    && from.is_none_or(|from| self.lost_senders.iter().any(|(lost, _)| *lost == from)) =>
            {
                *end = RecvState::PeerFailed;
            }
            // Claimed by a probe, and not complete.
            RecvRecord { end: RecvState::Got { msg, at: StepNo::MAX }, .. }
                if self.lost_senders.iter().any(|(lost, _)| *lost == self.msgs[*msg].sender)
                    || self.msgs[*msg].cancelled =>
            {
                self.msgs[*msg].state = MsgState::Withdrawn;
                self.recs[rec].end = RecvState::PeerFailed;
            }
            r => return violation!("receive {rec} {r:?} ended by a death that is none of its own"),
        }
        Ok(())
    }

    /// Messages that nobody has taken and that cannot be lost.
    pub fn required(&self) -> impl Iterator<Item = &Msg> {
        self.waiting().filter(|m| self.must_arrive(m)).skip(self.truncated)
    }

    fn must_arrive(&self, m: &Msg) -> bool {
        m.state == MsgState::Unmatched && !m.may_be_dropped && !m.cancelled && !self.is_dead(m.sender)
    }

    pub fn withdrawn(&mut self, msg: usize) -> Result<(), Violation> {
        match &mut self.msgs[msg] {
            Msg { state: state @ MsgState::Unmatched, .. } => *state = MsgState::Withdrawn,
            m => return violation!("message {msg} {m:?} was withdrawn"),
        }
        Ok(())
    }

    /// Records that a message was cancelled that may have begun.
    pub fn set_cancelled(&mut self, msg: usize) {
        self.msgs[msg].cancelled = true;
    }

    /// Whether a sender has cancelled a message that may have begun.
    pub fn has_cancelled(&self, sender: usize) -> bool {
        self.msgs.iter().any(|m| m.sender == sender && m.cancelled)
    }

    /// Whether any sender has cancelled a message that may have begun.
    pub fn has_cancelled_any(&self) -> bool {
        self.msgs.iter().any(|m| m.cancelled)
    }

    /// Records a receive ended by the withdrawal of a cancelled message that it names, or had claimed.
    pub fn ended_by_withdrawal(&mut self, rec: usize) -> Result<(), Violation> {
        let r = &self.recs[rec];
        let msg = match r.end {
            RecvState::Got { msg, at: StepNo::MAX } => Some(msg).filter(|msg| self.msgs[*msg].cancelled),
            RecvState::Open => {
                let is_it = |m: &Msg| m.cancelled && m.state == MsgState::Unmatched && r.names(m);
                self.msgs.iter().position(is_it)
            }
            _ => None,
        };
        let Some(msg) = msg else {
            return violation!("receive {rec} {r:?} ended by the withdrawal of no message");
        };
        self.msgs[msg].state = MsgState::Withdrawn;
        self.recs[rec].end = RecvState::PeerFailed;
        Ok(())
    }

    /// Checks rule 4 in an idle job.
    pub fn at_rest(&self) -> Result<(), Violation> {
        for (n, m) in self.msgs.iter().enumerate().filter(|(_, m)| self.must_arrive(m)).skip(self.truncated) {
            let open = |(_, r): &(usize, &RecvRecord)| r.end == RecvState::Open && r.names(m);
            if let Some((rec, r)) = self.recs.iter().enumerate().find(open) {
                return violation!(
                    "rule 4: receive {rec} {r:?} is open at rest, and message {n} {m:?} waits"
                );
            }
        }
        Ok(())
    }

    /// Checks rules 2 and 3 at the end of a run, and that nothing is left.
    pub fn audit(&self) -> Result<(), Violation> {
        if let Some(m) = self.required().next() {
            return violation!("message {m:?} was never taken");
        }
        if let Some(rec) = self
            .recs
            .iter()
            .position(|r| matches!(r.end, RecvState::Open | RecvState::Got { at: StepNo::MAX, .. }))
        {
            return violation!("receive {rec} {:?} is still there", self.recs[rec]);
        }
        if self.unordered {
            return Ok(());
        }
        let taken = || self.msgs.iter().enumerate().filter_map(|(n, m)| Some((n, m.state.recv()?)));
        // Rule 2 first: an overtaken message also violates rule 3.
        taken().try_for_each(|(n, by)| self.check_no_overtaking(n, by))?;
        taken().try_for_each(|(n, by)| self.check_no_recv_passed_over(n, by))
    }

    fn check_no_overtaking(&self, n: usize, by: usize) -> Result<(), Violation> {
        let (m, r) = (&self.msgs[n], &self.recs[by]);
        let earlier = |e: &&Msg| e.sender == m.sender && e.seq < m.seq && r.names(e);
        for e in self.msgs[..n].iter().filter(earlier) {
            match e.state {
                MsgState::Withdrawn => {}
                // Lost with its sender, or partly received: then a receive ended without naming it.
                MsgState::Unmatched if e.cancelled || self.is_dead(e.sender) => {}
                MsgState::Matched(_) if self.straddles_loss(e, m) => {}
                MsgState::Matched(before) if before < by => {}
                MsgState::Matched(before) if before == by && self.is_placed_before(e, m, by) => {}
                _ => return violation!("rule 2: message {n} {m:?} overtook {e:?} at receive {by} {r:?}"),
            }
        }
        Ok(())
    }

    fn is_placed_before(&self, e: &Msg, m: &Msg, by: usize) -> bool {
        let offset = |of: &Msg| {
            let part = self.parts.iter().find(|part| part.rec == by && self.msgs[part.msg] == *of);
            part.map(|part| part.offset)
        };
        offset(e).zip(offset(m)).is_some_and(|(e, m)| e <= m)
    }

    fn completed_at(&self, n: usize, by: usize) -> Option<StepNo> {
        match self.recs[by] {
            RecvRecord { multi: true, .. } => {
                self.parts.iter().find(|part| part.msg == n).map(|part| part.at)
            }
            RecvRecord { end: RecvState::Got { at, .. }, .. } => Some(at),
            _ => None,
        }
    }

    fn check_no_recv_passed_over(&self, n: usize, by: usize) -> Result<(), Violation> {
        let m = &self.msgs[n];
        let Some(at) = self.completed_at(n, by) else {
            return violation!("message {n} {m:?}: no such receive");
        };
        let came_before = |other: usize| {
            let other = &self.msgs[other];
            if other.sender == m.sender && !self.straddles_loss(m, other) {
                other.seq < m.seq
            } else {
                other.sent < at
            }
        };
        for (rec, r) in self.recs[..by].iter().enumerate().filter(|(_, r)| r.names(m)) {
            let closed_before = match r.end {
                RecvState::Open => false,
                RecvState::PeerFailed | RecvState::Truncated | RecvState::Full(None) => true,
                RecvState::Cancelled { at: cancelled } => cancelled < at,
                RecvState::Got { msg, .. } | RecvState::Full(Some(msg)) => came_before(msg),
            };
            if !closed_before {
                return violation!(
                    "rule 3: message {n} {m:?} went to receive {by}, past receive {rec} {r:?}"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: MatchSpec = MatchSpec::Tagged { tag: 0, mask: 0 };

    fn tag(tag: u64) -> MatchSpec {
        MatchSpec::Tagged { tag, mask: u64::MAX }
    }

    /// Messages 0 to 2 with tags 1, 2, 1 of sender 0, and message 3 with tag 1 of sender 1.
    fn model() -> Model {
        let mut l = Model::default();
        for (seq, t) in [(0, 1), (1, 2), (2, 1)] {
            l.sent(0, seq, Some(t), 8, seq);
        }
        l.sent(1, 0, Some(1), 8, 3);
        l
    }

    fn rule(result: Result<(), Violation>) -> String {
        result.unwrap_err().0.chars().take(6).collect()
    }

    #[test]
    fn valid_matching_passes() {
        let mut l = model();
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
    fn each_rule_violation_is_reported() {
        let mut l = model();
        let a = l.posted(tag(2), None, 8);
        assert_eq!(rule(l.got(a, 0, 10)), "rule 1");
        let b = l.posted(ANY, None, 8);
        l.got(b, 0, 10).unwrap();
        let c = l.posted(ANY, None, 8);
        assert_eq!(rule(l.got(c, 0, 10)), "rule 1");
        assert_eq!(rule(l.at_rest()), "rule 4");

        // Message 2 overtakes message 0, which has the same tag and sender.
        let mut l = model();
        let all: Vec<usize> = (0..4).map(|_| l.posted(ANY, None, 8)).collect();
        for (rec, msg) in [(0, 2), (1, 0), (2, 1), (3, 3)] {
            l.got(all[rec], msg, 10).unwrap();
        }
        assert_eq!(rule(l.audit()), "rule 2");

        // Receive 0 was open when receive 1 took message 0: its own message was sent later.
        let mut l = Model::default();
        let (a, b) = (l.posted(ANY, None, 8), l.posted(ANY, None, 8));
        l.sent(0, 0, Some(1), 8, 1);
        l.got(b, 0, 5).unwrap();
        l.sent(1, 0, Some(1), 8, 6);
        l.got(a, 1, 7).unwrap();
        assert_eq!(rule(l.audit()), "rule 3");

        let mut l = Model::default();
        let (a, b) = (l.posted(ANY, None, 8), l.posted(ANY, None, 8));
        l.sent(0, 0, Some(1), 8, 1);
        l.got(b, 0, 5).unwrap();
        l.cancelled(a, 6).unwrap();
        assert_eq!(rule(l.audit()), "rule 3");
    }

    #[test]
    fn multi_recv_follows_the_rules() {
        // The multi-receive has messages 0 to 2; message 3 went to the receive behind it.
        let filled = |offsets: [usize; 3]| {
            let mut l = model();
            let (multi, one) = (l.posted_multi(ANY, None, 24), l.posted(ANY, None, 8));
            for (msg, offset) in offsets.into_iter().enumerate() {
                l.got(multi, msg, 10).unwrap();
                l.set_offset(offset);
            }
            l.got(one, 3, 11).unwrap();
            assert!(l.audit().is_err(), "it is open");
            l.full(multi, true).unwrap();
            assert!(l.full(multi, true).is_err() && l.full(one, true).is_err());
            l
        };
        assert_eq!(filled([0, 8, 16]).audit(), Ok(()));
        assert_eq!(rule(filled([8, 0, 16]).audit()), "rule 2");

        // The multi-receive was open when the receive behind it took message 0.
        let mut l = Model::default();
        let (multi, one) = (l.posted_multi(ANY, None, 8), l.posted(ANY, None, 8));
        l.sent(0, 0, Some(1), 8, 1);
        l.got(one, 0, 5).unwrap();
        l.sent(1, 0, Some(1), 8, 6);
        l.got(multi, 1, 7).unwrap();
        l.full(multi, true).unwrap();
        assert_eq!(rule(l.audit()), "rule 3");
        let mut l = Model::default();
        l.posted_multi(ANY, None, 8);
        l.sent(0, 0, Some(1), 8, 1);
        assert_eq!(rule(l.at_rest()), "rule 4");
    }

    #[test]
    fn withdrawn_messages_do_not_block() {
        let mut l = model();
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
    fn withdrawal_ends_only_receives_of_cancelled_messages() {
        let mut l = model();
        let (a, b) = (l.posted(tag(2), None, 8), l.posted(ANY, Some(0), 8));
        assert!(l.ended_by_withdrawal(b).is_err());
        l.set_cancelled(0);
        assert!(l.has_cancelled(0) && !l.has_cancelled(1));
        assert!(l.clone().ended_by_withdrawal(a).is_err(), "it names another");
        assert_eq!(rule(l.at_rest()), "rule 4");
        l.ended_by_withdrawal(b).unwrap();
        l.got(a, 1, 10).unwrap();
        for msg in [2, 3] {
            let any = l.posted(ANY, None, 8);
            l.got(any, msg, 11).unwrap();
        }
        assert_eq!((l.at_rest(), l.audit()), (Ok(()), Ok(())));
    }

    #[test]
    fn loss_excuses_only_its_own_messages() {
        let mut l = model();
        let (a, b) = (l.posted(ANY, Some(0), 8), l.posted(ANY, Some(1), 8));
        assert!(l.ended_by_loss(a).is_err());
        l.sender_lost(0, 5);
        assert!(l.ended_by_loss(b).is_err());
        l.ended_by_loss(a).unwrap();
        assert_eq!(rule(l.at_rest()), "rule 4");
        l.got(b, 3, 10).unwrap();
        assert_eq!((l.at_rest(), l.audit()), (Ok(()), Ok(())));

        let mut l = model();
        l.sender_lost(1, 5);
        assert!(l.audit().is_err(), "messages of the living must be taken");
    }

    #[test]
    fn messages_around_a_loss_are_unordered() {
        for met_anew in [false, true] {
            let mut l = Model::default();
            let old = l.sent(0, 0, Some(1), 8, 1);
            if met_anew {
                l.sender_lost(0, 2);
            }
            let new = l.sent(0, 1, Some(1), 8, 2);
            let (a, b) = (l.posted(ANY, None, 8), l.posted(ANY, None, 8));
            l.got(a, new, 3).unwrap();
            l.got(b, old, 4).unwrap();
            assert_eq!(l.audit().is_ok(), met_anew);
        }
    }

    #[test]
    fn untagged_and_tagged_do_not_match() {
        let mut l = Model::default();
        l.sent(0, 0, None, 8, 0);
        let any = l.posted(ANY, None, 8);
        assert_eq!(l.at_rest(), Ok(()));
        assert!(l.got(any, 0, 1).is_err());
        let untagged = l.posted(MatchSpec::Untagged, Some(0), 8);
        l.got(untagged, 0, 1).unwrap();
    }
}
