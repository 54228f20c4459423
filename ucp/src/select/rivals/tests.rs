//! A sender and its receiver that send each other nothing: what a message takes is made up.

use std::collections::VecDeque;

use super::*;

const LEN: usize = 65536;
/// Bytes of a packet.
const ROOM: usize = 16384;
/// Bytes in whose course the first packets behind reads take another time.
const RING: usize = 2 << 20;
/// Reads behind packets that take longer.
const COLD: usize = 2;

/// What 64 KiB take, by the kernel, by the kernel behind packets, by packets, and by packets behind the kernel.
#[derive(Clone, Copy, Debug)]
struct World {
    kernel: u64,
    cold: u64,
    packets: u64,
    early: u64,
}

const FAR: World = World { kernel: 7800, cold: 19_000, packets: 15_500, early: 15_500 };
const NEAR: World = World { kernel: 7500, cold: 12_000, packets: 4200, early: 4200 };
/// The first packets behind the kernel are faster, or slower, than those that follow.
const FALSE_FAR: World = World { early: 7000, ..FAR };
const FALSE_NEAR: World = World { early: 11_000, ..NEAR };
const WORLDS: [(World, By); 4] =
    [(FAR, By::Kernel), (NEAR, By::Packets), (FALSE_FAR, By::Kernel), (FALSE_NEAR, By::Packets)];

struct Pair {
    offers: Offers,
    referee: Referee,
    /// Messages under way at a time, and those that are.
    window: usize,
    queue: VecDeque<By>,
    /// How messages went.
    by: Vec<By>,
    time: u64,
    /// Reads since packets, and bytes of packets since reads.
    reads: usize,
    bytes: usize,
    dice: u64,
}

impl Default for Pair {
    fn default() -> Self {
        Pair::of(1)
    }
}

impl Pair {
    fn of(window: usize) -> Pair {
        let (offers, referee) = (Offers::default(), Referee::default());
        let (queue, by) = (VecDeque::new(), Vec::new());
        Pair { offers, referee, window, queue, by, time: 0, reads: 0, bytes: 0, dice: 7 }
    }

    fn draw(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.dice >> 33) % n
    }

    /// So many messages of `len` bytes.
    fn send(&mut self, world: World, said: By, len: usize, count: usize, noise: u64) {
        (0..count).for_each(|_| self.one(world, said, len, noise));
    }

    /// One message more is sent. One time in `noise` is four times as long.
    fn one(&mut self, world: World, said: By, len: usize, noise: u64) {
        let next = self.offers.next(len, said);
        self.queue.push_back(next);
        if self.queue.len() < self.window {
            return;
        }
        let offered = self.queue.pop_front() == Some(By::Kernel);
        let by = if offered { self.referee.judge(Rule::Auto, len) } else { By::Packets };
        let scale = |time: u64, len: usize| time * len as u64 / LEN as u64;
        let jolt = |pair: &mut Pair| if noise > 0 && pair.draw(noise) == 0 { 4 } else { 1 };
        match by {
            By::Kernel => {
                let time = scale(if self.reads < COLD { world.cold } else { world.kernel }, len);
                (self.reads, self.bytes) = (self.reads + 1, 0);
                self.time += time;
                let jolt = jolt(self);
                self.referee.took_read(len, time * jolt);
                self.offers.was_read(len);
            }
            By::Packets => {
                for _ in 0..len / ROOM {
                    let early = self.bytes < RING;
                    let time = scale(if early { world.early } else { world.packets }, ROOM);
                    (self.reads, self.bytes) = (0, self.bytes + ROOM);
                    self.time += time;
                    let jolt = jolt(self);
                    self.referee.took_packet(ROOM, time * jolt);
                }
                if offered {
                    self.offers.was_declined(len);
                    self.time += 1000;
                }
            }
        }
        self.by.push(by);
    }

    /// Messages until `by` is what nearly all of the next ones take.
    fn settles(&mut self, world: World, by: By) -> usize {
        let begun = self.by.len();
        self.send(world, By::Packets, LEN, 4000, 0);
        let rest = &self.by[begun..];
        let all = |from: usize| rest[from..from + 60].iter().filter(|way| **way == by).count() == 60;
        (0..rest.len() - 60).find(|&n| all(n)).unwrap()
    }

    /// How many of the latest messages went this way.
    fn latest(&self, count: usize, by: By) -> usize {
        self.by[self.by.len() - count..].iter().filter(|way| **way == by).count()
    }
}

#[test]
fn each_world_has_its_way_whatever_was_said() {
    for (world, best) in WORLDS {
        for said in [By::Kernel, By::Packets] {
            for (len, window) in [(2 * ROOM, 1), (LEN, 1), (LEN, 32), (LEN, 100), (1 << 20, 1), (1 << 20, 32)]
            {
                let mut pair = Pair::of(window);
                pair.send(world, said, len, 10_000, 0);
                let what = format!("{world:?}, {said:?} said, {len} bytes, {window} at a time");
                assert!(pair.latest(5000, best) >= 4800, "{what}: {}", pair.latest(5000, best));
                assert_eq!(pair.referee.figures(len).by, best, "{what}");
            }
        }
    }
}

/// What looking costs, in the long run: less than three in a hundred.
#[test]
fn to_look_costs_little() {
    for (world, best) in WORLDS {
        let best = if best == By::Kernel { world.kernel } else { world.packets };
        for window in [1, 32, 100] {
            let mut pair = Pair::of(window);
            pair.send(world, By::Packets, LEN, 4000, 0);
            pair.time = 0;
            pair.send(world, By::Packets, LEN, 20_000, 0);
            let best = best * 20_000;
            assert!(pair.time <= best + best / 33, "{world:?}, {window}: {} and {best}", pair.time);
        }
    }
}

