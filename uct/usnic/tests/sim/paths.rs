//! Paths that drop long datagrams.

use super::*;
use usnic::{Module, NoSource};

/// Sends 100 kB each way over paths that drop longer datagrams, and returns what each node was told.
fn over_short_paths(longest: [usize; 2], faults: Faults) -> Vec<Vec<(u64, u32, u32)>> {
    let mut world = pair(faults, plain);
    world.network.longest = longest.to_vec();
    world.send(0, 1, 1, 10);
    world.send(0, 1, 2, 100_000);
    run(&mut world, 3_000 * MS);
    world.send(0, 1, 4, 100_000);
    world.send(1, 0, 6, 100_000);
    run(&mut world, 5_000 * MS);
    for (node, wanted) in world.nodes.iter().zip([&[6][..], &[1, 2, 4]]) {
        assert!(wanted.iter().all(|id| node.received.whole.contains(id)), "{longest:?}");
        assert!(node.received.dead.is_empty(), "{longest:?}: {:?}", node.received.dead);
    }
    world.nodes.iter().map(|node| node.received.short_paths.clone()).collect()
}

#[test]
fn segments_fit_a_path_that_drops_long_datagrams() {
    const ALL: usize = usize::MAX;
    assert_eq!(over_short_paths([ALL, ALL], CALM), [vec![], vec![]]);
    assert_eq!(over_short_paths([1_000, 1_000], CALM), [vec![(1, 768, 1_472)], vec![(0, 768, 1_472)]]);
    // Each direction has its own.
    assert_eq!(over_short_paths([ALL, 1_300], CALM), [vec![(1, 1_252, 1_472)], vec![]]);
    assert_eq!(over_short_paths([520, ALL], CALM), [vec![], vec![(0, 512, 1_472)]]);
}

/// A probe is lost like anything else, and is no proof of a short path.
#[test]
fn losses_make_no_path_short() {
    let faults = Faults { loss: 200, reorder: 100, late: 2 * MS, ..CALM };
    assert_eq!(over_short_paths([usize::MAX; 2], faults), [vec![], vec![]]);
}

/// Sends messages of all lengths, most of them segments of full length, over a path that becomes short when
/// half of them are on their way, twice. Returns the world, and how long all of it took.
fn over_paths_that_become_short(longest: [usize; 2], faults: Faults, seed: u64) -> (World, u64) {
    let mut world = World::new(seed, vec![vec![faults; 2]; 2], plain);
    let start = world.now;
    let mut ids = 1..;
    for (longest, wait) in [(usize::MAX, 2), (longest[0], 1_700), (longest[1], 2)] {
        world.network.longest = vec![usize::MAX, longest];
        for (from, to) in [(0, 1), (1, 0)] {
            for len in [10, 1_300, 1_412, 900, 100_000, 30_000] {
                let id = ids.by_ref().find(|id| !is_refused(*id) && !vanishes(*id)).expect("more");
                world.send(from, to, id, len);
            }
        }
        run(&mut world, wait * MS);
    }
    let last = ids.start - 1;
    let wanted = |world: &World| {
        let all = (1..=last).filter(|id| !is_refused(*id) && !vanishes(*id));
        all.filter(|id| !world.nodes.iter().any(|node| node.received.whole.contains(id))).count()
    };
    while wanted(&world) != 0 && world.now - start < 60_000 * MS {
        run(&mut world, 10 * MS);
    }
    assert_eq!(wanted(&world), 0, "seed {seed}");
    for node in &world.nodes {
        assert!(node.received.dead.is_empty(), "seed {seed}: {:?}", node.received.dead);
    }
    let took = world.now - start;
    // What comes later fits.
    run(&mut world, 3_000 * MS);
    world.longest_to = vec![0; 2];
    world.send(0, 1, 1_000_001, 100_000);
    run(&mut world, 3_000 * MS);
    assert!(world.nodes[1].received.whole.contains(&1_000_001), "seed {seed}");
    (world, took)
}

#[test]
fn a_path_that_becomes_short_is_searched_again_and_nothing_is_lost() {
    let (world, took) = over_paths_that_become_short([1_300, 700], CALM, 1);
    assert_eq!(world.nodes[0].received.short_paths.last(), Some(&(1, 548, 1_252)));
    assert!(world.longest_to[1] <= 700 && world.nodes[1].received.short_paths.is_empty());
    assert!(world.nodes[0].module.stats().resent_in_pieces > 0);
    assert!(took < 5_000 * MS, "{} ms", took / MS);
    let faults = Faults { loss: 100, duplicate: 10, corrupt: 10, reorder: 100, late: 2 * MS, ..CALM };
    for seed in 0..20 {
        let (world, _) = over_paths_that_become_short([1_300, 1_000], faults, seed);
        assert!(world.longest_to[1] <= 1_000, "seed {seed}");
    }
}

/// Segments that are lost again and again by chance are proof of nothing.
#[test]
fn losses_make_no_path_short_later() {
    let faults = Faults { loss: 250, reorder: 100, late: 2 * MS, ..CALM };
    for seed in 0..20 {
        let (world, _) = over_paths_that_become_short([usize::MAX; 2], faults, seed);
        for node in &world.nodes {
            assert!(node.received.short_paths.is_empty(), "seed {seed}: {:?}", node.received.short_paths);
        }
    }
}

/// A path that begins to drop what each path should carry ends the connection.
#[test]
fn a_path_that_carries_next_to_nothing_ends_the_connection_within_a_bound() {
    let mut world = pair(CALM, plain);
    world.send(0, 1, 1, 10);
    run(&mut world, 10 * MS);
    world.network.longest = vec![400; 2];
    let start = world.now;
    world.send(0, 1, 2, 100_000);
    for id in 0..300 {
        world.send(0, 1, 1000 + 29 * 31 * id, 10);
        run(&mut world, 100 * MS);
        if !world.nodes[0].received.dead.is_empty() {
            break;
        }
    }
    let (_, node, why) = world.nodes[0].received.dead[0];
    // The chunks of a fragment have one length.
    assert!(node == 1 && matches!(why, CloseReason::Undelivered { len: 1_001..=1_472 }), "{node}: {why:?}");
    assert!(world.now - start <= 15_000 * MS, "{} ns", world.now - start);
    assert_eq!(world.nodes[1].received.dead.len(), 0);
}

/// A sender whose address is not proven gets no more bytes than it has sent.
#[test]
fn a_request_to_connect_is_answered_by_no_more_bytes() {
    let mut modules = [0, 1].map(|n| Module::new(plain(n), 0));
    let mut received = node::Received::default();
    modules[0].connect(0, 1).expect("room");
    for round in 0..3u64 {
        let now = round * 100 * MS;
        modules[0].on_time(now, &mut received);
        let hello = modules[0].poll_send(now, &mut NoSource).expect("a request");
        let bytes = modules[0].bytes(&hello).to_vec();
        assert_eq!((bytes.len() > 1_000, hello.is_ping), (round == 0, round == 0));
        modules[0].completed(&hello);
        assert!(modules[1].on_datagram(now, &bytes, &mut received).is_none());
        let mut answered = 0;
        for late in 0..90 {
            modules[1].on_time(now + late * MS, &mut received);
            while let Some(posted) = modules[1].poll_send(now + late * MS, &mut NoSource) {
                answered += modules[1].bytes(&posted).len();
                modules[1].completed(&posted);
            }
        }
        assert_eq!(answered, bytes.len(), "round {round}");
    }
}
