//! Counts the packet types received and the faults that happened, so that a simulation that tests nothing is
//! noticed. Filled by `job`, added up and printed by the binary, asserted in CI.

use super::Outcome;
use std::fmt;
use ucp::rdm::RdmStats;
use ucp::wire::PktType;
use ucp::wire::table::{Assignment, info};

/// Everything that may go wrong or take an unusual path: its name, and how often it happened in a run.
pub const FAULTS: [(&str, Count); 39] = [
    ("packet overtaken", |o| o.out_of_order),
    ("send queue full", |o| o.queue_full),
    ("receiver not ready, handed back", |o| o.not_ready),
    ("message before its receive", |o| o.unexpected),
    ("message cut short", |o| o.truncated),
    ("message received zero-copy", |o| o.zcopy_received),
    ("packet message in zero-copy mode", |o| o.passed_on),
    ("zero-copy receive too short", |o| o.zcopy_truncated),
    ("send rejected by zero-copy peer", |o| o.zcopy_rejected),
    ("registration refused", |o| o.registrations_refused),
    ("message that could not be read", |o| o.nacked),
    ("receive cancelled", |o| o.cancelled),
    ("multi-receive filled", |o| o.multi_recv_filled),
    ("multi-receive cancelled", |o| o.multi_recv_cancelled),
    ("send cancelled or refused", |o| o.withdrawn),
    ("send in pieces, or without a request", |o| o.other_forms),
    ("receive into pieces", |o| o.scattered),
    ("send detached", |o| o.detached),
    ("active message or stream cancelled", |o| o.am_or_stream_cancelled),
    ("active message without handler", |o| o.unhandled_ams),
    ("stream into the library's memory", |o| o.stream_data),
    ("atomic on lists", |o| o.lists),
    ("unclaimed message discarded", |o| o.discarded_unclaimed),
    ("flush or close cancelled", |o| o.flush_cancelled),
    ("put or get cancelled", |o| o.rma_cancelled),
    ("claimed message discarded", |o| o.discarded),
    ("memory revoked in use", |o| o.revoked_in_use),
    ("access to revoked memory denied", |o| o.access_denied),
    ("worker dies", |o| o.died),
    ("NIC goes down", |o| o.nic_down),
    ("transfer over several NICs", |o| o.striped),
    ("long-CTS over several NICs", |o| o.cts_striped),
    ("peer failed over to another NIC", |o| o.failed_over),
    ("packet resent over another NIC", |o| o.resent_on_other_nic),
    ("operation that may have arrived", |o| o.uncertain),
    ("endpoint closed by force", |o| o.force_closed),
    ("flush or close out of time", |o| o.timed_out),
    ("living workers disconnected", |o| o.disconnected),
    ("PEER_ERROR received", |o| o.peer_errors),
];

/// How often something happened in a run.
pub type Count = fn(&Outcome) -> u64;

/// Packets received by type, faults, and the number of runs with any of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    packets: [u64; 256],
    runs: [u32; 256],
    faults: [u64; FAULTS.len()],
    fault_runs: [u32; FAULTS.len()],
}

impl Default for Coverage {
    fn default() -> Self {
        let (faults, fault_runs) = ([0; FAULTS.len()], [0; FAULTS.len()]);
        Coverage { packets: [0; 256], runs: [0; 256], faults, fault_runs }
    }
}

impl Coverage {
    /// Adds the packets that one worker has received.
    pub fn add_packets_of(&mut self, stats: &RdmStats) {
        for (sum, n) in self.packets.iter_mut().zip(stats.rx_pkts) {
            *sum += n;
        }
    }

    /// Adds a run.
    pub fn add_run(&mut self, run: &Outcome) {
        for (n, (_, count)) in FAULTS.iter().enumerate() {
            self.faults[n] += count(run);
            self.fault_runs[n] += u32::from(count(run) > 0);
        }
        self.add_packets(&run.coverage);
    }

    fn add_packets(&mut self, run: &Coverage) {
        for ty in 0..256 {
            self.packets[ty] += run.packets[ty];
            self.runs[ty] += u32::from(run.packets[ty] > 0);
        }
    }

    /// Packets of a type.
    pub fn packets(&self, ty: PktType) -> u64 {
        self.packets[usize::from(ty.0)]
    }

    /// Types that may be sent and that the engine handles.
    pub fn expected_types() -> impl Iterator<Item = PktType> {
        let due = |ty: &PktType| info(*ty).assignment == Assignment::InUse && ucp::rdm::handles(*ty);
        (0..=255).map(PktType).filter(due)
    }

    /// Packet types and faults that never occurred.
    pub fn missing(&self) -> Vec<&'static str> {
        let types = Coverage::expected_types().filter(|ty| self.packets(*ty) == 0).map(|ty| info(ty).name);
        let faults =
            FAULTS.iter().zip(self.faults).filter(|(_, times)| *times == 0).map(|((name, _), _)| *name);
        types.chain(faults).collect()
    }
}

/// Prints two tables: type, name, runs, packets; fault, runs, times.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:>4}  {:<20} {:>8} {:>12}", "type", "name", "seeds", "packets")?;
        for ty in Coverage::expected_types() {
            let runs = self.runs[usize::from(ty.0)];
            writeln!(f, "  {:>4}  {:<20} {runs:>8} {:>12}", ty.0, info(ty).name, self.packets(ty))?;
        }
        writeln!(f, "  {:<33} {:>8} {:>12}", "fault", "seeds", "times")?;
        for (n, (name, _)) in FAULTS.iter().enumerate() {
            writeln!(f, "  {name:<33} {:>8} {:>12}", self.fault_runs[n], self.faults[n])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unseen_types_and_faults_are_missing() {
        let mut stats = RdmStats::default();
        stats.rx_pkts[usize::from(PktType::CTS.0)] = 3;
        let mut run = Coverage::default();
        run.add_packets_of(&stats);
        let mut sum = Coverage::default();
        sum.add_run(&Outcome { coverage: run, died: 2, ..Outcome::default() });
        sum.add_run(&Outcome::default());
        let missing = sum.missing();
        assert!(!missing.contains(&"CTS") && missing.contains(&"CTSDATA"));
        assert!(!missing.contains(&"worker dies") && missing.contains(&"message cut short"));
        assert_eq!(missing.len() + 2, Coverage::expected_types().count() + FAULTS.len());
        let line = sum.to_string();
        let line = line.lines().find(|line| line.contains("CTS ")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..], ["CTS", "1", "3"]);
    }
}
