//! Failures at every step of every protocol: a process is killed, exits, or closes its endpoint, as initiator
//! or as target. Used by `tests/steps.rs`, whose table has the right outcomes.
//!
//! Two processes run in lockstep. The failing one makes progress only on command, one event at a time, and
//! its queues are so short that an event is at most one packet more. So a step is the same moment in every
//! run, and the process stands still there when it fails.

pub mod failing_process;
pub mod observer;
pub mod op;
pub mod side;

use serde::{Deserialize, Serialize};
use std::fmt;
use ucp::wire::PktType;
use ucp::wire::table::info;

/// A command to the failing process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Exchange a message each way, so that the two have met.
    Exchange,
    /// Start its part of the operation.
    Start,
    /// Make progress once.
    Progress,
    /// Close the endpoint.
    Close(Closing),
    /// Drop everything and exit.
    Exit,
}

/// How an endpoint is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Closing {
    /// With all the time that it needs.
    Flush,
    /// At once.
    Force,
}

/// How a process, or its part, ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// By SIGKILL.
    Killed,
    /// It drops its worker and exits.
    Exited,
    /// It closes its endpoint and exits later.
    Closed(Closing),
}

impl Ending {
    /// Endings without a signal.
    pub const ORDERLY: [Ending; 3] =
        [Ending::Exited, Ending::Closed(Closing::Flush), Ending::Closed(Closing::Force)];
}

/// The role in an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The process that starts it.
    Initiator,
    /// The other one.
    Target,
}

impl Role {
    /// Both.
    pub const ALL: [Role; 2] = [Role::Initiator, Role::Target];

    /// The name in the table.
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

/// The progress of a process in an operation.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Packets sent, by type byte.
    pub sent: Vec<(u8, u64)>,
    /// Packets received, by type byte.
    pub got: Vec<(u8, u64)>,
    /// Reads by its device.
    pub reads: u64,
    /// Whether each of its operations has ended.
    pub ended: Vec<bool>,
    /// Whether its endpoint has been closed.
    pub closed: bool,
}

/// The progress of both processes at a moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Progress of the failing process.
    pub failing: Progress,
    /// Progress of the observer.
    pub observer: Progress,
}

impl Snapshot {
    /// Describes what has happened since `before`, such as `target sent CTS`.
    pub fn since(&self, before: &Snapshot, failing: Role) -> String {
        let sides =
            [(failing, &before.failing, &self.failing), (failing.other(), &before.observer, &self.observer)];
        let news = sides.map(|(role, before, now)| (role.name(), now.since(before)));
        let news = news.iter().filter(|(_, words)| !words.is_empty());
        news.map(|(role, words)| format!("{role} {words}")).collect::<Vec<_>>().join("; ")
    }
}

impl Progress {
    fn since(&self, before: &Progress) -> String {
        let count = |list: &[(u8, u64)], ty| list.iter().find(|(t, _)| *t == ty).map_or(0, |(_, n)| *n);
        let mut words = Vec::new();
        for (verb, before, now) in [("sent", &before.sent, &self.sent), ("got", &before.got, &self.got)] {
            for &(ty, n) in now.iter().filter(|(ty, n)| *n > count(before, *ty)) {
                let number = if n > 1 { format!(" {n}") } else { String::new() };
                words.push(format!("{verb} {}{number}", info(PktType(ty)).name));
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

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = Progress::default();
        write!(f, "failing: {}; observer: {}", self.failing.since(&none), self.observer.since(&none))
    }
}
