//! Which packet types seeds have brought to a receiver: so that a simulation that tests nothing is seen to.
//! Filled by the world at the end of a run, added up and printed by the binary, asserted in CI.

use std::fmt;
use ucp::rdm::{Engine, RdmStats};
use ucp::wire::PktType;
use ucp::wire::table::{Travel, row};

/// Packets received, by type; and in how many runs there were any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    packets: [u64; 256],
    runs: [u32; 256],
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage { packets: [0; 256], runs: [0; 256] }
    }
}

impl Coverage {
    /// Adds what one worker has received.
    pub fn note(&mut self, stats: &RdmStats) {
        for (sum, n) in self.packets.iter_mut().zip(stats.rx_pkts) {
            *sum += n;
        }
    }

    /// Adds another run's.
    pub fn add_run(&mut self, run: &Coverage) {
        for ty in 0..256 {
            self.packets[ty] += run.packets[ty];
            self.runs[ty] += u32::from(run.packets[ty] > 0);
        }
    }

    /// Packets of a type.
    pub fn packets(&self, ty: PktType) -> u64 {
        self.packets[usize::from(ty.0)]
    }

    /// Every type that may travel and that the engine handles, but PEER_ERROR: nobody here does what it answers.
    pub fn due() -> impl Iterator<Item = PktType> {
        let due = |ty: &PktType| row(*ty).travel == Travel::Yes && Engine::handles(*ty);
        (0..=255).map(PktType).filter(due).filter(|ty| *ty != PktType::PEER_ERROR)
    }

    /// Those of which no packet came.
    pub fn missing(&self) -> Vec<&'static str> {
        Coverage::due().filter(|ty| self.packets(*ty) == 0).map(|ty| row(ty).name).collect()
    }
}

/// A table: type, name, runs, packets.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:>4}  {:<20} {:>8} {:>12}", "type", "name", "seeds", "packets")?;
        for ty in Coverage::due() {
            let runs = self.runs[usize::from(ty.0)];
            writeln!(f, "  {:>4}  {:<20} {runs:>8} {:>12}", ty.0, row(ty).name, self.packets(ty))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_came_is_missing() {
        let mut stats = RdmStats::default();
        stats.rx_pkts[usize::from(PktType::CTS.0)] = 3;
        let mut run = Coverage::default();
        run.note(&stats);
        let mut sum = Coverage::default();
        sum.add_run(&run);
        sum.add_run(&Coverage::default());
        let missing = sum.missing();
        assert!(!missing.contains(&"CTS") && missing.contains(&"CTSDATA"));
        assert_eq!(missing.len() + 1, Coverage::due().count());
        let line = sum.to_string();
        let line = line.lines().find(|line| line.contains("CTS ")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..], ["CTS", "1", "3"]);
    }
}
