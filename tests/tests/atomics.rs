//! Every atomic operation on words of every width, by two processes at the same time, against a model: each
//! writer owns every other bit. The program starts itself again as a writer (`suites::partner`).

use std::ptr::NonNull;
use std::time::Duration;
use suites::partner::Partner;
use uct::api::{AllocReq, AtomicOp, Comp, Ep as _, Iface as _, Md, Memory, Sent, Word};
use uct::posix::{Ep, Iface, Rkey};

const ROUNDS: u64 = 10_000;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Each word of a width has a cache line of its own.
const LINE: u64 = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "writer") {
        return writer(args[1].parse().unwrap());
    }
    // A test runner lists what it could run one by one: nothing.
    if !args.iter().any(|arg| arg == "--list") {
        contend();
        println!("1 passed, 0 failed");
    }
}

/// The words: device and interface address, key, address.
type WordsInfo = (Vec<u8>, Vec<u8>, Vec<u8>, u64);

fn open() -> Iface {
    Iface::open(&Default::default()).unwrap()
}

struct Words<'a> {
    ep: &'a Ep,
    rkey: &'a Rkey,
    at: u64,
}

impl Words<'_> {
    fn line(&self, n: u64) -> u64 {
        self.at + n * LINE
    }

    fn fetch<W: Word>(&self, op: AtomicOp, value: W, line: u64) -> W {
        let mut old = W::from_u64(0);
        let result = NonNull::from(&mut old);
        // SAFETY: `old` outlives the call, which is done when it returns.
        let sent = unsafe { self.ep.atomic_fetch(op, value, result, self.line(line), self.rkey, Comp::None) };
        assert_eq!(sent, Ok(Sent::Done));
        old
    }

    fn post<W: Word>(&self, op: AtomicOp, value: W, line: u64) {
        assert_eq!(self.ep.atomic_post(op, value, self.line(line), self.rkey), Ok(Sent::Done));
    }

    fn cswap<W: Word>(&self, compare: W, swap: W, line: u64) -> W {
        let mut old = W::from_u64(0);
        let result = NonNull::from(&mut old);
        let at = self.line(line);
        // SAFETY: as in `fetch`.
        let sent = unsafe { self.ep.atomic_cswap(compare, swap, result, at, self.rkey, Comp::None) };
        assert_eq!(sent, Ok(Sent::Done));
        old
    }

    /// Lines: 0 own bits by fetch, 1 own bits by post, 2 fetch-add, 3 post-add, 4 a counter by
    /// compare-and-swap, 5 swap. Answers the sum of the values swapped out.
    fn contend<W: Word>(&self, who: u32) -> u64 {
        let own = W::from_u128(0x5555_5555_5555_5555_5555_5555_5555_5555 << who).to_u128();
        let mut mine = [0u128; 2];
        let mut random = 0x9e37_79b9_7f4a_7c15_u128 + u128::from(who);
        let mut out = 0u64;
        for n in 0..ROUNDS {
            random = random.wrapping_mul(0xda94_2042_e4dd_58b5_94d0_49bb_1331_11eb).wrapping_add(1);
            let value = (random >> 3) & own;
            let (op, operand, then): (_, _, fn(u128, u128) -> u128) = match (random >> 120) % 3 {
                0 => (AtomicOp::Or, value, |a, b| a | b),
                1 => (AtomicOp::Xor, value, |a, b| a ^ b),
                _ => (AtomicOp::And, value | !own, |a, b| a & b),
            };
            let old = self.fetch(op, W::from_u128(operand), 0).to_u128();
            assert_eq!(old & own, mine[0], "{op:?} on {} bytes, round {n}", W::BYTES);
            mine[0] = then(mine[0], operand) & own;
            self.post(op, W::from_u128(operand), 1);
            mine[1] = then(mine[1], operand) & own;
            let seen = self.fetch(AtomicOp::Or, W::from_u64(0), 1).to_u128();
            assert_eq!(seen & own, mine[1], "posted {op:?} on {} bytes, round {n}", W::BYTES);
            self.fetch(AtomicOp::Add, W::from_u64(1), 2);
            self.post(AtomicOp::Add, W::from_u64(u64::MAX), 3);
            let mut guess = W::from_u64(0);
            loop {
                let seen = self.cswap(guess, W::from_u128(guess.to_u128().wrapping_add(3)), 4);
                if seen == guess {
                    break;
                }
                guess = seen;
            }
            let put = W::from_u64(n % 100);
            out += self.fetch(AtomicOp::Swap, put, 5).to_u64();
        }
        out
    }
}

