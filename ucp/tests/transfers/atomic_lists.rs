//! Atomic operations on lists ([`Ep::atomic_iov_raw`]) on every lane, elements, operands and results cut
//! differently. Neighbours stay untouched; invalid lists are rejected before anything is sent.

use crate::common::Pair;
use ucp::select::DeliveryComplete;
use ucp::{Access, AtomicIovParams, AtomicOp, Datatype, Error, Iov, Mem, OpStatus, RemoteIov, Rkey};

const WORDS: usize = 16;
/// Words that the lists name: two pieces.
const NAMED: [usize; 5] = [1, 2, 7, 8, 9];

struct Rig {
    pair: Pair,
    mem: Mem,
    rkey: Rkey,
}

/// Cuts words into pieces of these lengths.
fn cut(words: &mut [u64], lens: &[usize]) -> Vec<Iov> {
    let mut at = words.as_mut_ptr();
    let piece = |len: &usize| {
        let piece = Iov { addr: at.cast(), len: len * 8 };
        at = at.wrapping_add(*len);
        piece
    };
    lens.iter().map(piece).collect()
}

impl Rig {
    fn on(tls: &str) -> Rig {
        let pair = Pair::on(tls);
        let mem = pair.b.mem_alloc(WORDS * 8, Access::all()).unwrap();
        let rkey = Rkey::from_key(mem.key());
        (0..WORDS).for_each(|n| mem.write(n * 8, &(100 * n as u64).to_le_bytes()));
        Rig { pair, mem, rkey }
    }

    fn remote(&self, word: usize, words: usize) -> RemoteIov<'_> {
        RemoteIov { addr: self.mem.addr() + 8 * word as u64, len: words * 8, rkey: &self.rkey }
    }

    fn run(&self, params: &AtomicIovParams<'_>) -> Result<(), Error> {
        self.run_on(&[self.remote(1, 2), self.remote(7, 3)], params)
    }

    fn run_on(&self, remote: &[RemoteIov<'_>], params: &AtomicIovParams<'_>) -> Result<(), Error> {
        // SAFETY: the callers keep the pieces until this returns, and do not read them.
        match unsafe { self.pair.ab.atomic_iov_raw(remote, params) }? {
            OpStatus::Done(_) => Ok(()),
            OpStatus::InProgress(id) => {
                let mut end = None;
                self.pair.until(|| {
                    end = self.pair.a.test(id);
                    end.is_some()
                });
                end.unwrap().map(drop)
            }
        }
    }

    fn words(&self) -> [u64; WORDS] {
        std::array::from_fn(|n| self.mem.word(n * 8))
    }
}

const NOTHING: AtomicIovParams<'static> = AtomicIovParams {
    op: AtomicOp::Sum,
    ty: Datatype::Uint64,
    operand: &[],
    compare: &[],
    result: None,
    sync: DeliveryComplete::Yes,
    done: None,
    mem: None,
};

fn lists(tls: &str) {
    let rig = Rig::on(tls);
    let mut model: [u64; WORDS] = std::array::from_fn(|n| 100 * n as u64);
    assert_eq!(rig.words(), model);
    let (mut with, mut than, mut old) = ([1, 2, 3, 4, 5], [0; 5], [0; 5]);

    // The old values arrive in the order of the elements.
    let (operand, result) = (cut(&mut with, &[1, 4]), cut(&mut old, &[2, 2, 1]));
    rig.run(&AtomicIovParams { operand: &operand, result: Some(&result), ..NOTHING }).unwrap();
    assert_eq!(old, NAMED.map(|n| model[n]));
    NAMED.iter().zip(with).for_each(|(n, more)| model[*n] += more);
    assert_eq!(rig.words(), model);

    rig.run(&AtomicIovParams { operand: &operand, ..NOTHING }).unwrap();
    NAMED.iter().zip(with).for_each(|(n, more)| model[*n] += more);
    assert_eq!(rig.words(), model);

    // Each element has its own comparand: the third does not match.
    than.copy_from_slice(&NAMED.map(|n| model[n]));
    than[2] += 1;
    let compare = cut(&mut than, &[3, 2]);
    let (op, result) = (AtomicOp::CompareSwap, Some(&result[..]));
    rig.run(&AtomicIovParams { op, operand: &operand, compare: &compare, result, ..NOTHING }).unwrap();
    assert_eq!(old, NAMED.map(|n| model[n]));
    [0, 1, 3, 4].iter().for_each(|at| model[NAMED[*at]] = with[*at]);
    assert_eq!(rig.words(), model);

    rig.run(&AtomicIovParams { op: AtomicOp::Read, result, ..NOTHING }).unwrap();
    assert_eq!(old, NAMED.map(|n| model[n]));
    assert_eq!(rig.words(), model);
}

