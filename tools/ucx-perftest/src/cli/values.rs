//! Values of options of which some are known but not supported. They parse, so that a batch file with one is
//! no typing error, and are refused when their test would begin.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    count: u32,
    /// `N:BLOCKS`: for accelerators.
    blocks: bool,
}

impl Threads {
    pub fn parse(text: &str) -> Result<Threads, String> {
        let (count, blocks) = match text.split_once(':') {
            Some((count, blocks)) => (count, Some(blocks)),
            None => (text, None),
        };
        if blocks.is_some_and(|blocks| !blocks.parse::<u32>().is_ok_and(|n| n > 0)) {
            return Err(format!("'{text}' is not a number of threads, or THREADS:BLOCKS"));
        }
        match count.parse() {
            Ok(count @ 1..=64) => Ok(Threads { count, blocks: blocks.is_some() }),
            _ => Err(format!("{count} is not in 1..=64")),
        }
    }

    /// The number of threads, or why the value is not supported.
    pub fn count(self) -> Result<u32, String> {
        match self.blocks {
            false => Ok(self.count),
            true => {
                Err("-T: blocks of threads are for accelerators, of which this program knows none".into())
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorMode {
    None,
    Peer,
    Failover,
}

impl ErrorMode {
    pub fn parse(mode: &str) -> Result<ErrorMode, String> {
        match mode {
            "none" => Ok(ErrorMode::None),
            "peer" => Ok(ErrorMode::Peer),
            "failover" => Ok(ErrorMode::Failover),
            other => Err(format!("-e: mode '{other}' is unknown: one of none, peer")),
        }
    }

    /// Whether endpoints report failed peers, or why the mode is not supported.
    pub fn reported(self) -> Result<bool, String> {
        match self {
            ErrorMode::None => Ok(false),
            ErrorMode::Peer => Ok(true),
            ErrorMode::Failover => {
                Err("-efailover: lanes that are lost are replaced in any case here (there are: none, peer)"
                    .into())
            }
        }
    }
}
