//! Datagrams that arrive. *"Both frag and chunk packets go through some of the same processing"*: *"Both may
//! carry piggy-backed ACKs which may need to be processed"*, *"Both have sequence numbers which must be
//! processed and may result in dropping the packet and/or queueing an ACK to the sender"* (Receive dataflow).

use super::core::{Core, Timer, blank_header};
use super::endpoint::{Endpoint, State};
use super::{CloseReason, EpId, Module, Sink};
use crate::ack::AckUrgency;
use crate::header::{self, HEADER, Header, Malformed, flag, kind};
use crate::recv_window::Arrival;
use crate::seq::Seq;
use zerocopy::IntoBytes;

/// A segment that was delivered before its bookkeeping: *"all bookkeeping for the packet is deferred until
/// the next time `component_progress` is called again"* (Fast receive optimization).
pub(super) struct Deferred {
    ep: EpId,
    header: Header,
    /// When it arrived.
    time: u64,
}

/// Time for which a peer that has left may send again what its goodbye has overtaken, in first timers of a
/// segment: 300 ms.
const LEFT_RTOS: u64 = 3;

/// Connection of a datagram.
enum Known {
    Index(usize),
    /// The connection is being made: the peer will send again.
    NotYet,
    Not,
}

impl Module {
    /// Takes a datagram that has arrived. Returns a datagram to send back to where it came from, if its
    /// connection does not exist: so its sender learns at once that this module has taken another's place.
    pub fn on_datagram(&mut self, now: u64, datagram: &[u8], sink: &mut impl Sink) -> Option<[u8; HEADER]> {
        self.finish_deferred();
        let (header, rest) = match header::open(datagram) {
            Ok(opened) => opened,
            Err(why) => {
                match why {
                    Malformed::Checksum => self.core.stats.corrupt += 1,
                    Malformed::Shape => self.core.stats.malformed += 1,
                }
                return None;
            }
        };
        match header.kind {
            kind::HELLO => self.on_hello(now, header, rest, sink),
            kind::HELLO_ACK => self.on_hello_ack(now, header, rest),
            _ => match self.known(header) {
                Known::Index(index) => self.on_known(now, index, header, rest, sink),
                Known::NotYet => self.core.stats.unknown += 1,
                Known::Not => {
                    self.core.stats.unknown += 1;
                    return (!matches!(header.kind, kind::RESET | kind::BYE)).then(|| reset(header));
                }
            },
        }
        None
    }

    fn known(&self, header: &Header) -> Known {
        let Some(index) = self.index(EpId(header.dst.get())) else { return Known::Not };
        match self.endpoints[index].as_deref() {
            Some(endpoint) if endpoint.state == State::Connecting => Known::NotYet,
            Some(endpoint) if endpoint.remote == header.src.get() => Known::Index(index),
            _ => Known::Not,
        }
    }

    fn on_known(&mut self, now: u64, index: usize, header: &Header, rest: &[u8], sink: &mut impl Sink) {
        let core = &mut self.core;
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return };
        endpoint.on_heard(core, now);
        let pieces;
        let (mut header, mut rest) = (header, rest);
        if header.kind == kind::PIECE
            && let Some(segment) = endpoint.on_piece(core, now, header, rest)
        {
            pieces = segment;
            (header, rest) = (&pieces.0, &pieces.1);
        }
        let is_good = match header.kind {
            kind::RESET => return self.kill(index, CloseReason::Restarted, sink),
            kind::PROBE => {
                let need = endpoint.acks.raise(AckUrgency::Now);
                endpoint.need_ack(core, now, need);
                endpoint.on_ack(core, now, header, &[])
            }
            kind::PATH => {
                let len = (HEADER + rest.len()) as u32;
                endpoint.queue_control(core, kind::PATH_OK, &len.to_le_bytes());
                endpoint.on_ack(core, now, header, &[])
            }
            kind::PATH_OK => {
                endpoint.on_path(header::parse_length(rest).unwrap_or(0));
                endpoint.on_ack(core, now, header, &[])
            }
            kind::ACK => endpoint.on_ack(core, now, header, rest),
            kind::PIECE => endpoint.on_ack(core, now, header, &[]),
            kind::BYE => {
                // What it has overtaken is waited for, for as long as a process that ends stays to send it
                // again.
                endpoint.ends_at = Some(Seq(header.seq.get()));
                let due = now + LEFT_RTOS * core.config.initial_rto;
                endpoint.set_timer(core, Timer::Left, due);
                endpoint.on_ack(core, now, header, &[])
            }
            _ => {
                endpoint.on_ack(core, now, header, &[]) && endpoint.on_segment(core, now, header, rest, sink)
            }
        };
        if !is_good {
            self.kill(index, CloseReason::Violation, sink);
        } else if endpoint.has_left() {
            self.kill(index, CloseReason::Left, sink);
        }
    }

    /// Delivers a fragment before any bookkeeping: the document's `opal_btl_usnic_recv_fast()`, *"which does
    /// nothing but validates that the packet is OK to be received (sequence number OK and not a DUP) and then
    /// delivers it"*. For the first datagram of a poll, if it came on the priority channel. Returns `false`
    /// if the datagram is not of that kind, or the bookkeeping of another one is not done; then nothing has
    /// happened. The bookkeeping is done by the next call of [`on_datagram`](Self::on_datagram),
    /// [`on_time`](Self::on_time), [`send`](Self::send) or [`poll_send`](Self::poll_send); until then it [is
    /// deferred](Self::has_deferred).
    pub fn recv_fast(&mut self, now: u64, datagram: &[u8], sink: &mut impl Sink) -> bool {
        if self.deferred.is_some() {
            return false;
        }
        let Ok((header, rest)) = header::open(datagram) else { return false };
        if header.kind != kind::FRAG || !header::is_priority(header) {
            return false;
        }
        let Known::Index(index) = self.known(header) else { return false };
        let Some(endpoint) = self.endpoints[index].as_deref_mut() else { return false };
        if !endpoint.recv.check(Seq(header.seq.get())).is_new() {
            return false;
        }
        let Some((head, payload)) = header::parse_frag(rest) else { return false };
        sink.on_frag(endpoint.id, head, payload);
        self.core.stats.received_fast += 1;
        self.deferred = Some(Deferred { ep: endpoint.id, header: *header, time: now });
        true
    }

    /// Whether the bookkeeping of a fast receive is left.
    pub fn has_deferred(&self) -> bool {
        self.deferred.is_some()
    }

    /// Does the bookkeeping of a fast receive, if one is left.
    #[inline]
    pub(super) fn finish_deferred(&mut self) {
        if let Some(deferred) = self.deferred.take() {
            self.finish(&deferred);
        }
    }

    fn finish(&mut self, Deferred { ep, header, time }: &Deferred) {
        let Some(index) = self.index(*ep) else { return };
        if let Some(endpoint) = self.endpoints[index].as_deref_mut() {
            endpoint.on_heard(&mut self.core, *time);
            // A wrong acknowledgement is counted; the fragment is delivered already.
            endpoint.on_ack(&mut self.core, *time, header, &[]);
            endpoint.arrive(&mut self.core, *time, header);
            if endpoint.has_left() {
                // Its goodbye came first. The connection ends by the timer, at once: here is no sink.
                endpoint.stop_timer(&mut self.core, Timer::Left);
                endpoint.set_timer(&mut self.core, Timer::Left, *time);
            }
        }
    }
}

