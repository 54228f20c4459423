//! One end of a pair of processes on the software EFA device, for tests of what befalls hosts and networks.
//!
//! ```text
//! udp_peer serve                          prints its GID and queue pair; receives until it is ended.
//!                                         At a line of its standard input it prints its counters
//! udp_peer send GID QPN LEN SECONDS       sends messages of LEN bytes, one after the other
//! ```
//!
//! The sender stops at the first request that fails, or after the time. Its last line has the number of
//! messages, the status of the last one, the longest time that one took, the time of the end, and by how much
//! the clock of the day was set meanwhile. Counters have a line each, `PART: NAME N`; two lines on the clock
//! of the day follow, and `end`. The receiver ends with code 3 if bytes are wrong or a message is missing or
//! doubled.

use std::error::Error;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use ucs::config::Source;
use uct::api::Access;
use uct::efa::dev::soft::{self, Cq, Device, Mr, Net, Pd, Qp};
use uct::efa::dev::{
    Channel, Cqe, Dest, Dev, DevCq, DevMr, DevQp, DevStatus, Gid, PostError, QpInit, QpKind, Sge,
};

const QKEY: u32 = 0x0dd_ba11;
const LONGEST: usize = 8192;
const RECEIVES: u64 = 64;

struct Side {
    dev: Device<Net>,
    pd: Pd,
    mr: Mr<Net>,
    qp: Qp<Net>,
    cq: Cq<Net>,
}

fn open() -> Result<Side, Box<dyn Error>> {
    let dev = soft::open(&Source::from_env()?, "softefa0")?;
    let pd = dev.alloc_pd()?;
    let mr = dev.alloc_mr(&pd, LONGEST * RECEIVES as usize, Access::ALL)?;
    let cq = dev.create_cq(256, Channel::Without)?;
    let init = QpInit {
        kind: QpKind::Srd,
        send_depth: 16,
        recv_depth: RECEIVES as u32,
        qkey: QKEY,
        rnr_retry: 7,
        unsolicited_write_recv: false,
    };
    let qp = dev.create_qp(&pd, &cq, &cq, &init)?;
    Ok(Side { dev, pd, mr, qp, cq })
}

impl Side {
    fn slot(&self, slot: u64, len: usize) -> Sge {
        let addr = self.mr.addr().wrapping_add(slot as usize * LONGEST);
        Sge { addr, len: len as u32, lkey: self.mr.lkey() }
    }

    #[allow(unsafe_code)]
    fn bytes(&mut self, slot: u64, len: usize) -> &mut [u8] {
        assert!(slot < RECEIVES && len <= LONGEST);
        let start = self.mr.addr().wrapping_add(slot as usize * LONGEST);
        // SAFETY: inside the region (asserted), of which the device uses no other part of this slot now.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    fn poll(&self) -> Option<Cqe> {
        let mut out = [Cqe::EMPTY];
        (self.cq.poll(&mut out) == 1).then_some(out[0])
    }
}

fn refused(why: PostError) -> String {
    format!("the queue pair refuses a request: {why:?}")
}

fn byte(message: u64, at: usize) -> u8 {
    (message as usize).wrapping_mul(131).wrapping_add(at.wrapping_mul(7)) as u8
}

/// The clock of the day, which somebody may set, beside the one that nobody sets.
struct Clocks(Instant, SystemTime);

impl Clocks {
    fn new() -> Clocks {
        Clocks(Instant::now(), SystemTime::now())
    }

    /// Seconds by which the clock of the day was set.
    fn moved(&self) -> f64 {
        let since = |start: SystemTime| match start.elapsed() {
            Ok(since) => since.as_secs_f64(),
            Err(back) => -back.duration().as_secs_f64(),
        };
        since(self.1) - self.0.elapsed().as_secs_f64()
    }
}

/// Somebody asks for the counters.
static ASKED: AtomicBool = AtomicBool::new(false);

fn listen_for_questions() {
    std::thread::spawn(|| std::io::stdin().lines().for_each(|_| ASKED.store(true, Relaxed)));
}

impl Side {
    fn tell(&self, clocks: &Clocks) {
        for part in self.dev.counters_by_part() {
            part.counts.iter().for_each(|(name, count)| println!("{}: {name} {count}", part.part));
        }
        let reads = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        println!("clock: moved {:.0}\nclock: reads {reads}\nend", clocks.moved());
    }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let clocks = Clocks::new();
    let mut side = open()?;
    listen_for_questions();
    for slot in 0..RECEIVES {
        side.qp.recv(slot, side.slot(slot, LONGEST)).map_err(refused)?;
    }
    println!("{} {}", side.dev.gid(), side.qp.qpn());
    let mut senders = std::collections::HashMap::new();
    loop {
        if ASKED.load(Relaxed) && ASKED.swap(false, Relaxed) {
            side.tell(&clocks);
        }
        let Some(cqe) = side.poll() else { continue };
        let (slot, len) = (cqe.wr_id, cqe.len as usize);
        let next = senders.entry((cqe.src_gid, cqe.src_qpn)).or_insert(0);
        let message = *next;
        *next += 1;
        if cqe.status != DevStatus::Ok
            || !side.bytes(slot, len).iter().enumerate().all(|(at, b)| *b == byte(message, at))
        {
            eprintln!("message {message} is wrong, missing or doubled: {cqe:?}");
            std::process::exit(3);
        }
        side.qp.recv(slot, side.slot(slot, LONGEST)).map_err(refused)?;
    }
}

fn send(gid: &str, qpn: &str, len: &str, seconds: &str) -> Result<(), Box<dyn Error>> {
    let clocks = Clocks::new();
    let mut side = open()?;
    let gid = Gid(gid.parse::<Ipv6Addr>()?.octets());
    let to = Dest { ah: side.dev.create_ah(&side.pd, gid)?, qpn: qpn.parse()?, qkey: QKEY };
    let (len, limit) = (len.parse::<usize>()?.min(LONGEST), Duration::from_secs_f64(seconds.parse()?));
    let (start, mut longest, mut messages, mut status) = (Instant::now(), Duration::ZERO, 0, DevStatus::Ok);
    while status == DevStatus::Ok && start.elapsed() < limit {
        side.bytes(0, len).iter_mut().enumerate().for_each(|(at, b)| *b = byte(messages, at));
        let posted = Instant::now();
        side.qp.send(&to, messages, &[side.slot(0, len)], None).map_err(refused)?;
        let cqe = loop {
            if let Some(cqe) = side.poll() {
                break cqe;
            }
        };
        status = cqe.status;
        longest = longest.max(posted.elapsed());
        messages += u64::from(status == DevStatus::Ok);
    }
    println!(
        "{messages} messages, last {status:?}, longest {:.3} s, end at {:.3} s, clock moved by {:.0} s",
        longest.as_secs_f64(),
        start.elapsed().as_secs_f64(),
        clocks.moved()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let _ = ucs::trace::init(&Source::from_env()?);
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &*args.iter().map(String::as_str).collect::<Vec<_>>() {
        ["serve"] => serve(),
        ["send", gid, qpn, len, seconds] => send(gid, qpn, len, seconds),
        _ => Err("udp_peer serve | udp_peer send GID QPN LEN SECONDS".into()),
    }
}
