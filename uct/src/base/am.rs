//! The table of active-message handlers of an interface; [`TableSink`] is what `Iface::progress` polls into.
//! Messages without a handler are counted and dropped; handlers never nest.

#![allow(unsafe_code)]

use crate::api::{Am, AmHandler, EpTag, Error, Imm, ImmHandler, Keep, RecvDesc, Sink};
use std::cell::{Cell, UnsafeCell};

pub type ErrorHandler = Box<dyn FnMut(EpTag, Error)>;

const IDLE: u16 = u16::MAX;

pub struct AmTable {
    /// A writer has checked that the handler is not running; `dispatch` alone runs one at a time.
    handlers: Box<[UnsafeCell<Option<AmHandler>>; 256]>,
    on_error: Cell<Option<ErrorHandler>>,
    on_imm: Cell<Option<ImmHandler>>,
    running: Cell<u16>,
    replacement: Cell<Option<Option<AmHandler>>>,
    has_replacement: Cell<bool>,
    dropped: Cell<u64>,
}

impl Default for AmTable {
    fn default() -> Self {
        AmTable {
            handlers: Box::new([const { UnsafeCell::new(None) }; 256]),
            on_error: Cell::new(None),
            on_imm: Cell::new(None),
            running: Cell::new(IDLE),
            replacement: Cell::new(None),
            has_replacement: Cell::new(false),
            dropped: Cell::new(0),
        }
    }
}

impl AmTable {
    /// Registers or removes the handler of `id`. May be called from a handler, also for its own id.
    pub fn set(&self, id: u8, handler: Option<AmHandler>) {
        if self.running.get() == u16::from(id) {
            self.has_replacement.set(true);
            return self.replacement.set(Some(handler));
        }
        // SAFETY: this handler is not running, so nobody has a reference to its row; none is kept beyond the
        // exchange.
        let old = unsafe { std::mem::replace(&mut *self.handlers[usize::from(id)].get(), handler) };
        // What it has captured is user code's, and may come here too.
        drop(old);
    }

    /// Sets or removes the handler of failures without a completion.
    pub fn set_error(&self, handler: Option<ErrorHandler>) {
        self.on_error.set(handler);
    }

    /// Sets or removes the handler of immediates.
    pub fn set_imm(&self, handler: Option<ImmHandler>) {
        self.on_imm.set(handler);
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Hands a message to its handler; drops it while one is running. Inlined so that the message is built
    /// where the handler reads it: a store-forwarding stall costs as much as all else here.
    // HOT
    #[inline(always)]
    pub fn dispatch(&self, am: Am<'_>) {
        let id = am.id();
        self.dispatch_as(id, am);
    }

    /// As [`dispatch`](Self::dispatch), for a caller that has read the id and goes by it.
    // HOT
    #[inline(always)]
    pub fn dispatch_as(&self, id: u8, am: Am<'_>) {
        if self.is_running() {
            return self.drop_one(id);
        }
        self.running.set(u16::from(id));
        // Also if it panics: the next message is not to be lost with this one.
        let _running = Running(self);
        // SAFETY: no handler was running, so nobody has a reference to a row; while this one runs, `set`
        // leaves its row alone and `dispatch` does not get here.
        match unsafe { &mut *self.handlers[usize::from(id)].get() } {
            Some(handler) => handler(am),
            None => self.drop_one(id),
        }
    }

    /// Whether a handler of messages is running: a poll now would be one within a poll.
    // HOT
    #[inline(always)]
    pub fn is_running(&self) -> bool {
        self.running.get() != IDLE
    }

    #[cold]
    fn drop_one(&self, id: u8) {
        self.dropped.set(self.dropped.get() + 1);
        tracing::debug!(id, "active message without a handler dropped");
    }

    fn imm(&self, imm: Imm) {
        if let Some(handler) = &mut Borrowed::take(&self.on_imm).handler {
            handler(imm);
        }
    }

    fn report(&self, ep: EpTag, error: Error) {
        match &mut Borrowed::take(&self.on_error).handler {
            Some(handler) => handler(ep, error),
            None => tracing::warn!(ep = ep.0, %error, "operation without a completion failed"),
        }
    }
}

/// A handler out of its place, that it may set another one; back when this is dropped, also if it panicked.
struct Borrowed<'a, H> {
    slot: &'a Cell<Option<H>>,
    handler: Option<H>,
}

impl<H> Borrowed<'_, H> {
    fn take(slot: &Cell<Option<H>>) -> Borrowed<'_, H> {
        Borrowed { handler: slot.take(), slot }
    }
}

impl<H> Drop for Borrowed<'_, H> {
    fn drop(&mut self) {
        // One set by the handler itself wins.
        let set_meanwhile = self.slot.take();
        self.slot.set(set_meanwhile.or_else(|| self.handler.take()));
    }
}

struct Running<'a>(&'a AmTable);

impl Running<'_> {
    #[cold]
    fn replace(&self, id: u16) {
        self.0.has_replacement.set(false);
        if let (Some(handler), Ok(id)) = (self.0.replacement.take(), u8::try_from(id)) {
            self.0.set(id, handler);
        }
    }
}

impl Drop for Running<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let id = self.0.running.replace(IDLE);
        if self.0.has_replacement.get() {
            self.replace(id);
        }
    }
}

pub struct CopyOnKeep;

impl Keep for CopyOnKeep {
    fn keep(&self, packet: &[u8]) -> RecvDesc {
        RecvDesc::copied(packet)
    }
}

