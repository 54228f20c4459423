//! Zcopy puts and gets that wait to be done together, since a system call costs far more than one more
//! operation in it. Endpoints add them; a poll, flush, fence or immediate operation submits them; only a poll
//! reports completions. An operation that finds no room is done at once.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use arrayvec::ArrayVec;

use super::iface::Proc;
use super::vm::{self, Direction};
use crate::api::{Comp, EpTag, Error, Iov, Outcome, Refused, Sent, Sink};
use crate::base::ep_table::EpIdx;

/// Most operations in flight of an interface, unreported completions included.
const MAX_IN_FLIGHT: usize = 256;

pub(super) struct Op<'a, M> {
    pub direction: Direction,
    pub list: &'a [Iov<'a, M>],
    pub len: usize,
    pub remote_addr: u64,
    pub ep: EpIdx,
}

type Blocks = ArrayVec<libc::iovec, { vm::MAX_BLOCKS }>;

/// The next system call to one process: one direction, and one remote block for each operation.
struct Batch {
    direction: Direction,
    local: Blocks,
    remote: Blocks,
    ops: ArrayVec<BatchedOp, { vm::MAX_BLOCKS }>,
    len: usize,
}

struct BatchedOp {
    comp: Comp,
    ep: EpIdx,
    blocks: usize,
    len: usize,
}

#[derive(Default)]
pub(super) struct ProcBatch(RefCell<Option<Box<Batch>>>);

/// A completed operation or flush that is not reported yet.
struct Finished {
    comp: Comp,
    result: Result<(), Error>,
    tag: EpTag,
}

pub(super) struct BatchQueue {
    max_ops: usize,
    max_len: usize,
    /// Processes whose batch is not empty.
    procs: RefCell<Vec<Rc<Proc>>>,
    finished: RefCell<VecDeque<Finished>>,
    in_flight: Cell<usize>,
}

impl Batch {
    fn new(direction: Direction) -> Batch {
        Batch { direction, local: ArrayVec::new(), remote: ArrayVec::new(), ops: ArrayVec::new(), len: 0 }
    }

    fn add<M>(&mut self, op: &Op<'_, M>, comp: Comp) {
        let before = self.local.len();
        self.local.extend(vm::blocks(op.list).map(|(addr, len)| vm::local_block(addr, len)));
        self.remote.push(vm::remote_block(op.remote_addr, op.len));
        self.ops.push(BatchedOp { comp, ep: op.ep, blocks: self.local.len() - before, len: op.len });
        self.len += op.len;
    }

    /// Runs the batch. A failing operation does not keep the others from being done.
    /// # Safety
    /// As [`vm::transfer`], for every operation.
    unsafe fn run(&mut self, pid: u32, mut finished: impl FnMut(BatchedOp, Result<(), Error>)) {
        let (mut local, mut remote, mut len) = (&mut self.local[..], &mut self.remote[..], self.len);
        let mut ops = self.ops.drain(..);
        while len > 0 {
            // SAFETY: the caller's promise is the same.
            let partial = match unsafe { vm::transfer_blocks(self.direction, pid, local, remote, len) } {
                Ok(()) => break,
                Err(partial) => partial,
            };
            let mut done = partial.done;
            for op in ops.by_ref() {
                local = &mut std::mem::take(&mut local)[op.blocks..];
                remote = &mut std::mem::take(&mut remote)[1..];
                len -= op.len;
                if op.len > done {
                    finished(op, Err(partial.why));
                    break;
                }
                done -= op.len;
                finished(op, Ok(()));
            }
        }
        ops.for_each(|op| finished(op, Ok(())));
        (self.len, self.local, self.remote) = (0, ArrayVec::new(), ArrayVec::new());
    }
}

impl BatchQueue {
    pub(super) fn new(max_ops: usize, max_len: usize) -> BatchQueue {
        let finished = RefCell::new(VecDeque::with_capacity(MAX_IN_FLIGHT));
        BatchQueue { max_ops, max_len, procs: RefCell::default(), finished, in_flight: Cell::new(0) }
    }

