//! Two processes, one memory: a child adds to a counter and writes a text in the memory of its parent, which
//! never posts a receive. Address and remote key travel through the child's standard input.
//! ```text
//! cargo run -p ucp --example remote_counter                 # both sides, as two processes
//! UCX_TLS=efa cargo run -p ucp --example remote_counter     # over the software EFA device
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};

use ucp::{Access, Address, AtomicOp, Context, EpParams, RmaMethod};

/// Layout of the shared memory: a counter, a flag word, and a text.
const COUNTER: usize = 0;
const DONE: usize = 8;
const TEXT: usize = 16;
const LEN: usize = 4096;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("child") => child(),
        _ => parent(),
    };
    done.map_or_else(
        |e| {
            eprintln!("remote_counter: {e}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Shares memory and waits until the child has set its flag word.
fn parent() -> Result<(), Box<dyn Error>> {
    let worker = Context::new()?.worker()?;
    let mem = worker.mem_alloc(LEN, Access::all())?;
    mem.write(COUNTER, &40u64.to_le_bytes());

    let mut child = Command::new(std::env::current_exe()?).arg("child").stdin(Stdio::piped()).spawn()?;
    let mut pipe = child.stdin.take().ok_or("no pipe")?;
    for part in [worker.address().pack(), mem.pack_rkey(), mem.addr().to_le_bytes().to_vec()] {
        pipe.write_all(&(part.len() as u32).to_le_bytes())?;
        pipe.write_all(&part)?;
    }
    drop(pipe);

    // Where memory is not mapped, the child's requests are packets that progress handles.
    while mem.word(DONE) == 0 {
        worker.progress();
        if child.try_wait()?.is_some_and(|status| !status.success()) {
            return Err("the child failed".into());
        }
    }
    let mut text = vec![0; mem.word(DONE) as usize];
    mem.read(TEXT, &mut text);
    println!("parent has: {} and {}", mem.word(COUNTER), String::from_utf8_lossy(&text));
    while child.try_wait()?.is_none() {
        worker.progress();
    }
    Ok(())
}

fn child() -> Result<(), Box<dyn Error>> {
    let mut parts = [const { Vec::new() }; 3];
    for part in &mut parts {
        let mut len = [0; 4];
        std::io::stdin().read_exact(&mut len)?;
        part.resize(u32::from_le_bytes(len) as usize, 0);
        std::io::stdin().read_exact(part)?;
    }
    let [address, rkey, at] = parts;
    let at = u64::from_le_bytes(at.as_slice().try_into()?);

    let worker = Context::new()?.worker()?;
    let ep = worker.connect(&Address::unpack(&address)?, EpParams::default())?;
    let rkey = ep.unpack_rkey(&rkey)?;
    let old = ep.atomic_fetch_blocking(AtomicOp::Sum, 2u64, at + COUNTER as u64, &rkey)?;

    let how = match ep.protocols().rma_method(&rkey) {
        RmaMethod::Mapped => "in place",
        RmaMethod::Kernel => "by the kernel",
        RmaMethod::Rdma => "by RDMA",
        RmaMethod::Emulated => "by packets",
    };
    let text =
        format!("a text over {}, written {how}, when the counter was {old}", ep.protocols().transports()[0]);
    ep.put_blocking(text.as_bytes(), at + TEXT as u64, &rkey)?;
    // The flag word must not overtake the text.
    ep.fence();
    ep.put_blocking(&(text.len() as u64).to_le_bytes(), at + DONE as u64, &rkey)?;
    // After a flush, everything is in the parent's memory.
    ep.flush().wait()?;
    Ok(())
}
