//! One-sided cells: writes and reads of the other end's memory, and atomics on it. Played by `run`.
//! Arithmetic is checked by comparing the results of both ends on the same operands.

use std::time::{Duration, Instant};

use super::control::{Line, bytes, sum};
use super::matrix::{Atomic, Cell, Contact, CqData, Delivery, Length, What};
use super::pair::{Pair, PlayError, wrong};
use super::process::{ProcessError, Stack};

const MARGIN: usize = 32;
const SEVERAL: usize = 5;
/// Pieces at the target of an atomic on lists: first element and count, not in order of address.
const FAR: [(usize, usize); 3] = [(3, 2), (2, 1), (0, 2)];
const NEAR: usize = 2;
const LISTED: [u64; 3] = [1, 7, 9];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    Run(usize),
    /// [`SEVERAL`], in three pieces at the target and so many at the initiator.
    Lists(usize),
}

/// Pieces at the initiator, if this cell has lists. From 1.18 on, libfabric as target takes the operands of
/// the first piece for every piece of a comparing atomic. Up to 2.6.0, as initiator, it fills every piece of
/// a result with its first bytes.
fn listed(cell: &Cell, release: (u64, u64)) -> Option<usize> {
    let fetches = matches!(cell.what, What::Atomic(Atomic::Fetch | Atomic::Compare));
    match cell.sender {
        _ if release < (1, 18) => Some(NEAR),
        Stack::Ours => (!compares(cell)).then_some(NEAR),
        Stack::Libfabric => Some(if fetches { 1 } else { NEAR }),
    }
}
/// Datatype numbers: integers of 8 to 64 bits, float, double, long double and complex; and 128-bit integers,
/// which no libfabric takes.
const TYPES: std::ops::Range<u64> = 0..20;
const WITHOUT_VALUES: u64 = 14;

struct Memory {
    name: String,
    len: usize,
    addr: u64,
    key: u64,
}

fn memory(pair: &mut Pair, of: Stack, len: usize, seed: &str) -> Result<Memory, PlayError> {
    let name = format!("m{}", pair.msg(0).nth);
    let line = pair.end(of).step(&format!("mem {name} {len} {seed}"))?;
    match (line.number_at(1), line.number_at(2)) {
        (Some(addr), Some(key)) => Ok(Memory { name, len, addr, key }),
        _ => Err(wrong(of, "no address and key", &line)),
    }
}

fn memory_sum(pair: &mut Pair, of: Stack, memory: &Memory) -> Result<Line, PlayError> {
    let line = pair.end(of).step(&format!("look {}", memory.name))?;
    match line.word(2) {
        Some("broken") => Err(wrong(of, "bytes behind the memory were written", &line)),
        _ => Ok(line),
    }
}

