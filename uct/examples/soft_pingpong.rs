//! The software device alone, between two pinned processes: latency and rate of 28-byte messages, bandwidth
//! of datagrams and RDMA; best and median of short rounds. `cargo run --release --example soft_pingpong
//! [ROUNDS]`

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;
use ucs::sys::cpu;
use uct::api::Access;
use uct::config::Source;
use uct::efa::dev::soft::{Ah, Cq, Device, Mr, Qp, Shm, open_shm};
use uct::efa::dev::{
    Channel, Cqe, Dest, Dev, DevCq, DevMr, DevQp, DevStatus, Gid, PostError, QpInit, QpKind, Sge,
};

const QKEY: u32 = 1;
const DEPTH: usize = 512;
const MTU: usize = 8928;
const SHORT: usize = 28;
const ROUNDS: usize = 200;
const LAT_ITERS: usize = 2_000;
const RATE_ITERS: usize = 20_000;
const BW_ITERS: usize = 2_000;
const RDMA_ITERS: usize = 20;
const RDMA_LEN: usize = 1 << 20;

struct Side {
    dev: Device<Shm>,
    tx: Cq<Shm>,
    rx: Cq<Shm>,
    qp: Qp<Shm>,
    mr: Mr<Shm>,
    to: Option<Dest<Ah>>,
    pd: <Device<Shm> as Dev>::Pd,
}

impl Side {
    fn open(own: Option<&mut Vec<u8>>) -> Side {
        let source = Source::from_env().expect("configuration");
        let dev = open_shm(&source, "softefa0").unwrap_or_else(|e| panic!("{e}"));
        let pd = dev.alloc_pd().unwrap();
        let mr = match own {
            None => dev.alloc_mr(&pd, DEPTH * MTU, Access::ALL).unwrap(),
            // SAFETY: the caller keeps the vector, untouched, until the side is dropped.
            Some(own) => unsafe { dev.reg_mr(&pd, own.as_mut_ptr(), own.len(), Access::ALL) }.unwrap(),
        };
        let (tx, rx) = (
            dev.create_cq(DEPTH as u32, Channel::Without).unwrap(),
            dev.create_cq(DEPTH as u32, Channel::Without).unwrap(),
        );
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth: DEPTH as u32,
            recv_depth: DEPTH as u32,
            qkey: QKEY,
            rnr_retry: 7,
            unsolicited_write_recv: false,
        };
        let qp = dev.create_qp(&pd, &tx, &rx, &init).unwrap();
        let side = Side { dev, tx, rx, qp, mr, to: None, pd };
        (0..DEPTH).for_each(|i| side.recv(i as u64));
        side
    }

    fn sge(&self, slot: u64, len: usize) -> Sge {
        let addr = self.mr.addr().wrapping_add(slot as usize * MTU);
        Sge { addr, len: len as u32, lkey: self.mr.lkey() }
    }

    fn recv(&self, slot: u64) {
        self.qp.recv(slot, self.sge(slot, MTU)).unwrap();
    }

    fn to(&self) -> &Dest<Ah> {
        self.to.as_ref().unwrap()
    }

    fn name(&self) -> String {
        let (addr, rkey) = (self.mr.addr() as u64, self.mr.rkey());
        format!("@{} {} {addr} {rkey}", self.dev.gid().iid(), self.qp.qpn())
    }

    fn meet(&mut self, line: &str) -> (u64, u32) {
        let n: Vec<u64> =
            line.trim().trim_start_matches('@').split(' ').map(|n| n.parse().unwrap()).collect();
        let ah = self.dev.create_ah(&self.pd, Gid::link_local(n[0])).unwrap();
        self.to = Some(Dest { ah, qpn: n[1] as u16, qkey: QKEY });
        (n[2], n[3] as u32)
    }

    fn take_one(&self) {
        let mut out = [Cqe::EMPTY];
        while self.rx.poll(&mut out) == 0 {
            std::hint::spin_loop();
        }
        self.recv(out[0].wr_id);
    }

    fn put_one(&self, bytes: &[u8]) {
        self.qp.send_inline(self.to(), 0, bytes, None).unwrap();
        assert!(self.tx.poll(&mut [Cqe::EMPTY]) <= 1);
    }

    fn take_many(&self, count: usize) {
        let (mut out, mut left) = ([Cqe::EMPTY; 32], count);
        while left > 0 {
            let n = self.rx.poll(&mut out);
            out[..n].iter().for_each(|cqe| self.recv(cqe.wr_id));
            left -= n;
        }
    }

    fn put_many(&self, count: usize, mut post: impl FnMut(u64) -> Result<(), PostError>) {
        let (mut out, mut sent, mut done) = ([Cqe::EMPTY; 32], 0, 0);
        while done < count {
            for _ in 0..32 {
                if sent == count || post(sent as u64).is_err() {
                    break;
                }
                sent += 1;
            }
            let n = self.tx.poll(&mut out);
            assert!(out[..n].iter().all(|cqe| cqe.status == DevStatus::Ok));
            done += n;
        }
    }
}

