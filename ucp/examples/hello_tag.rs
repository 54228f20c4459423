//! Two processes, one message: the smallest program with tagged messages.
//! ```text
//! cargo run -p ucp --example hello_tag                 # both sides, as two processes
//! UCX_TLS=efa cargo run -p ucp --example hello_tag     # over the software EFA device
//! ```
//!
//! Addresses travel out of band: here through the child's standard input, in a job through its launcher.

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};

use ucp::{Address, Context, EpParams, TAG_MASK_FULL};

const GREETING: u64 = 1;

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("child") => child(),
        _ => parent(),
    };
    done.map_or_else(
        |e| {
            eprintln!("hello_tag: {e}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Opens a worker, tells the child its address, and waits for a greeting.
fn parent() -> Result<(), Box<dyn Error>> {
    let worker = Context::new()?.worker()?;
    let mut child = Command::new(std::env::current_exe()?).arg("child").stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no pipe")?.write_all(&worker.address().pack())?;

    // A child that fails never sends, so the loop checks on it while it waits.
    let greeting = worker.tag_recv(GREETING, TAG_MASK_FULL, Vec::with_capacity(64));
    while !greeting.is_done() {
        worker.progress();
        if child.try_wait()?.is_some_and(|status| !status.success()) {
            return Err("the child failed".into());
        }
    }
    let (status, room) = greeting.wait();
    status?;
    println!("parent got: {}", String::from_utf8_lossy(&room));
    child.wait()?;
    Ok(())
}

fn child() -> Result<(), Box<dyn Error>> {
    let mut packed = Vec::new();
    std::io::stdin().read_to_end(&mut packed)?;
    let worker = Context::new()?.worker()?;
    let ep = worker.connect(&Address::unpack(&packed)?, EpParams::default())?;

    let text = format!("hello from process {} over {}", std::process::id(), ep.protocols().transports()[0]);
    ep.tag_send_blocking(GREETING, text.as_bytes())?;
    // A flush ends when what was sent has left.
    ep.flush().wait()?;
    Ok(())
}
