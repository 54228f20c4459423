//! A sender and its receiver that send each other nothing: what a message takes is made up.

use super::*;

const LEN: usize = 65536;
/// Bytes of a packet.
const ROOM: usize = 16384;

/// What 64 KiB take, by the kernel, by the kernel behind packets, by packets, and by packets behind the kernel.
#[derive(Clone, Copy)]
struct World {
    kernel: u64,
    cold: u64,
    packets: u64,
    alone: u64,
}

const FAR: World = World { kernel: 9000, cold: 19_000, packets: 16_400, alone: 15_000 };
const NEAR: World = World { kernel: 8000, cold: 12_000, packets: 5700, alone: 5000 };
/// One message in packets looks like the faster way.
const FALSE: World = World { alone: 7000, ..FAR };

#[derive(Default)]
struct Pair {
    offers: Offers,
    referee: Referee,
    /// How messages went.
    by: Vec<By>,
    time: u64,
    nacks: u64,
    dice: u64,
}

impl Pair {
    fn draw(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.dice >> 33) % n
    }

    /// So many messages of `len` bytes.
    fn send(&mut self, world: World, said: By, len: usize, count: usize, noise: u64) {
        (0..count).for_each(|_| self.one(world, said, len, noise));
    }

    /// One message. One time in `noise` is four times as long.
    fn one(&mut self, world: World, said: By, len: usize, noise: u64) {
        let scale = |time: u64| time * len as u64 / LEN as u64;
        let mut by = self.offers.next(len, said);
        let offered = by == By::Kernel;
        if offered {
            by = self.referee.judge(Rule::Auto, len);
        }
        let behind = self.by.last().copied();
        let jolt = |pair: &mut Pair| if noise > 0 && pair.draw(noise) == 0 { 4 } else { 1 };
        match by {
            By::Kernel => {
                let time = scale(if behind == Some(By::Kernel) { world.kernel } else { world.cold });
                self.time += time;
                let time = time * jolt(self);
                self.referee.took_read(len, time);
                self.offers.was_read(len);
            }
            By::Packets => {
                let time = if behind == Some(By::Kernel) { world.alone } else { world.packets };
                for _ in 0..len / ROOM {
                    let time = time * ROOM as u64 / LEN as u64 * jolt(self);
                    self.referee.took_packet(ROOM, time);
                }
                if offered {
                    self.offers.was_declined(len);
                    self.nacks += 1;
                    self.time += 1000;
                }
                self.time += scale(world.packets);
            }
        }
        self.by.push(by);
    }

    /// Messages until `by` is what nearly all of the next ones take.
    fn settles(&mut self, world: World, by: By) -> usize {
        let begun = self.by.len();
        self.send(world, By::Packets, LEN, 600, 0);
        let rest = &self.by[begun..];
        (0..rest.len() - 16)
            .find(|&n| rest[n..n + 16].iter().filter(|way| **way == by).count() >= 15)
            .unwrap()
    }
}

#[test]
fn each_world_has_its_way_whatever_was_said() {
    for (world, best) in [(FAR, By::Kernel), (NEAR, By::Packets), (FALSE, By::Kernel)] {
        for said in [By::Kernel, By::Packets] {
            for len in [ROOM * 2, LEN, 1 << 20] {
                let mut pair = Pair::default();
                pair.send(world, said, len, 800, 0);
                let begun = pair.by.len();
                pair.send(world, said, len, 4000, 0);
                let other = pair.by[begun..].iter().filter(|by| **by != best).count();
                assert!(
                    other <= 4000 / 50,
                    "{best:?}, {said:?} said, {len} bytes: {other} of 4000 went the other way"
                );
                assert_eq!(pair.offers.now(len), Some(best));
                assert_eq!(pair.referee.figures(len).by, best);
            }
        }
    }
}

