//! The first message of each side: tool, protocol number, version.

use serde::{Deserialize, Serialize};

use super::BootError;

/// Version of the messages after the handshake, and of their meaning.
pub const PROTOCOL: u32 = 5;

/// The first message of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    /// Name of the tool.
    pub tool: String,
    /// Protocol number.
    pub protocol: u32,
    /// Build version: shown to users, not compared.
    pub version: String,
}

impl Handshake {
    /// The handshake of this build.
    pub fn new(tool: &str) -> Handshake {
        Handshake { tool: tool.to_owned(), protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Returns an error unless both sides are the same tool with the same protocol number.
    pub fn agrees(&self, theirs: &Handshake) -> Result<(), BootError> {
        if (self.tool.as_str(), self.protocol) == (theirs.tool.as_str(), theirs.protocol) {
            return Ok(());
        }
        // The other side's text goes into the error: short and printable.
        let clean = |s: &str| s.chars().filter(|c| !c.is_control()).take(40).collect::<String>();
        Err(BootError::Version {
            theirs: clean(&format!("{} {}", theirs.tool, theirs.version)),
            theirs_protocol: theirs.protocol,
            ours: format!("{} {}", self.tool, self.version),
            ours_protocol: self.protocol,
        })
    }
}
