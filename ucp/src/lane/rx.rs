//! The sink of `Iface::poll`: forwards packets, completions and failures of a lane to the engine. Never
//! parses a packet and never runs user code.

use crate::rdm::io::ReceiveSink;
use std::num::NonZero;

use ucs::time::{Nanos, ticks};
use uct::api::{Am, DevKind, EpTag, Error, Iface as _, Imm, RecvCallback, Sink, UserRecv};

use crate::rdm::io::{LaneId, PeerError, PeerId, Source};
use crate::rdm::{Engine, UserRecvEnd, WireId};

use crate::token::CompletionToken;

use super::{Bound, RmaOnlyLane, fault_of};

/// Shortest packet whose time tells the copy bandwidth, bytes; headers dominate shorter ones.
const MEASURED_LEN: usize = 4096;

/// The end of a lane's part of a flush.
pub(crate) struct FlushEnd {
    pub number: u32,
    pub result: Result<(), Error>,
}

/// The sink for one poll of one lane.
pub(crate) struct PollSink<'a, S> {
    pub engine: &'a mut Engine,
    pub bound: Bound<'a, S>,
    pub wire: WireId,
    pub now: Nanos,
    pub flushed: &'a mut Vec<FlushEnd>,
}

/// The sink for a fast poll of one lane for a short message.
pub(crate) struct FastPollSink<'a, S> {
    pub engine: &'a mut Engine,
    pub sink: S,
    pub wire: WireId,
}

impl<S: ReceiveSink> RecvCallback for FastPollSink<'_, S> {
    // HOT
    #[inline(always)]
    fn on_packet(mut self, packet: &[u8], from: uct::api::SrcAddr) -> bool {
        let from = Source { node: from.node, port: from.port };
        self.engine.receives().recv_short(&mut self.sink, self.wire, from, packet)
    }
}

impl<S> PollSink<'_, S> {
    /// Returns the ticks at which a long packet is handled, if times are measured.
    #[inline(never)]
    fn start_timing(&self) -> Option<NonZero<u64>> {
        let lane = &self.bound.ifaces[usize::from(self.bound.receiving.0)];
        let measures_packets = |rma_only: &RmaOnlyLane| rma_only.measures_packets();
        let is_host = lane.iface.attr().kind == DevKind::Shm;
        if is_host && self.bound.rma_only.is_some_and(measures_packets) {
            NonZero::new(ticks())
        } else {
            None
        }
    }

    #[inline(never)]
    fn record_packet_time(&mut self, from: Source, len: usize, start: NonZero<u64>) {
        let end = ticks();
        if let Some(rma_only) = self.bound.rma_only
            && let Some(peer) = self.engine.peers_mut().at(self.wire, from)
        {
            rma_only.record_packet(peer, len, start.get(), end);
        }
    }
}

impl<S: ReceiveSink> Sink for PollSink<'_, S> {
    // HOT
    #[inline(always)]
    fn on_am(&mut self, am: Am<'_>) {
        let from = am.source();
        let from = Source { node: from.node, port: from.port };
        let len = am.packet().len();
        let start = if len >= MEASURED_LEN { self.start_timing() } else { None };
        self.engine.on_packet(&mut self.bound, self.now, self.wire, from, am.packet());
        if let Some(start) = start {
            self.record_packet_time(from, len, start);
        }
    }

    #[cold]
    fn on_imm(&mut self, imm: Imm) {
        let from = Source { node: imm.source.node, port: imm.source.port };
        self.engine.on_imm(&mut self.bound, self.wire, from, imm.len as u64, imm.value);
    }

    fn on_user_recv(&mut self, token: u64, recv: UserRecv) {
        let from = Source { node: recv.source.node, port: recv.source.port };
        let result = recv.result.map_err(|error| match error {
            Error::TooLong { .. } => PeerError::TOO_LONG,
            error => fault_of(error),
        });
        let end = UserRecvEnd { from, len: recv.len, imm: recv.imm, result };
        self.engine.on_user_recv(&mut self.bound, self.wire, token as u32, end);
    }

    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        match CompletionToken::unpack(token) {
            CompletionToken::Engine(token) => {
                self.engine.on_sent(&mut self.bound, token, result.map_err(fault_of));
            }
            CompletionToken::Drained(lane) => self.engine.returns().on_flushed(self.now, lane),
            CompletionToken::Flush(number) => self.flushed.push(FlushEnd { number, result }),
            CompletionToken::LaneCheck(lane) => {
                if let Err(error) = result {
                    let fault = fault_of(error);
                    let moved = lane.first_of().is_some_and(|peer| {
                        self.engine.fail_over_from(&mut self.bound, peer, self.wire, fault)
                    });
                    if !moved {
                        self.engine.on_lane_check_error(&mut self.bound, lane, fault);
                    }
                }
            }
        }
    }

    #[cold]
    fn on_rnr(&mut self, ep: EpTag, packet: &[u8]) {
        self.engine.returns().on_rnr(self.now, LaneId(ep.0 as u32), packet);
    }

    #[cold]
    fn on_user_rnr(&mut self, ep: EpTag, data: &[u8], imm: Option<u32>) {
        self.engine.returns().on_rnr_user_qp(self.now, PeerId(ep.0 as u32), data, imm);
    }

    #[cold]
    fn on_lost(&mut self, ep: EpTag, error: Error, packet: &[u8]) {
        let (lane, lost) = (LaneId(ep.0 as u32), (self.wire, fault_of(error)));
        self.engine.on_packet_lost(&mut self.bound, lane, lost, packet);
    }

    #[cold]
    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.engine.on_send_error(&mut self.bound, LaneId(ep.0 as u32), fault_of(error));
    }
}