/// The table as the sink of a poll. Completion tokens go nowhere, as `Iface::progress` documents.
pub struct TableSink<'a>(pub &'a AmTable);

impl Sink for TableSink<'_> {
    #[inline(always)]
    fn on_am(&mut self, am: Am<'_>) {
        self.0.dispatch(am);
    }

    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}

    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.0.report(ep, error);
    }

    fn on_imm(&mut self, imm: Imm) {
        self.0.imm(imm);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::api::SrcAddr;
    use std::rc::Rc;

    fn am(packet: &[u8]) -> Am<'_> {
        Am::new(packet, SrcAddr::default(), &CopyOnKeep)
    }

    #[test]
    fn message_without_handler_is_counted_and_dropped() {
        let table = AmTable::default();
        table.dispatch(am(&[7, 1]));
        assert_eq!(table.dropped(), 1);
    }

    /// A sender that changes the id after it was read changes nothing.
    #[test]
    fn the_id_that_was_read_decides() {
        let table = Rc::new(AmTable::default());
        let seen = Rc::new(Cell::new(0));
        for id in [7, 8] {
            let (t, s) = (table.clone(), seen.clone());
            // The row of a handler that runs is not touched: another handler takes its place afterwards.
            table.set(
                id,
                Some(Box::new(move |_| {
                    t.set(id, None);
                    s.set(id);
                })),
            );
        }
        table.dispatch_as(7, am(&[8]));
        assert_eq!((seen.get(), table.dropped()), (7, 0));
        table.dispatch_as(7, am(&[8]));
        assert_eq!((seen.get(), table.dropped()), (7, 1));
        // The other handler holds the table.
        table.set(8, None);
    }

    #[test]
    fn a_handler_that_panics_is_called_again() {
        let table = AmTable::default();
        let seen = Rc::new(Cell::new(0));
        let s = seen.clone();
        let handler = move |_: Am<'_>| {
            s.set(s.get() + 1);
            assert!(s.get() > 1, "the first time");
        };
        table.set(7, Some(Box::new(handler)));
        let first = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| table.dispatch(am(&[7]))));
        assert!(first.is_err() && !table.is_running());
        table.dispatch(am(&[7]));
        assert_eq!((seen.get(), table.dropped()), (2, 0));
    }

    #[test]
    fn a_handler_may_replace_and_remove_itself() {
        let table = Rc::new(AmTable::default());
        let seen = Rc::new(Cell::new(0));
        let (t, s) = (table.clone(), seen.clone());
        table.set(
            7,
            Some(Box::new(move |_| {
                s.set(s.get() + 1);
                let s = s.clone();
                t.set(7, Some(Box::new(move |_| s.set(s.get() + 10))));
            })),
        );
        table.dispatch(am(&[7]));
        table.dispatch(am(&[7]));
        table.dispatch(am(&[7]));
        assert_eq!(seen.get(), 21);
        let t = table.clone();
        table.set(8, Some(Box::new(move |_| t.set(8, None))));
        table.dispatch(am(&[8]));
        table.dispatch(am(&[8]));
        assert_eq!(table.dropped(), 1);
    }

    #[test]
    fn dropped_handler_may_set_handlers() {
        struct Leaving(Rc<AmTable>, Rc<Cell<u32>>);
        impl Drop for Leaving {
            fn drop(&mut self) {
                let seen = self.1.clone();
                self.0.set(9, Some(Box::new(move |_| seen.set(seen.get() + 1))));
            }
        }
        let (table, seen) = (Rc::new(AmTable::default()), Rc::new(Cell::new(0)));
        for running in [true, false] {
            let (t, leaving) = (table.clone(), Leaving(table.clone(), seen.clone()));
            let handler = move |_: Am<'_>| {
                let _kept = &leaving;
                t.set(9, None);
            };
            table.set(9, Some(Box::new(handler)));
            if running {
                table.dispatch(am(&[9]))
            } else {
                table.set(9, None)
            }
            table.dispatch(am(&[9]));
        }
        assert_eq!((seen.get(), table.dropped()), (2, 0));
    }

    #[test]
    fn error_handlers_stay_registered() {
        let table = AmTable::default();
        let seen = Rc::new(Cell::new(0));
        let s = seen.clone();
        table.set_error(Some(Box::new(move |tag, _| s.set(s.get() + tag.0))));
        TableSink(&table).on_ep_error(EpTag(2), Error::PeerDead);
        TableSink(&table).on_ep_error(EpTag(3), Error::PeerDead);
        assert_eq!(seen.get(), 5);
    }

    #[test]
    fn error_and_immediate_handlers_survive_panics() {
        let table = AmTable::default();
        let seen = Rc::new(Cell::new(0));
        let (errors, words) = (seen.clone(), seen.clone());
        table.set_error(Some(Box::new(move |tag, _| {
            errors.set(errors.get() + tag.0);
            assert!(tag.0 != 1, "the first time");
        })));
        table.set_imm(Some(Box::new(move |imm| {
            words.set(words.get() + u64::from(imm.value));
            assert!(imm.value != 10, "the first time");
        })));
        let caught = |call: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
        let imm = |value| Imm { value, len: 0, source: SrcAddr::default() };
        assert!(caught(&|| TableSink(&table).on_ep_error(EpTag(1), Error::PeerDead)));
        assert!(caught(&|| TableSink(&table).on_imm(imm(10))));
        TableSink(&table).on_ep_error(EpTag(2), Error::PeerDead);
        TableSink(&table).on_imm(imm(20));
        assert_eq!(seen.get(), 33);
    }
}
