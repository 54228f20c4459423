//! A few dozen seeds of the simulation in `cargo test`, and that a seed is a run: the same every time. `tests/run sim` runs
//! more of them, and asks for every packet type.

use suites::sim::{self, Coverage, Limits, Outcome, Scope, Verbosity};

fn run(seed: u64, limits: Limits) -> Outcome {
    sim::run(seed, limits, Verbosity::Quiet).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn forty_seeds() {
    let outcomes: Vec<Outcome> = (0..40).map(|seed| run(seed, Limits::default())).collect();
    // What the seeds are for must come up in some of them.
    let total = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(total(|o| o.out_of_order) > 100, "nothing out of order");
    assert!(total(|o| o.queue_full) > 100, "no queue was ever full");
    assert!(total(|o| o.unexpected) > 100, "nothing unexpected");
    assert!(total(|o| o.truncated) > 0, "nothing truncated");
    assert!(total(|o| o.cancelled) > 0, "nothing cancelled");
    assert!(
        total(|o| o.multi_recv_filled) > 0 && total(|o| o.multi_recv_cancelled) > 0,
        "no receive of many"
    );
    assert!(total(|o| o.withdrawn) > 0, "no send withdrawn");
    assert!(total(|o| o.scattered) > 100, "nothing into pieces");
    assert!(total(|o| o.ams) > 100, "no active messages");
    assert!(total(|o| o.streamed) > 100_000, "no streams");
    assert!(total(|o| o.rma_ops) > 100, "nothing one-sided");
    assert!(total(|o| o.atomics) > 100, "no atomics");
    assert!(total(|o| o.closed) > 100, "no endpoint closed");
    assert!(total(|o| o.discarded) > 0, "nothing discarded");
    assert!(total(|o| o.nacked) > 0, "no READ_NACK");
    assert!(total(|o| o.died) > 0 && total(|o| o.peer_failed) > 0, "nobody died");
    assert!(total(|o| o.not_ready) > 0, "nothing handed back");
    assert!(
        total(|o| o.zcopy_received) > 100 && total(|o| o.passed_on) > 100,
        "nobody in zero-copy receive mode"
    );
    assert!(total(|o| o.force_closed) > 0 && total(|o| o.disconnected) > 0, "nobody was given up");
    let mut coverage = Coverage::default();
    outcomes.iter().for_each(|outcome| coverage.add_run(outcome));
    assert!(coverage.missing().len() < 5, "never came: {:?}", coverage.missing());
}

/// Seeds that once failed: a HANDSHAKE that a device lost, of one side and of both; a fence before a write that had come
/// back; memory being read that its owner took back; a peer that died while it was given up.
#[test]
fn seeds_that_taught_something() {
    for seed in [645, 7127, 4509, 2580, 3558, 706] {
        run(seed, Limits { scope: Scope::First, ..Limits::default() });
    }
    // A piece of a stream dropped with its sender while half of it was here.
    run(7356, Limits { scope: Scope::Forms, ..Limits::default() });
    // A stream that ended when its bytes were asked for: a piece that came later was kept for good.
    run(1526, Limits { scope: Scope::AtomicLists, ..Limits::default() });
    // What was said over a NIC that died, and need not be known, was a flush's error. An endpoint to a worker that had been met
    // anew by another NIC, made by the old one; a message read by the key of the lane that its sender had left; a receive that
    // did not know its sender by another NIC; a packet that waited for one that could not come any more.
    for seed in [615, 2029, 3491, 8810, 8888] {
        run(seed, Limits { scope: Scope::Nics, ..Limits::default() });
    }
    // What a peer was to be told that had been closed by force, and was not ready to hear; somebody met anew by another NIC: by a
    // worker with one NIC, with a stream and messages still under way on the old one. A write read by the key of a lane that was
    // left, by a writer that knows no READ_NACK.
    for seed in [4400, 6022, 11_232, 15_743] {
        run(seed, Limits { scope: Scope::Mixed, ..Limits::default() });
    }
    // What goes into many pieces, of a sender that has not said yet whether it can be asked to send; into pieces and over another
    // NIC than it was announced for, of a sender that cannot.
    for seed in [3091, 5054, 5426] {
        run(seed, Limits { scope: Scope::RecvIov, ..Limits::default() });
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 17, 99] {
        let limits = Limits { workers: 3, messages: 40, ..Limits::default() };
        let first = run(seed, limits);
        assert_eq!(first, run(seed, limits), "seed {seed}");
        assert_ne!(first.digest, run(seed + 1, limits).digest);
    }
}

#[test]
fn one_worker_alone_and_many() {
    run(1, Limits { workers: 1, messages: 100, ..Limits::default() });
    run(2, Limits { workers: 12, messages: 20, ..Limits::default() });
}
