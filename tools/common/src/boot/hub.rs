//! A group of more than two: everybody has a line to one hub, which collects a value of each and gives all of them to
//! everybody. Barriers, addresses and results go through it; the hub itself understands none of them. Who dies or gives
//! up ends the group: the others are told at once.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Boot, BootError, HELLO_TIME, Line, Listener, MAX_LINE, MAX_OF_ALL, timespec};

/// How often the hub looks whether it still makes sense to wait for members.
const LOOK: Duration = Duration::from_millis(100);

/// Who a new member says it is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Claim {
    rank: u32,
    size: u32,
}

/// What a member says in a round.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Turn {
    Say(serde_json::Value),
    /// It needs nothing more, and neither does anybody of it.
    Bye,
}

/// The middle of a group. Serve it on a thread of its own; it sleeps when nothing is said.
pub struct Hub {
    listener: Listener,
    size: u32,
    patience: Duration,
}

/// Longest line of a hub of so many members: it has a value of each.
fn longest(size: u32) -> usize {
    MAX_LINE.saturating_mul(size as usize).min(MAX_OF_ALL)
}

impl Hub {
    /// A hub for `size` members that will come to `listener`.
    pub fn new(listener: Listener, size: u32) -> Hub {
        Hub { listener, size, patience: HELLO_TIME }
    }

    /// Works until all members have said good-bye, or one is lost. `still` is asked now and then, until all have
    /// come, whether waiting makes sense.
    pub fn serve(self, mut still: impl FnMut() -> Result<(), BootError>) -> Result<(), BootError> {
        let mut members = Vec::new();
        members.resize_with(self.size as usize, || None);
        let result = self.collect(&mut members, &mut still).and_then(|()| rounds(&mut members));
        if let Err(e) = &result {
            let why = match e {
                BootError::Peer { why } => why.clone(),
                other => other.to_string(),
            };
            members.iter_mut().flatten().for_each(|boot| boot.abort(&why));
        }
        result
    }

    fn collect(
        &self,
        members: &mut [Option<Boot>],
        still: &mut impl FnMut() -> Result<(), BootError>,
    ) -> Result<(), BootError> {
        while members.iter().any(Option::is_none) {
            let mut boot = match self.listener.accept(&mut *still) {
                // Strangers are not the group's fault.
                Err(BootError::NotOurs { .. } | BootError::Silent { .. } | BootError::Version { .. }) => {
                    continue;
                }
                boot => boot?,
            };
            // Who has said hello and says no more must not keep the others waiting.
            let until = Some(Instant::now() + self.patience);
            let Ok(claim) = boot.recv_until::<Claim>(until, || 0) else { continue };
            boot.sends = longest(self.size);
            match members.get_mut(claim.rank as usize) {
                Some(seat @ None) if claim.size == self.size => *seat = Some(boot),
                _ => boot
                    .abort(&format!("no seat {} of {} in a group of {}", claim.rank, claim.size, self.size)),
            }
        }
        Ok(())
    }
}

/// One round after another, until nobody is left.
fn rounds(members: &mut [Option<Boot>]) -> Result<(), BootError> {
    loop {
        let mut said: Vec<Option<serde_json::Value>> = vec![None; members.len()];
        let mut left = 0;
        while members.iter().zip(&said).any(|(m, said)| m.is_some() && said.is_none()) {
            wait(members)?;
            for (rank, (seat, said)) in members.iter_mut().zip(&mut said).enumerate() {
                match hear(seat, rank)? {
                    Some(Turn::Say(value)) if said.is_none() => *said = Some(value),
                    Some(Turn::Say(_)) => {
                        return Err(BootError::Garbage { why: format!("seat {rank} spoke out of turn") });
                    }
                    Some(Turn::Bye) => {
                        *seat = None;
                        left += 1;
                    }
                    None => {}
                }
            }
        }
        if members.iter().all(Option::is_none) {
            return Ok(());
        }
        if left > 0 {
            return Err(BootError::Garbage { why: "a member left in the middle of the work".into() });
        }
        members.iter_mut().flatten().try_for_each(|boot| boot.send(&said))?;
    }
}

/// Sleeps until something has come from somebody.
fn wait(members: &[Option<Boot>]) -> Result<(), BootError> {
    if members.iter().flatten().any(|boot| boot.taken.contains(&b'\n')) {
        return Ok(());
    }
    let mut fds: Vec<PollFd<'_>> = members
        .iter()
        .flatten()
        .map(|boot| PollFd::from_borrowed_fd(boot.stream.as_fd(), PollFlags::IN))
        .collect();
    match poll(&mut fds, Some(&timespec(LOOK))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(BootError::Broken { why: super::plain(&e.into()) }),
    }
}

/// What a member has said, if anything.
fn hear(seat: &mut Option<Boot>, rank: usize) -> Result<Option<Turn>, BootError> {
    let Some(boot) = seat else { return Ok(None) };
    let lost = |e: BootError| match e {
        BootError::Gone => BootError::Peer { why: format!("seat {rank} went away") },
        e => e,
    };
    // What it said before it went counts.
    let mut line = boot.take_line()?;
    if line.is_none() && super::readable(&boot.stream, Some(Duration::ZERO)) {
        boot.fill().map_err(lost)?;
        line = boot.take_line()?;
    }
    match line {
        None => Ok(None),
        Some(Line::Value(value)) => {
            serde_json::from_value(value).map(Some).map_err(|e| BootError::Garbage { why: e.to_string() })
        }
        Some(_) => Err(BootError::Garbage { why: format!("a turn of seat {rank} was expected") }),
    }
}

