//! A PGAS program on `uct` alone, in 2 to 64 processes; the library is `shmem.rs`.
//! ```text
//! cargo run -p uct --example pgas            # four processes
//! cargo run -p uct --example pgas -- 16
//! cargo run -p uct --example pgas -- 4 efa softefa0
//! ```

#[path = "../common/job.rs"]
mod job;
mod shmem;

use std::error::Error;
use std::process::ExitCode;

use job::{Job, Outcome};
use shmem::Shmem;
use uct::config::Source;

const HEAP: usize = 1 << 16;

fn main() -> ExitCode {
    let asked = std::env::args().nth(1);
    let size = asked.as_deref().map_or(Some(4), |text| text.parse().ok());
    match size.filter(|n| (2..=64).contains(n)) {
        Some(size) => job::run(size, 64, work),
        None => {
            eprintln!("pgas: '{}' is not a number of processes from 2 to 64", asked.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn work(job: &mut Job) -> Outcome {
    let mut words = std::env::args().skip(2);
    let (tl, dev) = (words.next().unwrap_or("posix".into()), words.next().unwrap_or("memory".into()));
    let iface = uct::any::open(&tl, &dev, &Source::from_env()?)?;
    let pe = Shmem::init(iface, HEAP, job)?;
    let say = |text: String| {
        if pe.me == 0 {
            println!("{text}");
        }
    };

    let ring = neighbours(&pe)?;
    say(format!("put, barrier, get: {} PEs hold their left neighbours' numbers: {ring}", pe.npes));
    let matrix = transpose(&pe)?;
    say(format!("iput: every PE wrote its row as a column of PE 0's matrix: {matrix}"));
    let tickets = tickets(&pe)?;
    say(format!("fadd: every ticket from 0 to {} was drawn once: {tickets}", TICKETS * pe.npes as u64 - 1));
    let chain = chain(&pe)?;
    say(format!("swap: every PE was found once by the one behind it: {chain}"));
    let stream = stream(&pe)?;
    say(format!("put, fence, put: no flag came before its data, in {} rounds: {stream}", rounds(&pe)));

    pe.barrier()?;
    job.gather(&[])?;
    if ring && matrix && tickets && chain && stream {
        Ok(())
    } else {
        Err("an operation did not do its work".into())
    }
}

fn everywhere(pe: &Shmem, mine: bool) -> Result<bool, Box<dyn Error>> {
    let all = pe.alloc(1)?;
    pe.fadd(all, u64::from(mine), 0)?;
    pe.barrier()?;
    Ok(pe.get(all, 0)? == [pe.npes as u64])
}

fn neighbours(pe: &Shmem) -> Result<bool, Box<dyn Error>> {
    let (left, own) = (pe.alloc(1)?, pe.alloc(1)?);
    pe.write(own, 0, pe.me as u64 + 100);
    pe.put(left, &[pe.me as u64], (pe.me + 1) % pe.npes)?;
    pe.barrier()?;
    let mut good = pe.read(left, 0) == ((pe.me + pe.npes - 1) % pe.npes) as u64;
    for other in 0..pe.npes {
        good &= pe.get(left, other)? == [((other + pe.npes - 1) % pe.npes) as u64];
        good &= pe.get(own, other)? == [other as u64 + 100];
    }
    everywhere(pe, good)
}

fn transpose(pe: &Shmem) -> Result<bool, Box<dyn Error>> {
    let n = pe.npes;
    let matrix = pe.alloc(n * n)?;
    let row: Vec<u64> = (0..n).map(|column| (pe.me * n + column) as u64).collect();
    pe.iput((matrix.part(pe.me, matrix.len() - pe.me), n), (&row, 1), n, 0)?;
    pe.barrier()?;
    let all = pe.get(matrix, 0)?;
    everywhere(pe, (0..n * n).all(|at| all[at] == ((at % n) * n + at / n) as u64))
}

const TICKETS: u64 = 100;

/// One counter, drawn from by all; each marks its tickets at PE 0.
fn tickets(pe: &Shmem) -> Result<bool, Box<dyn Error>> {
    let (counter, drawn) = (pe.alloc(1)?, pe.alloc(TICKETS as usize * pe.npes)?);
    for _ in 0..TICKETS {
        let ticket = pe.fadd(counter, 1, 0)?;
        pe.fadd(drawn.part(ticket as usize, 1), 1, 0)?;
    }
    pe.barrier()?;
    let all = pe.get(drawn, 0)?;
    everywhere(pe, all.iter().all(|times| *times == 1))
}

/// Queueing for a lock: a comer swaps its number in and finds its predecessor's.
fn chain(pe: &Shmem) -> Result<bool, Box<dyn Error>> {
    let (last, found) = (pe.alloc(1)?, pe.alloc(pe.npes + 1)?);
    let before = pe.swap(last, pe.me as u64 + 1, 0)?;
    pe.fadd(found.part(before as usize, 1), 1, 0)?;
    pe.barrier()?;
    // All but the last one are found; 0 is what the first one found.
    let (all, last) = (pe.get(found, 0)?, pe.get(last, 0)?[0] as usize);
    everywhere(pe, (0..=pe.npes).all(|n| all[n] == u64::from(n != last)))
}

fn rounds(pe: &Shmem) -> u64 {
    (800 / pe.npes as u64).max(10)
}

/// Data, then a flag that says they are there: what a fence is for.
fn stream(pe: &Shmem) -> Result<bool, Box<dyn Error>> {
    let (data, flag, taken) = (pe.alloc(512)?, pe.alloc(1)?, pe.alloc(1)?);
    let (right, left) = ((pe.me + 1) % pe.npes, (pe.me + pe.npes - 1) % pe.npes);
    let mut good = true;
    for round in 1..=rounds(pe) {
        pe.put(data, &vec![round; data.len()], right)?;
        pe.fence()?;
        pe.put(flag, &[round], right)?;
        pe.wait_until(flag, |word| word == round);
        good &= (0..data.len()).all(|n| pe.read(data, n) == round);
        // The sender must not write the next round over what is being read.
        pe.put(taken, &[round], left)?;
        pe.wait_until(taken, |word| word == round);
    }
    everywhere(pe, good)
}
