//! The tracer of active messages: every one that leaves or arrives is shown to a function, with its id and its bytes, and
//! once more if it comes to nothing. As a decorator of interfaces of one thread; what threads share (`mt`) has a place for a
//! tracer of its own, and shows by the same `Watched` and `Shown`.

use super::forward::{forward_iface, forward_memory};
use crate::api::{
    AddrBuf, Am, AmHandler, AtomicOp, Comp, ConnectError, Ep, EpTag, Error, Events, Iface, IfaceAttr, Imm,
    ImmHandler, Iov, Outcome, Pending, PendingQueued, RemoteIov, Sink, Source, UserRecv, Word,
};
use crate::base::am::{AmTable, TableSink};
use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

/// What happened to a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// It was accepted for sending, on the endpoint with this tag.
    Sent(EpTag),
    /// It arrived.
    Received(Source),
    /// It arrived, and was dropped for want of a handler.
    Dropped(Source),
    /// It came back to the endpoint with this tag: nobody took it, or nobody can say who did.
    Returned(EpTag),
}

/// A message, as the tracer is shown it.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// Which way it passed.
    pub passed: Passed,
    /// Its id.
    pub id: u8,
    /// Its bytes after the id; of a zcopy, the header only.
    pub head: &'a [u8],
    /// All its bytes after the id.
    pub len: usize,
}

pub(crate) type Tracer = Box<dyn FnMut(TraceEvent<'_>)>;

/// An interface whose active messages are shown to a tracer.
pub struct Traced<I: Iface> {
    inner: I,
    tracer: Rc<RefCell<Tracer>>,
    handlers: AmTable,
}

/// An endpoint of it.
pub struct TracedEp<E> {
    inner: E,
    tracer: Rc<RefCell<Tracer>>,
}

impl<I: Iface> Traced<I> {
    /// Shows all active messages of `inner` to `tracer`, which must not use the interface.
    pub fn new(inner: I, tracer: impl FnMut(TraceEvent<'_>) + 'static) -> Self {
        Traced { inner, tracer: Rc::new(RefCell::new(Box::new(tracer))), handlers: AmTable::default() }
    }

    /// The interface inside.
    pub fn inner(&self) -> &I {
        &self.inner
    }

    /// The same, which is always there.
    #[inline(always)]
    fn inside(&self) -> Result<&I, Error> {
        Ok(self.inner())
    }

    fn wrap(&self, inner: I::Ep) -> TracedEp<I::Ep> {
        TracedEp { inner, tracer: self.tracer.clone() }
    }
}

impl<E: Ep> TracedEp<E> {
    /// The endpoint inside, which is always there.
    #[inline(always)]
    fn inside(&self) -> Result<&E, Error> {
        Ok(&self.inner)
    }

    fn watched(&self) -> Watched<'_, E> {
        Watched { ep: &self.inner, tracer: &self.tracer }
    }
}

/// An endpoint whose sends are shown.
pub(crate) struct Watched<'a, E> {
    pub(crate) ep: &'a E,
    pub(crate) tracer: &'a RefCell<Tracer>,
}

impl<E: Ep> Watched<'_, E> {
    fn sent(&self, id: u8, head: &[u8], len: usize) {
        let passed = Passed::Sent(self.ep.tag());
        (self.tracer.borrow_mut())(TraceEvent { passed, id, head, len });
    }

    pub(crate) fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        let sent = self.ep.am_short(id, header, payload)?;
        self.sent(id, &[&header.to_le_bytes(), payload].concat(), 8 + payload.len());
        Ok(sent)
    }

    pub(crate) fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        let sent = self.ep.am_short_iov(id, iov)?;
        let bytes = iov.concat();
        self.sent(id, &bytes, bytes.len());
        Ok(sent)
    }

    pub(crate) fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Outcome<usize> {
        // The transport's buffer is out of sight once the call is over.
        let mut copy = Vec::new();
        let sent = self.ep.am_bcopy(id, copied(pack, &mut copy))?;
        self.sent(id, &copy, copy.len());
        Ok(sent)
    }

    pub(crate) fn am_packet(&self, max: usize, pack: impl FnOnce(&mut [u8]) -> usize) -> Outcome<usize> {
        let mut copy = Vec::new();
        let sent = self.ep.am_packet(max, copied(pack, &mut copy))?;
        if let Some((&id, bytes)) = copy.split_first() {
            self.sent(id, bytes, bytes.len());
        }
        Ok(sent)
    }

    /// # Safety
    /// As for [`Ep::am_zcopy`].
    pub(crate) unsafe fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        iov: &[Iov<'_, E::Mem>],
        comp: Comp,
    ) -> Outcome {
        // SAFETY: the caller's promise is the same.
        let sent = unsafe { self.ep.am_zcopy(id, header, iov, comp) }?;
        self.sent(id, header, header.len() + iov.iter().map(Iov::total).sum::<usize>());
        Ok(sent)
    }
}

