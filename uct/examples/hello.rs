//! Two processes, one active message: the smallest program on `uct`.
//! ```text
//! cargo run -p uct --example hello
//! cargo run -p uct --example hello -- efa softefa0     # another transport and device: see ucx-info -d
//! ```
//!
//! The steps are those of every program on this layer: open an interface, tell the others its address by
//! other means, connect, send, and progress until what is expected has come.

#[path = "common/job.rs"]
mod job;

use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;

use job::{Job, Outcome};
use uct::api::{Am, Caps, DevKind, Ep, Iface, Refused};
use uct::config::Source;

/// An active message starts with one byte that chooses its handler on the other side.
const GREETING: u8 = 7;

fn main() -> ExitCode {
    job::run(2, 2, work)
}

fn work(job: &mut Job) -> Outcome {
    // 1. Open: a transport on a device. `uct::any` chooses by name; a program that knows may name the type.
    let mut words = std::env::args().skip(1);
    let (tl, dev) = (words.next().unwrap_or("posix".into()), words.next().unwrap_or("memory".into()));
    let iface = uct::any::open(&tl, &dev, &Source::from_env()?)?;

    // 2. Attributes say what it can do. What it cannot do answers "unsupported", so ask first.
    let attr = iface.attr();
    if attr.kind == DevKind::Loopback {
        return Err(format!("{tl} reaches this process only: choose another (see ucx-info -d)").into());
    }
    if !attr.has(Caps::AM_BCOPY | Caps::CONNECT_TO_IFACE) {
        return Err(format!("{tl}/{dev} carries no active messages").into());
    }

    // 3. Set a handler for an id, called from progress only.
    let answered = Rc::new(Cell::new(false));
    let (seen, rank) = (answered.clone(), job.rank);
    let handler = move |am: Am<'_>| {
        println!("process {rank} got: {}", String::from_utf8_lossy(am.data()));
        seen.set(true);
    };
    iface.set_am_handler(GREETING, Some(Box::new(handler)));

    // 4. Addresses travel by other means. They are bytes to everybody but the transport.
    let devices = job.gather(&iface.device_addr())?;
    let ifaces = job.gather(&iface.iface_addr())?;
    let peer = 1 - job.rank;
    let ep = iface.connect(&devices[peer], &ifaces[peer])?;

    // 5. Send. "No resource" is a normal answer: nothing happened, progress and try again.
    let text = format!("hello from process {rank} over {tl}");
    let pack = |room: &mut [u8]| {
        room[..text.len()].copy_from_slice(text.as_bytes());
        text.len()
    };
    while let Err(refused) = ep.am_bcopy(GREETING, pack) {
        match refused {
            Refused::NoResource => iface.progress(16),
            Refused::Failed(e) => return Err(e.into()),
        };
    }

    // 6. Progress until the other's greeting is here.
    while !answered.get() {
        iface.progress(16);
    }
    // The interface must stay until its message has been taken: wait for each other before it goes.
    job.gather(&[])?;
    Ok(())
}
