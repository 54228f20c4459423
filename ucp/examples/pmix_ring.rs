//! A job of a launcher that speaks PMIx: each process publishes its address, and a token goes around all.
//! ```text
//! cargo build -p ucp --example pmix_ring
//! mpirun -n 4 target/debug/examples/pmix_ring         # or srun --mpi=pmix, or prun
//! ```
//!
//! PMIx is a key-value store with a barrier: put, fence, get. Started by hand it is a job of one process.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use ucp::ucs::sys::pmix::Pmix;
use ucp::{Address, CloseMode, Context, Ep, EpParams, TAG_MASK_FULL, Worker};

const TOKEN: u64 = 1;
/// Name of the address in the store.
const KEY: &str = "ucp.example.address";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pmix_ring: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // Before the context, which may speak to the launcher, too: a second start may wait for ever.
    let launcher = if Pmix::is_there() { Some(Pmix::init()?) } else { None };
    let worker = Context::new()?.worker()?;
    let (rank, size) = match &launcher {
        Some(pmix) => (pmix.rank(), pmix.size()?),
        None => (0, 1),
    };
    let next = match &launcher {
        Some(pmix) => {
            pmix.put_bytes(KEY, &worker.address().pack())?;
            // Behind the fence everybody's address is there.
            pmix.fence()?;
            Address::unpack(&pmix.get_bytes((rank + 1) % size, KEY)?)?
        }
        None => worker.address(),
    };
    let ep = worker.connect(&next, EpParams::default())?;
    let sum = pass_token(&worker, &ep, rank)?;
    if let Some(sum) = sum {
        let over = ep.protocols().transports()[0];
        println!("a token went around {size} processes over {over}: the sum of their ranks is {sum}");
    }
    ep.close(CloseMode::Flush(Duration::from_secs(10))).wait()?;
    // Nobody leaves before all have what they wait for.
    if let Some(pmix) = &launcher {
        pmix.fence()?;
    }
    Ok(())
}

/// Rank 0 begins, and gets the sum of all ranks back.
fn pass_token(worker: &Worker, ep: &Ep, rank: u32) -> Result<Option<u32>, ucp::Error> {
    let token = worker.tag_recv(TOKEN, TAG_MASK_FULL, Vec::with_capacity(4));
    if rank == 0 {
        ep.tag_send(TOKEN, 0u32.to_le_bytes().to_vec()).wait().0?;
    }
    let (status, bytes) = token.wait();
    status?;
    let sum = bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) + rank;
    if rank == 0 {
        return Ok(Some(sum));
    }
    ep.tag_send(TOKEN, sum.to_le_bytes().to_vec()).wait().0?;
    Ok(None)
}
