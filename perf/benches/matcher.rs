//! The two queues of the matcher: which receive a message gets, and which message a receive gets. A queue
//! keeps the length in the benchmark's name: one element goes in, and the one in the worst place (the newest)
//! comes out. Tags of exact receives all differ.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use ucp::rdm::io::PeerId;
use ucp::rdm::recv::matching::{ExpectedQueue, MatchEntry, Pattern, UnexpectedQueue};
use ucs::coll::slots::SlotId;

const FROM: PeerId = PeerId(3);
const LENGTHS: [u64; 3] = [1, 100, 1000];

fn exact(tag: u64) -> Pattern {
    Pattern { tag, mask: u64::MAX, from: None }
}

/// Matches any message whose upper half is `n`.
fn half(n: u64) -> Pattern {
    Pattern { tag: n << 32, mask: u64::MAX << 32, from: None }
}

fn op(n: u64) -> SlotId {
    SlotId::from_raw(n as u32 + 1)
}

/// Receives numbered from 1 on, posted.
fn all_posted(count: u64, pattern: fn(u64) -> Pattern) -> (ExpectedQueue, Vec<MatchEntry>) {
    let mut queue = ExpectedQueue::new();
    let mut wants = Vec::new();
    (1..=count).for_each(|n| post(&mut queue, &mut wants, pattern(n), n as usize - 1));
    (queue, wants)
}

/// Posts a receive at this index, or behind the last one.
fn post(queue: &mut ExpectedQueue, wants: &mut Vec<MatchEntry>, pattern: Pattern, at: usize) {
    let place = queue.place(wants, pattern);
    if at == wants.len() {
        wants.push(place.entry());
    } else {
        wants[at] = place.entry();
    }
    place.fill(wants, at as u32);
}

fn posted(c: &mut Criterion, name: &str, pattern: fn(u64) -> Pattern, tag: fn(u64) -> u64) {
    let mut group = c.benchmark_group(format!("matcher/post_then_match_newest/{name}"));
    for len in LENGTHS {
        let (mut queue, mut wants) = all_posted(len - 1, pattern);
        let newest = len as u32 - 1;
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                post(&mut queue, &mut wants, black_box(pattern(len)), newest as usize);
                let found = queue.take(&mut wants, black_box(tag(len)), FROM);
                assert_eq!(found, Some(newest));
            });
        });
    }
    group.finish();
}

fn unexpected(c: &mut Criterion, name: &str, pattern: fn(u64) -> Pattern, tag: fn(u64) -> u64) {
    let mut group = c.benchmark_group(format!("matcher/arrive_then_find_newest/{name}"));
    for len in LENGTHS {
        let mut queue = UnexpectedQueue::new();
        (1..len).for_each(|n| {
            queue.push(tag(n), FROM, op(n));
        });
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                let place = queue.push(black_box(tag(len)), FROM, op(len));
                let found = queue.find(&black_box(pattern(len)), |from| from);
                assert_eq!(found, Some(op(len)));
                queue.remove(place);
            });
        });
    }
    group.finish();
}

fn matcher(c: &mut Criterion) {
    posted(c, "exact", exact, |n| n);
    posted(c, "wildcard", half, |n| n << 32 | 5);
    unexpected(c, "exact", exact, |n| n);
    unexpected(c, "wildcard", half, |n| n << 32 | 5);
    c.bench_function("matcher/match_nothing/1000_exact_posted", |b| {
        let (mut queue, mut wants) = all_posted(1000, exact);
        b.iter(|| queue.take(&mut wants, black_box(1 << 40), FROM));
    });
}

criterion_group!(benches, matcher);
criterion_main!(benches);
