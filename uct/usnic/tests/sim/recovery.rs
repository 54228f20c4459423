//! Streams on paths that lose.

use super::*;

/// Segments of a stream in a round trip, with one of the same kind the other way.
fn per_round_trip(faults: Faults, rtts: u64) -> f64 {
    let mut world = pair(faults, plain);
    world.watch = false;
    for n in 0..10_000u64 {
        (0..2).for_each(|from: usize| {
            world.send(from, 1 - from, 29 * 31 * (2 * n + from as u64 + 1), 8_928);
        });
    }
    run(&mut world, rtts * 2 * faults.delay);
    let sent = world.nodes[0].module.stats().sent as f64 / rtts as f64;
    println!("{faults:?}: {sent:.2} segments in a round trip");
    sent
}

/// Losses by chance are no congestion, and few of them wait for a timer.
#[test]
fn a_path_that_loses_by_chance_keeps_what_gets_through() {
    let long = Faults { delay: 10 * MS, reorder: 100, late: 3 * MS, duplicate: 10, ..CALM };
    let short = Faults { delay: MS / 10, late: MS / 10, ..long };
    assert!(per_round_trip(Faults { loss: 60, ..long }, 3_000) > 9.0);
    assert!(per_round_trip(Faults { loss: 200, ..long }, 3_000) > 2.0);
    assert!(per_round_trip(Faults { loss: 200, ..short }, 20_000) > 0.35);
}

/// Two senders share a bottleneck of 10 000 datagrams a second behind 20 ms, with a queue or next to none:
/// they fill it, lose little, and have shares within a factor of two.
#[test]
fn a_bottleneck_is_filled_and_shared() {
    for most in [20, 400] {
        let mut world = World::new(9, vec![vec![Faults { delay: 10 * MS, ..CALM }; 3]; 3], plain);
        world.watch = false;
        world.network.bottleneck = Some((MS / 10, most));
        for n in 1..24_000 {
            (1..3).for_each(|from| world.send(from, 0, 29 * 31 * (2 * n + from as u64), 8_928));
        }
        let of = |world: &World, from: u64| {
            let whole = world.nodes[0].received.whole.iter();
            whole.filter(|id| (**id / (29 * 31) - from).is_multiple_of(2)).count()
        };
        run(&mut world, 5_000 * MS);
        let (before, dropped) = ([1, 2].map(|from| of(&world, from)), world.network.dropped);
        run(&mut world, 10_000 * MS);
        let [one, two] = [1, 2].map(|from| of(&world, from) - before[from as usize - 1]);
        let share = (one + two) as f64 * 7.0 / 100_000.0;
        let lost = (world.network.dropped - dropped) as f64 / 100_000.0;
        println!("a queue of {most}: {one} and {two} messages, {share:.3} of the rate, {lost:.3} lost");
        assert!(one <= 2 * two && two <= 2 * one, "{one} and {two} messages");
        assert!(share > 0.9 && lost < 0.02, "{share} of the rate, {lost} lost");
    }
}
