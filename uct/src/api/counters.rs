//! Counters that a device or its link keeps.

use std::fmt;

/// Counters of one part of a device since it was opened, such as its link to other hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceCounters {
    /// Part that they are of.
    pub part: &'static str,
    /// Counters by name.
    pub counts: Vec<(&'static str, u64)>,
    /// Histograms of times by name: element `n` counts those below 2ⁿ⁺¹ ns and not below 2ⁿ.
    pub times: Vec<(&'static str, Vec<u64>)>,
}

impl DeviceCounters {
    /// Counter of this name; 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.counts.iter().find(|(of, _)| *of == name).map_or(0, |(_, count)| *count)
    }
}

/// Lines `PART NAME: COUNT` without zeros; of a histogram a line with the upper bounds of its times.
impl fmt::Display for DeviceCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.counts.iter().filter(|(_, count)| *count > 0) {
            writeln!(f, "  {} {name}: {count}", self.part)?;
        }
        for (name, buckets) in self.times.iter().filter(|(_, buckets)| buckets.iter().any(|n| *n > 0)) {
            write!(f, "  {} {name}:", self.part)?;
            for (at, count) in (1..).zip(buckets).filter(|(_, count)| **count > 0) {
                write!(f, " <{} {count}", time(1u64.checked_shl(at).unwrap_or(u64::MAX)))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// A power of two of nanoseconds, in a unit that leaves few digits.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns}ns"),
        10_000..10_000_000 => format!("{}us", ns / 1000),
        10_000_000..10_000_000_000 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_left_out() {
        let mut buckets = vec![0; 64];
        (buckets[0], buckets[9], buckets[16], buckets[63]) = (1, 20, 3, 4);
        let times = vec![("round trips", buckets), ("none", vec![0; 4])];
        let counters = DeviceCounters { part: "udp", counts: vec![("sent", 7), ("resent", 0)], times };
        let text = "  udp sent: 7\n  udp round trips: <2ns 1 <1024ns 20 <131us 3 <18446744073s 4\n";
        assert_eq!(counters.to_string(), text);
        assert_eq!((counters.get("sent"), counters.get("resent"), counters.get("other")), (7, 0, 0));
    }
}
