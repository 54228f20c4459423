//! `-v`: version of this build and of what it speaks.

use serde::Serialize;

/// What `-v` shows.
#[derive(Serialize)]
pub struct Version {
    version: &'static str,
    wire_protocol: &'static str,
    target: String,
    build: &'static str,
}

impl Version {
    /// This build's.
    pub fn new() -> Version {
        Version {
            version: env!("CARGO_PKG_VERSION"),
            wire_protocol: "EFA RDM v4",
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "# Version {}", self.version)?;
        writeln!(f, "# Wire protocol: {}", self.wire_protocol)?;
        writeln!(f, "# Built for: {}, {}", self.target, self.build)
    }
}