/// Some twenty milliseconds of these messages.
#[test]
fn a_change_is_noticed_soon() {
    for window in [1, 32, 100] {
        let mut pair = Pair::of(window);
        assert!(pair.settles(NEAR, By::Packets) < 200);
        for _ in 0..10 {
            let (far, near) = (pair.settles(FAR, By::Kernel), pair.settles(NEAR, By::Packets));
            assert!(far <= 600 && near <= 2700, "{window}: {far} and {near}");
        }
    }
}

/// One time in forty is four times as long: an interrupt, another process.
#[test]
fn chance_changes_nothing() {
    for (world, best) in WORLDS {
        let mut pair = Pair::default();
        pair.send(world, best, LEN, 20_000, 40);
        assert!(pair.latest(15_000, best) >= 14_400, "{world:?}: {}", pair.latest(15_000, best));
    }
}

/// Two ways that take the same: whichever was taken stays.
#[test]
fn who_is_hardly_faster_is_not_taken_for_it() {
    for said in [By::Kernel, By::Packets] {
        let mut pair = Pair::default();
        let mut changes = 0;
        for n in 0..10_000 {
            let kernel = 9000 + n % 300;
            let world = World { kernel, cold: 9300, packets: 9200 - n % 400, early: 9200 };
            let before = pair.offers.now(LEN);
            pair.one(world, said, LEN, 0);
            changes += u32::from(pair.offers.now(LEN) != before);
        }
        assert!(changes <= 3, "{said:?}: {changes}");
    }
}

/// The first reads find memory that nobody has touched, and take ten times as long.
#[test]
fn a_bad_beginning_is_forgotten() {
    let mut pair = Pair::default();
    pair.send(World { kernel: 90_000, cold: 90_000, ..FAR }, By::Packets, LEN, 60, 0);
    assert!(pair.settles(FAR, By::Kernel) < 2000, "before the times of reads were old");
}

/// Lengths have their own way each: here the kernel has a long way to go before it begins.
#[test]
fn lengths_do_not_hinder_each_other() {
    let mut pair = Pair::default();
    let long = World { kernel: 2500, cold: 3000, ..NEAR };
    for _ in 0..2000 {
        pair.one(NEAR, By::Packets, 2 * ROOM, 0);
        pair.one(long, By::Packets, 1 << 20, 0);
    }
    assert_eq!(pair.offers.now(2 * ROOM), Some(By::Packets));
    assert_eq!(pair.offers.now(1 << 20), Some(By::Kernel));
}

/// Of many on their way as the receiver changes its mind, each is declined, and no more are offered.
#[test]
fn those_under_way_are_declined_once() {
    let mut offers = Offers::default();
    let (look, gap) = (messages(LOOK_GAP.0, class(LEN)), messages(TRY_GAP.0, class(LEN)));
    let all = |offers: &mut Offers, count: u16, by| (0..count).all(|_| offers.next(LEN, By::Kernel) == by);
    assert!(all(&mut offers, look, By::Kernel));
    (0..look).for_each(|_| offers.was_declined(LEN));
    assert!(all(&mut offers, gap, By::Packets));
    assert!(all(&mut offers, 1, By::Kernel), "one is tried");
    assert!(all(&mut offers, 1, By::Packets), "and no other before its answer");
    offers.was_read(LEN);
    assert!(all(&mut offers, ROW.into(), By::Kernel), "and some more");
    assert!(all(&mut offers, 1, By::Packets));
    let before = offers.clone();
    (0..ROW).for_each(|_| offers.was_read(LEN));
    assert!(all(&mut offers, look, By::Kernel));
    let long = messages(LOOK, class(LEN));
    assert!(all(&mut offers, long, By::Packets), "to see what these take");
    assert!(all(&mut offers, look, By::Kernel));
    // One of them declined, and it was for nothing.
    let mut offers = before;
    offers.was_read(LEN);
    offers.was_declined(LEN);
    (1..ROW).for_each(|_| offers.was_read(LEN));
    assert!(all(&mut offers, 2 * gap, By::Packets));
    assert!(all(&mut offers, 1, By::Kernel));
}

#[test]
fn a_rule_may_be_set() {
    use ucs::config::ConfigValue as _;
    let mut referee = Referee::default();
    for (rule, by) in [(Rule::Kernel, By::Kernel), (Rule::Said, By::Kernel), (Rule::Packets, By::Packets)] {
        assert_eq!(referee.judge(rule, LEN), by);
        assert_eq!(Rule::parse(&rule.to_string().to_uppercase()), Some(rule));
    }
    let ways: Vec<By> = (0..100).map(|_| referee.judge(Rule::Turns, LEN)).collect();
    assert!(ways.contains(&By::Kernel) && ways.contains(&By::Packets));
    assert_eq!(Rule::parse("sometimes"), None);
}

/// A receive into many short pieces: each costs a call.
#[test]
fn short_pieces_say_nothing_of_long_messages() {
    let mut referee = Referee::default();
    referee.took_read(class_from(0) - 1, 1_000_000);
    assert_eq!(referee.figures(class_from(0)).kernel, None);
    referee.took_read(class_from(0), 1600);
    assert_eq!(referee.figures(class_from(0)).kernel, Some(100.0));
}

#[test]
fn every_length_has_a_class() {
    let of = |len: usize| class(len);
    assert_eq!([0, 1, 16384, 32767, 32768, 65536, 1 << 20].map(of), [0, 0, 0, 0, 1, 2, 6]);
    assert_eq!((of(1 << 21), of(usize::MAX)), (CLASSES - 1, CLASSES - 1));
    assert!(
        (0..CLASSES).all(|n| class(class_from(n)) == n && class(class_from(n) - 1) == n.saturating_sub(1))
    );
}
