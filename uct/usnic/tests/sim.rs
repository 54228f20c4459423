//! The module in virtual time: networks that lose, repeat, reorder and corrupt, each from a seed.
//!
//! `USNIC_SEEDS=10000 cargo test -p usnic --release --test sim every_message -- --nocapture` tries more seeds
//! than CI does; `USNIC_SEED=7` one of them; `USNIC_VERBOSE=1` names each.

#[path = "sim/clock.rs"]
mod clock;
#[path = "sim/karn.rs"]
mod karn;
#[path = "sim/network.rs"]
mod network;
#[path = "sim/node.rs"]
mod node;
#[path = "sim/paths.rs"]
mod paths;
#[path = "sim/recovery.rs"]
mod recovery;
#[path = "sim/shares.rs"]
mod shares;
#[path = "sim/world.rs"]
mod world;

use network::{Faults, Rand};
use node::{byte, head, is_refused, vanishes};
use std::env;
use usnic::{ChannelConfig, CloseReason, Config};
use world::World;

const MS: u64 = 1_000_000;
const CALM: Faults =
    Faults { loss: 0, duplicate: 0, corrupt: 0, reorder: 0, late: 0, delay: 20_000, capacity: usize::MAX };

fn seeds() -> Vec<u64> {
    let number = |name| env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("USNIC_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("USNIC_SEEDS").unwrap_or(200)).collect(),
    }
}

fn draw_faults(rand: &mut Rand) -> Faults {
    let mut of = |all: &[u64]| all[rand.below(all.len() as u64) as usize];
    Faults {
        loss: of(&[0, 0, 10, 50, 200]),
        duplicate: of(&[0, 10, 100]),
        corrupt: of(&[0, 10, 30]),
        reorder: of(&[0, 100, 500]),
        late: of(&[50_000, 2 * MS, 30 * MS]),
        delay: of(&[1_000, 30_000, 500_000, 10 * MS]),
        capacity: of(&[20, 100, 10_000]) as usize,
    }
}

fn draw_config(rand: &mut Rand, node: usize, nodes: usize) -> Config {
    let mut of = |all: &[u64]| all[rand.below(all.len() as u64) as usize];
    let flows = of(&[1, 1, 4]) as u8;
    Config {
        window: of(&[64, 256, 4096]) as u32,
        credits: of(&[3, 64, 1024]) as u32,
        initial_window: of(&[2, 32, 1000]) as u32,
        flows,
        sack: flows > 1 || of(&[0, 1]) == 1,
        priority: ChannelConfig { depth: of(&[2, 40, 512]) as u32, mtu: 1024 },
        data: ChannelConfig { depth: of(&[2, 64, 2048]) as u32, mtu: of(&[1200, 1472, 8972]) as u32 },
        quantum: of(&[1, 16]) as u32,
        // Wraps on the way.
        first_seq: (u32::MAX - 20).wrapping_add(of(&[0, 21, 1000]) as u32),
        salt: of(&[0, 4094, 4095]) as u32,
        epoch: 1,
        node: node as u64,
        max_peers: nodes,
        probes: 8,
        hellos: 12,
        ..Config::default()
    }
}

/// A run of messages between every two nodes.
fn exchange(seed: u64) -> (World, u64) {
    let mut rand = Rand::new(seed);
    let nodes = 2 + rand.below(3) as usize;
    let one = draw_faults(&mut rand);
    let alike = rand.permille(500);
    let faults: Vec<Vec<Faults>> = (0..nodes)
        .map(|_| (0..nodes).map(|_| if alike { one } else { draw_faults(&mut rand) }).collect())
        .collect();
    let configs: Vec<Config> = (0..nodes).map(|n| draw_config(&mut rand, n, nodes)).collect();
    let mut world = World::new(seed ^ 0x5eed, faults, |n| configs[n]);
    world.slow_channel = rand.permille(300);
    for longest in &mut world.network.longest {
        *longest = [usize::MAX, usize::MAX, 1_300, 600][rand.below(4) as usize];
    }
    let (jumps, clocks, narrows) = (rand.permille(300), rand.permille(300), rand.permille(300));
    let messages = 40 + rand.below(100);
    for id in 0..messages {
        let from = rand.below(nodes as u64) as usize;
        let to = (from + 1 + rand.below(nodes as u64 - 1) as usize) % nodes;
        let len = match rand.below(10) {
            0 => 0,
            1..=5 => rand.below(800),
            6..=7 => rand.below(5_000),
            _ => rand.below(60_000),
        };
        world.send(from, to, id, len as u32);
        if jumps && rand.permille(20) {
            let asleep = world.now + rand.below(2_000 * MS);
            world.nodes[rand.below(nodes as u64) as usize].asleep = asleep;
        }
        if clocks && rand.permille(20) {
            let n = rand.below(nodes as u64) as usize;
            let (now, clock) = (world.now, &mut world.nodes[n].clock);
            match rand.permille(500) {
                true => clock.jump(now, rand.below(600_000 * MS)),
                false => clock.stand_still(now, rand.below(2_000 * MS)),
            }
        }
        if narrows && rand.permille(20) {
            // A route changes: for good, so that it is not longer than a search has found.
            let longest = &mut world.network.longest[rand.below(nodes as u64) as usize];
            *longest = (*longest).min([1_300, 600, 520][rand.below(3) as usize]);
        }
        let end = world.now + rand.below(2 * MS);
        while rand.permille(900) && world.step(end) {}
    }
    (world, messages)
}

