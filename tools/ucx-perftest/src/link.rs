//! The two sides of a measurement, seen from one: who this is, and the line to the other one (or to itself).
//! Used by the tests around their measured loops, never inside, except to ask whether a silent peer still lives.

use serde::{Serialize, de::DeserializeOwned};
use tools_common::boot::{Boot, BootError};

use crate::fail::Failure;

/// Which side this process is.
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

/// The line to the other side.
pub struct Link {
    side: Side,
    boot: Option<Boot>,
}

impl Link {
    /// To another process.
    pub fn new(side: Side, boot: Boot) -> Link {
        Link { side, boot: Some(boot) }
    }

    /// To itself.
    pub fn loopback() -> Link {
        Link { side: Side::Both, boot: None }
    }

    /// Which side this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Gives the other side `mine`, answers its.
    pub fn exchange<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: &T,
        progress: impl FnMut() -> usize,
    ) -> Result<T, BootError> {
        match &mut self.boot {
            Some(boot) => boot.exchange(mine, progress),
            None => Ok(mine.clone()),
        }
    }

    /// Exchanges what both sides can fail at: the other side's failure is this one's too.
    pub fn exchange_result<T: Serialize + DeserializeOwned + Clone>(
        &mut self,
        mine: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let told = mine.as_ref().map(Clone::clone).map_err(ToString::to_string);
        let theirs: Result<T, String> = self.exchange(&told, || 0)?;
        mine?;
        theirs.map_err(|why| Failure::Boot(BootError::Peer { why }))
    }

    /// Sends a value to the other side.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<(), BootError> {
        self.boot.as_mut().map_or(Ok(()), |boot| boot.send(value))
    }

    /// Waits for a value of the other side; there is none in loopback.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, BootError> {
        self.boot.as_mut().map(|boot| boot.recv(|| 0)).transpose()
    }

    /// Waits for the other side, with progress meanwhile.
    pub fn barrier(&mut self, progress: impl FnMut() -> usize) -> Result<(), BootError> {
        self.boot.as_mut().map_or(Ok(()), |boot| boot.barrier(progress))
    }

    /// An error if the other side is gone.
    pub fn alive(&mut self) -> Result<(), BootError> {
        self.boot.as_mut().map_or(Ok(()), Boot::alive)
    }

    /// Tells the other side why this one gives up, unless it knows.
    pub fn give_up(&mut self, failure: &Failure) {
        if let Some(boot) = &mut self.boot
            && !failure.known_to_peer()
        {
            boot.abort(&failure.to_string());
        }
    }
}