/// What looking costs, in the long run: less than three in a hundred.
#[test]
fn to_look_costs_little() {
    for (world, best) in [(FAR, FAR.kernel), (NEAR, NEAR.packets), (FALSE, FALSE.kernel)] {
        let mut pair = Pair::default();
        pair.send(world, By::Packets, LEN, 1000, 0);
        pair.time = 0;
        pair.send(world, By::Packets, LEN, 10_000, 0);
        let best = best * 10_000;
        assert!(pair.time <= best + best / 33, "{} and {best}", pair.time);
    }
}

#[test]
fn a_change_is_noticed_within_some_messages() {
    let mut pair = Pair::default();
    assert!(pair.settles(NEAR, By::Packets) < 40);
    for _ in 0..10 {
        assert!(pair.settles(FAR, By::Kernel) <= 2 * usize::from(GAP.1) + 16);
        assert!(pair.settles(NEAR, By::Packets) <= 2 * usize::from(GAP.1) + 16);
    }
}

/// One time in forty is four times as long: an interrupt, another process.
#[test]
fn chance_changes_nothing() {
    for (world, best) in [(FAR, By::Kernel), (NEAR, By::Packets)] {
        let mut pair = Pair { dice: 7, ..Pair::default() };
        pair.send(world, best, LEN, 200, 40);
        let begun = pair.by.len();
        pair.send(world, best, LEN, 10_000, 40);
        let other = pair.by[begun..].iter().filter(|by| **by != best).count();
        assert!(other < 10_000 / 50, "{best:?}: {other} went the other way");
    }
}

/// Two ways that take the same: whichever was taken stays.
#[test]
fn who_is_hardly_faster_is_not_taken_for_it() {
    for said in [By::Kernel, By::Packets] {
        let mut pair = Pair { dice: 3, ..Pair::default() };
        let mut changes = 0;
        for n in 0..5000 {
            let world = World { kernel: 9000 + n % 300, cold: 9300, packets: 9200 - n % 400, alone: 9200 };
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
    pair.send(World { kernel: 90_000, cold: 90_000, ..FAR }, By::Packets, LEN, 30, 0);
    assert!(pair.settles(FAR, By::Kernel) < 500, "before the times of reads were old");
}

/// Lengths have their own way each: here the kernel has a long way to go before it begins.
#[test]
fn lengths_do_not_hinder_each_other() {
    let mut pair = Pair::default();
    let long = World { kernel: 4000, cold: 5000, ..NEAR };
    for _ in 0..1000 {
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
    for _ in 0..BEGIN.0 {
        assert_eq!(offers.next(LEN, By::Kernel), By::Kernel);
    }
    for _ in 0..BEGIN.0 {
        offers.was_declined(LEN);
    }
    for _ in 0..GAP.0 {
        assert_eq!(offers.next(LEN, By::Kernel), By::Packets);
    }
    assert_eq!(offers.next(LEN, By::Kernel), By::Kernel, "one is tried");
    assert_eq!(offers.next(LEN, By::Kernel), By::Packets, "and no other before its answer");
    offers.was_read(LEN);
    for n in 0..READS {
        assert_eq!(offers.next(LEN, By::Kernel), By::Kernel, "and more, {n}");
    }
    assert_eq!(offers.next(LEN, By::Kernel), By::Packets);
    let before = offers.clone();
    (0..READS).for_each(|_| offers.was_read(LEN));
    assert!((0..GAP.0).all(|_| offers.next(LEN, By::Kernel) == By::Kernel));
    assert_eq!(offers.next(LEN, By::Kernel), By::Packets, "to see what these take");
    // One of them declined, and it was for nothing.
    let mut offers = before;
    offers.was_read(LEN);
    offers.was_declined(LEN);
    (1..READS).for_each(|_| offers.was_read(LEN));
    assert!((0..2 * GAP.0).all(|_| offers.next(LEN, By::Kernel) == By::Packets));
    assert_eq!(offers.next(LEN, By::Kernel), By::Kernel);
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
