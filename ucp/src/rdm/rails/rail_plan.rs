//! The plan of a transfer over rails: pieces, their rails, what is in flight, what a lost rail has to repeat.

use arrayvec::ArrayVec;

use crate::rdm::ids::LaneId;
use crate::rdm::io::Reg;
use crate::rdm::status::PeerError;

/// Most rails of one transfer, the peer's own included: a request has iovs left for so many (RDM v4 11.4).
pub const MAX_RAILS: usize = 4;

pub(in crate::rdm) type RailList<T> = ArrayVec<T, { MAX_RAILS - 1 }>;

/// Alignment of pieces from the first byte on.
const ALIGN: u64 = 4096;

/// Returns over how many of `rails` rails to send `len` bytes, at least `least` bytes each.
pub fn rails_for(len: u64, least: u64, rails: usize) -> usize {
    let wanted = usize::try_from(len / least.max(1)).unwrap_or(usize::MAX);
    rails.min(wanted).max(1)
}

/// Most pieces in flight on one rail, per transfer.
const PER_RAIL: u8 = 4;

#[derive(Debug)]
pub struct Rail {
    /// The lane.
    pub lane: LaneId,
    /// Key of the peer's memory there.
    pub key: u64,
    pub reg: Option<Reg>,
    in_flight: u8,
    failed: Option<PeerError>,
}

#[derive(Debug)]
pub struct RailPlan {
    main: LaneId,
    rails: ArrayVec<Rail, MAX_RAILS>,
    from: u64,
    end: u64,
    /// Bytes of every piece but the last.
    piece: u64,
    /// First piece that has never been posted.
    next: u32,
    retry: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextPiece {
    pub rail: usize,
    pub nth: u32,
    pub at: u64,
    pub len: u64,
}

impl NextPiece {
    /// Encodes piece and rail for a token.
    pub fn part(&self) -> u32 {
        self.nth << 2 | self.rail as u32
    }
}

impl RailPlan {
    /// Creates a plan over these rails, the first of which is the peer's own wire.
    pub fn new(rails: impl IntoIterator<Item = (LaneId, u64)>) -> RailPlan {
        let rail = |(lane, key)| Rail { lane, key, reg: None, in_flight: 0, failed: None };
        let rails: ArrayVec<Rail, MAX_RAILS> = rails.into_iter().take(MAX_RAILS).map(rail).collect();
        let main = rails.first().map_or(LaneId(u32::MAX), |rail| rail.lane);
        RailPlan { main, rails, from: 0, end: 0, piece: ALIGN, next: 0, retry: Vec::new() }
    }

    /// Cuts bytes `from..end` into one piece per rail, of `least` to `most` bytes each. Drops rails that are
    /// not `usable`; rails without a piece stand by. False if there are too few bytes or rails.
    pub fn cut(
        &mut self,
        from: u64,
        end: u64,
        least: u64,
        most: u64,
        usable: impl Fn(LaneId) -> bool,
    ) -> bool {
        self.rails.retain(|rail| usable(rail.lane));
        let len = end.saturating_sub(from);
        rails_for(len, least, self.rails.len()) > 1 && self.split(from, end, least, most)
    }

    /// Cuts the bytes that one rail has failed over any number of rails, with no least size.
    pub fn cut_again(&mut self, from: u64, end: u64, most: u64, usable: impl Fn(LaneId) -> bool) -> bool {
        self.rails.retain(|rail| usable(rail.lane));
        end > from && !self.rails.is_empty() && self.split(from, end, 1, most)
    }

    fn split(&mut self, from: u64, end: u64, least: u64, most: u64) -> bool {
        let len = end - from;
        let busy = rails_for(len, least, self.rails.len());
        let per_rail = len.div_ceil(busy as u64).next_multiple_of(ALIGN);
        self.piece = per_rail.min(most);
        (self.from, self.end) = (from, end);
        // A token encodes piece and rail in 31 bits.
        self.piece > 0 && len / self.piece < 1 << 28
    }

    fn pieces(&self) -> u32 {
        (self.end - self.from).div_ceil(self.piece) as u32
    }

    pub fn all_posted(&self) -> bool {
        self.next == self.pieces() && self.retry.is_empty()
    }

    /// Returns the last rail's error if no rail is left.
    pub fn lost(&self) -> Option<PeerError> {
        let mut why = None;
        for rail in &self.rails {
            why = Some(rail.failed?);
        }
        why
    }

    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// Picks a piece and the idlest rail not in `full` (a bit each). `None`: all posted, or enough in flight.
    pub fn pick(&self, full: u8) -> Option<NextPiece> {
        if self.all_posted() {
            return None;
        }
        let nth = self.retry.last().copied().unwrap_or(self.next);
        let free = |(n, rail): &(usize, &Rail)| {
            rail.failed.is_none() && rail.in_flight < PER_RAIL && full >> n & 1 == 0
        };
        let (rail, _) = self.rails.iter().enumerate().filter(free).min_by_key(|(_, rail)| rail.in_flight)?;
        let at = self.from + u64::from(nth) * self.piece;
        Some(NextPiece { rail, nth, at, len: self.piece.min(self.end - at) })
    }

