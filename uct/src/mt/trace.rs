//! Tracer of active messages: shows every one sent or received with its bytes, and again if dropped or
//! returned.

#![allow(unsafe_code)]

use crate::api::{Am, Comp, Ep, EpTag, Error, Imm, Iov, Outcome, Sink, SrcAddr, UserRecv};
use crate::base::am::AmTable;
use std::cell::RefCell;

/// Direction or fate of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceKind {
    /// It was accepted for sending, on the endpoint with this tag.
    Sent(EpTag),
    /// It arrived.
    Received(SrcAddr),
    /// It arrived, and was dropped for want of a handler.
    Dropped(SrcAddr),
    /// Returned to the endpoint with this tag: not received, or not known to be.
    Returned(EpTag),
}

/// A message, as the tracer is shown it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TraceEvent<'a> {
    /// Direction or fate.
    pub kind: TraceKind,
    /// Active message id.
    pub id: u8,
    /// Bytes after the id; of a zcopy, the header only.
    pub head: &'a [u8],
    /// All its bytes after the id.
    pub len: usize,
}

pub(crate) type Tracer = Box<dyn FnMut(TraceEvent<'_>)>;

pub(crate) struct TracedSends<'a, E> {
    pub(crate) ep: &'a E,
    pub(crate) tracer: &'a RefCell<Tracer>,
}

impl<E: Ep> TracedSends<'_, E> {
    fn sent(&self, id: u8, head: &[u8], len: usize) {
        let kind = TraceKind::Sent(self.ep.tag());
        (self.tracer.borrow_mut())(TraceEvent { kind, id, head, len });
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

fn copied(pack: impl FnOnce(&mut [u8]) -> usize, copy: &mut Vec<u8>) -> impl FnOnce(&mut [u8]) -> usize {
    |slot| {
        let len = pack(slot);
        copy.extend_from_slice(slot.get(..len).unwrap_or_default());
        len
    }
}

pub(crate) struct TracedSink<'a, S> {
    pub(crate) tracer: &'a RefCell<Tracer>,
    pub(crate) table: Option<&'a AmTable>,
    pub(crate) then: &'a mut S,
}

impl<S> TracedSink<'_, S> {
    fn show(&self, kind: TraceKind, id: u8, head: &[u8]) {
        (self.tracer.borrow_mut())(TraceEvent { kind, id, head, len: head.len() });
    }

    fn returned(&self, ep: EpTag, sent: &[u8]) {
        if let Some((&id, head)) = sent.split_first() {
            self.show(TraceKind::Returned(ep), id, head);
        }
    }
}

impl<S: Sink> Sink for TracedSink<'_, S> {
    fn on_am(&mut self, am: Am<'_>) {
        let (source, id, head) = (am.source(), am.id(), am.data());
        self.show(TraceKind::Received(source), id, head);
        let before = self.table.map_or(0, AmTable::dropped);
        self.then.on_am(am);
        if self.table.map_or(0, AmTable::dropped) > before {
            self.show(TraceKind::Dropped(source), id, head);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::am::{CopyOnKeep, TableSink};
    use std::rc::Rc;

    #[test]
    fn dropped_and_returned_messages_are_shown_again() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let show = move |e: TraceEvent<'_>| {
            let kind = match e.kind {
                TraceKind::Sent(_) => 's',
                TraceKind::Received(_) => 'r',
                TraceKind::Dropped(_) => 'd',
                TraceKind::Returned(_) => 'b',
            };
            seen.borrow_mut().push((kind, e.id, e.head.to_vec()));
        };
        let (tracer, table) = (RefCell::new(Box::new(show) as Tracer), AmTable::default());
        table.set(1, Some(Box::new(|_| {})));
        table.set_error(Some(Box::new(|_, _| {})));
        let mut sink = TracedSink { tracer: &tracer, table: Some(&table), then: &mut TableSink(&table) };
        for packet in [b"\x01x", b"\x02x"] {
            sink.on_am(Am::new(packet, SrcAddr::default(), &CopyOnKeep));
        }
        sink.on_rnr(EpTag(5), &[3, b'y']);
        sink.on_lost(EpTag(5), Error::Cancelled, &[4, b'z']);
        let of = |kind: char, id: u8, head: u8| (kind, id, vec![head]);
        let want = [of('r', 1, b'x'), of('r', 2, b'x'), of('d', 2, b'x'), of('b', 3, b'y'), of('b', 4, b'z')];
        assert_eq!(*log.borrow(), want);
    }
}