/// Answers a datagram whose connection does not exist.
fn reset(to: &Header) -> [u8; HEADER] {
    let mut header = blank_header(kind::RESET, 0);
    (header.dst, header.src) = (to.src, to.dst);
    let mut datagram = [0; HEADER];
    datagram.copy_from_slice(header.as_bytes());
    header::seal(&mut datagram);
    datagram
}

impl Endpoint {
    /// Notes the arrival of a segment, and that it is to be acknowledged. Returns whether it is to be
    /// delivered.
    pub(super) fn arrive(&mut self, core: &mut Core, now: u64, header: &Header) -> bool {
        let seq = Seq(header.seq.get());
        let arrival = self.recv.check(seq);
        match arrival {
            Arrival::Next => core.stats.received_in_order += 1,
            Arrival::Early => core.stats.received_early += 1,
            Arrival::Below | Arrival::Repeated => core.stats.received_again += 1,
            Arrival::Beyond => {
                core.stats.beyond_window += 1;
                return false;
            }
        }
        if arrival.is_new() {
            self.recv.mark(seq);
        }
        let need = self.acks.on_arrival(arrival, header.flags & flag::AGAIN != 0);
        if need == Some(AckUrgency::Now) {
            core.stats.acks_immediate += 1;
        }
        self.need_ack(core, now, need);
        arrival.is_new()
    }

    /// Takes a segment. Returns `false` if the peer breaks the rules.
    fn on_segment(
        &mut self,
        core: &mut Core,
        now: u64,
        header: &Header,
        rest: &[u8],
        sink: &mut impl Sink,
    ) -> bool {
        // Parsed before it is acknowledged.
        let good = match header.kind {
            kind::FRAG => header::parse_frag(rest).is_some(),
            _ => header::parse_chunk(rest).is_some(),
        };
        if !good {
            core.stats.malformed += 1;
            return true;
        }
        if !self.arrive(core, now, header) {
            return true;
        }
        if let (kind::FRAG, Some((head, payload))) = (header.kind, header::parse_frag(rest)) {
            sink.on_frag(self.id, head, payload);
            return true;
        }
        let is_good = self.on_chunk(core.config.max_assemblies, header, rest, sink);
        core.stats.violations += u64::from(!is_good);
        is_good
    }

    fn on_chunk(&mut self, most: usize, header: &Header, rest: &[u8], sink: &mut impl Sink) -> bool {
        let Some((chunk, head, payload)) = header::parse_chunk(rest) else { return true };
        let (id, total, ep) = (chunk.frag.get(), chunk.total.get(), self.id);
        let first = || sink.on_first_chunk(ep, head, total);
        let Ok(assembly) = self.assembly.find(id, head, total, most, first) else { return false };
        let aborts = header.flags & flag::ABORT != 0;
        let taken =
            if aborts { assembly.abort(chunk.offset.get()) } else { assembly.take(payload.len() as u32) };
        let Ok(is_last) = taken else { return false };
        let (target, whole) = (assembly.target, !assembly.aborted);
        if let Some(target) = target.filter(|_| !aborts) {
            sink.on_chunk(target, chunk.offset.get(), payload);
        }
        if is_last {
            self.assembly.finish(id);
            if let Some(target) = target {
                sink.on_last_chunk(ep, target, head, whole);
            }
        }
        true
    }
}
