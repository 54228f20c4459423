//! Queues, counters and address vectors of an endpoint: what is bound before it is enabled, and left when it
//! is closed.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::Ep;
use super::setup::FLUSH_WITHIN;
use crate::abi::flags;
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::info::EpKind;
use crate::object::Object;
use crate::refused;

impl Ep {
    pub(super) fn bind_cq(&self, cq: &Cq, flags: u64) -> Result<(), Errno> {
        let known = flags::SEND | flags::RECV | flags::SELECTIVE_COMPLETION;
        if flags & !known != 0 || flags & (flags::SEND | flags::RECV) == 0 {
            return Err(Errno::BADFLAGS);
        }
        let is_selective = flags & flags::SELECTIVE_COMPLETION != 0;
        let ways = [(flags::SEND, &self.tx), (flags::RECV, &self.rx)];
        let ways = ways.into_iter().filter(|(bit, _)| flags & bit != 0);
        if ways.clone().any(|(_, way)| !way.cq.get().is_null()) {
            return Err(Errno::INVAL);
        }
        let _joins = self.domain().lock_joins();
        cq.members.add(self)?;
        // The other context of a number makes progress of both.
        self.inside(|_| {
            for (_, way) in ways {
                way.cq.set(cq);
                way.is_selective.set(is_selective);
                cq.users().add();
            }
        });
        Ok(())
    }

    pub(super) fn bind_av(&self, av: &Av) -> Result<(), Errno> {
        if !self.av.get().is_null() {
            return Err(Errno::INVAL);
        }
        // As in `bind_cq`.
        self.inside(|_| {
            self.av.set(av);
            self.rx_ctx_bits.set(av.rx_ctx_bits);
        });
        av.add_ep(self);
        Ok(())
    }

    pub(super) fn bind_cntr(&self, cntr: &Cntr, flags: u64) -> Result<(), Errno> {
        let of_target = flags::REMOTE_READ | flags::REMOTE_WRITE;
        // Without memory operations there is nothing of peers to count: such a counter stays as it is.
        let is_target = self.caps & (flags::RMA | flags::ATOMIC) != 0;
        if flags & of_target != 0 && is_target && self.caps & flags::RMA_EVENT == 0 {
            return Err(refused::log_refusal("fi_ep_bind: counters of a target need FI_RMA_EVENT"));
        }
        let counters = self.counters();
        if flags & !counters.iter().fold(0, |all, (bit, _)| all | bit) != 0 || flags == 0 {
            return Err(Errno::BADFLAGS);
        }
        let counters = counters.into_iter().filter(|(bit, _)| flags & bit != 0);
        if counters.clone().any(|(_, of)| !of.get().is_null()) {
            return Err(Errno::INVAL);
        }
        let _joins = self.domain().lock_joins();
        cntr.members.add(self)?;
        // As in `bind_cq`.
        self.inside(|_| {
            for (_, of) in counters {
                of.set(cntr);
                cntr.users().add();
            }
        });
        Ok(())
    }

    /// Counters of the endpoint, by the flag that binds each.
    pub(super) fn counters(&self) -> [(u64, &Cell<*const Cntr>); 6] {
        [
            (flags::SEND, &self.tx.cntr),
            (flags::RECV, &self.rx.cntr),
            (flags::READ, &self.reads),
            (flags::WRITE, &self.writes),
            (flags::REMOTE_READ, &self.remote_reads),
            (flags::REMOTE_WRITE, &self.remote_writes),
        ]
    }

    /// Checks that the endpoint has what its operations need, and permits them.
    pub(super) fn enable(&self) -> Result<(), Errno> {
        if self.kind == EpKind::Msg {
            if self.connection.eq().is_none() {
                tracing::error!("fi_enable: no event queue is bound");
                return Err(Errno::NOEQ);
            }
        } else if self.av.get().is_null() {
            tracing::error!("fi_enable: no address vector is bound");
            return Err(Errno::NOAV);
        }
        if self.shares_tx && self.stx.get().is_null() {
            tracing::error!("fi_enable: no shared transmit context is bound");
            return Err(Errno::OPBADSTATE);
        }
        if self.shares_rx() && self.srx.get().is_null() {
            tracing::error!("fi_enable: no shared receive context is bound");
            return Err(Errno::OPBADSTATE);
        }
        let has_messages = self.caps & (flags::MSG | flags::TAGGED) != 0;
        let has_rma_counter =
            !has_messages && [&self.reads, &self.writes].iter().any(|of| !of.get().is_null());
        for (bit, way) in [(flags::SEND, &self.tx), (flags::RECV, &self.rx)] {
            let is_bound = !way.cq.get().is_null() || !way.cntr.get().is_null();
            let is_used = has_messages && self.caps & bit != 0 || !has_messages && bit == flags::SEND;
            if is_used && !is_bound && !has_rma_counter {
                tracing::error!("fi_enable: neither queue nor counter is bound for capability {bit:#x}");
                return Err(Errno::NOCQ);
            }
        }
        self.is_enabled.store(true, Ordering::Relaxed);
        self.can_recv.store(!self.shares_rx(), Ordering::Relaxed);
        if self.kind != EpKind::Msg {
            self.can_send.store(true, Ordering::Relaxed);
            self.service.start(&self.name, self.domain().name_form);
        }
        Ok(())
    }