fn run(side: &Side, far: (u64, u32), first: bool, report: &mut dyn FnMut(&str, f64, usize, usize)) {
    let short = [7u8; SHORT];
    for _ in 0..rounds() {
        let start = Instant::now();
        for _ in 0..LAT_ITERS {
            if first {
                side.put_one(&short);
                side.take_one();
            } else {
                side.take_one();
                side.put_one(&short);
            }
        }
        report("latency, 28 B inline, one way", start.elapsed().as_secs_f64() / 2.0, LAT_ITERS, SHORT);

        let start = Instant::now();
        if first {
            side.put_many(RATE_ITERS, |_| side.qp.send_inline(side.to(), 0, &short, None));
            side.take_one();
        } else {
            side.take_many(RATE_ITERS);
            side.put_one(&short);
        }
        report("rate, 28 B inline", start.elapsed().as_secs_f64(), RATE_ITERS, SHORT);

        let start = Instant::now();
        if first {
            let post = |n: u64| side.qp.send(side.to(), 0, &[side.sge(n % 16, MTU)], None);
            side.put_many(BW_ITERS, post);
            side.take_one();
        } else {
            side.take_many(BW_ITERS);
            side.put_one(&short);
        }
        report("bandwidth, 8928 B sends", start.elapsed().as_secs_f64(), BW_ITERS, MTU);

        let start = Instant::now();
        if first {
            let post = |_| side.qp.write(side.to(), 0, side.sge(0, RDMA_LEN), far.0, far.1, None);
            side.put_many(RDMA_ITERS, post);
            side.put_one(&short);
        } else {
            side.take_one();
        }
        report("bandwidth, 1 MiB RDMA write", start.elapsed().as_secs_f64(), RDMA_ITERS, RDMA_LEN);
    }
}

/// Pins this side to its processor. Without two of them the figures are those of a time-shared machine.
fn pin(nth: usize) {
    let Ok(cpus) = cpu::CpuSet::allowed() else { return };
    if let Some(&cpu) = cpus.as_slice().get(nth) {
        let _ = cpu::pin(cpu);
    }
}

fn rounds() -> usize {
    std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(ROUNDS)
}

fn main() {
    let own = std::env::args().any(|a| a == "--own-memory");
    let child = std::env::args().any(|a| a == "--child");
    let mut memory = vec![1u8; DEPTH * MTU];
    if child {
        pin(1);
        let mut side = Side::open(own.then_some(&mut memory));
        println!("{}", side.name());
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let far = side.meet(&line);
        run(&side, far, false, &mut |_, _, _, _| {});
        // The other side may still be reading what we wrote last: it ends first.
        std::io::stdin().read_line(&mut line).unwrap();
        return;
    }
    let mut args = vec!["--child".to_owned(), rounds().to_string()];
    args.extend(own.then(|| "--own-memory".to_owned()));
    let mut peer = Command::new(std::env::current_exe().unwrap())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Only now: a child inherits the processors of its parent.
    pin(0);
    let mut side = Side::open(own.then_some(&mut memory));
    let mut line = String::new();
    BufReader::new(peer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let far = side.meet(&line);
    let mut input = peer.stdin.take().unwrap();
    writeln!(input, "{}", side.name()).unwrap();
    let mut all: Vec<Row> = Vec::new();
    run(&side, far, true, &mut |what, secs, iters, len| match all.iter_mut().find(|row| row.what == what) {
        Some(row) => row.each.push(secs / iters as f64),
        None => all.push(Row { what: what.to_owned(), len, each: vec![secs / iters as f64] }),
    });
    drop(input);
    peer.wait().unwrap();
    println!("posted receives in {}", if own { "private memory" } else { "memory of the device's" });
    for Row { what, len, mut each } in all {
        each.sort_by(f64::total_cmp);
        let show = |secs: f64| {
            let (ns, rate, gbs) = (secs * 1e9, 1e-6 / secs, len as f64 / secs / 1e9);
            format!("{ns:9.1} ns {rate:7.2} M/s {gbs:6.2} GB/s")
        };
        println!("{what:30} best {}   median {}", show(each[0]), show(each[each.len() / 2]));
    }
}

struct Row {
    what: String,
    len: usize,
    each: Vec<f64>,
}
