//! A network in virtual time, with faults drawn from a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Random numbers of a seed.
pub struct Rand(ChaCha8Rng);

impl Rand {
    pub fn new(seed: u64) -> Rand {
        Rand(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }

    /// True `n` times in 1000.
    pub fn permille(&mut self, n: u64) -> bool {
        self.below(1000) < n
    }
}

/// Faults of one direction; probabilities are in 1000.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u64,
    pub duplicate: u64,
    pub corrupt: u64,
    pub reorder: u64,
    /// Longest extra delay of what is reordered, ns.
    pub late: u64,
    pub delay: u64,
    /// Datagrams on their way at once, at most.
    pub capacity: usize,
}

/// A datagram on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    pub due: u64,
    nth: u64,
    pub from: usize,
    pub to: usize,
    pub priority: bool,
    pub bytes: Vec<u8>,
}

/// Datagrams on their way, by the time of their arrival.
pub struct Network {
    faults: Vec<Vec<Faults>>,
    on_way: BinaryHeap<Reverse<Datagram>>,
    count: Vec<Vec<usize>>,
    nth: u64,
    pub dropped: u64,
    /// Nodes from and to which nothing gets through.
    pub cut_off: Vec<bool>,
    /// Whether a channel keeps the order of what it carries, and overtakes the other one by up to this, ns.
    pub in_order: Option<u64>,
    /// Whether the capacity is of all datagrams to a node together.
    pub shares_queue: bool,
    /// Time that each datagram to a node takes at its bottleneck, ns, and most that wait there.
    pub bottleneck: Option<(u64, u64)>,
    /// When each bottleneck is free.
    free_at: Vec<u64>,
    /// Longest datagram that gets through to each node.
    pub longest: Vec<usize>,
}

impl Network {
    pub fn new(faults: Vec<Vec<Faults>>) -> Network {
        let nodes = faults.len();
        Network {
            faults,
            on_way: BinaryHeap::new(),
            count: vec![vec![0; nodes]; nodes],
            nth: 0,
            dropped: 0,
            cut_off: vec![false; nodes],
            in_order: None,
            shares_queue: false,
            bottleneck: None,
            free_at: vec![0; nodes],
            longest: vec![usize::MAX; nodes],
        }
    }

    pub fn send(
        &mut self,
        rand: &mut Rand,
        now: u64,
        (from, to): (usize, usize),
        priority: bool,
        bytes: &[u8],
    ) {
        let faults = self.faults[from][to];
        let copies = 1 + u64::from(rand.permille(faults.duplicate));
        for _ in 0..copies {
            let on_way = match self.shares_queue {
                true => self.count.iter().map(|of| of[to]).sum(),
                false => self.count[from][to],
            };
            let full = on_way >= faults.capacity || bytes.len() > self.longest[to];
            if full || self.cut_off[from] || self.cut_off[to] || rand.permille(faults.loss) {
                self.dropped += 1;
                continue;
            }
            let mut bytes = bytes.to_vec();
            if rand.permille(faults.corrupt) {
                match rand.below(3) {
                    0 => bytes.truncate(rand.below(bytes.len() as u64) as usize),
                    1 => bytes.push(rand.below(256) as u8),
                    _ => {
                        let bit = rand.below(8 * bytes.len() as u64) as usize;
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                }
            }
            let late = if rand.permille(faults.reorder) { rand.below(faults.late) } else { 0 };
            // The two channels overtake each other.
            let behind = match (priority, self.in_order) {
                (true, _) => 0,
                (false, Some(behind)) => behind,
                (false, None) => rand.below(3_000),
            };
            let mut due = now + faults.delay + late + behind;
            if let Some((time, most)) = self.bottleneck {
                let start = self.free_at[to].max(now);
                if start - now > most * time {
                    self.dropped += 1;
                    continue;
                }
                self.free_at[to] = start + time;
                due += self.free_at[to] - now;
            }
            self.nth += 1;
            self.count[from][to] += 1;
            self.on_way.push(Reverse(Datagram { due, nth: self.nth, from, to, priority, bytes }));
        }
    }

    /// Puts a datagram back that could not be taken.
    pub fn put_back(&mut self, datagram: Datagram) {
        self.count[datagram.from][datagram.to] += 1;
        self.on_way.push(Reverse(datagram));
    }

    pub fn next_due(&self) -> Option<u64> {
        self.on_way.peek().map(|Reverse(datagram)| datagram.due)
    }

    pub fn pop(&mut self, now: u64) -> Option<Datagram> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse(datagram) = self.on_way.pop()?;
        self.count[datagram.from][datagram.to] -= 1;
        Some(datagram)
    }
}
