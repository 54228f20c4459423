//! Reads pcapng files of the software EFA device. A truncated file gives the packets before the cut.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::PcapError;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};

use crate::record::Record;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// Not pcapng, or damaged at the start.
    #[error("{}: not a pcapng file ({reason}); SOFTEFA_PCAP=FILE makes one", path.display())]
    Foreign { path: PathBuf, reason: String },
    #[error("{}: link type {found}, not 147 (USER0) as captures of the software EFA device have", path.display())]
    LinkType { path: PathBuf, found: u32 },
    #[error("{}: packet {nth} has no header of the software EFA device, or one of another version", path.display())]
    Header {
        path: PathBuf,
        /// From 1.
        nth: usize,
    },
}

const TRUNCATED: &str = "its last block is not whole";

/// Why a capture ends at this error.
pub fn why_cut(error: &PcapError) -> String {
    match error {
        PcapError::IncompleteBuffer => TRUNCATED.into(),
        PcapError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => TRUNCATED.into(),
        e => e.to_string(),
    }
}

/// A time in nanoseconds: the reader takes any unit for them. Exact where it is right.
pub fn nanoseconds(timestamp: Duration, unit: f64) -> u64 {
    match unit {
        1.0 => timestamp.as_nanos() as u64,
        unit => (timestamp.as_nanos() as f64 * unit) as u64,
    }
}

pub struct Capture {
    pub records: Vec<Record>,
    /// Why the file ends early, if it does.
    pub truncated: Option<String>,
}

/// Reads a file, the `nth` of those given.
pub fn read(path: &Path, nth: usize) -> Result<Capture, FileError> {
    let io = |error| FileError::Io { path: path.into(), error };
    let file = File::open(path).map_err(io)?;
    let mut reader = PcapNgReader::new(BufReader::new(file)).map_err(|e| match e {
        PcapError::IoError(error) if error.kind() != ErrorKind::UnexpectedEof => io(error),
        e => FileError::Foreign { path: path.into(), reason: e.to_string() },
    })?;
    let mut records = Vec::new();
    let mut units = Vec::new();
    let truncated = loop {
        let packet = match reader.next_block() {
            None => break None,
            Some(Err(e)) => break Some(why_cut(&e)),
            Some(Ok(Block::InterfaceDescription(interface))) => {
                let found = u32::from(interface.linktype);
                if found != u32::from(uct::efa::dev::soft::capture::LINKTYPE) {
                    return Err(FileError::LinkType { path: path.into(), found });
                }
                units.push(unit(&interface.options));
                continue;
            }
            Some(Ok(Block::SectionHeader(_))) => {
                units.clear();
                continue;
            }
            Some(Ok(Block::EnhancedPacket(packet))) => packet,
            Some(Ok(_)) => continue,
        };
        let unit = units.get(packet.interface_id as usize).copied().unwrap_or(1000.0);
        let time = nanoseconds(packet.timestamp, unit);
        let record = Record::parse(nth, time, &packet.data);
        records.push(record.ok_or_else(|| FileError::Header { path: path.into(), nth: records.len() + 1 })?);
    };
    Ok(Capture { records, truncated })
}

/// Nanoseconds per unit of time: `if_tsresol`, by default a microsecond.
pub fn unit(options: &[InterfaceDescriptionOption<'_>]) -> f64 {
    let resolution = options.iter().find_map(|o| match o {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    match resolution.unwrap_or(6) {
        9 => 1.0,
        two if two & 0x80 != 0 => 1e9 / 2f64.powi((two & 0x7f).into()),
        ten => 1e9 / 10f64.powi(ten.into()),
    }
}