/// A member's place in a group.
pub struct Seat {
    boot: Boot,
    rank: u32,
    size: u32,
}

impl Seat {
    /// Takes place `rank` of `size` at the hub behind `host:port`.
    pub fn join(tool: &'static str, host: &str, port: u16, rank: u32, size: u32) -> Result<Seat, BootError> {
        let mut boot = Boot::connect(tool, host, port)?;
        boot.send(&Claim { rank, size })?;
        boot.takes = longest(size);
        Ok(Seat { boot, rank, size })
    }

    /// This member's number, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many members there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Gives everybody `mine`, answers everybody's, by rank. Calls `progress` while it waits.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        progress: impl FnMut() -> usize,
    ) -> Result<Vec<T>, BootError> {
        let value = serde_json::to_value(mine).expect("values of tools are plain data");
        self.boot.send(&Turn::Say(value))?;
        let all: Vec<T> = self.boot.recv(progress)?;
        if all.len() != self.size as usize {
            return Err(BootError::Garbage { why: format!("{} values of {} members", all.len(), self.size) });
        }
        Ok(all)
    }

    /// As [`Boot::alive`].
    pub fn alive(&mut self) -> Result<(), BootError> {
        self.boot.alive()
    }

    /// As [`Boot::abort`].
    pub fn abort(&mut self, why: &str) {
        self.boot.abort(why);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Lost if the hub is gone, or if this seat has given up before.
        let _ = self.boot.send(&Turn::Bye);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const TOOL: &str = "hub-test";

    fn hub(size: u32) -> (u16, thread::JoinHandle<Result<(), BootError>>) {
        let listener = Listener::local(TOOL).unwrap();
        let port = listener.port();
        (port, thread::spawn(move || Hub::new(listener, size).serve(|| Ok(()))))
    }

    fn seats(port: u16, size: u32) -> Vec<Seat> {
        (0..size).rev().map(|rank| Seat::join(TOOL, "127.0.0.1", port, rank, size).unwrap()).collect()
    }

    #[test]
    fn everybody_gets_everybodys_value_by_rank() {
        let (port, hub) = hub(5);
        let work = |mut seat: Seat| {
            thread::spawn(move || {
                for round in 0..20 {
                    let all = seat.gather(&(round, seat.rank()), || 0).unwrap();
                    assert_eq!(all, (0..5).map(|rank| (round, rank)).collect::<Vec<_>>());
                }
            })
        };
        let all: Vec<_> = seats(port, 5).into_iter().map(work).collect();
        all.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(hub.join().unwrap(), Ok(()));
    }

    #[test]
    fn who_goes_away_or_gives_up_ends_the_group() {
        for give_up in [false, true] {
            let (port, hub) = hub(3);
            let mut all = seats(port, 3);
            let mut last = all.pop().unwrap();
            let want = if give_up {
                last.abort("no more\nof this");
                "the other side gave up: no more of this"
            } else {
                // As a process that is killed: no good-bye.
                last.boot.stream.shutdown(std::net::Shutdown::Both).unwrap();
                "the other side gave up: seat 0 went away"
            };
            for seat in &mut all {
                assert_eq!(seat.gather(&0, || 0).unwrap_err().to_string(), want);
            }
            assert!(hub.join().unwrap().is_err());
        }
    }

    #[test]
    fn who_says_hello_and_no_more_keeps_nobody_waiting() {
        let listener = Listener::local(TOOL).unwrap();
        let port = listener.port();
        let hub = Hub { patience: Duration::from_millis(50), ..Hub::new(listener, 2) };
        let hub = thread::spawn(move || hub.serve(|| Ok(())));
        let silent = Boot::connect(TOOL, "127.0.0.1", port).unwrap();
        drop(seats(port, 2));
        assert_eq!(hub.join().unwrap(), Ok(()));
        drop(silent);
    }

    #[test]
    fn what_all_say_together_may_be_longer_than_what_one_says() {
        let (port, hub) = hub(3);
        let work = |mut seat: Seat| {
            thread::spawn(move || {
                let all = seat.gather(&"x".repeat(MAX_LINE / 2), || 0).unwrap();
                assert!(all.iter().all(|said| said.len() == MAX_LINE / 2));
                let text = seat.gather(&"x".repeat(MAX_LINE), || 0).unwrap_err().to_string();
                assert!(text.ends_with("which takes 1048576: ask for less at once"), "{text}");
            })
        };
        let all: Vec<_> = seats(port, 3).into_iter().map(work).collect();
        all.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(hub.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_seat_is_taken_once() {
        let (port, hub) = hub(2);
        let _first = Seat::join(TOOL, "127.0.0.1", port, 1, 2).unwrap();
        for (rank, size) in [(1, 2), (2, 2), (0, 3)] {
            let mut seat = Seat::join(TOOL, "127.0.0.1", port, rank, size).unwrap();
            let text = seat.gather(&0, || 0).unwrap_err().to_string();
            assert_eq!(text, format!("the other side gave up: no seat {rank} of {size} in a group of 2"));
        }
        let _other = Seat::join(TOOL, "127.0.0.1", port, 0, 2).unwrap();
        drop((_first, _other));
        assert_eq!(hub.join().unwrap(), Ok(()));
    }
}
