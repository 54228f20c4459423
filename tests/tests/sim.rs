//! A few dozen seeds of the simulation in `cargo test`, and that a seed is a run: the same every time.

use suites::sim::{self, Limits, Outcome, Voice};

fn run(seed: u64, limits: Limits) -> Outcome {
    sim::run(seed, limits, Voice::Silent).unwrap_or_else(|failed| panic!("{failed}"))
}

#[test]
fn forty_seeds_of_four_workers() {
    let outcomes: Vec<Outcome> = (0..40).map(|seed| run(seed, Limits::default())).collect();
    // What the seeds are for must come up in some of them.
    let total = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    assert!(total(|o| o.out_of_order) > 100, "nothing out of order");
    assert!(total(|o| o.full) > 100, "no queue was ever full");
    assert!(total(|o| o.unexpected) > 100, "nothing unexpected");
    assert!(total(|o| o.truncated) > 0, "nothing truncated");
    assert!(total(|o| o.cancelled) > 0, "nothing cancelled");
    assert!(total(|o| o.withdrawn) > 0, "no send withdrawn");
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 17, 99] {
        let limits = Limits { workers: 3, messages: 40 };
        let first = run(seed, limits);
        assert_eq!(first, run(seed, limits), "seed {seed}");
        assert_ne!(first.digest, run(seed + 1, limits).digest);
    }
}

#[test]
fn one_worker_alone_and_many() {
    run(1, Limits { workers: 1, messages: 100 });
    run(2, Limits { workers: 12, messages: 20 });
}
