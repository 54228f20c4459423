//! What is said at the door: one question about some names, one answer with descriptors. Both sides check what they read.
//! Used by `ask.rs` and `answer.rs`; does no I/O.

use super::Name;
use arrayvec::ArrayVec;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Layout of question and answer, and of what is behind the descriptors.
pub const VERSION: u32 = 5;
/// Most names in a question.
pub const MOST: usize = 16;
/// Most descriptors beside an answer. The system passes 253 at a time.
pub const MOST_FDS: usize = 2 * MOST;
const MAGIC: u32 = u32::from_le_bytes(*b"uctP");

/// First in every version's questions and answers.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Head {
    magic: U32,
    version: U32,
}

const HEAD: Head = Head { magic: U32::new(MAGIC), version: U32::new(VERSION) };

/// "What is behind these names?"
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Question {
    head: Head,
    stay: U32,
    count: U32,
    names: [U64; MOST],
}

/// The names of a question or, one for one, what is said of them.
pub type Each<T> = ArrayVec<T, MOST>;

/// Whether who asks keeps the connection: then the porter does too, since its end tells of the process's death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stay {
    /// The answer ends it.
    No,
    /// Until the asking side hangs up.
    Yes,
}

/// For each name, in the order of the question, "this", with the descriptors beside it, or why not.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Answer {
    head: Head,
    verdicts: [u8; MOST],
    places: [Place; MOST],
}

/// Where a process has memory that it hands out, in its own terms, and what others may do to it.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Debug, Default,
)]
#[repr(C)]
pub struct Place {
    /// First address.
    pub addr: U64,
    /// Bytes.
    pub len: U64,
    /// Bits of an [`Access`](crate::api::Access).
    pub access: U32,
    reserved: U32,
}

impl Place {
    /// The `len` bytes at `addr`.
    pub fn new(addr: u64, len: u64, access: u32) -> Place {
        Place { addr: addr.into(), len: len.into(), access: access.into(), reserved: 0.into() }
    }
}

/// Room for a question or an answer, and a byte more: a longer one is neither.
pub const ROOM: usize = size_of::<Answer>() + 1;
const _: () = assert!(size_of::<Question>() < ROOM);

/// What the porter says of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A descriptor follows: memory, which its owner has there.
    Memory(Place),
    /// Two follow: an interface's memory, and what wakes it.
    Iface,
    /// There is nothing of that name (any more).
    Nothing,
    /// Not for this user.
    Denied,
    /// There is, but it cannot be passed now.
    Later,
}

impl Verdict {
    const fn byte(self) -> u8 {
        match self {
            Verdict::Memory(_) => 0,
            Verdict::Iface => 1,
            Verdict::Nothing => 2,
            Verdict::Denied => 3,
            Verdict::Later => 4,
        }
    }

    const fn of_byte(byte: u8, place: Place) -> Option<Verdict> {
        match byte {
            0 => Some(Verdict::Memory(place)),
            1 => Some(Verdict::Iface),
            2 => Some(Verdict::Nothing),
            3 => Some(Verdict::Denied),
            4 => Some(Verdict::Later),
            _ => None,
        }
    }
}

impl Question {
    /// About `names`, of which the first [`MOST`] count.
    pub fn about(names: &[Name], stay: Stay) -> Question {
        let count = names.len().min(MOST);
        let mut asked = [U64::ZERO; MOST];
        asked.iter_mut().zip(names).for_each(|(to, name)| *to = name.0.into());
        let stay = u32::from(stay == Stay::Yes).into();
        Question { head: HEAD, stay, count: (count as u32).into(), names: asked }
    }

    /// The names asked for, if this is a question of our version. Another version is told ours.
    pub fn read(bytes: &[u8]) -> Option<(Each<Name>, Stay)> {
        let question = Question::read_from_bytes(bytes).ok().filter(|question| question.head == HEAD)?;
        let names = question.names.get(..question.count.get() as usize)?;
        let stay = if question.stay.get() == 0 { Stay::No } else { Stay::Yes };
        Some((names.iter().map(|name| Name(name.get())).collect(), stay))
    }
}

impl Answer {
    /// With these verdicts; of names that were not asked for it says [`Verdict::Nothing`].
    pub fn of(verdicts: impl IntoIterator<Item = Verdict>) -> Answer {
        let (mut said, mut places) = ([Verdict::Nothing.byte(); MOST], [Place::default(); MOST]);
        for (n, verdict) in verdicts.into_iter().enumerate().take(MOST) {
            said[n] = verdict.byte();
            if let Verdict::Memory(place) = verdict {
                places[n] = place;
            }
        }
        Answer { head: HEAD, verdicts: said, places }
    }

    /// The verdicts; or the answering side's version where it is not ours; or `None` for nonsense.
    pub fn read(bytes: &[u8]) -> Option<Result<[Verdict; MOST], u32>> {
        let (head, _) = Head::read_from_prefix(bytes).ok().filter(|(head, _)| head.magic == HEAD.magic)?;
        if head.version != HEAD.version {
            return Some(Err(head.version.get()));
        }
        let answer = Answer::read_from_bytes(bytes).ok()?;
        let mut verdicts = [Verdict::Nothing; MOST];
        for (to, (byte, place)) in verdicts.iter_mut().zip(answer.verdicts.into_iter().zip(answer.places)) {
            *to = Verdict::of_byte(byte, place)?;
        }
        Some(Ok(verdicts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let names: Vec<Name> = (70..70 + MOST as u64).map(Name).collect();
        for (count, stay) in [(0, Stay::No), (1, Stay::Yes), (MOST, Stay::No)] {
            let (heard, how) = Question::read(Question::about(&names[..count], stay).as_bytes()).unwrap();
            assert_eq!((heard.as_slice(), how), (&names[..count], stay));
        }
        let here = Verdict::Memory(Place::new(0x7000, 4096, 3));
        let all = [here, Verdict::Iface, Verdict::Nothing, Verdict::Denied, Verdict::Later];
        let heard = Answer::read(Answer::of(all).as_bytes()).unwrap().unwrap();
        assert_eq!(heard[..all.len()], all);
        assert!(heard[all.len()..].iter().all(|verdict| *verdict == Verdict::Nothing));
    }

    #[test]
    fn nonsense_is_not() {
        let (mut question, mut answer) =
            (Question::about(&[Name(7)], Stay::No), Answer::of([Verdict::Iface]));
        assert_eq!(Question::read(&question.as_bytes()[1..]), None);
        assert_eq!(Answer::read(&[0; size_of::<Answer>()]), None);
        question.count = (MOST as u32 + 1).into();
        assert_eq!(Question::read(question.as_bytes()), None);
        question.count = 1.into();
        question.head.version = (VERSION + 1).into();
        assert_eq!(Question::read(question.as_bytes()), None);
        answer.verdicts[MOST - 1] = 5;
        assert_eq!(Answer::read(answer.as_bytes()), None);
        assert_eq!(Answer::read(&Answer::of([]).as_bytes()[1..]), None);
    }

    #[test]
    fn another_version_is_known_by_its_head() {
        let head = Head { version: (VERSION + 1).into(), ..HEAD };
        assert_eq!(Answer::read(head.as_bytes()), Some(Err(VERSION + 1)));
        let mut longer = head.as_bytes().to_vec();
        longer.extend([9; 100]);
        assert_eq!(Answer::read(&longer), Some(Err(VERSION + 1)));
    }
}
