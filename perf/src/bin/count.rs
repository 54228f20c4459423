//! Does N small operations under an instruction counter, whose counts repeat to the last digit on a busy
//! machine too. `--calibrate` does everything but the operations: the difference of the two counts divided by
//! N is instructions per operation. `perf/README.md` has the command.

use clap::{Parser, ValueEnum};
use perf::engine_pair::EnginePair;
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use ucp::{
    Access, AmParams, AtomicOp, CompletionQueue, Context, EpParams, Match, OpParams, OpStatus, PeerId,
    RecvStatus, RequestTable, SendParams, StreamRecvMode, TAG_MASK_FULL,
};
use ucs::config::Source;
use uct::any::Visit;
use uct::api::{AllocReq, Am, Ep as _, EpTag, Error, Iface, Md, Memory, Sent, Sink};

const WINDOW: u64 = 16;

/// All but `engine`, `request` and `efa-fadd` go through the shared memory of `posix`, from a process to
/// itself.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Operation {
    /// A tagged message through two engines joined by queues, no transport
    Engine,
    /// A request of a receive that ends later: started, ended, its status taken
    Request,
    /// A tagged message: receive posted, sent, delivered, matched, completed, tested
    Tag,
    /// A tagged message as `tag` has it, with the ends of receive and send read from a completion queue
    TagQueue,
    /// A get by ucp, of memory that ucp has allocated
    Get,
    /// A put by ucp, to such memory
    Put,
    /// A fetching add by ucp, to such memory: the processor carries it out
    Fadd,
    /// A fetching add by ucp over the software EFA device: in packets
    EfaFadd,
    /// A poll of a worker with nothing to do
    Idle,
    /// An active message of ucp: sent, delivered, handled
    UcpAm,
    /// Bytes of a stream: receive posted, sent, delivered, tested
    Stream,
    /// An active message of uct, sent and delivered
    Am,
    /// A put of uct
    UctPut,
    /// A get of uct
    UctGet,
    /// A poll of an interface with nothing to do
    UctIdle,
    /// An endpoint of uct to an interface that has been reached before, made and dropped
    UctEp,
}

/// Does small operations, for instruction counts.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Operation.
    #[arg(value_enum, default_value = "engine")]
    operation: Operation,
    /// How often.
    #[arg(long, short = 'n', default_value_t = 100_000)]
    times: u64,
    /// Bytes each; at most 8000.
    #[arg(long, short = 's', default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=8000))]
    size: u32,
    /// Tagged messages under way at a time.
    #[arg(long, short = 'w', default_value_t = WINDOW, value_parser = clap::value_parser!(u64).range(1..=64))]
    window: u64,
    /// Set up and do nothing.
    #[arg(long)]
    calibrate: bool,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    let (size, times) = (args.size as usize, if args.calibrate { 0 } else { args.times });
    match args.operation {
        Operation::Engine => engine(size, times),
        Operation::Request => requests(size, times, args.window),
        Operation::Fadd => fetch_add("posix", times)?,
        Operation::EfaFadd => fetch_add("efa", times)?,
        Operation::Tag
        | Operation::TagQueue
        | Operation::UcpAm
        | Operation::Stream
        | Operation::Get
        | Operation::Put
        | Operation::Idle => protocols(args.operation, size, times, args.window)?,
        _ => uct::any::open("posix", "memory", &Source::empty())?.visit(UctOperations {
            operation: args.operation,
            size,
            times,
        })?,
    }
    tools_common::out::line(format!("{times} operations of {size} bytes"));
    Ok(())
}

fn engine(size: usize, times: u64) {
    let (mut pair, buf) = (EnginePair::new(), vec![7u8; size]);
    for tag in 0..times {
        pair.recv(black_box(tag), u64::MAX);
        assert!(pair.send(tag, black_box(&buf)), "an empty queue has room");
        pair.deliver();
        assert!(pair.received().is_some(), "message {tag} was not received");
    }
}

fn requests(size: usize, times: u64, window: u64) {
    let mut table = RequestTable::default();
    let first = table.start();
    let mut running = [first; 64];
    let running = &mut running[..window as usize];
    for round in 0..times / window {
        for request in &mut *running {
            *request = table.start();
        }
        for id in &*running {
            table.end(*id, RecvStatus { len: size, tag: round, from: PeerId(0), cq_data: None });
        }
        for id in &*running {
            assert!(table.take(*id).is_some_and(|status| status.tag == round), "the message of this round");
        }
    }
}

