//! The hotel: a timer wheel. *"This is accomplished by `opal_hotel_checkin()`"* (Reliability).
//!
//! A guest checks in with the time at which it is to be thrown out, and gets a room. Check-in and check-out
//! take constant time, whatever the number of guests. A stay may be longer than the wheel: a guest of a later
//! round stays when the wheel passes.

const NONE: u32 = u32::MAX;

/// Room of a guest, which checks it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room(u32);

impl Room {
    /// No room: the guest is not in the hotel.
    pub const NONE: Room = Room(NONE);

    /// Whether this is no room.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == NONE
    }
}

struct Stay<G> {
    guest: Option<G>,
    tick: u64,
    slot: u32,
    prev: u32,
    next: u32,
}

/// A timer wheel whose guests are of type `G`. Times are nanoseconds; a guest leaves at most one tick late,
/// and never early.
pub struct Hotel<G> {
    tick: u64,
    mask: u64,
    heads: Box<[u32]>,
    occupied: Box<[u64]>,
    rooms: Vec<Stay<G>>,
    free: u32,
    /// Tick before which every due guest has left.
    cursor: u64,
    /// Next room to look at in the cursor's slot; `None`: begin at its head.
    scan: Option<u32>,
    guests: usize,
}

impl<G: Copy> Hotel<G> {
    /// Creates an empty hotel with a wheel of `slots` (a power of two, at least 64) slots of `tick` ns.
    pub fn new(tick: u64, slots: usize, now: u64) -> Self {
        assert!(slots.is_power_of_two() && slots >= 64 && tick > 0, "a wheel of {slots} slots of {tick} ns");
        Hotel {
            tick,
            mask: slots as u64 - 1,
            heads: vec![NONE; slots].into_boxed_slice(),
            occupied: vec![0; slots / 64].into_boxed_slice(),
            rooms: Vec::new(),
            free: NONE,
            cursor: now / tick,
            scan: None,
            guests: 0,
        }
    }

    /// Checks a guest in until `due`.
    pub fn check_in(&mut self, due: u64, guest: G) -> Room {
        let tick = due.div_ceil(self.tick).max(self.cursor);
        let slot = (tick & self.mask) as u32;
        let room = self.new_room();
        let head = self.heads[slot as usize];
        self.rooms[room as usize] = Stay { guest: Some(guest), tick, slot, prev: NONE, next: head };
        if head != NONE {
            self.rooms[head as usize].prev = room;
        }
        self.heads[slot as usize] = room;
        self.occupied[slot as usize / 64] |= 1 << (slot % 64);
        if u64::from(slot) == self.cursor & self.mask {
            self.scan = None;
        }
        self.guests += 1;
        Room(room)
    }

    fn new_room(&mut self) -> u32 {
        if self.free != NONE {
            let room = self.free;
            self.free = self.rooms[room as usize].next;
            return room;
        }
        self.rooms.push(Stay { guest: None, tick: 0, slot: 0, prev: NONE, next: NONE });
        self.rooms.len() as u32 - 1
    }

    /// Checks a guest out and returns it. `room` becomes none; none stays none.
    pub fn check_out(&mut self, room: &mut Room) -> Option<G> {
        let at = std::mem::replace(room, Room::NONE).0;
        if at == NONE { None } else { self.vacate(at) }
    }

