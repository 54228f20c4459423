//! Address handle numbers (AHNs): 16 bits, reference counted, one per (protection domain, GID).

use rustc_hash::FxHashMap;
use uct::efa::dev::Gid;
use uct::efa::dev::soft::Pd;

/// AHN of a sender for which the receiver has no address handle.
pub const NO_AH: u16 = 0xffff;

/// The AHNs in use. // HOT: looked up once per receive completion.
#[derive(Default)]
pub struct AhnTable {
    by_gid: FxHashMap<(Pd, Gid), (u16, u32)>,
    free: Vec<u16>,
    next: u16,
}

impl AhnTable {
    /// Returns the AHN of `gid` in `pd`, with one more reference; `None` if all are in use.
    pub fn get(&mut self, pd: Pd, gid: Gid) -> Option<u16> {
        if let Some((number, refs)) = self.by_gid.get_mut(&(pd, gid)) {
            *refs += 1;
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.next < NO_AH => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.by_gid.insert((pd, gid), (number, 1));
        Some(number)
    }

    pub fn put(&mut self, pd: Pd, gid: Gid) {
        let Some((number, refs)) = self.by_gid.get_mut(&(pd, gid)) else { return };
        *refs -= 1;
        if *refs == 0 {
            self.free.push(*number);
            self.by_gid.remove(&(pd, gid));
        }
    }

    /// AHN that receive completions of `pd` show for a sender.
    #[inline]
    pub fn number(&self, pd: Pd, gid: Gid) -> Option<u16> {
        self.by_gid.get(&(pd, gid)).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uct::efa::dev::Dev;
    use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};

    #[test]
    fn one_ahn_per_domain_and_gid() {
        let dev = Fabric::new(1, FaultPlan::NONE).open(1, Profile::small()).unwrap();
        let (a, b) = (dev.alloc_pd().unwrap(), dev.alloc_pd().unwrap());
        let gid = Gid::link_local(7);
        let mut t = AhnTable::default();
        let first = t.get(a, gid).unwrap();
        assert_eq!(t.get(a, gid), Some(first));
        assert_ne!(t.get(b, gid), Some(first));
        t.put(a, gid);
        assert_eq!(t.number(a, gid), Some(first));
        t.put(a, gid);
        assert_eq!(t.number(a, gid), None);
        assert_eq!(t.get(a, Gid::link_local(8)), Some(first), "a number given back is used again");
    }
}
