//! The table behind `set_am_handler`: one optional handler for each active message id.
//! Owned by every interface; its [`TableSink`] is what `Iface::progress` polls into. Never queues a message: one
//! without a handler is counted and dropped.

use crate::api::{Am, AmHandler, EpTag, Error, Imm, ImmHandler, Sink};
use std::cell::Cell;

/// What an interface calls for failures that have no completion.
pub type ErrorHandler = Box<dyn FnMut(EpTag, Error)>;

/// No handler is running.
const IDLE: u16 = u16::MAX;

/// Handlers by active message id.
pub struct AmTable {
    rows: Box<[Cell<Option<AmHandler>>; 256]>,
    on_error: Cell<Option<ErrorHandler>>,
    on_imm: Cell<Option<ImmHandler>>,
    /// Id whose handler is running, or [`IDLE`].
    running: Cell<u16>,
    /// Whether that handler was replaced or removed while it ran.
    replaced: Cell<bool>,
    dropped: Cell<u64>,
}

impl Default for AmTable {
    fn default() -> Self {
        AmTable {
            rows: Box::new([const { Cell::new(None) }; 256]),
            on_error: Cell::new(None),
            on_imm: Cell::new(None),
            running: Cell::new(IDLE),
            replaced: Cell::new(false),
            dropped: Cell::new(0),
        }
    }
}

impl AmTable {
    /// Registers or removes the handler of `id`. May be called from a handler, also for its own id.
    pub fn set(&self, id: u8, handler: Option<AmHandler>) {
        if self.running.get() == u16::from(id) {
            self.replaced.set(true);
        }
        self.rows[usize::from(id)].set(handler);
    }

    /// Registers or removes what is told of failures without a completion.
    pub fn set_error(&self, handler: Option<ErrorHandler>) {
        self.on_error.set(handler);
    }

    /// Registers or removes what is told of words that come along with writes.
    pub fn set_imm(&self, handler: Option<ImmHandler>) {
        self.on_imm.set(handler);
    }

    /// Messages dropped for want of a handler.
    pub fn dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Hands a message to its handler. // HOT
    #[inline]
    pub fn dispatch(&self, am: Am<'_>) {
        let id = am.id();
        let row = &self.rows[usize::from(id)];
        // Taken out while it runs, so that a handler may replace handlers without a borrow in the way.
        let Some(handler) = row.take() else { return self.drop_one(id) };
        self.running.set(u16::from(id));
        // Also if it panics: the next message is not to be lost with this one.
        let mut running = Running { table: self, row, handler: Some(handler) };
        if let Some(handler) = &mut running.handler {
            handler(am);
        }
    }

    /// Whether a handler of messages is running: a poll now would be one within a poll. // HOT
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
        let Some(mut handler) = self.on_imm.take() else { return };
        handler(imm);
        // One set by the handler itself wins.
        let set_meanwhile = self.on_imm.take();
        self.on_imm.set(set_meanwhile.or(Some(handler)));
    }

    fn report(&self, ep: EpTag, error: Error) {
        match self.on_error.take() {
            Some(mut handler) => {
                handler(ep, error);
                // One set by the handler itself wins.
                let set_meanwhile = self.on_error.take();
                self.on_error.set(set_meanwhile.or(Some(handler)));
            }
            None => tracing::warn!(ep = ep.0, %error, "operation failed, and nobody waits for it"),
        }
    }
}

/// A handler that is running. Goes back to its row when it has run, unless that has another one now.
struct Running<'a> {
    table: &'a AmTable,
    row: &'a Cell<Option<AmHandler>>,
    handler: Option<AmHandler>,
}

impl Drop for Running<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.table.running.set(IDLE);
        if !self.table.replaced.replace(false) {
            self.row.set(self.handler.take());
        }
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
    use crate::api::{Keep, Kept, Source};
    use std::rc::Rc;

    struct Copying;
    impl Keep for Copying {
        fn keep(&self, packet: &[u8]) -> Kept {
            Kept::copied(packet)
        }
    }

    fn am(packet: &[u8]) -> Am<'_> {
        Am::new(packet, Source::default(), &Copying)
    }

    #[test]
    fn without_a_handler_it_counts_and_drops() {
        let table = AmTable::default();
        table.dispatch(am(&[7, 1]));
        assert_eq!(table.dropped(), 1);
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
    fn error_handlers_stay_registered() {
        let table = AmTable::default();
        let seen = Rc::new(Cell::new(0));
        let s = seen.clone();
        table.set_error(Some(Box::new(move |tag, _| s.set(s.get() + tag.0))));
        TableSink(&table).on_ep_error(EpTag(2), Error::PeerDead);
        TableSink(&table).on_ep_error(EpTag(3), Error::PeerDead);
        assert_eq!(seen.get(), 5);
    }
}