fn writer(who: u32) {
    let mut line = Partner::parent();
    let to: WordsInfo = line.recv(TIMEOUT).unwrap();
    let iface = open();
    let ep = iface.connect(&to.0, &to.1).unwrap();
    let rkey = iface.md().unpack_rkey(&to.2).unwrap();
    let caps = iface.attr().atomics;
    let words = |n: u64| Words { ep: &ep, rkey: &rkey, at: to.3 + n * 6 * LINE };
    let mut sums = vec![
        words(0).contend::<u8>(who),
        words(1).contend::<u16>(who),
        words(2).contend::<u32>(who),
        words(3).contend::<u64>(who),
    ];
    if !caps.fetch(16).is_empty() {
        sums.push(words(4).contend::<u128>(who));
    }
    line.send(&sums).unwrap();
    line.recv::<()>(TIMEOUT).unwrap();
}

fn check<W: Word>(at: *const u8, swapped: u64) {
    let word = |n: usize| {
        let at = at.wrapping_add(n * LINE as usize).cast::<W>();
        // SAFETY: inside the memory, aligned to a cache line, and the writers are gone.
        unsafe { at.read_volatile() }
    };
    let all = 2 * ROUNDS;
    assert_eq!(word(2), W::from_u64(all), "fetch-add on {} bytes", W::BYTES);
    let posted = W::from_u128(u128::from(all) * u128::from(u64::MAX));
    assert_eq!(word(3), posted, "add on {} bytes", W::BYTES);
    assert_eq!(word(4), W::from_u64(3 * all), "compare-and-swap on {} bytes", W::BYTES);
    // Every value swapped in came out, but for the last.
    let put: u64 = 2 * (0..ROUNDS).map(|n| n % 100).sum::<u64>();
    assert_eq!(swapped + word(5).to_u64(), put, "swap on {} bytes", W::BYTES);
}

fn contend() {
    let iface = open();
    let mem = iface.md().alloc(&AllocReq::new(30 * LINE as usize, "contended")).unwrap();
    let key = iface.md().pack_rkey(&mem).unwrap().to_vec();
    let to: WordsInfo =
        (iface.device_addr().to_vec(), iface.iface_addr().to_vec(), key, mem.addr().addr() as u64);
    let mut writers: Vec<_> =
        (0..2).map(|who| Partner::start(&["writer".into(), who.to_string()]).unwrap()).collect();
    for writer in &mut writers {
        writer.send(&to).unwrap();
    }
    let mut sums = [0u64; 5];
    for writer in &mut writers {
        let theirs: Vec<u64> = writer.recv(TIMEOUT).unwrap();
        sums.iter_mut().zip(theirs).for_each(|(sum, more)| *sum += more);
    }
    for mut writer in writers {
        writer.send(&()).unwrap();
        assert!(writer.exited_ok());
    }
    let words = |n: usize| mem.addr().wrapping_add(n * 6 * LINE as usize).cast_const();
    check::<u8>(words(0), sums[0]);
    check::<u16>(words(1), sums[1]);
    check::<u32>(words(2), sums[2]);
    check::<u64>(words(3), sums[3]);
    if !iface.attr().atomics.fetch(16).is_empty() {
        check::<u128>(words(4), sums[4]);
    }
}
