//! Report of a worker's counters, at exit or on a signal to `UCX_STATS_DEST`, or by [`Worker::report`].

use crate::select::copy_method::SIZE_CLASSES;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ucs::config::is_first_report;
use ucs::stats::Counters;
use uct::api::{DeviceCounters, Iface as _};

use crate::lane::{RmaOnlyLane, WorkerIface};
use crate::rdm::io::PeerId;
use crate::rdm::rma::RmaProtocol;
use crate::rdm::stats::{PeerStats, Traffic};
use crate::rdm::{Engine, PeerView, Protocol, RdmStats};
use crate::select::copy_method::{CopyMethod, CopyTimes, size_class_min};
use crate::wire::PktType;

/// Printable counters of a worker. Omits rows of zeros.
pub struct Report {
    stats: RdmStats,
    peers: Vec<(PeerId, PeerView, PeerStats)>,
    transports: Vec<&'static str>,
    /// Counters of the devices of the lanes, each device once.
    devices: Vec<(String, Vec<DeviceCounters>)>,
    /// Measured copy costs by peer and lower bound of the message length.
    copy_times: Vec<(PeerId, usize, CopyTimes)>,
    held: usize,
    unexpected: usize,
}

impl Report {
    pub(crate) fn of(engine: &Engine, ifaces: &[WorkerIface], rma_only: Option<&RmaOnlyLane>) -> Report {
        Report {
            stats: engine.peers().stats(),
            peers: engine.peers().iter_with_stats().collect(),
            transports: ifaces.iter().map(|lane| lane.iface.attr().tl).collect(),
            devices: device_counters(ifaces),
            copy_times: copy_times(rma_only),
            held: engine.pending().held_bytes(),
            unexpected: engine.pending().unexpected_bytes(),
        }
    }
}

/// Counters of the devices of the lanes, each device once, by its name.
pub(crate) fn device_counters(ifaces: &[WorkerIface]) -> Vec<(String, Vec<DeviceCounters>)> {
    let mut all: Vec<(String, Vec<DeviceCounters>)> = Vec::new();
    for lane in ifaces {
        let name = &lane.iface.attr().dev;
        if all.iter().all(|(known, _)| known != name) {
            all.push((name.clone(), lane.iface.device_counters()));
        }
    }
    all.retain(|(_, counters)| !counters.is_empty());
    all
}

fn copy_times(rma_only: Option<&RmaOnlyLane>) -> Vec<(PeerId, usize, CopyTimes)> {
    let Some(rma_only) = rma_only else { return Vec::new() };
    let of = |peer: PeerId| {
        (0..SIZE_CLASSES).filter_map(move |class| {
            let from = size_class_min(class);
            Some((peer, from, rma_only.copy_times(peer, from).filter(|found| found.kernel.is_some())?))
        })
    };
    rma_only.peers().into_iter().flat_map(of).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "ucp worker of process {} on {}", std::process::id(), self.transports.join(", "))?;
        let write_traffic = |f: &mut fmt::Formatter<'_>, what: &str, all: &[(&str, Traffic)]| {
            let mut some = all.iter().filter(|(_, traffic)| *traffic != Traffic::default());
            some.try_for_each(|(name, t)| {
                writeln!(f, "  {what} {name}: {} messages, {} bytes", t.msgs, t.bytes)
            })
        };
        write_traffic(
            f,
            "sent",
            &Protocol::ALL.map(|protocol| (protocol.name(), self.stats.sent(protocol))),
        )?;
        write_traffic(
            f,
            "received",
            &Protocol::ALL.map(|protocol| (protocol.name(), self.stats.received(protocol))),
        )?;
        write_traffic(
            f,
            "asked",
            &RmaProtocol::ALL.map(|protocol| (protocol.name(), self.stats.initiated(protocol))),
        )?;
        write_traffic(
            f,
            "served",
            &RmaProtocol::ALL.map(|protocol| (protocol.name(), self.stats.served(protocol))),
        )?;
        for (what, counts) in [("tx", &self.stats.tx_pkts), ("rx", &self.stats.rx_pkts)] {
            for (ty, &count) in (0..=u8::MAX).zip(counts).filter(|(_, count)| **count > 0) {
                writeln!(f, "  {what} {}: {count} packets", PktType(ty))?;
            }
        }
        let names = <crate::rdm::stats::Rare as Counters>::FIELDS.iter().map(|(name, _)| name);
        for (name, count) in names.zip(self.stats.rare.values()).filter(|(_, count)| *count > 0) {
            writeln!(f, "  {name}: {count}")?;
        }
        for (device, parts) in &self.devices {
            let text: String = parts.iter().map(ToString::to_string).collect();
            text.lines().try_for_each(|line| writeln!(f, "  {device} {}", line.trim_start()))?;
        }
        for (id, peer, counts) in &self.peers {
            write!(f, "  peer {} connid {:#x}: ", id.0, peer.addr.connid)?;
            write!(f, "tx {} packets {} bytes, ", counts.tx_pkts, counts.tx_bytes)?;
            write!(f, "rx {} packets {} bytes", counts.rx_pkts, counts.rx_bytes)?;
            match peer.fault {
                Some(fault) => writeln!(f, ", failed: {fault}")?,
                None => f.write_char('\n')?,
            }
        }
        for (id, from, found) in &self.copy_times {
            write!(f, "  peer {}, {} KiB and more:", id.0, from >> 10)?;
            for (name, ns) in [("packets", found.packets), ("kernel", found.kernel)] {
                if let Some(ns) = ns {
                    write!(f, " {name} {:.1} GB/s,", 1024.0 / ns)?;
                }
            }
            writeln!(f, " by {}", if found.method == CopyMethod::Kernel { "the kernel" } else { "packets" })?;
        }
        writeln!(f, "  held: {} bytes, unexpected: {} bytes", self.held, self.unexpected)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Dest {
    Stdout,
    Stderr,
    /// Path of a file to append to.
    File(String),
}

