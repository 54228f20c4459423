//! Compares the wire with what a cell says. Called by `run` when the processes of a group have ended. Does
//! not look at what the ends printed.

use std::collections::BTreeMap;

use super::capture::{Captures, Id};
use super::matrix::{Cell, Contact, Kind, Length, Protocol, What};
use super::process::Stack;

pub type Outcome = Result<Passed, String>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    pub messages: usize,
    pub by: Via,
}

/// How the messages of a passed cell were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via {
    Named,
    /// By the protocol that needs no HANDSHAKE.
    Baseline,
}

pub struct Played {
    pub cell: Cell,
    pub messages: usize,
    /// The connected endpoints, ours first.
    pub connected: Vec<(Id, Id)>,
}

pub fn verify(captures: &Captures, played: &Played) -> Outcome {
    check_violations(captures, &played.connected)?;
    let cell = &played.cell;
    let turn =
        |(ours, theirs): (Id, Id)| if cell.sender == Stack::Ours { (ours, theirs) } else { (theirs, ours) };
    let ways: Vec<(Id, Id)> = played.connected.iter().copied().map(turn).collect();
    let mut seen = captures.begun(&ways);
    // Other messages: two of `exchange_handshakes`, and any number behind atomics.
    let plain = if cell.what.kind() == Some(Kind::Tagged) { "EAGER_TAGRTM" } else { "EAGER_MSGRTM" };
    let besides = match (cell.what, cell.contact) {
        (What::Atomic(_), _) => usize::MAX,
        (_, Contact::After) => 2,
        (_, Contact::First) => 0,
    };
    let left = seen.remove(plain).unwrap_or(0).saturating_sub(besides);
    if left > 0 {
        seen.insert(plain.into(), left);
    }
    let by = how(cell, played.messages, seen).ok_or_else(|| {
        let want = cell.what.packet();
        format!("{} by {want} expected, seen {:?}", played.messages, captures.begun(&ways))
    })?;
    for (ours, theirs) in &played.connected {
        for way in [(*ours, *theirs), (*theirs, *ours)] {
            let handshakes = captures.packets(way, "HANDSHAKE");
            // An end may close before the other's first packet has come.
            if handshakes > 1 || (handshakes == 0 && cell.contact == Contact::After) {
                return Err(format!("{handshakes} HANDSHAKEs one way"));
            }
        }
    }
    Ok(Passed { messages: played.messages, by })
}

fn how(cell: &Cell, messages: usize, mut seen: BTreeMap<String, usize>) -> Option<Via> {
    let mut by_itself = seen.remove(&cell.what.packet()).unwrap_or(0);
    match cell.what {
        // Of a burst, messages that find a runting read in flight are read as a whole.
        What::Message(Protocol::RuntRead, delivery, kind) if by_itself > 0 => {
            let whole = What::Message(Protocol::LongRead, delivery, kind).packet();
            by_itself += seen.remove(&whole).unwrap_or(0);
        }
        // They go in pieces, and empty ones not at all.
        What::DirectRead | What::DirectWrite(_) => {
            let some = cell.sizes().iter().filter(|len| **len > 0).count();
            by_itself = if by_itself >= some { messages } else { by_itself };
        }
        // Keys of the libfabric provider are those of the device, too, which carries empty ones by nothing.
        What::Write(Length::Short, _) | What::Read(Length::Short) if cell.sender == Stack::Ours => {
            let empty = messages / cell.sizes().len().max(1);
            by_itself = if by_itself + empty == messages { messages } else { by_itself };
        }
        _ => {}
    }
    let instead: usize = cell.before_handshake().iter().filter_map(|name| seen.remove(name)).sum();
    match (by_itself, instead) {
        _ if !seen.is_empty() => None,
        (n, 0) if n == messages => Some(Via::Named),
        (0, n) if n == messages => Some(Via::Baseline),
        _ => None,
    }
}

pub fn check_violations(captures: &Captures, connected: &[(Id, Id)]) -> Result<(), String> {
    match captures.violations(connected).first() {
        None => Ok(()),
        Some(first) => Err(format!("violation: {first}")),
    }
}
