//! Choices that have names on the command line: layouts, patterns, ways to wait and to receive.
//! Read by `cli`, kept in a `Spec`. Each says what there is when a name means nothing.

use serde::{Deserialize, Serialize};

ucs::config_enum! {
    /// How data are handed to a transport.
    #[derive(Serialize, Deserialize)]
    pub enum Layout {
        /// In the call.
        Short = "short",
        /// Several pieces in the call.
        ShortIov = "shortiov",
        /// Through the transport's buffer.
        Bcopy = "bcopy",
        /// From where they are.
        Zcopy = "zcopy",
        /// One piece (high level).
        Contig = "contig",
        /// Several pieces (high level).
        Iov = "iov",
    }
}

impl Layout {
    /// The layout of that name.
    pub fn parse_name(name: &str) -> Result<Layout, String> {
        use ucs::config::ConfigValue;
        Layout::parse(name).ok_or_else(|| format!("data layout '{name}' is unknown: {}", Layout::expected()))
    }
}

ucs::config_enum! {
    /// What a side does while it waits.
    #[derive(Serialize, Deserialize)]
    pub enum Waiting {
        /// It polls.
        Poll = "poll",
        /// It sleeps until something happens.
        Sleep = "sleep",
    }
}

impl Waiting {
    /// The mode of that name.
    pub fn parse_name(name: &str) -> Result<Waiting, String> {
        use ucs::config::ConfigValue;
        Waiting::parse(name).ok_or_else(|| format!("wait mode '{name}' is unknown: {}", Waiting::expected()))
    }
}

ucs::config_enum! {
    /// Who sends to whom.
    #[derive(Serialize, Deserialize)]
    pub enum Pattern {
        /// Two by two: the second half of the sides, each to its partner in the first.
        Pairs = "pairs",
        /// Everybody to the first.
        Incast = "incast",
        /// Everybody to everybody else.
        AllToAll = "alltoall",
    }
}

impl Pattern {
    /// The pattern of that name.
    pub fn parse_name(name: &str) -> Result<Pattern, String> {
        use ucs::config::ConfigValue;
        Pattern::parse(name).ok_or_else(|| format!("pattern '{name}' is unknown: {}", Pattern::expected()))
    }
}

ucs::config_enum! {
    /// What a low-level interface is ready for.
    #[derive(Serialize, Deserialize)]
    pub enum Level {
        /// The thread that opened it.
        Single = "single",
        /// Threads that take turns.
        Serialized = "serialized",
        /// Threads at the same time.
        Multi = "multi",
    }
}

impl Level {
    /// The level of that name.
    pub fn parse_name(name: &str) -> Result<Level, String> {
        use ucs::config::ConfigValue;
        Level::parse(name).ok_or_else(|| format!("thread level '{name}' is unknown: {}", Level::expected()))
    }
}

ucs::config_enum! {
    /// How a stream is received.
    #[derive(Serialize, Deserialize)]
    pub enum Receive {
        /// Into memory of the program's.
        Recv = "recv",
        /// In memory of the library's, as it has come.
        Data = "recv_data",
    }
}

impl Receive {
    /// The mode of that name.
    pub fn parse_name(name: &str) -> Result<Receive, String> {
        use ucs::config::ConfigValue;
        Receive::parse(name)
            .ok_or_else(|| format!("receive mode '{name}' is unknown: {}", Receive::expected()))
    }
}
