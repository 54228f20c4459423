//! The sides of a measurement, seen from one: its role, and the out-of-band connection to the other side, to
//! itself, or to a group. Not used while a loop runs, except to check that a silent peer lives.

use serde::{Serialize, de::DeserializeOwned};
use tools_common::boot::{BootError, Connection, Member, PeerWatch};

use crate::fail::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Answers, receives, is the target.
    Server,
    Client,
    /// Loopback.
    Both,
}

impl Side {
    /// Whether this side drives streams and reports.
    pub fn is_active(self) -> bool {
        self != Side::Server
    }

    pub fn is_passive(self) -> bool {
        self != Side::Client
    }
}

/// Whether each side has a core of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CoreSharing {
    /// As far as can be told.
    #[default]
    Dedicated,
    /// Sides share cores, and must yield soon while they wait.
    Shared,
}

enum Peers {
    Loopback,
    Pair(Connection),
    Group(Member),
}

pub struct Link {
    side: Side,
    peers: Peers,
    cores: CoreSharing,
}

impl Link {
    pub fn pair(side: Side, boot: Connection) -> Link {
        Link { side, peers: Peers::Pair(boot), cores: CoreSharing::Dedicated }
    }

    pub fn loopback() -> Link {
        Link { side: Side::Both, peers: Peers::Loopback, cores: CoreSharing::Dedicated }
    }

    /// A member of a group. The second half are clients; client rank r is paired with server rank r - size/2.
    pub fn group(member: Member, cores: CoreSharing) -> Link {
        let side = if member.rank() < member.size() / 2 { Side::Server } else { Side::Client };
        Link { side, peers: Peers::Group(member), cores }
    }

    /// A member of a group in which each is paired with itself.
    pub fn loopback_group(member: Member, cores: CoreSharing) -> Link {
        Link { side: Side::Both, peers: Peers::Group(member), cores }
    }

    pub fn side(&self) -> Side {
        self.side
    }

    pub fn cores(&self) -> CoreSharing {
        self.cores
    }

    pub fn rank(&self) -> usize {
        match &self.peers {
            Peers::Loopback => 0,
            Peers::Pair(_) => usize::from(self.side == Side::Client),
            Peers::Group(member) => member.rank() as usize,
        }
    }

    pub fn size(&self) -> usize {
        match &self.peers {
            Peers::Loopback => 1,
            Peers::Pair(_) => 2,
            Peers::Group(member) => member.size() as usize,
        }
    }

    /// Rank of the side that this one is paired with.
    fn partner(&self) -> usize {
        let half = self.size() / 2;
        match self.side {
            Side::Both => self.rank(),
            Side::Server => self.rank() + half,
            Side::Client => self.rank() - half,
        }
    }

    /// Sends `mine` to all and returns the values of all, by rank.
    pub fn allgather<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: &T,
        progress: impl FnMut() -> usize,
    ) -> Result<Vec<T>, BootError> {
        match &mut self.peers {
            Peers::Loopback => Ok(vec![mine.clone()]),
            Peers::Pair(boot) => {
                let theirs = boot.exchange(mine, progress)?;
                Ok(if self.side == Side::Client {
                    vec![theirs, mine.clone()]
                } else {
                    vec![mine.clone(), theirs]
                })
            }
            Peers::Group(member) => member.allgather(mine, progress),
        }
    }

    /// An allgather of results: if any side fails, all return [`Failure::Agreed`].
    pub fn allgather_result<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        let sent = mine.as_ref().map(Clone::clone).map_err(ToString::to_string);
        let all: Vec<Result<T, String>> = self.allgather(&sent, || 0)?;
        let agreed = |cause| Failure::Agreed(Box::new(cause));
        mine.map_err(agreed)?;
        let all: Result<Vec<T>, String> = all.into_iter().collect();
        all.map_err(|why| agreed(Failure::Connection(BootError::PeerAborted(why))))
    }

    pub fn exchange_result<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let partner = self.partner();
        Ok(self.allgather_result(mine)?.swap_remove(partner))
    }

    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), BootError> {
        match &mut self.peers {
            Peers::Pair(boot) => boot.send(value),
            Peers::Loopback | Peers::Group(_) => Ok(()),
        }
    }

    /// Waits for a value of the other side of a pair; `None` for other links.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BootError> {
        match &mut self.peers {
            Peers::Pair(boot) => boot.recv(|| 0).map(Some),
            Peers::Loopback | Peers::Group(_) => Ok(None),
        }
    }

    pub fn barrier(&mut self, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        match &mut self.peers {
            Peers::Loopback => Ok(()),
            Peers::Pair(boot) => boot.barrier(progress),
            Peers::Group(member) => member.allgather(&(), progress).map(drop),
        }
    }

    /// As [`barrier`](Self::barrier), but a pair calls `progress` all the time and never sleeps.
    pub fn busy_barrier(&mut self, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        match &mut self.peers {
            Peers::Pair(boot) => boot.busy_barrier(progress),
            Peers::Loopback | Peers::Group(_) => self.barrier(progress),
        }
    }

    /// A watch of the other side of a pair, for another thread.
    pub fn watch(&self) -> Result<Option<PeerWatch>, BootError> {
        match &self.peers {
            Peers::Pair(boot) => boot.watch().map(Some),
            Peers::Loopback | Peers::Group(_) => Ok(None),
        }
    }

    pub fn check_alive(&mut self) -> Result<(), BootError> {
        match &mut self.peers {
            Peers::Loopback => Ok(()),
            Peers::Pair(boot) => boot.check_alive(),
            Peers::Group(member) => member.check_alive(),
        }
    }

    /// The cause of a group's failure. A group of two processes has a server in one of them, which ends when
    /// the other process leaves. The connection to that process then tells the cause, and the connection to
    /// the group's server the consequence.
    pub fn cause_of(&mut self, failure: Failure) -> Failure {
        let cause = if failure.is_lost_connection() { self.check_alive().err() } else { None };
        cause.map_or(failure, Failure::Connection)
    }

    /// Tells the other sides why this one gives up, unless they know.
    pub fn abort(&mut self, failure: &Failure) {
        if failure.known_to_peer() {
            return;
        }
        match &mut self.peers {
            Peers::Loopback => {}
            Peers::Pair(boot) => boot.abort(&failure.to_string()),
            Peers::Group(member) => member.abort(&failure.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fail::TOOL;
    use tools_common::boot::Listener;

    fn no_server() -> Failure {
        Failure::Connection(BootError::NoServer {
            tool: TOOL,
            host: "::1".into(),
            port: 9,
            why: "refused".into(),
        })
    }

    #[test]
    fn failed_group_reports_the_process_that_left() {
        let listener = Listener::local(TOOL).unwrap();
        let port = listener.port();
        let client = std::thread::spawn(move || Connection::connect(TOOL, "127.0.0.1", port).unwrap());
        let mut link = Link::pair(Side::Server, listener.accept(|| Ok(())).unwrap());
        let mut client = client.join().unwrap();
        assert_eq!(link.cause_of(no_server()).to_string(), no_server().to_string());
        client.abort("no cores");
        drop(client);
        assert_eq!(link.cause_of(Failure::Run("own".into())).to_string(), "own");
        let told = Failure::Connection(BootError::PeerAborted("no cores".into())).to_string();
        assert_eq!(link.cause_of(no_server()).to_string(), told);
    }
}