pub(crate) struct StatsDump {
    dest: Dest,
    at_exit: bool,
    signalled: Option<Arc<AtomicBool>>,
}

impl StatsDump {
    pub(crate) fn new(dest: &str, trigger: &str) -> Result<Option<StatsDump>, String> {
        let dest = match dest {
            "" => return Ok(None),
            "stdout" => Dest::Stdout,
            "stderr" => Dest::Stderr,
            other => match other.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Dest::File(ucs::trace::expand_path(path)),
                None if other.starts_with("udp:") => {
                    warn_once(&format!(
                        "UCX_STATS_DEST={other}: counters go to stdout, stderr or file:PATH only"
                    ));
                    return Ok(None);
                }
                _ => return Err(format!("UCX_STATS_DEST={other}: stdout, stderr or file:PATH")),
            },
        };
        let mut dump = StatsDump { dest, at_exit: false, signalled: None };
        for word in trigger.split(',').map(str::trim) {
            match word.strip_prefix("signal:") {
                Some(name) => {
                    let flag = Arc::new(AtomicBool::new(false));
                    signal_hook::flag::register(signal(name)?, flag.clone())
                        .map_err(|e| format!("UCX_STATS_TRIGGER={word}: {e}"))?;
                    dump.signalled = Some(flag);
                }
                None if word == "exit" => dump.at_exit = true,
                None if word.starts_with("timer:") => {
                    warn_once(&format!(
                        "UCX_STATS_TRIGGER={word}: there are exit, signal:USR1 and signal:USR2"
                    ));
                }
                None => {
                    return Err(format!(
                        "UCX_STATS_TRIGGER={word}: exit, signal:USR1 or signal:USR2, or both"
                    ));
                }
            }
        }
        Ok(Some(dump))
    }

    /// Whether the signal has arrived since the last call.
    pub(crate) fn is_signalled(&self) -> bool {
        self.signalled.as_ref().is_some_and(|flag| flag.swap(false, Ordering::Relaxed))
    }

    pub(crate) fn at_exit(&self) -> bool {
        self.at_exit
    }

    pub(crate) fn write(&self, report: &Report) {
        let text = report.to_string();
        let written = match &self.dest {
            Dest::Stdout => std::io::stdout().lock().write_all(text.as_bytes()),
            Dest::Stderr => std::io::stderr().lock().write_all(text.as_bytes()),
            Dest::File(path) => std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(text.as_bytes())),
        };
        if let Err(e) = written {
            tracing::warn!(dest = ?self.dest, "cannot write counters: {e}");
        }
    }
}

fn signal(name: &str) -> Result<i32, String> {
    match name.trim_start_matches("SIG") {
        "USR1" | "10" => Ok(signal_hook::consts::SIGUSR1),
        "USR2" | "12" => Ok(signal_hook::consts::SIGUSR2),
        _ => Err(format!("UCX_STATS_TRIGGER=signal:{name}: USR1 or USR2")),
    }
}

/// Logs a value of UCX that has no effect here.
fn warn_once(text: &str) {
    if is_first_report(text) {
        tracing::warn!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_and_triggers_are_checked() {
        assert!(StatsDump::new("", "nonsense").unwrap().is_none(), "nothing asked for");
        let dump = StatsDump::new("file:/x/%p.txt", "exit").unwrap().unwrap();
        assert_eq!(dump.dest, Dest::File(format!("/x/{}.txt", std::process::id())));
        assert!(dump.at_exit() && !dump.is_signalled());
        // UCX's values that have no effect here.
        assert!(StatsDump::new("udp:host:37873", "exit").unwrap().is_none());
        assert!(!StatsDump::new("stderr", "timer:1").unwrap().unwrap().at_exit());
        assert!(StatsDump::new("stderr", "signal:12").unwrap().unwrap().signalled.is_some());
        for (dest, trigger) in [("file:", "exit"), ("tcp:host", "exit"), ("stderr", "signal:KILL")] {
            assert!(StatsDump::new(dest, trigger).is_err(), "{dest} {trigger}");
        }
    }

    #[test]
    fn a_signal_is_noticed_once() {
        let dump = StatsDump::new("stderr", "signal:USR2").unwrap().unwrap();
        assert!(!dump.at_exit() && !dump.is_signalled());
        signal_hook::low_level::raise(signal_hook::consts::SIGUSR2).unwrap();
        assert!(dump.is_signalled() && !dump.is_signalled());
    }
}
