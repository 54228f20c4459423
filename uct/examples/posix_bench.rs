//! Two processes on two cores: figures for tuning the FIFO of `posix`, best of some rounds. `cargo run
//! --release -p uct --example posix_bench [ROUNDS]`; `ucx-perftest` is the tool for the rest.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use ucs::sync::SpinHint;
use uct::any;
use uct::api::{AllocReq, Am, AtomicOp, Comp, Ep, EpTag, Error, Iface, Md, Memory, Outcome, Refused, Sink};

const LAT_ITERS: u64 = 20_000;
const BW_ITERS: u64 = 50_000;
const BIG: usize = 8192;

struct Side<I: Iface> {
    iface: I,
    ep: I::Ep,
    mem: <I::Md as Md>::Mem,
    peer_mem: u64,
    rkey: <I::Md as Md>::Rkey,
    got: Count,
    due: u64,
}

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    #[inline(always)]
    fn on_am(&mut self, _am: Am<'_>) {
        self.0 += 1;
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, _error: Error) {}
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Client,
    Server,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

impl<I: Iface> Side<I> {
    fn connect(iface: I, to: &mut dyn Write, from: &mut dyn BufRead) -> Self {
        let mem = iface.md().alloc(&AllocReq::new(1 << 16, "bench")).unwrap();
        let own = [
            hex(&iface.device_addr()),
            hex(&iface.iface_addr()),
            hex(&iface.md().pack_rkey(&mem).unwrap()),
            hex(&(mem.addr().addr() as u64).to_le_bytes()),
        ];
        writeln!(to, "{}", own.join(" ")).unwrap();
        to.flush().unwrap();
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        let theirs: Vec<_> = line.split_whitespace().map(unhex).collect();
        let ep = iface.connect(&theirs[0], &theirs[1]).unwrap();
        let rkey = iface.md().unpack_rkey(&theirs[2]).unwrap();
        let peer_mem = u64::from_le_bytes(theirs[3][..].try_into().unwrap());
        Side { iface, ep, mem, peer_mem, rkey, got: Count(0), due: 0 }
    }

    #[inline(always)]
    fn send<T>(&mut self, mut call: impl FnMut(&Self) -> Outcome<T>) {
        loop {
            match call(self) {
                Ok(_) => return,
                Err(Refused::NoResource) => {
                    self.iface.poll(1, &mut self.got);
                }
                Err(Refused::Failed(e)) => panic!("{e}"),
            }
        }
    }

    #[inline(always)]
    fn wait(&mut self, more: u64) {
        self.due += more;
        while self.got.0 < self.due {
            self.iface.poll(16, &mut self.got);
        }
    }

    fn barrier(&mut self, role: Role) {
        if role == Role::Client {
            self.send(|s| s.ep.am_short(0, 0, &[]));
            self.wait(1);
        } else {
            self.wait(1);
            self.send(|s| s.ep.am_short(0, 0, &[]));
        }
    }

    fn ping(&mut self, role: Role, n: u64, call: impl Fn(&Self) -> Outcome + Copy) {
        for _ in 0..n {
            if role == Role::Client {
                self.send(call);
                self.wait(1);
            } else {
                self.wait(1);
                self.send(call);
            }
        }
    }

    fn stream<T>(&mut self, role: Role, n: u64, call: impl Fn(&Self) -> Outcome<T> + Copy) {
        if role == Role::Client {
            for _ in 0..n {
                self.send(call);
            }
            self.wait(1);
        } else {
            self.wait(n);
            self.send(|s| s.ep.am_short(0, 0, &[]));
        }
    }

    fn put_ping(&mut self, role: Role, n: u64) {
        // SAFETY: the memory is ours for as long as `mem` lives, aligned, and used by atomics only.
        let flag = unsafe { AtomicU64::from_ptr(self.mem.addr().cast()) };
        // Polling at full speed keeps the writer from the line.
        let spin_hint = SpinHint::measured();
        for i in 1..=n {
            if role == Role::Server {
                while flag.load(Ordering::Acquire) != i {
                    spin_hint.pause();
                    self.iface.poll(1, &mut self.got);
                }
            }
            self.ep.put_short(&i.to_ne_bytes(), self.peer_mem, &self.rkey).map(drop).unwrap();
            if role == Role::Client {
                while flag.load(Ordering::Acquire) != i {
                    spin_hint.pause();
                    self.iface.poll(1, &mut self.got);
                }
            }
        }
        flag.store(0, Ordering::Relaxed);
    }

