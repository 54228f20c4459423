//! A question to a peer's porter: asked once, its answer heard when it comes. Used by interfaces, which go on meanwhile, and by
//! memory domains. A stopped process does not answer and is not dead: whoever asked it says how long that may take.

use super::ask::{self, Given, REST, SPIN};
use super::watch::Sight;
use super::{Each, Fetched, MOST, Name, Porter};
use crate::api::ConnectError;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A question that was asked. Dropped, nobody waits for the answer.
pub struct Asked {
    names: Each<Name>,
    /// Where the answer comes, and how the peer can be watched; none while more wait at its door than may, or it has hung up.
    open: Option<(OwnedFd, Sight)>,
    since: Instant,
    /// A porter answers in microseconds, a starved one in milliseconds; who has not after this long is as good as out of reach.
    patience: Duration,
    /// Not looked for again before.
    next: Instant,
}

/// What has come of a question.
pub enum Heard {
    /// Nothing yet.
    Nothing(Box<Asked>),
    /// The answer, name by name.
    All(Vec<(Name, Result<Fetched, ConnectError>)>),
}

impl Asked {
    /// Whether its answer was waited for longer than anybody's should be. It is heard all the same, should it come.
    pub fn is_overdue(&self) -> bool {
        self.since.elapsed() >= self.patience
    }

    /// Lets the peer's porter run, which may have to have this core.
    fn rest(&self, waited: Duration, left: Duration) -> Result<(), ConnectError> {
        match &self.open {
            _ if waited < SPIN => std::thread::yield_now(),
            Some((door, _)) => ask::await_news(door, left)?,
            None => std::thread::sleep(REST.min(left)),
        }
        Ok(())
    }
}

impl Porter {
    /// Asks the owner of `names`, of which the first [`MOST`] count, for what they name, and does not wait. What is said of one
    /// does not depend on the others, but for descriptors: if they do not suffice, the first names get them. Nobody is to wait
    /// for the answer longer than `patience`.
    pub fn ask(
        &self,
        names: impl IntoIterator<Item = Name>,
        patience: Duration,
    ) -> Result<Box<Asked>, ConnectError> {
        let names: Each<Name> = names.into_iter().take(MOST).collect();
        let open = self.knock(&names).inspect_err(|why| self.clear_up(names.first(), *why))?;
        let now = Instant::now();
        Ok(Box::new(Asked { names, open, since: now, patience, next: now }))
    }

    /// Who is gone has listened before it told anybody its name, so a socket that it has left in a directory is nobody's.
    fn clear_up(&self, first: Option<&Name>, why: ConnectError) {
        if let (ConnectError::Gone, Some(name)) = (why, first) {
            self.place.unlink(name.owner());
        }
    }

    /// `None`: it is to be tried again. A porter that hangs up, and whose process lives, is short of something; or it has closed
    /// its door, which the next try tells.
    fn knock(&self, names: &[Name]) -> Result<Option<(OwnedFd, Sight)>, ConnectError> {
        let owner = names.first().ok_or(ConnectError::Malformed)?.owner();
        let Some(door) = ask::connect(&self.place, owner)? else { return Ok(None) };
        let sight = self.shared.watches.look(owner, &door)?;
        match ask::ask(&door, names, sight.needs_door()) {
            Err(ConnectError::Gone) if sight.may_live() => Ok(None),
            asked => asked.map(|()| Some((door, sight))),
        }
    }

    /// What has come of a question by now, or comes within `wait`. Whoever does not wait may ask as often as it likes: the
    /// longer nothing has come, the less often that is looked for, up to a millisecond. An error is an answer too.
    pub fn hear(&self, mut asked: Box<Asked>, wait: Duration) -> Result<Heard, ConnectError> {
        let start = Instant::now();
        if wait.is_zero() && start < asked.next {
            return Ok(Heard::Nothing(asked));
        }
        let until = start + wait.min(asked.patience.saturating_sub(start - asked.since));
        loop {
            let first = asked.names.first().copied();
            asked = match self.look(asked).inspect_err(|why| self.clear_up(first.as_ref(), *why))? {
                Heard::Nothing(asked) => asked,
                all => return Ok(all),
            };
            let now = Instant::now();
            if now >= until {
                asked.next = now + ((now - asked.since) / 16).min(REST);
                return Ok(Heard::Nothing(asked));
            }
            asked.rest(now - start, until - now)?;
        }
    }

    fn look(&self, mut asked: Box<Asked>) -> Result<Heard, ConnectError> {
        if asked.open.is_none() {
            asked.open = self.knock(&asked.names)?;
        }
        let Some((door, sight)) = asked.open.take() else { return Ok(Heard::Nothing(asked)) };
        let given = match ask::hear(&door, &asked.names) {
            Ok(Some(given)) => given,
            Ok(None) => {
                asked.open = Some((door, sight));
                return Ok(Heard::Nothing(asked));
            }
            Err(ConnectError::Gone) if sight.may_live() => return Ok(Heard::Nothing(asked)),
            Err(why) => return Err(why),
        };
        let owner = asked.names.first().ok_or(ConnectError::Malformed)?.owner();
        let death = self.shared.watches.watch(owner, sight, door)?;
        let fetched = |Given { mem, what }| Fetched { mem, what, death: death.clone() };
        let given = given.into_iter().map(|given| given.map(fetched));
        Ok(Heard::All(asked.names.iter().copied().zip(given).collect()))
    }
}
