//! Writes of peers to memory of this process that carry completion data. The engine keeps them until it is
//! asked, as it keeps messages of receives of many messages; the receive queue gets both.

use ucp::RemoteWrite;

use super::Ep;
use crate::abi::flags;
use crate::abi::queue::CqTaggedEntry;
use crate::ring::Entry;

/// Capabilities of endpoints for which the engine keeps something.
pub(super) const KEPT: u64 = flags::RMA | flags::MULTI_RECV | flags::RMA_EVENT | SHARED_RX;
/// Bit of [`Ep::caps`] that no capability has: the endpoint takes receives of a shared context.
pub(super) const SHARED_RX: u64 = 1 << 63;

impl Ep {
    /// Moves what the engine has kept to the ring of receives, as far as that has room. Inside the
    /// lock.
    // HOT
    #[inline(always)]
    pub(crate) fn collect_kept(&self, plain: &ucp::Worker) {
        if self.caps & KEPT == 0 {
            return;
        }
        if self.caps & flags::RMA != 0 {
            self.collect_remote_writes(plain);
        }
        if self.caps & (KEPT & !flags::RMA) != 0 {
            self.collect_others(plain);
        }
    }

    /// Moves or counts all but writes with data.
    #[inline(never)]
    fn collect_others(&self, plain: &ucp::Worker) {
        if self.caps & flags::MULTI_RECV != 0 {
            self.collect_multi_recvs();
        }
        if self.caps & flags::RMA_EVENT != 0 {
            self.count_served(plain);
        }
        if self.shares_rx() {
            self.take_shared(plain);
        }
    }

    /// Counts what peers have done with memory of this process.
    fn count_served(&self, plain: &ucp::Worker) {
        let (now, before) = (ucp::ServedOps::of(plain), self.served.get());
        if now == before {
            return;
        }
        self.served.set(now);
        self.domain().count_regions();
        let new = [
            (&self.remote_reads, now.reads - before.reads),
            (&self.remote_writes, now.writes - before.writes),
        ];
        for (cntr, number) in new {
            // SAFETY: a counter is not closed before the endpoints that use it.
            if let (Some(cntr), 1..) = (unsafe { cntr.get().as_ref() }, number) {
                cntr.count_many(number);
                cntr.members.wake();
            }
        }
    }

    // HOT
    #[inline(always)]
    fn collect_remote_writes(&self, plain: &ucp::Worker) {
        while self.rx.ring.len() < self.rx.size {
            let Some(write) = plain.take_remote_write() else { break };
            self.report_remote_write(&write);
        }
    }

    #[inline(never)]
    fn report_remote_write(&self, write: &RemoteWrite) {
        let shown = CqTaggedEntry {
            op_context: std::ptr::null_mut(),
            flags: flags::RMA | flags::REMOTE_WRITE | flags::REMOTE_CQ_DATA,
            len: usize::try_from(write.len).unwrap_or(usize::MAX),
            buf: std::ptr::null_mut(),
            data: write.cq_data,
            tag: 0,
        };
        // SAFETY: a queue is not closed before the endpoints that use it. Without one nobody asks for them.
        if let Some(cq) = unsafe { self.rx.cq.get().as_ref() } {
            self.rx.ring.push(Entry { shown, from: write.from, is_error: false });
            cq.members.wake();
        }
    }
}
