//! The engine's eager path, both sides in one thread over queues in memory: from the send to the completion
//! of the receive, without a transport. The bench `fifo` times a transport alone.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use perf::engine_pair::EnginePair;
use std::hint::black_box;

const LENGTHS: [usize; 4] = [0, 8, 1024, 8192];

fn eager(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine/eager/post_send_deliver_complete");
    for len in LENGTHS {
        let (mut pair, buf) = (EnginePair::new(), vec![7u8; len]);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                pair.recv(black_box(1), u64::MAX);
                assert!(pair.send(black_box(1), black_box(&buf)));
                pair.deliver();
                pair.received().expect("matched").len
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("engine/eager/send_deliver_unexpected_then_receive");
    for len in LENGTHS {
        let (mut pair, buf) = (EnginePair::new(), vec![7u8; len]);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                assert!(pair.send(black_box(1), black_box(&buf)));
                pair.deliver();
                pair.recv(black_box(1), u64::MAX).expect("it has come").len
            });
        });
    }
    group.finish();
}

criterion_group!(benches, eager);
criterion_main!(benches);