    /// Permits the operations of a context: sends (`FI_SEND`) or receives.
    pub(super) fn enable_direction(&self, bit: u64) -> Result<(), Errno> {
        let (is_tx, way) = if bit == flags::SEND { (true, &self.tx) } else { (false, &self.rx) };
        let has_rma_counter = is_tx && [&self.reads, &self.writes].iter().any(|of| !of.get().is_null());
        if way.cq.get().is_null() && way.cntr.get().is_null() && !has_rma_counter {
            tracing::error!("fi_enable: neither queue nor counter is bound to the context");
            return Err(Errno::NOCQ);
        }
        self.is_enabled.store(true, Ordering::Relaxed);
        match is_tx {
            true => self.can_send.store(true, Ordering::Relaxed),
            false => self.can_recv.store(true, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Ends the operations of a context that is closed: nobody hears of them any more. [`Errno::BUSY`]:
    /// deferred work of it waits.
    pub(super) fn disable_direction(&self, bit: u64) -> Result<(), Errno> {
        let is_tx = bit == flags::SEND;
        self.domain().forget_triggered(self, Some(!is_tx))?;
        self.inside(|plain| {
            if is_tx {
                let _ = plain.flush_within(FLUSH_WITHIN).wait();
                self.can_send.store(false, Ordering::Relaxed);
                self.detach(plain, &self.running_tx);
            } else {
                self.can_recv.store(false, Ordering::Relaxed);
                let multi_recvs = self.multi_recvs.take();
                self.rx.running.set(self.rx.running.get() - multi_recvs.len());
                drop((multi_recvs, self.claimed.take()));
                self.detach(plain, &self.running);
            }
            self.progress();
        });
        self.unbind_direction(is_tx);
        self.inside(|_| (if is_tx { &self.tx } else { &self.rx }).ring.clear());
        Ok(())
    }

    /// Leaves queues and counters of sends, or of receives.
    pub(super) fn unbind_direction(&self, is_tx: bool) {
        let of_tx = flags::SEND | flags::READ | flags::WRITE;
        let (way, other) = if is_tx { (&self.tx, &self.rx) } else { (&self.rx, &self.tx) };
        // Each that was bound, and whether something else of this endpoint still uses it.
        let take = || {
            let of_way = self.counters().into_iter().filter(|(bit, _)| (bit & of_tx != 0) == is_tx);
            let bound: Vec<_> = of_way.map(|(_, of)| of.replace(std::ptr::null())).collect();
            let is_used = |cntr| self.counters().iter().any(|(_, of)| std::ptr::eq(of.get(), cntr));
            let counters: Vec<_> = bound.into_iter().map(|cntr| (cntr, is_used(cntr))).collect();
            let cq = way.cq.replace(std::ptr::null());
            (cq, std::ptr::eq(cq, other.cq.get()), counters)
        };
        let _joins = self.domain().lock_joins();
        // What ends in another thread finds them inside the lock, or not at all.
        let (cq, is_used, counters) = self.inside(|_| take());
        // SAFETY: queues and counters are not closed before the endpoints that use them.
        if let Some(cq) = unsafe { cq.as_ref() } {
            if !is_used {
                cq.members.remove(self);
            }
            cq.users().remove();
        }
        for (cntr, is_used) in counters {
            // SAFETY: as above.
            if let Some(cntr) = unsafe { cntr.as_ref() } {
                if !is_used && !self.has_joined(cntr) {
                    cntr.members.remove(self);
                }
                cntr.users().remove();
            }
        }
    }

    /// Leaves the objects that it is bound to.
    pub(super) fn unbind(&self) {
        self.unbind_direction(true);
        self.unbind_direction(false);
        // SAFETY: as above.
        if let Some(stx) = unsafe { self.stx.replace(std::ptr::null()).as_ref() } {
            stx.users().remove();
        }
        self.leave_all();
        self.unbind_srx();
        if let Some(av) = self.av() {
            av.remove_ep(self);
            self.inside(|_| self.av.set(std::ptr::null()));
        }
    }
}
