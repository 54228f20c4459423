//! One process reads and writes another's memory; the other one does nothing.
//! ```text
//! cargo run -p uct --example put_get
//! cargo run -p uct --example put_get -- efa softefa0
//! ```
//!
//! A key gives access to the memory it names, inside its bounds only. Short puts and gets are in `pgas`.

#[path = "common/job.rs"]
mod job;

use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;

use job::Job;
use uct::api::{
    AllocReq, Comp, Completion, DevKind, Ep, Error, Iface, Iov, Md, Memory, Outcome, Refused, Sent,
};
use uct::config::Source;

const LEN: usize = 1 << 16;

fn main() -> ExitCode {
    job::run(2, 2, work)
}

fn work(job: &mut Job) -> job::Outcome {
    let mut words = std::env::args().skip(1);
    let (tl, dev) = (words.next().unwrap_or("posix".into()), words.next().unwrap_or("memory".into()));
    let iface = uct::any::open(&tl, &dev, &Source::from_env()?)?;

    if iface.attr().kind == DevKind::Loopback {
        return Err(format!("{tl} reaches this process only: choose another (see ucx-info -d)").into());
    }

    // Memory that the domain allocates is registered already, and is what its transport is fastest on.
    let mem = iface.md().alloc(&AllocReq::new(LEN, "put_get"))?;
    let addresses = job.gather(&(mem.addr() as u64).to_le_bytes())?;
    let keys = job.gather(&iface.md().pack_rkey(&mem)?)?;
    let devices = job.gather(&iface.device_addr())?;
    let ifaces = job.gather(&iface.iface_addr())?;

    let peer = 1 - job.rank;
    let ep = iface.connect(&devices[peer], &ifaces[peer])?;
    // Some wires (EFA) need the target to know the initiator: wait until both sides have connected.
    job.gather(&[])?;
    if job.rank == 1 {
        // Its memory is written and read, and it does not even look.
        job.gather(&[])?;
        return Ok(());
    }

    let rkey = iface.md().unpack_rkey(&keys[peer])?;
    let remote = u64::from_le_bytes(addresses[peer][..].try_into()?);

    // First half of our memory: what we write. Second half: what we read back.
    let half = LEN / 2;
    let (ours, back) = (mem.addr(), mem.addr().wrapping_add(half));
    for at in 0..half {
        // SAFETY: inside our own allocation, which no peer writes in this program.
        unsafe { ours.wrapping_add(at).write(at as u8) };
    }

    let source = [Iov::new(ours, half, Some(&mem))];
    // SAFETY: the source stays valid and unchanged until the completion.
    finish(&iface, |comp| unsafe { ep.put_zcopy(&source, remote, &rkey, comp) })?;

    // Done means that our memory may be used again. That the bytes have arrived is what a flush says.
    finish(&iface, |comp| ep.flush(comp))?;

    let target = [Iov::new(back, half, Some(&mem))];
    // SAFETY: the target stays valid, and nobody else writes it, until the completion.
    finish(&iface, |comp| unsafe { ep.get_zcopy(&target, remote, &rkey, comp) })?;

    // SAFETY: as above; the get has ended.
    let same = (0..half).all(|at| unsafe { back.wrapping_add(at).read() } == at as u8);
    println!("{half} bytes written to process {peer} and read back over {tl}: same = {same}");

    // Outside of the key's bounds nothing is touched: the answer is an error, at once or by the completion.
    // SAFETY: as above.
    let beyond = finish(&iface, |comp| unsafe { ep.get_zcopy(&target, remote + LEN as u64, &rkey, comp) });
    println!("beyond its end: {}", beyond.err().map_or("no error".into(), |e| e.to_string()));
    job.gather(&[])?;
    Ok(())
}

fn finish(iface: &uct::any::Iface, mut start: impl FnMut(Comp) -> Outcome) -> Result<(), Error> {
    // A completion counts operations down and calls back, from progress, when the last is done.
    let ended = Rc::new(Cell::new(None));
    let tell = ended.clone();
    let comp = Completion::new(1, move |result| tell.set(Some(result)));
    loop {
        match start(Comp::Handle(comp.clone())) {
            // Done in the call: the completion does not fire.
            Ok(Sent::Done) => return Ok(()),
            Ok(Sent::InProgress) => break,
            Err(Refused::NoResource) => iface.progress(16),
            Err(Refused::Failed(e)) => return Err(e),
        };
    }
    loop {
        iface.progress(16);
        if let Some(result) = ended.take() {
            return result;
        }
    }
}
