//! The clock of a node, which jumps ahead, and stands still.

/// A clock. It never goes back: that is what a module asks of its owner.
#[derive(Clone, Copy, Default)]
pub struct Clock {
    /// Time shown until it runs on.
    shows: u64,
    /// Time of the world at which it runs on.
    from: u64,
}

impl Clock {
    /// Time shown at a time of the world.
    pub fn at(&self, now: u64) -> u64 {
        self.shows + now.saturating_sub(self.from)
    }

    /// Time of the world at which it shows this.
    pub fn when(&self, time: u64) -> u64 {
        match time <= self.shows {
            true => 0,
            false => self.from + (time - self.shows),
        }
    }

    /// Jumps ahead.
    pub fn jump(&mut self, now: u64, by: u64) {
        *self = Clock { shows: self.at(now) + by, from: now.max(self.from) };
    }

    /// Stands still, as one that is set back and must not show it.
    pub fn stand_still(&mut self, now: u64, ns: u64) {
        *self = Clock { shows: self.at(now), from: now.max(self.from) + ns };
    }
}