/// Operands, comparands and results in up to eight pieces each, of which each list has another number.
fn many_pieces(tls: &str) {
    const LENS: [usize; 8] = [1, 3, 1, 1, 1, 1, 1, 1];
    let rig = Rig::on(tls);
    let there = [rig.remote(0, 1), rig.remote(2, 3), rig.remote(6, 1), rig.remote(8, 7)];
    let named = [0, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14];
    let cut_in = |words: &mut [u64], n: usize| {
        let mut lens = LENS[..n].to_vec();
        lens[n - 1] = named.len() - lens[..n - 1].iter().sum::<usize>();
        cut(words, &lens)
    };
    let mut model = rig.words();
    for n in 1..=LENS.len() {
        let mut with: [u64; 12] = std::array::from_fn(|at| 1000 * n as u64 + at as u64);
        let (mut old, mut than) = ([0; 12], named.map(|at| model[at]));
        than[5] += 1;
        let operand = cut_in(&mut with, n);
        let (compare, result) = (cut_in(&mut than, 9 - n), cut_in(&mut old, n * 3 % 8 + 1));
        let (op, result) = (AtomicOp::CompareSwap, Some(&result[..]));
        let swap = AtomicIovParams { op, operand: &operand, compare: &compare, result, ..NOTHING };
        rig.run_on(&there, &swap).unwrap();
        assert_eq!(old, named.map(|at| model[at]));
        (0..12).filter(|at| *at != 5).for_each(|at| model[named[at]] = with[at]);
        assert_eq!(rig.words(), model);
        for result in [None, result] {
            rig.run_on(&there, &AtomicIovParams { operand: &operand, result, ..NOTHING }).unwrap();
            if result.is_some() {
                assert_eq!(old, named.map(|at| model[at]));
            }
            (0..12).for_each(|at| model[named[at]] += with[at]);
            assert_eq!(rig.words(), model);
        }
    }
}

fn refusals(tls: &str) {
    let rig = Rig::on(tls);
    let (before, mut with) = (rig.words(), [1; 5]);
    let short = cut(&mut with[..4], &[4]);
    assert_eq!(rig.run(&AtomicIovParams { operand: &short, ..NOTHING }), Err(Error::Invalid), "operands");
    let whole = cut(&mut with, &[5]);
    let whole = AtomicIovParams { operand: &whole, ..NOTHING };
    let five: [RemoteIov<'_>; 5] = std::array::from_fn(|n| rig.remote(2 * n, 1));
    assert_eq!(rig.run_on(&five, &whole), Err(Error::TooManyPieces { max: 4 }), "five pieces there");
    let result = Some(&short[..]);
    assert_eq!(rig.run(&AtomicIovParams { result, ..whole }), Err(Error::Invalid), "room for results");
    assert_eq!(
        rig.run(&AtomicIovParams { compare: &short, ..whole }),
        Err(Error::Invalid),
        "compares nothing"
    );
    assert_eq!(rig.words(), before);
    // A key for packets does not tell its bounds: the owner checks.
    let beyond = [rig.remote(1, 2), rig.remote(WORDS - 2, 3)];
    assert_eq!(rig.run_on(&beyond, &whole), Err(Error::RemoteAccess(rig.pair.ab.peer())));
    assert_eq!(rig.words(), before, "all or nothing");
}

on! {
    [lists many_pieces refusals]
    loopback: "self",
    posix: "posix",
    efa: "efa",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}