    fn vacate(&mut self, room: u32) -> Option<G> {
        let stay = &mut self.rooms[room as usize];
        let guest = stay.guest.take();
        debug_assert!(guest.is_some(), "room {room} is empty");
        let (slot, prev, next) = (stay.slot as usize, stay.prev, stay.next);
        stay.next = self.free;
        self.free = room;
        if prev == NONE {
            self.heads[slot] = next;
        } else {
            self.rooms[prev as usize].next = next;
        }
        if next != NONE {
            self.rooms[next as usize].prev = prev;
        }
        if self.heads[slot] == NONE {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
        if self.scan == Some(room) {
            self.scan = Some(next);
        }
        self.guests -= 1;
        guest
    }

    /// Throws out the next guest whose time has come. Its room is void.
    pub fn pop_due(&mut self, now: u64) -> Option<G> {
        let target = now / self.tick;
        if self.guests == 0 {
            self.cursor = self.cursor.max(target);
            return None;
        }
        if target > self.cursor + self.mask {
            // A clock that jumped: one round passes every slot.
            self.cursor = target - self.mask;
            self.scan = None;
        }
        loop {
            if let Some(room) = self.due_here(target) {
                return self.vacate(room);
            }
            if self.cursor >= target {
                self.scan = None;
                return None;
            }
            self.cursor = self.next_occupied(self.cursor + 1, target);
            self.scan = None;
        }
    }

    /// Due room in the cursor's slot.
    fn due_here(&mut self, target: u64) -> Option<u32> {
        let mut room = self.scan.unwrap_or(self.heads[(self.cursor & self.mask) as usize]);
        while room != NONE {
            let stay = &self.rooms[room as usize];
            if stay.tick <= target {
                self.scan = Some(room);
                return Some(room);
            }
            room = stay.next;
        }
        self.scan = Some(NONE);
        None
    }

    /// First tick of `from..=last` with an occupied slot, or `last`.
    fn next_occupied(&self, from: u64, last: u64) -> u64 {
        let mut at = from;
        while at < last {
            let slot = at & self.mask;
            let word = self.occupied[(slot / 64) as usize] >> (slot % 64);
            if word != 0 {
                return (at + u64::from(word.trailing_zeros())).min(last);
            }
            at += 64 - slot % 64;
        }
        last
    }

    /// Earliest time at which a guest leaves. For a caller about to sleep: it takes time with the guests.
    pub fn next_due(&self) -> Option<u64> {
        let mut first = u64::MAX;
        let end = self.cursor + self.mask + 1;
        let mut at = self.next_occupied(self.cursor, end);
        while at < end {
            let mut room = self.heads[(at & self.mask) as usize];
            while room != NONE {
                let stay = &self.rooms[room as usize];
                first = first.min(stay.tick);
                room = stay.next;
            }
            if first <= at {
                break;
            }
            at = self.next_occupied(at + 1, end);
        }
        (first != u64::MAX).then(|| first * self.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn due(hotel: &mut Hotel<u32>, now: u64) -> Vec<u32> {
        let mut out: Vec<u32> = std::iter::from_fn(|| hotel.pop_due(now)).collect();
        out.sort_unstable();
        out
    }

    #[test]
    fn guests_leave_in_time_and_not_before() {
        let mut hotel = Hotel::new(10, 64, 0);
        hotel.check_in(95, 1);
        let mut two = hotel.check_in(100, 2);
        hotel.check_in(5_000, 3);
        assert_eq!(hotel.next_due(), Some(100));
        assert_eq!(due(&mut hotel, 99), []);
        assert_eq!(hotel.check_out(&mut two), Some(2));
        assert!(two.is_none() && hotel.check_out(&mut two).is_none());
        assert_eq!(due(&mut hotel, 100), [1]);
        // The third stays for several rounds of the wheel.
        assert_eq!(hotel.next_due(), Some(5_000));
        assert_eq!(due(&mut hotel, 4_990), []);
        assert_eq!(due(&mut hotel, 5_000), [3]);
        assert!(hotel.guests == 0 && hotel.next_due().is_none());
    }

    #[test]
    fn a_jump_of_the_clock_loses_nobody() {
        let mut hotel = Hotel::new(1, 64, 0);
        (0..200).for_each(|n| _ = hotel.check_in(n, n as u32));
        assert_eq!(due(&mut hotel, 1 << 40).len(), 200);
        hotel.check_in(3, 7);
        assert_eq!(due(&mut hotel, 1 << 40), [7], "due in the past: at the next look");
    }

    #[test]
    fn rooms_are_used_again() {
        let mut hotel = Hotel::new(1, 64, 0);
        for n in 0..1000 {
            let mut room = hotel.check_in(n + 10, 0);
            hotel.check_out(&mut room);
        }
        assert_eq!(hotel.rooms.len(), 1);
    }

    proptest! {
        /// Compared with a list that is searched.
        #[test]
        fn as_a_list(steps in proptest::collection::vec((0u8..4, 0u64..3000), 1..300)) {
            let mut hotel = Hotel::new(7, 64, 0);
            let mut model: Vec<(u64, u32, Room)> = Vec::new();
            let (mut now, mut name) = (0, 0);
            for (what, n) in steps {
                match what {
                    0 | 1 => {
                        let due = now + n;
                        let tick = due.div_ceil(7).max(now / 7);
                        model.push((tick, name, hotel.check_in(due, name)));
                        name += 1;
                    }
                    2 if !model.is_empty() => {
                        let (_, who, mut room) = model.swap_remove(n as usize % model.len());
                        prop_assert_eq!(hotel.check_out(&mut room), Some(who));
                    }
                    _ => {
                        now += n / 3;
                        let mut want: Vec<u32> =
                            model.iter().filter(|m| m.0 <= now / 7).map(|m| m.1).collect();
                        want.sort_unstable();
                        model.retain(|m| m.0 > now / 7);
                        prop_assert_eq!(due(&mut hotel, now), want);
                    }
                }
                prop_assert_eq!(hotel.guests, model.len());
                let next = model.iter().map(|m| m.0 * 7).min();
                prop_assert_eq!(hotel.next_due(), next);
            }
        }
    }
}
