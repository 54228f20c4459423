//! The sides of a measurement, seen from one: who this is, and the line to the other one, to itself, or to a group.
//! Used by the tests around their measured loops, never inside, except to ask whether a silent peer still lives.

use serde::{Serialize, de::DeserializeOwned};
use tools_common::boot::{BootError, Connection, Member, PeerWatch};

use crate::fail::Failure;

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Answers, receives, is the target. Waited for the other one.
    Server,
    /// Starts, sends, measures.
    Client,
    /// Both at once: loopback.
    Both,
}

impl Side {
    /// Whether this side drives streams and reports.
    pub fn is_active(self) -> bool {
        self != Side::Server
    }

    /// Whether this side receives.
    pub fn is_passive(self) -> bool {
        self != Side::Client
    }
}

/// Whether every side has a core of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CoreSharing {
    /// It has, as far as one can tell.
    #[default]
    Dedicated,
    /// Sides share cores: who waits should let others run soon.
    Shared,
}

/// Whom the line leads to.
enum Peers {
    Loopback,
    Pair(Connection),
    Group(Member),
}

/// The line to the other side, or sides.
pub struct Link {
    side: Side,
    peers: Peers,
    cores: CoreSharing,
}

impl Link {
    /// To another process.
    pub fn pair(side: Side, boot: Connection) -> Link {
        Link { side, peers: Peers::Pair(boot), cores: CoreSharing::Dedicated }
    }

    /// To itself.
    pub fn loopback() -> Link {
        Link { side: Side::Both, peers: Peers::Loopback, cores: CoreSharing::Dedicated }
    }

    /// To a group. The second half of its members are clients, each of the member so many places before it.
    pub fn group(member: Member, cores: CoreSharing) -> Link {
        let side = if member.rank() < member.size() / 2 { Side::Server } else { Side::Client };
        Link { side, peers: Peers::Group(member), cores }
    }

    /// To a group in which each member has itself for the other side.
    pub fn loopback_group(member: Member, cores: CoreSharing) -> Link {
        Link { side: Side::Both, peers: Peers::Group(member), cores }
    }

    /// Which side this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Whether the sides share cores.
    pub fn cores(&self) -> CoreSharing {
        self.cores
    }

    /// This side's number, from 0.
    pub fn rank(&self) -> usize {
        match &self.peers {
            Peers::Loopback => 0,
            Peers::Pair(_) => usize::from(self.side == Side::Client),
            Peers::Group(member) => member.rank() as usize,
        }
    }

    /// How many sides there are.
    pub fn size(&self) -> usize {
        match &self.peers {
            Peers::Loopback => 1,
            Peers::Pair(_) => 2,
            Peers::Group(member) => member.size() as usize,
        }
    }

    /// The number of the side that this one is paired with.
    fn partner(&self) -> usize {
        let half = self.size() / 2;
        match self.side {
            Side::Both => self.rank(),
            Side::Server => self.rank() + half,
            Side::Client => self.rank() - half,
        }
    }

    /// Gives everybody `mine`, answers everybody's, by number.
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

    /// Gathers what every side can fail at: another side's failure is this one's too, and [`Failure::Agreed`].
    pub fn allgather_result<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        let sent = mine.as_ref().map(Clone::clone).map_err(ToString::to_string);
        let all: Vec<Result<T, String>> = self.allgather(&sent, || 0)?;
        let agreed = |cause| Failure::Agreed(Box::new(cause));
        mine.map_err(agreed)?;
        let all: Result<Vec<T>, String> = all.into_iter().collect();
        all.map_err(|why| agreed(Failure::Connection(BootError::PeerAborted { why })))
    }

    /// Exchanges, with the side that this one is paired with, what both can fail at.
    pub fn exchange_result<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let partner = self.partner();
        Ok(self.allgather_result(mine)?.swap_remove(partner))
    }

    /// Sends a value to the other side of two.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), BootError> {
        match &mut self.peers {
            Peers::Pair(boot) => boot.send(value),
            Peers::Loopback | Peers::Group(_) => Ok(()),
        }
    }

    /// Waits for a value of the other side of two; there is none otherwise.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BootError> {
        match &mut self.peers {
            Peers::Pair(boot) => boot.recv(|| 0).map(Some),
            Peers::Loopback | Peers::Group(_) => Ok(None),
        }
    }

    /// Waits for all sides, with progress meanwhile.
    pub fn barrier(&mut self, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        match &mut self.peers {
            Peers::Loopback => Ok(()),
            Peers::Pair(boot) => boot.barrier(progress),
            Peers::Group(member) => member.allgather(&(), progress).map(drop),
        }
    }

    /// For a thread that wants to know whether the other side of two is there.
    pub fn watch(&self) -> Result<Option<PeerWatch>, BootError> {
        match &self.peers {
            Peers::Pair(boot) => boot.watch().map(Some),
            Peers::Loopback | Peers::Group(_) => Ok(None),
        }
    }

    /// An error if another side is gone.
    pub fn check_alive(&mut self) -> Result<(), BootError> {
        match &mut self.peers {
            Peers::Loopback => Ok(()),
            Peers::Pair(boot) => boot.check_alive(),
            Peers::Group(member) => member.check_alive(),
        }
    }

    /// Tells the others why this side gives up, unless they know.
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
