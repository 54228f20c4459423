//! Which channel a poll looks at. The priority channel goes first. A look is a system call, so a channel that
//! brings nothing while the other one does is looked at in each fourth poll only.

/// Polls for which a channel that has brought something is looked at each time.
const BUSY: u32 = 16;
/// Polls in which the quieter channel is looked at once.
const SELDOM: u32 = 4;

/// Turns of the two channels in polls.
#[derive(Default)]
pub(super) struct ChannelSchedule {
    /// Polls since each channel brought something.
    quiet: [u32; 2],
    polls: u32,
}

impl ChannelSchedule {
    /// Whether the next poll looks at the priority channel, and whether at the data channel.
    #[inline]
    pub fn next(&mut self) -> [bool; 2] {
        self.polls = self.polls.wrapping_add(1);
        let [priority, data] = self.quiet;
        let is_turn = |turn| self.polls % SELDOM == turn;
        [
            priority <= data || priority < BUSY || is_turn(0),
            data <= priority || data < BUSY || is_turn(SELDOM / 2),
        ]
    }

    /// Takes what the poll has brought, by channel.
    #[inline]
    pub fn on_polled(&mut self, brought: [bool; 2]) {
        for (quiet, brought) in self.quiet.iter_mut().zip(brought) {
            *quiet = if brought { 0 } else { quiet.saturating_add(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at each channel in so many polls that bring what `brought` says.
    fn looks(looks: &mut ChannelSchedule, polls: u32, brought: [bool; 2]) -> [u32; 2] {
        let mut seen = [0; 2];
        for _ in 0..polls {
            let next = looks.next();
            assert!(next.contains(&true));
            for (look, seen) in next.into_iter().zip(&mut seen) {
                *seen += u32::from(look);
            }
            looks.on_polled(brought);
        }
        seen
    }

    #[test]
    fn the_quieter_channel_is_looked_at_seldom() {
        let mut all = ChannelSchedule::default();
        assert_eq!(looks(&mut all, 10, [true, true]), [10, 10]);
        assert_eq!(looks(&mut all, BUSY, [true, false]), [BUSY, BUSY]);
        assert_eq!(looks(&mut all, 400, [true, false]), [400, 100]);
        assert_eq!(looks(&mut all, 1, [false, true]), [1, 0], "not its turn");
        all = ChannelSchedule::default();
        looks(&mut all, BUSY + 1, [false, true]);
        assert_eq!(looks(&mut all, 400, [false, true]), [100, 400]);
        assert_eq!(looks(&mut all, 1000, [false, false])[1], 1000, "the one that was busy last");
    }
}
