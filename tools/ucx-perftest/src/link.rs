//! The sides of a measurement, seen from one: who this is, and the line to the other one, to itself, or to a group.
//! Used by the tests around their measured loops, never inside, except to ask whether a silent peer still lives.

use serde::{Serialize, de::DeserializeOwned};
use tools_common::boot::{Boot, BootError, Seat, Watch};

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
pub enum Cores {
    /// It has, as far as one can tell.
    #[default]
    Enough,
    /// Sides share cores: who waits should let others run soon.
    Shared,
}

/// Whom the line leads to.
enum To {
    Nobody,
    Other(Boot),
    Group(Seat),
}

/// The line to the other side, or sides.
pub struct Link {
    side: Side,
    to: To,
    cores: Cores,
}

impl Link {
    /// To another process.
    pub fn new(side: Side, boot: Boot) -> Link {
        Link { side, to: To::Other(boot), cores: Cores::Enough }
    }

    /// To itself.
    pub fn loopback() -> Link {
        Link { side: Side::Both, to: To::Nobody, cores: Cores::Enough }
    }

    /// To a group. The second half of its members are clients, each of the member so many places before it.
    pub fn group(seat: Seat, cores: Cores) -> Link {
        let side = if seat.rank() < seat.size() / 2 { Side::Server } else { Side::Client };
        Link { side, to: To::Group(seat), cores }
    }

    /// To a group in which each member has itself for the other side.
    pub fn loopbacks(seat: Seat, cores: Cores) -> Link {
        Link { side: Side::Both, to: To::Group(seat), cores }
    }

    /// Which side this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Whether the sides share cores.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// This side's number, from 0.
    pub fn rank(&self) -> usize {
        match &self.to {
            To::Nobody => 0,
            To::Other(_) => usize::from(self.side == Side::Client),
            To::Group(seat) => seat.rank() as usize,
        }
    }

    /// How many sides there are.
    pub fn size(&self) -> usize {
        match &self.to {
            To::Nobody => 1,
            To::Other(_) => 2,
            To::Group(seat) => seat.size() as usize,
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
    pub fn gather<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: &T,
        progress: impl FnMut() -> usize,
    ) -> Result<Vec<T>, BootError> {
        match &mut self.to {
            To::Nobody => Ok(vec![mine.clone()]),
            To::Other(boot) => {
                let theirs = boot.exchange(mine, progress)?;
                Ok(if self.side == Side::Client {
                    vec![theirs, mine.clone()]
                } else {
                    vec![mine.clone(), theirs]
                })
            }
            To::Group(seat) => seat.gather(mine, progress),
        }
    }

    /// Gathers what every side can fail at: another side's failure is this one's too, and [`Failure::Agreed`].
    pub fn gather_result<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        let told = mine.as_ref().map(Clone::clone).map_err(ToString::to_string);
        let all: Vec<Result<T, String>> = self.gather(&told, || 0)?;
        let agreed = |cause| Failure::Agreed(Box::new(cause));
        mine.map_err(agreed)?;
        let all: Result<Vec<T>, String> = all.into_iter().collect();
        all.map_err(|why| agreed(Failure::Boot(BootError::Peer { why })))
    }

    /// Exchanges, with the side that this one is paired with, what both can fail at.
    pub fn exchange_result<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let partner = self.partner();
        Ok(self.gather_result(mine)?.swap_remove(partner))
    }

    /// Sends a value to the other side of two.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), BootError> {
        match &mut self.to {
            To::Other(boot) => boot.send(value),
            To::Nobody | To::Group(_) => Ok(()),
        }
    }

    /// Waits for a value of the other side of two; there is none otherwise.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BootError> {
        match &mut self.to {
            To::Other(boot) => boot.recv(|| 0).map(Some),
            To::Nobody | To::Group(_) => Ok(None),
        }
    }

    /// Waits for all sides, with progress meanwhile.
    pub fn barrier(&mut self, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        match &mut self.to {
            To::Nobody => Ok(()),
            To::Other(boot) => boot.barrier(progress),
            To::Group(seat) => seat.gather(&(), progress).map(drop),
        }
    }

    /// For a thread that wants to know whether the other side of two is there.
    pub fn watch(&self) -> Result<Option<Watch>, BootError> {
        match &self.to {
            To::Other(boot) => boot.watch().map(Some),
            To::Nobody | To::Group(_) => Ok(None),
        }
    }

    /// An error if another side is gone.
    pub fn alive(&mut self) -> Result<(), BootError> {
        match &mut self.to {
            To::Nobody => Ok(()),
            To::Other(boot) => boot.alive(),
            To::Group(seat) => seat.alive(),
        }
    }

    /// Tells the others why this side gives up, unless they know.
    pub fn give_up(&mut self, failure: &Failure) {
        if failure.known_to_peer() {
            return;
        }
        match &mut self.to {
            To::Nobody => {}
            To::Other(boot) => boot.abort(&failure.to_string()),
            To::Group(seat) => seat.abort(&failure.to_string()),
        }
    }
}
