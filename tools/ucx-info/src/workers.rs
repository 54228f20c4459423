//! `-p` and `-w`: what a context chooses from this machine's transports, and the worker made from it: its interfaces in
//! the order in which they are polled, and the address by which others reach it.

use std::fmt::Write as _;

use serde::Serialize;
use ucp::Context;
use ucs::config::Source;

/// Transports that the configuration leaves.
#[derive(Serialize)]
pub struct Chosen {
    transports: Vec<String>,
}

/// A worker.
#[derive(Serialize)]
pub struct Worker {
    lanes: Vec<Lane>,
    address: String,
    /// Length of the packed address, bytes.
    address_len: usize,
    /// Whether it can sleep until something happens.
    can_sleep: bool,
}

#[derive(Serialize)]
struct Lane {
    transport: &'static str,
    device: String,
}

/// What a context chooses.
pub fn context(source: &Source) -> Result<Chosen, String> {
    let context = Context::configured(source.clone()).map_err(|e| e.to_string())?;
    Ok(Chosen { transports: context.resources().iter().map(|r| format!("{}/{}", r.tl, r.dev)).collect() })
}

/// A worker of it.
pub fn worker(source: &Source) -> Result<Worker, String> {
    let worker = Context::configured(source.clone()).and_then(|c| c.worker()).map_err(|e| e.to_string())?;
    let address = worker.address();
    Ok(Worker {
        lanes: worker.lanes().into_iter().map(|lane| Lane { transport: lane.tl, device: lane.dev }).collect(),
        address_len: address.pack().len(),
        address: address.to_string(),
        can_sleep: worker.event_fd().is_some(),
    })
}

impl std::fmt::Display for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "#\n# UCP context\n#\n#          transports: {}\n#", self.transports.join(", "))
    }
}

impl std::fmt::Display for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::from("#\n# UCP worker\n#\n");
        for (n, lane) in self.lanes.iter().enumerate() {
            writeln!(out, "#             lane[{n}]: {}/{}", lane.transport, lane.device)?;
        }
        writeln!(out, "#             address: {} bytes, {}", self.address_len, self.address)?;
        writeln!(
            out,
            "#           can sleep: {}\n#",
            if self.can_sleep { "yes" } else { "no: it must poll" }
        )?;
        f.write_str(&out)
    }
}