    fn fadd(&mut self, role: Role, n: u64) {
        if role == Role::Server {
            return self.wait(1);
        }
        let mut old = 0u64;
        for _ in 0..n {
            let result = NonNull::from(&mut old);
            // SAFETY: `old` outlives the call, which is done at once on this transport.
            let sent = unsafe {
                self.ep.atomic_fetch(AtomicOp::Add, 1u64, result, self.peer_mem + 64, &self.rkey, Comp::None)
            };
            sent.map(drop).unwrap();
        }
    }

    fn timed(&mut self, role: Role, n: u64, run: impl Fn(&mut Self, u64)) -> f64 {
        run_barriered(self, role, n / 10, &run);
        run_barriered(self, role, n, &run)
    }

    fn all(&mut self, role: Role) -> Vec<(&'static str, f64)> {
        let big = vec![7u8; BIG];
        let big = &big[..];
        let bcopy = |s: &Self| {
            s.ep.am_bcopy(1, |slot| {
                slot[..BIG].copy_from_slice(big);
                BIG
            })
        };
        let packet = |s: &Self| {
            s.ep.am_packet(40, |slot| {
                slot[..40].fill(1);
                40
            })
        };
        let mut out = Vec::new();
        let half = |t: f64| t / 2.0;
        let t = self.timed(role, LAT_ITERS, |s, n| s.ping(role, n, |s| s.ep.am_short(1, 2, &[])));
        out.push(("am_lat short 8 B", half(t)));
        let t =
            self.timed(role, LAT_ITERS, |s, n| s.ping(role, n, |s| packet(s).map(|_| uct::api::Sent::Done)));
        out.push(("am_lat packet 40 B", half(t)));
        out.push((
            "am_bw short 8 B",
            self.timed(role, BW_ITERS, |s, n| s.stream(role, n, |s| s.ep.am_short(1, 2, &[]))),
        ));
        out.push(("am_bw packet 40 B", self.timed(role, BW_ITERS, |s, n| s.stream(role, n, packet))));
        out.push(("am_bw bcopy 8 KiB", self.timed(role, BW_ITERS, |s, n| s.stream(role, n, bcopy))));
        let t = self.timed(role, LAT_ITERS, |s, n| s.put_ping(role, n));
        out.push(("put_lat 8 B", half(t)));
        let t = self.timed(role, LAT_ITERS, |s, n| {
            s.fadd(role, n);
            if role == Role::Client {
                s.send(|s| s.ep.am_short(0, 0, &[]));
            }
        });
        out.push(("fadd 8 B", t));
        out
    }
}

fn run_barriered<I: Iface>(side: &mut Side<I>, role: Role, n: u64, run: &impl Fn(&mut Side<I>, u64)) -> f64 {
    side.barrier(role);
    let start = Instant::now();
    run(side, n);
    let spent = start.elapsed().as_nanos() as f64 / n as f64;
    side.barrier(role);
    spent
}

/// Keeps this side on a core of its own. Without two of them the figures are those of a time-shared machine.
fn pin(nth: usize) {
    let Ok(cpus) = ucs::sys::CpuSet::allowed() else { return };
    if let Some(&cpu) = cpus.as_slice().get(nth) {
        let _ = ucs::sys::cpu::pin(cpu);
    }
}

fn main() {
    let child = std::env::var_os("POSIX_BENCH_CHILD").is_some();
    let rounds: usize = std::env::args().nth(1).map_or(5, |n| n.parse().expect("a number of rounds"));
    let source = uct::config::Source::from_env().unwrap();
    if child {
        pin(1);
        let iface = any::open("posix", "memory", &source).unwrap();
        let mut side = Side::connect(iface, &mut std::io::stdout(), &mut std::io::stdin().lock());
        for _ in 0..rounds {
            side.all(Role::Server);
        }
        return;
    }
    let iface = any::open("posix", "memory", &source).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(rounds.to_string())
        .env("POSIX_BENCH_CHILD", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // After the child is started: it would inherit the mask.
    pin(0);
    let mut to = child.stdin.take().unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap());
    let mut side = Side::connect(iface, &mut to, &mut from);
    let mut best: Vec<(&str, f64)> = Vec::new();
    for _ in 0..rounds {
        let now = side.all(Role::Client);
        if best.is_empty() {
            best = now;
        } else {
            best.iter_mut().zip(now).for_each(|(best, now)| best.1 = best.1.min(now.1));
        }
    }
    child.wait().unwrap();
    for (name, ns) in best {
        println!("{name:<20} {ns:8.1} ns   {:6.2} M/s", 1e3 / ns);
    }
}
