//! Groups of more than two: each member is connected to one server, which collects a value of each member and
//! sends all of them to everybody (allgather). A member that dies or gives up ends the group, and the others
//! are told.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    BootError, Connection, HANDSHAKE_TIMEOUT, Listener, MAX_GROUP_LINE, MAX_LINE, Message, timespec,
};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a server takes what has arrived after it is told to wait no longer.
const LAST_MESSAGES: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct JoinRequest {
    rank: u32,
    size: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GroupMessage {
    #[serde(rename = "say")]
    Value(serde_json::Value),
    #[serde(rename = "bye")]
    Leave,
}

/// The server of a group. Runs on a thread of its own and sleeps while no message arrives.
pub struct GatherServer {
    listener: Arc<Listener>,
    size: u32,
    join_timeout: Duration,
}

/// Longest message of the server, which has a value of each member.
fn max_line(size: u32) -> usize {
    MAX_LINE.saturating_mul(size as usize).min(MAX_GROUP_LINE)
}

impl GatherServer {
    /// A server for `size` members that will connect to `listener`.
    pub fn new(listener: impl Into<Arc<Listener>>, size: u32) -> GatherServer {
        GatherServer { listener: listener.into(), size, join_timeout: HANDSHAKE_TIMEOUT }
    }

    /// Works until all members have left or one is lost. Calls `keep_waiting` ten times a second until all
    /// have connected; its error ends the server.
    pub fn serve(self, mut keep_waiting: impl FnMut() -> Result<(), BootError>) -> Result<(), BootError> {
        let mut members = Vec::new();
        members.resize_with(self.size as usize, || None);
        let result =
            self.accept_members(&mut members, &mut keep_waiting).and_then(|()| run_rounds(&mut members));
        // A member that has given up has said why before it left.
        let said = |connection: &mut Connection| {
            connection.check_alive().err().filter(|e| matches!(e, BootError::PeerAborted(_)))
        };
        let result = result.map_err(|e| match e {
            BootError::PeerAborted(_) => e,
            consequence => members.iter_mut().flatten().find_map(said).unwrap_or(consequence),
        });
        if let Err(e) = &result {
            let why = match e {
                BootError::PeerAborted(why) => why.clone(),
                other => other.to_string(),
            };
            members.iter_mut().flatten().for_each(|connection| connection.abort(&why));
        }
        result
    }

    fn accept_members(
        &self,
        members: &mut [Option<Connection>],
        keep_waiting: &mut impl FnMut() -> Result<(), BootError>,
    ) -> Result<(), BootError> {
        // A member that has ended may have said why, and its connection may still be in the queue.
        let mut ended = None;
        let mut keep_waiting = || {
            if ended.is_none() {
                ended = keep_waiting().err().map(|e| (Instant::now(), e));
            }
            match &ended {
                Some((at, e)) if at.elapsed() >= LAST_MESSAGES => Err(e.clone()),
                _ => Ok(()),
            }
        };
        let mut reception = self.listener.reception();
        reception.timeout = self.join_timeout;
        while members.iter().any(Option::is_none) {
            // Connections of other programs do not end the group, and a silent one delays nobody.
            let (mut connection, request) =
                reception.next_request::<JoinRequest>(&mut keep_waiting, |_, _| {})?;
            connection.max_send = max_line(self.size);
            match members.get_mut(request.rank as usize) {
                Some(slot @ None) if request.size == self.size => *slot = Some(connection),
                _ => connection.abort(&format!(
                    "no rank {} of {} in a group of {}",
                    request.rank, request.size, self.size
                )),
            }
        }
        Ok(())
    }
}

fn run_rounds(members: &mut [Option<Connection>]) -> Result<(), BootError> {
    loop {
        let mut values: Vec<Option<serde_json::Value>> = vec![None; members.len()];
        let mut gone = 0;
        while members.iter().zip(&values).any(|(m, values)| m.is_some() && values.is_none()) {
            wait(members)?;
            for (rank, (slot, values)) in members.iter_mut().zip(&mut values).enumerate() {
                match receive(slot, rank)? {
                    Some(GroupMessage::Value(value)) if values.is_none() => *values = Some(value),
                    Some(GroupMessage::Value(_)) => {
                        return Err(BootError::Malformed(format!(
                            "rank {rank} sent two values in one round"
                        )));
                    }
                    Some(GroupMessage::Leave) => {
                        *slot = None;
                        gone += 1;
                    }
                    None => {}
                }
            }
        }
        if members.iter().all(Option::is_none) {
            return Ok(());
        }
        if gone > 0 {
            return Err(BootError::Malformed("a member left in the middle of the work".into()));
        }
        members.iter_mut().flatten().try_for_each(|connection| connection.send(&values))?;
    }
}

fn wait(members: &[Option<Connection>]) -> Result<(), BootError> {
    if members.iter().flatten().any(|connection| connection.received.contains(&b'\n')) {
        return Ok(());
    }
    let mut fds: Vec<PollFd<'_>> = members
        .iter()
        .flatten()
        .map(|connection| PollFd::from_borrowed_fd(connection.stream.as_fd(), PollFlags::IN))
        .collect();
    match poll(&mut fds, Some(&timespec(POLL_INTERVAL))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(BootError::Io(super::io_text(&e.into()))),
    }
}

/// Takes a message of a member, if one has arrived.
fn receive(slot: &mut Option<Connection>, rank: usize) -> Result<Option<GroupMessage>, BootError> {
    let Some(connection) = slot else { return Ok(None) };
    let lost = |e: BootError| match e {
        BootError::Closed => BootError::PeerAborted(format!("rank {rank} went away")),
        e => e,
    };
    // Messages sent before the member left count.
    let mut line = connection.take_message()?;
    if line.is_none() && super::readable(&connection.stream, Some(Duration::ZERO)) {
        connection.read_available().map_err(lost)?;
        line = connection.take_message()?;
    }
    match line {
        None => Ok(None),
        Some(Message::Value(value)) => {
            serde_json::from_value(value).map(Some).map_err(|e| BootError::Malformed(e.to_string()))
        }
        Some(_) => Err(BootError::Malformed(format!("a message of rank {rank} was expected"))),
    }
}

/// One member of a group.
pub struct Member {
    connection: Connection,
    rank: u32,
    size: u32,
}

impl Member {
    /// Connects to the server at `host:port` as member `rank` of `size`.
    pub fn join(
        tool: &'static str,
        host: &str,
        port: u16,
        rank: u32,
        size: u32,
    ) -> Result<Member, BootError> {
        let mut connection = Connection::connect(tool, host, port)?;
        connection.send(&JoinRequest { rank, size })?;
        connection.max_recv = max_line(size);
        Ok(Member { connection, rank, size })
    }

    /// Number of this member, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of members.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Sends `mine` to all and returns the values of all, by rank. Calls `progress` while it waits.
    pub fn allgather<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        progress: impl FnMut() -> usize,
    ) -> Result<Vec<T>, BootError> {
        let value = serde_json::to_value(mine).expect("values of tools are plain data");
        self.connection.send(&GroupMessage::Value(value))?;
        let all: Vec<T> = self.connection.recv(progress)?;
        if all.len() != self.size as usize {
            return Err(BootError::Malformed(format!("{} values of {} members", all.len(), self.size)));
        }
        Ok(all)
    }

    /// As [`Connection::check_alive`].
    pub fn check_alive(&mut self) -> Result<(), BootError> {
        self.connection.check_alive()
    }

    /// As [`Connection::abort`].
    pub fn abort(&mut self, why: &str) {
        self.connection.abort(why);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Fails if the server is gone or this member has aborted: nothing to do about either.
        let _ = self.connection.send(&GroupMessage::Leave);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const TOOL: &str = "server-test";

    fn server(size: u32) -> (u16, thread::JoinHandle<Result<(), BootError>>) {
        let listener = Listener::local(TOOL).unwrap();
        let port = listener.port();
        (port, thread::spawn(move || GatherServer::new(listener, size).serve(|| Ok(()))))
    }

    fn members(port: u16, size: u32) -> Vec<Member> {
        (0..size).rev().map(|rank| Member::join(TOOL, "127.0.0.1", port, rank, size).unwrap()).collect()
    }

    #[test]
    fn allgather_returns_values_by_rank() {
        let (port, server) = server(5);
        let work = |mut member: Member| {
            thread::spawn(move || {
                for round in 0..20 {
                    let all = member.allgather(&(round, member.rank()), || 0).unwrap();
                    assert_eq!(all, (0..5).map(|rank| (round, rank)).collect::<Vec<_>>());
                }
            })
        };
        let all: Vec<_> = members(port, 5).into_iter().map(work).collect();
        all.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(server.join().unwrap(), Ok(()));
    }

    #[test]
    fn leaving_or_aborting_member_ends_group() {
        for give_up in [false, true] {
            let (port, server) = server(3);
            let mut all = members(port, 3);
            let mut last = all.pop().unwrap();
            let want = if give_up {
                last.abort("no more\nof this");
                "the other side gave up: no more of this"
            } else {
                // As a process that is killed: it says nothing.
                last.connection.stream.shutdown(std::net::Shutdown::Both).unwrap();
                "the other side gave up: rank 0 went away"
            };
            for member in &mut all {
                assert_eq!(member.allgather(&0, || 0).unwrap_err().to_string(), want);
            }
            assert!(server.join().unwrap().is_err());
        }
    }

    #[test]
    fn a_member_that_gives_up_is_heard_when_its_process_ends_before_all_have_come() {
        let listener = Listener::local(TOOL).unwrap();
        let port = listener.port();
        let (left, has_left) = std::sync::mpsc::channel();
        let keep_waiting = move || has_left.try_recv().map_or(Ok(()), |()| Err(BootError::Closed));
        let server = thread::spawn(move || GatherServer::new(listener, 2).serve(keep_waiting));
        let mut first = Member::join(TOOL, "127.0.0.1", port, 0, 2).unwrap();
        first.abort("no core");
        // The server has it on its connection before it looks whether the process is there.
        thread::sleep(Duration::from_millis(300));
        left.send(()).unwrap();
        assert_eq!(server.join().unwrap(), Err(BootError::PeerAborted("no core".into())));
    }

    #[test]
    fn a_member_that_gives_up_is_heard_when_its_process_ends_at_once() {
        for _ in 0..20 {
            let listener = Listener::local(TOOL).unwrap();
            let port = listener.port();
            let (left, has_left) = std::sync::mpsc::channel();
            let keep_waiting = move || has_left.try_recv().map_or(Ok(()), |()| Err(BootError::Closed));
            let server = thread::spawn(move || GatherServer::new(listener, 2).serve(keep_waiting));
            let mut first = Member::join(TOOL, "127.0.0.1", port, 0, 2).unwrap();
            // The server may learn of the end before it reads what is on the connection, which it does for a
            // while.
            let start = std::time::Instant::now();
            left.send(()).unwrap();
            first.abort("no core");
            let is_late = start.elapsed() > LAST_MESSAGES / 2;
            drop(first);
            let ended = server.join().unwrap();
            assert!(is_late || ended == Err(BootError::PeerAborted("no core".into())), "{ended:?}");
        }
    }

    #[test]
    fn silent_client_delays_nobody() {
        let listener = Listener::local(TOOL).unwrap();
        let port = listener.port();
        let server = GatherServer { join_timeout: Duration::from_secs(5), ..GatherServer::new(listener, 2) };
        let server = thread::spawn(move || server.serve(|| Ok(())));
        let silent = Connection::connect(TOOL, "127.0.0.1", port).unwrap();
        drop(members(port, 2));
        assert_eq!(server.join().unwrap(), Ok(()));
        drop(silent);
    }

    #[test]
    fn allgather_result_may_exceed_a_line() {
        let (port, server) = server(3);
        let work = |mut member: Member| {
            thread::spawn(move || {
                let all = member.allgather(&"x".repeat(MAX_LINE / 2), || 0).unwrap();
                assert!(all.iter().all(|values| values.len() == MAX_LINE / 2));
                let text = member.allgather(&"x".repeat(MAX_LINE), || 0).unwrap_err().to_string();
                assert!(text.ends_with("which takes 1048576: ask for less at once"), "{text}");
            })
        };
        let all: Vec<_> = members(port, 3).into_iter().map(work).collect();
        all.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(server.join().unwrap(), Ok(()));
    }

    #[test]
    fn rank_can_be_taken_once() {
        let (port, server) = server(2);
        let _first = Member::join(TOOL, "127.0.0.1", port, 1, 2).unwrap();
        for (rank, size) in [(1, 2), (2, 2), (0, 3)] {
            let mut member = Member::join(TOOL, "127.0.0.1", port, rank, size).unwrap();
            let text = member.allgather(&0, || 0).unwrap_err().to_string();
            assert_eq!(text, format!("the other side gave up: no rank {rank} of {size} in a group of 2"));
        }
        let _other = Member::join(TOOL, "127.0.0.1", port, 0, 2).unwrap();
        drop((_first, _other));
        assert_eq!(server.join().unwrap(), Ok(()));
    }
}
