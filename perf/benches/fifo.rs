//! The shared-memory FIFO between two interfaces in one thread: one message sent and polled with a warm
//! cache. A lower bound for two processes, whose latency `ucx-perftest` measures.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use ucs::config::{Source, Table as _};
use uct::api::{Am, Ep as _, EpTag, Error, Iface as _, Sent, Sink};
use uct::posix::{Config, Ep, Iface};

const ID: u8 = 5;

#[derive(Default)]
struct Count {
    messages: u64,
    bytes: usize,
}

impl Sink for Count {
    #[inline]
    fn on_am(&mut self, am: Am<'_>) {
        self.messages += 1;
        self.bytes += black_box(am.data()).len();
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, error: Error) {
        panic!("{error}");
    }
}

fn pair() -> (Iface, Iface, Ep) {
    let config = Config::load(&Source::empty()).expect("defaults are good");
    let open = || Iface::open(&config).expect("posix opens");
    let (sender, receiver) = (open(), open());
    let ep = sender.connect(&receiver.device_addr(), &receiver.iface_addr()).expect("same host");
    (sender, receiver, ep)
}

fn fifo(c: &mut Criterion) {
    let (_sender, receiver, ep) = pair();
    let mut count = Count::default();

    let mut group = c.benchmark_group("fifo/send_and_poll_one/am_short");
    for len in [8usize, 64] {
        let payload = vec![7u8; len - 8];
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                assert_eq!(ep.am_short(ID, black_box(1), black_box(&payload)), Ok(Sent::Done));
                receiver.poll(1, &mut count)
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("fifo/send_and_poll_one/am_bcopy");
    for len in [8usize, 64, 1024, 8192] {
        let payload = vec![7u8; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            b.iter(|| {
                ep.am_bcopy(ID, |slot| {
                    slot[..len].copy_from_slice(black_box(&payload));
                    len
                })
                .expect("room");
                receiver.poll(1, &mut count)
            });
        });
    }
    group.finish();

    c.bench_function("fifo/send_and_poll_16/am_short_8", |b| {
        b.iter(|| {
            for n in 0..16 {
                assert_eq!(ep.am_short(ID, black_box(n), &[]), Ok(Sent::Done));
            }
            receiver.poll(16, &mut count)
        });
    });
    c.bench_function("fifo/poll_empty", |b| b.iter(|| receiver.poll(16, &mut count)));
    assert!(count.messages > 0 && count.bytes > 0);
}

criterion_group!(benches, fifo);
criterion_main!(benches);
