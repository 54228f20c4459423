//! The fuzzer's scripts without the fuzzer: every input of the corpus, and thousands recombined of their
//! pieces, from a fixed seed. `FUZZED_SEEDS=n` sets the number.

fn run(input: &[u8]) {
    crate::script::run(input, crate::counting::bytes);
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/engine");
    let mut names: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names.iter().map(|name| std::fs::read(name).unwrap()).collect()
}

#[test]
fn corpus_inputs_run() {
    let corpus = corpus();
    assert!(corpus.len() > 100, "{} inputs: the corpus is not where it should be", corpus.len());
    corpus.iter().for_each(|input| run(input));
}

#[test]
fn recombined_corpus_inputs_run() {
    let corpus = corpus();
    let seeds = std::env::var("FUZZED_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    for seed in 0..seeds {
        let mut rng = Rng(seed);
        let mut input = vec![rng.below(256) as u8];
        for _ in 0..1 + rng.below(6) {
            let from = &corpus[rng.below(corpus.len())];
            let at = rng.below(from.len());
            input.extend(&from[at..at + rng.below(from.len() - at + 1)]);
            // Operations of the engine's own, and replies to them.
            for _ in 0..rng.below(12) {
                let step = 5 + rng.below(15) + 20 * rng.below(12);
                input.extend([step as u8, rng.below(16) as u8, rng.below(256) as u8, rng.below(8) as u8, 0]);
            }
        }
        for _ in 0..rng.below(4) {
            let at = rng.below(input.len());
            input[at] = rng.below(256) as u8;
        }
        if let Err(panic) = std::panic::catch_unwind(|| run(&input)) {
            eprintln!("seed {seed} failed: {} bytes", input.len());
            std::panic::resume_unwind(panic);
        }
    }
}
