//! What is said at the door: one question, one answer with descriptors. Both sides check what they read.
//! Used by `ask.rs` and `answer.rs`; does no I/O.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Layout of question and answer, and of what is behind the descriptors.
pub const VERSION: u32 = 3;
const MAGIC: u32 = u32::from_le_bytes(*b"uctP");

/// "What is behind this name?"
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Question {
    magic: U32,
    version: U32,
    name: U64,
    stay: U32,
    reserved: U32,
}

/// Whether who asks keeps the connection: then the porter does too, since its end tells of the process's death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stay {
    /// The answer ends it.
    No,
    /// Until the asking side hangs up.
    Yes,
}

/// "This", with the descriptors beside it, or why not.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Answer {
    magic: U32,
    version: U32,
    verdict: U32,
    reserved: U32,
}

/// Room for a question or an answer, and a byte more: a longer one is neither.
pub const ROOM: usize = 25;

/// What the porter says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Descriptors follow: the memory, and for an interface what wakes it.
    Here,
    /// There is nothing of that name (any more).
    Nothing,
    /// Not for this user.
    Denied,
}

impl Question {
    /// About `name`.
    pub fn about(name: u64, stay: Stay) -> Question {
        let stay = u32::from(stay == Stay::Yes).into();
        Question { magic: MAGIC.into(), version: VERSION.into(), name: name.into(), stay, reserved: 0.into() }
    }

    /// The name asked for, if this is a question of our version. Another version is told ours.
    pub fn read(bytes: &[u8]) -> Option<(u64, Stay)> {
        let question = Question::read_from_bytes(bytes).ok()?;
        let known = question.magic.get() == MAGIC && question.version.get() == VERSION;
        let stay = if question.stay.get() == 0 { Stay::No } else { Stay::Yes };
        known.then(|| (question.name.get(), stay))
    }
}

impl Answer {
    /// With this verdict.
    pub fn of(verdict: Verdict) -> Answer {
        let verdict = match verdict {
            Verdict::Here => 0,
            Verdict::Nothing => 1,
            Verdict::Denied => 2,
        };
        Answer { magic: MAGIC.into(), version: VERSION.into(), verdict: verdict.into(), reserved: 0.into() }
    }

    /// The verdict; or the answering side's version where it is not ours; or `None` for nonsense.
    pub fn read(bytes: &[u8]) -> Option<Result<Verdict, u32>> {
        let answer = Answer::read_from_bytes(bytes).ok().filter(|answer| answer.magic.get() == MAGIC)?;
        if answer.version.get() != VERSION {
            return Some(Err(answer.version.get()));
        }
        match answer.verdict.get() {
            0 => Some(Ok(Verdict::Here)),
            1 => Some(Ok(Verdict::Nothing)),
            2 => Some(Ok(Verdict::Denied)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for stay in [Stay::No, Stay::Yes] {
            assert_eq!(Question::read(Question::about(77, stay).as_bytes()), Some((77, stay)));
        }
        for verdict in [Verdict::Here, Verdict::Nothing, Verdict::Denied] {
            assert_eq!(Answer::read(Answer::of(verdict).as_bytes()), Some(Ok(verdict)));
        }
        assert!(size_of::<Question>() < ROOM && size_of::<Answer>() < ROOM);
    }

    #[test]
    fn nonsense_is_not() {
        let (mut question, mut answer) = (Question::about(7, Stay::No), Answer::of(Verdict::Here));
        assert_eq!(Question::read(&question.as_bytes()[1..]), None);
        assert_eq!(Answer::read(&[0; 16]), None);
        question.version = (VERSION + 1).into();
        answer.version = (VERSION + 1).into();
        assert_eq!(Question::read(question.as_bytes()), None);
        assert_eq!(Answer::read(answer.as_bytes()), Some(Err(VERSION + 1)));
        answer = Answer::of(Verdict::Here);
        answer.verdict = 3.into();
        assert_eq!(Answer::read(answer.as_bytes()), None);
    }
}
