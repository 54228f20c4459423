//! Options with named values: layouts, patterns, ways to wait and to receive.

use serde::{Deserialize, Serialize};

ucs::config_enum! {
    /// How data are passed to a transport.
    #[derive(Serialize, Deserialize)]
    pub enum Layout {
        /// In the call.
        Short = "short",
        /// Several pieces in the call.
        ShortIov = "shortiov",
        /// Copied into the transport's buffer.
        Bcopy = "bcopy",
        /// From registered memory.
        Zcopy = "zcopy",
        /// One piece (high level).
        Contig = "contig",
        /// Several pieces (high level).
        Iov = "iov",
    }
}

impl Layout {
    pub fn parse_name(name: &str) -> Result<Layout, String> {
        use ucs::config::ConfigValue;
        Layout::parse(name).ok_or_else(|| format!("data layout '{name}' is unknown: {}", Layout::expected()))
    }
}

ucs::config_enum! {
    /// Mode of a side that waits.
    #[derive(Serialize, Deserialize)]
    pub enum Waiting {
        /// Polls.
        Poll = "poll",
        /// Sleeps until an event.
        Sleep = "sleep",
    }
}

impl Waiting {
    pub fn parse_name(name: &str) -> Result<Waiting, String> {
        use ucs::config::ConfigValue;
        Waiting::parse(name).ok_or_else(|| format!("wait mode '{name}' is unknown: {}", Waiting::expected()))
    }
}

ucs::config_enum! {
    /// Traffic pattern.
    #[derive(Serialize, Deserialize)]
    pub enum Pattern {
        /// Each client to its partner: rank r + size/2 to rank r.
        Pairs = "pairs",
        /// Everybody to rank 0.
        Incast = "incast",
        /// Everybody to everybody else.
        AllToAll = "alltoall",
    }
}

impl Pattern {
    pub fn parse_name(name: &str) -> Result<Pattern, String> {
        use ucs::config::ConfigValue;
        Pattern::parse(name).ok_or_else(|| format!("pattern '{name}' is unknown: {}", Pattern::expected()))
    }
}

ucs::config_enum! {
    /// Thread mode of a worker or low-level interface.
    #[derive(Serialize, Deserialize)]
    pub enum Level {
        /// One thread.
        Single = "single",
        /// Several threads, one at a time.
        Serialized = "serialized",
        /// Several threads at once.
        Multi = "multi",
    }
}

impl Level {
    pub fn parse_name(name: &str) -> Result<Level, String> {
        use ucs::config::ConfigValue;
        Level::parse(name).ok_or_else(|| format!("thread level '{name}' is unknown: {}", Level::expected()))
    }
}

ucs::config_enum! {
    /// How a stream is received.
    #[derive(Serialize, Deserialize)]
    pub enum Receive {
        /// Into memory of the program.
        Recv = "recv",
        /// In memory of the library.
        Data = "recv_data",
    }
}

impl Receive {
    pub fn parse_name(name: &str) -> Result<Receive, String> {
        use ucs::config::ConfigValue;
        Receive::parse(name)
            .ok_or_else(|| format!("receive mode '{name}' is unknown: {}", Receive::expected()))
    }
}
