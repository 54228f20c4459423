//! `-p`, `-w` and `-m`: the transports of a context; interfaces and address of a worker; memory that it
//! allocates.

use std::fmt::Write as _;

use serde::Serialize;
use tools_common::units::short_bytes;
use ucp::Context;
use ucs::config::Source;
use uct::api::{DevKind, IfaceAttr, TlResource};

#[derive(Serialize)]
pub struct ContextInfo {
    transports: Vec<String>,
    /// Transports without messages, of which a worker uses the first that the system permits.
    rma_only: Vec<String>,
}

#[derive(Serialize)]
pub struct WorkerInfo {
    lanes: Vec<Lane>,
    /// The lane without messages.
    rma_only: Option<Lane>,
    address: String,
    address_len: usize,
    can_sleep: bool,
}

#[derive(Serialize)]
struct Lane {
    transport: &'static str,
    device: String,
}

#[derive(Serialize)]
pub struct MemoryInfo {
    bytes: usize,
    address: String,
    remote_key_len: usize,
    /// Transports whose device has a key of its own.
    device_keys: Vec<&'static str>,
}

/// The configuration restricted to transports of one kind.
pub fn restrict_to(source: &Source, kind: DevKind) -> Result<Source, String> {
    let context = Context::configured(source.clone()).map_err(|e| e.to_string())?;
    let all = || context.resources().iter().chain(context.rma_only_resources());
    let mut tls: Vec<&str> = all().filter(|r| r.kind == kind).map(|r| r.tl).collect();
    tls.dedup();
    match tls.is_empty() {
        true => {
            let mut left: Vec<&str> = all().map(|r| r.tl).collect();
            left.dedup();
            Err(format!("-D: no transport of {kind} devices is left (there are: {})", left.join(", ")))
        }
        false => Ok(source.clone().with("UCX_TLS", &tls.join(","))),
    }
}

/// Allocates memory as a program would, and frees it.
pub fn memory(source: &Source, bytes: usize) -> Result<MemoryInfo, String> {
    let worker = Context::configured(source.clone()).and_then(|c| c.worker()).map_err(|e| e.to_string())?;
    let mem = worker.mem_alloc(bytes, ucp::Access::all()).map_err(|e| format!("-m {bytes}: {e}"))?;
    let mut device_keys: Vec<&'static str> = worker.ifaces().into_iter().map(|lane| lane.tl).collect();
    device_keys.retain(|tl| mem.device_key(tl).is_some());
    device_keys.dedup();
    let address = format!("{:#x}", mem.addr());
    Ok(MemoryInfo { bytes: mem.len(), address, remote_key_len: mem.pack_rkey().len(), device_keys })
}

pub fn context(source: &Source) -> Result<ContextInfo, String> {
    let context = Context::configured(source.clone()).map_err(|e| e.to_string())?;
    let names = |all: &[TlResource]| all.iter().map(|r| format!("{}/{}", r.tl, r.dev)).collect();
    Ok(ContextInfo { transports: names(context.resources()), rma_only: names(context.rma_only_resources()) })
}

pub fn worker(source: &Source) -> Result<WorkerInfo, String> {
    let context = Context::configured(source.clone()).map_err(|e| e.to_string())?;
    let worker = context.worker().map_err(|e| e.to_string())?;
    let address = worker.address();
    let lane = |attr: IfaceAttr| Lane { transport: attr.tl, device: attr.dev };
    Ok(WorkerInfo {
        lanes: worker.ifaces().into_iter().map(lane).collect(),
        rma_only: context
            .rma_only_resources()
            .iter()
            // Peers are told of the one that the system permits.
            .find(|r| address.transports().any(|tl| tl == r.tl))
            .map(|r| Lane { transport: r.tl, device: r.dev.clone() }),
        address_len: address.pack().len(),
        address: address.to_string(),
        can_sleep: worker.event_fd().is_some(),
    })
}

impl std::fmt::Display for ContextInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "#\n# UCP context\n#\n#          transports: {}", self.transports.join(", "))?;
        if !self.rma_only.is_empty() {
            writeln!(f, "#            RMA-only: {}", self.rma_only.join(", "))?;
        }
        writeln!(f, "#")
    }
}

impl std::fmt::Display for MemoryInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = if self.device_keys.is_empty() { "none".into() } else { self.device_keys.join(", ") };
        writeln!(f, "#\n# UCP memory allocation\n#")?;
        writeln!(f, "#           allocated: {} at address {}", short_bytes(self.bytes), self.address)?;
        writeln!(f, "#          remote key: {} bytes", self.remote_key_len)?;
        writeln!(f, "#         device keys: {keys}\n#")
    }
}

impl std::fmt::Display for WorkerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::from("#\n# UCP worker\n#\n");
        for (n, lane) in self.lanes.iter().enumerate() {
            writeln!(out, "#             lane[{n}]: {}/{}", lane.transport, lane.device)?;
        }
        if let Some(lane) = &self.rma_only {
            writeln!(out, "#       RMA-only lane: {}/{}", lane.transport, lane.device)?;
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
