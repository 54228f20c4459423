//! Datagrams of a large fragment have one length, so that the kernel takes them as one.

use usnic::{CloseReason, Config};
use usnic::{EpId, HEAD, Head, Module, Sink, Source};

#[derive(Default)]
struct Target {
    bytes: Vec<u8>,
    whole: bool,
}

impl Sink for Target {
    fn on_accept(&mut self, _: EpId, _: u64) {}
    fn on_dead(&mut self, _: EpId, _: u64, why: CloseReason) {
        panic!("{why:?}");
    }
    fn on_frag(&mut self, _: EpId, _: &Head, _: &[u8]) {}
    fn on_first_chunk(&mut self, _: EpId, _: &Head, total: u32) -> Option<u64> {
        self.bytes = vec![0; total as usize];
        Some(0)
    }
    fn on_chunk(&mut self, _: u64, offset: u32, bytes: &[u8]) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn on_last_chunk(&mut self, _: EpId, _: u64, _: &Head, whole: bool) {
        self.whole = whole;
    }
}

/// A source whose byte at `n` is `n` modulo 251, plus 1.
struct Counted;

fn byte(at: usize) -> u8 {
    (at % 251) as u8 + 1
}

impl Source for Counted {
    fn fetch(&mut self, _: u64, offset: u32, to: &mut [u8]) -> bool {
        to.iter_mut().enumerate().for_each(|(n, to)| *to = byte(offset as usize + n));
        true
    }
    fn on_copied(&mut self, _: u64) {}
}

/// Sends what both have to send. Returns the lengths of the first one's datagrams.
fn exchange(all: &mut [Module; 2], got: &mut [Target; 2], now: u64) -> Vec<usize> {
    let mut lengths = Vec::new();
    for from in [0, 1, 0, 1] {
        while let Some(posted) = all[from].poll_send(now, &mut Counted) {
            let bytes = all[from].bytes(&posted).to_vec();
            assert!(all[1 - from].on_datagram(now, &bytes, &mut got[1 - from]).is_none());
            all[from].completed(&posted);
            if from == 0 {
                lengths.push(bytes.len());
            }
        }
    }
    lengths
}

#[test]
fn datagrams_of_a_fragment_have_one_length() {
    let mut all = [0, 1].map(|node| Module::new(Config { node, ..Config::default() }, 0));
    let mut got = [Target::default(), Target::default()];
    let ep = all[0].connect(0, 1).unwrap();
    exchange(&mut all, &mut got, 0);
    assert!(all[0].is_open(ep));
    for (total, datagrams, ends_alike) in
        [(8928, 7, true), (4101, 3, true), (1401, 2, true), (25_003, 18, false)]
    {
        all[0].send_large(0, ep, &[7; HEAD], total, 0).unwrap();
        let lengths = exchange(&mut all, &mut got, 0);
        let (last, before) = lengths.split_last().unwrap();
        assert_eq!(lengths.len(), datagrams, "{total} bytes");
        assert!(before.iter().all(|len| *len == before[0]), "{total} bytes: {lengths:?}");
        assert_eq!(*last == before[0], ends_alike, "{total} bytes: {lengths:?}");
        assert!(std::mem::take(&mut got[1].whole));
        assert!(
            got[1].bytes.len() == total as usize
                && got[1].bytes.iter().enumerate().all(|(n, b)| *b == byte(n))
        );
    }
}