fn finished(world: &World) -> u64 {
    let done = |node: &node::Node| {
        let received = &node.received;
        let refused = received.refused.len();
        received.whole.len() + refused + received.aborted.len()
    };
    world.nodes.iter().map(done).sum::<usize>() as u64
}

#[test]
fn every_message_arrives_once_and_whole() {
    let (mut resent, mut dropped) = (0, 0);
    for seed in seeds() {
        if env::var_os("USNIC_VERBOSE").is_some() {
            println!("seed {seed}");
        }
        let (mut world, messages) = exchange(seed);
        let end = world.now + 600_000 * MS;
        while (finished(&world) < messages || !world.nodes.iter().all(node::Node::is_idle)) && world.step(end)
        {
        }
        world.check();
        let dead: Vec<_> = world.nodes.iter().map(|node| &node.received.dead).collect();
        assert!(dead.iter().all(|dead| dead.is_empty()), "seed {seed}: {dead:?}");
        let stats: Vec<_> = world.nodes.iter().map(|node| *node.module.stats()).collect();
        let held: Vec<String> = world.nodes.iter().map(|node| node.module.describe()).collect();
        assert_eq!(finished(&world), messages, "seed {seed}: {stats:#?} {held:#?}");
        for node in &world.nodes {
            let received = &node.received;
            assert!(received.dead.is_empty(), "seed {seed}: {:?}", received.dead);
            assert!(received.aborted.iter().all(|id| vanishes(*id)), "seed {seed}");
            assert!(received.refused.iter().all(|id| is_refused(*id)), "seed {seed}");
            assert!(received.partly.is_empty() && node.sent.large.is_empty(), "seed {seed}");
            let held = node.module.describe();
            assert!(held.is_empty(), "seed {seed} at {} ns: segments are still held:\n{held}", world.now);
            let stats = node.module.stats();
            resent += stats.resent_by_timer + stats.resent_by_duplicate_ack + stats.resent_by_time;
        }
        dropped += world.network.dropped;
    }
    println!("{} seeds: {dropped} datagrams lost, {resent} segments sent again", seeds().len());
}

fn pair(faults: Faults, config: impl Fn(usize) -> Config) -> World {
    World::new(1, vec![vec![faults; 2]; 2], config)
}

fn plain(n: usize) -> Config {
    Config { node: n as u64, ..Config::default() }
}

fn run(world: &mut World, for_ns: u64) {
    let end = world.now + for_ns;
    while world.step(end) {}
    world.check();
}

#[test]
fn a_silent_peer_is_dead_within_the_bound() {
    let mut world = pair(CALM, plain);
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    assert!(world.nodes[1].received.whole.contains(&1));
    world.network.cut_off[1] = true;
    let cut_off = world.now;
    world.send(0, 1, 2, 10);
    world.send(0, 1, 4, 100_000);
    while world.nodes[0].received.dead.is_empty() && world.step(u64::MAX) {}
    let (_, node, why) = world.nodes[0].received.dead[0];
    assert_eq!((node, why), (1, CloseReason::Unresponsive));
    let config = plain(0);
    let bound = config.keepalive * u64::from(config.probes + 2);
    assert!(world.now - cut_off <= bound, "{} ns", world.now - cut_off);
    assert_eq!(world.nodes[0].module.segments().0, 0);
}

