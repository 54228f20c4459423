//! MPI's matching rules one by one, written against the library in `mpi.rs`. The first process prints.
//! ```text
//! cargo run -p ucp --example mpi             # four processes
//! UCX_TLS=efa cargo run -p ucp --example mpi -- 8
//! ```

#[path = "../../../uct/examples/common/job.rs"]
mod job;
mod mpi;

use std::error::Error;
use std::process::ExitCode;

use job::{Job, Outcome};
use mpi::{Comm, Source, Tag};

fn main() -> ExitCode {
    let asked = std::env::args().nth(1);
    let size = asked.as_deref().map_or(Some(4), |text| text.parse().ok());
    match size.filter(|n| (2..=64).contains(n)) {
        Some(size) => job::run(size, 64, work),
        None => {
            eprintln!("mpi: '{}' is not a number of processes from 2 to 64", asked.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn work(job: &mut Job) -> Outcome {
    let world = mpi::init(job)?;
    type Step = (&'static str, fn(&Comm) -> Result<(), Box<dyn Error>>);
    let steps: [Step; 6] = [
        ("ring: everybody sends right and receives from the left", ring),
        ("order: what matches the same receive comes in the order sent", order),
        ("wildcards: from anybody, any tag; a probe says how much room it takes", wildcards),
        ("communicators: equal tags do not meet", communicators),
        ("synchronous: an ssend ends when it is matched, not before", synchronous),
        ("matched probe: who found a message has it", matched),
    ];
    for (what, step) in steps {
        step(&world)?;
        world.barrier()?;
        if world.rank == 0 {
            println!("{what}: good, over {}", world.transport(1));
        }
    }
    world.flush()?;
    job.gather(&[])?;
    Ok(())
}

fn ring(comm: &Comm) -> Result<(), Box<dyn Error>> {
    let (right, left) = ((comm.rank + 1) % comm.size, (comm.rank + comm.size - 1) % comm.size);
    // A long send waits for its receiver, so the receive is posted first.
    for len in [8, 300_000] {
        let from_left = comm.irecv(Source::Rank(left), Tag::Is(1), len);
        let to_right = comm.isend(vec![comm.rank as u8; len], right, 1);
        let (status, bytes) = from_left.wait()?;
        to_right.wait()?;
        assert_eq!((status.source, status.tag, bytes), (left, 1, vec![left as u8; len]));
    }
    Ok(())
}

fn order(comm: &Comm) -> Result<(), Box<dyn Error>> {
    const MANY: u32 = 100;
    if comm.rank > 0 {
        // Messages of these lengths take different protocols and still must not overtake one another.
        let len = |n: u32| if n % 10 == 9 { 100_000 } else { 4 };
        let message = |n: u32| [n.to_le_bytes().to_vec(), vec![0; len(n) - 4]].concat();
        let all: Vec<_> = (0..MANY).map(|n| comm.isend(message(n), 0, 2)).collect();
        return all.into_iter().try_for_each(|one| one.wait());
    }
    for from in 1..comm.size {
        for n in 0..MANY {
            let (_, bytes) = comm.recv(Source::Rank(from), Tag::Is(2), 100_000)?;
            assert_eq!(bytes[..4], n.to_le_bytes());
        }
    }
    Ok(())
}

fn wildcards(comm: &Comm) -> Result<(), Box<dyn Error>> {
    let len = |rank: usize| 1000 * rank;
    if comm.rank > 0 {
        return comm.send(&vec![7; len(comm.rank)], 0, 100 + comm.rank as u32);
    }
    let mut seen = vec![false; comm.size];
    for _ in 1..comm.size {
        let found = comm.probe(Source::Any, Tag::Any);
        // Receives exactly the message found, since others may have come meanwhile.
        let (status, bytes) = comm.recv(Source::Rank(found.source), Tag::Is(found.tag), found.len)?;
        assert_eq!(status, found);
        assert_eq!((bytes.len(), status.tag), (len(status.source), 100 + status.source as u32));
        assert!(!std::mem::replace(&mut seen[status.source], true), "each once");
    }
    Ok(())
}

fn communicators(comm: &Comm) -> Result<(), Box<dyn Error>> {
    let other = comm.dup(1);
    let peer = comm.size - 1 - comm.rank;
    if peer == comm.rank {
        return Ok(());
    }
    // Sent in one order and received in the other: each receive matches within its communicator.
    let sends = [comm.isend(vec![1], peer, 3), other.isend(vec![2], peer, 3)];
    let second = other.recv(Source::Any, Tag::Is(3), 1)?.1;
    let first = comm.recv(Source::Any, Tag::Is(3), 1)?.1;
    assert_eq!((first, second), (vec![1], vec![2]));
    sends.into_iter().try_for_each(|one| one.wait())
}

fn synchronous(comm: &Comm) -> Result<(), Box<dyn Error>> {
    match comm.rank {
        0 => {
            let mut sending = comm.issend(vec![5; 8], 1, 4);
            // The peer says here that it has not posted the receive yet.
            comm.recv(Source::Rank(1), Tag::Is(5), 0)?;
            assert!(!sending.is_done(), "nobody has matched it");
            comm.send(&[], 1, 6)?;
            sending.wait()
        }
        1 => {
            comm.probe(Source::Rank(0), Tag::Is(4));
            comm.send(&[], 0, 5)?;
            comm.recv(Source::Rank(0), Tag::Is(6), 0)?;
            comm.recv(Source::Rank(0), Tag::Is(4), 8).map(drop)
        }
        _ => Ok(()),
    }
}

fn matched(comm: &Comm) -> Result<(), Box<dyn Error>> {
    if comm.rank > 0 {
        return comm.send(&vec![comm.rank as u8; 5000], 0, 7);
    }
    for _ in 1..comm.size {
        let (status, bytes) = comm.mrecv(Source::Any, Tag::Is(7))?;
        assert_eq!(bytes, vec![status.source as u8; 5000]);
    }
    assert_eq!(comm.iprobe(Source::Any, Tag::Is(7)), None);
    Ok(())
}
