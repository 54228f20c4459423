//! Fairness between peers: of one sender, and of one receiver.

use super::*;

/// Streams from one node share what it sends, also where one path is long and one loses.
#[test]
fn peers_of_a_node_share_its_channel() {
    let path = |delay, loss| Faults { delay, loss, ..CALM };
    for paths in
        [[path(20_000, 0); 2], [path(20_000, 0), path(60_000, 0)], [path(20_000, 2), path(20_000, 2)]]
    {
        let faults =
            (0..3).map(|from: usize| (0..3).map(|to| paths[from.max(to).saturating_sub(1)]).collect());
        // The channel takes few datagrams at once, and they leave it late: there is something to share.
        let depth = ChannelConfig { depth: 8, ..Config::default().data };
        let mut world = World::new(5, faults.collect(), |n| Config { data: depth, ..plain(n) });
        world.slow_channel = true;
        for n in 1..400 {
            (1..3).for_each(|to| world.send(0, to, 29 * 31 * (2 * n + to as u64), 50_000));
        }
        let bytes = |world: &World| [1, 2].map(|to| world.nodes[to].received.whole.len());
        while bytes(&world).iter().sum::<usize>() < 300 {
            assert!(world.step(u64::MAX));
        }
        let [one, two] = bytes(&world);
        assert!(one <= 2 * two && two <= 2 * one, "{paths:?}: {one} and {two} messages");
    }
}

/// Two senders to one receiver, whose queue overflows, get shares within a factor of two.
#[test]
fn senders_share_a_bottleneck() {
    let bottleneck = Faults { delay: 100_000, capacity: 60, ..CALM };
    let mut world = World::new(9, vec![vec![bottleneck; 3]; 3], plain);
    world.network.shares_queue = true;
    for n in 1..600 {
        (1..3).for_each(|from| world.send(from, 0, 29 * 31 * (2 * n + from as u64), 50_000));
    }
    let of = |world: &World, from: u64| {
        world.nodes[0].received.whole.iter().filter(|id| (**id / (29 * 31) - from).is_multiple_of(2)).count()
    };
    while of(&world, 1) + of(&world, 2) < 600 {
        assert!(world.step(u64::MAX));
    }
    let (one, two) = (of(&world, 1), of(&world, 2));
    assert!(world.network.dropped > 100, "the queue overflows");
    assert!(one <= 2 * two && two <= 2 * one, "{one} and {two} messages");
}