#[test]
fn a_peer_that_never_answers_is_unreachable() {
    let mut world = pair(CALM, plain);
    world.network.cut_off[1] = true;
    world.send(0, 1, 1, 10);
    run(&mut world, 60_000 * MS);
    assert_eq!(world.nodes[0].received.dead.len(), 1);
    assert_eq!(world.nodes[0].received.dead[0].2, CloseReason::Unreachable);
}

#[test]
fn a_peer_that_slept_for_long_is_not_dead() {
    let mut world = pair(CALM, plain);
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    // The sender sleeps, and finds all its timers expired when it wakes up.
    world.send(0, 1, 2, 200_000);
    world.nodes[0].asleep = world.now + 3_600_000 * MS;
    run(&mut world, 3_600_100 * MS);
    assert!(world.nodes[1].received.whole.contains(&2));
    assert!(world.nodes.iter().all(|node| node.received.dead.is_empty()));
}

/// Nothing is lost, so the window is as large afterwards as before, whatever the timers did meanwhile.
#[test]
fn a_peer_that_is_not_scheduled_for_a_while_costs_no_window() {
    for flows in [1, 4] {
        for sleeper in [0, 1] {
            let mut world = pair(CALM, |n| Config { flows, initial_window: 200, ..plain(n) });
            world.send(0, 1, 1, 100_000);
            run(&mut world, 100 * MS);
            let ep = world.nodes[0].module.find(1).unwrap();
            let window = |world: &World| world.nodes[0].module.congestion_window(ep).unwrap();
            for (id, stall) in [(2, 20), (4, 8), (6, 60), (7, 20)] {
                let before = window(&world);
                world.send(0, 1, id, 250_000);
                world.nodes[sleeper].asleep = world.now + stall * MS;
                run(&mut world, 300 * MS);
                assert!(world.nodes[1].received.whole.contains(&id));
                let stats = world.nodes[0].module.stats();
                assert!(
                    window(&world) >= before,
                    "{} of {before} after {stall} ms: {stats:?}",
                    window(&world)
                );
            }
            let stats = *world.nodes[0].module.stats();
            assert_eq!(stats.recoveries > 0, sleeper == 1, "{stats:?}");
            let resent = stats.resent_by_timer + stats.resent_by_time + stats.resent_by_duplicate_ack;
            assert_eq!(resent, stats.resent_spuriously, "{stats:?}");
        }
    }
}

/// A stream over a network that has lost once goes on in batches, and at its full window after a while.
#[test]
fn a_pace_ends_and_costs_few_calls() {
    let mut world = pair(Faults { delay: 30_000, ..CALM }, |n| Config { initial_window: 512, ..plain(n) });
    world.send(0, 1, 1, 100);
    run(&mut world, 10 * MS);
    world.network.cut_off[1] = true;
    world.send(0, 1, 2, 300_000);
    world.network.cut_off[1] = false;
    (0..400).for_each(|n| world.send(0, 1, 29 * 31 * (n + 1), 100_000));
    run(&mut world, 60_000 * MS);
    assert_eq!(world.nodes[1].received.whole.len(), 402);
    let ep = world.nodes[0].module.find(1).unwrap();
    let (stats, window) = (*world.nodes[0].module.stats(), world.nodes[0].module.congestion_window(ep));
    assert!(stats.recoveries >= 1 && window > Some(300), "{window:?} {stats:?}");
    assert!(stats.pace_stalls * 16 < stats.sent, "{stats:?}");
}

/// A loss is not taken for a pause of the peer, also where the network repeats datagrams.
#[test]
fn a_loss_keeps_the_window_smaller() {
    for duplicate in [0, 10] {
        let faults = Faults { loss: 20, duplicate, delay: 500_000, ..CALM };
        let mut world = pair(faults, plain);
        (1..30).for_each(|n| world.send(0, 1, 29 * 31 * n, 200_000));
        run(&mut world, 60_000 * MS);
        assert_eq!(world.nodes[1].received.whole.len(), 29);
        let stats = world.nodes[0].module.stats();
        assert!(stats.recoveries > 10 && stats.window_restored * 5 <= stats.recoveries, "{stats:?}");
    }
}

