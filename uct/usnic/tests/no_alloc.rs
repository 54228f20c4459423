//! A warm module allocates nothing: tiny, small and large fragments, lost and repeated datagrams, timers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use usnic::{CloseReason, Config, EpId, HEAD, Head, Module, Sink, Source};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[derive(Default)]
struct Count {
    messages: u64,
    bytes: u64,
}

impl Sink for Count {
    fn on_accept(&mut self, _: EpId, _: u64) {}
    fn on_dead(&mut self, _: EpId, _: u64, why: CloseReason) {
        panic!("{why:?}");
    }
    fn on_frag(&mut self, _: EpId, _: &Head, payload: &[u8]) {
        self.messages += 1;
        self.bytes += payload.len() as u64;
    }
    fn on_first_chunk(&mut self, _: EpId, _: &Head, _: u32) -> Option<u64> {
        Some(0)
    }
    fn on_chunk(&mut self, _: u64, _: u32, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
    }
    fn on_last_chunk(&mut self, _: EpId, _: u64, _: &Head, whole: bool) {
        assert!(whole);
        self.messages += 1;
    }
}

struct Zeros;

impl Source for Zeros {
    fn fetch(&mut self, _: u64, _: u32, to: &mut [u8]) -> bool {
        to.fill(0);
        true
    }
    fn on_copied(&mut self, _: u64) {}
}

/// Passes on what both have to send, but each 17th datagram, until `want` messages have
/// arrived and nothing is left.
fn exchange(all: &mut [Module; 2], got: &mut [Count; 2], now: &mut u64, sent: &mut u64, want: u64) {
    let end = *now + 60_000_000_000;
    while *now < end && (got[1].messages < want || all.iter().any(|module| module.segments().0 != 0)) {
        *now += 20_000;
        for from in 0..2 {
            all[from].on_time(*now, &mut got[from]);
            let mut first = true;
            while let Some(posted) = all[from].poll_send(*now, &mut Zeros) {
                *sent += 1;
                let [a, b] = &mut *all;
                let (from_module, to_module) = if from == 0 { (a, b) } else { (b, a) };
                let bytes = from_module.bytes(&posted);
                let to = &mut got[1 - from];
                let lost = sent.is_multiple_of(17);
                let taken = !lost && std::mem::take(&mut first) && to_module.recv_fast(*now, bytes, to);
                if !lost && !taken {
                    assert!(to_module.on_datagram(*now, bytes, to).is_none());
                }
                from_module.completed(&posted);
            }
        }
    }
}

#[test]
fn a_warm_module_allocates_nothing() {
    for flows in [1, 4] {
        let config = |node| Config { flows, sack: flows > 1, node, ..Config::default() };
        let mut all = [0, 1].map(|node| Module::new(config(node), 0));
        let mut got = [Count::default(), Count::default()];
        let (mut now, mut sent) = (0, 0);
        let ep = all[0].connect(now, 1).unwrap();
        let mut allocations = 0;
        let rounds = 40;
        for round in 0..rounds {
            let before = ALLOCATIONS.with(Cell::get);
            for n in 0..60 {
                if n % 6 == 0 {
                    all[0].send_large(now, ep, &[n; HEAD], 20_000, 0).unwrap();
                } else if let Some(posted) = all[0].send(now, ep, &[n; HEAD], [&[1; 8], &[2; 92]]).unwrap() {
                    all[0].completed(&posted);
                }
            }
            exchange(&mut all, &mut got, &mut now, &mut sent, 60 * (round + 1));
            if round >= rounds / 2 {
                allocations += ALLOCATIONS.with(Cell::get) - before;
            }
        }
        assert_eq!(got[1].messages, 60 * rounds);
        assert_eq!(got[1].bytes, rounds * (10 * 20_000 + 50 * 100));
        let stats = all[0].stats();
        assert!(stats.resent_by_timer + stats.resent_by_time + stats.resent_by_duplicate_ack > 100);
        assert_eq!(allocations, 0, "with {flows} flows");
    }
}
