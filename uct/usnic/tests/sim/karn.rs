//! Round-trip times are measured by segments that were sent once.

use super::*;
use usnic::{Module, NoSource};

/// Karn's rule: the round trip of a segment that was sent again is not known, so no sample is taken. Here the
/// first copy of each gets lost.
#[test]
fn segments_sent_again_give_no_round_trip_times() {
    let mut modules = [0, 1].map(|n| Module::new(plain(n), 0));
    let mut received = node::Received::default();
    let [one, two] = &mut modules;
    let ep = one.connect(0, 1).expect("room");
    let mut carry = |one: &mut Module, two: &mut Module, now: u64, lose: bool| {
        for _ in 0..4 {
            for (from, to) in [(&mut *one, &mut *two)] {
                while let Some(posted) = from.poll_send(now, &mut NoSource) {
                    let bytes = from.bytes(&posted).to_vec();
                    from.completed(&posted);
                    if !(lose && bytes[1] == 1) {
                        let _ = to.on_datagram(now, &bytes, &mut received);
                    }
                }
            }
            while let Some(posted) = two.poll_send(now, &mut NoSource) {
                let bytes = two.bytes(&posted).to_vec();
                two.completed(&posted);
                let _ = one.on_datagram(now, &bytes, &mut received);
            }
        }
        one.on_time(now, &mut received);
        two.on_time(now + 50_000, &mut received);
    };
    let samples = |module: &Module| module.stats().rtt.iter().sum::<u64>();
    carry(one, two, 0, false);
    for round in 1..=5u64 {
        let now = round * 10_000 * MS;
        let posted = one.send(now, ep, &node::head(29 * round, 0), [&[], &[]]).expect("an open connection");
        if let Some(posted) = posted {
            // Lost on its way.
            one.completed(&posted);
        }
        carry(one, two, now, true);
        for late in 1..300 {
            carry(one, two, now + late * 10 * MS, false);
        }
        assert!(one.is_idle(ep), "round {round}");
    }
    let resent = one.stats().resent_by_timer + one.stats().resent_by_time;
    assert_eq!((resent >= 5, samples(one)), (true, 0), "{:?}", one.stats());
    // One that was not sent again gives one.
    let now = 90_000 * MS;
    let posted = one.send(now, ep, &node::head(29 * 9, 0), [&[], &[]]).expect("an open connection");
    let posted = posted.expect("a tiny one goes at once");
    let bytes = one.bytes(&posted).to_vec();
    one.completed(&posted);
    let mut of_two = node::Received::default();
    let _ = two.on_datagram(now, &bytes, &mut of_two);
    two.on_time(now + MS, &mut of_two);
    while let Some(posted) = two.poll_send(now + MS, &mut NoSource) {
        let bytes = two.bytes(&posted).to_vec();
        two.completed(&posted);
        let _ = one.on_datagram(now + MS, &bytes, &mut of_two);
    }
    assert_eq!(samples(one), 1);
}
