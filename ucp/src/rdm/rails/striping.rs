//! Striping of granted data: CTSDATA of a long message, write or read over several lanes (RDM v4 chapter 11).
//! Further lanes carry nothing else: order, grants and ends stay on the first.

use arrayvec::ArrayVec;

use crate::rdm::flow::window::{self, Segment};
use crate::rdm::ids::{LaneId, PeerId};
use crate::rdm::io::{NotPosted, Posted, Wire};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Peer;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::SendProgress;
use crate::rdm::rails::rail_plan::{MAX_RAILS, rails_for};
use crate::wire::ctl::CtsData;
use crate::wire::{self, Packet, PktType};

/// Consecutive packets on one lane: few enough that a window of 32 keeps four lanes busy.
const LANE_RUN: u64 = 8;

/// Kind of transfer, which selects the setting for the number of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum TransferKind {
    Message,
    Memory,
}

/// The granted and unsent part of an operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdm) struct Granted {
    pub to: PeerId,
    pub recv_id: u32,
    pub at: u64,
    pub window: u64,
    pub total: u64,
    pub kind: TransferKind,
}

pub(in crate::rdm) struct SentSegment {
    lane: LaneId,
    len: usize,
    result: Result<Posted, NotPosted>,
}

/// The lanes that carry one operation, the first lane or the one in its place first.
type Lanes = ArrayVec<LaneId, MAX_RAILS>;

/// Notes the result of a packet of a grant to `to`. Returns its bytes, or the error.
// HOT
#[inline]
pub(in crate::rdm) fn count_granted(
    peers: &mut Peers,
    to: PeerId,
    sent: SentSegment,
) -> Result<usize, SendProgress> {
    let SentSegment { lane, len, result } = sent;
    peers.counters.stats.rare.ctsdata_striped += u64::from(lane.is_further() && result.is_ok());
    let posted = match lane.is_further() {
        true => peers.posted_on(lane, PktType::CTSDATA, result),
        false => peers.posted(to, PktType::CTSDATA, result),
    };
    match posted {
        Ok(()) => Ok(len),
        Err(NotPosted::Peer(fault)) if lane.is_further() => {
            peers.lost_lanes.push((lane, fault));
            Err(SendProgress::Sent)
        }
        Err(refused) => Err(refused.into()),
    }
}

impl Pending {
    /// Sends a packet of a lost further lane over the first. False if not granted data, or the peer is gone.
    // [M11.12]
    #[cold]
    pub(in crate::rdm) fn resend_on_main_lane(
        &mut self,
        peers: &mut Peers,
        lane: LaneId,
        packet: &[u8],
    ) -> bool {
        let Some(main) = peers.table.lanes.get(lane).and_then(|lane| lane.peer) else { return false };
        let Ok(Packet::CtsData(hdr, payload)) = wire::parse(packet) else { return false };
        if peers.table.is_up(main) {
            let hdr = CtsData { connid: window::data_connid(peers, main.into()), ..hdr };
            let mut bytes = vec![0; CtsData::header_len(hdr.connid)];
            hdr.write(&mut bytes);
            bytes.extend_from_slice(payload);
            self.resend_on_lane(peers, main, &bytes);
        }
        true
    }
}

impl Peers {
    /// Returns the further lanes of a peer. Those that have become peers of their own are stale.
    #[inline]
    pub fn further_lanes(&self, to: PeerId) -> &[LaneId] {
        self.table.get(to).map_or(&[], Peer::lanes)
    }

    /// Sends the next packet of a grant over the next lane with room; `None` if no packet holds data.
    // HOT
    // [M5.6] [M11.11]
    pub(in crate::rdm) fn post_granted<W: Wire>(
        &self,
        w: &mut W,
        g: Granted,
        mut fill: impl FnMut(&mut [u8]) -> usize,
    ) -> Option<SentSegment> {
        let per_packet = window::data_per_packet(w.mtu(g.to));
        let window = usize::try_from(g.window).unwrap_or(usize::MAX);
        let mut send = |lane: LaneId, per_packet: usize| {
            let len = window.min(per_packet);
            let segment = Segment { to: lane, recv_id: g.recv_id, at: g.at, len };
            SentSegment { lane, len, result: segment.send(w, window::data_connid(self, lane), &mut fill) }
        };
        if window == 0 || per_packet == 0 {
            return None;
        }
        if self.further_lanes(g.to).is_empty() {
            return Some(send(g.to.into(), per_packet));
        }
        let lanes = lanes_for(self, &g);
        let first = (g.at / (per_packet as u64 * LANE_RUN)) as usize;
        let mut sent = None;
        for n in 0..lanes.len() {
            let lane = lanes[(first + n) % lanes.len()];
            sent = Some(send(lane, per_packet));
            if sent.as_ref().is_some_and(|sent| sent.result != Err(NotPosted::Full)) {
                break;
            }
        }
        sent
    }
}

/// Returns the lanes of an operation: the peer's own, and further ones while there are bytes for each.
// [M11.11]
#[inline(never)]
pub(in crate::rdm) fn lanes_for(peers: &Peers, g: &Granted) -> Lanes {
    let (most, least) = match g.kind {
        TransferKind::Message => (peers.cfg.rndv_rails, peers.cfg.rndv_chunk),
        TransferKind::Memory => (peers.cfg.rma_rails, peers.cfg.rma_chunk),
    };
    let wanted = rails_for(g.total, least, usize::from(most));
    let ready =
        |lane: &LaneId| peers.table.lane(*lane).is_some_and(|lane| !lane.state.has(PeerFlags::BACKED_OFF));
    let further = peers.usable_lanes(g.to).filter(ready);
    [g.to.into()].into_iter().chain(further).take(wanted.min(MAX_RAILS)).collect()
}