/// What `pack` writes, and once more into `copy`.
fn copied(pack: impl FnOnce(&mut [u8]) -> usize, copy: &mut Vec<u8>) -> impl FnOnce(&mut [u8]) -> usize {
    |slot| {
        let len = pack(slot);
        copy.extend_from_slice(slot.get(..len).unwrap_or_default());
        len
    }
}

/// The sink behind which another one stands.
pub(crate) struct Shown<'a, S> {
    pub(crate) tracer: &'a RefCell<Tracer>,
    /// Where it hands messages to, if that may drop them.
    pub(crate) table: Option<&'a AmTable>,
    pub(crate) then: &'a mut S,
}

impl<S> Shown<'_, S> {
    fn show(&self, passed: Passed, id: u8, head: &[u8]) {
        (self.tracer.borrow_mut())(TraceEvent { passed, id, head, len: head.len() });
    }

    /// A packet that came back.
    fn returned(&self, ep: EpTag, packet: &[u8]) {
        if let Some((&id, head)) = packet.split_first() {
            self.show(Passed::Returned(ep), id, head);
        }
    }
}

impl<S: Sink> Sink for Shown<'_, S> {
    fn on_am(&mut self, am: Am<'_>) {
        let (source, id, head) = (am.source(), am.id(), am.data());
        self.show(Passed::Received(source), id, head);
        let before = self.table.map_or(0, AmTable::dropped);
        self.then.on_am(am);
        if self.table.map_or(0, AmTable::dropped) > before {
            self.show(Passed::Dropped(source), id, head);
        }
    }

    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        self.then.on_comp(token, result);
    }

    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.then.on_ep_error(ep, error);
    }

    fn on_rnr(&mut self, ep: EpTag, packet: &[u8]) {
        self.returned(ep, packet);
        self.then.on_rnr(ep, packet);
    }

    fn on_user_rnr(&mut self, ep: EpTag, data: &[u8], imm: Option<u32>) {
        self.then.on_user_rnr(ep, data, imm);
    }

    fn on_lost(&mut self, ep: EpTag, error: Error, packet: &[u8]) {
        self.returned(ep, packet);
        self.then.on_lost(ep, error, packet);
    }

    fn on_user_recv(&mut self, token: u64, bare: UserRecv) {
        self.then.on_user_recv(token, bare);
    }

    fn on_imm(&mut self, imm: Imm) {
        self.then.on_imm(imm);
    }
}

impl<I: Iface> Iface for Traced<I> {
    type Md = I::Md;
    type Ep = TracedEp<I::Ep>;

    fn attr(&self) -> &IfaceAttr {
        self.inner.attr()
    }

    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Self::Ep, ConnectError> {
        self.inner.connect(device, iface).map(|ep| self.wrap(ep))
    }

    fn create_ep(&self) -> Result<Self::Ep, Error> {
        self.inner.create_ep().map(|ep| self.wrap(ep))
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        self.handlers.set(id, handler);
    }

    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(EpTag, Error)>>) {
        self.handlers.set_error(handler);
    }

    fn set_imm_handler(&self, handler: Option<ImmHandler>) {
        self.handlers.set_imm(handler);
    }

    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        self.inner.poll(max, &mut Shown { tracer: &self.tracer, table: None, then: sink })
    }

    fn progress(&self, max: usize) -> usize {
        if self.handlers.is_running() {
            return 0;
        }
        let (tracer, table) = (&*self.tracer, Some(&self.handlers));
        self.inner.poll(max, &mut Shown { tracer, table, then: &mut TableSink(&self.handlers) })
    }

    forward_iface!(inner, inside);
}

impl<E: Ep> Ep for TracedEp<E> {
    type Mem = E::Mem;
    type Rkey = E::Rkey;

    fn tag(&self) -> EpTag {
        self.inner.tag()
    }