/// Waits until the memory has this sum. If delivery was confirmed, it must have it at once.
fn wait_for_sum(
    pair: &mut Pair,
    of: Stack,
    memory: &Memory,
    want: &str,
    delivery: Delivery,
) -> Result<(), PlayError> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let line = memory_sum(pair, of, memory)?;
        if line.word(1) == Some(want) {
            return Ok(());
        }
        if delivery == Delivery::Complete || Instant::now() > until {
            let what = format!("{} bytes are not what was written", memory.len);
            return Err(wrong(of, &what, &line));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Plays one operation of `len` bytes; answers 1.
pub fn one(pair: &mut Pair, cell: &Cell, len: usize, nth: usize) -> Result<usize, PlayError> {
    match cell.what {
        What::Read(_) | What::DirectRead => read(pair, cell, &[Access::of(len)]),
        What::DirectWrite(cq_data) => write(pair, cell, &[Access { cq_data, ..Access::of(len) }]),
        What::Write(..) | What::LongReadWrite(_) => {
            // Data would make a write that just fits a packet too long.
            let short = matches!(cell.what, What::Write(Length::Short, _));
            let room = !short || len + 8 <= cell.eager_max();
            let cq_data = if room && nth % 2 == 1 { CqData::Yes } else { CqData::No };
            write(pair, cell, &[Access { cq_data, ..Access::of(len) }])
        }
        // A sum of one 64-bit integer.
        _ => atomic(pair, cell, &[(if compares(cell) { 12 } else { 2 }, 7, Elements::Run(1))]),
    }
}

/// Plays a cell after the handshake: single operations, concurrent ones, lists.
pub fn many(pair: &mut Pair, cell: &Cell) -> Result<usize, PlayError> {
    if let What::Atomic(_) = cell.what {
        return atomics(pair, cell);
    }
    let sizes = cell.sizes();
    let mut n = 0;
    for (nth, len) in sizes.iter().enumerate() {
        n += one(pair, cell, *len, nth)?;
        n += one(pair, cell, *len, nth + 1)?;
    }
    // Writes with data have one piece, and complete in any order.
    if cell.what == What::DirectWrite(CqData::Yes) {
        return Ok(n);
    }
    let together: Vec<Access> = sizes.iter().cycle().take(12).map(|len| Access::of(*len)).collect();
    let mut lists = Vec::new();
    for (len, (near, far)) in sizes.iter().zip(LISTS.iter().cycle()) {
        // A longer list leaves less room in a packet.
        let short = matches!(cell.what, What::Write(Length::Short, _));
        let len = if short { (*len).min(cell.eager_max() - 24 * (far - 1)) } else { *len };
        lists.push(Access { near: *near, far: *far, ..Access::of(len) });
    }
    for all in [together, lists] {
        n += match cell.what {
            What::Read(_) | What::DirectRead => read(pair, cell, &all)?,
            _ => write(pair, cell, &all)?,
        };
    }
    Ok(n)
}

/// Pieces at the initiator and at the target.
const LISTS: [(usize, usize); 6] = [(4, 1), (1, 4), (3, 2), (4, 4), (2, 3), (2, 1)];

#[derive(Clone, Copy)]
struct Access {
    len: usize,
    cq_data: CqData,
    near: usize,
    far: usize,
}

impl Access {
    fn of(len: usize) -> Access {
        Access { len, cq_data: CqData::No, near: 1, far: 1 }
    }

    fn cuts(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (1..self.far).map(|k| self.len * (k + 1) / 12).collect();
        all.push(self.len - all.iter().sum::<usize>());
        all
    }
}

struct Started {
    access: Access,
    seed: u64,
    /// Each piece of memory, and the seed of its old contents.
    pieces: Vec<(Memory, u64)>,
}

/// Starts all operations. Their ids are `verb`'s first letter and their seed.
fn start_all(pair: &mut Pair, cell: &Cell, verb: &str, all: &[Access]) -> Result<Vec<Started>, PlayError> {
    let (from, to) = (cell.sender, cell.sender.other());
    let direct = matches!(cell.what, What::DirectRead | What::DirectWrite(_));
    let rdma = if direct { "rdma" } else { "" };
    let mut started = Vec::new();
    for access in all {
        let seed = pair.msg(0).nth;
        let mut pieces = Vec::new();
        for len in access.cuts() {
            let before = pair.msg(0).nth;
            let memory = memory(pair, to, len + 2 * MARGIN, &format!("seed={before} {rdma}"))?;
            pieces.push((memory, before));
        }
        started.push(Started { access: *access, seed, pieces });
    }
    for Started { access, seed, pieces } in &started {
        let far: Vec<String> = pieces
            .iter()
            .map(|(m, _)| format!("{:#x}:{}:{:#x}", m.addr + MARGIN as u64, m.len - 2 * MARGIN, m.key))
            .collect();
        let (len, near, far) = (access.len, access.near, far.join(","));
        let data = match access.cq_data {
            CqData::Yes => format!("data={:#x}", 0xda7a_0000 | seed),
            CqData::No => String::new(),
        };
        let ours = from == Stack::Ours && matches!(cell.what, What::DirectWrite(_));
        let dc = if ours || cell.what.delivery() == Delivery::Complete { "dc" } else { "" };
        let id = &verb[..1];
        let how = format!("seed={} parts={near} far={far} {data} {dc} {rdma}", seed + 1000);
        pair.end(from).step(&format!("{verb} {id}{seed} {len} {how}"))?;
    }
    Ok(started)
}

fn write(pair: &mut Pair, cell: &Cell, all: &[Access]) -> Result<usize, PlayError> {
    let (from, to) = (cell.sender, cell.sender.other());
    // A write by RDMA is complete at the target when its writer is told.
    let read = matches!(cell.what, What::LongReadWrite(_) | What::DirectWrite(_));
    let confirmed = read && cell.contact == Contact::After;
    let delivery = if confirmed { Delivery::Complete } else { cell.what.delivery() };
    for Started { access, seed, pieces } in start_all(pair, cell, "write", all)? {
        let line = pair.end(from).ended(&format!("w{seed}"))?;
        if line.word(0) != Some("done") {
            return Err(wrong(from, "a write failed", &line));
        }
        let out = bytes(access.len, seed + 1000);
        let mut at = 0;
        for ((memory, before), len) in pieces.iter().zip(access.cuts()) {
            let mut want = bytes(memory.len, *before);
            want[MARGIN..MARGIN + len].copy_from_slice(&out[at..at + len]);
            wait_for_sum(pair, to, memory, &format!("{:016x}", sum(&want)), delivery)?;
            at += len;
        }
        if access.cq_data == CqData::Yes {
            let line = pair.end(to).ended("-")?;
            if line.number("data") != Some(0xda7a_0000 | seed) {
                return Err(wrong(to, "other data than was written with", &line));
            }
        }
    }
    Ok(all.len())
}

fn read(pair: &mut Pair, cell: &Cell, all: &[Access]) -> Result<usize, PlayError> {
    let from = cell.sender;
    for Started { access, seed, pieces } in start_all(pair, cell, "read", all)? {
        let line = pair.end(from).ended(&format!("r{seed}"))?;
        let mut there = Vec::new();
        for ((memory, before), len) in pieces.iter().zip(access.cuts()) {
            there.extend_from_slice(&bytes(memory.len, *before)[MARGIN..MARGIN + len]);
        }
        let want = format!("{:016x}", sum(&there));
        let good = line.word(0) == Some("done") && line.value("sum") == Some(&want);
        if !good || line.value("guard") == Some("broken") {
            return Err(wrong(from, &format!("{} bytes are not what was there", access.len), &line));
        }
    }
    Ok(all.len())
}

fn compares(cell: &Cell) -> bool {
    cell.what == What::Atomic(Atomic::Compare)
}

fn atomics(pair: &mut Pair, cell: &Cell) -> Result<usize, PlayError> {
    let (verb, ops): (_, &[u64]) = match cell.what {
        What::Atomic(Atomic::Compare) => ("compare", &[12, 13, 14, 15, 16, 17, 18]),
        What::Atomic(Atomic::Fetch) => ("fetch", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        _ => ("write", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11]),
    };
    let near = listed(cell, pair.release()?);
    let mut all = Vec::new();
    for op in ops {
        for ty in TYPES {
            match pair.end(Stack::Libfabric).step(&format!("can {verb} op={op} type={ty}")) {
                Ok(line) if ty >= WITHOUT_VALUES => {
                    return Err(wrong(Stack::Libfabric, &format!("takes datatype {ty}"), &line));
                }
                Ok(_) => {
                    all.extend([1, SEVERAL].map(|count| (*op, ty, Elements::Run(count))));
                    let near = near.filter(|_| LISTED.contains(&ty));
                    all.extend(near.map(|near| (*op, ty, Elements::Lists(near))));
                }
                Err(ProcessError::Refused { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    atomic(pair, cell, &all)
}

/// Plays operations (number, datatype, elements) one after the other.
fn atomic(pair: &mut Pair, cell: &Cell, all: &[(u64, u64, Elements)]) -> Result<usize, PlayError> {
    let (from, to) = (cell.sender, cell.sender.other());
    let (verb, dc) = match cell.what {
        What::Atomic(Atomic::Fetch) => ("fetch", ""),
        What::Atomic(Atomic::Compare) => ("compare", ""),
        What::Atomic(Atomic::ConfirmedWrite) => ("atomic", "dc"),
        _ => ("atomic", ""),
    };
    for (op, ty, elements) in all {
        let (count, listed) = match elements {
            Elements::Run(count) => (count, ""),
            Elements::Lists(_) => (&SEVERAL, " on lists"),
        };
        let each = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32][*ty as usize];
        let len = count * each;
        // The operation's own numbers are the seed, so both ends have the same operands.
        let seed = op * 1000 + ty * 10 + *count as u64;
        let memory = memory(pair, to, len, &format!("seed={seed} type={ty}"))?;
        let (addr, key, id) = (memory.addr, memory.key, memory.name.clone());
        let place = match elements {
            Elements::Run(_) => format!("addr={addr:#x} key={key:#x}"),
            Elements::Lists(near) => {
                let piece = |(at, n)| format!("{:#x}:{}:{key:#x}", addr + (at * each) as u64, n * each);
                format!("far={} near={near}", FAR.map(piece).join(","))
            }
        };
        let with = format!("op={op} type={ty} count={count} {place} {dc}");
        // One element equals its compare value; several do not.
        let compare = if *count == 1 { seed } else { seed + 2 };
        pair.end(from).step(&format!("{verb} a{id} {len} seed={} cseed={compare} {with}", seed + 1))?;
        let line = pair.end(from).ended(&format!("a{id}"))?;
        if line.word(0) != Some("done") || line.value("guard") == Some("broken") {
            return Err(wrong(from, &format!("{verb} {with} failed"), &line));
        }
        let old = super::control::values(len, *ty, seed);
        let old: Vec<u8> = match elements {
            Elements::Run(_) => old,
            Elements::Lists(_) => {
                FAR.iter().flat_map(|(at, n)| &old[at * each..(at + n) * each]).copied().collect()
            }
        };
        let old = format!("{:016x}", sum(&old));
        if verb != "atomic" && line.value("sum") != Some(&old) {
            return Err(wrong(from, &format!("{verb} {with}: not the old value"), &line));
        }
        // An unconfirmed operation may end before the target has it.
        if verb == "atomic" && dc.is_empty() {
            wait_for_arrival(pair, cell)?;
        }
        let now = memory_sum(pair, to, &memory)?.word(1).unwrap_or("").to_owned();
        let what = format!("{verb} op={op} type={ty} count={count}{listed}");
        let before = pair.computed.entry(what.clone()).or_insert_with(|| now.clone()).clone();
        if before != now {
            let line = Line::new(format!("memory becomes {now}, at the other end {before}"));
            return Err(wrong(to, &what, &line));
        }
    }
    // Equal results must not be the unchanged value.
    let sum_of_words = format!("{verb} op=2 type=7 count=1");
    if let Some(now) = pair.computed.get(&sum_of_words) {
        let old = format!("{:016x}", sum(&super::control::values(8, 7, 2071)));
        if *now == old {
            return Err(wrong(to, "a sum changed nothing", &Line::new(sum_of_words)));
        }
    }
    Ok(all.len())
}

/// Sends a message behind atomics, which are ordered with it: when it arrives, they have.
fn wait_for_arrival(pair: &mut Pair, cell: &Cell) -> Result<(), PlayError> {
    let msg = pair.msg(0);
    pair.expected(cell.sender, &msg, 0)
}
