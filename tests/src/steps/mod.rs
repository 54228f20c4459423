//! The end of a process at every step of every protocol: killed, gone, or with its endpoint closed; as the one that starts
//! the operation or as its target. Used by `tests/steps.rs`. Knows nothing of what outcome is right: the test's table does.
//!
//! Two processes in lockstep: the other one makes progress only when it is told to, one event at a time, and its queues
//! are so short that an event is at most one packet more. So the same step is the same moment in every run, and whoever
//! is ended there stands still.

pub mod op;
pub mod side;
pub mod survivor;
pub mod victim;

use serde::{Deserialize, Serialize};
use std::fmt;
use ucp::wire::PktType;
use ucp::wire::table::row;

/// What the other process does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Exchanges a message each way, so that the two have met.
    Meet,
    /// Does its part of the operation.
    Start,
    /// Makes progress once.
    Turn,
    /// Closes its endpoint.
    Close(Closing),
    /// Drops everything and ends.
    Leave,
}

/// How an endpoint is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Closing {
    /// With all the time that it needs.
    InTime,
    /// At once.
    ByForce,
}

/// How a process, or its part, ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// By SIGKILL.
    Killed,
    /// It drops its worker and exits.
    Left,
    /// It closes its endpoint; later it exits.
    Closed(Closing),
}

impl Ending {
    /// Those that are not by force of the system.
    pub const ORDERLY: [Ending; 3] =
        [Ending::Left, Ending::Closed(Closing::InTime), Ending::Closed(Closing::ByForce)];
}

/// Who starts the operation, and whose memory or receive it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The one who starts it.
    Initiator,
    /// The other one.
    Target,
}

impl Role {
    /// Both.
    pub const ALL: [Role; 2] = [Role::Initiator, Role::Target];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Role::Initiator => "initiator",
            Role::Target => "target",
        }
    }

    /// The other role.
    pub fn other(self) -> Role {
        match self {
            Role::Initiator => Role::Target,
            Role::Target => Role::Initiator,
        }
    }
}

/// Where a process is in an operation: what it has sent and received since it began, by type, what its device has read,
/// and which of its ends there have been.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Packets sent, by type byte.
    pub sent: Vec<(u8, u64)>,
    /// Packets received.
    pub got: Vec<(u8, u64)>,
    /// Reads that its device was asked for.
    pub reads: u64,
    /// Ends, in order.
    pub ended: Vec<bool>,
    /// Its endpoint has been closed, and that has ended.
    pub closed: bool,
}

/// A moment of both processes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Where the one is that will be ended.
    pub victim: Place,
    /// Where the other is.
    pub survivor: Place,
}

impl Moment {
    /// What has happened since the moment `before`, in words, when the victim has the role `victim`: `target sent CTS`.
    pub fn since(&self, before: &Moment, victim: Role) -> String {
        let sides =
            [(victim, &before.victim, &self.victim), (victim.other(), &before.survivor, &self.survivor)];
        let news = sides.map(|(role, before, now)| (role.name(), now.since(before)));
        let news = news.iter().filter(|(_, words)| !words.is_empty());
        news.map(|(role, words)| format!("{role} {words}")).collect::<Vec<_>>().join("; ")
    }
}

impl Place {
    fn since(&self, before: &Place) -> String {
        let count = |list: &[(u8, u64)], ty| list.iter().find(|(t, _)| *t == ty).map_or(0, |(_, n)| *n);
        let mut words = Vec::new();
        for (verb, before, now) in [("sent", &before.sent, &self.sent), ("got", &before.got, &self.got)] {
            for &(ty, n) in now.iter().filter(|(ty, n)| *n > count(before, *ty)) {
                let number = if n > 1 { format!(" {n}") } else { String::new() };
                words.push(format!("{verb} {}{number}", row(PktType(ty)).name));
            }
        }
        if self.reads > before.reads {
            words.push(format!("read {}", self.reads));
        }
        if self.ended.iter().zip(&before.ended).any(|(now, before)| now > before) {
            words.push("ended".into());
        }
        words.join(", ")
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = Place::default();
        write!(f, "victim: {}; survivor: {}", self.victim.since(&none), self.survivor.since(&none))
    }
}