#[test]
fn a_goodbye_ends_the_connection_at_once() {
    for times in [1, 2] {
        let mut world = pair(CALM, plain);
        world.watch = false;
        world.send(0, 1, 1, 10);
        world.send(1, 0, 2, 10);
        run(&mut world, 10 * MS);
        // What was sent before it arrives before it.
        world.send(1, 0, 4, 300);
        world.leave(1, 0, times);
        world.send(0, 1, 6, 100_000);
        run(&mut world, MS);
        let dead: Vec<_> = world.nodes[0].received.dead.iter().map(|(_, node, why)| (*node, *why)).collect();
        assert_eq!(dead, [(1, CloseReason::Left)]);
        assert!(world.nodes[0].received.whole.contains(&4));
        // It may come back.
        world.send(1, 0, 7, 10);
        run(&mut world, 100 * MS);
        assert!(world.nodes[0].received.whole.contains(&7));
        assert_eq!(world.nodes[0].received.dead.len(), 1);
    }
}

#[test]
fn a_bye_waits_for_missing_segments_and_a_lost_bye_times_out() {
    let mut world = pair(CALM, plain);
    world.watch = false;
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    world.network.cut_off[0] = true;
    world.send(1, 0, 2, 10);
    world.network.cut_off[0] = false;
    world.leave(1, 0, 1);
    run(&mut world, 290 * MS);
    assert!(world.nodes[0].received.dead.is_empty(), "a segment is missing");
    run(&mut world, 20 * MS);
    assert_eq!(world.nodes[0].received.dead[0].2, CloseReason::Left);

    let mut world = pair(CALM, plain);
    world.watch = false;
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    world.leave(1, 0, 0);
    world.network.cut_off[1] = true;
    world.send(0, 1, 2, 10);
    run(&mut world, 10_000 * MS);
    assert_eq!(world.nodes[0].received.dead[0].2, CloseReason::Unresponsive);
}

#[test]
fn a_goodbye_ahead_of_the_last_fragment_ends_the_connection_with_it() {
    let mut world = pair(CALM, plain);
    world.watch = false;
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    let (now, from) = (world.now, &mut world.nodes[1]);
    let ep = from.module.find(0).unwrap();
    let bytes: Vec<u8> = (0..10).map(|at| byte(2, at)).collect();
    let posted = from.module.send(now, ep, &head(2, 10), [&bytes, &[]]).unwrap().expect("nothing waits");
    let last = from.module.bytes(&posted).to_vec();
    let bye = from.module.goodbye(ep).unwrap();
    let to = &mut world.nodes[0];
    assert!(to.module.on_datagram(now, &bye, &mut to.received).is_none());
    assert!(to.received.dead.is_empty(), "a fragment is missing");
    assert!(to.module.recv_fast(now, &last, &mut to.received));
    assert!(to.received.whole.contains(&2));
    to.module.on_time(now + MS, &mut to.received);
    let dead: Vec<_> = to.received.dead.iter().map(|(_, node, why)| (*node, *why)).collect();
    assert_eq!(dead, [(1, CloseReason::Left)]);
}

/// A goodbye with other names, or of an earlier connection, ends nothing, and is not answered.
#[test]
fn a_forged_or_late_goodbye_changes_nothing() {
    let mut world = pair(CALM, plain);
    world.watch = false;
    world.send(1, 0, 1, 10);
    run(&mut world, 10 * MS);
    let ep = world.nodes[1].module.find(0).unwrap();
    let late = world.nodes[1].module.goodbye(ep).unwrap();
    world.leave(1, 0, 1);
    world.send(1, 0, 2, 10);
    run(&mut world, 100 * MS);
    assert_eq!(world.nodes[0].received.dead.len(), 1);
    let ep = world.nodes[1].module.find(0).unwrap();
    let good = world.nodes[1].module.goodbye(ep).unwrap();
    let (now, node) = (world.now, &mut world.nodes[0]);
    let mut forged = vec![late];
    for at in 4..12 {
        let mut wrong = good;
        wrong[at] ^= 1;
        usnic::seal(&mut wrong);
        forged.push(wrong);
    }
    for datagram in forged {
        assert!(node.module.on_datagram(now, &datagram, &mut node.received).is_none());
    }
    assert_eq!((node.received.dead.len(), node.module.peers()), (1, 1));
    assert!(node.module.on_datagram(now, &good, &mut node.received).is_none());
    assert_eq!(node.received.dead.len(), 2);
}