    fn set_tag(&self, tag: EpTag) {
        self.inner.set_tag(tag);
    }

    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        self.watched().am_short(id, header, payload)
    }

    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        self.watched().am_short_iov(id, iov)
    }

    fn am_bcopy<F: FnOnce(&mut [u8]) -> usize>(&self, id: u8, pack: F) -> Outcome<usize> {
        self.watched().am_bcopy(id, pack)
    }

    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        self.watched().am_packet(max, pack)
    }

    fn max_bcopy(&self) -> usize {
        self.inner.max_bcopy()
    }

    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, E::Mem>], comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        unsafe { self.watched().am_zcopy(id, header, iov, comp) }
    }

    forward_memory!(inside);

    fn flush(&self, comp: Comp) -> Outcome {
        self.inner.flush(comp)
    }

    fn fence(&self) -> Outcome {
        self.inner.fence()
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        self.inner.pending_add(op)
    }

    fn pending_purge(&self, each: &mut dyn FnMut(Pending)) {
        self.inner.pending_purge(each);
    }

    fn ensure_connected(&self) -> Result<(), ConnectError> {
        self.inner.ensure_connected()
    }

    fn begin_connecting(&self) -> Result<bool, ConnectError> {
        self.inner.begin_connecting()
    }

    fn check(&self, comp: Comp) -> Outcome {
        self.inner.check(comp)
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        self.inner.is_connected(device, iface)
    }

    fn ep_addr(&self) -> Result<AddrBuf, Error> {
        self.inner.ep_addr()
    }

    fn connect_to_ep(&self, device: &[u8], iface: &[u8], ep: &[u8]) -> Result<(), ConnectError> {
        self.inner.connect_to_ep(device, iface, ep)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::loopback;

    /// Sent, received, dropped or come back.
    fn way(passed: Passed) -> char {
        match passed {
            Passed::Sent(_) => 's',
            Passed::Received(_) => 'r',
            Passed::Dropped(_) => 'd',
            Passed::Returned(_) => 'b',
        }
    }

    #[test]
    fn what_comes_to_nothing_is_seen_again() {
        struct Deaf;
        impl Sink for Deaf {
            fn on_am(&mut self, _: Am<'_>) {}
            fn on_comp(&mut self, _: u64, _: Result<(), Error>) {}
            fn on_ep_error(&mut self, _: EpTag, _: Error) {}
        }
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let inner = loopback::Iface::open(&Default::default()).unwrap();
        let iface = Traced::new(inner, move |e: TraceEvent<'_>| {
            seen.borrow_mut().push((way(e.passed), e.id, e.head.to_vec()));
        });
        iface.set_am_handler(1, Some(Box::new(|_| {})));
        let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
        for id in [1, 2] {
            ep.am_short_iov(id, &[b"x"]).map(drop).unwrap();
        }
        iface.progress(10);
        let mut shown = Shown { tracer: &iface.tracer, table: None, then: &mut Deaf };
        shown.on_rnr(EpTag(5), &[3, b'y']);
        shown.on_lost(EpTag(5), Error::Cancelled, &[4, b'z']);
        let of = |way: char, id: u8, head: u8| (way, id, vec![head]);
        let want = [
            of('s', 1, b'x'),
            of('s', 2, b'x'),
            of('r', 1, b'x'),
            of('r', 2, b'x'),
            of('d', 2, b'x'),
            of('b', 3, b'y'),
            of('b', 4, b'z'),
        ];
        assert_eq!(*log.borrow(), want);
    }

    #[test]
    fn every_message_is_seen_both_ways() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let inner = loopback::Iface::open(&Default::default()).unwrap();
        let iface = Traced::new(inner, move |e: TraceEvent<'_>| {
            seen.borrow_mut().push((way(e.passed), e.id, e.head.to_vec(), e.len));
        });
        let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
        ep.am_short(1, 0x0201, b"x").map(drop).unwrap();
        ep.am_short_iov(2, &[b"ab", b"c"]).map(drop).unwrap();
        ep.am_bcopy(3, |slot| {
            slot[..2].copy_from_slice(b"hi");
            2
        })
        .unwrap();
        let body = *b"body";
        // SAFETY: `body` outlives the call, which is done when it returns.
        unsafe { ep.am_zcopy(4, b"h", &[Iov::new(body.as_ptr(), 4, None)], Comp::None) }.map(drop).unwrap();
        assert!(ep.am_packet(1 << 30, |_| 0).is_err(), "refused: not shown");
        for id in 1..5 {
            iface.set_am_handler(id, Some(Box::new(|_| {})));
        }
        assert_eq!(iface.progress(10), 4);
        let short = vec![1, 2, 0, 0, 0, 0, 0, 0, b'x'];
        let want = [
            ('s', 1, short.clone(), 9),
            ('s', 2, b"abc".to_vec(), 3),
            ('s', 3, b"hi".to_vec(), 2),
            ('s', 4, b"h".to_vec(), 5),
            ('r', 1, short, 9),
            ('r', 2, b"abc".to_vec(), 3),
            ('r', 3, b"hi".to_vec(), 2),
            ('r', 4, b"hbody".to_vec(), 5),
        ];
        assert_eq!(*log.borrow(), want);
    }
}
