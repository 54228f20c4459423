//! What the two sides say first: which tool, which protocol, which version.

use serde::{Deserialize, Serialize};

use super::BootError;

/// Version of the lines that follow the hello, and of what they mean.
pub const PROTOCOL: u32 = 5;

/// The first line of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    /// Name of the tool.
    pub tool: String,
    /// Its protocol.
    pub protocol: u32,
    /// Its build version: told to people, not compared.
    pub version: String,
}

impl Handshake {
    /// This build's.
    pub fn new(tool: &str) -> Handshake {
        Handshake { tool: tool.to_owned(), protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Whether the two can work together.
    pub fn agrees(&self, theirs: &Handshake) -> Result<(), BootError> {
        if (self.tool.as_str(), self.protocol) == (theirs.tool.as_str(), theirs.protocol) {
            return Ok(());
        }
        // A claim goes into the text: not longer than a name is, and printable.
        let clean = |s: &str| s.chars().filter(|c| !c.is_control()).take(40).collect::<String>();
        Err(BootError::Version {
            theirs: clean(&format!("{} {}", theirs.tool, theirs.version)),
            theirs_protocol: theirs.protocol,
            ours: format!("{} {}", self.tool, self.version),
            ours_protocol: self.protocol,
        })
    }
}