#[test]
fn a_peer_in_the_place_of_another_is_noticed() {
    let mut world = pair(CALM, plain);
    world.watch = false;
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    world.nodes[1].module = usnic::Module::new(Config { epoch: 2, salt: 77, ..plain(1) }, world.now);
    world.send(0, 1, 2, 10);
    run(&mut world, 10 * MS);
    assert_eq!(world.nodes[0].received.dead.len(), 1);
    assert_eq!(world.nodes[0].received.dead[0].2, CloseReason::Restarted);
    world.send(0, 1, 7, 10);
    run(&mut world, 10 * MS);
    assert!(world.nodes[1].received.whole.contains(&7) && !world.nodes[1].received.whole.contains(&2));
}

/// The clock of its host was set back between two processes.
#[test]
fn a_peer_with_an_earlier_clock_takes_the_place_of_another() {
    let mut world = pair(CALM, |n| Config { epoch: 100, ..plain(n) });
    world.watch = false;
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    world.nodes[1].module = usnic::Module::new(Config { epoch: 50, salt: 77, ..plain(1) }, world.now);
    world.send(1, 0, 2, 10);
    run(&mut world, 500 * MS);
    assert!(world.nodes[0].received.whole.contains(&2), "{:?}", world.nodes[0].module.stats());
    let dead: Vec<_> = world.nodes[0].received.dead.iter().map(|(_, _, why)| *why).collect();
    assert_eq!(dead, [CloseReason::Restarted]);
}

/// Datagrams that are sent before the peer's MTU is known fit it too.
#[test]
fn peers_of_two_mtus() {
    let small = Config {
        tiny: 256,
        priority: ChannelConfig { depth: 64, mtu: 400 },
        data: ChannelConfig { depth: 64, mtu: 600 },
        ..plain(1)
    };
    let mut world = pair(CALM, |n| if n == 1 { small } else { plain(0) });
    let lens = [768, 500, 452, 10, 5_000, 768, 1_400];
    for (id, len) in (6..).zip(lens) {
        world.send(0, 1, id, len);
    }
    run(&mut world, 10 * MS);
    for (id, len) in (16..).zip(lens) {
        world.send(0, 1, id, len);
        world.send(1, 0, id + 60, len);
    }
    run(&mut world, 500 * MS);
    let arrived = world.nodes.iter().map(|node| node.received.whole.len()).sum::<usize>();
    assert_eq!(arrived, 3 * lens.len());
    assert!(world.longest_to[1] <= 600, "a datagram of {} bytes", world.longest_to[1]);
}

#[test]
fn both_sides_connect_at_once() {
    let mut world = pair(CALM, plain);
    world.send(0, 1, 1, 10);
    world.send(1, 0, 2, 10);
    run(&mut world, 200 * MS);
    assert!(world.nodes[1].received.whole.contains(&1) && world.nodes[0].received.whole.contains(&2));
    assert!(world.nodes.iter().all(|node| node.module.peers() == 1 && node.received.dead.is_empty()));
}

#[test]
fn a_warm_module_makes_no_segment() {
    let mut world = pair(CALM, plain);
    let mut made = 0;
    for round in 0..20u64 {
        (0..50).for_each(|n| world.send(0, 1, 1000 * round + n, if n % 7 == 0 { 9_000 } else { 100 }));
        run(&mut world, 500 * MS);
        let now = world.nodes.iter().map(|node| node.module.segments().1).sum();
        assert!(round < 3 || now == made, "round {round}: {now} segments, {made} before");
        made = now;
    }
}

/// Delays of a fifth of a round trip, as several ways cause them, resend next to nothing.
#[test]
fn reordering_is_no_loss_with_several_flows() {
    let faults = Faults { reorder: 400, late: 300_000, delay: 500_000, ..CALM };
    let mut world = pair(faults, |n| Config { flows: 4, ..plain(n) });
    // Not one of those that are refused or aborted.
    (1..30).for_each(|n| world.send(0, 1, 29 * 31 * n, 200_000));
    run(&mut world, 60_000 * MS);
    assert_eq!(world.nodes[1].received.whole.len(), 29);
    let stats = world.nodes[0].module.stats();
    let resent = stats.resent_by_timer + stats.resent_by_duplicate_ack + stats.resent_by_time;
    assert!(resent * 50 < stats.sent, "{resent} of {}", stats.sent);
    assert!(world.nodes[1].module.stats().received_early * 10 > stats.sent, "the network reorders");
}

