//! Some dozen seeds of the simulation, and that equal seeds give equal runs. `tests/run sim` runs more, and
//! checks coverage.

use suites::sim::{self, Coverage, Limits, Outcome, Scope, Verbosity};

fn run(seed: u64, limits: Limits) -> Outcome {
    sim::run(seed, limits, Verbosity::Quiet).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn forty_seeds_pass() {
    let outcomes: Vec<Outcome> = (0..40).map(|seed| run(seed, Limits::default())).collect();
    // Each kind of event must occur in some of them.
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
    assert!(total(|o| o.of_one_context) > 10 && total(|o| o.shared) > 10, "each worker is on its own");
    assert!(total(|o| o.force_closed) > 0 && total(|o| o.disconnected) > 0, "nobody was given up");
    let mut coverage = Coverage::default();
    outcomes.iter().for_each(|outcome| coverage.add_run(outcome));
    assert!(coverage.missing().len() < 5, "never came: {:?}", coverage.missing());
}

/// Seeds that once failed: a HANDSHAKE lost by a device, at one side and at both; a fence before a write that
/// came back; revoked memory being read; a peer that died while it was given up.
#[test]
fn regression_seeds_pass() {
    for seed in [645, 7127, 4509, 2580, 3558, 706] {
        run(seed, Limits { scope: Scope::First, ..Limits::default() });
    }
    // A piece of a stream dropped with its sender when half of it had come.
    run(7356, Limits { scope: Scope::Forms, ..Limits::default() });
    // A stream that ended when its bytes were asked for: a later piece was kept for good.
    run(1526, Limits { scope: Scope::AtomicLists, ..Limits::default() });
    // A flush that failed by an irrelevant packet on a dead NIC; an endpoint made by the old NIC to a worker
    // met anew; a read by the key of a failed lane; a receive that did not know its sender by another NIC; a
    // packet that waited for one that could not come.
    for seed in [615, 2029, 3491, 8810, 8888] {
        run(seed, Limits { scope: Scope::Nics, ..Limits::default() });
    }
    // An error for a force-closed peer that was not ready; a worker met anew by another NIC while a stream
    // and messages were in flight on the old one; a write read by the key of a failed lane, by a writer
    // without READ_NACK.
    for seed in [4400, 6022, 11_232, 15_743] {
        run(seed, Limits { scope: Scope::Mixed, ..Limits::default() });
    }
    // Receives into many pieces, or over another NIC than announced, from senders without READ_NACK.
    for seed in [3091, 5054, 5426] {
        run(seed, Limits { scope: Scope::RecvIov, ..Limits::default() });
    }
    // A device that went on with a read into memory that its owner had withdrawn.
    run(941, Limits::default());
}

#[test]
fn equal_seeds_give_equal_runs() {
    for seed in [3, 17, 99] {
        let limits = Limits { workers: 3, messages: 40, ..Limits::default() };
        let first = run(seed, limits);
        assert_eq!(first, run(seed, limits), "seed {seed}");
        assert_ne!(first.digest, run(seed + 1, limits).digest);
    }
}

#[test]
fn runs_with_one_and_with_many_workers() {
    run(1, Limits { workers: 1, messages: 100, ..Limits::default() });
    run(2, Limits { workers: 12, messages: 20, ..Limits::default() });
}