fn protocols(operation: Operation, size: usize, times: u64, window: u64) -> Result<(), Failure> {
    let worker = Context::configured(Source::empty().with("UCX_TLS", "posix"))?.worker()?;
    let ep = worker.connect(&worker.address(), EpParams::default())?;
    let (out, mut back) = (vec![7u8; size], vec![0u8; size]);
    let mem = worker.mem_alloc(size.max(1), Access::all())?;
    let rkey = ep.unpack_rkey(&mem.pack_rkey())?;
    // Both sides have exchanged handshakes before anything is counted.
    ep.tag_send_blocking(0, &out)?;
    worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut back)?;
    let params = SendParams { tag: Some(1), ..SendParams::default() };
    let mut running = Vec::with_capacity(window as usize);
    match operation {
        Operation::Get => {
            (0..times).try_for_each(|_| ep.get_blocking(black_box(&mut back), mem.addr(), &rkey))?
        }
        Operation::Put => (0..times).try_for_each(|_| ep.put_blocking(black_box(&out), mem.addr(), &rkey))?,
        Operation::Idle => (0..times).for_each(|_| assert_eq!(worker.progress(), 0)),
        Operation::UcpAm => {
            let come = Rc::new(Cell::new(0));
            let counts = come.clone();
            worker.set_am_handler(1, move |message| {
                black_box(message.data());
                counts.set(counts.get() + 1);
            });
            let params = AmParams::default();
            for sent in 1..=times {
                // SAFETY: `out` outlives the send and does not change.
                let started = unsafe { ep.am_send_raw(1, &[], out.as_ptr(), size, &params) }?;
                assert_eq!(started, OpStatus::Done(()), "there is room for one");
                while come.get() < sent {
                    worker.progress();
                }
            }
        }
        Operation::Stream => {
            for _ in 0..times {
                // SAFETY: `back` outlives the receive, which ends below, and is not read before.
                let id = unsafe {
                    ep.stream_recv_raw(back.as_mut_ptr(), size, StreamRecvMode::WaitAll, &OpParams::default())
                }?;
                // SAFETY: `out` outlives the send and does not change.
                let started = unsafe { ep.stream_send_raw(out.as_ptr(), size, &OpParams::default()) }?;
                assert_eq!(started, OpStatus::Done(()), "there is room for one");
                while worker.test(id).transpose()?.is_none() {
                    worker.progress();
                }
            }
        }
        Operation::TagQueue => {
            let queue = CompletionQueue::<()>::new(&worker, 2 * window as u32);
            for _ in 0..times / window {
                for n in 0..window {
                    // SAFETY: `back` outlives the receive, which ends below, and is not read before.
                    let started = unsafe {
                        worker.recv_raw(
                            back.as_mut_ptr(),
                            size,
                            Match::tagged(1, TAG_MASK_FULL),
                            &OpParams::default(),
                        )
                    };
                    queue.track_raw(started, n)?;
                }
                for n in 0..window {
                    // SAFETY: `out` outlives the send and does not change.
                    queue.track_raw(unsafe { ep.send_raw(out.as_ptr(), size, &params) }, n)?;
                }
                let mut ended = 0;
                while ended < 2 * window {
                    match queue.read() {
                        Some(end) => ended += u64::from(end.result.map(|_| true)?),
                        None => drop(worker.progress()),
                    }
                }
            }
        }
        _ => {
            for _ in 0..times / window {
                for _ in 0..window {
                    // SAFETY: `back` outlives the receive, which ends below, and is not read before.
                    let started = unsafe {
                        worker.recv_raw(
                            back.as_mut_ptr(),
                            size,
                            Match::tagged(1, TAG_MASK_FULL),
                            &OpParams::default(),
                        )
                    }?;
                    if let OpStatus::InProgress(id) = started {
                        running.push(id);
                    }
                }
                for _ in 0..window {
                    // SAFETY: `out` outlives the send and does not change.
                    let sent = unsafe { ep.send_raw(out.as_ptr(), size, &params) }?;
                    assert_eq!(sent, OpStatus::Done(()), "there is room for a window");
                }
                while let Some(&id) = running.last() {
                    match worker.test(id) {
                        Some(ended) => drop((ended?, running.pop())),
                        None => drop(worker.progress()),
                    }
                }
            }
        }
    }
    Ok(())
}

/// Over `posix` to memory that is mapped, else to memory of the heap.
#[inline(never)]
fn fetch_add(transport: &str, times: u64) -> Result<(), Failure> {
    let worker = Context::configured(Source::empty().with("UCX_TLS", transport))?.worker()?;
    let ep = worker.connect(&worker.address(), EpParams::default())?;
    let mem = if transport == "posix" {
        worker.mem_alloc(8, Access::all())?
    } else {
        let counter = vec![0u64].leak();
        // SAFETY: nobody else has a reference to this memory, which is never freed.
        unsafe { worker.mem_map(counter.as_mut_ptr().cast(), 8, Access::all()) }?
    };
    let rkey = ep.unpack_rkey(&mem.pack_rkey())?;
    for n in 0..=times {
        black_box(ep.atomic_fetch_blocking(AtomicOp::Sum, black_box(n), mem.addr(), &rkey)?);
    }
    Ok(())
}

struct UctOperations {
    operation: Operation,
    size: usize,
    times: u64,
}

struct Count(u64);

impl Sink for Count {
    #[inline]
    fn on_am(&mut self, am: Am<'_>) {
        self.0 += am.data().len() as u64;
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, error: Error) {
        panic!("{error}");
    }
}

impl Visit for UctOperations {
    type Out = Result<(), Failure>;

    fn visit<I: Iface>(self, iface: I) -> Result<(), Failure> {
        let connect = || iface.connect(&iface.device_addr(), &iface.iface_addr());
        let (ep, md) = (connect()?, iface.md());
        ep.ensure_connected()?;
        let mem = md.alloc(&AllocReq::new(self.size.max(64), "count"))?;
        let (to, rkey) = (mem.addr().addr() as u64, md.unpack_rkey(&md.pack_rkey(&mem)?)?);
        let (out, mut back, mut count) = (vec![7u8; self.size.max(8)], vec![0u8; self.size], Count(0));
        let bytes = black_box(&out[..self.size]);
        for _ in 0..self.times {
            match self.operation {
                Operation::Am => {
                    assert_eq!(ep.am_short(1, 7, &out[8..]), Ok(Sent::Done));
                    assert_eq!(iface.poll(8, &mut count), 1);
                }
                Operation::UctPut => assert_eq!(ep.put_short(bytes, to, &rkey), Ok(Sent::Done)),
                Operation::UctGet => {
                    assert_eq!(ep.get_short(black_box(&mut back), to, &rkey), Ok(Sent::Done))
                }
                Operation::UctEp => drop(connect()?),
                _ => assert_eq!(iface.poll(8, &mut count), 0),
            }
        }
        Ok(())
    }
}