/// Tiny sends overtake large ones, as they have a channel of their own, and here datagrams of a channel
/// overtake each other, too: without selective acknowledgement the document's rule takes each such
/// acknowledgement for a loss. With it, the first segments that were sent again for nothing end the rule.
#[test]
fn tiny_sends_that_overtake_large_ones_resend_nothing_with_selective_acknowledgement() {
    let resent = |sack: bool| {
        let faults = Faults { reorder: 1000, late: 100_000, ..CALM };
        let mut world = pair(faults, |n| Config { sack, ..plain(n) });
        for n in 1..400 {
            world.send(0, 1, 2 * 29 * 31 * n, 9_000);
            world.send(0, 1, 2 * 29 * 31 * n + 29 * 31, 8);
            run(&mut world, MS / 10);
        }
        run(&mut world, 10_000 * MS);
        assert_eq!(world.nodes[1].received.whole.len(), 798);
        let stats = world.nodes[0].module.stats();
        (stats.sent, stats.resent_by_duplicate_ack + stats.resent_by_time, stats.resent_spuriously)
    };
    let (by_repeat, by_time) = (resent(false), resent(true));
    println!("sent, resent, needlessly: {by_repeat:?} by repeated acknowledgements, {by_time:?} by time");
    assert!(by_time.1 * 10 < by_repeat.1, "{by_repeat:?} {by_time:?}");
}

/// A lost segment is sent again long before its timer expires: by a repeated acknowledgement with one flow,
/// by time with several.
#[test]
fn losses_are_repaired_before_the_timer() {
    let faults = Faults { loss: 10, delay: 500_000, ..CALM };
    let repaired = |flows: u8| {
        let mut world = pair(faults, |n| Config { flows, sack: flows > 1, ..plain(n) });
        (1..30).for_each(|n| world.send(0, 1, 29 * 31 * n, 200_000));
        run(&mut world, 60_000 * MS);
        assert_eq!(world.nodes[1].received.whole.len(), 29);
        *world.nodes[0].module.stats()
    };
    let (one, several) = (repaired(1), repaired(4));
    assert!(one.resent_by_duplicate_ack > 5 && one.resent_by_time == 0, "{one:?}");
    assert!(several.resent_by_time > 20 && several.resent_by_duplicate_ack == 0, "{several:?}");
    assert!(several.resent_by_timer < several.resent_by_time / 4, "{several:?}");
}

/// With one flow and selective acknowledgement the document's rule tells losses by the order of each channel:
/// at once, all but those at an end, and none that is none, though tiny sends overtake large ones by far.
#[test]
fn the_order_of_a_channel_tells_losses_and_only_losses() {
    let sent = |loss: u64| {
        let faults = Faults { loss, delay: 500_000, ..CALM };
        let mut world = pair(faults, plain);
        world.network.in_order = Some(200_000);
        for n in 1..100 {
            world.send(0, 1, 2 * 29 * 31 * n, 60_000);
            world.send(0, 1, 2 * 29 * 31 * n + 29 * 31, 8);
            run(&mut world, MS / 10);
        }
        run(&mut world, 60_000 * MS);
        assert_eq!(world.nodes[1].received.whole.len(), 198);
        *world.nodes[0].module.stats()
    };
    let calm = sent(0);
    let resent =
        |stats: &usnic::Stats| stats.resent_by_duplicate_ack + stats.resent_by_time + stats.resent_by_timer;
    assert_eq!((resent(&calm), calm.acks_duplicate, calm.resent_spuriously), (0, 0, 0), "{calm:?}");
    let lossy = sent(10);
    println!("{lossy:?}");
    assert!(lossy.resent_by_duplicate_ack * 10 > resent(&lossy) * 8, "{lossy:?}");
    assert!(lossy.resent_by_duplicate_ack > 30 && lossy.resent_spuriously <= 2, "{lossy:?}");
}

/// A module takes no harm from bytes of a stranger.
#[test]
fn strangers_do_no_harm() {
    let mut world = pair(CALM, |n| Config { max_peers: 1, ..plain(n) });
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    let mut rand = Rand::new(3);
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..rand.below(200)).map(|_| rand.below(256) as u8).collect();
        if bytes.len() >= 28 {
            (bytes[0], bytes[1], bytes[22], bytes[23]) = (1, rand.below(11) as u8, 0, 0);
            usnic::seal(&mut bytes);
        }
        let node = &mut world.nodes[1];
        let _ = node.module.on_datagram(world.now, &bytes, &mut node.received);
        assert!(node.module.peers() <= 1);
    }
    world.send(0, 1, 2, 10);
    run(&mut world, 10 * MS);
    assert!(world.nodes[1].received.whole.contains(&2));
}
