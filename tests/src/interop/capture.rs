//! Captures of both ends, read through `efa-dump --json`: the packets of each pair of queue pairs. Used by
//! `run` when the processes of a group have ended. Never parses packets itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::pair::PlayError;

/// A queue pair: GID and number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id {
    gid: Ipv6Addr,
    qpn: u32,
}

impl Id {
    pub fn of(raw: &[u8; 32]) -> Id {
        let mut gid = [0; 16];
        gid.copy_from_slice(&raw[..16]);
        Id { gid: gid.into(), qpn: u32::from(u16::from_le_bytes([raw[16], raw[17]])) }
    }
}

#[derive(Deserialize)]
struct Record {
    seen: String,
    from: RecordEnd,
    to: RecordEnd,
    #[serde(rename = "type")]
    name: String,
    length: u32,
    imm: Option<u32>,
    status: u8,
    violations: Vec<String>,
    #[serde(default)]
    fields: Fields,
}

#[derive(Deserialize)]
struct RecordEnd {
    gid: Ipv6Addr,
    qpn: u32,
}

#[derive(Deserialize, Default)]
struct Fields {
    msg_id: Option<u64>,
    rma_iov_count: Option<u64>,
    raw_addr: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Last {
    at_end: Vec<String>,
}

/// Packets of one direction between two queue pairs, as their sender saw them.
#[derive(Default, Debug)]
struct Flow {
    messages: BTreeMap<String, BTreeSet<u64>>,
    /// Counts of packets without a message id.
    others: BTreeMap<String, usize>,
    /// Requests with their sender's address in the header, and the names of those without.
    addressed: usize,
    bare: Vec<String>,
    violations: Vec<String>,
}

#[derive(Default, Debug)]
pub struct Captures {
    flows: BTreeMap<(Id, Id), Flow>,
    /// Violations that no packet shows.
    pub at_end: Vec<String>,
}

impl Captures {
    pub fn read(efa_dump: &Path, dir: &Path) -> Result<Captures, PlayError> {
        let entries =
            std::fs::read_dir(dir).map_err(|e| PlayError::Dump(format!("{}: {e}", dir.display())))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| path.extension().is_some_and(|ext| ext == "pcapng"));
        files.sort();
        let output = Command::new(efa_dump).arg("--json").args(&files).output();
        let output = output.map_err(|e| PlayError::Dump(format!("{}: {e}", efa_dump.display())))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut all = Captures::default();
        for line in text.lines() {
            if let Ok(record) = serde_json::from_str::<Record>(line) {
                all.add(record);
            } else if let Ok(last) = serde_json::from_str::<Last>(line) {
                all.at_end = last.at_end;
            } else {
                return Err(PlayError::Dump(format!("unexpected line: {line}")));
            }
        }
        if all.flows.is_empty() {
            return Err(PlayError::Dump(format!("no packets: {}", String::from_utf8_lossy(&output.stderr))));
        }
        Ok(all)
    }

    fn add(&mut self, mut record: Record) {
        if record.imm.is_some() {
            record.name.push_str("_IMM");
        }
        let id = |end: &RecordEnd| Id { gid: end.gid, qpn: end.qpn };
        let flow = self.flows.entry((id(&record.from), id(&record.to))).or_default();
        for violation in record.violations {
            flow.violations.push(format!("{}: {violation}", record.name));
        }
        // A device reads 0 bytes to check that another one lives.
        let asks = record.name == "RDMA_READ" && record.length == 0;
        if record.seen != "out" || record.status != 0 || asks {
            return;
        }
        if ["RTM", "_RTW", "_RTR", "_RTA"].iter().any(|end| record.name.ends_with(end)) {
            match record.fields.raw_addr {
                Some(_) => flow.addressed += 1,
                None => flow.bare.push(record.name.clone()),
            }
        }
        match record.fields.msg_id.filter(|_| record.name.ends_with("RTM") || record.name.ends_with("_RTA")) {
            Some(msg_id) => {
                flow.messages.entry(record.name).or_default().insert(msg_id);
            }
            // An empty write without a target asks for a handshake.
            None if record.fields.rma_iov_count == Some(0) => {
                *flow.others.entry("TRIGGER".into()).or_default() += 1;
            }
            None => *flow.others.entry(record.name).or_default() += 1,
        }
    }

    pub fn violations(&self, connected: &[(Id, Id)]) -> Vec<String> {
        let flows = connected.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        flows.filter_map(|flow| self.flows.get(&flow)).flat_map(|flow| flow.violations.clone()).collect()
    }

    /// Counts messages and operations of these flows by their first packet.
    pub fn begun(&self, flows: &[(Id, Id)]) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for flow in flows.iter().filter_map(|flow| self.flows.get(flow)) {
            let requests = |name: &&String| {
                name.starts_with("RDMA_") || name.ends_with("_RTW") || name.ends_with("_RTR")
            };
            let others = flow.others.iter().filter(|(name, _)| requests(name)).map(|(name, n)| (name, *n));
            for (name, n) in flow.messages.iter().map(|(name, ids)| (name, ids.len())).chain(others) {
                *all.entry(name.clone()).or_default() += n;
            }
        }
        all
    }

    /// The number of requests of a flow if each has its sender's address; else the first without.
    pub fn addressed(&self, flow: (Id, Id)) -> Result<usize, String> {
        let Some(flow) = self.flows.get(&flow) else { return Ok(0) };
        match flow.bare.first() {
            None => Ok(flow.addressed),
            Some(name) => Err(format!(
                "{} of {} requests without their sender's address, {name} first",
                flow.bare.len(),
                flow.bare.len() + flow.addressed
            )),
        }
    }

    /// The number of packets of this name, which carry no message id.
    pub fn packets(&self, flow: (Id, Id), name: &str) -> usize {
        self.flows.get(&flow).and_then(|flow| flow.others.get(name)).copied().unwrap_or(0)
    }
}