    pub fn posted(&mut self, pick: &NextPiece) {
        if self.retry.last() == Some(&pick.nth) {
            self.retry.pop();
        } else {
            self.next += 1;
        }
        self.rails[pick.rail].in_flight += 1;
    }

    /// Notes the end of a piece and returns its rail. An error loses the rail and repeats the piece.
    pub fn ended(&mut self, part: u32, result: Result<(), PeerError>) -> Option<usize> {
        let (nth, n) = (part >> 2, (part & 3) as usize);
        let rail = self.rails.get_mut(n)?;
        rail.in_flight = rail.in_flight.saturating_sub(1);
        if let Err(fault) = result {
            rail.failed = Some(fault);
            self.retry.push(nth);
        }
        Some(n)
    }

    pub fn main(&self) -> LaneId {
        self.main
    }

    pub fn lose(&mut self, rail: usize, why: PeerError) {
        self.rails[rail].failed = Some(why);
    }

    pub fn rail(&self, n: usize) -> &Rail {
        &self.rails[n]
    }

    pub fn rail_mut(&mut self, n: usize) -> &mut Rail {
        &mut self.rails[n]
    }

    /// Returns the first byte and the length of the whole transfer.
    pub fn range(&self) -> (u64, u64) {
        (self.from, self.end - self.from)
    }

    pub fn take_regs(&mut self) -> impl Iterator<Item = Reg> {
        self.rails.iter_mut().filter_map(|rail| rail.reg.take())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rails(n: u32) -> RailPlan {
        RailPlan::new((0..n).map(|n| (LaneId(n), u64::from(n))))
    }

    #[test]
    fn pieces_are_split_evenly_over_rails() {
        let mut rail_plan = rails(3);
        assert!(rail_plan.cut(100, 100 + 30_000, 4096, 1 << 30, |_| true));
        let mut seen = Vec::new();
        while let Some(pick) = rail_plan.pick(0) {
            seen.push((pick.rail, pick.at, pick.len));
            rail_plan.posted(&pick);
        }
        assert_eq!(seen, [(0, 100, 12288), (1, 12388, 12288), (2, 24676, 5424)]);
    }

    #[test]
    fn short_transfer_or_single_rail_is_not_cut() {
        assert!(!rails(4).cut(0, 8191, 4096, 1 << 30, |_| true));
        assert!(!rails(1).cut(0, 1 << 20, 4096, 1 << 30, |_| true));
        assert!(!rails(2).cut(0, 1 << 20, 4096, 1 << 30, |lane| lane == LaneId(1)));
        assert!(!rails(2).cut(0, 1 << 20, 4096, 0, |_| true), "a device without RDMA");
        let mut two = rails(4);
        assert!(two.cut(0, 10_000, 4096, 1 << 30, |_| true));
        assert_eq!((two.rails(), two.pieces()), (4, 2), "as many pieces as there are bytes for");
    }

    #[test]
    fn pieces_in_flight_per_rail_are_limited() {
        let mut rail_plan = rails(2);
        assert!(rail_plan.cut(0, 1 << 20, 4096, 4096, |_| true));
        let picks: Vec<_> = std::iter::from_fn(|| {
            let pick = rail_plan.pick(0)?;
            rail_plan.posted(&pick);
            Some(pick)
        })
        .collect();
        assert_eq!(picks.len(), 2 * usize::from(PER_RAIL));
        rail_plan.ended(picks[1].part(), Ok(()));
        assert_eq!(rail_plan.pick(0).map(|pick| pick.rail), Some(1));
        assert_eq!(rail_plan.pick(0b10), None, "the other is full");
    }

    proptest! {
        #[test]
        fn every_byte_is_sent_once_despite_lost_rails(
            count in 2u32..5, len in 8192u64..200_000, most in 1u64..9, rng in prop::collection::vec(any::<u8>(), 200)
        ) {
            let mut rail_plan = rails(count);
            let from = 77;
            prop_assume!(rail_plan.cut(from, from + len, 4096, most * 4096, |_| true));
            let (mut done, mut in_flight, mut lost) = (vec![0u8; len as usize], Vec::new(), 0);
            let mut rng = rng.into_iter().cycle();
            loop {
                if let Some(pick) = rail_plan.pick(0) {
                    rail_plan.posted(&pick);
                    in_flight.push(pick);
                    if rng.next().unwrap().is_multiple_of(2) {
                        continue;
                    }
                }
                if in_flight.is_empty() {
                    break;
                }
                let pick: NextPiece = in_flight.swap_remove(usize::from(rng.next().unwrap()) % in_flight.len());
                let was = rail_plan.rail(pick.rail).failed.is_some();
                let lose = was || lost + 1 < rail_plan.rails() as u32 && rng.next().unwrap().is_multiple_of(5);
                lost += u32::from(lose && !was);
                let result = if lose { Err(PeerError::Unreachable) } else { Ok(()) };
                prop_assert_eq!(rail_plan.ended(pick.part(), result), Some(pick.rail));
                if !lose {
                    let at = (pick.at - from) as usize;
                    done[at..at + pick.len as usize].iter_mut().for_each(|byte| *byte += 1);
                }
            }
            prop_assert!(rail_plan.all_posted() && rail_plan.lost().is_none());
            prop_assert!(done.iter().all(|byte| *byte == 1));
        }
    }
}
