//! The end of a process at every step of every protocol: killed, gone, or with its endpoint closed; as the one that starts
//! the operation or as its target. Used by `tests/steps.rs`. Knows nothing of what outcome is right: the test's table does.
//!
//! Two processes in lockstep: the other one makes progress only when it is notifications to, one event at a time, and its queues
//! are so short that an event is at most one packet more. So the same step is the same snapshot in every run, and whoever
//! is ended there stands still.

pub mod failing_process;
pub mod observer;
pub mod op;
pub mod side;

use serde::{Deserialize, Serialize};
use std::fmt;
use ucp::wire::PktType;
use ucp::wire::table::info;

/// What the other process does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Exchanges a message each way, so that the two have met.
    Exchange,
    /// Does its part of the operation.
    Start,
    /// Makes progress once.
    Progress,
    /// Closes its endpoint.
    Close(Closing),
    /// Drops everything and ends.
    Exit,
}

/// Op an endpoint is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Closing {
    /// With all the time that it needs.
    Flush,
    /// At once.
    Force,
}

/// Op a process, or its part, ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// By SIGKILL.
    Killed,
    /// It drops its worker and exits.
    Exited,
    /// It closes its endpoint; later it exits.
    Closed(Closing),
}

impl Ending {
    /// Those that are not by force of the system.
    pub const ORDERLY: [Ending; 3] =
        [Ending::Exited, Ending::Closed(Closing::Flush), Ending::Closed(Closing::Force)];
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
pub struct Progress {
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

/// A snapshot of both processes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Where the one is that will be ended.
    pub failing: Progress,
    /// Where the other is.
    pub observer: Progress,
}

impl Snapshot {
    /// What has happened since the snapshot `before`, in words, when the failing has the role `failing`: `target sent CTS`.
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
