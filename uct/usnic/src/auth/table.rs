//! Sessions by the number that datagrams name them by.

use super::session::Session;

/// Holder of a number.
pub enum Slot {
    Free,
    /// A handshake that this node has started.
    Pending,
    /// A session granted to a peer that has not used it yet.
    Granted(Box<Session>),
    /// A session that both sides use.
    Live(Box<Session>),
}

/// Numbers and who holds them. A number has a generation: it names one session only, until its generations
/// are used up.
pub struct Table {
    slots: Vec<(u16, Slot)>,
    free: Vec<u32>,
}

const INDEX_BITS: u32 = 20;
const INDEX: u32 = (1 << INDEX_BITS) - 1;
const GENERATION: u16 = (1 << (32 - INDEX_BITS)) - 1;

impl Table {
    /// A table whose numbers begin with a random generation.
    pub fn new() -> Table {
        Table { slots: Vec::new(), free: Vec::new() }
    }

    /// Takes a number. `None`: all are in use.
    pub fn insert(&mut self, slot: Slot, generation: u16) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < INDEX as usize => {
                self.slots.push((generation, Slot::Free));
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let (generation, place) = &mut self.slots[index as usize];
        *generation = (*generation + 1) & GENERATION;
        *place = slot;
        // Never 0, which names no session.
        Some((index + 1) | u32::from(*generation) << INDEX_BITS)
    }

    /// Returns the holder of a number.
    #[inline]
    pub fn get(&mut self, number: u32) -> Option<&mut Slot> {
        let index = (number & INDEX).checked_sub(1)?;
        let (generation, slot) = self.slots.get_mut(index as usize)?;
        (u32::from(*generation) == number >> INDEX_BITS && !matches!(slot, Slot::Free)).then_some(slot)
    }

    /// Frees a number and returns its holder.
    pub fn remove(&mut self, number: u32) -> Option<Slot> {
        let slot = self.get(number)?;
        let slot = std::mem::replace(slot, Slot::Free);
        self.free.push((number & INDEX) - 1);
        Some(slot)
    }

    /// Numbers in use.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_holder() {
        let mut table = Table::new();
        let first = table.insert(Slot::Pending, 5).unwrap();
        assert!(matches!(table.get(first), Some(Slot::Pending)));
        assert!(table.get(0).is_none() && table.get(first + 1).is_none());
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        let second = table.insert(Slot::Pending, 5).unwrap();
        assert!(second != first && table.get(first).is_none() && table.len() == 1);
    }
}
