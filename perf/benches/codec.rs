//! The codec alone: writes the headers of one packet into a cached buffer, and parses one packet. Copies no
//! payload.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use ucp::wire::ctl::CtsData;
use ucp::wire::rtm::{Eager, Medium};
use ucp::wire::{Opts, RawAddr, parse};

const MTU: usize = 8928;
const PAYLOAD: usize = 64;

fn raw_addr() -> RawAddr {
    RawAddr { gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], qpn: 0x1234, connid: 0x1357_9bdf }
}

/// Times `write` into one buffer, then `parse` of the packet with a payload of [`PAYLOAD`] bytes.
fn both(c: &mut Criterion, name: &str, write: impl Fn(&mut [u8]) -> usize) {
    let mut buf = vec![0u8; MTU];
    c.bench_function(&format!("codec/write_headers/{name}"), |b| {
        b.iter(|| black_box(write(black_box(&mut buf))));
    });
    let len = write(&mut buf) + PAYLOAD;
    let packet = &buf[..len];
    parse(packet).expect("what was written parses");
    c.bench_function(&format!("codec/parse/{name}"), |b| {
        b.iter(|| parse(black_box(packet)).map(|p| black_box(p).payload().len()));
    });
}

fn codec(c: &mut Criterion) {
    let eager = Eager { msg_id: 7, tag: Some(0xabcd), receipt: None, opts: Opts::connid(9) };
    both(c, "eager_tagged_connid", |buf| black_box(eager).write(buf));
    let first = Eager { opts: Opts::raw_addr(raw_addr()), ..eager };
    both(c, "eager_tagged_raw_addr", |buf| black_box(first).write(buf));
    let dc = Eager { receipt: Some(3), ..eager };
    both(c, "dc_eager_tagged_connid", |buf| black_box(dc).write(buf));
    let medium = Medium {
        msg_id: 7,
        tag: Some(0xabcd),
        msg_length: 65_536,
        seg_offset: 17_000,
        receipt: None,
        opts: Opts::connid(9),
    };
    both(c, "medium_tagged_connid", |buf| black_box(medium).write(buf));
    let data = CtsData { recv_id: 5, seg_length: PAYLOAD as u64, seg_offset: 1 << 20, connid: Some(9) };
    both(c, "ctsdata_connid", |buf| black_box(data).write(buf));
}

criterion_group!(benches, codec);
criterion_main!(benches);