    /// Whether a poll has something to do.
    // HOT
    #[inline(always)]
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.get() > 0
    }

    /// Adds an operation to the batch of its process. False: it is to be done now; those before it have been.
    /// # Safety
    /// As [`vm::transfer`], until the operation is complete.
    // HOT
    #[inline]
    pub(super) unsafe fn add<M>(&self, proc: &Rc<Proc>, op: &Op<'_, M>, comp: Comp) -> bool {
        let blocks = op.list.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.count));
        let alone = self.max_ops == 1
            || op.len >= self.max_len
            || op.len == 0
            || blocks > vm::MAX_BLOCKS
            || self.in_flight.get() >= MAX_IN_FLIGHT;
        if alone {
            self.submit(proc);
            return false;
        }
        let mut batch_slot = proc.batch.0.borrow_mut();
        let batch = batch_slot.get_or_insert_with(|| Box::new(Batch::new(op.direction)));
        if batch.direction != op.direction || batch.local.len() + blocks > vm::MAX_BLOCKS {
            self.run(proc, batch);
            batch.direction = op.direction;
        }
        if batch.ops.is_empty() {
            self.procs.borrow_mut().push(proc.clone());
        }
        batch.add(op, comp);
        self.in_flight.set(self.in_flight.get() + 1);
        if batch.ops.len() >= self.max_ops || batch.len >= self.max_len {
            self.run(proc, batch);
        }
        true
    }

    /// Runs the batch of a process.
    // HOT
    #[inline]
    pub(super) fn submit(&self, proc: &Proc) {
        if self.is_busy() {
            self.submit_slow(proc);
        }
    }

    #[inline(never)]
    fn submit_slow(&self, proc: &Proc) {
        if let Some(batch) = &mut *proc.batch.0.borrow_mut() {
            self.run(proc, batch);
        }
    }

    pub(super) fn submit_all(&self) {
        loop {
            let Some(proc) = self.procs.borrow().last().cloned() else { return };
            self.submit_slow(&proc);
        }
    }

    fn run(&self, proc: &Proc, batch: &mut Batch) {
        if batch.ops.is_empty() {
            return;
        }
        self.procs.borrow_mut().retain(|other| !std::ptr::eq(&**other, proc));
        let mut finished = self.finished.borrow_mut();
        let mut end = |op: BatchedOp, result: Result<(), Error>| {
            if result == Err(Error::PeerDead) {
                proc.not_found.set(true);
            }
            match (op.comp, result) {
                // Without a completion a flush tells. The watch reports a death, once for each endpoint.
                (Comp::None, Ok(()) | Err(Error::PeerDead)) => self.in_flight.set(self.in_flight.get() - 1),
                (comp, result) => finished.push_back(Finished { comp, result, tag: proc.eps.tag(op.ep) }),
            }
        };
        if proc.is_dead() {
            batch.ops.drain(..).for_each(|op| end(op, Err(Error::PeerDead)));
            *batch = Batch::new(batch.direction);
            return;
        }
        // SAFETY: promised to `add` for each operation, which is in flight until here.
        unsafe { batch.run(proc.pid, end) };
    }

    /// Whether one more operation may be in flight.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.get() < MAX_IN_FLIGHT
    }

    /// Counts an operation in flight that is in no batch; [`BatchQueue::end_other`] ends it.
    pub(super) fn begin_other(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Has the next poll report an operation that was in no batch.
    pub(super) fn end_other(&self, comp: Comp, result: Result<(), Error>, tag: EpTag) {
        self.finished.borrow_mut().push_back(Finished { comp, result, tag });
    }

    /// Completes when all completions before it are reported.
    pub(super) fn flush(&self, comp: Comp) -> Outcome {
        match comp {
            _ if self.finished.borrow().is_empty() => return Ok(Sent::Done),
            Comp::None => {}
            _ if self.in_flight.get() >= MAX_IN_FLIGHT => return Err(Refused::NoResource),
            comp => {
                self.in_flight.set(self.in_flight.get() + 1);
                self.finished.borrow_mut().push_back(Finished {
                    comp,
                    result: Ok(()),
                    tag: EpTag::default(),
                });
            }
        }
        Ok(Sent::InProgress)
    }

    /// Submits all batches and reports up to `max` completions. Returns how many.
    #[inline(never)]
    pub(super) fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.submit_all();
        let mut reported = 0;
        while reported < max {
            // A callback may poll again.
            let Some(Finished { comp, result, tag }) = self.finished.borrow_mut().pop_front() else { break };
            self.in_flight.set(self.in_flight.get() - 1);
            reported += 1;
            match (comp, result) {
                (Comp::None, Err(error)) => sink.on_ep_error(tag, error),
                (comp, result) => comp.fire(result, |token, result| sink.on_comp(token, result)),
            }
        }
        reported
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use crate::api::{
        Access, Am, Comp, Completion, Ep as _, EpTag, Error, Iface as _, Iov, Md as _, Outcome, Refused,
        Sent, Sink,
    };
    use crate::cma::{Config, Ep, Iface, Rkey};

    #[derive(Default)]
    struct Reported(Vec<(u64, Result<(), Error>)>);

    impl Sink for Reported {
        fn on_am(&mut self, _: Am<'_>) {}
        fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
            self.0.push((token, result));
        }
        fn on_ep_error(&mut self, ep: EpTag, error: Error) {
            self.0.push((ep.0, Err(error)));
        }
    }

    struct Pair {
        a: Iface,
        _b: Iface,
        ep: Ep,
        remote_mem: Vec<u8>,
        rkey: Rkey,
    }

    /// A pair of interfaces and `len` bytes of the peer's that are not mapped.
    fn pair(config: &Config, len: usize) -> Pair {
        let (a, b) = (Iface::open(config).unwrap(), Iface::open(config).unwrap());
        let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
        let mut remote_mem = vec![0u8; len];
        // SAFETY: kept with the key, and read between polls only.
        let mem = unsafe { b.md().register(remote_mem.as_mut_ptr(), len, Access::ALL) }.unwrap();
        let rkey = a.md().unpack_rkey(&b.md().pack_rkey(&mem).unwrap()).unwrap();
        Pair { a, _b: b, ep, remote_mem, rkey }
    }

    impl Pair {
        fn at(&self, offset: usize) -> u64 {
            self.remote_mem.as_ptr().wrapping_add(offset).addr() as u64
        }

        fn put(&self, from: &'static [u8], offset: usize, comp: Comp) -> Outcome {
            let iov = [Iov::new(from.as_ptr(), from.len(), None)];
            // SAFETY: `from` is static.
            unsafe { self.ep.put_zcopy(&iov, self.at(offset), &self.rkey, comp) }
        }

        fn remote_mem(&self) -> &[u8] {
            std::hint::black_box(&self.remote_mem)
        }
    }

    fn oks(tokens: impl IntoIterator<Item = u64>) -> Vec<(u64, Result<(), Error>)> {
        tokens.into_iter().map(|token| (token, Ok(()))).collect()
    }

    #[test]
    fn poll_submits_and_reports_up_to_max() {
        let p = pair(&Config::default(), 10);
        for n in 0..10 {
            assert_eq!(p.put(&[7], n, Comp::Token(n as u64)), Ok(Sent::InProgress));
        }
        assert!(!p.a.is_idle() && p.remote_mem() == [0; 10]);
        let mut reported = Reported::default();
        assert_eq!((p.a.poll(3, &mut reported), p.a.poll(0, &mut reported)), (3, 0));
        assert_eq!((p.remote_mem(), reported.0.as_slice()), ([7; 10].as_slice(), oks(0..3).as_slice()));
        assert_eq!(p.ep.flush(Comp::None), Ok(Sent::InProgress), "seven are not reported");
        assert_eq!(p.ep.flush(Comp::Token(10)), Ok(Sent::InProgress));
        assert_eq!((p.a.poll(64, &mut reported), p.a.is_idle()), (8, true));
        assert_eq!(reported.0, oks(0..11));
        assert_eq!((p.ep.flush(Comp::Token(11)), p.a.flush(Comp::None)), (Ok(Sent::Done), Ok(Sent::Done)));
    }

    #[test]
    fn full_batches_and_long_operations_run_at_once() {
        let config = Config { batch: 4, batch_bytes: 100, ..Config::default() };
        let p = pair(&config, 200);
        for n in 0..4 {
            assert_eq!(p.put(&[1], n, Comp::None), Ok(Sent::InProgress));
            assert_eq!(p.remote_mem()[..4], if n < 3 { [0; 4] } else { [1; 4] });
        }
        assert!(p.a.is_idle(), "nothing to report");
        assert_eq!(p.put(&[2; 60], 0, Comp::None), Ok(Sent::InProgress));
        assert_eq!(p.put(&[3; 60], 60, Comp::None), Ok(Sent::InProgress));
        assert_eq!((p.remote_mem()[59], p.remote_mem()[60], p.remote_mem()[120]), (2, 3, 0));
        assert_eq!(p.put(&[4; 10], 0, Comp::None), Ok(Sent::InProgress));
        assert_eq!(p.put(&[5; 100], 5, Comp::None), Ok(Sent::Done));
        assert_eq!((p.remote_mem()[4], p.remote_mem()[5]), (4, 5), "in this order");
        let alone = pair(&Config { batch: 1, ..Config::default() }, 8);
        assert_eq!(
            (alone.put(&[1; 8], 0, Comp::Token(1)), alone.remote_mem()),
            (Ok(Sent::Done), &[1; 8][..])
        );
    }

    #[test]
    fn operations_stay_in_order() {
        let p = pair(&Config::default(), 64);
        let mut back = [[0u8; 8]; 4];
        let mut get = |n: usize| {
            let iov = [Iov::new(back[n].as_mut_ptr().cast_const(), 8, None)];
            // SAFETY: not read before the flush, or the drop of the endpoint.
            let got = unsafe { p.ep.get_zcopy(&iov, p.at(0), &p.rkey, Comp::None) };
            assert_eq!(got, Ok(Sent::InProgress));
        };
        get(0);
        let _ = p.put(&[1; 8], 0, Comp::None).unwrap();
        get(1);
        let _ = p.ep.put_short(&[2; 4], p.at(0), &p.rkey).unwrap();
        get(2);
        assert_eq!(p.ep.put_bcopy(2, |batch_slot| (batch_slot.fill(3), 2).1, p.at(0), &p.rkey), Ok(2));
        get(3);
        let _ = p.ep.fence().unwrap();
        assert_eq!(back, [[0; 8], [1; 8], [2, 2, 2, 2, 1, 1, 1, 1], [3, 3, 2, 2, 1, 1, 1, 1]]);
        let _ = p.put(&[9; 8], 8, Comp::None).unwrap();
        drop(p.ep);
        assert_eq!(p.remote_mem[8..16], [9; 8]);
    }

    #[test]
    fn only_failing_operations_report_errors() {
        const FIVES: &[u8] = &[5; 8];
        let p = pair(&Config::default(), 1);
        let page = ucs::mem::page::page_size();
        let map = ucs::mem::Mapping::new(2 * page, Default::default()).unwrap();
        // SAFETY: the second page of a mapping of this test, never touched again.
        unsafe {
            rustix::mm::mprotect(
                map.as_ptr().wrapping_add(page).cast(),
                page,
                rustix::mm::MprotectFlags::empty(),
            )
        }
        .unwrap();
        let base = map.as_ptr().addr() as u64;
        // SAFETY: nobody reads the memory meanwhile.
        let mem = unsafe { p._b.md().register(map.as_ptr(), 2 * page, Access::ALL) }.unwrap();
        let rkey = p.a.md().unpack_rkey(&p._b.md().pack_rkey(&mem).unwrap()).unwrap();
        p.ep.set_tag(EpTag(77));
        // How far each operation of 8 bytes reaches into the unmapped second page.
        for beyond in [[8, 0, 0, 0], [0, 3, 0, 0], [0, 0, 8, 8], [0, 0, 0, 1], [8, 8, 8, 8]] {
            let mut reported = Reported::default();
            // SAFETY: the first page, which the kernel does not write now.
            unsafe { map.as_ptr().write_bytes(0, page) };
            let mut want = Vec::new();
            for (n, beyond) in (0..).zip(beyond) {
                let at = match beyond {
                    0 => base + n * 8,
                    _ => base + page as u64 - 8 + beyond,
                };
                let iov = [Iov::new(FIVES.as_ptr(), 3, None), Iov::new(FIVES.as_ptr(), 5, None)];
                let comp = if n == 0 { Comp::None } else { Comp::Token(n) };
                // SAFETY: constants.
                let put = unsafe { p.ep.put_zcopy(&iov, at, &rkey, comp) };
                assert_eq!(put, Ok(Sent::InProgress));
                match (n, beyond) {
                    (0, 0) => {}
                    (_, 0) => want.push((n, Ok(()))),
                    (0, _) => want.push((77, Err(Error::RemoteAccess))),
                    _ => want.push((n, Err(Error::RemoteAccess))),
                }
            }
            p.a.poll(64, &mut reported);
            assert_eq!(reported.0, want, "{beyond:?}");
            for (n, beyond) in beyond.into_iter().enumerate() {
                // SAFETY: in the first page, which nobody writes now.
                let first = unsafe { map.as_ptr().wrapping_add(n * 8).read_volatile() };
                assert_eq!(first, if beyond == 0 { 5 } else { 0 }, "{beyond:?} {n}");
            }
        }
    }

    #[test]
    fn operations_beyond_the_limit_run_at_once() {
        let p = pair(&Config::default(), 8);
        let started =
            (0..).take_while(|&n| p.put(&[1; 8], 0, Comp::Token(n)) == Ok(Sent::InProgress)).count();
        assert_eq!(started, super::MAX_IN_FLIGHT);
        assert_eq!(p.put(&[2; 8], 0, Comp::Token(0)), Ok(Sent::Done));
        assert_eq!(p.remote_mem(), [2; 8]);
        assert_eq!(p.ep.flush(Comp::Token(0)), Err(Refused::NoResource));
        let mut reported = Reported::default();
        assert_eq!(p.a.poll(1000, &mut reported), started);
        assert_eq!(reported.0, oks(0..started as u64));
    }

    #[test]
    fn callbacks_may_start_operations() {
        let p = Rc::new(pair(&Config::default(), 8));
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (q, s) = (p.clone(), seen.clone());
        let comp = Completion::new(1, move |result| {
            s.borrow_mut().push(result);
            assert_eq!(q.put(&[2; 8], 0, Comp::None), Ok(Sent::InProgress));
            assert_eq!(q.ep.flush(Comp::None), Ok(Sent::Done));
            assert_eq!(q.remote_mem(), [2; 8]);
        });
        let _ = p.put(&[1; 8], 0, Comp::Handle(comp.clone())).unwrap();
        assert_eq!(p.a.progress(64), 1);
        assert_eq!((seen.borrow().as_slice(), p.a.is_idle()), ([Ok(())].as_slice(), true));
    }

    #[test]
    fn batched_operation_wakes_a_sleeper() {
        let p = pair(&Config::default(), 8);
        assert_eq!(p.a.arm(Default::default()), Ok(true));
        let readable = |p: &Pair| {
            let fd = p.a.event_fd().unwrap();
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
        };
        assert!(!readable(&p));
        let _ = p.put(&[1; 8], 0, Comp::Token(1)).unwrap();
        assert!(readable(&p));
        assert_eq!(p.a.arm(Default::default()), Ok(false));
        assert_eq!(p.a.poll(64, &mut Reported::default()), 1);
        assert_eq!(p.a.arm(Default::default()), Ok(true));
        assert!(!readable(&p));
    }
}
